//! Learned embeddings: against dense gradients of the whole graph, on any number of threads, parts and ranks, and
//! with wrong settings.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary::dataset::Labels;
use lapidary::model::{ModelConfig, Network, Value, gcn_conv, sage_conv};
use lapidary::sample::NeighborSampler;
use lapidary::{
    Adam, Arrays, Batches, ByteSize, Dataset, Devices, Error, FeatureCache, FeatureNorm, MemoryPolicy, Model,
    Predictor, Ranks, RunOptions, Sgd, StorageType, Trainer, TrainerBuilder, Weights,
};
use ndarray::Array2;

use crate::common::command::{run, succeeds};
use crate::common::ranks::{files, on_ranks, simulated};
use crate::common::scripted::{Draw, scripted};

pub(super) const WIDTH: usize = 6;
pub(super) const EMBEDDING: &str = "embedding.weight";

pub(super) fn neighbors(fanouts: &str) -> NeighborSampler {
    NeighborSampler::new(fanouts.parse().unwrap())
}

/// The planted communities without features; with `features`, all rows are the same.
pub(super) fn bare(features: bool) -> Dataset {
    let data = Dataset::builtin("planted").unwrap();
    let graph = data.graph().clone();
    let n = graph.vertex_count();
    let Some(Labels::Class(labels)) = data.labels() else { panic!("one class per vertex") };
    let labels: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
    let of = |split: u32| (0..n as i64).filter(|&v| data.split()[v as usize] == split).collect::<Vec<_>>();
    let arrays = Arrays::new(graph).name("bare").labels(&labels).train(&of(1)).val(&of(2)).test(&of(3));
    let arrays = if features { arrays.features(Array2::from_elem((n, WIDTH), 1.0)) } else { arrays };
    Dataset::from_arrays(arrays).unwrap()
}

pub(super) fn model(name: &str, data: &Dataset) -> Model {
    Model::from_config(ModelConfig::new(name, &[WIDTH, 8, data.class_count()])).unwrap()
}

pub(super) fn trainer<'a>(model: &'a Model, data: &'a Dataset, batches: Batches) -> TrainerBuilder<'a> {
    Trainer::builder(model, data).optimizer(Adam::new(0.02)).seed(5).batches(batches).embedding(WIDTH)
}

/// Losses, validation accuracies, and the files of the checkpoint at the end.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    accuracies: Vec<Option<f64>>,
    files: BTreeMap<String, Vec<u8>>,
}

fn train(builder: TrainerBuilder<'_>, epochs: usize) -> Run {
    let mut trainer = builder.build().unwrap();
    let (mut losses, mut accuracies) = (Vec::new(), Vec::new());
    for _ in 0..epochs {
        let epoch = trainer.step().unwrap();
        assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
        losses.push(epoch.loss);
        accuracies.push(epoch.accuracy.and_then(|accuracy| accuracy.val));
    }
    let folder = tempfile::tempdir().unwrap();
    trainer.save(folder.path()).unwrap();
    Run { losses, accuracies, files: files(folder.path()) }
}

#[test]
fn rows_are_learned_where_features_say_nothing() {
    let (constant, none) = (bare(true), bare(false));
    let epochs = 30;
    for name in ["sage", "gcn"] {
        let model = model(name, &none);
        let batches = || Batches::new(20, neighbors("8,8"));
        let mut learned = trainer(&model, &none, batches()).build().unwrap();
        let plain = Trainer::builder(&model, &constant).optimizer(Adam::new(0.02)).seed(5).batches(batches());
        let mut plain = plain.build().unwrap();
        let losses: Vec<f64> = (0..epochs).map(|_| learned.step().unwrap().loss).collect();
        (0..epochs).for_each(|_| assert!(plain.step().unwrap().loss.is_finite()));
        let [with, without] = [&learned, &plain].map(|trainer| trainer.best().unwrap().test_accuracy.unwrap());
        println!("{name}: {with} with learned rows, {without} without; loss {} to {}", losses[0], losses[epochs - 1]);
        assert!(losses[epochs - 1] < 0.6 * losses[0], "{losses:?}");
        assert!(with > without + 0.2, "{name}: {with} and {without}");
        // Another run of the same dataset that has features does not read them.
        let other = train(trainer(&model, &constant, batches()), 3);
        assert_eq!(other.losses, losses[..3]);
        let size = learned.embedding().unwrap();
        let n = none.graph().vertex_count() as u64;
        assert_eq!((size.rows, size.width, size.bytes, size.moment_bytes), (n, WIDTH, n * 24, n * 48));
    }
}

/// Two layers, one of them with self-loops, and a shortcut from the input.
fn two_layers(net: &mut Network, x: Value, classes: usize) -> Result<Value, lapidary::model::ModelError> {
    let hidden = gcn_conv(net, x, "convs.0", 8, lapidary::model::Norm::Sym)?;
    let wide = net.linear(x, "wide", 8, true)?;
    let hidden = net.add(hidden, wide)?;
    let hidden = net.elu(hidden, 1.0)?;
    sage_conv(net, hidden, "convs.1", classes)
}

/// A directed graph with a hub, repeated edges, self-loops, isolated vertices and weights of edges. All labelled vertices
/// are in the training split. With `identity`, vertex `v` has the feature `v`.
fn hostile(identity: bool) -> Dataset {
    let hub = (0..60u32).map(|u| (u, 7));
    let ring = (0..40u32).flat_map(|v| [(v, (v + 1) % 40), (v, (v + 1) % 40), (v, v), ((v * 5) % 40, v)]);
    let edges: Vec<(u32, u32)> = hub.chain(ring).collect();
    let weights: Vec<f32> = (0..edges.len()).map(|e| 0.25 + (e % 7) as f32).collect();
    let labels: Vec<i64> = (0..70).map(|v| if v % 11 == 5 { -1 } else { v % 3 }).collect();
    let train: Vec<i64> = (0..70).filter(|v| v % 5 != 2).collect();
    let arrays = Arrays::edges(70, &edges).directed(true).edge_weights(weights).labels(&labels).train(&train);
    let arrays = match identity {
        true => arrays.features(Array2::from_shape_fn((70, 70), |(v, c)| f32::from(v == c))),
        false => arrays,
    };
    Dataset::from_arrays(arrays).unwrap()
}

#[test]
fn the_gradient_is_that_of_a_dense_parameter_on_the_whole_graph() {
    let (data, identity) = (hostile(false), hostile(true));
    let classes = data.class_count();
    let learned = Model::custom("learned", &[WIDTH, classes], move |net, x, _| two_layers(net, x, classes));
    // On the identity, a product with a weight `[WIDTH, n]` reads the row of each vertex; its gradient is that of the rows.
    let dense = Model::custom("dense", &[70, classes], move |net, x, _| {
        let rows = net.product(x, "rows", WIDTH, lapidary::model::Init::Zeros)?;
        two_layers(net, rows, classes)
    });
    // The update is the gradient: next to it, the rows before are small.
    let lr = f64::from(1 << 20);
    for devices in [1, 3] {
        let batches = Batches::new(1000, neighbors("-1,-1"));
        let builder =
            trainer(&learned, &data, batches).optimizer(Sgd::new(lr)).options(simulated(devices, Ranks::alone()));
        let mut sparse = builder.eval_every(0).build().unwrap();
        let before = sparse.weights().unwrap();
        let table = before.get(EMBEDDING).unwrap().clone();
        let mut given: Weights = before.iter().filter(|(name, _)| *name != EMBEDDING).collect();
        let turned = |rows: &[f32]| (0..WIDTH).flat_map(|c| (0..70).map(move |v| rows[v * WIDTH + c])).collect();
        given.insert("rows", lapidary::Weight { shape: vec![WIDTH, 70], data: turned(&table.data) });
        let builder = Trainer::builder(&dense, &identity).feature_norm(FeatureNorm::None).weights(given);
        let mut whole = builder.keep_gradients(true).eval_every(0).build().unwrap();
        let [a, b] = [sparse.step().unwrap().loss, whole.step().unwrap().loss];
        assert!((a - b).abs() < 1e-6 * b, "losses {a} and {b}");
        let after = sparse.weights().unwrap().get(EMBEDDING).unwrap().data.clone();
        let got: Vec<f64> = table.data.iter().zip(&after).map(|(&a, &b)| (f64::from(a) - f64::from(b)) / lr).collect();
        let want = whole.gradients().unwrap().get("rows").unwrap().data.clone();
        let largest = want.iter().map(|x| x.abs()).fold(0.0, f32::max);
        let mut apart = 0.0f64;
        for v in 0..70 {
            for c in 0..WIDTH {
                apart = apart.max((got[v * WIDTH + c] - f64::from(want[c * 70 + v])).abs());
            }
        }
        println!("{devices} devices: gradients up to {largest}, apart by at most {apart}");
        assert!(largest > 1e-3 && apart < 1e-5 * f64::from(largest), "{apart} of {largest}");
        assert!(got.contains(&0.0), "isolated vertices without a label have no gradient");
    }
}

#[test]
fn a_run_that_reads_every_row_in_each_batch_is_adam_on_a_dense_parameter() {
    let (data, identity) = (hostile(false), hostile(true));
    let classes = data.class_count();
    let learned = Model::custom("learned", &[WIDTH, classes], move |net, x, _| two_layers(net, x, classes));
    let dense = Model::custom("dense", &[70, classes], move |net, x, _| {
        let rows = net.product(x, "rows", WIDTH, lapidary::model::Init::Zeros)?;
        two_layers(net, rows, classes)
    });
    let adam = Adam::new(0.01).eps(1e-12);
    let batches = Batches::new(1000, neighbors("-1,-1"));
    let mut sparse = trainer(&learned, &data, batches).optimizer(adam).build().unwrap();
    let before = sparse.weights().unwrap();
    let mut given: Weights = before.iter().filter(|(name, _)| *name != EMBEDDING).collect();
    let table = &before.get(EMBEDDING).unwrap().data;
    let turned = (0..WIDTH).flat_map(|c| (0..70).map(move |v| table[v * WIDTH + c])).collect();
    given.insert("rows", lapidary::Weight { shape: vec![WIDTH, 70], data: turned });
    let builder = Trainer::builder(&dense, &identity).feature_norm(FeatureNorm::None).weights(given).optimizer(adam);
    let mut whole = builder.build().unwrap();
    for epoch in 0..30 {
        let [a, b] = [sparse.step().unwrap(), whole.step().unwrap()];
        assert!((a.loss - b.loss).abs() < 1e-4 * b.loss, "epoch {epoch}: losses {} and {}", a.loss, b.loss);
    }
}

#[test]
fn bits_depend_neither_on_threads_nor_on_look_ahead_nor_on_memory() {
    let data = bare(false);
    let model = model("sage", &data).dropout(0.3);
    let run = |threads: usize, look_ahead: usize| {
        let devices = Devices::cpu().threads(NonZeroUsize::new(threads).unwrap());
        let batches = Batches::new(24, neighbors("4,3")).look_ahead(look_ahead);
        train(trainer(&model, &data, batches).devices(devices), 3)
    };
    let want = run(1, 0);
    for (threads, look_ahead) in [(1, 1), (2, 2), (3, 5)] {
        assert!(run(threads, look_ahead) == want, "{threads} threads, {look_ahead} ahead");
    }
    // A device with memory of its own, as much as is needed, and less; the evaluation is in tiles then.
    let of_device = |memory: Option<u64>| {
        let options = simulated(1, Ranks::alone());
        let options = match memory {
            Some(bytes) => options.device_memory(ByteSize(bytes)).memory(MemoryPolicy::Lru),
            None => options,
        };
        let mut built = trainer(&model, &data, Batches::new(24, neighbors("4,3"))).options(options).build().unwrap();
        let copied: Vec<_> = (0..3).map(|_| built.step().unwrap()).collect();
        assert!(copied.iter().all(|epoch| [epoch.bytes_to_device, epoch.bytes_to_host] == epoch.planned_bytes));
        let rows = copied[0].stages.unwrap().vertices;
        assert!(copied[0].bytes_to_host >= 4 * WIDTH as u64 * rows, "gradients come back to the host");
        (built.weights().unwrap(), built.planned_peak_device_bytes()[0], built.tiles())
    };
    let (weights, peak, _) = of_device(None);
    let (same, smaller, tiles) = of_device(Some(peak * 2 / 3));
    assert!(smaller < peak && tiles > 1 && same == weights, "{tiles} tiles, {smaller} of {peak} bytes");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model"), &want.files["epoch-00000003/model.safetensors"]).unwrap();
    assert!(Weights::load(&folder.path().join("model")).unwrap() == weights);
}

#[test]
fn ranks_learn_the_rows_of_one_process_with_the_same_parts() {
    let all = [("sage", 2, 1), ("gcn", 3, 1), ("gat", 2, 2)];
    for (data, runs) in [(bare(false), &all[..1]), (hostile(false), &all)] {
        for &(name, count, devices) in runs {
            let model = model(name, &data);
            for evaluation in [false, true] {
                let batches = |look_ahead: usize| {
                    let batches = Batches::new(18, neighbors("4,3")).look_ahead(look_ahead);
                    if evaluation { batches.evaluation(neighbors("5,5")) } else { batches }
                };
                let options = simulated(count * devices, Ranks::alone());
                let want = train(trainer(&model, &data, batches(2)).options(options), 3);
                let got = on_ranks(count, |ranks| {
                    let look_ahead = 2 * ranks.rank();
                    train(trainer(&model, &data, batches(look_ahead)).options(simulated(devices, ranks)), 3)
                });
                for (rank, got) in got.iter().enumerate() {
                    assert!(
                        *got == want,
                        "{name} on {}, rank {rank}: {:?}, {:?}",
                        data.name(),
                        got.losses,
                        want.losses
                    );
                }
            }
        }
    }
}

#[test]
fn rows_move_in_four_rounds_a_batch_and_each_row_once() {
    let data = bare(false);
    let model = model("sage", &data);
    let all = on_ranks(2, |ranks| {
        let batches = Batches::new(40, neighbors("3,3"));
        let mut run = trainer(&model, &data, batches).options(simulated(1, ranks)).build().unwrap();
        run.step().unwrap().stages.unwrap()
    });
    for stages in all {
        // A round with the sizes of the shares, two for the rows, and one for the gradients.
        assert_eq!(stages.rounds, 4 * stages.batches);
        let row_bytes = 4 + 4 * WIDTH as u64;
        // With one device, as many rows are pulled as are pushed; each push has a count.
        assert_eq!(stages.fetched_bytes, stages.fetched_rows * row_bytes + 4 * stages.batches);
        assert!(stages.fetched_rows > 0 && stages.fetched_rows.is_multiple_of(2));
    }
}

#[test]
fn a_batch_that_fails_is_tried_again_and_a_divergence_is_undone() {
    let data = bare(false);
    let model = model("sage", &data);
    let fails = Arc::new(AtomicBool::new(false));
    let build = || {
        let fails = fails.clone();
        let sampler = scripted("4,3", move |_, key| match key.batch == 3 && fails.load(Ordering::SeqCst) {
            true => Draw::Fails,
            false => Draw::Some,
        });
        trainer(&model, &data, Batches::new(24, sampler)).build().unwrap()
    };
    let mut whole = build();
    (0..2).for_each(|_| assert!(whole.step().is_ok()));
    let mut run = build();
    fails.store(true, Ordering::SeqCst);
    assert!(matches!(run.step().unwrap_err(), Error::Batch { batch: 4, .. }));
    fails.store(false, Ordering::SeqCst);
    (0..2).for_each(|_| assert!(run.step().is_ok()));
    assert!(run.weights().unwrap() == whole.weights().unwrap());
    let (before, weights) = (run.snapshot().unwrap(), run.weights().unwrap());
    run.set_learning_rate(1e38).unwrap();
    let error = (0..9).find_map(|_| run.step().and_then(|_| run.snapshot()).err()).expect("it diverges");
    assert!(matches!(error, Error::Diverged { .. }), "{error}");
    assert!(run.weights().unwrap().iter().all(|(_, weight)| weight.data.iter().all(|x| x.is_finite())));
    run.restore(&before).unwrap();
    assert!(run.weights().unwrap() == weights);
}

#[test]
fn a_rank_that_fails_ends_the_job_and_numbers_that_are_not_finite_end_it_on_all_ranks() {
    let data = hostile(false);
    let model = model("sage", &data);
    for look_ahead in [0, 2] {
        let errors = on_ranks(3, |ranks| {
            let fails = ranks.rank() == 1;
            let sampler = scripted("3,3", move |_, key| match key.epoch == 2 && key.batch == 1 && fails {
                true => Draw::Panics,
                false => Draw::Some,
            });
            let batches = Batches::new(9, sampler).look_ahead(look_ahead);
            let mut run = trainer(&model, &data, batches).options(simulated(1, ranks)).build()?;
            (0..3).try_for_each(|_| run.step().map(drop::<lapidary::Epoch>))
        });
        for (rank, error) in errors.into_iter().enumerate() {
            match (rank, error.unwrap_err()) {
                (1, Error::Batch { stage: "sampling", batch: 2, .. }) => {}
                (0 | 2, Error::OtherRank { rank: 1, .. }) => {}
                (rank, other) => panic!("rank {rank}: {other}"),
            }
        }
    }
    let errors = on_ranks(2, |ranks| {
        let batches = Batches::new(9, neighbors("3,3"));
        let builder = trainer(&model, &data, batches).options(simulated(1, ranks)).optimizer(Adam::new(1e30));
        let mut run = builder.build().unwrap();
        let error = (0..5).find_map(|_| run.step().err()).expect("this learning rate diverges").to_string();
        (error, run.weights().unwrap())
    });
    assert!(
        errors[0].0.contains("first appeared in step") && errors[0] == errors[1],
        "{}, {}",
        errors[0].0,
        errors[1].0
    );
}

#[test]
fn evaluations_read_the_newest_rows() {
    let data = bare(false);
    for name in ["sage", "gcn", "gat", "gin"] {
        let model = model(name, &data);
        let run = |evaluation: &str, options: RunOptions| {
            let batches = Batches::new(24, neighbors("4,3"));
            let batches = if evaluation.is_empty() { batches } else { batches.evaluation(neighbors(evaluation)) };
            let mut built = trainer(&model, &data, batches).options(options).build().unwrap();
            let accuracies: Vec<_> = (0..4).map(|_| built.step().unwrap().accuracy.unwrap()).collect();
            // The predictor has the rows as constants, and an order of its own.
            let current = Predictor::new(&model, built.weights().unwrap(), None).unwrap();
            let predicted = current.run(&data).unwrap().accuracy;
            let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 0.006;
            assert!(near(predicted.test, accuracies[3].test), "{predicted:?} and {:?}", accuracies[3]);
            accuracies
        };
        let want = run("", RunOptions::new());
        assert_eq!(run("-1,-1", RunOptions::new()), want, "{name}");
        assert_ne!(want[0], want[3]);
        let parts = run("", simulated(3, Ranks::alone()));
        let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 0.02;
        assert!(want.iter().zip(&parts).all(|(a, b)| near(a.val, b.val)), "{want:?} and {parts:?}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let data = bare(true);
    let of_width = model("sage", &data);
    let batches = || Batches::new(24, neighbors("4,3"));
    let refused = |builder: TrainerBuilder<'_>| match builder.build().unwrap_err() {
        Error::Value { option: "embedding", value, expected } => format!("{value}: {expected}"),
        other => panic!("{other}"),
    };
    let built = || trainer(&of_width, &data, batches());
    assert_eq!(
        refused(Trainer::builder(&of_width, &data).embedding(WIDTH)),
        "6: rows are learned on mini-batches: set option `batch` and option `fanout` as well"
    );
    assert_eq!(refused(built().embedding(7)), "7: the model reads 6 numbers per vertex; give it this width");
    assert_eq!(refused(built().embedding(0)), "0: a row has at least one number");
    assert!(refused(built().dtype(StorageType::Bf16)).contains("leave option `dtype` bf16 out"));
    assert!(refused(built().feature_norm(FeatureNorm::Row)).contains("leave option `feature_norm` out"));
    assert!(refused(built().optimizer(Sgd::new(0.1).momentum(0.9))).contains("leave option `momentum` out"));
    let half = FeatureCache::Share(0.5);
    assert!(refused(built().batches(batches().device_cache(half))).contains("leave option `device_cache` out"));
    assert!(refused(built().batches(batches().feature_cache(half))).contains("leave option `feature_cache` out"));
    let classes = data.class_count();
    let named = Model::custom("named", &[WIDTH, classes], move |net, x, _| {
        let x = net.product(x, "embedding.weight", WIDTH, lapidary::model::Init::Ones)?;
        two_layers(net, x, classes)
    });
    assert!(refused(trainer(&named, &data, batches())).contains("has a parameter `embedding.weight` already"));
    let unread = Model::custom("unread", &[WIDTH, classes], move |net, x, _| {
        let x = net.multiply(x, 0.0)?;
        two_layers(net, x, classes)
    });
    assert!(trainer(&unread, &data, batches()).build().is_ok(), "rows that are read have a gradient, be it 0");
}

/// Returns the command line of a training with learned rows.
fn command<'a>(epochs: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let batches = ["train", "--batch", "24", "--fanout", "4,3", "--embedding", "12", "--epochs", epochs];
    [&batches[..], flags].concat()
}

#[test]
fn the_command_learns_rows_and_explains_wrong_flags() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run").to_str().unwrap().to_owned();
    let text = succeeds(&command("3", &["--checkpoint", &dir]));
    assert!(text.contains("rows of 12 are learned"), "{text}");
    let summary = succeeds(&command("3", &["--json"]));
    let summary: serde_json::Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    let rows = summary["embedding"]["rows"].as_u64().unwrap();
    let want = serde_json::json!({"rows": rows, "width": 12, "bytes": 48 * rows, "moment_bytes": 96 * rows});
    assert_eq!(summary["embedding"], want);
    succeeds(&command("4", &["--checkpoint", &dir, "--resume"]));
    let (code, _, text) = run(&["train", "--batch", "24", "--fanout", "4,3", "--checkpoint", &dir, "--resume"]);
    assert!(code == Some(1) && text.contains("has another embedding than this run: 12, not none"), "{text}");
    succeeds(&["infer", "--checkpoint", &dir, "--data", "builtin:planted"]);
    let (code, _, text) = run(&["infer", "--checkpoint", &dir, "--data", "builtin:karate"]);
    assert!(code == Some(1) && text.contains("has learned a row for each vertex of"), "{text}");
    let plan = ["plan", "--data", "builtin:planted", "--batch", "24", "--fanout", "4,3", "--embedding", "12"];
    let planned = succeeds(&[&plan[..], &["--json", "--profile", "a100"]].concat());
    let planned: serde_json::Value = serde_json::from_str(planned.lines().last().unwrap()).unwrap();
    assert_eq!(planned["embedding"], want);
    let rows = planned["vertices"][0][0].as_f64().unwrap();
    // The plan is for batches that are a tenth larger; of a batch, the gradients of its rows come back.
    assert!(planned["batch_bytes_to_host"].as_f64().unwrap() > 48.0 * rows, "{planned}");
    assert_eq!(planned["feature_bytes"], (48.0 * rows * planned["batches"].as_f64().unwrap()).round());
    let text = succeeds(&[&plan[..], &["--profile", "a100"]].concat());
    assert!(text.contains("rows of 12 are learned") && !text.contains("feature cache"), "{text}");
    assert!(text.contains("0, learned rows") && !text.contains("0, features"), "{text}");
    for (flags, want) in [
        (&[&plan[..], &["--dtype", "bf16"]].concat()[..], "leave --dtype bf16 out"),
        (&[&plan[..], &["--compare", "edges"]].concat(), "cannot be used with '--compare <WAYS>'"),
        (&["train", "--embedding", "12"][..], "--batch <N>"),
        (
            &command("3", &["--device-cache", "10%", "--devices", "sim:1"]),
            "no features are read: leave --device-cache out",
        ),
        (&command("3", &["--feature-norm", "row"]), "no features are read: leave --feature-norm out"),
        (&command("3", &["--dtype", "bf16"]), "leave --dtype bf16 out"),
        (&command("3", &["--optimizer", "sgd", "--momentum", "0.9"]), "leave --momentum out"),
    ] {
        let (code, _, text) = run(flags);
        assert!(code == Some(2) && text.contains(want), "{flags:?}: {text}");
    }
}
