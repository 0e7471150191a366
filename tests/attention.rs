//! Attention and weights of edges, from the outside: tilings, flags, and data that a model cannot use.

use crate::common::hostile_graph;
use assert_cmd::Command;
use lapidary::dataset::Arrays;
use lapidary::model::{AttentionConfig, Norm};
use lapidary::{ByteSize, Dataset, Devices, Error, Model, Predictor, Trainer};
use ndarray::Array2;

/// Returns a graph of hubs, isolated vertices and repeated edges, with a weight for each edge.
fn data(weight: impl Fn(usize) -> f32) -> Dataset {
    let graph = hostile_graph();
    let n = graph.vertex_count();
    let weights: Vec<f32> = (0..graph.edge_count()).map(weight).collect();
    let x = Array2::from_shape_fn((n, 6), |(v, c)| ((v * 7 + c * 5) % 11) as f32 / 11.0);
    let labels: Vec<u32> = (0..n as u32).map(|v| v % 3).collect();
    let all: Vec<u32> = (0..n as u32).collect();
    let arrays = Arrays::new(graph).edge_weights(weights).features(x).labels(&labels);
    Dataset::from_arrays(arrays.train(&all[..n / 2]).val(&all[n / 2..])).unwrap()
}

fn bits(logits: &Array2<f32>) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn logits_have_the_same_bits_in_tiles_on_parts_and_whole() {
    let options = lapidary::dataset::generate::RmatOptions {
        vertices: 1 << 8,
        feature_width: 12,
        classes: 5,
        ..Default::default()
    };
    let data = lapidary::dataset::generate::rmat(&options).unwrap();
    let all = ["cpu:2", "sim:1", "sim:3"];
    for (model, devices) in [(Model::gat(&[12, 24, 5]), &all[..]), (Model::gatv2(&[12, 24, 5]), &all[1..2])] {
        let model = model.heads(3);
        let folder = tempfile::tempdir().unwrap();
        Trainer::builder(&model, &data).build().unwrap().save(folder.path()).unwrap();
        let predictor = || Predictor::open(folder.path()).unwrap();
        let want = bits(&predictor().predict(&data).unwrap());
        for devices in devices {
            let on = || predictor().devices(Devices::parse(devices).unwrap());
            assert_eq!(bits(&on().predict(&data).unwrap()), want, "{devices}");
            let Err(Error::DoesNotFit { need_bytes, .. }) = on().device_memory(ByteSize::b(1)).predict(&data) else {
                panic!("one byte is not enough")
            };
            for bytes in [need_bytes, need_bytes * 3 / 2] {
                let tiled = on().device_memory(ByteSize::b(bytes)).predict(&data).unwrap();
                assert_eq!(bits(&tiled), want, "{devices} in {bytes} bytes");
            }
        }
    }
}

#[test]
fn a_sum_of_weights_that_cannot_be_divided_by_names_the_vertex() {
    let widths = [6, 4, 3];
    let negative = data(|edge| if edge == 0 { -40.0 } else { 1.0 });
    for model in [Model::gcn(&widths), Model::sage(&widths), Model::commnet(&widths)] {
        let Err(error) = Trainer::builder(&model, &negative).build() else { panic!("{model:?}") };
        let Error::EdgeWeights { vertex, sum, .. } = error else { panic!("{error}") };
        assert!(sum < 0.0 && negative.graph().edges(vertex).contains(&0), "{error}");
        Trainer::builder(&model.edge_weights(false), &negative).build().unwrap();
    }
    // These models only add.
    for model in [Model::gin(&widths), Model::graphconv(&widths), Model::gcn(&widths).norm(Norm::Sum)] {
        assert!(Trainer::builder(&model, &negative).build().unwrap().step().unwrap().loss.is_finite());
    }
}

#[test]
fn weights_of_1_change_nothing_and_others_do() {
    for name in ["gcn", "sage", "gin", "graphconv", "commnet", "resgcn"] {
        let model = Model::from_config(lapidary::model::ModelConfig::new(name, &[6, 4, 3])).unwrap();
        let loss = |data: &Dataset, model: &Model| {
            let mut trainer = Trainer::builder(model, data).build().unwrap();
            trainer.step().unwrap();
            trainer.step().unwrap().loss
        };
        let (ones, others) = (data(|_| 1.0), data(|edge| 0.25 + (edge % 7) as f32));
        let without = loss(&ones, &model.clone().edge_weights(false));
        assert!((loss(&ones, &model) - without).abs() < 1e-5, "{name}");
        assert!((loss(&others, &model) - without).abs() > 1e-4, "{name}");
        assert_eq!(loss(&others, &model.clone().edge_weights(false)), without, "{name}");
    }
}

#[test]
fn a_model_trained_with_weights_asks_for_them() {
    let (weighted, plain) = (data(|edge| 1.0 + edge as f32), data(|_| 1.0).without_edge_weights());
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = Trainer::builder(&Model::sage(&[6, 4, 3]), &weighted).build().unwrap();
    trainer.step().unwrap();
    trainer.save(folder.path()).unwrap();
    let predictor = || Predictor::open(folder.path()).unwrap();
    predictor().predict(&weighted).unwrap();
    let error = predictor().predict(&plain).unwrap_err().to_string();
    assert!(error.contains("no edge weights") && error.contains("edge_weights"), "{error}");
    predictor().edge_weights(false).predict(&plain).unwrap();
}

#[test]
fn a_network_that_reads_no_weights_asks_for_none() {
    let (weighted, plain) = (data(|edge| 1.0 + edge as f32), data(|_| 1.0).without_edge_weights());
    let model = |weights: bool| {
        Model::custom("mine", &[6, 3], move |net, x, _| {
            let h = net.linear(x, "a", 3, true)?;
            if weights { net.weighted_gather(h, false) } else { net.gather(h, false) }
        })
    };
    for (reads, asks) in [(false, false), (true, true)] {
        let (model, folder) = (model(reads), tempfile::tempdir().unwrap());
        let mut trainer = Trainer::builder(&model, &weighted).build().unwrap();
        trainer.step().unwrap();
        trainer.save(folder.path()).unwrap();
        let predictor = Predictor::open_with(folder.path(), &model).unwrap();
        assert_eq!(predictor.predict(&plain).is_err(), asks);
    }
}

#[test]
fn weights_that_attention_ignores_are_all_1() {
    let (ones, others) = (data(|_| 1.0), data(|edge| 0.25 + (edge % 7) as f32));
    let config = AttentionConfig { heads: 2, edge_weights: true, ..AttentionConfig::default() };
    for model in [Model::gat(&[6, 4, 3]), Model::gatv2(&[6, 4, 3])] {
        let model = model.attention(config);
        let loss = |data: &Dataset, model: &Model| {
            let mut trainer = Trainer::builder(model, data).build().unwrap();
            trainer.step().unwrap();
            trainer.step().unwrap().loss
        };
        let want = loss(&ones, &model);
        assert!((loss(&others, &model) - want).abs() > 1e-5);
        assert_eq!(loss(&others, &model.clone().edge_weights(false)), want);
    }
}

#[test]
fn flags_of_attention_are_for_attention() {
    let train = |flags: &[&str]| {
        let mut command = Command::cargo_bin("lapidary").unwrap();
        command.args(["train", "--data", "builtin:karate", "--epochs", "2"]).args(flags);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for (flags, says) in [
        (&["--heads", "4"][..], "--heads"),
        (&["--model", "sage", "--attention-dropout", "0.5"], "--attention-dropout"),
        (&["--residual"], "--residual"),
        (&["--edge-attention"], "--edge-attention"),
        (&["--model", "gat", "--heads", "3", "--hidden", "16"], "3 heads do not divide"),
        (&["--model", "gat", "--heads", "0"], "at least one head"),
        (&["--model", "gatv2", "--negative-slope", "-1"], "negative slope"),
        (&["--model", "gat", "--attention-dropout", "1"], "dropout rate"),
        (&["--model", "gat", "--edge-attention"], "has no edge weights"),
    ] {
        let (code, text) = train(flags);
        assert!(code != 0 && text.contains(says), "{flags:?}: {code}: {text}");
        assert_eq!(text.matches("error:").count(), 1, "{flags:?}: {text}");
    }
    let good = ["--heads", "4", "--residual", "--activation", "elu", "--attention-dropout", "0.6"];
    for model in ["gat", "gatv2"] {
        let (code, text) = train(&[&["--model", model], &good[..]].concat());
        assert_eq!(code, 0, "{text}");
    }
}
