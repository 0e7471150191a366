//! Evaluations on mini-batches: against those over the whole graph, on any number of threads, and with wrong settings.

use std::num::NonZeroUsize;

use lapidary::model::ModelConfig;
use lapidary::sample::NeighborSampler;
use lapidary::{
    Accuracy, Adam, Arrays, Batches, Dataset, Devices, Error, Graph, Model, StorageType, Trainer, TrainerBuilder,
};
use ndarray::Array2;

use crate::common::MODELS;
use crate::common::command::run;

fn neighbors(fanouts: &str) -> NeighborSampler {
    NeighborSampler::new(fanouts.parse().unwrap())
}

/// Returns batches of 30 seeds, with an evaluation that draws these fan-outs, if any.
fn batches(evaluation: &str) -> Batches {
    let batches = Batches::new(30, neighbors("3,3"));
    if evaluation.is_empty() { batches } else { batches.evaluation(neighbors(evaluation)) }
}

fn model(name: &str, data: &Dataset) -> Model {
    Model::from_config(ModelConfig::new(name, &[data.feature_width(), 8, data.class_count()])).unwrap()
}

fn trainer<'a>(model: &'a Model, data: &'a Dataset, evaluation: &str) -> TrainerBuilder<'a> {
    Trainer::builder(model, data).optimizer(Adam::new(0.02)).seed(5).batches(batches(evaluation))
}

/// A directed graph with a hub, repeated edges, weights, vertices without a split, and several labels per vertex or one.
fn hostile(multi: bool) -> Dataset {
    let hub = (0..60u32).map(|u| (u, 7));
    let ring = (0..40u32).flat_map(|v| [(v, (v + 1) % 40), (v, (v + 1) % 40), (v, v), ((v * 5) % 40, v)]);
    let edges: Vec<(u32, u32)> = hub.chain(ring).collect();
    let graph = Graph::from_edges(70, &edges).unwrap();
    let weights: Vec<f32> = (0..graph.edge_count()).map(|e| 0.25 + (e % 7) as f32).collect();
    let features = Array2::from_shape_fn((70, 9), |(v, c)| ((v * 31 + c * 17) % 23) as f32 / 23.0 - 0.4);
    let [train, val, test] = [0, 1, 2].map(|split| (0..70i64).filter(|v| v % 4 == split).collect::<Vec<_>>());
    let arrays = Arrays::new(graph).directed(true).edge_weights(weights).features(features);
    let arrays = match multi {
        true => arrays.multi_labels(Array2::from_shape_fn((70, 5), |(v, c)| u8::from((v * 3 + c) % 4 == 0))),
        false => arrays.labels(&(0..70).map(|v| if v % 11 == 5 { -1 } else { v % 3 }).collect::<Vec<i64>>()),
    };
    Dataset::from_arrays(arrays.train(&train).val(&val).test(&test)).unwrap()
}

/// Trains a few epochs, and returns their accuracies and the last weights.
fn trained(builder: TrainerBuilder<'_>) -> (Vec<Accuracy>, Vec<u8>) {
    let mut trainer = builder.build().unwrap();
    let accuracies = (0..4).map(|_| trainer.step().unwrap().accuracy.unwrap()).collect();
    (accuracies, trainer.weights().unwrap().to_safetensors().unwrap())
}

#[test]
fn all_edges_give_the_accuracies_of_the_whole_graph() {
    for data in
        [hostile(false), hostile(true), Dataset::builtin("karate").unwrap(), Dataset::builtin("planted").unwrap()]
    {
        for name in MODELS {
            let model = model(name, &data).dropout(0.3);
            let (want, weights) = trained(trainer(&model, &data, ""));
            let (got, same) = trained(trainer(&model, &data, "-1,-1"));
            assert_eq!(got, want, "{name} on {}", data.name());
            assert!(same == weights, "{name}: an evaluation changed the training");
        }
    }
}

#[test]
fn devices_types_and_passes_give_the_accuracies_of_the_whole_graph() {
    let data = Dataset::builtin("planted").unwrap();
    for name in ["gcn", "gat", "sage"] {
        let model = model(name, &data);
        for (devices, dtype) in [
            (Devices::cpus(2), StorageType::F32),
            (Devices::sim(3), StorageType::F32),
            (Devices::cpu(), StorageType::Bf16),
        ] {
            let run =
                |evaluation: &str| trained(trainer(&model, &data, evaluation).devices(devices.clone()).dtype(dtype));
            let [(want, weights), (got, same)] = ["", "-1,-1"].map(run);
            let near = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 0.01;
            let all = want
                .iter()
                .zip(&got)
                .all(|(a, b)| near(a.train, b.train) && near(a.val, b.val) && near(a.test, b.test));
            assert!(all, "{name} on {devices:?}: {want:?} and {got:?}");
            assert!(same == weights, "{name}: an evaluation changed the training");
        }
    }
}

#[test]
fn accuracies_depend_neither_on_threads_nor_on_look_ahead() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let run = |threads: usize, look_ahead: usize| {
        let devices = Devices::cpu().threads(NonZeroUsize::new(threads).unwrap());
        trained(trainer(&model, &data, "2,2").batches(batches("2,2").look_ahead(look_ahead)).devices(devices))
    };
    let want = run(1, 0);
    assert_ne!(want.0, trained(trainer(&model, &data, "")).0, "two edges are not all");
    for (threads, look_ahead) in [(1, 1), (2, 2), (3, 4)] {
        assert!(run(threads, look_ahead) == want, "{threads} threads, {look_ahead} ahead");
    }
    // Each evaluation draws the same edges.
    let mut trainer = trainer(&model, &data, "2,2").build().unwrap();
    let first = trainer.step().unwrap().accuracy.unwrap();
    assert_eq!([trainer.evaluate().unwrap(), trainer.evaluate().unwrap()], [first, first]);
}

#[test]
fn a_sampled_evaluation_needs_no_memory_for_the_whole_graph() {
    let data = Dataset::builtin("planted").unwrap();
    let model = model("sage", &data);
    let peak = |evaluation: &str| {
        let batches = Batches::new(4, neighbors("2,2"));
        let batches = if evaluation.is_empty() { batches } else { batches.evaluation(neighbors(evaluation)) };
        let mut trainer = trainer(&model, &data, "").batches(batches).devices(Devices::sim(1)).build().unwrap();
        let epoch = trainer.step().unwrap();
        assert_eq!([epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes);
        assert!(epoch.eval_seconds > 0.0 && trainer.peak_device_bytes() <= trainer.planned_peak_device_bytes());
        trainer.planned_peak_device_bytes()[0]
    };
    let (exact, sampled) = (peak(""), peak("3,3"));
    assert!(4 * sampled < exact, "{sampled} bytes, and {exact} for the whole graph");
}

#[test]
fn the_record_says_how_it_was_evaluated() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("sage", &data);
    let folder = tempfile::tempdir().unwrap();
    let build = |evaluation: &str| trainer(&model, &data, evaluation).build().unwrap();
    let mut run = build("4,4");
    run.step().unwrap();
    run.save(folder.path()).unwrap();
    assert_eq!(build("4,4").resume(folder.path()).unwrap(), Some(1));
    let refused = |evaluation: &str| match build(evaluation).resume(folder.path()).unwrap_err() {
        Error::OtherRun { what: "choice of mini-batches", saved, asked, .. } => format!("{saved}, not {asked}"),
        other => panic!("{other}"),
    };
    assert_eq!(refused("4,5"), r#"evaluation "neighbor 4,4", not "neighbor 4,5""#);
    assert_eq!(refused(""), r#"evaluation "neighbor 4,4", not none"#);
    build("").save(folder.path()).unwrap();
    std::fs::remove_dir_all(folder.path().join("epoch-00000001")).unwrap();
    assert_eq!(refused("4,5"), r#"no evaluation, not "neighbor 4,5""#);
    let whole = Trainer::builder(&model, &data).optimizer(Adam::new(0.02)).seed(5).build().unwrap();
    whole.save(folder.path()).unwrap();
    assert_eq!(refused(""), r#"none, not {"size":30,"sampler":"neighbor 3,3"}"#);
}

#[test]
fn wrong_settings_are_explained() {
    let data = Dataset::builtin("karate").unwrap();
    let model = model("sage", &data);
    let error = trainer(&model, &data, "4").build().unwrap_err().to_string();
    assert_eq!(error, "option `eval_fanout` cannot be `1 layer`: option `fanout` has 2 layers; give as many");
    let train = ["train", "--data", "builtin:karate", "--epochs", "2"];
    let batches = ["--batch", "2", "--fanout", "4,4", "--eval-fanout"];
    for (flags, want) in [
        (&["--eval-fanout", "4,4"][..], "--batch <N>"),
        (&[&batches[..], &["4"]].concat(), "--eval-fanout cannot be `4`: --fanout has 2 layers; give as many"),
        (&[&batches[..], &["4,x"]].concat(), "--eval-fanout cannot be `4,x`: write numbers of neighbours"),
    ] {
        let (code, _, text) = run(&[&train[..], flags].concat());
        assert!(code == Some(2) && text.contains(want), "{flags:?}: {text}");
    }
    let (code, out, text) = run(&[&train[..], &batches[..], &["-1,4"]].concat());
    assert!(code == Some(0) && out.contains("test accuracy"), "{text}");
}
