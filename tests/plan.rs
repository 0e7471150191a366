//! The dry run: `lapidary plan` on data and shapes, compared with real runs.

use crate::common::curve::peaks_within_plan;
use crate::common::is_long;
use assert_cmd::Command;
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::{ByteSize, Dataset, Devices, MemoryPolicy, Model, Partition, Recompute, Strips, Trainer};
use serde_json::Value;

/// The setting of ROC's Figure 10: Reddit's shape, two layers, dropout, no passes, one epoch from an empty device.
const FIGURE_10: [&str; 14] = [
    "--shape",
    "232965,114615892,602,41",
    "--model",
    "gcn",
    "--hidden",
    "256",
    "--dropout",
    "0.5",
    "--passes",
    "none",
    "--epoch",
    "cold",
    "--devices",
    "1",
];

fn lines(args: &[&str]) -> Vec<Value> {
    let output = Command::cargo_bin("lapidary").unwrap().arg("plan").args(args).arg("--json").output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fits = lines.iter().any(|line| line["feasible"] == true);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(if fits { 0 } else { 3 }), "{said}");
    lines
}

fn plans(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["event"] == "plan").collect()
}

#[test]
fn figure_10_of_roc() {
    let (mut none, mut lru) = (0.0f64, 0.0f64);
    for capacity in ["900MiB", "1200MiB", "1660MiB", "2GiB", "16GiB"] {
        let mut args = FIGURE_10.to_vec();
        args.extend(["--profile", "p100", "--memory", "all", "--device-memory", capacity]);
        let lines = lines(&args);
        let plans = plans(&lines);
        assert_eq!(
            plans.iter().map(|p| p["policy"].as_str().unwrap()).collect::<Vec<_>>(),
            ["none", "lru", "roc", "optimal"]
        );
        let to_device: Vec<f64> = plans.iter().map(|p| p["bytes_to_device"].as_f64().unwrap()).collect();
        let total: Vec<u64> = plans
            .iter()
            .map(|p| p["bytes_to_device"].as_u64().unwrap() + p["bytes_to_host"].as_u64().unwrap())
            .collect();
        assert!(total[3] <= total[..3].iter().copied().min().unwrap(), "{capacity}: {total:?}");
        none = none.max(to_device[0] / to_device[2]);
        lru = lru.max(to_device[1] / to_device[2]);
    }
    assert!(none >= 5.0 && lru >= 1.48, "none / roc is {none}, lru / roc is {lru}");
}

#[test]
fn a_steady_epoch_moves_nothing_where_there_is_room_and_less_with_every_step_of_it() {
    for model in ["gcn", "sage", "gat"] {
        let lines =
            lines(&["--shape", "100000,2000000,128,16", "--model", model, "--hidden", "64", "--profile", "a100"]);
        assert_eq!(plans(&lines)[0]["bytes_to_device"], 0);
        let curve: Vec<&Value> = lines.iter().filter(|line| line["event"] == "whatif").collect();
        assert!(curve.len() > 5, "{model}: {} points", curve.len());
        let moved = |p: &Value| p["bytes_to_device"].as_u64().unwrap() + p["bytes_to_host"].as_u64().unwrap();
        assert!(curve.windows(2).all(|pair| moved(pair[1]) <= moved(pair[0])), "{model}");
        assert!(moved(curve[0]) > 0 && moved(curve[curve.len() - 1]) == 0, "{model}");
    }
}

#[test]
fn graphs_of_any_size_are_planned_without_data() {
    let papers = ["--shape", "111059956,1615685872,128,172", "--devices", "8", "--device-memory", "140GB"];
    let lines = lines(&[&papers[..], &["--layers", "3", "--hidden", "64", "--profile", "h200"]].concat());
    let plan = plans(&lines)[0].clone();
    assert_eq!(plan["feasible"], true, "{plan}");
    assert_eq!(plan["devices"].as_array().unwrap().len(), 8);
    assert!(plan["host_bytes"].as_u64().unwrap() > 60_000_000_000, "features alone are 57 GB");
}

#[test]
fn what_is_planned_is_what_runs() {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 32, data.class_count()]).dropout(0.5);
    let partition = Partition::parse("edges").unwrap();
    for (devices, memory) in [(1, None), (3, None), (1, Some(1_800_000)), (2, Some(1_300_000))] {
        let mut dry_run = DryRun::new(&model, Subject::Data(&data))
            .devices(Devices::sim(devices))
            .partition(partition.clone())
            .profile("a100");
        let mut builder = Trainer::builder(&model, &data).devices(Devices::sim(devices));
        builder = builder.partition(partition.clone()).memory(MemoryPolicy::Optimal);
        if let Some(memory) = memory.map(ByteSize::b) {
            (dry_run, builder) = (dry_run.device_memory(memory), builder.device_memory(memory));
        }
        let forecast = dry_run.run().unwrap();
        let plan = forecast.policies[0].outcome.as_ref().unwrap();
        let mut trainer = builder.build().unwrap();
        for _ in 0..3 {
            let epoch = trainer.step().unwrap();
            assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], plan.bytes(), "{devices} devices, {memory:?}");
        }
        let peaks: Vec<u64> = plan.devices.iter().map(|device| device.peak_bytes).collect();
        assert_eq!(peaks_within_plan(&trainer), peaks, "{devices} devices, {memory:?}");
    }
}

#[test]
fn too_little_memory_is_an_answer_and_what_it_names_is_enough() {
    let shape = ["--shape", "1000,20000,50,7", "--profile", "a100", "--device-memory"];
    let lines_of = |memory: &str| lines(&[&shape[..], &[memory]].concat());
    let small = lines_of("10kB");
    let plan = plans(&small)[0];
    assert_eq!(plan["feasible"], false);
    let needed = plan["needed_bytes"].as_u64().unwrap();
    assert_eq!(plans(&lines_of(&needed.to_string()))[0]["feasible"], true);
    assert_eq!(plans(&lines_of(&(needed - 1).to_string()))[0]["feasible"], false);
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    for (shape, word) in [
        ("10,20,30", "four whole numbers"),
        ("10,20,30,x", "four whole numbers"),
        ("10,-20,30,4", "four whole numbers"),
        ("0,20,30,4", "vertices"),
        ("5000000000,20,30,4", "vertices"),
        ("10,18446744073709551615,30,4", "edges"),
        ("10,20,0,4", "features"),
        ("10,20,30,0", "classes"),
    ] {
        let output = Command::cargo_bin("lapidary").unwrap().args(["plan", "--shape", shape]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{shape}: {said}");
        assert!(said.starts_with("error:") && said.lines().count() == 1 && said.contains(word), "{shape}: {said}");
    }
}

#[test]
fn a_gcn_of_l_layers_holds_l_plus_3_buffers() {
    let (n, edges, d) = (1_000_000, 10_000_000, 128);
    for dropout in [0.0, 0.5] {
        for layers in 2..=8 {
            let shape = Shape { vertices: n, edges, features: d, classes: d, directed: false };
            let model = Model::gcn(&vec![d; layers + 1]).dropout(dropout);
            let dry_run = DryRun::new(&model, Subject::Shape(shape)).profile("h200").evaluates(false);
            let forecast = dry_run.device_memory(ByteSize::gib(100)).run().unwrap();
            let plan = forecast.policies[0].outcome.as_ref().unwrap();
            assert_eq!(plan.bytes(), [0, 0], "all of it stays");
            let buffer = 4 * n * d as u64;
            let graph = 8 * (n + 1) + 4 * (edges + n) + 4 * n; // offsets, sources, scales
            let labels = 2 * 4 * n;
            let parameters = 3 * 4 * (layers * (d * d + d)) as u64; // with Adam's moments
            let beside = graph + labels + parameters + buffer; // A X
            let buffers = (plan.devices[0].peak_bytes - beside) as f64 / buffer as f64;
            assert!(buffers <= (layers + 3) as f64, "{layers} layers, dropout {dropout}: {buffers} buffers");
        }
    }
}

/// More memory means neither more tiles nor more copies nor more time; and the layout of a point of the curve is that of a
/// plan for this memory.
const EVEN: Shape = Shape { vertices: 300_000, edges: 6_000_000, features: 64, classes: 16, directed: false };
const SPARSE: Shape = Shape { vertices: 1_000_000, edges: 3_000_000, features: 100, classes: 40, directed: true };

#[test]
#[ignore = "full: more than a minute of planning"]
fn more_memory_is_never_worse() {
    more_memory_is_no_worse(&[(Model::gcn(&[64, 32, 16]), EVEN, 1)]);
}

#[test]
#[ignore = "full: minutes of planning"]
fn more_memory_is_never_worse_for_wide_models() {
    let mut cases = vec![(Model::gcn(&[64, 128, 128, 16]), EVEN, 3)];
    if is_long() {
        cases.push((Model::gin(&[100, 64, 40]), SPARSE, 1));
        cases.extend([(Model::gcn(&[64, 128, 128, 16]), EVEN, 1), (Model::gat(&[64, 64, 16]), EVEN, 1)]);
    }
    more_memory_is_no_worse(&cases);
}

fn more_memory_is_no_worse(cases: &[(Model, Shape, usize)]) {
    for (model, shape, devices) in cases {
        let any = DryRun::new(model, Subject::Shape(*shape)).profile("a100").devices(Devices::sim(*devices));
        let any = any.device_memory(ByteSize::mib(256));
        let dry_run = any.clone().recompute(Recompute::Never).strips(Strips::Exactly(1));
        let forecast = dry_run.clone().curve(true).run().unwrap();
        let about = format!("{model:?} on {devices} devices: {:?}", forecast.curve);
        assert!(forecast.curve.len() > 3 && forecast.curve[0].tiles > 8, "{about}");
        for pair in forecast.curve.windows(2) {
            let [less, more] = pair else { unreachable!() };
            assert!(less.device_memory < more.device_memory, "{about}");
            assert!(less.tiles >= more.tiles && less.bytes() >= more.bytes(), "{about}");
            assert!(less.epoch_seconds >= more.epoch_seconds, "{about}");
        }
        for point in forecast.curve.iter().step_by(5) {
            let planned = dry_run.clone().device_memory(ByteSize::b(point.device_memory)).run().unwrap();
            let plan = planned.policies[0].outcome.as_ref().unwrap();
            // A run plans with more effort than the curve.
            assert!(
                plan.tiles <= point.tiles && plan.bytes().iter().sum::<u64>() <= point.bytes(),
                "{point:?} of {about}"
            );
            // What may be made again, or cut into strips, copies no more.
            let planned = any.clone().device_memory(ByteSize::b(point.device_memory)).run().unwrap();
            let plan = planned.policies[0].outcome.as_ref().unwrap();
            assert!(plan.bytes().iter().sum::<u64>() <= point.bytes(), "{point:?} of {about}");
        }
        let curve = any.curve(true).run().unwrap().curve;
        for pair in curve.windows(2) {
            assert!(pair[0].bytes() >= pair[1].bytes() && pair[0].epoch_seconds >= pair[1].epoch_seconds, "{curve:?}");
        }
    }
}
