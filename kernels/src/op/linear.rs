//! Matrix products, their gradients, and operations that prepare a weight for a product.

use super::oracle::Array;
use super::record::Dim::{D, Just, K, N};
use super::record::{Cost, Gradient, PLAIN, Record, Row, Value, mat, of};
use super::types::DType::{self, F32};
use crate::reference;

/// A product with a weight, or an operation that belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// `(x, w) -> x w^T`.
    Product,
    /// `(dy, w) -> dy w`: the gradient of the product with respect to its input.
    InputGrad,
    /// `(dy, x) -> dy^T x`, f32: the gradient of the product with respect to its weight. A call needs a workspace for
    /// partial sums of [`linear_weight_grad_workspace_bytes`](crate::linear_weight_grad_workspace_bytes), unless that
    /// is 0.
    WeightGrad,
    /// `(x) -> sum of the rows of x`, f32: the gradient of a bias.
    ColumnSum,
    /// `(x) -> x` rounded to bf16. Applied to a parameter that is multiplied with bf16 rows.
    Round,
    /// `(x) -> x^T`, for a parameter.
    Transpose,
}

static PRODUCT: Record = Record {
    name: "linear",
    inputs: &[mat("x", N, D), mat("weight", K, D)],
    outputs: &[mat("out", N, K)],
    row: Row::Head,
    cost: Cost::Product { k: 0, m: 2 },
    gradient: Gradient::Rule(|_, back| {
        let dw = back.emit(Linear::WeightGrad, &[Value::Dy, Value::X(0)]);
        let dx = back.emit(Linear::InputGrad, &[Value::Dy, Value::X(1)]);
        back.give(0, dx);
        back.give(1, dw);
    }),
    reference: |given| vec![reference::linear(&given.mat(0), &given.mat(1)).into()],
    ..PLAIN
};

static INPUT_GRAD: Record = Record {
    name: "linear_input_grad",
    inputs: &[mat("grad", N, K), mat("weight", K, D)],
    outputs: &[mat("out", N, D)],
    row: Row::Head,
    cost: Cost::Product { k: 0, m: 2 },
    reference: |given| vec![reference::linear_input_grad(&given.mat(0), &given.mat(1)).into()],
    ..PLAIN
};

static WEIGHT_GRAD: Record = Record {
    name: "linear_weight_grad",
    inputs: &[mat("grad", N, K), mat("x", N, D)],
    outputs: &[of(F32, "out", K, D)],
    leads: 1,
    sums: true,
    cost: Cost::Product { k: 1, m: 0 },
    reference: |given| vec![reference::linear_weight_grad(&given.mat(0), &given.mat(1)).into()],
    ..PLAIN
};

static COLUMN_SUM: Record = Record {
    name: "column_sum",
    inputs: &[mat("x", N, D)],
    outputs: &[of(F32, "out", Just(1), D)],
    sums: true,
    reference: |given| vec![Array::Float(reference::column_sum(&given.mat(0)))],
    ..PLAIN
};

static ROUND: Record = Record {
    name: "round",
    inputs: &[of(F32, "x", K, D)],
    outputs: &[of(DType::Bf16, "out", K, D)],
    gradient: Gradient::Rule(|_, back| back.give(0, Value::Dy)),
    // The oracle does not round.
    reference: |given| vec![given.mat(0).into()],
    ..PLAIN
};

static TRANSPOSE: Record = Record {
    name: "transpose",
    inputs: &[mat("x", K, D)],
    outputs: &[mat("out", D, K)],
    linear: true,
    cost: Cost::Fixed,
    gradient: Gradient::Rule(|_, back| {
        let dx = back.emit(Linear::Transpose, &[Value::Dy]);
        back.give(0, dx);
    }),
    reference: |given| vec![reference::transpose(&given.mat(0)).into()],
    ..PLAIN
};

impl Linear {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Product => &PRODUCT,
            Self::InputGrad => &INPUT_GRAD,
            Self::WeightGrad => &WEIGHT_GRAD,
            Self::ColumnSum => &COLUMN_SUM,
            Self::Round => &ROUND,
            Self::Transpose => &TRANSPOSE,
        }
    }
}
