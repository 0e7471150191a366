//! Losses over the rows of a split, their gradients, and counts of correct predictions.
//!
//! Labels are either classes, u32 `[n]`, where [`NO_LABEL`](super::call::NO_LABEL) marks a row without a label, or
//! targets, u8 `[n, classes]`, 0 or 1; every other target counts as 1. A call has the split code of the selected rows,
//! and the number that the sum is divided by; 0 gives a loss of 0.

use super::record::Dim::{D, Just, N, Scalar};
use super::record::{Domain, Gradient, Operand, PLAIN, Record, Value, mat, of};
use super::types::DType::{F32, U8, U32, U64};
use super::types::SplitName;

use super::oracle::Array;
use crate::reference;

/// An operation over the vertices of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// `(logits, labels, split) -> loss`: `1 / count * sum over selected v of -log softmax(logits[v])[labels[v]]`.
    SoftmaxCrossEntropy(SplitName),
    /// `(logits, labels, split) -> (softmax - onehot) / count` in selected rows, 0 in the others.
    SoftmaxCrossEntropyGrad(SplitName),
    /// `(logits, labels, split, weights) -> loss`: `1 / count * sum over selected v of -weights[labels[v]] * log
    /// softmax(logits[v])[labels[v]]`, with one weight per class.
    WeightedSoftmaxCrossEntropy(SplitName),
    /// `(logits, labels, split, weights) -> weights[labels[v]] * (softmax - onehot) / count` in selected rows, 0 in the
    /// others.
    WeightedSoftmaxCrossEntropyGrad(SplitName),
    /// `(logits, labels, split) -> [correct, selected]`: the number of selected rows whose largest logit (the first on
    /// a tie) is at the label, and the number of selected rows.
    CountCorrect(SplitName),
    /// `(logits, targets, split) -> loss`: mean binary cross-entropy of the sigmoid over all cells `z` of the selected
    /// rows, as `torch.nn.BCEWithLogitsLoss`:
    /// `1 / (count * classes) * sum of max(z, 0) - z * t + ln(1 + exp(-|z|))`.
    SigmoidCrossEntropy(SplitName),
    /// `(logits, targets, split) -> (sigmoid(z) - t) / (count * classes)` in selected rows, 0 in the others.
    SigmoidCrossEntropyGrad(SplitName),
    /// `(logits, targets, split) -> [true positives, false positives, false negatives]` over all cells of the selected
    /// rows. A cell is predicted positive if its logit is above 0, so NaN is negative.
    CountMicro(SplitName),
    /// `(x) -> 1 / 2 * sum over all cells of x^2`, over all vertices. Its gradient is `x`.
    HalfSquares,
}

const LOGITS: Operand = mat("logits", N, D);
const SPLIT: Operand = of(U32, "split", N, Just(1));
const LOSS: &[Operand] = &[of(F32, "loss", Scalar, Just(1))];
const OVER_LABELS: Record = Record {
    inputs: &[LOGITS, of(U32, "labels", N, Just(1)), SPLIT],
    outputs: &[mat("out", N, D)],
    domain: Domain::Vertices,
    ..PLAIN
};
const OVER_TARGETS: Record = Record { inputs: &[LOGITS, of(U8, "targets", N, D), SPLIT], ..OVER_LABELS };

static SOFTMAX: Record = Record {
    name: "softmax_cross_entropy",
    outputs: LOSS,
    sums: true,
    gradient: Gradient::OfLoss(|op, back| {
        let split = op.split().expect("a loss has a split");
        let dlogits = back.emit(Loss::SoftmaxCrossEntropyGrad(split), &[Value::X(0), Value::X(1), Value::X(2)]);
        back.give(0, dlogits);
    }),
    reference: |given| {
        vec![Array::Float(vec![reference::softmax_cross_entropy(&given.mat(0), given.labels(), None, given.count())])]
    },
    ..OVER_LABELS
};

static SOFTMAX_GRAD: Record = Record {
    name: "softmax_cross_entropy_grad",
    reference: |given| {
        vec![reference::softmax_cross_entropy_grad(&given.mat(0), given.labels(), None, given.count()).into()]
    },
    ..OVER_LABELS
};

const OVER_WEIGHTED_LABELS: &[Operand] =
    &[LOGITS, of(U32, "labels", N, Just(1)), SPLIT, of(F32, "weights", Just(1), D)];

static WEIGHTED_SOFTMAX: Record = Record {
    name: "weighted_softmax_cross_entropy",
    kernel: Some("softmax_cross_entropy"),
    inputs: OVER_WEIGHTED_LABELS,
    gradient: Gradient::OfLoss(|op, back| {
        let split = op.split().expect("a loss has a split");
        let given = [Value::X(0), Value::X(1), Value::X(2), Value::X(3)];
        let dlogits = back.emit(Loss::WeightedSoftmaxCrossEntropyGrad(split), &given);
        back.give(0, dlogits);
    }),
    reference: |given| {
        let weights = Some(given.floats(3));
        vec![Array::Float(vec![reference::softmax_cross_entropy(
            &given.mat(0),
            given.labels(),
            weights,
            given.count(),
        )])]
    },
    ..SOFTMAX
};

static WEIGHTED_SOFTMAX_GRAD: Record = Record {
    name: "weighted_softmax_cross_entropy_grad",
    kernel: Some("softmax_cross_entropy_grad"),
    inputs: OVER_WEIGHTED_LABELS,
    reference: |given| {
        let weights = Some(given.floats(3));
        vec![reference::softmax_cross_entropy_grad(&given.mat(0), given.labels(), weights, given.count()).into()]
    },
    ..OVER_LABELS
};

static COUNT_CORRECT: Record = Record {
    name: "count_correct",
    outputs: &[of(U64, "out", Scalar, Just(2))],
    sums: true,
    reference: |given| vec![Array::U64(reference::count_correct(&given.mat(0), given.labels()).to_vec())],
    ..OVER_LABELS
};

static SIGMOID: Record = Record {
    name: "sigmoid_cross_entropy",
    outputs: LOSS,
    sums: true,
    gradient: Gradient::OfLoss(|op, back| {
        let split = op.split().expect("a loss has a split");
        let dlogits = back.emit(Loss::SigmoidCrossEntropyGrad(split), &[Value::X(0), Value::X(1), Value::X(2)]);
        back.give(0, dlogits);
    }),
    reference: |given| {
        vec![Array::Float(vec![reference::sigmoid_cross_entropy(&given.mat(0), given.targets(), given.count())])]
    },
    ..OVER_TARGETS
};

static SIGMOID_GRAD: Record = Record {
    name: "sigmoid_cross_entropy_grad",
    reference: |given| {
        vec![reference::sigmoid_cross_entropy_grad(&given.mat(0), given.targets(), given.count()).into()]
    },
    ..OVER_TARGETS
};

static COUNT_MICRO: Record = Record {
    name: "count_micro",
    outputs: &[of(U64, "out", Scalar, Just(3))],
    sums: true,
    reference: |given| vec![Array::U64(reference::count_micro(&given.mat(0), given.targets()).to_vec())],
    ..OVER_TARGETS
};

static HALF_SQUARES: Record = Record {
    name: "half_squares",
    inputs: &[mat("x", N, D)],
    outputs: LOSS,
    domain: Domain::Vertices,
    sums: true,
    gradient: Gradient::OfLoss(|_, back| back.give(0, Value::X(0))),
    reference: |given| vec![Array::Float(vec![reference::half_squares(&given.mat(0))])],
    ..PLAIN
};

impl Loss {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::SoftmaxCrossEntropy(_) => &SOFTMAX,
            Self::SoftmaxCrossEntropyGrad(_) => &SOFTMAX_GRAD,
            Self::WeightedSoftmaxCrossEntropy(_) => &WEIGHTED_SOFTMAX,
            Self::WeightedSoftmaxCrossEntropyGrad(_) => &WEIGHTED_SOFTMAX_GRAD,
            Self::CountCorrect(_) => &COUNT_CORRECT,
            Self::SigmoidCrossEntropy(_) => &SIGMOID,
            Self::SigmoidCrossEntropyGrad(_) => &SIGMOID_GRAD,
            Self::CountMicro(_) => &COUNT_MICRO,
            Self::HalfSquares => &HALF_SQUARES,
        }
    }

    /// Returns the split of the loss; `None` if it is over all vertices.
    pub fn split(&self) -> Option<SplitName> {
        match *self {
            Self::SoftmaxCrossEntropy(split)
            | Self::SoftmaxCrossEntropyGrad(split)
            | Self::WeightedSoftmaxCrossEntropy(split)
            | Self::WeightedSoftmaxCrossEntropyGrad(split)
            | Self::CountCorrect(split)
            | Self::SigmoidCrossEntropy(split)
            | Self::SigmoidCrossEntropyGrad(split)
            | Self::CountMicro(split) => Some(split),
            Self::HalfSquares => None,
        }
    }
}
