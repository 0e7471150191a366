//! Datasets of several graphs with many labels per vertex, and deep residual networks.

use crate::common::{numbers, shared};
use assert_cmd::Command;
use lapidary::model::LabelKind;
use lapidary::{Adam, Arrays, Dataset, Graph, Model, Predictor, Trainer};
use ndarray::Array2;

const FEATURES: usize = 50;
const CLASSES: usize = 121;

/// Returns random features, and labels that follow from the mean of the features around a vertex. A layer can learn
/// them, but they do not follow from the vertex's own features.
fn with_planted_labels(name: &str, graph: Graph, graph_ids: &[i64], splits: [&[i64]; 3]) -> Dataset {
    let n = graph.vertex_count();
    let x = Array2::from_shape_vec((n, FEATURES), numbers(n * FEATURES, 7)).unwrap();
    let mut around = x.clone();
    for v in 0..n {
        for &u in graph.sources(v) {
            let row = x.row(u as usize).to_owned();
            around.row_mut(v).scaled_add(3.0 / graph.in_degree(v) as f32, &row);
        }
    }
    let directions = Array2::from_shape_vec((FEATURES, CLASSES), numbers(FEATURES * CLASSES, 8)).unwrap();
    let scores = around.dot(&directions);
    let labels = scores.map(|&s| u8::from(s > 1.5));
    let arrays = Arrays::new(graph).name(name).features(x).multi_labels(labels).graph_ids(graph_ids);
    Dataset::from_arrays(arrays.train(splits[0]).val(splits[1]).test(splits[2])).unwrap()
}

/// Returns the score of predicting every label of every vertex, the best without looking at the features.
fn prior_f1(data: &Dataset) -> f64 {
    let Some(lapidary::dataset::Labels::Multi { data: cells, .. }) = data.labels() else { panic!("multi-label") };
    let share = cells.iter().map(|&c| f64::from(c)).sum::<f64>() / cells.len() as f64;
    2.0 * share / (1.0 + share)
}

fn learns(data: &Dataset, epochs: usize) {
    let model = Model::sage(&[FEATURES, 128, CLASSES]);
    let mut trainer = Trainer::builder(&model, data).optimizer(Adam::new(0.01)).eval_every(10).build().unwrap();
    assert_eq!(trainer.label_kind(), LabelKind::Multi);
    for _ in 0..epochs {
        trainer.step().unwrap();
    }
    let (f1, prior) = (trainer.best().unwrap().test_accuracy.unwrap(), prior_f1(data));
    assert!(f1 > prior + 0.2, "a micro-F1 of {f1}, where knowing nothing gives {prior}");
}

/// Returns 24 small graphs: 20 for training, 2 for validation, 2 for testing.
fn small_set() -> Dataset {
    let (graphs, size) = (24u32, 40u32);
    let mut edges = Vec::new();
    for v in 0..graphs * size {
        let (graph, place) = (v / size, v % size);
        for step in [1, 7] {
            let u = graph * size + (place * 3 + step) % size;
            edges.extend([(u, v), (v, u)]);
        }
    }
    let graph = Graph::from_edges((graphs * size) as usize, &edges).unwrap();
    let ids: Vec<i64> = (0..i64::from(graphs * size)).map(|v| v / i64::from(size)).collect();
    let range = |from: u32, to: u32| -> Vec<i64> { (i64::from(from * size)..i64::from(to * size)).collect() };
    with_planted_labels("small", graph, &ids, [&range(0, 20), &range(20, 22), &range(22, 24)])
}

#[test]
fn a_set_of_graphs_with_many_labels_is_learned() {
    learns(&small_set(), 150);
}

#[test]
#[ignore = "full: a large graph"]
fn the_topology_of_ppi_with_planted_labels_is_learned() {
    let Some(path) = shared("data/ppi-topology") else { return };
    let topology = Dataset::open(path).unwrap();
    let of = |split: u32| -> Vec<i64> {
        (0i64..).zip(topology.split().iter()).filter(|&(_, &s)| s == split).map(|(v, _)| v).collect()
    };
    let ids = topology.graph_ids().unwrap();
    let data = with_planted_labels("ppi", topology.graph().clone(), ids, [&of(1), &of(2), &of(3)]);
    learns(&data, 30);
}

#[test]
fn the_command_calls_the_score_of_many_labels_micro_f1() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run) = (folder.path().join("data"), folder.path().join("run"));
    small_set().write(&data).unwrap();
    let json = |command: &mut Command| -> Vec<serde_json::Value> {
        let done = command.arg("--json").assert().success();
        let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut train = Command::cargo_bin("lapidary").unwrap();
    train.args(["train", "--model", "sage", "--hidden", "64", "--dropout", "0", "--epochs", "30", "--data"]);
    let lines = json(train.arg(&data).arg("--checkpoint").arg(&run));
    assert!(lines[0]["val_micro_f1"].is_number());
    let summary = lines.last().unwrap();
    assert!(summary["best_val_micro_f1"].is_number() && summary["test_accuracy"].is_null());
    let mut infer = Command::cargo_bin("lapidary").unwrap();
    let lines = json(infer.args(["infer", "--data"]).arg(&data).arg("--checkpoint").arg(&run));
    assert_eq!(lines[0]["test_micro_f1"], summary["test_micro_f1"]);
}

#[test]
fn thirty_two_residual_layers_do_not_diverge() {
    let Some(path) = shared("data/cora") else { return };
    let data = Dataset::open(path).unwrap();
    let mut widths = vec![16; 33];
    (widths[0], widths[32]) = (data.feature_width(), data.class_count());
    let model = Model::resgcn(&widths).dropout(0.5).layer_norm(true);
    let mut trainer = Trainer::builder(&model, &data).optimizer(Adam::new(0.01)).build().unwrap();
    let losses: Vec<f64> = (0..60).map(|_| trainer.step().unwrap().loss).collect();
    assert!(losses[59] < 0.1 * losses[0], "{} to {}", losses[0], losses[59]);
    assert_eq!(trainer.peak_device_bytes(), trainer.planned_peak_device_bytes());
    assert!(trainer.best().unwrap().test_accuracy.unwrap() > 0.5);
    // Without a norm, sums over 32 layers start out large. Training still reduces the loss, which stays finite.
    let plain = Model::resgcn(&widths).dropout(0.5);
    let mut trainer = Trainer::builder(&plain, &data).optimizer(Adam::new(0.01)).eval_every(0).build().unwrap();
    let losses: Vec<f64> = (0..30).map(|_| trainer.step().unwrap().loss).collect();
    assert!(losses[29] < 0.01 * losses[0], "{} to {}", losses[0], losses[29]);
}

#[test]
fn weights_of_gin_with_another_eps_are_refused() {
    let data = Dataset::builtin("karate").unwrap();
    let model = Model::gin(&[34, 8, 2]);
    let trainer = Trainer::builder(&model, &data).build().unwrap();
    let mut weights = trainer.weights().unwrap();
    assert_eq!(weights.get("convs.0.eps").unwrap().data, [0.0]);
    Predictor::new(&model, weights.clone(), None).unwrap();
    weights.insert("convs.0.eps", lapidary::Weight { shape: vec![1], data: vec![0.5] });
    let error = Predictor::new(&model, weights, None).unwrap_err();
    assert!(error.to_string().contains("convs.0.eps"), "{error}");
}
