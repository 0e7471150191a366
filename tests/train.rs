//! Training as a whole: reproducible bits, resumption, the best epoch, accuracy on real graphs.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Stdio;

use crate::common::curve::peaks_within_plan;
use crate::common::endless::{endless, wait_for};
use crate::common::{pairs, shared};
use assert_cmd::Command;
use lapidary::{
    Adam, AdamW, Arrays, ByteSize, Dataset, DecayLayers, Devices, Error, Graph, Model, Optimizer, Predictor, Sgd,
    Trainer, Weights,
};
use ndarray::Array2;

fn lapidary() -> Command {
    Command::cargo_bin("lapidary").unwrap()
}

fn planted() -> Dataset {
    Dataset::builtin("planted").unwrap()
}

fn model(data: &Dataset) -> Model {
    Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5).input_dropout(0.2)
}

fn trainer(data: &Dataset, threads: usize) -> Trainer {
    let devices = Devices::cpu().threads(NonZeroUsize::new(threads).unwrap());
    Trainer::builder(&model(data), data)
        .devices(devices)
        .optimizer(Adam::new(0.01).weight_decay(5e-4))
        .seed(7)
        .build()
        .unwrap()
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<f64> {
    (0..count).map(|_| trainer.step().unwrap().loss).collect()
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (run, threads) in ["1", "1", "2", "2", "3"].iter().enumerate() {
        let run = folder.path().join(run.to_string());
        lapidary()
            .args(["train", "--epochs", "30", "--input-dropout", "0.3", "--threads", threads, "--checkpoint"])
            .arg(&run)
            .assert()
            .success();
        files.push((read(run.join("best/model.safetensors")), read(run.join("epoch-00000030/model.safetensors"))));
    }
    assert!(files.iter().all(|file| *file == files[0]));
    let other = folder.path().join("other");
    lapidary()
        .args(["train", "--epochs", "30", "--input-dropout", "0.3", "--seed", "1", "--checkpoint"])
        .arg(&other)
        .assert()
        .success();
    assert_ne!(read(other.join("epoch-00000030/model.safetensors")), files[0].1, "another seed is another run");
}

#[test]
fn a_resumed_run_is_the_run_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let data = planted();
    let mut whole = trainer(&data, 2);
    let losses = steps(&mut whole, 20);

    let mut first = trainer(&data, 2);
    steps(&mut first, 12);
    first.save(folder.path()).unwrap();
    let mut second = trainer(&data, 1);
    assert_eq!(second.resume(folder.path()).unwrap(), Some(12));
    assert_eq!(steps(&mut second, 8), losses[12..]);
    assert!(second.weights().unwrap() == whole.weights().unwrap());
    assert_eq!(second.best(), whole.best());
    assert!(second.predictor().unwrap().weights() == whole.predictor().unwrap().weights());
}

#[test]
fn a_run_that_was_killed_goes_on_from_its_last_whole_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (killed, whole) = (folder.path().join("killed"), folder.path().join("whole"));
    let mut child = endless(Path::new("builtin:planted"), &killed)
        .args(["--checkpoint-every", "10"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(&mut child, &killed.join("epoch-00000030/run.json"));
    child.kill().unwrap();
    child.wait().unwrap();
    Predictor::open(&killed).unwrap();
    let newest = killed
        .read_dir()
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_prefix("epoch-")?.parse::<u64>().ok());
    let epochs = (newest.max().unwrap() + 50).to_string();
    let resumed =
        lapidary().args(["train", "--resume", "--epochs", &epochs, "--checkpoint"]).arg(&killed).assert().success();
    let text = String::from_utf8_lossy(&resumed.get_output().stderr).into_owned();
    assert!(text.contains("resumed from epoch"), "{text}");
    lapidary().args(["train", "--epochs", &epochs, "--checkpoint"]).arg(&whole).assert().success();
    let weights = format!("epoch-{epochs:0>8}/model.safetensors");
    assert_eq!(read(killed.join(&weights)), read(whole.join(&weights)));
    assert_eq!(read(killed.join("best/model.safetensors")), read(whole.join("best/model.safetensors")));
}

/// Tests the states in which a kill between two renames leaves a folder.
#[test]
fn a_kill_while_a_checkpoint_is_replaced_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = planted();
    let mut trainer = trainer(&data, 1);
    while trainer.best().is_none_or(|best| best.epoch == trainer.epoch()) {
        trainer.step().unwrap(); // until the best epoch is not the last
    }
    let epoch = trainer.epoch();
    trainer.save(folder.path()).unwrap();
    let best = Predictor::open(folder.path()).unwrap().weights().clone();
    assert!(best != trainer.weights().unwrap());

    let place = |name: &str| folder.path().join(name);
    std::fs::rename(place("best"), place(".old-best")).unwrap();
    assert!(*Predictor::open(folder.path()).unwrap().weights() == best);
    std::fs::rename(place(&format!("epoch-{epoch:08}")), place(&format!(".old-epoch-{epoch:08}"))).unwrap();
    assert!(*Predictor::open(folder.path()).unwrap().weights() == best);
    let mut again = self::trainer(&data, 1);
    assert_eq!(again.resume(folder.path()).unwrap(), Some(epoch));
    again.save(folder.path()).unwrap();
    assert!(!place(".old-best").exists() || place("best").exists());
    assert!(*Predictor::open(folder.path()).unwrap().weights() == best);
    let refused = lapidary().args(["train", "--checkpoint"]).arg(folder.path()).assert().code(1);
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.contains("--resume"), "{text}");
}

#[test]
fn resuming_a_finished_run_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |epochs: &str| {
        let flags = ["train", "--epochs", epochs, "--early-stop", "5", "--resume", "--json", "--checkpoint"];
        let done = lapidary().args(flags).arg(folder.path()).assert().success();
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    let first = run("300");
    let files: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let second = run("300");
    assert_eq!(second.lines().count(), 1, "a run that stopped early is not trained further: {second}");
    let summary = |text: &str| -> serde_json::Value { serde_json::from_str(text.lines().last().unwrap()).unwrap() };
    assert_eq!(summary(&first)["test_accuracy"], summary(&second)["test_accuracy"]);
    assert_eq!(summary(&first)["epochs"], summary(&second)["epochs"]);
    let after: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, after);
}

#[test]
fn resuming_without_a_checkpoint_starts_from_the_beginning_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let done =
        lapidary().args(["train", "--epochs", "3", "--resume", "--checkpoint"]).arg(folder.path()).assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(text.contains("no checkpoint") && text.contains("from the beginning"), "{text}");
}

#[test]
fn a_checkpoint_of_another_run_is_not_resumed_and_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let data = planted();
    let mut first = trainer(&data, 1);
    steps(&mut first, 2);
    first.save(folder.path()).unwrap();
    let before = read(folder.path().join("epoch-00000002/model.safetensors"));

    let other = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    let mut other = Trainer::builder(&other, &data).build().unwrap();
    assert!(matches!(other.resume(folder.path()), Err(Error::OtherRun { what: "model", .. })));
    let refused = lapidary().args(["train", "--epochs", "3", "--checkpoint"]).arg(folder.path()).assert().code(1);
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.contains("--resume") && text.contains("epoch 2"), "{text}");
    assert_eq!(read(folder.path().join("epoch-00000002/model.safetensors")), before);
}

#[test]
fn a_truncated_checkpoint_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = planted();
    let mut first = trainer(&data, 1);
    steps(&mut first, 2);
    first.save(folder.path()).unwrap();
    let file = folder.path().join("best/model.safetensors");
    let bytes = read(&file);
    std::fs::write(&file, &bytes[..bytes.len() - 7]).unwrap();
    let text = Predictor::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("best/model.safetensors"), "{text}");
}

#[test]
fn the_best_epoch_is_the_earliest_with_the_best_validation_accuracy() {
    let data = planted();
    let mut trainer = trainer(&data, 2);
    let mut best: Option<(u64, f64, f64)> = None;
    for _ in 0..40 {
        let epoch = trainer.step().unwrap();
        let (val, test) = epoch.accuracy.map(|a| (a.val.unwrap(), a.test.unwrap())).unwrap();
        if best.is_none_or(|(_, had, _)| val > had) {
            best = Some((epoch.epoch, val, test));
        }
    }
    let (epoch, val, test) = best.unwrap();
    let found = trainer.best().unwrap();
    assert_eq!((found.epoch, found.val_accuracy, found.test_accuracy), (epoch, Some(val), Some(test)));
    assert_eq!(trainer.predictor().unwrap().run(&data).unwrap().accuracy.val, Some(val));
}

#[test]
fn evaluation_can_be_rare_or_left_to_the_end() {
    let data = planted();
    let model = model(&data);
    let mut rare = Trainer::builder(&model, &data).eval_every(3).build().unwrap();
    let evaluated: Vec<bool> = (0..7).map(|_| rare.step().unwrap().accuracy.is_some()).collect();
    assert_eq!(evaluated, [false, false, true, false, false, true, false]);
    let done = lapidary().args(["train", "--epochs", "60", "--eval-every", "0", "--json"]).assert().success();
    let lines = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(last["test_accuracy"].as_f64().unwrap() > 0.7);
    assert_eq!(last["best_epoch"], 60);
}

#[test]
fn a_run_that_is_extended_without_evaluations_is_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = |epochs: &str| {
        let flags = ["train", "--epochs", epochs, "--eval-every", "0", "--resume", "--json", "--checkpoint"];
        let done = lapidary().args(flags).arg(folder.path()).assert().success();
        let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        serde_json::from_str::<serde_json::Value>(text.lines().last().unwrap()).unwrap()
    };
    run("10");
    assert_eq!(run("40")["best_epoch"], 40);
}

#[test]
fn the_learning_rate_of_the_moment_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let data = planted();
    let mut whole = trainer(&data, 1);
    steps(&mut whole, 5);
    whole.set_learning_rate(0.001).unwrap();
    whole.save(folder.path()).unwrap();
    let losses = steps(&mut whole, 5);
    let mut second = trainer(&data, 1);
    second.resume(folder.path()).unwrap();
    assert_eq!(steps(&mut second, 5), losses);
}

#[test]
fn early_stopping_stops() {
    let done = lapidary().args(["train", "--epochs", "2000", "--early-stop", "10", "--json"]).assert().success();
    let lines = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let (epochs, best) = (last["epochs"].as_u64().unwrap(), last["best_epoch"].as_u64().unwrap());
    assert!(epochs < 2000);
    assert_eq!(epochs, best + 10);
}

#[test]
fn every_optimizer_learns() {
    let data = planted();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    let optimizers: [Optimizer; 4] =
        [Adam::new(0.01).into(), AdamW::new(0.01).into(), Sgd::new(0.5).into(), Sgd::new(0.1).momentum(0.9).into()];
    for optimizer in optimizers {
        let mut trainer = Trainer::builder(&model, &data).optimizer(optimizer).build().unwrap();
        let losses = steps(&mut trainer, 60);
        assert!(losses[59] < 0.5 * losses[0], "{optimizer:?}: {} to {}", losses[0], losses[59]);
    }
}

#[test]
fn decay_of_the_first_layer_leaves_the_others_alone() {
    // With a very strong decay, the first layer vanishes and the second does not.
    let data = planted();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    let mut trainer = Trainer::builder(&model, &data)
        .optimizer(AdamW::new(0.01).weight_decay(50.0))
        .decay_layers(DecayLayers::First)
        .build()
        .unwrap();
    let norm = |weights: &Weights, name| weights.get(name).unwrap().data.iter().map(|x| x * x).sum::<f32>();
    let before = trainer.weights().unwrap();
    steps(&mut trainer, 5);
    let after = trainer.weights().unwrap();
    let kept = |name| norm(&after, name) / norm(&before, name);
    assert!(kept("convs.0.lin.weight") < 0.1);
    assert!(kept("convs.1.lin.weight") > 0.5);
}

#[test]
fn a_run_that_diverges_says_so() {
    let data = planted();
    let mut trainer = Trainer::builder(&model(&data), &data).optimizer(Sgd::new(1e30)).build().unwrap();
    let error = (0..10).find_map(|_| trainer.step().err()).expect("no loss survives this learning rate");
    assert!(matches!(error, Error::Diverged { .. }));
    assert!(error.to_string().contains("learning rate"), "{error}");
}

#[test]
fn features_that_are_too_large_are_not_blamed_on_the_learning_rate() {
    let graph = Graph::from_edges(3, &[(0, 1), (1, 0)]).unwrap();
    let x = Array2::from_elem((3, 4), 3e38f32);
    let data = Dataset::from_arrays(Arrays::new(graph).features(x).labels(&[0i64, 1, 0]).train(&[0i64, 1])).unwrap();
    let mut trainer = Trainer::builder(&Model::gcn(&[4, 2]), &data).build().unwrap();
    let error = trainer.step().unwrap_err();
    assert!(error.to_string().contains("features"), "{error}");
}

#[test]
fn settings_that_cannot_work_are_errors_before_anything_runs() {
    let data = planted();
    let model = model(&data);
    let optimizers: [Optimizer; 6] = [
        Adam::new(-1.0).into(),
        Adam::new(f64::NAN).into(),
        Adam::new(1e39).into(),
        Adam::new(0.01).betas(1.0, 0.9).into(),
        Sgd::new(0.1).momentum(1.0).into(),
        AdamW::new(0.1).weight_decay(f64::INFINITY).into(),
    ];
    for optimizer in optimizers {
        let built = Trainer::builder(&model, &data).optimizer(optimizer).build();
        assert!(matches!(built, Err(Error::Value { .. })), "{optimizer:?}");
    }
    let unused = Model::custom("unused", &[data.feature_width(), data.class_count()], |net, x, _| {
        net.parameter("never", &[3], lapidary::model::Init::Ones)?;
        net.linear(x, "a", 7, true)
    });
    let error = Trainer::builder(&unused, &data).build().unwrap_err();
    assert!(error.to_string().contains("`never`"), "{error}");
    // Widths that overflow every product are refused, not allocated.
    for width in [4_000_000_000, usize::MAX] {
        let wide = Model::gcn(&[data.feature_width(), width, data.class_count()]);
        assert!(matches!(Trainer::builder(&wide, &data).build(), Err(Error::DoesNotFit { .. })));
    }
}

#[test]
fn too_little_memory_is_refused_with_what_is_needed_and_that_is_enough() {
    let data = planted();
    let model = model(&data);
    let build = |memory| Trainer::builder(&model, &data).device_memory(memory).build();
    let Err(Error::DoesNotFit { need_bytes, have_bytes, .. }) = build(ByteSize::kib(64)) else {
        panic!("64 KiB are not enough");
    };
    assert_eq!(have_bytes, 64 * 1024);
    let least = need_bytes;
    let less = build(ByteSize::b(least - 1));
    assert!(matches!(less, Err(Error::DoesNotFit { need_bytes, .. }) if need_bytes == least));
    let mut enough = build(ByteSize::b(need_bytes)).unwrap();
    enough.step().unwrap();
    peaks_within_plan(&enough);
}

#[test]
fn dense_and_sparse_storage_of_the_same_features_train_alike() {
    let data = planted();
    let n = data.graph().vertex_count();
    let x =
        Array2::from_shape_fn((n, 20), |(v, c)| if (v * 31 + c * 17) % 7 == 0 { 1.0 + (c % 3) as f32 } else { 0.0 });
    let (mut indptr, mut indices, mut values) = (vec![0u64], Vec::new(), Vec::new());
    for row in x.rows() {
        for (column, &value) in row.iter().enumerate().filter(|&(_, &value)| value != 0.0) {
            indices.push(column as u32);
            values.push(value);
        }
        indptr.push(indices.len() as u64);
    }
    let labels: Vec<i64> = (0..n as i64).map(|v| v % 5).collect();
    let train: Vec<i64> = (0..200).collect();
    let arrays = || Arrays::new(data.graph().clone()).labels(&labels).train(&train);
    let dense = Dataset::from_arrays(arrays().features(x)).unwrap();
    let sparse = Dataset::from_arrays(arrays().sparse_features(indptr, indices, values, 20)).unwrap();
    // The same seed drops the same cells, so even the losses under dropout agree.
    let model = Model::gcn(&[20, 8, 5]).dropout(0.4).input_dropout(0.5);
    let losses = |data: &Dataset| {
        let norm = lapidary::FeatureNorm::Row;
        steps(&mut Trainer::builder(&model, data).feature_norm(norm).build().unwrap(), 15)
    };
    for (a, b) in pairs(&losses(&dense), &losses(&sparse)) {
        assert!((a - b).abs() < 1e-4 * b, "{a} and {b}");
    }
}

#[test]
fn small_and_odd_graphs_train() {
    for (n, edges) in [(1, vec![]), (2, vec![(0, 0), (0, 0)]), (5, vec![(0, 1), (0, 1), (4, 4)])] {
        let graph = Graph::from_edges(n, &edges).unwrap();
        let x = Array2::from_shape_fn((n, 3), |(v, c)| (v + c) as f32);
        let labels = vec![0i64; n];
        let data = Dataset::from_arrays(Arrays::new(graph).features(x).labels(&labels).train(&[0i64])).unwrap();
        let model = Model::gcn(&[3, 4, data.class_count()]).dropout(0.5);
        let mut trainer = Trainer::builder(&model, &data).build().unwrap();
        steps(&mut trainer, 3);
        assert_eq!(trainer.predictor().unwrap().predict(&data).unwrap().dim(), (n, 1));
    }
}

#[test]
#[ignore = "full: ten runs of 200 epochs a dataset"]
fn gcn_reaches_the_published_accuracies() {
    for (name, floor) in [("cora", 0.810), ("citeseer", 0.695)] {
        let Some(path) = shared(&format!("data/{name}")) else { continue };
        let data = Dataset::open(path).unwrap();
        let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]).dropout(0.5).input_dropout(0.5);
        let accuracy = |seed| {
            let mut trainer = Trainer::builder(&model, &data)
                .optimizer(Adam::new(0.01).weight_decay(5e-4))
                .decay_layers(DecayLayers::First)
                .seed(seed)
                .build()
                .unwrap();
            steps(&mut trainer, 200);
            trainer.best().unwrap().test_accuracy.unwrap()
        };
        let mean = (0..10).map(accuracy).sum::<f64>() / 10.0;
        assert!(mean >= floor, "{name}: {mean}");
    }
}
