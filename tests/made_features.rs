//! Features that are made from the graph.

use std::path::Path;

use lapidary::dataset::{Arrays, Labels, MadeFeatures, TEST, TRAIN, VAL};
use lapidary::graph::Permutation;
use lapidary::{Dataset, Error, Model, Predictor, Trainer};
use serde_json::Value;

use crate::common::command::{run, succeeds};

/// Returns the planted graph with its labels and splits, without features.
fn bare() -> Dataset {
    let data = Dataset::builtin("planted").unwrap();
    let Some(Labels::Class(labels)) = data.labels() else { panic!("planted has classes") };
    let of = |which: u32| (0..labels.len()).map(|v| data.split()[v] == which).collect::<Vec<bool>>();
    let arrays = Arrays::new(data.graph().clone()).labels(labels.iter()).name("bare");
    let arrays = arrays.train_mask(&of(TRAIN)).val_mask(&of(VAL)).test_mask(&of(TEST));
    Dataset::from_arrays(arrays).unwrap()
}

fn summary(args: &[&str]) -> Value {
    serde_json::from_str(succeeds(args).lines().last().unwrap()).unwrap()
}

fn written(folder: &Path) -> String {
    let path = folder.join("bare");
    bare().write(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn they_tell_the_classes_of_a_graph_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let accuracy = |kind: &str| {
        let flags = ["train", "--data", &path, "--make-features", kind, "--epochs", "100", "--json"];
        summary(&flags)["test_accuracy"].as_f64().unwrap()
    };
    // Seven classes: all vertices are alike to the first two. The others know where a vertex is.
    assert!(accuracy("constant") < 0.3);
    assert!(accuracy("degree") < 0.3);
    for (kind, least) in [("onehot", 0.6), ("spectral", 0.6), ("random", 0.25)] {
        let reached = accuracy(kind);
        assert!(reached > least, "{kind}: {reached}");
    }
}

#[test]
fn a_checkpoint_makes_them_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path());
    let dir = folder.path().join("run").to_str().unwrap().to_owned();
    let train = ["train", "--data", &path, "--checkpoint", &dir, "--epochs", "30", "--json"];
    let made = summary(&[&train[..], &["--make-features", "spectral"]].concat());
    let infer = summary(&["infer", "--data", &path, "--checkpoint", &dir, "--json"]);
    assert_eq!(infer["test_accuracy"], made["test_accuracy"]);
    // Two graphs at once, each with features of its own.
    let both = ["infer", "--data", &path, "--data", &path, "--checkpoint", &dir, "--json"];
    let lines = succeeds(&both);
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["test_accuracy"], made["test_accuracy"], "{lines}");
    // Another order of the vertices in memory makes the same features.
    let moved = summary(&["infer", "--data", &path, "--checkpoint", &dir, "--reorder", "degree", "--json"]);
    assert_eq!(moved["test_accuracy"], made["test_accuracy"]);
    let (code, _, stderr) = run(&[&train[..], &["--resume", "--make-features", "random"]].concat());
    assert!(code == Some(1) && stderr.contains("spectral") && stderr.contains("random"), "{stderr}");
    // The library says what to call.
    let predictor = Predictor::open(&dir).unwrap();
    let error = predictor.predict(&bare()).unwrap_err();
    assert!(matches!(error, Error::DataLacks { .. }) && error.to_string().contains("with_features"), "{error}");
    assert!(predictor.predict(&predictor.with_features(bare())).is_ok());
}

#[test]
fn a_relabelled_graph_has_the_features_of_the_same_vertices() {
    let data = bare();
    let n = data.graph().vertex_count();
    let moved = data.relabelled(&Permutation::random(n, 3));
    let old_of_new = moved.permutation().unwrap().old_of_new().to_vec();
    for kind in [MadeFeatures::Degree, MadeFeatures::Random, MadeFeatures::Spectral] {
        let [own, others] =
            [&data, &moved].map(|data| data.with_made_features(kind).features().unwrap().values().to_vec());
        let width = own.len() / n;
        for (new, &old) in old_of_new.iter().enumerate() {
            let [own, others] = [&own[old as usize * width..][..width], &others[new * width..][..width]];
            // Sums over the vertices are in another order.
            assert!(
                own.iter().zip(others).all(|(a, b)| (a - b).abs() < 1e-2),
                "{kind}, vertex {old}: {own:?}, {others:?}"
            );
        }
    }
}

#[test]
fn numbers_do_not_depend_on_threads_and_are_those_of_the_vertex() {
    let data = bare();
    for kind in [MadeFeatures::Degree, MadeFeatures::Random, MadeFeatures::Spectral, MadeFeatures::OneHot] {
        let cells = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| data.with_made_features(kind)).features().unwrap().values().to_vec()
        };
        assert_eq!(cells(1), cells(3), "{kind}");
        let made = data.with_made_features(kind);
        assert_eq!((made.made_features(), kind.to_string().parse().unwrap()), (Some(kind), kind));
        let model = Model::gcn(&[made.feature_width(), 4, made.class_count()]);
        assert!(Trainer::builder(&model, &made).build().unwrap().step().unwrap().loss.is_finite());
    }
}

#[test]
fn an_unknown_kind_is_refused() {
    for verb in ["train", "plan"] {
        let (code, _, stderr) = run(&[verb, "--data", "builtin:karate", "--make-features", "magic"]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("--make-features") && stderr.contains("spectral"), "{stderr}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, _, stderr) = run(&["train", "--data", &written(folder.path())]);
    assert!(stderr.contains("--make-features"), "a graph without features: {stderr}");
}
