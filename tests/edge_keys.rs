//! Models with edge weights compared with PyTorch Geometric: logits, gradients, five steps of Adam, on directed and
//! symmetric graphs. `fixtures/make_edge_keys.py` describes the keys and writes them.

use lapidary::dataset::FeatureNorm;
use lapidary::model::{Activation, AttentionConfig, ModelConfig, Weight};
use lapidary::ndarray::Array2;
use lapidary::{Adam, Arrays, Dataset, Devices, Model, Passes, Predictor, RunOptions, Trainer, Weights};
use serde_json::Value;

use crate::common::largest_difference;

struct Key {
    /// The model and its graph, for messages.
    name: String,
    data: Dataset,
    model: Model,
    weights: Weights,
    logits: Vec<f32>,
    gradients: Weights,
    lr: f64,
    losses: Vec<f64>,
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

fn tensors(value: &Value) -> Weights {
    let mut tensors = Weights::default();
    for (name, tensor) in value.as_object().unwrap() {
        let shape = ids(&tensor["shape"]).iter().map(|&size| size as usize).collect();
        tensors.insert(name, Weight { shape, data: numbers(&tensor["data"]) });
    }
    tensors
}

/// Returns the graph. Attention takes weights of either sign, the other models the absolute values.
fn dataset(graph: &Value, vertices: usize, attention: bool) -> Dataset {
    let edges: Vec<(u32, u32)> = serde_json::from_value(graph["edges"].clone()).unwrap();
    let weights: Vec<f32> = numbers(&graph["weights"]).iter().map(|w| if attention { *w } else { w.abs() }).collect();
    let rows: Vec<Vec<f32>> = graph["features"].as_array().unwrap().iter().map(numbers).collect();
    let features = Array2::from_shape_vec((vertices, rows[0].len()), rows.concat()).unwrap();
    let arrays = Arrays::edges(vertices, &edges).edge_weights(weights).features(features);
    Dataset::from_arrays(arrays.labels(&ids(&graph["labels"])).train(&ids(&graph["train"]))).unwrap()
}

fn keys() -> Vec<Key> {
    let all: Value = serde_json::from_str(include_str!("fixtures/edge_keys.json")).unwrap();
    let size = |name: &str| all[name].as_u64().unwrap() as usize;
    let key = |key: &Value| {
        let (name, graph) = (key["model"].as_str().unwrap(), key["graph"].as_str().unwrap());
        let attention = ["gat", "gatv2"].contains(&name);
        let data = dataset(&all["graphs"][graph], size("vertices"), attention);
        assert_eq!(data.directed(), graph == "directed");
        let mut config = ModelConfig::new(name, &[data.feature_width(), size("hidden"), size("classes")]);
        if attention {
            let residual = key["residual"].as_bool().unwrap();
            config.attention =
                AttentionConfig { heads: size("heads"), residual, edge_weights: true, ..AttentionConfig::default() };
            config.activation = if key["activation"] == "elu" { Activation::Elu } else { Activation::Relu };
        }
        Key {
            name: format!("{name} on {graph}"),
            data,
            model: Model::from_config(config).unwrap(),
            weights: tensors(&key["parameters"]),
            logits: numbers(&key["logits"]),
            gradients: tensors(&key["gradients"]),
            lr: all["lr"].as_f64().unwrap(),
            losses: key["losses"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
        }
    };
    all["keys"].as_array().unwrap().iter().map(key).collect()
}

/// Returns the options that a key is computed with, and their names.
fn options() -> Vec<(String, RunOptions)> {
    let all = ["cpu", "sim:3"].into_iter().flat_map(|devices| ["none", "all"].map(|passes| (devices, passes)));
    let with = |(devices, passes): (&str, &str)| {
        let options = RunOptions::new().devices(devices.parse::<Devices>().unwrap());
        (format!("{devices}, passes {passes}"), options.passes(passes.parse::<Passes>().unwrap()))
    };
    all.map(with).collect()
}

#[test]
fn weighted_logits_are_pygs() {
    for key in keys() {
        for (how, options) in options() {
            let weights = key.weights.clone();
            let predictor = Predictor::new(&key.model, weights, Some(FeatureNorm::None)).unwrap().options(options);
            let logits = predictor.predict(&key.data).unwrap();
            let off = largest_difference(logits.as_slice().unwrap(), &key.logits);
            assert!(off < 1e-4, "{}, {how}: logits are off by {off}", key.name);
        }
    }
}

#[test]
fn weighted_gradients_and_five_steps_of_adam_are_pygs() {
    for key in keys() {
        for (how, options) in options() {
            let name = format!("{}, {how}", key.name);
            let mut trainer = Trainer::builder(&key.model, &key.data)
                .options(options)
                .keep_gradients(true)
                .optimizer(Adam::new(key.lr))
                .feature_norm(FeatureNorm::None)
                .weights(key.weights.clone())
                .build()
                .unwrap();
            for (step, want) in key.losses.iter().enumerate() {
                let loss = trainer.step().unwrap().loss;
                let most = if step == 0 { 1e-5 } else { 1e-3 };
                assert!((loss - want).abs() < most, "{name}: the loss of step {step} is {loss}, not {want}");
                if step == 0 {
                    check_gradients(&trainer.gradients().unwrap(), &key.gradients, &name);
                }
            }
        }
    }
}

fn check_gradients(got: &Weights, want: &Weights, name: &str) {
    let largest = |data: &[f32]| data.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
    let all = want.iter().map(|(_, want)| largest(&want.data)).fold(0.0, f64::max);
    assert_eq!(got.len(), want.len(), "{name}");
    for (parameter, want) in want.iter() {
        let got = got.get(parameter).unwrap();
        assert_eq!(got.shape, want.shape, "{name}: {parameter}");
        // A gradient that is 0 but for rounding is compared with the others.
        let scale = largest(&want.data).max(1e-3 * all);
        let off = largest_difference(&got.data, &want.data) / scale;
        assert!(off < 1e-4, "{name}: the gradient of {parameter} is off by {off}");
    }
}
