//! Files and folders that the command writes: complete or absent, at their path, and used by one run at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

use crate::common::endless::started;

fn lapidary() -> Command {
    Command::cargo_bin("lapidary").unwrap()
}

/// Returns `lapidary train` on a small graph.
fn train(epochs: &str) -> Command {
    let mut command = lapidary();
    command.args(["train", "--data", "builtin:karate", "--epochs", epochs]);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the number of kernels and copies in a trace.
fn span_count(trace: &Value) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count()
}

#[test]
fn a_trace_is_whole_and_of_all_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let spans = |epochs: &str| {
        train(epochs).arg("--trace").arg(&path).assert().success();
        let trace = json(&path);
        assert_eq!(trace["otherData"]["epochs"], format!("1 to {epochs}"));
        span_count(&trace)
    };
    // The first epoch also computes constants that later ones reuse.
    let (one, two) = (spans("1"), spans("2"));
    assert!(two > one);
    assert_eq!(spans("30"), one + 29 * (two - one));
    assert_eq!(names(folder.path()), ["trace.json"]);
}

#[test]
#[cfg(unix)]
fn a_trace_goes_through_links_and_keeps_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let traced = |name: &str| drop(train("2").arg("--trace").arg(place(name)).assert().success());
    symlink("real.json", place("link.json")).unwrap();
    traced("link.json"); // which leads to a missing file
    assert!(place("link.json").is_symlink() && place("real.json").symlink_metadata().unwrap().is_file());
    fs::write(place("real.json"), "earlier").unwrap();
    fs::set_permissions(place("real.json"), fs::Permissions::from_mode(0o640)).unwrap();
    traced("link.json");
    assert!(place("link.json").is_symlink());
    assert_eq!(json(&place("real.json"))["otherData"]["epochs"], "1 to 2");
    assert_eq!(place("real.json").metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(names(folder.path()), ["link.json", "real.json"]);
    train("1").args(["--trace", "/dev/null"]).assert().success();
    assert!(!fs::metadata("/dev/null").unwrap().is_file(), "a device was replaced by a file");
}

#[test]
#[cfg(unix)]
fn a_trace_goes_into_a_pipe_that_stays_a_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read(pipe).unwrap())
    };
    train("5").arg("--trace").arg(&pipe).assert().success();
    let trace: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert_eq!(trace["otherData"]["epochs"], "1 to 5");
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    // Standard output is a pipe here too.
    let done = train("5").args(["--trace", "/dev/stdout"]).assert().success();
    let output = &done.get_output().stdout;
    let trace = serde_json::Deserializer::from_slice(output).into_iter::<Value>().next().unwrap().unwrap();
    assert_eq!(trace["otherData"]["epochs"], "1 to 5");
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/trace.json");
    for path in [Path::new("/dev/full"), &missing, folder.path()] {
        if path.starts_with("/dev") && !path.exists() {
            continue; // not Linux
        }
        let run = folder.path().join("run");
        let refused = train("5").args(["--json", "--checkpoint"]).arg(&run).arg("--trace").arg(path).assert().code(1);
        let output = refused.get_output();
        assert!(output.stdout.is_empty(), "an epoch ran");
        let text = stderr(output);
        assert_eq!(text.matches("error:").count(), 1, "{text}");
        assert!(text.contains("the trace") && text.contains(&path.display().to_string()), "{text}");
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }
}

/// Runs the command with files limited to `blocks` blocks of 512 bytes, as on a disk that fills up.
#[cfg(target_os = "linux")]
fn limited(blocks: usize, args: &[&str]) -> Output {
    // A process that ignores the signal gets an error instead.
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let program = assert_cmd::cargo::cargo_bin("lapidary");
    std::process::Command::new("sh").arg("-c").arg(script).arg(program).args(args).output().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_fills_up_during_the_trace_does_not_lose_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let (path, run) = (folder.path().join("trace.json"), folder.path().join("run"));
    let [trace, checkpoint] = [&path, &run].map(|path| path.to_str().unwrap());
    let base = ["train", "--data", "builtin:karate", "--epochs", "300", "--checkpoint", checkpoint, "--trace", trace];
    let output = limited(200, &base);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("training goes on without it"), "{text}");
    let last = text.lines().find(|line| line.starts_with("error:")).unwrap();
    assert!(last.contains("the trace") && last.contains(trace), "{text}");
    assert_eq!(names(folder.path()), ["run"], "half a trace is left");
    assert!(run.join("epoch-00000300/model.safetensors").exists());

    // The earlier file stays, and the JSON lines are printed.
    fs::write(&path, "earlier").unwrap();
    let again = [&base[..4], &["600", "--resume", "--json"], &base[5..]].concat();
    let output = limited(200, &again);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("goes on") && text.contains(trace), "{text}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["event"], &summary["epochs"]), (&"summary".into(), &600.into()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
    assert_eq!(names(folder.path()), ["run", "trace.json"]);
}

#[test]
fn a_run_that_diverges_leaves_its_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let failed = train("50").args(["--optimizer", "sgd", "--lr", "1e30", "--trace"]).arg(&path).assert().code(1);
    let text = stderr(failed.get_output());
    assert!(text.contains("learning rate"), "{text}");
    let trace = json(&path);
    assert!(span_count(&trace) > 0);
    assert!(trace["otherData"]["epochs"].as_str().unwrap().starts_with("1 to "), "{}", trace["otherData"]);
}

/// Returns the peak memory of a process, in KiB.
#[cfg(target_os = "linux")]
fn peak_kib(args: &[&str]) -> u64 {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("lapidary"))
        .args(args)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        peak = peak.max(line.trim().trim_end_matches(" kB").parse().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    assert!(peak > 0, "the run ended before its memory was read");
    peak
}

#[test]
#[cfg(target_os = "linux")]
fn the_memory_of_a_trace_does_not_grow_with_the_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let path = path.to_str().unwrap();
    let peak = peak_kib(&["train", "--data", "builtin:karate", "--epochs", "10000", "--trace", path]);
    // A run without a trace takes about 15 MiB, and all 10,000 epochs together would take about 400 MiB. The peak of a
    // short run is no measure: on a busy machine, it may be read only once.
    assert!(peak < 100_000, "{peak} KiB");
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn two_runs_never_share_a_checkpoint_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let first = started(&dir);
    let pid = first.id().to_string();
    for resume in [None, Some("--resume")] {
        // The run is refused before it looks for the data, or else the error would be about the data.
        let mut second = lapidary();
        second.args(["train", "--data", "no/such/folder", "--checkpoint"]).arg(&dir).args(resume);
        let text = stderr(second.assert().code(1).get_output());
        assert_eq!(text.lines().filter(|line| line.starts_with("error:")).count(), 1, "{text}");
        let host = gethostname::gethostname().into_string().unwrap();
        for word in [dir.to_str().unwrap(), &format!("process {pid} on {host}"), "in use"] {
            assert!(text.contains(word), "no `{word}` in: {text}");
        }
    }
    let record = fs::read_to_string(dir.join(".lock")).unwrap();
    assert!(record.contains(&format!("pid {pid}\n")), "{record}");
    end(first);
}

#[test]
fn a_run_that_was_killed_does_not_keep_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let first = started(&dir);
    let pid = first.id().to_string();
    end(first);
    assert!(dir.join(".lock").exists());
    let newest = names(&dir).into_iter().filter_map(|name| name.strip_prefix("epoch-")?.parse::<u64>().ok()).max();
    let epochs = (newest.unwrap() + 3).to_string();
    let next = train(&epochs).args(["--resume", "--checkpoint"]).arg(&dir).assert().success();
    let text = stderr(next.get_output());
    let said: Vec<&str> = text.lines().filter(|line| line.contains("taken over")).collect();
    assert!(said.len() == 1 && said[0].contains(&format!("process {pid} on ")), "{text}");
    assert!(!dir.join(".lock").exists());
}

#[test]
fn a_run_that_ends_leaves_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    train("2").arg("--checkpoint").arg(&dir).assert().success();
    assert_eq!(names(&dir), ["best", "epoch-00000002"]);
    // One that fails leaves none either, and no folder that it made.
    let text = stderr(train("2").arg("--checkpoint").arg(&dir).assert().code(1).get_output());
    assert!(text.contains("--resume"), "{text}");
    assert_eq!(names(&dir), ["best", "epoch-00000002"]);
    let other = folder.path().join("other");
    let mut no_data = lapidary();
    no_data.args(["train", "--data", "no/such/folder", "--checkpoint"]).arg(&other);
    let text = stderr(no_data.assert().code(1).get_output());
    assert!(text.contains("no/such/folder"), "{text}");
    assert!(!other.exists());
    // Inference may read a folder while a run writes to it.
    let first = started(&other);
    lapidary().args(["infer", "--data", "builtin:karate", "--checkpoint"]).arg(&other).assert().success();
    end(first);
}
