//! Parts of equal predicted time: `--by learned` and `--weights learned`.

use std::fs;
use std::process::{Command, Output};

use lapidary::dataset::generate::{RmatOptions, rmat};
use lapidary::dataset::{Arrays, Dataset};
use lapidary::forecast::{DryRun, Shape, Subject};
use lapidary::{Devices, Model};
use serde_json::Value;

/// Runs the command, which must succeed, and returns its JSON lines.
fn lines(args: &[&str]) -> Vec<Value> {
    let args = [args, &["--json", "--profile", "h200"]].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_lapidary")).args(&args).output().unwrap();
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A directed graph with a few vertices of many in-edges, and a model for it.
fn skewed() -> (Dataset, Model) {
    let options =
        RmatOptions { vertices: 1 << 10, directed: true, feature_width: 8, classes: 3, ..RmatOptions::default() };
    let data = rmat(&options).unwrap();
    let model = Model::gcn(&[data.feature_width(), 16, data.class_count()]);
    (data, model)
}

#[test]
fn the_time_of_a_vertex_follows_its_edges() {
    let (data, model) = skewed();
    let graph = data.graph();
    let dry_run = DryRun::new(&model, Subject::Data(&data)).profile("h200");
    let seconds = dry_run.vertex_seconds().unwrap();
    assert_eq!(seconds.len(), graph.vertex_count());
    assert!(seconds.iter().all(|&s| s.is_finite() && s > 0.0));
    let degree = |v: &usize| graph.in_degree(*v);
    let (most, least) = ((0..1 << 10).max_by_key(degree).unwrap(), (0..1 << 10).min_by_key(degree).unwrap());
    assert!(seconds[most] > 2.0 * seconds[least], "{} and {}", seconds[most], seconds[least]);
    let wide = Model::gcn(&[data.feature_width(), 256, data.class_count()]);
    let wider = DryRun::new(&wide, Subject::Data(&data)).profile("h200").vertex_seconds().unwrap();
    assert!(wider.iter().zip(&seconds).all(|(wide, narrow)| wide > narrow));

    let shape = Shape { vertices: 9, edges: 9, features: 9, classes: 2, directed: false };
    let error = DryRun::new(&model, Subject::Shape(shape)).profile("h200").vertex_seconds().unwrap_err().to_string();
    assert!(error.contains("so name a dataset"), "{error}");
}

#[test]
fn the_ranges_are_those_of_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let [set, dst] = ["set", "dst"].map(|name| folder.path().join(name));
    let (data, model) = skewed();
    data.write(&set).unwrap();
    let [set, to] = [&set, &dst].map(|path| path.to_str().unwrap());
    let partitioned = lines(&["data", "partition", set, to, "--parts", "5", "--by", "learned", "--hidden", "16"]);
    let ranges: Vec<[u64; 2]> = serde_json::from_slice(&fs::read(dst.join("parts.json")).unwrap()).unwrap();
    let dry_run = DryRun::new(&model, Subject::Data(&data)).devices(Devices::sim(5)).profile("h200");
    let planned = dry_run.run().unwrap();
    let want: Vec<[u64; 2]> = planned.parts.iter().map(|part| [part.vertices.start, part.vertices.end]).collect();
    assert_eq!(ranges, want);
    let parts = dry_run.parts().unwrap();
    assert_eq!(parts.iter().map(|part| [part.start as u64, part.end as u64]).collect::<Vec<_>>(), want);
    // And of a comparison.
    let compared = lines(&["plan", "--data", set, "--ranks", "5", "--compare", "learned,edges", "--hidden", "16"]);
    assert_eq!(compared[0]["halo_rows"], partitioned[0]["halo_rows"]);
}

#[cfg(feature = "metis")]
#[test]
fn learned_weights_balance_the_predicted_time() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    skewed().0.write(&set).unwrap();
    let set = set.to_str().unwrap();
    let imbalance = |weights: &str, reported: &str| {
        let dst = folder.path().join(format!("{weights}-{reported}"));
        let dst = dst.to_str().unwrap();
        let line = &lines(&["data", "partition", set, dst, "--parts", "4", "--by", "metis", "--weights", weights])[0];
        assert_eq!(line["weights"], weights);
        line["imbalance"].as_f64().unwrap()
    };
    assert!(imbalance("learned", "learned") < 1.06);
    // A comparison takes the weights too, and reports the balance of the predicted time.
    let compared = |weights| {
        let ways = ["--ranks", "4", "--compare", "metis", "--weights", weights];
        lines(&[&["plan", "--data", set], &ways[..]].concat())[0]["halo_rows"].as_u64().unwrap()
    };
    assert_ne!(compared("learned"), compared("rows"));
}

#[test]
fn a_graph_alone_has_learned_ranges_too() {
    let folder = tempfile::tempdir().unwrap();
    let [set, dst] = ["set", "dst"].map(|name| folder.path().join(name));
    Dataset::from_arrays(Arrays::new(skewed().0.graph().clone())).unwrap().write(&set).unwrap();
    let [set, to] = [&set, &dst].map(|path| path.to_str().unwrap());
    let by = ["--parts", "3", "--by", "learned", "--weights", "learned"];
    let line = &lines(&[&["data", "partition", set, to], &by[..]].concat())[0];
    assert!(line["imbalance"].as_f64().unwrap() < 1.2, "{line}");
    assert!(!dst.join("features.npy").exists());
}
