//! What `plan` says about other devices and about its own tables.

use serde_json::Value;

use crate::common::command::{run, succeeds};

const SHAPE: [&str; 5] = ["plan", "--shape", "20000,400000,64,7", "--hidden", "64"];

fn with(flags: &[&str]) -> Vec<String> {
    [&SHAPE[..], flags].concat().into_iter().map(String::from).collect()
}

fn planned(flags: &[&str]) -> (Option<i32>, String, String) {
    run(&with(flags).iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn kinds_of_devices_stand_side_by_side() {
    let (code, stdout, _) = planned(&["--fit-on", "p100, 4MB,1KB", "--json"]);
    assert_eq!(code, Some(0));
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line["device"].as_str().unwrap()).collect();
    assert_eq!(names, ["p100", "4MB", "1KB"]);
    assert_eq!(lines[0]["bytes_to_device"], 0);
    // Each line is the plan for that device alone.
    let alone = succeeds(&with(&["--device-memory", "4MB", "--json"]).iter().map(String::as_str).collect::<Vec<_>>());
    let alone: Value = serde_json::from_str(alone.lines().next().unwrap()).unwrap();
    for field in ["tiles", "bytes_to_device", "bytes_to_host", "peak_bytes"] {
        assert_eq!(lines[1][field], alone[field], "{field}");
    }
    assert!(lines[1]["bytes_to_device"].as_u64() > Some(0) && lines[1]["feasible"] == true);
    assert_eq!(lines[2]["feasible"], false);
    assert!(lines[2]["needed_bytes"].as_u64() > Some(1000));
    let (code, stdout, _) = planned(&["--fit-on", "p100,1KB"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("no, it needs") && stdout.contains("predicted, not measured"), "{stdout}");
    assert_eq!(planned(&["--fit-on", "1KB"]).0, Some(3), "nothing fits");
}

#[test]
fn wrong_kinds_are_errors() {
    let (_, _, stderr) = planned(&["--fit-on", "tpu"]);
    assert!(stderr.contains("--fit-on cannot be `tpu`"), "{stderr}");
    let batches = ["plan", "--data", "builtin:karate", "--batch", "8", "--fanout", "2,2", "--fit-on", "h100"];
    let (code, _, stderr) = run(&batches);
    assert!(code == Some(2) && stderr.contains("--batch"), "plans are of whole graphs: {stderr}");
    for (kinds, said) in [("tpu", "`tpu`: expected cpu, cuda:0, h200"), ("24XB", "rtx4090,h100,24GB"), ("", "expected")]
    {
        let (code, stdout, stderr) = planned(&["--fit-on", kinds]);
        assert!(code != Some(0) && stdout.is_empty() && stderr.contains(said), "{kinds}: {stderr}");
    }
}

#[test]
fn a_plan_for_the_default_device_also_tells_the_time_on_the_cpu_itself() {
    let said = "On the CPU itself (--devices cpu), an epoch takes about ";
    let report = |flags: &[&str]| run(&[&["plan", "--data", "builtin:karate", "--hidden", "16"], flags].concat()).1;
    let last = report(&[]).lines().last().unwrap().to_owned();
    let cpu = report(&["--devices", "cpu"]).lines().last().unwrap().to_owned();
    let time = last.strip_prefix(said).and_then(|rest| rest.strip_suffix('.')).expect(&last);
    assert!(cpu.ends_with(&format!("an epoch takes about {time}.")), "{last} {cpu}");
    for flags in [&["--devices", "1", "--profile", "p100"][..], &["--devices", "cpu"], &["--devices", "2"], &["--json"]]
    {
        assert!(!report(flags).contains(said), "{flags:?}");
    }
}

#[test]
fn a_plan_ends_with_what_it_means() {
    let last = |flags: &[&str]| planned(flags).1.lines().last().unwrap().to_owned();
    let fits = last(&["--profile", "p100"]);
    assert!(fits.starts_with("It fits into 14.90 GiB, and copies nothing: an epoch takes about"), "{fits}");
    let tiled = last(&["--profile", "p100", "--device-memory", "4MB"]);
    assert!(
        tiled.starts_with("It fits into 3.81 MiB in ") && tiled.contains(" a device, it would copy nothing"),
        "{tiled}"
    );
    let too_small = last(&["--profile", "p100", "--device-memory", "1KB"]);
    assert!(
        too_small.contains("It does not fit into 1000 B: give each device ") && too_small.contains("--devices"),
        "{too_small}"
    );
    let shape = ["plan", "--shape", "4000000000,40000000000,512,7", "--profile", "h200"];
    let (_, stdout, _) = run(&[&shape[..], &["--devices", "64", "--memory", "lru"]].concat());
    let last = stdout.lines().last().unwrap();
    assert!(last.contains("The host needs ") && last.contains("this machine has "), "{last}");
}

#[test]
fn a_forgotten_unit_is_remarked() {
    let (_, _, stderr) = planned(&["--profile", "p100", "--device-memory", "24"]);
    assert_eq!(stderr.matches("note: --device-memory 24 is 24 bytes; 24 gigabytes are 24GB").count(), 1, "{stderr}");
    let (_, _, stderr) = planned(&["--profile", "p100", "--device-memory", "24000000"]);
    assert!(!stderr.contains("note:"), "{stderr}");
}
