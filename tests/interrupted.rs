//! Runs that the system or a person ends, and data that changes while a run reads it: nothing that was trained is lost.
#![cfg(unix)]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use lapidary::{Dataset, Error, Model, Predictor, Trainer};

use crate::common::command::LAPIDARY;
use crate::common::endless::{ENDLESS, endless, signal, wait_for};

/// Starts a training; the flags may end it.
fn train(data: &Path, dir: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(LAPIDARY);
    command.args(["train", "--data"]).arg(data).arg("--checkpoint").arg(dir).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts a training that only a signal or an error ends.
fn train_on(data: &Path, dir: &Path, more: &[&str]) -> Child {
    endless(data, dir).args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn builtin() -> PathBuf {
    "builtin:karate".into()
}

fn end(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn newest(dir: &Path) -> u64 {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("epoch-")?.parse().ok()).max().expect("there is a checkpoint")
}

/// Writes a dataset directory that is large enough for epochs of several milliseconds.
fn dataset(dir: &Path) -> PathBuf {
    let data = dir.join("data");
    let made = Command::new(LAPIDARY)
        .args(["data", "generate", "planted", "--vertices", "4000", "--features", "32"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    data
}

/// SIGTERM used to lose every epoch since the last checkpoint.
#[test]
fn sigterm_saves_as_ctrl_c_does() {
    for (name, code) in [("-TERM", 143), ("-INT", 130)] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("run");
        let mut child = train_on(&builtin(), &dir, &["--checkpoint-every", "7"]);
        wait_for(&mut child, &dir.join("epoch-00000014"));
        signal(&child, name);
        let (ended, text) = end(child);
        assert_eq!(ended, Some(code), "{text}");
        let epoch = newest(&dir);
        assert!(text.contains(&format!("interrupted after epoch {epoch}")), "{text}");
        Predictor::open(&dir).unwrap();
        assert!(!dir.join(".lock").exists(), "the folder is free");
        // The resumed run and one that was never interrupted end alike.
        let last = (epoch + 5).to_string();
        let (ended, text) = end(train(&builtin(), &dir, &["--epochs", &last, "--resume"]));
        assert_eq!(ended, Some(0), "{text}");
        let whole = folder.path().join("whole");
        assert_eq!(end(train(&builtin(), &whole, &["--epochs", &last])).0, Some(0));
        let file = format!("epoch-{:08}/model.safetensors", epoch + 5);
        assert!(fs::read(dir.join(&file)).unwrap() == fs::read(whole.join(&file)).unwrap());
    }
}

/// Without any grace, the epoch that runs is abandoned, and the state before it is saved.
#[test]
fn an_epoch_that_outlasts_the_grace_period_is_abandoned_and_the_state_before_it_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (data, dir) = (dataset(folder.path()), folder.path().join("run"));
    let flags = ["--checkpoint-every", "10", "--hidden", "256", "--layers", "4", "--grace", "0"];
    let mut child = train_on(&data, &dir, &flags[..]);
    wait_for(&mut child, &dir.join("epoch-00000010"));
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, "-TERM");
    let (ended, text) = end(child);
    assert_eq!(ended, Some(143), "{text}");
    let epoch = newest(&dir);
    let was_abandoned = text.contains(&format!("the checkpoint has epoch {epoch}"));
    assert!(was_abandoned || text.contains("interrupted after epoch"), "{text}");
    assert!(epoch >= 10);
    let last = (epoch + 1).to_string();
    let more = ["--epochs", &last, "--hidden", "256", "--layers", "4", "--resume"];
    let (ended, text) = end(train(&data, &dir, &more));
    assert_eq!(ended, Some(0), "{text}");
    assert!(text.contains(&format!("resumed from epoch {epoch}")), "{text}");
}

#[test]
fn the_second_signal_ends_the_program_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (data, dir) = (dataset(folder.path()), folder.path().join("run"));
    let flags = ["--checkpoint-every", "2", "--hidden", "512", "--layers", "6"];
    let mut child = train_on(&data, &dir, &flags);
    wait_for(&mut child, &dir.join("epoch-00000002"));
    signal(&child, "-TERM");
    signal(&child, "-TERM");
    assert_eq!(end(child).0, Some(143));
    Predictor::open(&dir).unwrap();
}

#[test]
fn a_signal_without_a_checkpoint_folder_still_prints_the_results() {
    let mut child = Command::new(LAPIDARY)
        .args(["train", "--data", "builtin:karate", "--json", "--epochs", ENDLESS])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    lines.next().unwrap().unwrap();
    signal(&child, "-TERM");
    let last = lines.map(Result::unwrap).last().unwrap();
    assert!(last.contains(r#""event":"summary""#), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// Checks that a run that read a changed dataset ended with an error that names `file`, with every checkpoint whole.
fn data_changed(child: Child, dir: &Path, file: &Path, how: &str) {
    let (ended, text) = end(child);
    assert_eq!(ended, Some(1), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    // A mapped file that became shorter may end the program by SIGBUS, which is explained.
    let is_explained = errors[0].contains("SIGBUS") && how.contains("bytes instead of");
    assert!(errors[0].contains(&file.display().to_string()) && errors[0].contains(how) || is_explained, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // SIGBUS may have left a folder that was being written, under another name.
        let is_checkpoint = !path.file_name().unwrap().to_str().unwrap().starts_with('.');
        if is_checkpoint {
            Predictor::open(&path).unwrap();
        }
    }
}

/// A dataset that changed under a run used to end it with a bare bus error, or a panic in `vertex_set.rs`.
#[test]
fn a_dataset_that_changes_under_a_run_is_detected() {
    type Change = fn(&Path);
    let changes: [(&str, &str, Change); 5] = [
        ("features.npy", "bytes instead of", |path| {
            OpenOptions::new().write(true).open(path).unwrap().set_len(200).unwrap()
        }),
        ("indices.npy", "bytes instead of", |path| {
            OpenOptions::new().write(true).open(path).unwrap().set_len(200).unwrap()
        }),
        ("indices.npy", "was written to", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[128..].fill(0xff);
            // In place: a new file would leave the mapped one alone.
            OpenOptions::new().write(true).open(path).unwrap().write_all(&bytes).unwrap();
        }),
        ("labels.npy", "was removed", |path| fs::remove_file(path).unwrap()),
        ("features.npy", "was replaced by another file", |path| {
            let other = path.with_extension("other");
            fs::copy(path, &other).unwrap();
            fs::rename(&other, path).unwrap();
        }),
    ];
    for (name, how, change) in changes {
        // With many devices, several threads read a mapped file at once.
        for devices in ["cpu", "sim:2", "cpu:8"] {
            let folder = tempfile::tempdir().unwrap();
            let (data, dir) = (dataset(folder.path()), folder.path().join("run"));
            let flags = ["--checkpoint-every", "3", "--devices", devices];
            let mut child = train_on(&data, &dir, &flags);
            wait_for(&mut child, &dir.join("epoch-00000003"));
            change(&data.join(name));
            data_changed(child, &dir, &data.join(name), how);
        }
    }
}

#[test]
fn the_library_detects_that_its_dataset_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = dataset(folder.path());
    let data = Dataset::open(&dir).unwrap();
    let model = Model::gcn(&[data.feature_width(), 4, data.class_count()]);
    let mut trainer = Trainer::builder(&model, &data).build().unwrap();
    trainer.step().unwrap();
    let predictor = trainer.predictor().unwrap();
    predictor.predict(&data).unwrap();
    let before = trainer.last_good().expect("it was taken before the first epoch").epoch();
    let labels = OpenOptions::new().write(true).open(dir.join("labels.npy")).unwrap();
    labels.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let errors = [trainer.step().unwrap_err(), predictor.predict(&data).unwrap_err()];
    for error in errors {
        let is_named = matches!(&error, Error::Dataset(lapidary::dataset::Error::Changed { path, .. }) if path.ends_with("labels.npy"));
        assert!(is_named, "{error}");
    }
    assert!(trainer.last_good().is_some_and(|good| good.epoch() >= before), "the state before it is kept");
    assert!(Dataset::builtin("karate").unwrap().check_files().is_ok(), "data in memory has no files");
}
