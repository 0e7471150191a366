//! Training runs, and comparisons between them.

use lapidary::{Optimizer, Trainer, TrainerBuilder, Weights};

use super::{pairs, relative_difference};

/// The losses of a few epochs, the gradients of the first epoch, and the final state.
pub struct Curve {
    pub losses: Vec<f64>,
    pub gradients: Weights,
    pub weights: Weights,
    /// Number of tiles per part.
    pub tiles: usize,
    /// Planned peak memory of each device, in bytes. The measured peak is at most that.
    pub peaks: Vec<u64>,
}

/// Checks that no device held more than planned, and returns the planned peaks. A device may hold less: loads that are
/// ahead of their call wait for memory and for rows of others.
pub fn peaks_within_plan(trainer: &Trainer) -> Vec<u64> {
    let (held, planned) = (trainer.peak_device_bytes(), trainer.planned_peak_device_bytes());
    let within = held.iter().zip(&planned).all(|(held, planned)| 0 < *held && held <= planned);
    assert!(within && held.len() == planned.len(), "{held:?} bytes were held, {planned:?} were planned");
    planned
}

/// Trains, and compares the bytes and peaks measured by the devices with the plan.
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
    let peaks = peaks_within_plan(&trainer);
    Curve { losses, gradients, weights: trainer.weights().unwrap(), tiles: trainer.tiles(), peaks }
}

pub fn assert_same(what: &str, got: &Curve, want: &Curve) {
    let first = (got.losses[0] - want.losses[0]).abs() / want.losses[0];
    assert!(first <= 1e-5, "{what}: the first loss is {}, not {}", got.losses[0], want.losses[0]);
    assert!(!want.gradients.is_empty() && got.gradients.len() == want.gradients.len(), "{what}: other parameters");
    for (name, gradient) in want.gradients.iter() {
        let difference = relative_difference(&got.gradients.get(name).unwrap().data, &gradient.data);
        // The gradient of a bias is a sum over all rows that nearly cancels, and each tile rounds it once.
        let limit = if name.ends_with("bias") { 1e-4 } else { 1e-5 };
        assert!(difference <= limit, "{what}: the gradient of {name} is off by {difference}");
    }
    for (epoch, (got, want)) in pairs(&got.losses, &want.losses).enumerate() {
        assert!((got - want).abs() <= 1e-4 * want.abs(), "{what}, epoch {epoch}: the loss is {got}, not {want}");
    }
}
