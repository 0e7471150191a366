//! Values of flags that are not given.

use serde_json::{Value, json};

use crate::common::command::{run, succeeds};
use crate::common::shared;

/// Returns the folder of a generated dataset, with its name.
fn generated() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("planted").to_str().unwrap().to_owned();
    succeeds(&["data", "generate", "planted", &path]);
    (folder, path)
}

fn summary(args: &[&str]) -> Value {
    serde_json::from_str(succeeds(args).lines().last().unwrap()).unwrap()
}

#[test]
fn they_are_chosen_for_the_data_and_said() {
    let (_folder, path) = generated();
    let gcn = summary(&["train", "--data", &path, "--json"]);
    assert_eq!(gcn["defaults"], json!({"hidden": 64, "epochs": 500, "early_stop": 100}));
    assert!(gcn["epochs"].as_u64() < Some(500), "it stops early: {gcn}");
    let gin = summary(&["train", "--data", &path, "--model", "gin", "--epochs", "3", "--json"]);
    assert_eq!(gin["defaults"], json!({"hidden": 64, "layer_norm": true, "lr": 0.001}));
    assert_eq!(gin["epochs"], 3);
    let (_, _, stderr) = run(&["train", "--data", &path, "--epochs", "3"]);
    assert!(stderr.contains("chosen for this data: --hidden 64 "), "{stderr}");
    // `plan` plans for the same width.
    let bytes = |args: &[&str]| summary(&[&["plan", "--data", &path, "--json"], args].concat())["peak_bytes"].clone();
    assert_eq!(bytes(&[]), bytes(&["--hidden", "64"]));
    assert_eq!(bytes(&["--defaults", "plain"]), bytes(&["--hidden", "16"]));
}

#[test]
fn flags_win_and_plain_ones_are_the_same_for_all_data() {
    let (folder, path) = generated();
    let flags = ["--hidden", "8", "--epochs", "2", "--lr", "0.01", "--layer-norm=false", "--feature-norm", "none"];
    let all = summary(&[&["train", "--data", &path, "--model", "gin", "--json"], &flags[..]].concat());
    assert_eq!(all["defaults"], json!({}));
    let plain = summary(&["train", "--data", &path, "--defaults", "plain", "--json"]);
    assert_eq!((&plain["defaults"], &plain["epochs"]), (&json!({}), &json!(200)));
    let with_flags = summary(&["train", "--data", &path, "--hidden", "16", "--epochs", "200", "--json"]);
    assert_eq!(plain["test_accuracy"], with_flags["test_accuracy"]);
    assert_eq!(plain["peak_device_bytes"], with_flags["peak_device_bytes"]);
    // Weights come from a network that somebody has chosen.
    let dir = folder.path().join("run").to_str().unwrap().to_owned();
    succeeds(&["train", "--data", &path, "--hidden", "16", "--epochs", "1", "--checkpoint", &dir]);
    let from_weights = summary(&["train", "--data", &path, "--weights", &dir, "--json"]);
    assert_eq!((&from_weights["defaults"], &from_weights["epochs"]), (&json!({}), &json!(200)));
    let built_in = summary(&["train", "--epochs", "1", "--json"]);
    assert_eq!(built_in["defaults"], json!({}));
}

#[test]
fn features_of_many_numbers_are_not_divided_by_them() {
    let Some(path) = shared("data/amazon-computers") else { return };
    let path = path.to_str().unwrap();
    let chosen = summary(&["train", "--data", path, "--epochs", "1", "--json"]);
    assert_eq!(chosen["defaults"], json!({"hidden": 64, "feature_norm": "none"}));
}
