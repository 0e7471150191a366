//! Predicted and measured seconds, as the command shows them. How near they are is a matter of `bench/seconds.py`.

use std::process::Command;

use serde_json::Value;

use crate::common::command::LAPIDARY;

/// Runs the command with a cache folder of its own, and returns its JSON lines.
fn lines(cache: &std::path::Path, args: &[&str]) -> Vec<Value> {
    let done = Command::new(LAPIDARY).env("XDG_CACHE_HOME", cache).args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_plan_says_its_range_and_the_evaluation() {
    let cache = tempfile::tempdir().unwrap();
    let plan = |every| {
        let args = ["plan", "--data", "builtin:planted", "--devices", "cpu", "--eval-every", every, "--json"];
        lines(cache.path(), &args).remove(0)
    };
    let [with, without] = ["1", "0"].map(plan);
    let number = |line: &Value, name: &str| line[name].as_f64().unwrap();
    let range: Vec<f64> = serde_json::from_value(with["epoch_seconds_range"].clone()).unwrap();
    assert!(0.0 < range[0] && range[0] < number(&with, "epoch_seconds") && number(&with, "epoch_seconds") < range[1]);
    assert!(number(&with, "eval_seconds") > 0.0);
    assert_eq!(number(&without, "eval_seconds"), 0.0);
    let ratio = number(&with, "epoch_seconds") / number(&without, "epoch_seconds");
    assert!((ratio - 1.0).abs() < 1e-6, "an epoch takes {ratio} times as long if an evaluation follows");
}

#[test]
fn a_training_lists_the_times_of_its_kernels() {
    let cache = tempfile::tempdir().unwrap();
    for (devices, of_devices) in [("cpu", "gather"), ("sim:1", "gather"), ("cpu:2", "gather with halo")] {
        let args = ["train", "--data", "builtin:planted", "--devices", devices, "--epochs", "6", "--explain", "--json"];
        let all = lines(cache.path(), &args);
        let kernels = all.iter().find(|line| line["event"] == "kernels").expect("there is a line of kernels");
        let kernels = kernels["kernels"].as_array().unwrap();
        let gather = kernels.iter().find(|kernel| kernel["kernel"] == of_devices).expect("a GCN gathers");
        assert!(
            gather["measured_seconds"].as_f64().unwrap() > 0.0 && gather["calls"].as_u64().unwrap() > 2,
            "{gather}"
        );
    }
}

/// Epochs with and without an evaluation have different calls.
#[test]
fn five_epochs_of_a_kind_are_timed() {
    let cache = tempfile::tempdir().unwrap();
    for (every, epochs, timed) in [("1", "12", 5), ("2", "13", 5), ("2", "6", 2), ("0", "12", 5)] {
        let args = ["train", "--devices", "cpu", "--eval-every", every, "--epochs", epochs, "--explain", "--json"];
        let all = lines(cache.path(), &args);
        let kernels = all.iter().find(|line| line["event"] == "kernels").unwrap();
        assert_eq!(kernels["epochs"], timed, "every {every} of {epochs}");
    }
}

#[test]
fn what_was_not_measured_is_said() {
    let cache = tempfile::tempdir().unwrap();
    let shown = lines(cache.path(), &["profile", "--show", "--json"]).remove(0);
    assert!(shown["profile"]["gather_bytes_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!((&shown["kernels"], &shown["age_seconds"]), (&Value::Null, &Value::Null));
}

mod long {
    use super::*;

    #[test]
    #[ignore = "long: it measures all kernels, which takes two minutes"]
    fn the_suite_is_measured_once() {
        let cache = tempfile::tempdir().unwrap();
        let measured = lines(cache.path(), &["profile", "--json"]).remove(0);
        let names: Vec<&str> =
            measured["kernels"].as_array().unwrap().iter().map(|kernel| kernel["kernel"].as_str().unwrap()).collect();
        for name in [
            "gather",
            "gather in windows",
            "gather over tiles",
            "gather bf16",
            "linear",
            "layer_norm",
            "attention",
            "attention in windows",
            "attention with halo",
            "attention_window in windows",
            "attention_v2",
            "attention_v2 with halo",
            "attention_v2_window in windows",
            "attention_v2_source_grad in windows",
            "copy to the device",
        ] {
            assert!(names.contains(&name), "{name} was not measured: {names:?}");
        }
        let again = lines(cache.path(), &["profile", "--json"]).remove(0);
        assert_eq!(again["kernels"], measured["kernels"]);
    }
}
