//! Numbers that go wrong: where they first did is said, the state before them is kept, and a run can go back to it.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use lapidary::{Dataset, Devices, Error, Model, Sgd, Trainer, Weight};
use serde_json::Value;

fn lapidary() -> Command {
    Command::cargo_bin("lapidary").unwrap()
}

fn builder<'a>(model: &'a Model, data: &'a Dataset, devices: &str) -> lapidary::TrainerBuilder<'a> {
    Trainer::builder(model, data).devices(Devices::parse(devices).unwrap())
}

fn karate() -> (Dataset, Model) {
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]).dropout(0.0);
    (data, model)
}

/// Puts an infinity into a weight of the first layer after two epochs. The first call that reads it makes the first
/// number that is not finite.
#[test]
fn the_epoch_the_call_and_the_part_are_named() {
    let (data, model) = karate();
    for (devices, parts) in [("cpu", 1), ("cpu:2", 2), ("sim:2", 2)] {
        let mut trainer = builder(&model, &data, devices).optimizer(Sgd::new(1e25)).build().unwrap();
        let start = trainer.snapshot().unwrap();
        let error = (0..20).find_map(|_| trainer.step().err()).expect("no number survives this learning rate");
        let Error::Diverged { epoch, first: Some(first), .. } = &error else { panic!("{error}") };
        assert!((1..20).contains(epoch) && first.part < parts, "{error}");
        assert!(!first.value.is_finite() && !first.op.is_empty(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("epoch {epoch}")) && text.contains("first appeared in step"), "{text}");
        // The trainer is back where every number was finite.
        assert!(trainer.epoch() < *epoch);
        trainer.weights().unwrap().check_finite().unwrap();
        let folder = tempfile::tempdir().unwrap();
        trainer.save(folder.path()).unwrap();
        trainer.restore(&start).unwrap();
        trainer.set_learning_rate(0.1).unwrap();
        assert_eq!(trainer.step().unwrap().epoch, 1, "{devices}: it goes on with a smaller rate");
    }
}

/// The search for the first number that is not finite finds the call that makes it: with weights of 1e30 in both
/// layers, the product of the second layer overflows, not the first.
#[test]
fn the_first_call_is_found_and_not_a_later_one() {
    let (data, model) = karate();
    let mut trainer = builder(&model, &data, "cpu").build().unwrap();
    let mut weights = trainer.weights().unwrap();
    for name in ["convs.0.lin.weight", "convs.1.lin.weight"] {
        let Weight { shape, data } = weights.get(name).unwrap().clone();
        weights.insert(name, Weight { shape, data: data.iter().map(|_| 1e30).collect() });
    }
    trainer.set_weights(&weights).unwrap();
    let plan = trainer.explain();
    let error = trainer.step().unwrap_err();
    let Error::NotFiniteAtStart { first: Some(first), .. } = &error else { panic!("{error}") };
    let steps: Vec<&str> = plan.lines().skip(2).map(str::trim).collect();
    assert!(steps[first.step].starts_with(&first.op), "{first} is step {} of\n{plan}", first.step);
    assert!(first.step > 0 && first.op.contains("linear"), "the second product overflows: {first}\n{plan}");
}

#[test]
fn a_learning_rate_that_is_no_number_is_refused_and_changes_nothing() {
    let (data, model) = karate();
    let mut trainer = builder(&model, &data, "cpu").build().unwrap();
    for lr in [f64::NAN, f64::INFINITY, -1.0, 1e39] {
        let error = trainer.set_learning_rate(lr).unwrap_err();
        assert!(matches!(&error, Error::Value { option: "lr", .. }), "{error}");
        assert_eq!(trainer.learning_rate(), 0.01);
    }
    trainer.step().unwrap();
}

#[test]
fn a_restored_snapshot_gives_the_same_epochs_again() {
    let (data, model) = karate();
    let mut trainer = builder(&model, &data, "sim:2").build().unwrap();
    let losses = |trainer: &mut Trainer| -> Vec<f64> { (0..5).map(|_| trainer.step().unwrap().loss).collect() };
    losses(&mut trainer);
    let snapshot = trainer.snapshot().unwrap();
    let (once, best) = (losses(&mut trainer), trainer.best().cloned());
    trainer.restore(&snapshot).unwrap();
    assert_eq!(trainer.epoch(), 5);
    assert_eq!((losses(&mut trainer), trainer.best().cloned()), (once, best));
    let other = Model::gcn(&[data.feature_width(), 9, data.class_count()]);
    let mut other = builder(&other, &data, "cpu").build().unwrap();
    assert!(matches!(other.restore(&snapshot), Err(Error::Weights(_))), "it is of another model");
}

fn epochs(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("epoch-")).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_diverges_leaves_its_last_checkpoint_whole() {
    let folder = tempfile::tempdir().unwrap();
    let run = |epochs: &str, lr: &str, more: &[&str]| {
        let mut command = lapidary();
        command.args(["train", "--data", "builtin:karate", "--epochs", epochs, "--checkpoint-every", "5", "--lr", lr]);
        command.args(more).arg("--checkpoint").arg(folder.path());
        command
    };
    run("20", "0.01", &[]).assert().success();
    let done = run("60", "1e30", &["--resume"]).assert().code(1);
    let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(text.contains("first appeared in step") && text.contains("part 0"), "{text}");
    assert_eq!(epochs(folder.path()).last().unwrap(), "epoch-00000020");
    let infer = ["infer", "--data", "builtin:karate", "--checkpoint"];
    lapidary().args(infer).arg(folder.path()).assert().success();
    run("60", "0.01", &["--resume"]).assert().success();
}

/// The learning rate is far too large for a few halvings only.
#[test]
fn rollback_returns_to_a_checkpoint_with_half_the_learning_rate_and_records_it() {
    let folder = tempfile::tempdir().unwrap();
    let train = |on_nan: &str, dir: &Path, lr: &str| {
        let mut command = lapidary();
        command.args(["train", "--data", "builtin:karate", "--optimizer", "sgd", "--dropout", "0", "--epochs", "40"]);
        command.args(["--lr", lr, "--on-nan", on_nan, "--checkpoint"]).arg(dir);
        command
    };
    // Finds a rate that diverges, although an eighth of it does not.
    let rate = (10..40).map(|power| 2f64.powi(power).to_string()).find(|rate| {
        let dir = folder.path().join(format!("stop-{rate}"));
        train("stop", &dir, rate).output().unwrap().status.code() == Some(1)
    });
    let (rate, dir) = (rate.expect("some rate diverges"), folder.path().join("run"));
    let done = train("rollback", &dir, &rate).assert().success();
    let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    let lr: f64 = rate.parse().unwrap();
    assert!(text.contains(&format!("back to epoch 0, with learning rate {}", lr / 2.0)), "{text}");
    let record: Value = serde_json::from_slice(&fs::read(dir.join("epoch-00000040/run.json")).unwrap()).unwrap();
    let change = &record["changes"][0];
    assert_eq!((change["what"].as_str(), change["why"].as_str()), (Some("learning_rate"), Some("rollback")));
    assert_eq!((change["epoch"].as_u64(), change["from"].as_f64()), (Some(1), Some(lr)));
    assert_eq!(record["optimizer"]["lr"].as_f64(), Some(lr), "the rate that was asked for");
    assert!(record["learning_rate"].as_f64().unwrap() < lr);
}

/// A schedule sets another rate before each epoch. The search repeats the epochs with the same rates.
#[test]
fn the_search_repeats_the_learning_rates_of_a_schedule() {
    let (data, model) = karate();
    let mut trainer = builder(&model, &data, "cpu").optimizer(Sgd::new(0.1)).build().unwrap();
    let error = (0..100).find_map(|epoch| {
        trainer.set_learning_rate(if epoch < 30 { 0.1 } else { 1e30 }).unwrap();
        trainer.step().err()
    });
    let error = error.expect("no number survives the last rates");
    let Error::Diverged { epoch, first: Some(first), .. } = &error else { panic!("{error}") };
    assert!(*epoch > 30 && !first.value.is_finite(), "{error}");
}
