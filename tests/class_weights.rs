//! Weights of the classes in the loss.

use lapidary::dataset::{Labels, TRAIN};
use lapidary::model::TrainingLoss;
use lapidary::sample::NeighborSampler;
use lapidary::{Adam, Batches, ClassWeights, Dataset, Error, Model, Predictor, Trainer, TrainerBuilder};

use crate::common::command::{run, succeeds};

fn planted() -> (Dataset, Model) {
    let data = Dataset::builtin("planted").unwrap();
    let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]).dropout(0.0);
    (data, model)
}

fn losses(builder: TrainerBuilder<'_>) -> Vec<f64> {
    let mut trainer = builder.build().unwrap();
    (0..5).map(|_| trainer.step().unwrap().loss).collect()
}

/// Returns different weights, of which one is 0.
fn given(classes: usize) -> Vec<f32> {
    (0..classes).map(|class| class as f32 / 2.0).collect()
}

#[test]
fn the_loss_is_torchs_weighted_mean() {
    let (data, model) = planted();
    let weights = given(data.class_count());
    let builder = Trainer::builder(&model, &data).class_weights(ClassWeights::Given(weights.clone()));
    let mut trainer = builder.build().unwrap();
    trainer.step().unwrap();
    let folder = tempfile::tempdir().unwrap();
    trainer.save(folder.path()).unwrap();
    let logits = Predictor::open(folder.path()).unwrap().predict(&data).unwrap();
    let Some(Labels::Class(labels)) = data.labels() else { panic!("planted has classes") };
    let (mut sum, mut divisor) = (0.0, 0.0);
    for (v, row) in logits.rows().into_iter().enumerate().filter(|(v, _)| data.split()[*v] == TRAIN) {
        let (label, total) = (labels[v] as usize, row.iter().map(|&x| f64::from(x).exp()).sum::<f64>());
        sum += f64::from(weights[label]) * (total.ln() - f64::from(row[label]));
        divisor += f64::from(weights[label]);
    }
    let (got, want) = (trainer.step().unwrap().loss, sum / divisor);
    assert!((got - want).abs() < 1e-5 * want, "{got}, not {want}");
}

#[test]
fn only_ratios_of_weights_count_and_equal_ones_are_none() {
    let (data, model) = planted();
    let of = |weights| losses(Trainer::builder(&model, &data).class_weights(weights));
    let weights = given(data.class_count());
    let twice = weights.iter().map(|weight| 2.0 * weight).collect();
    let weighted = of(ClassWeights::Given(weights));
    assert_eq!(weighted, of(ClassWeights::Given(twice)));
    let equal = of(ClassWeights::Equal);
    assert_ne!(weighted, equal);
    for (a, b) in of(ClassWeights::Given(vec![3.0; data.class_count()])).iter().zip(&equal) {
        assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} and {b}");
    }
}

#[test]
fn parts_tiles_and_batches_have_the_same_weights() {
    let (data, model) = planted();
    let builder = || {
        let weights = ClassWeights::Given(given(data.class_count()));
        Trainer::builder(&model, &data).class_weights(weights).optimizer(Adam::new(0.01))
    };
    let whole = losses(builder());
    let near = |others: Vec<f64>| {
        for (a, b) in others.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{others:?} and {whole:?}");
        }
    };
    near(losses(builder().devices("sim:3".parse().unwrap())));
    // A batch of all vertices that draws all edges is an epoch on the whole graph.
    let all = Batches::new(data.graph().vertex_count(), NeighborSampler::new("-1,-1".parse().unwrap()));
    near(losses(builder().batches(all)));
}

#[test]
fn weights_that_cannot_be_are_refused() {
    let (data, model) = planted();
    let classes = data.class_count();
    for (weights, why) in [
        (vec![1.0; classes + 1], "classes"),
        (vec![f32::NAN; classes], "0 or more"),
        (vec![-1.0; classes], "0 or more"),
        (vec![0.0; classes], "has the weight 0"),
    ] {
        let builder = Trainer::builder(&model, &data).class_weights(ClassWeights::Given(weights));
        let Err(error @ Error::Value { option: "class_weights", .. }) = builder.build() else { panic!("{why}") };
        assert!(error.to_string().contains(why), "{error}");
    }
    let other_loss = model.loss(|net, logits| TrainingLoss::mean_square(net.multiply(logits, 2.0)?));
    let builder = Trainer::builder(&other_loss, &data).class_weights(ClassWeights::Balanced);
    let Err(error @ Error::Model(_)) = builder.build() else { panic!("nothing would be weighed") };
    assert!(error.to_string().contains("no such term"), "{error}");
    let (code, _, stderr) = run(&["train", "--class-weights", "heavy"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--class-weights") && stderr.contains("balanced"), "{stderr}");
}

#[test]
fn a_resumed_run_needs_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = |more: &[&'static str]| {
        let mut args = vec!["train", "--checkpoint", dir];
        args.extend(more);
        args
    };
    succeeds(&args(&["--epochs", "2", "--class-weights", "balanced"]));
    let (code, _, stderr) = run(&args(&["--resume", "--epochs", "3"]));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("weights of the classes"), "{stderr}");
}
