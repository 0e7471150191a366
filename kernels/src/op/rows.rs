//! Row steps: operations on single rows of a matrix `[n, d]`.
//!
//! A row step is an operation by itself. It can also follow another operation in the same kernel, where it works on
//! rows that are still in a cache.

use super::Linear;
use super::record::Dim::{D, Just, N};
use super::record::{CLOCK, Domain, Gradient, PLAIN, Record, Row, Value, mat, of};
use super::types::DType::F32;
use crate::reference;

/// An operation on single rows of its first operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowStep {
    /// `(x, scale) -> scale[v] * x[v]`.
    Scale,
    /// `(x, bias) -> x[v] + bias`.
    AddBias,
    /// `(a, b) -> a + b`.
    Add,
    /// `(x) -> max(x, 0)`.
    Relu,
    /// `(dy, y) -> dy where y > 0, else 0`: the gradient of [`RowStep::Relu`], from its output.
    ReluGrad,
    /// `(x) -> x where x > 0, else alpha * (e^x - 1)`, as `torch.nn.ELU`.
    Elu {
        /// The limit towards minus infinity is `-alpha`.
        alpha: f32,
    },
    /// `(dy, y) -> dy where y > 0, else dy * (y + alpha)`: the gradient of [`RowStep::Elu`], from its output.
    EluGrad {
        /// `alpha` of the ELU.
        alpha: f32,
    },
    /// `(x) -> x where x > 0, else slope * x`, as `torch.nn.LeakyReLU`.
    LeakyRelu {
        /// Factor for numbers below 0; above 0.
        slope: f32,
    },
    /// `(dy, y) -> dy where y > 0, else slope * dy`: the gradient of [`RowStep::LeakyRelu`], from its output.
    LeakyReluGrad {
        /// `slope` of the leaky ReLU.
        slope: f32,
    },
    /// `(x) -> by * x`.
    Multiply {
        /// The factor.
        by: f32,
    },
    /// `(x, clock) -> x / (1 - rate)` in the cells that are kept, 0 in the others. It is its own gradient.
    Dropout {
        /// Share of cells that are set to 0, in `[0, 1)`.
        rate: f32,
        /// Number of this dropout in the model.
        salt: u32,
        /// The number of the first column, if `x` is a strip of columns of a matrix; else 0.
        first_column: u32,
    },
}

/// The record that the row steps share.
const STEP: Record = Record { inputs: &[mat("x", N, D)], outputs: &[mat("out", N, D)], ..PLAIN };

static SCALE: Record = Record {
    name: "row_scale",
    inputs: &[mat("x", N, D), of(F32, "scale", N, Just(1))],
    row: Row::Step { short: "scale", code: 0 },
    gradient: Gradient::Rule(|_, back| {
        let dx = back.emit(RowStep::Scale, &[Value::Dy, Value::X(1)]);
        back.give(0, dx);
    }),
    reference: |given| vec![reference::row_scale(&given.mat(0), given.floats(1)).into()],
    ..STEP
};

static ADD_BIAS: Record = Record {
    name: "add_bias",
    inputs: &[mat("x", N, D), of(F32, "bias", Just(1), D)],
    row: Row::Step { short: "bias", code: 1 },
    gradient: Gradient::Rule(|_, back| {
        let db = back.emit(Linear::ColumnSum, &[Value::Dy]);
        back.give(0, Value::Dy);
        back.give(1, db);
    }),
    reference: |given| vec![reference::add_bias(&given.mat(0), given.floats(1)).into()],
    ..STEP
};

static ADD: Record = Record {
    name: "add",
    inputs: &[mat("a", N, D), mat("b", N, D)],
    leads: 2,
    row: Row::Step { short: "add", code: 2 },
    linear: true,
    gradient: Gradient::Rule(|_, back| {
        back.give(0, Value::Dy);
        back.give(1, Value::Dy);
    }),
    reference: |given| vec![reference::add(&given.mat(0), &given.mat(1)).into()],
    ..STEP
};

static RELU: Record = Record {
    name: "relu",
    row: Row::Step { short: "relu", code: 3 },
    gradient: Gradient::Rule(|_, back| {
        let dx = back.emit(RowStep::ReluGrad, &[Value::Dy, Value::Y]);
        back.give(0, dx);
    }),
    reference: |given| vec![reference::relu(&given.mat(0)).into()],
    ..STEP
};

static RELU_GRAD: Record = Record {
    name: "relu_grad",
    inputs: &[mat("grad", N, D), mat("y", N, D)],
    leads: 2,
    row: Row::Step { short: "relu_grad", code: 4 },
    reference: |given| vec![reference::relu_grad(&given.mat(0), &given.mat(1)).into()],
    ..STEP
};

static ELU: Record = Record {
    name: "elu",
    row: Row::Step { short: "elu", code: 6 },
    gradient: Gradient::Rule(|op, back| {
        let alpha = op.as_row_step().map_or(0.0, |step| step.number());
        let dx = back.emit(RowStep::EluGrad { alpha }, &[Value::Dy, Value::Y]);
        back.give(0, dx);
    }),
    reference: |given| vec![given.mat(0).map(|x| if x > 0.0 { x } else { given.number() * x.exp_m1() }).into()],
    ..STEP
};

static ELU_GRAD: Record = Record {
    name: "elu_grad",
    inputs: &[mat("grad", N, D), mat("y", N, D)],
    leads: 2,
    row: Row::Step { short: "elu_grad", code: 7 },
    reference: |given| {
        let dx = |dy: f64, y: f64| if y > 0.0 { dy } else { dy * (y + given.number()) };
        vec![given.mat(0).zip(&given.mat(1), dx).into()]
    },
    ..STEP
};

static LEAKY_RELU: Record = Record {
    name: "leaky_relu",
    row: Row::Step { short: "leaky_relu", code: 8 },
    gradient: Gradient::Rule(|op, back| {
        let slope = op.as_row_step().map_or(0.0, |step| step.number());
        let dx = back.emit(RowStep::LeakyReluGrad { slope }, &[Value::Dy, Value::Y]);
        back.give(0, dx);
    }),
    reference: |given| vec![given.mat(0).map(|x| if x > 0.0 { x } else { given.number() * x }).into()],
    ..STEP
};

static LEAKY_RELU_GRAD: Record = Record {
    name: "leaky_relu_grad",
    inputs: &[mat("grad", N, D), mat("y", N, D)],
    leads: 2,
    row: Row::Step { short: "leaky_relu_grad", code: 9 },
    reference: |given| {
        let dx = |dy: f64, y: f64| if y > 0.0 { dy } else { given.number() * dy };
        vec![given.mat(0).zip(&given.mat(1), dx).into()]
    },
    ..STEP
};

static MULTIPLY: Record = Record {
    name: "multiply",
    row: Row::Step { short: "multiply", code: 10 },
    linear: true,
    gradient: Gradient::Rule(|op, back| {
        let dx = back.emit(op.clone(), &[Value::Dy]);
        back.give(0, dx);
    }),
    reference: |given| vec![given.mat(0).map(|x| given.number() * x).into()],
    ..STEP
};

static DROPOUT: Record = Record {
    name: "dropout",
    inputs: &[mat("x", N, D), CLOCK],
    domain: Domain::VerticesOrTheirEdges,
    row: Row::Step { short: "dropout", code: 5 },
    gradient: Gradient::Rule(|op, back| {
        let dx = back.emit(op.clone(), &[Value::Dy, Value::X(1)]);
        back.give(0, dx);
    }),
    reference: |given| vec![reference::dropout(&given.mat(0), given.dropout(), given.u64s(1)[0]).into()],
    ..STEP
};

impl RowStep {
    /// One of each step, for tests that run every step.
    pub const EACH: [Self; 11] = [
        Self::Scale,
        Self::AddBias,
        Self::Add,
        Self::Relu,
        Self::ReluGrad,
        Self::Dropout { rate: 0.4, salt: 2, first_column: 3 },
        Self::Elu { alpha: 0.75 },
        Self::EluGrad { alpha: 0.75 },
        Self::LeakyRelu { slope: 0.25 },
        Self::LeakyReluGrad { slope: 0.25 },
        Self::Multiply { by: -1.5 },
    ];

    /// Returns the scalar argument that the kernel receives beside the operands; 0 if there is none.
    pub fn number(&self) -> f32 {
        match *self {
            Self::Elu { alpha } | Self::EluGrad { alpha } => alpha,
            Self::LeakyRelu { slope } | Self::LeakyReluGrad { slope } => slope,
            Self::Multiply { by } => by,
            Self::Scale | Self::AddBias | Self::Add | Self::Relu | Self::ReluGrad | Self::Dropout { .. } => 0.0,
        }
    }

    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Scale => &SCALE,
            Self::AddBias => &ADD_BIAS,
            Self::Add => &ADD,
            Self::Relu => &RELU,
            Self::ReluGrad => &RELU_GRAD,
            Self::Elu { .. } => &ELU,
            Self::EluGrad { .. } => &ELU_GRAD,
            Self::LeakyRelu { .. } => &LEAKY_RELU,
            Self::LeakyReluGrad { .. } => &LEAKY_RELU_GRAD,
            Self::Multiply { .. } => &MULTIPLY,
            Self::Dropout { .. } => &DROPOUT,
        }
    }
}
