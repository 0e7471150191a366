//! Matrix products, their gradients, and operations that prepare a weight for a product.

use super::oracle::Array;
use super::record::Dim::{Any, D, Just, K, MadeCols, MadeRows, N};
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
    /// `(x, w, sum) -> sum + x w^T`: goes on with a product whose first columns are done. Each cell has the bits that one
    /// product of all columns would have.
    ProductOnto,
    /// `(dy, w, sum) -> sum + dy w`: the same for [`Linear::InputGrad`].
    InputGradOnto,
    /// `(x) -> part of x`, for a parameter.
    Slice(Slice),
    /// `(parts..) -> whole`: a parameter from its parts, row by row of the grid.
    Join(Grid),
    /// `(x) -> strip`: some columns of a matrix with any number of rows.
    Columns {
        /// The first column.
        first: usize,
        /// Number of columns.
        count: usize,
    },
    /// `(strips..) -> whole`: a matrix from its strips of columns.
    Beside {
        /// Number of strips.
        strips: usize,
        /// Number of columns of the whole.
        cols: usize,
    },
}

/// A rectangle of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The first row and column.
    pub first: [usize; 2],
    /// Number of rows and columns.
    pub shape: [usize; 2],
}

/// A matrix that is cut into a grid of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of rows and columns of the whole.
    pub shape: [usize; 2],
    /// Number of parts, down and across.
    pub parts: [usize; 2],
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

static PRODUCT_ONTO: Record = Record {
    name: "linear_onto",
    inputs: &[mat("x", N, D), mat("weight", K, D), mat("sum", N, K)],
    gradient: Gradient::None,
    reference: |given| {
        let product = reference::linear(&given.mat(0), &given.mat(1));
        vec![reference::add(&given.mat(2), &product).into()]
    },
    ..PRODUCT
};

static INPUT_GRAD_ONTO: Record = Record {
    name: "linear_input_grad_onto",
    inputs: &[mat("grad", N, K), mat("weight", K, D), mat("sum", N, D)],
    reference: |given| {
        let product = reference::linear_input_grad(&given.mat(0), &given.mat(1));
        vec![reference::add(&given.mat(2), &product).into()]
    },
    ..INPUT_GRAD
};

static SLICE: Record = Record {
    name: "slice",
    inputs: &[of(F32, "x", K, D)],
    outputs: &[of(F32, "out", MadeRows, MadeCols)],
    cost: Cost::Fixed,
    reference: |given| {
        let Slice { first, shape } = given.rectangle();
        vec![reference::slice(&given.mat(0), first, shape).into()]
    },
    ..PLAIN
};

static JOIN: Record = Record {
    name: "join",
    inputs: &[of(F32, "part", Any, Any)],
    outputs: &[of(F32, "out", MadeRows, MadeCols)],
    linear: true,
    cost: Cost::Fixed,
    reference: |given| {
        let parts: Vec<_> = (0..given.count_operands()).map(|part| given.mat(part)).collect();
        vec![reference::join(&parts, given.grid().parts[1]).into()]
    },
    ..PLAIN
};

static COLUMNS: Record = Record {
    name: "columns",
    inputs: &[of(F32, "x", N, D)],
    outputs: &[of(F32, "out", N, MadeCols)],
    cost: Cost::Copy,
    ..SLICE
};

static BESIDE: Record = Record {
    name: "beside",
    inputs: &[of(F32, "strip", N, Any)],
    outputs: &[of(F32, "out", N, MadeCols)],
    linear: false,
    cost: Cost::Copy,
    ..JOIN
};

impl Linear {
    /// Returns the number of rows and columns of the output, where they do not follow from the operands.
    pub fn made(&self) -> [Option<usize>; 2] {
        match *self {
            Self::Slice(Slice { shape, .. }) | Self::Join(Grid { shape, .. }) => shape.map(Some),
            Self::Columns { count: cols, .. } | Self::Beside { cols, .. } => [None, Some(cols)],
            _ => [None, None],
        }
    }

    /// Returns the rectangle that the operation copies from an operand with this many rows, if it does.
    pub(crate) fn rectangle(&self, rows: usize) -> Option<Slice> {
        match *self {
            Self::Slice(slice) => Some(slice),
            Self::Columns { first, count } => Some(Slice { first: [0, first], shape: [rows, count] }),
            _ => None,
        }
    }

    /// Returns the grid from which the operation joins an output with this many rows, if it does.
    pub(crate) fn grid(&self, rows: usize) -> Option<Grid> {
        match *self {
            Self::Join(grid) => Some(grid),
            Self::Beside { strips, cols } => Some(Grid { shape: [rows, cols], parts: [1, strips] }),
            _ => None,
        }
    }

    /// Returns how many operands there are, if the record does not say it.
    pub fn operand_count(&self) -> Option<usize> {
        match *self {
            Self::Join(Grid { parts: [down, across], .. }) => Some(down.saturating_mul(across)),
            Self::Beside { strips, .. } => Some(strips),
            _ => None,
        }
    }

    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Product => &PRODUCT,
            Self::InputGrad => &INPUT_GRAD,
            Self::WeightGrad => &WEIGHT_GRAD,
            Self::ColumnSum => &COLUMN_SUM,
            Self::Round => &ROUND,
            Self::Transpose => &TRANSPOSE,
            Self::ProductOnto => &PRODUCT_ONTO,
            Self::InputGradOnto => &INPUT_GRAD_ONTO,
            Self::Slice(_) => &SLICE,
            Self::Join(_) => &JOIN,
            Self::Columns { .. } => &COLUMNS,
            Self::Beside { .. } => &BESIDE,
        }
    }
}
