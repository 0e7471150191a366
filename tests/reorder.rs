//! The option `reorder`: runs on vertices in another order, whose results are in the dataset's own.

use std::fs;

use lapidary::dataset::{Arrays, Dataset};
use lapidary::partition;
use lapidary::sample::NeighborSampler;
use lapidary::{Batches, Devices, Model, Ranks, Reorder, RunOptions, Trainer, VertexOrder};
use ndarray::Array2;
use ndarray_npy::read_npy;
use serde_json::Value;

use crate::common::command::{run, succeeds};
use crate::common::largest_difference;
use crate::common::parted::with_an_empty_part;
use crate::common::ranks::on_ranks;

/// The orders of this build.
fn orders() -> Vec<VertexOrder> {
    VertexOrder::ALL.into_iter().filter(|&order| order != VertexOrder::Metis || cfg!(feature = "metis")).collect()
}

/// Returns the losses of five epochs without dropout.
fn losses(data: &Dataset, model: &Model, options: RunOptions, batches: Option<Batches>) -> Vec<f64> {
    let mut builder = Trainer::builder(model, data).options(options).seed(4);
    if let Some(batches) = batches {
        builder = builder.batches(batches);
    }
    let mut trainer = builder.build().unwrap();
    (0..5).map(|_| trainer.step().unwrap().loss).collect()
}

#[track_caller]
fn assert_alike(what: &str, found: &[f64], want: &[f64]) {
    assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "{what}: {found:?}, not {want:?}");
}

#[test]
fn losses_are_those_of_the_own_order() {
    let data = Dataset::builtin("planted").unwrap();
    let widths = [data.feature_width(), 8, data.class_count()];
    let cpu = || RunOptions::new().devices(Devices::cpu());
    // Every seed in one batch, and all of their in-edges: sums of the whole graph.
    let whole = || Some(Batches::new(data.graph().vertex_count(), NeighborSampler::new("-1,-1".parse().unwrap())));
    for model in [Model::gcn(&widths), Model::sage(&widths), Model::gat(&widths)] {
        let want = [losses(&data, &model, cpu(), None), losses(&data, &model, cpu(), whole())];
        for order in orders() {
            let moved = data.clone().reordered(order).unwrap();
            assert_alike(order.name(), &losses(&moved, &model, cpu(), None), &want[0]);
            assert_alike(order.name(), &losses(&moved, &model, cpu(), whole()), &want[1]);
        }
        let moved = data.clone().reordered(VertexOrder::Rcm).unwrap();
        for devices in [Devices::sim(3), Devices::parse("cpu:2").unwrap()] {
            assert_alike("devices", &losses(&moved, &model, cpu().devices(devices), None), &want[0]);
        }
        let ranked = |ranks: Ranks| {
            let moved = data.clone().reordered(VertexOrder::Rcm).unwrap();
            losses(&moved, &model, cpu().ranks(ranks), None)
        };
        on_ranks(2, ranked).iter().for_each(|found| assert_alike("ranks", found, &want[0]));
    }
}

#[test]
fn predictions_come_back_in_the_order_that_they_had_without() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (own, relabelled) = (path("own"), path("relabelled"));
    let data = Dataset::builtin("karate").unwrap();
    data.write(&own).unwrap();
    let assignment = partition::Assignment::random(34, with_an_empty_part().count(), 7);
    partition::write(&data, &assignment, None, &relabelled).unwrap();
    let words: Vec<&str> = orders().into_iter().map(VertexOrder::name).chain(["auto"]).collect();
    for trained in ["none", "rcm"] {
        let checkpoint = path(&format!("run-{trained}"));
        let line = succeeds(&[
            "train",
            "--data",
            &own,
            "--epochs",
            "5",
            "--hidden",
            "4",
            "--checkpoint",
            &checkpoint,
            "--reorder",
            trained,
            "--json",
        ]);
        let summary: Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
        assert_eq!(summary["reorder"], trained);
        let logits = |data: &str, reorder: &str| -> Array2<f32> {
            let out = path("out.npy");
            let line = succeeds(&[
                "infer",
                "--checkpoint",
                &checkpoint,
                "--data",
                data,
                "--out",
                &out,
                "--reorder",
                reorder,
                "--json",
            ]);
            let summary: Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
            assert_eq!(summary["reorder"], if reorder == "auto" { "none" } else { reorder });
            assert_eq!(line.lines().count(), if reorder == "none" { 1 } else { 2 }, "{line}");
            read_npy(out).unwrap()
        };
        let want = logits(&own, "none");
        assert!(want.rows().into_iter().any(|row| row != want.row(0)), "vertices differ");
        for data in [&own, &relabelled] {
            for reorder in &words {
                let found = logits(data, reorder);
                assert!(
                    largest_difference(found.as_slice().unwrap(), want.as_slice().unwrap()) < 1e-4,
                    "{data}, {reorder}: {found}, not {want}"
                );
            }
        }
    }
}

/// Trains on the planted graph with a checkpoint folder, and returns the exit code, the JSON lines and the messages.
fn trained(checkpoint: &str, epochs: &str, more: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let train = ["train", "--epochs", epochs, "--hidden", "4", "--checkpoint", checkpoint, "--json"];
    let (code, stdout, stderr) = run(&[&train[..], more].concat());
    (code, stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), stderr)
}

#[test]
fn a_run_is_resumed_in_its_own_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (checkpoint, whole) = (path("run"), path("whole"));
    let losses = |lines: &[Value]| -> Vec<Value> {
        lines.iter().filter(|line| line["event"] == "epoch").map(|line| line["loss"].clone()).collect()
    };
    let (_, want, _) = trained(&whole, "6", &["--reorder", "rcm"]);
    let (code, lines, stderr) = trained(&checkpoint, "2", &["--reorder", "rcm"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!((&lines[0]["event"], &lines[0]["reorder"]), (&"reorder".into(), &"rcm".into()));
    for (other, epochs) in [("none", "4"), ("degree", "4")] {
        let (code, _, stderr) = trained(&checkpoint, epochs, &["--reorder", other, "--resume"]);
        assert_eq!(code, Some(1), "{stderr}");
        let wanted = format!("another vertex order (--reorder) than this run: rcm, not {other}");
        assert!(stderr.contains(&wanted), "{stderr}");
    }
    // What `auto` would choose now does not matter.
    for (reorder, epochs) in [("rcm", "4"), ("auto", "6")] {
        let (code, lines, stderr) = trained(&checkpoint, epochs, &["--reorder", reorder, "--resume"]);
        assert_eq!(code, Some(0), "{stderr}");
        let first = epochs.parse::<usize>().unwrap() - 2;
        assert_eq!(losses(&lines), losses(&want)[first..first + 2]);
    }
    let record = fs::read_to_string(format!("{checkpoint}/epoch-00000006/run.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&record).unwrap()["reorder"], "rcm");
    // Without the option, the record is the one of earlier versions.
    trained(&path("plain"), "1", &[]);
    assert!(!fs::read_to_string(path("plain/epoch-00000001/run.json")).unwrap().contains("reorder"));
}

#[test]
fn what_does_not_go_with_an_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ranges = folder.path().join("parts.json");
    fs::write(&ranges, "[[0, 10], [10, 34]]").unwrap();
    let ranges = ranges.to_str().unwrap();
    let batches = ["--batch", "8", "--fanout", "2,2"];
    let karate = ["--data", "builtin:karate"];
    let from_file = [&karate[..], &["--devices", "sim:2", "--partition", ranges, "--reorder", "rcm"]].concat();
    for (args, words) in [
        (vec!["train", "--reorder", "rmc"], "--reorder cannot be `rmc`: write none, degree, rcm, metis or auto"),
        (vec!["plan", "--data", "builtin:karate", "--reorder", "RCM"], "write none, degree, rcm, metis or auto"),
        ([&["train"], &from_file[..]].concat(), "--partition has ranges of the dataset's own order"),
        (
            vec!["plan", "--data", "builtin:karate", "--devices", "2", "--partition", ranges, "--reorder", "auto"],
            "--partition has ranges",
        ),
        ([&["train", "--embedding", "4", "--reorder", "auto"], &batches[..]].concat(), "--embedding learns a row"),
        ([&["train", "--feature-cache", "10%", "--reorder", "rcm"], &batches[..]].concat(), "--feature-cache reads"),
        (vec!["plan", "--shape", "10,20,3,2", "--reorder", "rcm"], "--data is needed"),
        ([&["plan", "--compare", "edges", "--reorder", "rcm"], &karate[..]].concat(), "--compare orders"),
    ] {
        let (code, stdout, stderr) = run(&args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    // A learned row belongs to a vertex of the order in which it was learned.
    let checkpoint = folder.path().join("run");
    let checkpoint = checkpoint.to_str().unwrap();
    succeeds(
        &[&["train", "--embedding", "4", "--epochs", "2", "--checkpoint", checkpoint], &karate[..], &batches].concat(),
    );
    let infer = [&["infer", "--checkpoint", checkpoint, "--reorder", "rcm"], &karate[..]].concat();
    let (code, _, stderr) = run(&infer);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("its edges, or the order of its vertices, are others"), "{stderr}");
}

#[test]
fn plans_and_batches_say_their_order() {
    let plan = ["plan", "--data", "builtin:karate", "--json", "--reorder"];
    for (word, want) in [("rcm", "rcm"), ("auto", "none")] {
        let stdout = succeeds(&[&plan[..], &[word]].concat());
        let first: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
        assert_eq!((&first["event"], &first["reorder"]), (&"reorder".into(), &want.into()), "{stdout}");
        assert!(stdout.lines().count() > 1);
    }
    let train = ["train", "--data", "builtin:karate", "--epochs", "2", "--batch", "8", "--fanout", "2,2", "--reorder"];
    let (code, stdout, stderr) = run(&[&train[..], &["auto"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("none: mini-batches gather what is drawn"), "{stderr}");
    assert!(!stdout.contains("vertex order"), "{stdout}");
    let (code, stdout, stderr) = run(&[&train[..], &["degree"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("degree, in ") && stdout.contains("vertex order"), "{stderr} {stdout}");
}

#[test]
fn a_dataset_whose_file_changes_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    Dataset::builtin("karate").unwrap().write(&set).unwrap();
    let data = Dataset::open(&set).unwrap();
    assert!(data.clone().reordered(VertexOrder::Rcm).unwrap().check_files().is_ok());
    let indices = set.join("indices.npy");
    let bytes = fs::read(&indices).unwrap();
    fs::remove_file(&indices).unwrap();
    fs::write(&indices, bytes).unwrap();
    assert!(data.reordered(VertexOrder::Rcm).is_err());
}

#[test]
fn an_error_names_the_vertex_of_the_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    let edges = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 1), (1, 3)];
    let x = Array2::from_shape_fn((4, 3), |(v, c)| (3 * v + c) as f32);
    // The edge into vertex 2 has a negative weight.
    let weights = edges.iter().map(|&(_, v)| if v == 2 { -5.0 } else { 1.0 }).collect::<Vec<f32>>();
    let arrays = Arrays::edges(4, &edges).edge_weights(weights).features(x).labels(&[0, 1, 0, 1]);
    Dataset::from_arrays(arrays.train(&[0, 1]).val(&[2]).test(&[3])).unwrap().write(&set).unwrap();
    for order in ["none", "degree", "rcm"] {
        let (code, _, stderr) = run(&["train", "--data", set.to_str().unwrap(), "--reorder", order]);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("in-edges of vertex 2 add up to -4"), "{stderr}");
    }
}

#[test]
fn all_words_are_orders_of_the_library() {
    for order in VertexOrder::ALL {
        assert_eq!(order.name().parse::<Reorder>().unwrap(), Reorder::To(order));
    }
}
