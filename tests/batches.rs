//! Training on mini-batches: against the full graph, on any number of threads, in little memory, and when a stage fails.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::scripted::{Draw, scripted};
use crate::common::{MODELS, shared};
use assert_cmd::Command;
use lapidary::graph::Graph;
use lapidary::model::ModelConfig;
use lapidary::sample::NeighborSampler;
use lapidary::{
    Adam, Arrays, Batches, ByteSize, Dataset, Devices, Error, Model, StorageType, Trainer, TrainerBuilder, Weights,
};
use ndarray::Array2;
use serde_json::Value;

fn neighbors(fanouts: &str) -> NeighborSampler {
    NeighborSampler::new(fanouts.parse().unwrap())
}

/// A directed graph with a hub, repeated edges, self-loops, isolated vertices, weights, and labels on some vertices.
fn hostile() -> Dataset {
    let hub = (0..60u32).map(|u| (u, 7));
    let ring = (0..40u32).flat_map(|v| [(v, (v + 1) % 40), (v, (v + 1) % 40), (v, v), ((v * 5) % 40, v)]);
    let edges: Vec<(u32, u32)> = hub.chain(ring).filter(|(u, v)| *u != 3 || *v != 3).collect();
    let graph = Graph::from_edges(70, &edges).unwrap();
    let weights: Vec<f32> = (0..graph.edge_count()).map(|e| 0.25 + (e % 7) as f32).collect();
    let features = Array2::from_shape_fn((70, 9), |(v, c)| ((v * 31 + c * 17) % 23) as f32 / 23.0 - 0.4);
    let labels: Vec<i64> = (0..70).map(|v| if v % 11 == 5 { -1 } else { v % 3 }).collect();
    let [train, val] = [false, true].map(|val| (0..70i64).filter(|v| (v % 4 == 1) == val).collect::<Vec<_>>());
    let arrays = Arrays::new(graph).directed(true).edge_weights(weights).features(features).labels(&labels);
    Dataset::from_arrays(arrays.train(&train).val(&val)).unwrap()
}

fn model(name: &str, data: &Dataset) -> Model {
    Model::from_config(ModelConfig::new(name, &[data.feature_width(), 8, data.class_count()])).unwrap()
}

fn trainer<'a>(model: &'a Model, data: &'a Dataset) -> TrainerBuilder<'a> {
    Trainer::builder(model, data).optimizer(Adam::new(0.02).weight_decay(1e-3)).seed(5)
}

fn losses(trainer: &mut Trainer, epochs: usize) -> Vec<f64> {
    (0..epochs).map(|_| trainer.step().unwrap().loss).collect()
}

fn assert_near(name: &str, a: &Weights, b: &Weights, tolerance: f32) {
    for ((parameter, a), (_, b)) in a.iter().zip(b.iter()) {
        let scale = a.data.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        let far = a.data.iter().zip(&b.data).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= tolerance * scale, "{name}: {parameter} differs by {far} of {scale}");
    }
}

#[test]
fn one_batch_of_all_edges_is_a_full_graph_epoch() {
    let mut datasets = vec![hostile(), Dataset::builtin("karate").unwrap()];
    // Sparse features.
    datasets.extend(shared("data/cora").map(|path| Dataset::open(path).unwrap()));
    for data in &datasets {
        for name in MODELS.iter().take(if data.graph().vertex_count() > 1000 { 2 } else { MODELS.len() }) {
            let model = model(name, data);
            let mut whole = trainer(&model, data).build().unwrap();
            let all = Batches::new(data.graph().vertex_count(), neighbors("-1,-1"));
            let mut batched = trainer(&model, data).batches(all).build().unwrap();
            for _ in 0..4 {
                let (whole, batched) = (whole.step().unwrap(), batched.step().unwrap());
                let far = (whole.loss - batched.loss).abs() / whole.loss;
                assert!(far < 1e-5, "{name} on {}: {} and {}", data.name(), whole.loss, batched.loss);
                assert_eq!(whole.accuracy.unwrap().val.is_some(), batched.accuracy.unwrap().val.is_some());
                assert_eq!(batched.stages.unwrap().batches, 1);
            }
            // Adam divides by small gradients, which magnifies their rounding.
            assert_near(name, &whole.weights().unwrap(), &batched.weights().unwrap(), 2e-2);
        }
    }
}

#[test]
fn the_gradients_of_a_batch_of_all_edges_are_those_of_the_full_graph() {
    let data = hostile();
    for name in MODELS {
        let model = model(name, &data);
        let mut whole = trainer(&model, &data).keep_gradients(true).build().unwrap();
        let all = Batches::new(100, neighbors("-1,-1"));
        let mut batched = trainer(&model, &data).batches(all).keep_gradients(true).build().unwrap();
        whole.step().unwrap();
        batched.step().unwrap();
        assert_near(name, &whole.gradients().unwrap(), &batched.gradients().unwrap(), 1e-4);
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_look_ahead() {
    let data = Dataset::builtin("planted").unwrap();
    for name in ["gcn", "sage", "gat"] {
        let model = model(name, &data).dropout(0.4).input_dropout(0.2);
        let run = |threads: usize, look_ahead: usize| {
            let batches = Batches::new(37, neighbors("4,3")).look_ahead(look_ahead);
            let devices = Devices::cpu().threads(NonZeroUsize::new(threads).unwrap());
            let mut trainer = trainer(&model, &data).devices(devices).batches(batches).build().unwrap();
            let losses = losses(&mut trainer, 2);
            (losses, trainer.weights().unwrap().to_safetensors().unwrap())
        };
        let want = run(1, 0);
        for (threads, look_ahead) in [(1, 1), (2, 2), (3, 4)] {
            assert_eq!(run(threads, look_ahead), want, "{name}: {threads} threads, {look_ahead} ahead");
        }
    }
}

#[test]
fn devices_share_the_batches() {
    let data = Dataset::builtin("planted").unwrap();
    for name in ["gcn", "sage", "gat"] {
        let model = model(name, &data);
        let run = |devices: Devices| {
            // The last batch has fewer seeds than there are devices.
            let size = data.split_size(1) - 2;
            let mut trainer =
                trainer(&model, &data).devices(devices).batches(Batches::new(size, neighbors("5,4"))).build().unwrap();
            (
                losses(&mut trainer, 3),
                trainer.step().unwrap().accuracy.unwrap().val.unwrap(),
                trainer.weights().unwrap(),
            )
        };
        let (want, accuracy, weights) = run(Devices::cpu());
        for devices in [Devices::cpus(2), Devices::sim(3)] {
            let (got, also, others) = run(devices);
            for (want, got) in want.iter().zip(&got) {
                assert!((want - got).abs() < 1e-5 * want, "{name}: {want} and {got}");
            }
            assert!((accuracy - also).abs() < 0.02, "{accuracy} and {also}");
            assert_near(name, &weights, &others, 2e-2);
        }
    }
}

#[test]
fn little_memory_changes_no_bit_and_copies_what_was_planned() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let build = |devices: Devices, memory: Option<u64>| {
        let batches = Batches::new(64, neighbors("5,4"));
        let mut builder = trainer(&model, &data).devices(devices).batches(batches).eval_every(0);
        if let Some(bytes) = memory {
            builder = builder.device_memory(ByteSize(bytes));
        }
        builder.build()
    };
    let mut free = build(Devices::cpu(), None).unwrap();
    let want = losses(&mut free, 3);
    let mut roomy = build(Devices::sim(1), None).unwrap();
    assert_eq!(losses(&mut roomy, 3), want);
    let peak = roomy.planned_peak_device_bytes()[0];
    let mut swapped = false;
    for share in [2, 3, 4] {
        let Ok(mut tight) = build(Devices::sim(1), Some(peak / share)) else { continue };
        for want in &want {
            let epoch = tight.step().unwrap();
            assert_eq!(epoch.loss, *want);
            assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
            swapped |= epoch.bytes_to_host > 0;
        }
        assert!(tight.peak_device_bytes()[0] <= peak / share);
    }
    assert!(swapped, "no share of the memory made the plan store something");
    let Err(Error::DoesNotFit { have_bytes, .. }) = build(Devices::sim(1), Some(1000)) else {
        panic!("a batch needs more than 1000 bytes")
    };
    assert_eq!(have_bytes, 1000);
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data).dropout(0.3);
    let folder = tempfile::tempdir().unwrap();
    let build = |size: usize| trainer(&model, &data).batches(Batches::new(size, neighbors("3,3"))).build().unwrap();
    let mut whole = build(50);
    let want = losses(&mut whole, 4);
    let mut first = build(50);
    assert_eq!(losses(&mut first, 2), want[..2]);
    first.snapshot().unwrap().save(folder.path()).unwrap();
    let mut second = build(50);
    assert_eq!(second.resume(folder.path()).unwrap(), Some(2));
    assert_eq!(losses(&mut second, 2), want[2..]);
    assert_eq!(second.weights().unwrap().to_safetensors().unwrap(), whole.weights().unwrap().to_safetensors().unwrap());
    let error = build(51).resume(folder.path()).unwrap_err();
    assert!(matches!(error, Error::OtherRun { what: "choice of mini-batches", .. }), "{error}");
    let mut full = trainer(&model, &data).build().unwrap();
    assert!(full.resume(folder.path()).is_err());
}

#[test]
fn batches_learn_about_as_well_as_the_full_graph() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::sage(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
    let best = |builder: TrainerBuilder<'_>, epochs: usize| {
        let mut trainer = builder.build().unwrap();
        losses(&mut trainer, epochs);
        trainer.best().unwrap().test_accuracy.unwrap()
    };
    let whole = best(trainer(&model, &data), 60);
    let batched = best(trainer(&model, &data).batches(Batches::new(64, neighbors("10,10"))), 30);
    assert!(batched > whole - 0.05, "{batched} in batches, {whole} on the whole graph");
}

#[test]
fn each_batch_is_told() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let mut trainer = trainer(&model, &data).batches(Batches::new(50, neighbors("3,3"))).build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    trainer.on_batch(move |number, count| tell.send((number, count)).unwrap());
    let stages = trainer.step().unwrap().stages.unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [(1, 3), (2, 3), (3, 3)]);
    assert!(stages.batches == 3 && stages.vertices > stages.edges / 12 && stages.edges > 140);
}

/// The work of a stage on a batch in a trace file: its thread, the number of the batch, the start and the end, in
/// microseconds.
fn stage_spans(trace: &Value, stage: &str) -> Vec<(u64, u64, f64, f64)> {
    let events = trace["traceEvents"].as_array().unwrap();
    let is_process = |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == "mini-batches";
    let pid = &events.iter().find(is_process).expect("mini-batches are a process")["pid"];
    let of_stage = |event: &&Value| {
        let is_thread = event["name"] == "thread_name" && event["pid"] == *pid;
        is_thread && event["args"]["name"].as_str().unwrap().starts_with(stage)
    };
    let threads: Vec<&Value> = events.iter().filter(of_stage).map(|event| &event["tid"]).collect();
    let spans = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == *pid);
    let span = |event: &Value| {
        let number = event["name"].as_str().unwrap().strip_prefix("batch ").unwrap().parse().unwrap();
        let [start, took] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
        (event["tid"].as_u64().unwrap(), number, start, start + took)
    };
    spans.filter(|event| threads.contains(&&event["tid"])).map(span).collect()
}

#[test]
fn a_trace_shows_each_batch_in_each_stage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    for (devices, look_ahead) in [("cpu", "0"), ("cpu", "2"), ("sim:2", "1")] {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        command.args(["train", "--epochs", "3", "--batch", "40", "--fanout", "4,4", "--look-ahead", look_ahead]);
        command.args(["--devices", devices, "--trace"]).arg(&path).assert().success();
        let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let stages = ["sampling", "gathering", "computing"].map(|stage| stage_spans(&trace, stage));
        for spans in &stages {
            let numbers: Vec<u64> = spans.iter().map(|(_, number, ..)| *number).collect();
            assert_eq!(numbers, [1, 2, 3, 4].repeat(3), "{devices}, {look_ahead} ahead");
            let mut last_ends = BTreeMap::new();
            for (thread, number, start, end) in spans {
                let before = last_ends.insert(thread, *end).unwrap_or(0.0);
                assert!(before <= start + 1e-3, "{devices}: a thread begins batch {number} before it has done another");
            }
        }
        for [earlier, later] in [[0, 1], [1, 2]] {
            let follows = stages[earlier].iter().zip(&stages[later]).all(|(first, then)| first.3 <= then.2 + 1e-3);
            assert!(follows, "{devices}, {look_ahead} ahead: stage {later} begins before stage {earlier} is done");
        }
        // Kernels belong to the devices, beside the stages.
        let kernels = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
        assert!(kernels > 3 * 4 * 3 * 5, "{kernels} spans");
    }
}

/// A dataset's graph, labels and training split, with features of which `stored` of 9 cells in each row are stored.
fn with_sparse_features(data: &Dataset, stored: u32) -> Dataset {
    let n = data.graph().vertex_count() as u32;
    let labels: Vec<i64> = (0..n).map(|v| i64::from(v % 7)).collect();
    let indptr: Vec<u64> = (0..=n).map(|v| u64::from(v * stored)).collect();
    let columns: Vec<u32> = (0..n).flat_map(|v| (0..stored).map(move |i| (v % 3) + i * 3)).collect();
    let values: Vec<f32> = (0..n * stored).map(|i| (i * 7 % 5) as f32 - 1.5).collect();
    let arrays = Arrays::new(data.graph().clone()).sparse_features(indptr, columns, values, 9).labels(&labels);
    Dataset::from_arrays(arrays.train(&(0..i64::from(n)).step_by(3).collect::<Vec<_>>())).unwrap()
}

#[test]
fn sparse_features_with_many_numbers_are_dense_in_batches() {
    for (stored, is_dense) in [(3, true), (2, false)] {
        let data = with_sparse_features(&Dataset::builtin("planted").unwrap(), stored);
        let model = model("gcn", &data);
        let whole = losses(&mut trainer(&model, &data).build().unwrap(), 3);
        let all = || Batches::new(10_000, neighbors("-1,-1"));
        let mut batched = trainer(&model, &data).batches(all()).build().unwrap();
        for (whole, batched) in whole.iter().zip(losses(&mut batched, 3)) {
            assert!((whole - batched).abs() < 1e-5 * whole, "{whole} and {batched}");
        }
        // Only rows of dense features stay on a device.
        let cached = trainer(&model, &data).batches(all().device_cache("10%".parse().unwrap())).build();
        assert_eq!(cached.is_ok(), is_dense);
    }
}

#[test]
fn bf16_rows_are_gathered_and_rounded() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let whole = losses(&mut trainer(&model, &data).dtype(StorageType::Bf16).build().unwrap(), 3);
    let all = Batches::new(10_000, neighbors("-1,-1"));
    let batched = losses(&mut trainer(&model, &data).dtype(StorageType::Bf16).batches(all).build().unwrap(), 3);
    for (whole, batched) in whole.iter().zip(&batched) {
        assert!((whole - batched).abs() < 1e-2 * whole, "{whole} and {batched}");
    }
}

#[test]
fn a_stage_that_fails_ends_the_run_with_its_name() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for (look_ahead, panics) in [(0, false), (0, true), (1, false), (3, true)] {
        let sampler = scripted("3,3", move |_, key| match (key.epoch, key.batch) {
            (2, 5) if panics => Draw::Panics,
            (2, 5) => Draw::Fails,
            _ => Draw::Some,
        });
        let batches = Batches::new(16, sampler).look_ahead(look_ahead);
        let mut trainer = trainer(&model, &data).batches(batches).build().unwrap();
        trainer.step().unwrap();
        let error = trainer.step().unwrap_err();
        assert!(matches!(error, Error::Batch { stage: "sampling", batch: 6, .. }), "{error}");
        assert_eq!(error.to_string(), "sampling mini-batch 6 of the epoch failed");
        assert_eq!(trainer.epoch(), 1);
    }
}

#[test]
fn as_many_batches_are_prepared_at_a_time_as_may_be_ahead_and_no_more() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    for look_ahead in [1usize, 3] {
        // Batches that were begun, and that were computed.
        let [begun, computed] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (all_at_once, most) = (Arc::new(Barrier::new(look_ahead + 1)), Arc::new(AtomicUsize::new(0)));
        let sampler = {
            let (begun, computed, most) = (begun.clone(), computed.clone(), most.clone());
            scripted("3,3", move |_, key| {
                if key.epoch > 1 {
                    let in_flight = begun.fetch_add(1, Ordering::SeqCst) + 1 - computed.load(Ordering::SeqCst);
                    most.fetch_max(in_flight, Ordering::SeqCst);
                    // Returns only when as many threads wait here.
                    all_at_once.wait();
                }
                Draw::Some
            })
        };
        // 140 seeds: 28 batches, a multiple of the numbers of lanes.
        let batches = Batches::new(5, sampler).look_ahead(look_ahead);
        let mut trainer = trainer(&model, &data).batches(batches).build().unwrap();
        trainer.step().unwrap();
        let done = computed.clone();
        trainer.on_batch(move |_, _| {
            done.fetch_add(1, Ordering::SeqCst);
        });
        let batches = trainer.step().unwrap().stages.unwrap().batches;
        assert_eq!((begun.load(Ordering::SeqCst) as u64, batches % (look_ahead as u64 + 1)), (batches, 0));
        // Each lane samples one and gathers one; another one is computed.
        let (most, lanes) = (most.load(Ordering::SeqCst), look_ahead + 1);
        assert!((lanes..=2 * lanes + 1).contains(&most), "{most} batches at a time, {look_ahead} ahead");
    }
}

#[test]
fn numbers_that_are_not_finite_are_found_in_their_batch() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let batches = Batches::new(32, neighbors("3,3"));
    let mut trainer = Trainer::builder(&model, &data).optimizer(Adam::new(1e30)).batches(batches).build().unwrap();
    let error = (0..5).find_map(|_| trainer.step().err()).expect("this learning rate diverges");
    assert!(error.to_string().contains("first appeared in step"), "{error}");
}

#[test]
fn wrong_settings_are_errors() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("sage", &data);
    let error = |batches: Batches, devices: Devices| {
        trainer(&model, &data).devices(devices).batches(batches).build().unwrap_err().to_string()
    };
    assert_eq!(
        error(Batches::new(2, neighbors("3,3,3")), Devices::cpu()),
        "the model has 2 layers that gather, one behind the other, and the number of fan-outs is 3; give option `fanout` one for each layer"
    );
    assert!(error(Batches::new(2, neighbors("3")), Devices::cpu()).contains("the number of fan-outs is 1;"));
    assert!(error(Batches::new(2, neighbors(&["3"; 17].join(","))), Devices::cpu()).contains("1 to 16 layers"));
    assert!(error(Batches::new(0, neighbors("3,3")), Devices::cpu()).contains("at least one seed"));
}

#[test]
fn the_command_trains_on_batches_and_explains_wrong_flags() {
    let run = |flags: &[&str]| {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        let output = command.args(["train", "--epochs", "3", "--model", "sage"]).args(flags).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = run(&["--batch", "100", "--fanout", "5,5"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("slowest: "), "{out}");
    let (code, out, _) = run(&["--batch", "100", "--fanout", "5,-1", "--json"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("\"stage_seconds\""), "{out}");
    for (flags, want) in [
        (&["--batch", "100"][..], "--fanout"),
        (&["--fanout", "5,5"], "--batch"),
        (&["--batch", "100", "--fanout", "5,x"], "from the seeds outwards, as in 15,10,5"),
        (&["--batch", "0", "--fanout", "5,5"], "at least one seed"),
        (&["--batch", "10", "--fanout", "5,5", "--by-weight"], "edge weights"),
    ] {
        let (code, _, err) = run(flags);
        assert!(code == Some(2) || code == Some(1), "{flags:?}: {code:?}");
        assert!(err.contains(want), "{flags:?}: {err}");
    }
}
