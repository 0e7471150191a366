//! Tiles: the same training in memory in which no operation fits as a whole.

use crate::common::curve::{self, Curve, assert_same};
use crate::common::{Tier, is_long, policies, relative_difference};
use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::model::ModelConfig;
use lapidary::{
    Adam, Arrays, ByteSize, Dataset, Devices, Error, MemoryPolicy, Model, Optimizer, Partition, Passes, Predictor,
    Recompute, Sgd, Strips, Trainer, TrainerBuilder, Weights,
};

const POLICIES: [MemoryPolicy; 4] = [MemoryPolicy::Optimal, MemoryPolicy::Lru, MemoryPolicy::Roc, MemoryPolicy::None];

fn model(name: &str, data: &Dataset) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 16, data.class_count()]);
    Model::from_config(config).unwrap().dropout(0.5).heads(2)
}

/// Trains, and checks that no device exceeds its capacity.
fn train(builder: TrainerBuilder<'_>, epochs: usize, capacity: u64) -> Curve {
    let curve = curve::train(Adam::new(0.001), builder, epochs);
    assert!(curve.peaks.iter().all(|&peak| peak <= capacity));
    curve
}

/// Returns the memory that `build` says is enough, or the capacity if it is enough.
fn enough(builder: TrainerBuilder<'_>, capacity: u64) -> u64 {
    match builder.device_memory(ByteSize::b(capacity)).build() {
        Ok(_) => capacity,
        Err(Error::DoesNotFit { need_bytes, .. }) => need_bytes,
        Err(other) => panic!("{other}"),
    }
}

fn skewed() -> Dataset {
    let options = RmatOptions { vertices: 1 << 12, feature_width: 24, classes: 6, ..RmatOptions::default() };
    rmat(&options).unwrap()
}

fn datasets() -> Vec<Dataset> {
    let mut sets = vec![Dataset::builtin("karate").unwrap(), Dataset::builtin("planted").unwrap(), skewed()];
    for name in ["citeseer", "directed-small"] {
        sets.extend(crate::common::shared(&format!("data/{name}")).map(|dir| Dataset::open(dir).unwrap()));
    }
    sets
}

#[test]
fn every_model_trains_the_same_at_any_capacity() {
    trains_the_same_at_any_capacity(Tier::Quick);
}

#[test]
#[ignore = "full: the other models, and larger graphs"]
fn larger_graphs_train_the_same_at_any_capacity() {
    trains_the_same_at_any_capacity(Tier::Full);
}

fn trains_the_same_at_any_capacity(tier: Tier) {
    for data in datasets() {
        let is_small = data.graph().vertex_count() < 1000;
        for &name in tier.models_by_size(&data, &["gcn"]) {
            let model = model(name, &data);
            let builder = || {
                let builder = Trainer::builder(&model, &data).memory(policies(&data)[0]);
                builder.partition(Partition::parse("edges").unwrap())
            };
            let want = train(builder(), 3, u64::MAX);
            for (devices, percent) in [("sim:1", 12), ("sim:2", 25)].into_iter().take(1 + usize::from(is_small)) {
                let on = || builder().devices(Devices::parse(devices).unwrap());
                let peak = on().build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
                let capacity = enough(on(), peak * percent / 100);
                let builder = on().device_memory(ByteSize::b(capacity)).eval_every(2);
                let what = format!("{name} on {} with {devices} at {percent} %", data.name());
                assert_same(&what, &train(builder, 3, capacity), &want);
            }
        }
    }
}

#[test]
fn every_policy_and_program_runs_in_tiles() {
    let data = skewed();
    for passes in [Passes::NONE, Passes::ALL] {
        let model = model("gcn", &data);
        let builder = || Trainer::builder(&model, &data).passes(passes);
        let want = train(builder(), 3, u64::MAX);
        let on = || builder().devices(Devices::parse("sim:1").unwrap());
        let peak = on().build().unwrap().planned_peak_device_bytes()[0];
        for policy in POLICIES {
            let got = train(on().device_memory(ByteSize::b(peak / 8)).memory(policy), 3, peak / 8);
            assert!(got.tiles > 1, "{policy:?}: an eighth of the peak takes tiles");
            assert_same(&format!("{policy:?}"), &got, &want);
        }
    }
}

fn bits(weights: &Weights) -> Vec<(String, Vec<u32>)> {
    weights.iter().map(|(name, tensor)| (name.to_string(), tensor.data.iter().map(|x| x.to_bits()).collect())).collect()
}

#[test]
fn what_is_made_again_has_the_same_bits() {
    let data = Dataset::builtin("planted").unwrap();
    let cases: [(&str, &[&str]); 5] = [
        ("gcn", &["cpu", "sim:1", "sim:2"]),
        ("gin", &["sim:1"]),
        ("sage", &["sim:1"]),
        ("resgcn", &["sim:2"]),
        ("gat", &["cpu", "sim:1"]),
    ];
    for (name, devices) in cases {
        let widths = [&[data.feature_width()][..], &[8; 3], &[data.class_count()]].concat();
        let model = Model::from_config(ModelConfig::new(name, &widths)).unwrap().dropout(0.5).heads(2);
        for &devices in devices {
            let build = |recompute| {
                let builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap());
                // It plans quickly.
                let builder = builder.memory(MemoryPolicy::Lru).recompute(recompute);
                builder.partition(Partition::parse("edges").unwrap())
            };
            let peak = build(Recompute::Never).build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
            let never = train(build(Recompute::Never), 2, peak);
            // The cores of the host move nothing.
            let percents = if devices == "cpu" { &[100][..] } else { &[60, 20] };
            for percent in percents {
                let capacity = peak * percent / 100;
                let [want, got] = [Recompute::Never, Recompute::Always].map(|recompute| {
                    let capacity = enough(build(recompute), capacity);
                    train(build(recompute).device_memory(ByteSize::b(capacity)), 2, capacity)
                });
                let what = format!("{name} with {devices} at {percent} %, {} and {} tiles", want.tiles, got.tiles);
                assert_same_in_tiles(&what, &got, &want, &never);
            }
        }
    }
}

#[test]
fn strips_of_columns_have_the_same_bits() {
    strips_have_the_same_bits(&["gcn", "sage"], &Dataset::builtin("planted").unwrap());
    strips_have_the_same_bits(&["gcn"], &many_classes());
}

#[test]
#[ignore = "full: the other models, and a larger graph"]
fn strips_of_columns_have_the_same_bits_in_every_model() {
    strips_have_the_same_bits(&["gin", "resgcn", "graphconv", "commnet", "gat"], &Dataset::builtin("planted").unwrap());
    strips_have_the_same_bits(&["gcn", "sage", "gat"], &skewed());
    strips_have_the_same_bits(&["sage", "gat"], &many_classes());
}

/// The gradient of the weight between two matrices in 17 strips has 289 parts.
#[test]
fn many_strips_have_the_same_bits() {
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gcn(&[data.feature_width(), 272, 272, data.class_count()]).dropout(0.5);
    let build = |strips| {
        let builder = Trainer::builder(&model, &data).memory(MemoryPolicy::Lru).strips(Strips::Exactly(strips));
        train(builder, 2, u64::MAX)
    };
    let (want, got) = (build(1), build(17));
    assert_eq!(got.losses, want.losses);
    assert_eq!(bits(&got.gradients), bits(&want.gradients));
    assert_eq!(bits(&got.weights), bits(&want.weights));
}

/// Returns a graph in which the logits are wide enough for two strips.
fn many_classes() -> Dataset {
    let options = RmatOptions { vertices: 1 << 9, feature_width: 24, classes: 40, ..RmatOptions::default() };
    rmat(&options).unwrap()
}

fn strips_have_the_same_bits(models: &[&str], data: &Dataset) {
    for &name in models {
        let widths = [&[data.feature_width()][..], &[64, 80], &[data.class_count()]].concat();
        let model = Model::from_config(ModelConfig::new(name, &widths)).unwrap().dropout(0.5);
        for devices in ["cpu", "sim:1", "sim:2"] {
            let build = |strips| {
                let builder = Trainer::builder(&model, data).devices(Devices::parse(devices).unwrap());
                // It plans quickly.
                let builder = builder.memory(MemoryPolicy::Lru).strips(Strips::Exactly(strips));
                builder.partition(Partition::parse("edges").unwrap())
            };
            let peak = build(1).build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
            let want = train(build(1), 2, peak);
            for strips in [2, 3] {
                let got = train(build(strips), 2, 2 * peak);
                let what = format!("{name} on {} with {devices} in {strips} strips", data.name());
                assert_eq!(got.losses, want.losses, "{what}: losses");
                assert_eq!(bits(&got.gradients), bits(&want.gradients), "{what}: gradients");
                assert_eq!(bits(&got.weights), bits(&want.weights), "{what}: weights");
            }
            let strips = build(3).build().unwrap().strips();
            assert_eq!(strips, if name == "gat" { 1 } else { 3 }, "{name} on {}", data.name());
            if devices == "cpu" {
                continue;
            }
            let capacity = enough(build(4), peak / 5);
            let got = train(build(4).device_memory(ByteSize::b(capacity)), 2, capacity);
            assert_same(&format!("{name} on {} with {devices} in 4 strips", data.name()), &got, &want);
        }
    }
}

/// Returns a ring of 300 vertices with 5 of 3000 sparse features each.
fn wide_features() -> Dataset {
    let n = 300u32;
    let edges: Vec<(u32, u32)> = (0..n).flat_map(|v| [(v, (v + 1) % n), ((v + 1) % n, v)]).collect();
    let offsets: Vec<u64> = (0..=u64::from(n)).map(|v| 5 * v).collect();
    let columns: Vec<u32> = (0..n).flat_map(|v| (0..5).map(move |i| 600 * i + (v * 7) % 600)).collect();
    let values: Vec<f32> = (0..5 * n).map(|i| 0.3 + (i % 7) as f32 / 9.0).collect();
    let labels: Vec<i64> = (0..i64::from(n)).map(|v| v * 4 / 300).collect();
    let train: Vec<i64> = (0..i64::from(n)).collect();
    let arrays = Arrays::edges(n as usize, &edges).sparse_features(offsets, columns, values, 3000);
    Dataset::from_arrays(arrays.labels(&labels).train(&train)).unwrap()
}

/// The weight has 750 KiB, and so have its gradient and both moments.
#[test]
fn a_weight_of_sparse_features_fits_in_pieces() {
    let data = wide_features();
    let capacity = ByteSize::kib(600);
    let best = [("gcn", "sim:1"), ("sage", "sim:1"), ("resgcn", "sim:1"), ("gcn", "sim:2")];
    let best = best.map(|(name, devices)| (name, devices, MemoryPolicy::Optimal));
    let others = POLICIES[1..].iter().map(|&policy| ("gcn", "sim:1", policy));
    for (name, devices, policy) in best.into_iter().chain(others) {
        let what = format!("{name} with {devices}, {policy:?}");
        let widths = [data.feature_width(), 64, data.class_count()];
        let model = Model::from_config(ModelConfig::new(name, &widths)).unwrap().dropout(0.5);
        let builder = |devices: &str, strips| {
            let builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap()).strips(strips);
            let builder = builder.optimizer(Adam::new(0.01).weight_decay(5e-4)).memory(policy);
            builder.partition(Partition::parse("edges").unwrap())
        };
        let whole = builder(devices, Strips::Exactly(1)).device_memory(capacity).build();
        assert!(matches!(whole, Err(Error::DoesNotFit { .. })), "{what}: the weight fits in one piece");
        let mut want = builder("cpu", Strips::Exactly(1)).build().unwrap();
        let mut got = builder(devices, Strips::Auto).device_memory(capacity).build().unwrap();
        for epoch in 0..3 {
            let (want, got) = (want.step().unwrap(), got.step().unwrap());
            assert!((got.loss - want.loss).abs() <= 1e-5 * want.loss, "{what}, epoch {epoch}");
            assert_eq!([got.bytes_to_device, got.bytes_to_host], got.planned_bytes, "{what}");
        }
        // Checkpoints have parameters and moments in one piece.
        let folder = tempfile::tempdir().unwrap();
        got.save(folder.path()).unwrap();
        let mut resumed = builder("cpu", Strips::Exactly(1)).build().unwrap();
        resumed.resume(folder.path()).unwrap();
        assert_eq!(bits(&resumed.weights().unwrap()), bits(&got.weights().unwrap()), "{what}");
        let (want, got) = (resumed.step().unwrap(), got.step().unwrap());
        assert!((got.loss - want.loss).abs() <= 1e-5 * want.loss, "{what}, resumed");
    }
}

#[test]
fn a_dry_run_plans_what_is_made_again_as_training_does() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[&[data.feature_width()][..], &[32; 8], &[data.class_count()]].concat()).dropout(0.5);
    let peaks = [Recompute::Never, Recompute::Always].map(|recompute| {
        let run = DryRun::new(&model, Subject::Data(&data)).devices(Devices::sim(1)).recompute(recompute);
        let forecast = run.device_memory(ByteSize::gib(1)).run().unwrap();
        let plan = forecast.policies[0].outcome.as_ref().expect("it fits into 1 GiB");
        let builder = Trainer::builder(&model, &data).devices(Devices::sim(1)).recompute(recompute);
        let trainer = builder.device_memory(ByteSize::gib(1)).build().unwrap();
        assert_eq!(trainer.planned_peak_device_bytes(), [plan.devices[0].peak_bytes]);
        plan.devices[0].peak_bytes
    });
    assert!(peaks[1] < peaks[0], "{} bytes instead of {}", peaks[1], peaks[0]);
}

/// Checks that two runs in the same tiles have the same bits. In other tiles, `got` is compared with the run without.
fn assert_same_in_tiles(what: &str, got: &Curve, want: &Curve, whole: &Curve) {
    if want.tiles != got.tiles {
        return assert_same(what, got, whole);
    }
    assert_eq!(got.losses, want.losses, "{what}: losses");
    assert_eq!(bits(&got.gradients), bits(&want.gradients), "{what}: gradients");
    assert_eq!(bits(&got.weights), bits(&want.weights), "{what}: weights");
}

#[test]
fn what_is_chosen_has_the_same_bits() {
    let data = Dataset::builtin("planted").unwrap();
    for (name, devices, percent) in [("gcn", "sim:1", 20), ("resgcn", "sim:1", 60), ("gcn", "sim:2", 60)] {
        let widths = [&[data.feature_width()][..], &[32; 3], &[data.class_count()]].concat();
        let model = Model::from_config(ModelConfig::new(name, &widths)).unwrap().dropout(0.5);
        let build = |recompute| {
            let builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap());
            builder.recompute(recompute).partition(Partition::parse("edges").unwrap())
        };
        let peak = build(Recompute::Never).build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
        let whole = train(build(Recompute::Never), 2, peak);
        let capacity = peak * percent / 100;
        let [want, got] = [Recompute::Never, Recompute::Auto].map(|recompute| {
            let capacity = enough(build(recompute), capacity);
            train(build(recompute).device_memory(ByteSize::b(capacity)), 2, capacity)
        });
        let what = format!("{name} with {devices} at {percent} %, {} and {} tiles", want.tiles, got.tiles);
        assert_same_in_tiles(&what, &got, &want, &whole);
    }
}

#[test]
fn what_is_chosen_copies_no_more_and_takes_no_longer() {
    let shape = Shape { vertices: 100_000, edges: 1_000_000, features: 64, classes: 16, directed: false };
    let model = Model::gcn(&[64, 64, 64, 64, 16]).dropout(0.5);
    let plan = |recompute, memory| {
        let run = DryRun::new(&model, Subject::Shape(shape)).profile("h200").recompute(recompute);
        let run = run.device_memory(memory).run().unwrap();
        let outcome = run.policies[0].outcome.as_ref().map_err(|need| format!("needs {need} bytes"));
        let device = &outcome.unwrap().devices[0];
        (device.bytes_to_device + device.bytes_to_host, device.epoch_seconds, device.peak_bytes)
    };
    let free = plan(Recompute::Never, ByteSize::gib(64));
    assert_eq!(plan(Recompute::Auto, ByteSize::gib(64)), free, "what fits stays as it is");
    let mut saved = 0;
    for percent in [50, 20] {
        let memory = ByteSize::b(free.2 * percent / 100);
        let [never, auto] = [Recompute::Never, Recompute::Auto].map(|recompute| plan(recompute, memory));
        assert!(auto.0 <= never.0 && auto.1 <= 1.01 * never.1, "{percent} %: {auto:?}, without {never:?}");
        saved += never.0 - auto.0;
    }
    assert!(saved > 0, "nothing is made again");
}

#[test]
fn what_a_refusal_names_is_enough_and_one_byte_less_is_not() {
    for data in datasets().into_iter().filter(|data| data.graph().vertex_count() < 1000) {
        let model = model("gcn", &data);
        for devices in ["sim:1", "sim:3", "cpu", "cpu:2"] {
            let builder = || {
                let builder = Trainer::builder(&model, &data).devices(Devices::parse(devices).unwrap());
                builder.partition(Partition::parse("vertices").unwrap())
            };
            let least = enough(builder(), 1);
            assert!(least > 1);
            train(builder().device_memory(ByteSize::b(least)), 2, least);
            let refused = builder().device_memory(ByteSize::b(least - 1)).build();
            let Err(Error::DoesNotFit { need_bytes, .. }) = refused else {
                panic!("{} on {devices}: one byte less than {least} is not refused", data.name())
            };
            assert_eq!(need_bytes, least);
        }
    }
}

#[test]
fn the_memory_of_the_host_is_a_budget_that_tiles_meet() {
    let data = skewed();
    let model = model("gcn", &data);
    let builder = || Trainer::builder(&model, &data).passes(Passes::NONE);
    let want = train(builder(), 3, u64::MAX);
    let peak = builder().build().unwrap().planned_peak_device_bytes()[0];
    let capacity = enough(builder(), 1);
    assert!(capacity < peak, "tiles save nothing of {peak} bytes");
    let got = train(builder().device_memory(ByteSize::b(capacity)), 3, capacity);
    assert!(got.tiles > 1);
    assert_same("cpu within a budget", &got, &want);
}

#[test]
fn a_weight_larger_than_the_graph_needs_little_more_than_itself_and_its_gradient() {
    let options = RmatOptions { vertices: 256, feature_width: 400, classes: 3, ..RmatOptions::default() };
    let data = rmat(&options).unwrap();
    let model = Model::gcn(&[400, 64, 3]);
    let weight_bytes = 4 * 400 * 64;
    let cases: [(Optimizer, &str); 2] =
        [(Adam::new(0.001).into(), "sim:1"), (Sgd::new(0.01).momentum(0.9).into(), "sim:2")];
    for (optimizer, devices) in cases {
        let builder = || {
            let builder = Trainer::builder(&model, &data).partition(Partition::parse("vertices").unwrap());
            builder.optimizer(optimizer)
        };
        let on = || builder().devices(Devices::parse(devices).unwrap());
        let least = enough(on(), 1);
        assert!(least < 5 * weight_bytes / 2, "{devices}: {least} bytes for a weight of {weight_bytes}");
        let want = curve::train(optimizer, builder(), 6);
        let got = curve::train(optimizer, on().device_memory(ByteSize::b(least)), 6);
        assert_same(&format!("{devices} in {least} bytes"), &got, &want);

        // The optimizer state is in pieces on one side and whole on the other.
        let dir = tempfile::tempdir().unwrap();
        let [mut pieces, mut whole] = [on().device_memory(ByteSize::b(least)), on()].map(|b| b.build().unwrap());
        pieces.step().unwrap();
        pieces.save(dir.path()).unwrap();
        whole.resume(dir.path()).unwrap();
        whole.step().unwrap();
        whole.save(dir.path()).unwrap();
        let mut pieces = on().device_memory(ByteSize::b(least)).build().unwrap();
        pieces.resume(dir.path()).unwrap();
        for (epoch, want) in want.losses.iter().enumerate().skip(2) {
            let loss = pieces.step().unwrap().loss;
            assert!((loss - want).abs() <= 1e-4 * want, "epoch {epoch}: {loss}, not {want}");
        }
    }
}

#[test]
fn a_trained_model_predicts_the_same_in_tiles() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let mut trainer = Trainer::builder(&model, &data).build().unwrap();
    for _ in 0..5 {
        trainer.step().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    trainer.save(dir.path()).unwrap();
    let want = Predictor::open(dir.path()).unwrap().predict(&data).unwrap();
    for devices in ["sim:1", "sim:3"] {
        let predictor = |bytes: u64| {
            let predictor = Predictor::open(dir.path()).unwrap().devices(Devices::parse(devices).unwrap());
            predictor.device_memory(ByteSize::b(bytes))
        };
        let Err(Error::DoesNotFit { need_bytes, .. }) = predictor(1).predict(&data) else {
            panic!("one byte is not enough")
        };
        let got = predictor(need_bytes).predict(&data).unwrap();
        assert_eq!(got.dim(), want.dim());
        let difference = relative_difference(got.as_slice().unwrap(), want.as_slice().unwrap());
        assert!(difference <= 1e-5, "{devices}: logits are off by {difference}");
    }
}

#[test]
fn a_checkpoint_goes_on_in_other_tiles() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let builder = || Trainer::builder(&model, &data).devices(Devices::parse("sim:1").unwrap());
    let want = train(builder(), 6, u64::MAX);
    let peak = builder().build().unwrap().planned_peak_device_bytes()[0];
    let dir = tempfile::tempdir().unwrap();
    let small = || builder().device_memory(ByteSize::b(peak / 6)).optimizer(Adam::new(0.001));
    let mut first = small().build().unwrap();
    assert!(first.tiles() > 1);
    for _ in 0..3 {
        first.step().unwrap();
    }
    first.save(dir.path()).unwrap();
    let mut second = builder().optimizer(Adam::new(0.001)).build().unwrap();
    second.resume(dir.path()).unwrap();
    for (epoch, want) in want.losses.iter().enumerate().skip(3) {
        let loss = second.step().unwrap().loss;
        assert!((loss - want).abs() <= 1e-4 * want, "epoch {epoch}: {loss}, not {want}");
    }
}

#[test]
fn a_shape_is_planned_in_tiles_down_to_a_small_share_of_what_it_would_hold() {
    let shape = Shape { vertices: 2_449_029, edges: 126_000_000, features: 104, classes: 47, directed: false };
    // In the CI, there are two layers, and four devices are planned quickly.
    let widths: &[usize] = if is_long() { &[104, 256, 256, 47] } else { &[104, 256, 47] };
    let model = Model::gcn(widths);
    let on_four = if is_long() { MemoryPolicy::Optimal } else { MemoryPolicy::Lru };
    for (devices, policy) in [(1, MemoryPolicy::Optimal), (4, on_four)] {
        let run = |bytes: u64| {
            let dry_run = DryRun::new(&model, Subject::Shape(shape)).profile("h200").devices(Devices::sim(devices));
            let dry_run = dry_run.policies(&[policy]);
            dry_run.device_memory(ByteSize::b(bytes)).run().unwrap().policies.remove(0).outcome
        };
        let whole = run(u64::MAX / 2).unwrap();
        assert_eq!(whole.tiles, 1);
        let peak = whole.devices[0].peak_bytes;
        let least = run(1).unwrap_err();
        assert!(least < peak / 20, "{least} of {peak}");
        let tight = run(peak / 10).unwrap();
        assert!(tight.tiles > 1 && tight.devices.iter().all(|device| device.peak_bytes <= peak / 10));
        assert!(
            tight.devices[0].lower_bound_bytes <= tight.devices[0].bytes_to_device + tight.devices[0].bytes_to_host
        );
        run(least).unwrap();
        assert_eq!(run(least - 1).map(|_| ()), Err(least));
    }
}

#[test]
fn the_seconds_of_an_evaluation_are_its_own() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let mut trainer = Trainer::builder(&model, &data).eval_every(2).build().unwrap();
    let epochs: Vec<_> = (0..4).map(|_| trainer.step().unwrap()).collect();
    assert!(epochs.iter().all(|epoch| epoch.seconds > 0.0));
    let evaluated: Vec<bool> = epochs.iter().map(|epoch| epoch.eval_seconds > 0.0).collect();
    assert_eq!(evaluated, epochs.iter().map(|epoch| epoch.accuracy.is_some()).collect::<Vec<_>>());
}
