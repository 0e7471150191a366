//! The runtime: the same training on any number of devices with any capacity.

use crate::common::curve::{self, Curve, assert_same};
use crate::common::{MODELS, Tier, policies};
use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::model::ModelConfig;
use lapidary::{Adam, Arrays, ByteSize, Dataset, Devices, Error, Model, Partition, TraceFile, Trainer, TrainerBuilder};
use ndarray::Array2;

fn model(name: &str, data: &Dataset, dropout: f32) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 16, data.class_count()]);
    Model::from_config(config).unwrap().dropout(dropout).heads(2)
}

fn train(builder: TrainerBuilder<'_>, epochs: usize) -> Curve {
    train_at(0.01, builder, epochs)
}

fn train_at(lr: f64, builder: TrainerBuilder<'_>, epochs: usize) -> Curve {
    curve::train(Adam::new(lr).weight_decay(5e-4), builder, epochs)
}

fn datasets() -> Vec<Dataset> {
    let mut sets = vec![Dataset::builtin("karate").unwrap(), Dataset::builtin("planted").unwrap()];
    for name in ["cora", "citeseer", "directed-small"] {
        sets.extend(crate::common::shared(&format!("data/{name}")).map(|dir| Dataset::open(dir).unwrap()));
    }
    sets
}

#[test]
fn every_model_trains_the_same_on_any_devices() {
    trains_the_same(Tier::Quick);
}

#[test]
#[ignore = "full: the other models on larger graphs"]
fn every_model_trains_the_same_on_larger_graphs() {
    trains_the_same(Tier::Full);
}

fn trains_the_same(tier: Tier) {
    for data in datasets() {
        for &name in tier.models(&data) {
            let model = model(name, &data, 0.5);
            let builder = || Trainer::builder(&model, &data).partition(Partition::parse("edges").unwrap());
            let want = train(builder(), tier.epochs());
            for devices in ["sim:1", "sim:3", "cpu:2"] {
                let got = train(builder().devices(Devices::parse(devices).unwrap()), tier.epochs());
                assert_same(&format!("{name} on {} with {devices}", data.name()), &got, &want);
            }
        }
    }
}

#[test]
fn little_memory_changes_nothing_but_the_bytes() {
    little_memory(Tier::Quick);
}

#[test]
#[ignore = "full: the other models, and larger graphs"]
fn little_memory_changes_nothing_on_larger_graphs() {
    little_memory(Tier::Full);
}

fn little_memory(tier: Tier) {
    for data in datasets().into_iter().filter(|data| data.graph().vertex_count() < 3_000) {
        for &name in tier.models_by_size(&data, &MODELS) {
            let model = model(name, &data, 0.5);
            let builder = || Trainer::builder(&model, &data).partition(Partition::parse("edges").unwrap());
            let want = train(builder(), tier.epochs());
            let two = || builder().devices(Devices::parse("sim:2").unwrap());
            let peak = two().build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
            let small = ByteSize::b(peak * 6 / 10);
            for &policy in policies(&data) {
                let what = format!("{name} on {} with {small} and {policy:?}", data.name());
                let builder = two().device_memory(small).memory(policy).eval_every(3);
                match builder.clone().build() {
                    Ok(_) => assert_same(&what, &train(builder, tier.epochs()), &want),
                    Err(Error::DoesNotFit { need_bytes, .. }) => {
                        let enough = two().device_memory(ByteSize::b(need_bytes)).memory(policy);
                        assert_same(&what, &train(enough, tier.epochs()), &want);
                    }
                    Err(other) => panic!("{what}: {other}"),
                }
            }
        }
    }
}

/// Returns a skewed graph of a million edges, and Slashdot, with arbitrary features and labels.
fn large_datasets() -> Vec<Dataset> {
    let options = RmatOptions { vertices: 1 << 16, feature_width: 16, classes: 8, ..RmatOptions::default() };
    let mut sets = vec![rmat(&options).unwrap()];
    if let Some(dir) = crate::common::shared("data/soc-slashdot0902") {
        let bare = Dataset::open(dir).unwrap();
        let n = bare.graph().vertex_count();
        let features = Array2::from_shape_vec((n, 12), crate::common::numbers(12 * n, 5)).unwrap();
        let labels: Vec<i64> = (0..n as i64).map(|v| v * 7 % 5).collect();
        let train: Vec<i64> = (0..n as i64).step_by(2).collect();
        let arrays =
            Arrays::new(bare.graph().clone()).name("slashdot").features(features).labels(&labels).train(&train);
        sets.push(Dataset::from_arrays(arrays).unwrap());
    }
    sets
}

#[test]
#[ignore = "full: graphs of a million edges"]
fn large_skewed_graphs_train_the_same_on_any_devices() {
    for (i, data) in large_datasets().into_iter().enumerate() {
        assert!(data.graph().edge_count() > 500_000);
        // One graph has all models, the other those that differ most in what they do with edges.
        for &name in if i == 0 { &MODELS[..] } else { &["gcn", "gat"] } {
            let model = model(name, &data, 0.5);
            // Sums over hubs with thousands of neighbours grow, so GIN needs a small learning rate.
            let lr = if name == "gin" { 1e-4 } else { 0.01 };
            let builder = || Trainer::builder(&model, &data).partition(Partition::parse("edges").unwrap());
            let want = train_at(lr, builder(), 4);
            for devices in ["sim:3", "cpu:2"] {
                let got = train_at(lr, builder().devices(Devices::parse(devices).unwrap()), 4);
                assert_same(&format!("{name} on {} with {devices}", data.name()), &got, &want);
            }
            let two = || builder().devices(Devices::parse("sim:2").unwrap());
            let peak = two().build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
            let small = match two().device_memory(ByteSize::b(peak * 6 / 10)).build() {
                Err(Error::DoesNotFit { need_bytes, .. }) => need_bytes,
                built => built.map(|_| peak * 6 / 10).unwrap(),
            };
            let got = train_at(lr, two().device_memory(ByteSize::b(small)), 4);
            assert_same(&format!("{name} on {} in {small} bytes", data.name()), &got, &want);
        }
    }
}

#[test]
fn the_same_split_gives_the_same_bits() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data, 0.5);
    let run = |devices: &str, memory: Option<u64>| {
        let parts = Partition::Ranges(vec![0..900, 900..901, 901..3000]);
        let mut builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap()).partition(parts);
        if let Some(memory) = memory {
            builder = builder.device_memory(ByteSize::b(memory));
        }
        train(builder, 10).weights.to_safetensors().unwrap()
    };
    let vertices = data.graph().vertex_count();
    assert_eq!(vertices, 3000);
    let first = run("sim:3", None);
    assert!(first == run("sim:3", None) && first == run("cpu:3", None), "other bits on the same split");
}

/// On the CPU, gathers that repeat over rows of hundreds of edges run over windows of these edges.
#[test]
fn long_rows_give_the_same_bits_in_place_and_apart() {
    let sizes =
        RmatOptions { vertices: 1 << 13, edge_factor: 130.0, feature_width: 24, classes: 8, ..Default::default() };
    let data = rmat(&sizes).unwrap();
    let edges = data.graph().edge_count();
    assert!(edges > 1 << 20, "too few edges for windows: {edges}");
    let model = Model::gcn(&[24, 64, 8]);
    let run = |devices: &str| {
        let builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap());
        train(builder, 6).weights.to_safetensors().unwrap()
    };
    assert!(run("cpu") == run("sim:1"));
}

#[test]
fn a_trace_has_a_row_a_device_and_lane() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data, 0.5);
    let builder = Trainer::builder(&model, &data).devices(Devices::parse("sim:2").unwrap());
    let mut trainer = builder.partition(Partition::parse("vertices").unwrap()).build().unwrap();
    trainer.step().unwrap();
    trainer.start_trace();
    let epoch = trainer.step().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut file = TraceFile::create(&path, TraceFile::LIMIT_BYTES).unwrap();
    file.add(trainer.trace().unwrap()).unwrap();
    file.finish().unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    for device in 0..2 {
        for lane in 0..3 {
            assert!(
                spans.iter().any(|span| span["pid"] == device && span["tid"] == lane),
                "device {device}, lane {lane}"
            );
        }
    }
    let bytes: u64 = spans.iter().filter_map(|span| span["args"]["bytes"].as_u64()).sum();
    assert_eq!(
        bytes,
        epoch.bytes_to_device + epoch.bytes_to_host,
        "the copies in the trace are those that were counted"
    );
}

#[test]
fn a_trainer_keeps_the_trace_of_one_epoch() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("gcn", &data, 0.5);
    let mut trainer = Trainer::builder(&model, &data).build().unwrap();
    assert!(trainer.trace().is_none());
    trainer.start_trace();
    assert_eq!(trainer.trace().unwrap().epoch(), 0);
    let spans: Vec<usize> = (1..=20)
        .map(|epoch| {
            trainer.step().unwrap();
            let trace = trainer.trace().unwrap();
            assert_eq!(trace.epoch(), epoch);
            assert!(trace.busy()[0].kernels_s > 0.0);
            trace.spans()[0].len()
        })
        .collect();
    // The first epoch also computes constants that later ones reuse.
    assert!(spans[1] > 0 && spans[1..].iter().all(|&count| count == spans[1]), "{spans:?}");
    trainer.stop_trace();
    assert!(trainer.trace().is_none());
}
