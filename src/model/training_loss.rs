//! Custom training losses.

use std::ops::{Add, Mul};

use super::{ModelError, Network, Value};
use crate::program::TensorId;

/// A weighted sum of losses over a network's outputs; the result of the function given to
/// [`Model::loss`](super::Model::loss).
///
/// Constructors such as [`TrainingLoss::softmax_cross_entropy`] make one loss. `+` adds two, and `*` multiplies one by
/// a number.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingLoss {
    pub(crate) terms: Vec<LossTerm>,
}

/// One loss and its weight in the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossTerm {
    pub weight: f32,
    pub x: TensorId,
    pub kind: LossKind,
}

/// A loss over a matrix with one row per vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossKind {
    /// Softmax cross-entropy with the classes of the training split.
    SoftmaxCrossEntropy,
    /// Sigmoid cross-entropy with the targets of the training split.
    SigmoidCrossEntropy,
    /// Mean square over all vertices.
    MeanSquare,
}

impl TrainingLoss {
    /// Returns the mean cross-entropy of the softmax of `x` over the labelled vertices of the training split, for data
    /// with one class per vertex. With the logits as `x`, this is the default loss of such data.
    ///
    /// # Shapes
    /// `x`: `[n, classes]` or wider; each class is a column.
    /// # Errors
    /// [`ModelError::SparseInput`].
    /// # Source
    /// `torch.nn.functional.cross_entropy`.
    pub fn softmax_cross_entropy(x: Value) -> Result<Self, ModelError> {
        Self::of(x, LossKind::SoftmaxCrossEntropy)
    }

    /// Returns the mean binary cross-entropy of the sigmoid of `x` over all cells of the vertices of the training
    /// split, for data with several classes per vertex. With the logits as `x`, this is the default loss of such data.
    ///
    /// # Shapes
    /// `x`: `[n, classes]`.
    /// # Errors
    /// [`ModelError::SparseInput`].
    /// # Source
    /// `torch.nn.BCEWithLogitsLoss`.
    pub fn sigmoid_cross_entropy(x: Value) -> Result<Self, ModelError> {
        Self::of(x, LossKind::SigmoidCrossEntropy)
    }

    /// Returns the mean of the squares of all cells of `x`, over all vertices.
    ///
    /// # Shapes
    /// `x`: `[n, d]`.
    /// # Errors
    /// [`ModelError::SparseInput`].
    pub fn mean_square(x: Value) -> Result<Self, ModelError> {
        Self::of(x, LossKind::MeanSquare)
    }

    /// Returns the mean of the squared differences of `a` and `b`, over all cells and vertices.
    ///
    /// # Shapes
    /// `a`, `b`: `[n, d]`.
    /// # Errors
    /// [`ModelError::SparseInput`]; [`ModelError::Program`] if the widths differ.
    /// # Source
    /// `torch.nn.MSELoss`.
    pub fn mean_square_error(net: &mut Network, a: Value, b: Value) -> Result<Self, ModelError> {
        let minus_b = net.multiply(b, -1.0)?;
        let difference = net.add(a, minus_b)?;
        Self::mean_square(difference)
    }

    fn of(x: Value, kind: LossKind) -> Result<Self, ModelError> {
        match x {
            Value::Dense(x) => Ok(Self { terms: vec![LossTerm { weight: 1.0, x, kind }] }),
            Value::Sparse { .. } => Err(ModelError::SparseInput { op: "a loss" }),
        }
    }
}

impl Add for TrainingLoss {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self
    }
}

impl Mul<f32> for TrainingLoss {
    type Output = Self;

    fn mul(mut self, factor: f32) -> Self {
        self.terms.iter_mut().for_each(|term| term.weight *= factor);
        self
    }
}

impl Mul<TrainingLoss> for f32 {
    type Output = TrainingLoss;

    fn mul(self, loss: TrainingLoss) -> TrainingLoss {
        loss * self
    }
}
