//! Training runs, and what makes two of them the same.

use lapidary::{Optimizer, TrainerBuilder, Weights};

use super::{pairs, relative_difference};

/// The losses of a few epochs, the first epoch's gradients, and what the trainer ended with.
pub struct Curve {
    pub losses: Vec<f64>,
    pub gradients: Weights,
    pub weights: Weights,
    /// Into how many tiles a part was cut.
    pub tiles: usize,
    /// By device, the most that it held.
    pub peaks: Vec<u64>,
}

/// Trains, and holds what the devices measured against what was planned.
pub fn train(optimizer: impl Into<Optimizer>, builder: TrainerBuilder<'_>, epochs: usize) -> Curve {
    let mut trainer = builder.keep_gradients(true).optimizer(optimizer).build().unwrap();
    let mut losses = Vec::new();
    let mut gradients = Weights::default();
    for epoch in 0..epochs {
        let done = trainer.step().unwrap();
        losses.push(done.loss);
        if epoch == 0 {
            gradients = trainer.gradients().unwrap();
        }
        assert_eq!([done.bytes_to_device, done.bytes_to_host], done.planned_bytes, "epoch {epoch}");
    }
    let peaks = trainer.peak_device_bytes();
    assert_eq!(peaks, trainer.planned_peak_device_bytes());
    Curve { losses, gradients, weights: trainer.weights().unwrap(), tiles: trainer.tiles(), peaks }
}

pub fn assert_same(what: &str, got: &Curve, want: &Curve) {
    let first = (got.losses[0] - want.losses[0]).abs() / want.losses[0];
    assert!(first <= 1e-5, "{what}: the first loss is {}, not {}", got.losses[0], want.losses[0]);
    assert!(!want.gradients.is_empty() && got.gradients.len() == want.gradients.len(), "{what}: other parameters");
    for (name, gradient) in want.gradients.iter() {
        let difference = relative_difference(&got.gradients.get(name).unwrap().data, &gradient.data);
        // A bias's is a sum over all rows that nearly cancels; tiles round it once each.
        let limit = if name.ends_with("bias") { 1e-4 } else { 1e-5 };
        assert!(difference <= limit, "{what}: the gradient of {name} is off by {difference}");
    }
    for (epoch, (got, want)) in pairs(&got.losses, &want.losses).enumerate() {
        assert!((got - want).abs() <= 1e-4 * want.abs(), "{what}, epoch {epoch}: the loss is {got}, not {want}");
    }
}
