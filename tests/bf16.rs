//! Training and inference with vertex matrices stored as bf16.

use crate::common::curve::{self, Curve};
use crate::common::{Tier, pairs, relative_difference};
use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::model::ModelConfig;
use lapidary::{
    Adam, Arrays, ByteSize, Dataset, Devices, Error, Matmul, Model, Partition, Passes, Predictor, StorageType, Trainer,
    TrainerBuilder,
};
use ndarray::Array2;

fn model(name: &str, data: &Dataset) -> Model {
    let config = ModelConfig::new(name, &[data.feature_width(), 16, data.class_count()]);
    Model::from_config(config).unwrap().dropout(0.5).heads(2)
}

/// Returns 400 vertices with sparse features, in four groups that the features tell apart only in part.
fn sparse(multi: bool) -> Dataset {
    let n = 400;
    let edges: Vec<(u32, u32)> = (0..n).flat_map(|v| [(v, (v + 4) % n), (v, (v + 20) % n)]).collect();
    let both: Vec<(u32, u32)> = edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]).collect();
    let offsets: Vec<u64> = (0..=u64::from(n)).map(|v| 3 * v).collect();
    let columns: Vec<u32> = (0..n).flat_map(|v| [v % 4, 5 + (v * 7) % 11, 17 + (v * 13) % 9]).collect();
    let values: Vec<f32> = (0..3 * n).map(|i| 0.3 + (i % 7) as f32 / 9.0).collect();
    let ids = |rest: i64| (0..i64::from(n)).filter(|v| v / 4 % 4 == rest).collect::<Vec<_>>();
    let arrays = Arrays::edges(n as usize, &both).sparse_features(offsets, columns, values, 26);
    let arrays = arrays.train(&[ids(0), ids(1)].concat()).val(&ids(2)).test(&ids(3));
    let labels: Vec<i64> = (0..i64::from(n)).map(|v| v % 4).collect();
    let targets = Array2::from_shape_fn((n as usize, 3), |(v, c)| u8::from((v % 4) & (c + 1) != 0));
    let arrays = if multi { arrays.multi_labels(targets) } else { arrays.labels(&labels) };
    Dataset::from_arrays(arrays).unwrap()
}

fn datasets() -> Vec<Dataset> {
    let builtin = ["karate", "planted"].map(|name| Dataset::builtin(name).unwrap());
    builtin.into_iter().chain([sparse(false), sparse(true)]).collect()
}

fn train(builder: TrainerBuilder<'_>, epochs: usize) -> Curve {
    curve::train(Adam::new(0.01).weight_decay(5e-4), builder, epochs)
}

/// Compares the losses of two runs. A few rounded activations may differ, where their sums were rounded differently.
fn assert_near(what: &str, got: &Curve, want: &Curve) {
    let first = (got.losses[0] - want.losses[0]).abs() / want.losses[0];
    assert!(first <= 1e-5, "{what}: the first loss is {}, not {}", got.losses[0], want.losses[0]);
    assert!(!want.gradients.is_empty() && got.gradients.len() == want.gradients.len(), "{what}: other parameters");
    for (name, gradient) in want.gradients.iter() {
        let difference = relative_difference(&got.gradients.get(name).unwrap().data, &gradient.data);
        assert!(difference <= 2e-3, "{what}: the gradient of {name} is off by {difference}");
    }
    for (epoch, (got, want)) in pairs(&got.losses, &want.losses).enumerate() {
        assert!((got - want).abs() <= 5e-3 * want.abs(), "{what}, epoch {epoch}: the loss is {got}, not {want}");
    }
}

#[test]
fn every_model_learns_in_bf16_what_it_learns_in_f32() {
    learns_in_bf16(Tier::Quick);
}

#[test]
#[ignore = "full: the other models on larger graphs"]
fn every_model_learns_in_bf16_on_larger_graphs() {
    learns_in_bf16(Tier::Full);
}

fn learns_in_bf16(tier: Tier) {
    for data in datasets() {
        for &name in tier.models(&data) {
            let model = model(name, &data);
            for passes in [Passes::ALL, Passes::NONE] {
                let what = format!("{name} on {}, {passes:?}", data.name());
                let run = |dtype| {
                    let builder = Trainer::builder(&model, &data).passes(passes).dtype(dtype).keep_gradients(true);
                    let mut trainer = builder.optimizer(Adam::new(0.01)).build().unwrap();
                    let losses: Vec<f64> = (0..60).map(|_| trainer.step().unwrap().loss).collect();
                    (losses, trainer.best().unwrap().test_accuracy.unwrap(), trainer.peak_device_bytes()[0])
                };
                let (wide, stored) = (run(StorageType::F32), run(StorageType::Bf16));
                // Rounding has an effect, but a small one.
                let first = (stored.0[0] - wide.0[0]).abs() / wide.0[0];
                assert!(first > 0.0 && first < 0.01, "{what}: the first loss is {}, not {}", stored.0[0], wide.0[0]);
                // The smallest dataset has 28 test vertices, and two of them may be classified differently.
                assert!(stored.1 >= wide.1 - 0.075, "{what}: {} of the test right, not {}", stored.1, wide.1);
                if data.name() == "planted" {
                    assert!((stored.1 - wide.1).abs() <= 0.02, "{what}: {} right, not {}", stored.1, wide.1);
                    assert!(stored.2 < wide.2 * 3 / 4, "{what}: {} bytes, and {} in f32", stored.2, wide.2);
                }
            }
        }
    }
}

#[test]
fn one_step_in_bf16_has_the_gradients_of_f32_but_for_rounding() {
    one_step_in_bf16(Tier::Quick);
}

#[test]
#[ignore = "full: the other models on larger graphs"]
fn one_step_in_bf16_on_larger_graphs() {
    one_step_in_bf16(Tier::Full);
}

fn one_step_in_bf16(tier: Tier) {
    for data in datasets() {
        for &name in tier.models(&data) {
            let model = model(name, &data);
            let run = |dtype| train(Trainer::builder(&model, &data).dtype(dtype), 1);
            let (wide, stored) = (run(StorageType::F32), run(StorageType::Bf16));
            assert!(!wide.gradients.is_empty(), "{name} on {}", data.name());
            for (parameter, gradient) in wide.gradients.iter() {
                let alike = cosine(&stored.gradients.get(parameter).unwrap().data, &gradient.data);
                let what = format!("{name} on {}: the gradient of {parameter}", data.name());
                // The gradients of a bias and of a vector of scores are sums that nearly cancel.
                let cancels = ["bias", "att_src", "att_dst", "att"].iter().any(|end| parameter.ends_with(end));
                let least = if cancels { 0.98 } else { 0.995 };
                assert!(alike >= least, "{what} points elsewhere: {alike}");
            }
        }
    }
}

/// Returns the cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| pairs(a, b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn devices_and_tiles_change_as_little_as_sums_do() {
    change_as_little_as_sums_do(Tier::Quick);
}

#[test]
#[ignore = "full: the other models, and larger graphs"]
fn devices_and_tiles_change_larger_graphs_as_little_as_sums_do() {
    change_as_little_as_sums_do(Tier::Full);
}

fn change_as_little_as_sums_do(tier: Tier) {
    for data in datasets() {
        for &name in tier.models_by_size(&data, &["gcn"]) {
            let model = model(name, &data);
            let edges = || Partition::parse("edges").unwrap();
            let builder = || Trainer::builder(&model, &data).partition(edges()).dtype(StorageType::Bf16);
            let want = train(builder(), 10);
            for devices in ["sim:1", "sim:3", "cpu:2"] {
                let what = format!("{name} on {} with {devices}", data.name());
                assert_near(&what, &train(builder().devices(Devices::parse(devices).unwrap()), 10), &want);
            }
            let tiled = ["gcn", "resgcn"].contains(&name);
            for (devices, percent) in [("sim:1", 20), ("sim:2", 30)].into_iter().filter(|_| tiled) {
                let on = || builder().devices(Devices::parse(devices).unwrap());
                let peak = on().build().unwrap().planned_peak_device_bytes().into_iter().max().unwrap();
                let little = ByteSize::b(peak * percent / 100);
                let capacity = match on().device_memory(little).build() {
                    Ok(_) => little,
                    Err(Error::DoesNotFit { need_bytes, .. }) => ByteSize::b(need_bytes),
                    Err(other) => panic!("{other}"),
                };
                let what = format!("{name} on {} with {devices} of {percent} %", data.name());
                assert_near(&what, &train(on().device_memory(capacity), 10), &want);
            }
        }
    }
}

/// In the forward pass, a sum is over the sources of one row, and is rounded only when it is complete, tiled or not.
#[test]
fn logits_have_the_same_bits_in_tiles_and_on_many_devices() {
    let options = RmatOptions { vertices: 1 << 11, feature_width: 24, classes: 6, ..RmatOptions::default() };
    for data in [rmat(&options).unwrap(), sparse(false)] {
        let model = model("gcn", &data);
        let mut trainer = Trainer::builder(&model, &data).dtype(StorageType::Bf16).build().unwrap();
        trainer.step().unwrap();
        let predictor = trainer.predictor().unwrap();
        let want = predictor.predict(&data).unwrap();
        assert!(want.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x), "logits are as they were stored");
        let tiled = |bytes: u64| {
            let small = predictor.clone().devices(Devices::parse("sim:1").unwrap()).device_memory(ByteSize::b(bytes));
            small.predict(&data)
        };
        let Err(Error::DoesNotFit { need_bytes, .. }) = tiled(1) else { panic!("nothing fits into a byte") };
        assert_eq!(tiled(need_bytes + need_bytes / 8).unwrap(), want, "{}", data.name());
        for devices in ["sim:3", "cpu:2"] {
            let got = predictor.clone().devices(Devices::parse(devices).unwrap()).predict(&data).unwrap();
            assert_eq!(got, want, "{} on {devices}", data.name());
        }
        let wide = predictor.dtype(StorageType::F32).predict(&data).unwrap();
        assert_ne!(wide, want);
        assert_eq!(wide.dim(), want.dim());
        assert!(wide.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 0.05 * (1.0 + a.abs())));
    }
}

#[test]
fn a_dry_run_says_what_bf16_saves_and_training_holds_it() {
    let shape = Shape { vertices: 232_965, edges: 114_615_892, features: 602, classes: 41, directed: false };
    let reddit = Model::gcn(&[602, 256, 41]).dropout(0.5);
    let peak = |dtype| {
        let forecast = DryRun::new(&reddit, Subject::Shape(shape)).profile("h200").dtype(dtype).run().unwrap();
        forecast.policies[0].outcome.as_ref().unwrap().devices[0].peak_bytes
    };
    let (wide, stored) = (peak(StorageType::F32), peak(StorageType::Bf16));
    // The graph stays as it was; the rest is half.
    let graph = 4 * (114_615_892 + 232_965) + 8 * 232_966;
    let half = (wide - graph) / 2 + graph;
    assert!(stored.abs_diff(half) < half / 50, "{stored} bytes, and {wide} in f32");

    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let forecast = DryRun::new(&model, Subject::Data(&data)).dtype(StorageType::Bf16).run().unwrap();
    let planned = forecast.policies[0].outcome.as_ref().unwrap().devices[0].peak_bytes;
    let builder = Trainer::builder(&model, &data).dtype(StorageType::Bf16).devices(Devices::parse("sim:1").unwrap());
    let curve = curve::train(Adam::new(0.01), builder.keep_gradients(false), 2);
    assert_eq!(curve.peaks, [planned]);
}

#[test]
fn a_checkpoint_keeps_the_dtype() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("gcn", &data);
    let dir = tempfile::tempdir().unwrap();
    let start = |dtype| Trainer::builder(&model, &data).dtype(dtype).build().unwrap();
    let mut whole = start(StorageType::Bf16);
    let losses: Vec<f64> = (0..8).map(|_| whole.step().unwrap().loss).collect();
    let mut first = start(StorageType::Bf16);
    for _ in 0..4 {
        first.step().unwrap();
    }
    first.save(dir.path()).unwrap();

    let objection = start(StorageType::F32).resume(dir.path()).unwrap_err();
    assert!(
        matches!(&objection, Error::OtherRun { what: "dtype", saved, asked, .. } if saved == "bf16" && asked == "f32")
    );
    let mut second = start(StorageType::Bf16);
    assert_eq!(second.resume(dir.path()).unwrap(), Some(4));
    let rest: Vec<f64> = (0..4).map(|_| second.step().unwrap().loss).collect();
    assert_eq!(rest, losses[4..], "the run that was not interrupted");

    let predict = |predictor: Predictor| predictor.predict(&data).unwrap();
    let opened = Predictor::open(dir.path()).unwrap();
    assert_eq!(predict(opened.clone()), predict(first.predictor().unwrap()));
    assert_ne!(predict(opened.clone()), predict(opened.dtype(StorageType::F32)));

    // Older records have no `dtype`.
    let record = dir.path().join("best/run.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let old: Vec<&str> = text.lines().filter(|line| !line.contains("\"dtype\"")).collect();
    assert_eq!(old.len() + 1, text.lines().count());
    std::fs::write(&record, old.join("\n")).unwrap();
    crate::common::digest_anew(record.parent().unwrap());
    let old = Predictor::open(dir.path()).unwrap();
    assert_eq!(predict(old.clone()), predict(old.dtype(StorageType::F32)));
    std::fs::write(&record, text.replace("\"bf16\"", "\"bf17\"")).unwrap();
    crate::common::digest_anew(record.parent().unwrap());
    assert!(matches!(Predictor::open(dir.path()), Err(Error::RunRecord { .. })));
}

/// Returns the gradients of the same parameters in two runs.
fn pairs_of_gradients<'a>(a: &'a Curve, b: &'a Curve) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    a.gradients.iter().map(|(name, a)| (&a.data[..], &b.gradients.get(name).unwrap().data[..]))
}

#[test]
fn bf16_is_multiplied_as_asked() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("gcn", &data);
    let best = if Matmul::Bf16.pays() { Matmul::Bf16 } else { Matmul::F32 };
    let builder = |devices: Devices| Trainer::builder(&model, &data).devices(devices).dtype(StorageType::Bf16);
    for devices in [Devices::cpu(), Devices::cpus(2), Devices::sim(2)] {
        assert_eq!(builder(devices.clone()).build().unwrap().matmul(), Some(best), "{devices}");
        let wide = Trainer::builder(&model, &data).devices(devices.clone()).build().unwrap();
        assert_eq!(wide.matmul(), None, "{devices}: rows are f32");
        let plain = builder(devices.clone().matmul(Matmul::F32));
        assert_eq!(plain.build().unwrap().matmul(), Some(Matmul::F32), "{devices}");
        let plain = train(builder(devices.clone().matmul(Matmul::F32)), 5);
        let mut choices = vec![(builder(devices.clone()), best)];
        if Matmul::Bf16.supported() {
            choices.push((builder(devices.clone().matmul(Matmul::Bf16)), Matmul::Bf16));
        }
        for (builder, matmul) in choices {
            let other = train(builder, 5);
            assert_near(&format!("{devices}, {matmul}"), &other, &plain);
            let differs = pairs_of_gradients(&other, &plain).any(|(a, b)| a != b);
            assert_eq!(differs, matmul == Matmul::Bf16, "{devices}: sums in another order have other last bits");
        }
    }
    let asked = builder(Devices::cpu().matmul(Matmul::Bf16)).build();
    match Matmul::Bf16.supported() {
        true => assert_eq!(asked.unwrap().matmul(), Some(Matmul::Bf16)),
        false => assert!(asked.err().unwrap().to_string().contains("cpu"), "the machine cannot"),
    }
}

#[test]
fn the_command_says_how_bf16_is_multiplied() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("lapidary").unwrap();
        command.args(["train", "--data", "builtin:karate", "--epochs", "2"]).args(arguments).assert()
    };
    let said = |arguments: &[&str]| {
        let done = run(arguments).success();
        let output = done.get_output();
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
    };
    assert!(!said(&[]).contains("AVX512"), "rows are f32");
    assert!(!said(&["--dtype", "bf16", "--matmul", "f32"]).contains("AVX512"));
    if !Matmul::Bf16.supported() {
        println!("SKIPPED in part: this machine's CPU has no AVX512-BF16");
        run(&["--dtype", "bf16", "--matmul", "bf16"]).code(2);
        return;
    }
    assert_eq!(said(&["--dtype", "bf16"]).contains("AVX512-BF16 (--matmul f32"), Matmul::Bf16.pays());
    assert!(said(&["--dtype", "bf16", "--matmul", "bf16"]).contains("AVX512-BF16 (--matmul f32"));
    assert!(said(&["--matmul", "bf16"]).contains("--matmul bf16 changes nothing here"));
    let folder = dir.path().join("run");
    said(&["--dtype", "bf16", "--matmul", "bf16", "--checkpoint", folder.to_str().unwrap()]);
    let record = std::fs::read_to_string(folder.join("best/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["matmul"], "bf16");
}

#[test]
fn the_command_has_a_flag() {
    let dir = tempfile::tempdir().unwrap();
    let (run, logits) = (dir.path().join("run"), dir.path().join("logits.npy"));
    let lapidary = || assert_cmd::Command::cargo_bin("lapidary").unwrap();
    let train = |dtype: &str| {
        let mut command = lapidary();
        command.args(["train", "--data", "builtin:karate", "--epochs", "3", "--json", "--dtype", dtype]);
        command
    };
    let done = train("bf16").arg("--checkpoint").arg(&run).assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    let summary: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(summary["dtype"], "bf16");
    let mut infer = lapidary();
    infer.args(["infer", "--data", "builtin:karate", "--json", "--out"]).arg(&logits).arg("--checkpoint").arg(&run);
    infer.assert().success();
    let written: Array2<f32> = ndarray_npy::read_npy(&logits).unwrap();
    assert!(written.dim() == (34, 2) && written.iter().all(|&x| half::bf16::from_f32(x).to_f32() == x));
    infer.args(["--dtype", "f32"]).assert().success();
    let wide: Array2<f32> = ndarray_npy::read_npy(&logits).unwrap();
    assert!(wide.iter().any(|&x| half::bf16::from_f32(x).to_f32() != x));
    let wrong = train("f16").assert().code(2);
    let said = String::from_utf8_lossy(&wrong.get_output().stderr).into_owned();
    assert!(said.contains("f32, bf16"), "{said}");
}
