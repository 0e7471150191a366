//! Learned embeddings in checkpoints: a run that goes on, a model that predicts, and rows that do not fit.

use std::fs;

use lapidary::model::Weight;
use lapidary::{
    Adam, AdamW, Arrays, Batches, Dataset, Error, Position, Predictor, Ranks, RunOptions, Sgd, Trainer, Weights,
};

use super::embedding::{EMBEDDING, WIDTH, bare, model, neighbors, trainer};
use crate::common::digest_anew;
use crate::common::ranks::{on_ranks, simulated};

#[test]
fn a_resumed_run_has_the_same_bits() {
    let data = bare(false);
    let model = model("sage", &data).dropout(0.2);
    let build = |optimizer: lapidary::Optimizer, options: RunOptions| {
        trainer(&model, &data, Batches::new(24, neighbors("4,3")))
            .optimizer(optimizer)
            .options(options)
            .build()
            .unwrap()
    };
    for optimizer in [Adam::new(0.02).into(), AdamW::new(0.02).into(), Sgd::new(0.1).into()] {
        let folder = tempfile::tempdir().unwrap();
        let alone = || simulated(2, Ranks::alone());
        let mut whole = build(optimizer, alone());
        whole.step().unwrap();
        whole.save(folder.path().join("epoch")).unwrap();
        assert_eq!(whole.step_batches(3).unwrap(), None);
        whole.save(folder.path().join("batch")).unwrap();
        let want: Vec<f64> = (0..2).map(|_| whole.step().unwrap().loss).collect();
        let weights = whole.weights().unwrap();
        for (name, position) in [("epoch", Position { epoch: 1, batch: 0 }), ("batch", Position { epoch: 1, batch: 3 })]
        {
            let dir = folder.path().join(name);
            let mut resumed = build(optimizer, alone());
            assert_eq!(resumed.resume(&dir).unwrap(), Some(1));
            assert_eq!(resumed.position(), position);
            assert_eq!((0..2).map(|_| resumed.step().unwrap().loss).collect::<Vec<_>>(), want);
            assert!(resumed.weights().unwrap() == weights, "{name}");
            // On two ranks, which are the same parts.
            for got in on_ranks(2, |ranks| {
                let mut resumed = build(optimizer, simulated(1, ranks));
                assert_eq!(resumed.resume(&dir).unwrap(), Some(1));
                let losses: Vec<f64> = (0..2).map(|_| resumed.step().unwrap().loss).collect();
                (losses, resumed.weights().unwrap())
            }) {
                assert!(got.0 == want && got.1 == weights, "{name} on ranks");
            }
            // Three ranks have other parts, and so other roundings.
            for losses in on_ranks(3, |ranks| {
                let mut resumed = build(optimizer, simulated(1, ranks));
                resumed.resume(&dir).unwrap();
                (0..2).map(|_| resumed.step().unwrap().loss).collect::<Vec<f64>>()
            }) {
                assert!(losses.iter().all(|loss| loss.is_finite()));
            }
        }
    }
}

#[test]
fn a_checkpoint_predicts_the_graph_that_it_was_trained_on_and_no_other() {
    let data = bare(false);
    let model = model("sage", &data);
    let folder = tempfile::tempdir().unwrap();
    let mut run = trainer(&model, &data, Batches::new(24, neighbors("4,3"))).build().unwrap();
    (0..5).for_each(|_| assert!(run.step().is_ok()));
    run.save(folder.path()).unwrap();
    let opened = Predictor::open(folder.path()).unwrap();
    let prediction = opened.run(&data).unwrap();
    assert_eq!(prediction.accuracy.test, run.best().unwrap().test_accuracy);
    assert_eq!(run.predictor().unwrap().predict(&data).unwrap(), prediction.logits);
    let near = opened.clone().prepared().predict(&data).unwrap();
    assert!((&near - &prediction.logits).iter().all(|x| x.abs() < 1e-4));
    let n = data.graph().vertex_count();
    let refused = |data: &Dataset| match opened.run(data).unwrap_err() {
        Error::OtherGraph { why, trained, .. } => format!("{trained}: {why}"),
        other => panic!("{other}"),
    };
    let karate = Dataset::builtin("karate").unwrap();
    assert_eq!(refused(&karate), format!("`bare`: it has 34 vertices, and the model has learned rows for {n}"));
    let others = Dataset::from_arrays(Arrays::edges(n, &[(0, 1), (1, 0)]).labels(&vec![0i64; n])).unwrap();
    assert_eq!(refused(&others), "`bare`: its edges, or the order of its vertices, are others");
    assert!(matches!(run.predictor().unwrap().run(&others).unwrap_err(), Error::OtherGraph { .. }));
    // A run with features does not start from learned rows, nor one with learned rows from its checkpoint.
    let constant = bare(true);
    let other = || Trainer::builder(&model, &constant).batches(Batches::new(24, neighbors("4,3"))).seed(5);
    let error = other().weights(opened.weights().clone()).build().unwrap_err().to_string();
    assert!(error.contains("has no parameter `embedding.weight`"), "{error}");
    let mut other = other().optimizer(Adam::new(0.02)).build().unwrap();
    assert!(matches!(other.resume(folder.path()), Err(Error::OtherRun { .. } | Error::DataChanged { .. })));
    // Weights without the rows: these are drawn.
    let rest: Weights = opened.weights().iter().filter(|(name, _)| *name != EMBEDDING).collect();
    let batches = Batches::new(24, neighbors("4,3"));
    let fresh = trainer(&model, &data, batches.clone()).weights(rest).build().unwrap().weights().unwrap();
    let first = trainer(&model, &data, batches).build().unwrap().weights().unwrap();
    assert_eq!(fresh.get(EMBEDDING), first.get(EMBEDDING));
    assert_ne!(fresh.get("convs.0.lin_l.weight"), first.get("convs.0.lin_l.weight"));
}

/// Resuming and predicting name what is wrong with the rows, and with which numbers.
#[test]
fn rows_of_a_checkpoint_that_do_not_fit_are_explained() {
    let data = bare(false);
    let n = data.graph().vertex_count();
    let model = model("sage", &data);
    let build = || trainer(&model, &data, Batches::new(24, neighbors("4,3"))).build().unwrap();
    let mut run = build();
    run.step().unwrap();
    let shape = |rows: usize, width: usize| Weight { shape: vec![rows, width], data: vec![0.5; rows * width] };
    let mut nan = shape(n, WIDTH);
    nan.data[3 * WIDTH + 1] = f32::NAN;
    let cases = [
        (shape(n - 1, WIDTH), format!("[{}, {WIDTH}]", n - 1)),
        (shape(n, WIDTH + 1), format!("[{n}, {}]", WIDTH + 1)),
        (nan, "has a NaN or an infinity".to_owned()),
    ];
    for (file, name) in [("model", EMBEDDING), ("optimizer", "embedding.weight.moment2")] {
        for (weight, want) in &cases {
            let folder = tempfile::tempdir().unwrap();
            run.save(folder.path()).unwrap();
            let epoch = folder.path().join("epoch-00000001");
            let path = epoch.join(file).with_extension("safetensors");
            let mut weights = Weights::load(&path).unwrap();
            weights.insert(name, weight.clone());
            fs::write(&path, weights.to_safetensors().unwrap()).unwrap();
            digest_anew(&epoch);
            let text = build().resume(folder.path()).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(want), "{text}, without {name} and {want}");
            if file == "model" {
                // Rows of fewer vertices are taken for those of another graph.
                let error = Predictor::open(&epoch).and_then(|opened| opened.run(&data)).unwrap_err();
                let is_explained = error.to_string().contains(name) || matches!(error, Error::OtherGraph { .. });
                assert!(is_explained, "{error}");
            }
        }
    }
    // The file ends within the rows.
    let folder = tempfile::tempdir().unwrap();
    run.save(folder.path()).unwrap();
    let epoch = folder.path().join("epoch-00000001");
    let path = epoch.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 400]).unwrap();
    let error = build().resume(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    digest_anew(&epoch);
    let text = build().resume(folder.path()).unwrap_err().to_string();
    assert!(text.contains("model.safetensors"), "{text}");
}
