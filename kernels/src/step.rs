//! The settings of one optimizer step, as read from a call, the clock and the learning rate.
//!
//! They are `f64` as in PyTorch: `1 - beta2` in `f32` would be wrong in the fifth digit.

/// The settings of a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Number of the step, from 1.
    pub step: u64,
    /// Learning rate.
    pub rate: f64,
    /// Momentum, in `[0, 1)`.
    pub momentum: f64,
    /// L2 decay.
    pub weight_decay: f64,
}

/// The settings of a step of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Number of the step, from 1.
    pub step: u64,
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// L2 decay, added to the gradient; with `decoupled`, the parameter shrinks by `rate * weight_decay` first.
    pub weight_decay: f64,
    /// Whether the weight decay is decoupled from the gradient (AdamW).
    pub decoupled: bool,
}
