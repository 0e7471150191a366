//! Predictions for many graphs, and the datasets that join them.

use std::path::Path;

use lapidary::dataset::generate::{PlantedOptions, planted};
use lapidary::graph::Permutation;
use lapidary::model::ModelConfig;
use lapidary::{Accuracy, Arrays, Dataset, Devices, Graph, Model, Predictor, Trainer};
use ndarray::{Array2, ArrayBase, Data, Ix2, OwnedRepr};
use ndarray_npy::read_npy;
use serde_json::Value;

use crate::common::MODELS;
use crate::common::command::{run, succeeds};

/// A small graph, with weights of edges if asked for.
fn small(vertices: usize, weighted: bool) -> Dataset {
    let edges: Vec<(u32, u32)> = (1..vertices as u32).flat_map(|v| [(v, v / 2), (v / 2, v), (v, v)]).collect();
    let arrays = Arrays::edges(vertices, &edges).name(format!("tree of {vertices}"));
    let arrays = if weighted {
        arrays.edge_weights((0..edges.len()).map(|e| 1.0 + (e % 3) as f32).collect::<Vec<f32>>())
    } else {
        arrays
    };
    let ids: Vec<i64> = (0..vertices as i64).collect();
    let labels: Vec<i64> = ids.iter().map(|v| (v + 1) % 4 - 1).collect();
    let features = Array2::from_shape_fn((vertices, 5), |(v, c)| ((v * 7 + c * 3) % 11) as f32 / 11.0);
    Dataset::from_arrays(arrays.features(features).labels(&labels).classes(3).train(&ids[..1]).test(&ids[1..])).unwrap()
}

/// A graph with too few features.
fn narrow() -> Dataset {
    Dataset::from_arrays(Arrays::edges(2, &[(0, 1)]).features(Array2::ones((2, 4))).name("narrow")).unwrap()
}

fn predictor(name: &str, data: &Dataset) -> Predictor {
    let model = Model::from_config(ModelConfig::new(name, &[data.feature_width(), 8, data.class_count()])).unwrap();
    Trainer::builder(&model, data).seed(3).build().unwrap().predictor().unwrap().outputs(&["hidden"])
}

#[track_caller]
fn agree<S: Data<Elem = f32>>(found: &ArrayBase<S, Ix2>, want: &Array2<f32>) {
    let largest = found.iter().zip(want).fold(0f32, |largest, (a, b)| largest.max((a - b).abs()));
    assert!(found.dim() == want.dim() && largest < 1e-5, "{largest}");
}

#[test]
fn graphs_that_run_together_have_the_predictions_of_graphs_that_run_alone() {
    for name in MODELS {
        for weighted in [false, true] {
            let mut graphs: Vec<Dataset> = [9, 1, 40, 2, 300].into_iter().map(|n| small(n, weighted)).collect();
            graphs[2] = graphs[2].relabelled(&Permutation::random(40, 5));
            let predictor = predictor(name, &graphs[0]);
            let mut found = predictor.predictions(graphs.iter().cloned().map(Ok));
            for graph in &graphs {
                let (found, want) = (found.next().unwrap().unwrap(), predictor.run(graph).unwrap());
                agree(&found.logits, &want.logits);
                agree(&found.outputs["hidden"], &want.outputs["hidden"]);
                assert_eq!(found.accuracy, want.accuracy, "{name}");
                assert!(found.data.is_clone_of(graph));
            }
            assert!(found.next().is_none() && found.batches() == 1, "{name}");
        }
    }
}

#[test]
fn unlike_graphs_run_in_batches_of_their_own() {
    let labelled = small(9, false);
    let bare = Dataset::from_arrays(Arrays::edges(2, &[(0, 1)]).features(Array2::ones((2, 5)))).unwrap();
    let large =
        planted(&PlantedOptions { feature_width: 5, classes: 3, vertices: 40_000, ..PlantedOptions::default() })
            .unwrap();
    let predictor = predictor("sage", &labelled);
    let graphs = [labelled.clone(), bare, labelled.clone(), large.clone(), large, small(9, true), labelled];
    let mut found = predictor.predictions(graphs.iter().cloned().map(Ok));
    for graph in &graphs {
        let found = found.next().unwrap().unwrap();
        agree(&found.logits, &predictor.predict(graph).unwrap());
        assert_eq!(found.accuracy == Accuracy::default(), graph.labels().is_none());
    }
    // The first three; each of the two large ones; the one with weights; the last one.
    assert_eq!(found.batches(), 5);
}

#[test]
fn an_error_comes_after_the_predictions_before_it() {
    let good = small(9, false);
    let predictor = predictor("gcn", &good);
    // A large graph waits while a small one runs.
    let large =
        planted(&PlantedOptions { feature_width: 5, classes: 3, vertices: 40_000, ..PlantedOptions::default() });
    let missing = || Dataset::load("not there").map_err(Into::into);
    let mut found = predictor.predictions([Ok(good.clone()), Ok(large.unwrap()), missing(), Ok(good.clone())]);
    assert!(found.next().unwrap().is_ok() && found.next().unwrap().unwrap().logits.nrows() == 40_000);
    assert!(found.next().unwrap().is_err() && found.next().is_none());
    for (bad, words) in [(Ok(narrow()), "`narrow` has 4 features per vertex"), (missing(), "not there")] {
        let graphs = [Ok(good.clone()), Ok(good.clone()), bad, Ok(good.clone())];
        let mut found = predictor.predictions(graphs);
        assert!(found.next().unwrap().is_ok() && found.next().unwrap().is_ok());
        let error = found.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(words) && found.next().is_none(), "{error}");
    }
}

#[test]
fn a_graph_that_fails_in_a_batch_is_named_and_those_before_it_are_predicted() {
    let predictor = predictor("gcn", &small(9, true));
    let edges = [(0, 1), (1, 0)];
    let arrays = || Arrays::edges(2, &edges).features(Array2::ones((2, 5))).name("bad");
    let negative = arrays().edge_weights(vec![1.0, -3.0]);
    let many_classes = arrays().edge_weights(vec![1.0, 1.0]).labels(&[0, 3]).classes(4);
    for (bad, words) in [(negative, "in-edges of vertex 0 add up to -2"), (many_classes, "has 4 classes")] {
        let bad = Dataset::from_arrays(bad).unwrap();
        let graphs = [small(9, true), small(20, true), bad, small(5, true)];
        // In the only batch, and in one of several, which run side by side.
        for before in [0, 40] {
            let large = || small(9000, true);
            let all = (0..before).map(|_| large()).chain(graphs.iter().cloned());
            let mut found = predictor.predictions(all.map(Ok));
            for i in 0..before + 2 {
                assert!(found.next().unwrap().is_ok(), "graph {i}");
            }
            let error = found.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("`bad`") && error.contains(words), "{error}");
            assert!(found.next().is_none());
        }
    }
}

#[test]
fn joined_datasets_have_the_arrays_of_each() {
    let all = [small(9, true), small(5, true).relabelled(&Permutation::random(5, 1)), small(1, true)];
    let joined = Dataset::joined(&all).unwrap();
    let mut first = 0;
    for (id, data) in all.iter().enumerate() {
        for v in 0..data.graph().vertex_count() {
            let sources: Vec<u32> = data.graph().sources(v).iter().map(|u| first as u32 + u).collect();
            assert_eq!(joined.graph().sources(first + v), sources);
            let weights = |data: &Dataset, v: usize| data.edge_weights().unwrap()[data.graph().edges(v)].to_vec();
            assert_eq!(weights(&joined, first + v), weights(data, v));
            let row = |data: &Dataset, v: usize| data.features().unwrap().values()[5 * v..5 * v + 5].to_vec();
            assert_eq!(row(&joined, first + v), row(data, v));
            assert_eq!(joined.split()[first + v], data.split()[v]);
            assert_eq!(joined.graph_ids().unwrap()[first + v], id as i64);
            let original = data.permutation().map_or(v as u32, |order| order.old_of_new()[v]);
            assert_eq!(joined.permutation().unwrap().old_of_new()[first + v], first as u32 + original);
        }
        first += data.graph().vertex_count();
    }
    assert_eq!((first, joined.class_count(), joined.directed()), (15, 3, false));
    for (others, words) in [
        (small(9, false), "no edge weights"),
        (Dataset::from_arrays(Arrays::new(Graph::from_edges(1, &[]).unwrap())).unwrap(), "no features"),
    ] {
        let error = Dataset::joined(&[all[0].clone(), others]).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("tree of 9"), "{error}");
    }
    assert!(Dataset::joined(&[]).is_err());
}

#[test]
fn labels_are_compared_with_those_of_the_first_dataset_that_has_some() {
    let with = |labels: &[i64], names: Option<[&str; 2]>| {
        let arrays = Arrays::new(Graph::from_edges(2, &[(0, 1)]).unwrap()).labels(labels);
        Dataset::from_arrays(match names {
            Some(names) => arrays.class_names(names),
            None => arrays,
        })
        .unwrap()
    };
    let bare = || Dataset::from_arrays(Arrays::new(Graph::from_edges(2, &[(0, 1)]).unwrap())).unwrap();
    let several = Arrays::new(Graph::from_edges(2, &[]).unwrap()).multi_labels(ndarray::arr2(&[[1u8, 0], [0, 1]]));
    let several = Dataset::from_arrays(several).unwrap();
    let error = Dataset::joined(&[bare(), with(&[0, 1], None), several]).unwrap_err().to_string();
    assert!(error.contains("2 labels per vertex") && error.contains("one label per vertex"), "{error}");
    let named = with(&[0, 1], Some(["cat", "dog"]));
    let joined = Dataset::joined(&[bare(), named.clone()]).unwrap();
    assert_eq!(joined.class_names().unwrap(), ["cat", "dog"]);
    let joined = Dataset::joined(&[bare(), named, with(&[0, 1], Some(["dog", "cat"]))]).unwrap();
    assert_eq!(joined.class_names(), None);
}

#[test]
fn the_command_predicts_for_several_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let names: Vec<String> = (0..60).map(|i| path(&format!("graph{i}"))).collect();
    for (i, name) in names.iter().enumerate() {
        small(3 + i, false).write(name).unwrap();
    }
    let checkpoint = path("run");
    succeeds(&["train", "--data", &names[20], "--epochs", "2", "--hidden", "4", "--checkpoint", &checkpoint]);
    let data: Vec<&str> = names.iter().flat_map(|name| ["--data", name]).collect();
    let infer = [&["infer", "--checkpoint", &checkpoint][..], &data].concat();
    let out = path("logits");
    let lines = succeeds(&[&infer[..], &["--json", "--out", &out]].concat());
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 61);
    let summary = &lines[60];
    assert!(summary["event"] == "summary" && summary["datasets"] == 60 && summary["passes"] == 1, "{summary}");
    let alone = path("alone.npy");
    for i in [0, 31, 59] {
        let one = succeeds(&["infer", "--checkpoint", &checkpoint, "--data", &names[i], "--json", "--out", &alone]);
        let one: Value = serde_json::from_str(&one).unwrap();
        assert_eq!((&lines[i]["data"], &lines[i]["test_accuracy"]), (&names[i].clone().into(), &one["test_accuracy"]));
        agree::<OwnedRepr<f32>>(
            &read_npy(Path::new(&out).join(format!("graph{i}.npy"))).unwrap(),
            &read_npy(&alone).unwrap(),
        );
    }
    let shown = succeeds(&infer);
    for words in ["and 10 more", "datasets", "60", "in 1 pass"] {
        assert!(shown.contains(words), "{shown}");
    }
    // Two files of one name, and a dataset that is not there: what was predicted before it is written and shown.
    let same = format!("{}/", names[0]);
    let (code, _, errors) = run(&[&infer[..5], &["--data", &same, "--out", &out]].concat());
    assert!(code == Some(2) && errors.contains("graph0.npy"), "{code:?}, {errors}");
    let (lost, missing) = (path("lost"), path("missing"));
    let (code, shown, errors) = run(&[&infer[..5], &["--data", &missing, "--out", &lost]].concat());
    assert!(code != Some(0) && errors.contains("missing"), "{code:?}, {errors}");
    assert!(shown.contains(&names[0]) && !shown.contains("datasets"), "{shown}");
    assert!(Path::new(&lost).join("graph0.npy").exists());
}

/// A model that has more classes than the labels of the data, one per vertex or several.
#[test]
fn graphs_with_fewer_classes_than_the_model_run_as_alone() {
    for multi in [false, true] {
        let data = |classes: usize, vertices: usize| {
            let edges: Vec<(u32, u32)> = (1..vertices as u32).flat_map(|v| [(v, v / 2), (v / 2, v)]).collect();
            let ids: Vec<i64> = (0..vertices as i64).collect();
            let arrays = Arrays::edges(vertices, &edges).features(Array2::ones((vertices, 5))).train(&ids);
            let arrays = match multi {
                false => arrays.labels(&ids.iter().map(|v| v % classes as i64).collect::<Vec<_>>()),
                true => arrays.multi_labels(Array2::from_shape_fn((vertices, classes), |(v, c)| u8::from(v % 2 == c))),
            };
            Dataset::from_arrays(arrays).unwrap()
        };
        let predictor = predictor("gcn", &data(5, 9));
        let few = data(3, 9);
        let alone = predictor.run(&few);
        let together: Result<Vec<_>, _> = predictor.predictions([Ok(few.clone()), Ok(few)]).collect();
        match multi {
            false => {
                let want = alone.unwrap().accuracy;
                assert!(together.unwrap().iter().all(|graph| graph.accuracy == want));
            }
            true => {
                let refused = "has 3 classes, but the model makes 5";
                assert!(alone.unwrap_err().to_string().contains(refused));
                assert!(together.unwrap_err().to_string().contains(refused));
            }
        }
    }
}

/// Batches of about the same size: the matrices of the first ones give their memory to later ones.
#[test]
fn predictions_that_were_dropped_give_their_memory_to_later_ones() {
    let graph = |seed: u64| {
        let sizes =
            PlantedOptions { feature_width: 5, classes: 3, vertices: 20_000, seed, ..PlantedOptions::default() };
        planted(&PlantedOptions { mean_degree: 8.0, ..sizes }).unwrap()
    };
    let graphs = [graph(1), graph(2)];
    let cores = std::num::NonZeroUsize::new(2).unwrap();
    let predictor = predictor("sage", &graphs[0]).devices(Devices::cpu().threads(cores));
    let want: Vec<Array2<f32>> = graphs.iter().map(|graph| predictor.predict(graph).unwrap()).collect();
    let mut found = predictor.predictions((0..40).map(|i| Ok(graphs[i % 2].clone())));
    let (mut addresses, mut others) = (Vec::new(), Vec::new());
    // One prediction is kept for the whole time.
    let kept = found.next().unwrap().unwrap();
    for i in 1..40 {
        let prediction = found.next().unwrap().unwrap();
        agree(&prediction.logits, &want[i % 2]);
        addresses.push(prediction.logits.as_ptr().addr());
        drop(prediction);
        // If the memory of the prediction were free now, this would take it.
        others.push(Vec::<f32>::with_capacity(want[0].len()));
    }
    assert!(found.next().is_none() && found.batches() == 40);
    assert!(!addresses.contains(&kept.logits.as_ptr().addr()), "it is still read");
    agree(&kept.logits, &want[0]);
    addresses.sort_unstable();
    addresses.dedup();
    // Each of three lanes has the matrix that it writes and one or two that are not read yet. A lane that is far ahead of the
    // others takes new memory. If no memory came back, all 39 would differ.
    assert!(addresses.len() <= 12, "{} matrices", addresses.len());
}

#[test]
fn predictions_may_end_at_any_graph() {
    let graphs: Vec<Dataset> = (0..5).map(|i| small(9 + i, false)).collect();
    let large =
        planted(&PlantedOptions { feature_width: 5, classes: 3, vertices: 40_000, ..PlantedOptions::default() })
            .unwrap();
    let predictor = predictor("gcn", &graphs[0]);
    // Graphs with weights, so that no two are in one batch.
    let all = || (0..40).map(|i| Ok(if i == 23 { large.clone() } else { small(9 + i % 5, i % 2 == 0) }));
    for taken in [0, 1, 5, 23, 24, 39] {
        let mut found = predictor.predictions(all());
        for (i, want) in all().take(taken).enumerate() {
            let (found, want) = (found.next().unwrap().unwrap(), want.unwrap());
            assert_eq!(found.data.graph().vertex_count(), want.graph().vertex_count(), "graph {i}");
            agree(&found.logits, &predictor.predict(&want).unwrap());
        }
    }
    // A large graph right after the first batch, before another graph.
    let graphs = [small(9, false), large.clone(), small(10, true), small(11, false)];
    for (found, want) in predictor.predictions(graphs.iter().cloned().map(Ok)).zip(&graphs) {
        assert!(found.unwrap().data.is_clone_of(want));
    }
    // A graph that is refused while others run: what comes before it is there, and nothing after it.
    let mut found = predictor.predictions(all().take(20).chain([Ok(narrow())]).chain(all().take(9)));
    for i in 0..20 {
        assert!(found.next().unwrap().is_ok(), "graph {i}");
    }
    assert!(found.next().unwrap().is_err() && found.next().is_none() && found.next().is_none());
    assert_eq!(found.batches(), 20);
}
