//! The settings of one optimizer step, as read from a call, the clock and the learning rate.

/// The settings of a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// The step's number, counted from 1.
    pub step: u64,
    /// Learning rate.
    pub rate: f32,
    /// In `[0, 1)`.
    pub momentum: f32,
    /// L2 decay.
    pub weight_decay: f32,
}

/// The settings of a step of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// The step's number, counted from 1.
    pub step: u64,
    /// Learning rate.
    pub rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// L2 decay, added to the gradient; with `decoupled`, the parameter shrinks by `rate * weight_decay` first.
    pub weight_decay: f32,
    /// AdamW.
    pub decoupled: bool,
}

/// The `f64` that a person meant who wrote `x`: 0.999 and not 0.99900001287. PyTorch keeps its settings in `f64`, and
/// `1 - beta2` would otherwise be wrong in the fifth digit.
pub fn as_written(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}
