//! Layer normalisation, as `torch.nn.LayerNorm`.

use super::oracle::Array;
use super::record::Dim::{D, Just, N};
use super::record::{Gradient, Operand, PLAIN, Record, Value, mat, of};
use super::types::DType::F32;
use super::{Linear, Op};
use crate::reference;

/// An operation of layer normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// `(x, gain, bias) -> (x - mean) / sqrt(variance + eps) * gain + bias` of each row, with the biased variance.
    Layer {
        /// Added to the variance.
        eps: f32,
    },
    /// `(dy, x, gain) -> dx`. The statistics of the rows are recomputed.
    InputGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// `(dy, x) -> sum over rows of dy * (x - mean) / sqrt(variance + eps)`, f32: the gradient of the gain. The
    /// gradient of the bias is [`Linear::ColumnSum`].
    GainGrad {
        /// Added to the variance.
        eps: f32,
    },
}

const GAIN: Operand = of(F32, "gain", Just(1), D);

static LAYER: Record = Record {
    name: "layer_norm",
    inputs: &[mat("x", N, D), GAIN, of(F32, "bias", Just(1), D)],
    outputs: &[mat("out", N, D)],
    gradient: Gradient::Rule(|op, back| {
        let eps = eps(op);
        let dx = back.emit(Norm::InputGrad { eps }, &[Value::Dy, Value::X(0), Value::X(1)]);
        let dgain = back.emit(Norm::GainGrad { eps }, &[Value::Dy, Value::X(0)]);
        let dbias = back.emit(Linear::ColumnSum, &[Value::Dy]);
        back.give(0, dx);
        back.give(1, dgain);
        back.give(2, dbias);
    }),
    reference: |given| {
        let (x, gain, bias) = (given.mat(0), given.floats(1), given.floats(2));
        vec![reference::layer_norm(&x, gain, bias, eps(given.op()).into()).into()]
    },
    ..PLAIN
};

static INPUT_GRAD: Record = Record {
    name: "layer_norm_input_grad",
    inputs: &[mat("grad", N, D), mat("x", N, D), GAIN],
    outputs: &[mat("out", N, D)],
    leads: 1,
    reference: |given| {
        let (grad, x) = (given.mat(0), given.mat(1));
        vec![reference::layer_norm_input_grad(&grad, &x, given.floats(2), eps(given.op()).into()).into()]
    },
    ..PLAIN
};

static GAIN_GRAD: Record = Record {
    name: "layer_norm_gain_grad",
    inputs: &[mat("grad", N, D), mat("x", N, D)],
    outputs: &[of(F32, "out", Just(1), D)],
    leads: 1,
    sums: true,
    reference: |given| {
        let (grad, x) = (given.mat(0), given.mat(1));
        vec![Array::Float(reference::layer_norm_gain_grad(&grad, &x, eps(given.op()).into()))]
    },
    ..PLAIN
};

fn eps(op: &Op) -> f32 {
    match *op {
        Op::Norm(Norm::Layer { eps } | Norm::InputGrad { eps } | Norm::GainGrad { eps }) => eps,
        _ => unreachable!("these are the rules of layer normalisations"),
    }
}

impl Norm {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Layer { .. } => &LAYER,
            Self::InputGrad { .. } => &INPUT_GRAD,
            Self::GainGrad { .. } => &GAIN_GRAD,
        }
    }
}
