//! `lapidary plan --tasks`: its output, and its errors for invalid files.

#[path = "../planner/tests/common/mod.rs"]
mod random;

use assert_cmd::Command;
use lapidary::tasks_file;
use lapidary_planner::memory::{Epoch, Objective};
use lapidary_planner::tasks::{TaskGraph, TensorId, TensorKind};
use serde_json::{Value, json};

const CHAIN: &str = r#"{
    "tensors": [
        {"name": "x", "bytes": 100}, {"name": "h", "bytes": 60, "kind": "fresh"}, {"name": "a", "bytes": 50},
        {"name": "b", "bytes": 50, "publish": true}, {"name": "x2", "bytes": 100}
    ],
    "ops": [
        {"name": "last", "inputs": ["x", "a"], "outputs": ["x2"], "next": {"x2": "x"}},
        {"name": "first", "inputs": ["x"], "outputs": ["a"]},
        {"name": "second", "inputs": ["h", "a"], "outputs": ["b"]}
    ]
}"#;

/// Returns the JSON lines that the command prints for a task graph.
fn plan(tasks: &str, flags: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tasks.json");
    std::fs::write(&file, tasks).unwrap();
    let mut command = Command::cargo_bin("lapidary").unwrap();
    let output = command.args(["plan", "--json", "--tasks"]).arg(&file).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the error for a file. It must be one line that names the file, with exit code 1.
fn refusal(tasks: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tasks.json");
    std::fs::write(&file, tasks).unwrap();
    let output = Command::cargo_bin("lapidary").unwrap().args(["plan", "--tasks"]).arg(&file).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{error}");
    assert!(errors[0].contains("tasks.json"), "{error}");
    error
}

#[test]
fn every_policy_has_a_line() {
    let lines = plan(CHAIN, &["--memory", "all", "--device-memory", "250"]);
    let policies: Vec<&str> = lines.iter().map(|line| line["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["none", "lru", "roc", "optimal"]);
    let optimal = &lines[3];
    assert_eq!(
        *optimal,
        json!({
            "event": "plan", "policy": "optimal", "feasible": true, "exact": true, "bytes_to_device": 160,
            "bytes_to_host": 50, "peak_bytes": 250, "lower_bound_bytes": 210, "epoch_seconds": null, "host_bytes": null,
            "steps": [
                {"op": "first", "store": [], "evict": [], "load": ["x"]},
                {"op": "last", "store": [], "evict": [], "load": []},
                {"op": "second", "store": [], "evict": ["x", "x2"], "load": ["h"]},
            ],
        })
    );
    for line in &lines {
        assert_eq!(line["feasible"], true);
        assert!(line["lower_bound_bytes"].as_u64() <= Some(210));
        assert_eq!(line["steps"].as_array().unwrap().len(), 3);
    }
}

/// Returns a task graph as a file. Kinds are left out if they follow from the operations.
fn file_of(graph: &TaskGraph) -> String {
    let name = |t: &TensorId| graph.tensor(*t).name.to_string();
    let tensors: Vec<Value> = graph
        .tensors()
        .iter()
        .map(|t| {
            let mut entry = json!({"name": &*t.name, "bytes": t.bytes});
            if t.kind == TensorKind::Fresh {
                entry["kind"] = "fresh".into();
            }
            if t.publish {
                entry["publish"] = true.into();
            }
            entry
        })
        .collect();
    let ops: Vec<Value> = graph
        .ops()
        .iter()
        .map(|op| {
            let names = |ids: &[TensorId]| ids.iter().map(name).collect::<Vec<String>>();
            let next: serde_json::Map<String, Value> = op.next.iter().map(|(y, x)| (name(y), name(x).into())).collect();
            json!({"name": &*op.name, "inputs": names(&op.inputs), "outputs": names(&op.outputs), "next": next})
        })
        .collect();
    json!({"tensors": tensors, "ops": ops}).to_string()
}

#[test]
fn files_say_what_graphs_are() {
    for seed in 0..3000 {
        let graph = random::random_graph(seed, &random::Shape { ops: 9, inputs: 5, most_bytes: 20 });
        let read = tasks_file::parse(&file_of(&graph)).unwrap();
        assert_eq!((read.tensors(), read.ops(), read.order()), (graph.tensors(), graph.ops(), graph.order()));
    }
}

#[test]
fn the_command_plans_as_the_library_does() {
    for seed in 0..25 {
        let graph = random::random_graph(seed, &random::Shape { ops: 9, inputs: 5, most_bytes: 20 });
        let capacity = random::random_capacity(&graph, seed);
        for (name, epoch) in [("cold", Epoch::Cold), ("steady", Epoch::Steady)] {
            let memory = capacity.to_string();
            let lines = plan(&file_of(&graph), &["--memory", "all", "--epoch", name, "--device-memory", &memory]);
            for (line, policy) in crate::common::pairs(&lines, &random::POLICIES) {
                let request = random::request(*policy, Objective::Both, epoch.clone(), capacity);
                let known = random::planned(&graph, &request);
                let ops: Vec<&str> = known.steps.iter().map(|step| &*graph.op(step.op).name).collect();
                let steps: Vec<&str> =
                    line["steps"].as_array().unwrap().iter().map(|step| step["op"].as_str().unwrap()).collect();
                assert_eq!(steps, ops);
                for (what, value) in [
                    ("bytes_to_device", known.bytes_to_device),
                    ("bytes_to_host", known.bytes_to_host),
                    ("peak_bytes", known.peak_bytes),
                    ("lower_bound_bytes", known.lower_bound_bytes),
                ] {
                    assert_eq!(line[what], value, "seed {seed} {policy:?} {name} {what}");
                }
            }
        }
    }
}

#[test]
fn the_steady_epoch_says_what_it_starts_with() {
    let line = &plan(CHAIN, &["--epoch", "steady"])[0];
    assert_eq!((&line["bytes_to_device"], &line["bytes_to_host"]), (&json!(60), &json!(50)));
    assert_eq!(line["start"], json!({"resident": ["x"], "dirty": ["x"]}));
}

#[test]
fn loads_alone_store_nothing() {
    let line = &plan(CHAIN, &["--objective", "loads", "--device-memory", "250"])[0];
    assert_eq!((&line["bytes_to_device"], &line["bytes_to_host"]), (&json!(160), &json!(0)));
}

#[test]
fn too_little_memory_is_an_answer() {
    let lines = plan(CHAIN, &["--memory", "all", "--device-memory", "249"]);
    assert_eq!(lines[0], json!({"event": "plan", "policy": "none", "feasible": false, "needed_bytes": 250}));
    assert_eq!(lines.len(), 4);
}

#[test]
fn people_get_a_table_and_steps() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tasks.json");
    std::fs::write(&file, CHAIN).unwrap();
    let output =
        Command::cargo_bin("lapidary").unwrap().args(["plan", "--explain", "--tasks"]).arg(&file).output().unwrap();
    let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(out.contains("lower bound") && out.contains("optimal") && out.contains("load h"), "{out}");
    assert!(error.contains("360 bytes"), "{error}");
}

#[test]
fn files_that_hold_no_task_graph_are_refused() {
    let graph = |tensors: &str, ops: &str| format!(r#"{{"tensors":[{tensors}],"ops":[{ops}]}}"#);
    let (x, y) = (r#"{"name":"x","bytes":1}"#, r#"{"name":"y","bytes":1}"#);
    let f = r#"{"name":"f","inputs":["x"],"outputs":["y"]}"#;
    let both = format!("{x},{y}");
    let with = |ops: &str| graph(&both, ops);
    let bytes = |bytes: &str| graph(&format!(r#"{{"name":"x","bytes":{bytes}}},{y}"#), f);
    let next = |next: &str| with(&format!(r#"{{"name":"f","inputs":["x"],"outputs":["y"],"next":{next}}}"#));
    let cases: Vec<(String, &[&str])> = vec![
        ("not json".into(), &["line 1"]),
        (String::new(), &["EOF"]),
        (with(f)[..40].into(), &["EOF"]),
        (with(f) + "}", &["trailing"]),
        (r#"{"tensors":[]}"#.into(), &["ops"]),
        (graph(&format!(r#"{{"name":"x","bytes":1,"size":2}},{y}"#), f), &["size"]),
        (with(r#"{"name":"f","inputs":["x"],"outputs":["y"],"cost":1}"#), &["cost"]),
        (graph(&format!(r#"{{"name":"x","bytes":1,"kind":"weight"}},{y}"#), f), &["weight", "constant"]),
        (bytes("-1"), &["-1"]),
        (bytes("1.5"), &["1.5"]),
        (bytes("18446744073709551616"), &["u64"]),
        (bytes("18446744073709551615"), &["2^64"]),
        (with(""), &["no ops"]),
        (graph(&format!("{both},{x}"), f), &["`x`", "own name"]),
        (with(&format!("{f},{f}")), &["`f`", "own name"]),
        (with(r#"{"name":"f","inputs":["z"],"outputs":["y"]}"#), &["`f`", "`z`"]),
        (with(r#"{"name":"f","inputs":["x"],"outputs":["x"]}"#), &["`x`", "input and as output"]),
        (
            with(r#"{"name":"f","inputs":[],"outputs":["y"]},{"name":"g","inputs":[],"outputs":["y"]}"#),
            &["`y`", "`f`", "`g`"],
        ),
        (
            with(r#"{"name":"f","inputs":["x"],"outputs":["y"]},{"name":"g","inputs":["y"],"outputs":["x"]}"#),
            &["wait", "`f`", "`g`"],
        ),
        (graph(&format!(r#"{x},{{"name":"y","bytes":1,"kind":"constant"}}"#), f), &["`y`", "constant", "`f`"]),
        (graph(&format!(r#"{{"name":"x","bytes":1,"kind":"local"}},{y}"#), f), &["`x`", "local"]),
        (graph(&format!(r#"{{"name":"x","bytes":1,"publish":true}},{y}"#), f), &["`x`", "publish"]),
        (next(r#"{"x":"y"}"#), &["does not make `x`"]),
        (next(r#"{"y":"y"}"#), &["makes `y`"]),
        (next(r#"{"y":"z"}"#), &["`z`"]),
        (next(r#"{"y":"x","y":"x"}"#), &["already"]),
        (
            graph(
                &format!(r#"{{"name":"x","bytes":2}},{y}"#),
                r#"{"name":"f","inputs":["x"],"outputs":["y"],"next":{"y":"x"}}"#,
            ),
            &["2", "1"],
        ),
        (
            graph(
                &format!(r#"{{"name":"x","bytes":1,"kind":"fresh"}},{y}"#),
                r#"{"name":"f","inputs":["x"],"outputs":["y"],"next":{"y":"x"}}"#,
            ),
            &["fresh"],
        ),
    ];
    for (tasks, parts) in cases {
        let error = refusal(&tasks);
        assert!(parts.iter().all(|part| error.contains(part)), "{tasks}\n{error}");
    }
}
