//! Attention over in-neighbours: a gather whose edge weights are computed from the rows of both ends.
//!
//! No tensor has a row per edge. The forward pass keeps, for each row and head, the logarithm of the sum of its
//! exponentials; the backward pass computes the weights again from it.

mod reference;

use super::oracle::{Array, Given};
use super::record::Dim::{AllSources, BlockRows, Cols, D, Edges, Just, N, Sources};
use super::record::{CLOCK, Cost, Dim, Gradient, Operand, PLAIN, Record, Row, Stored, Value, mat, of};
use super::types::{BatchEdges, BlockSpec, DType, LoopWeight};
use super::{Gather, Linear, Op};
use crate::reference::Dense;

/// The score of an edge u -> v and a head, before the softmax over the in-edges of v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// `leaky_relu(s[u] + t[v])`. The rows of both ends are `[x | s | t]`, `[d + 2 heads]`.
    ///
    /// Source: Veličković et al., ICLR 2018.
    Gat,
    /// `sum over the head's columns of a * leaky_relu(x[u] + y[v])`. The rows of the ends are `x` and `y`, `[d]`.
    ///
    /// Source: Brody, Alon & Yahav, ICLR 2022.
    Gatv2,
}

/// What a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionPass {
    /// `(sources, rows, ..) -> (out, log_sum)`: `out[v] = sum over u of weight * x[u]`, and the base-2 logarithm of the
    /// sum of the row's exponentials, f32 `[n, heads]`.
    Forward,
    /// `(sources, rows, ..) -> state`: the same over some sources only, f32 `[n, d + 2 heads]`: the sums so far, and
    /// for each head an integer near its exponents, and the sum of the exponentials divided by two to its power.
    /// Lowering creates it for all windows but the last.
    Partial,
    /// Over the transposed block, `(grads, rows, ..) -> gradient of the source's row`; for [`Score::Gat`], its last
    /// columns are the third operand. `grads` are rows of [`AttentionRows::Grads`].
    SourceGrad,
    /// `(sources, grads, ..) -> gradients of a row's own part of the score`: of `t`, `[n, heads]`, or of `y` and `a`,
    /// `[n, 2 d]`; then that of the edge vector, if there is one, `[n, heads]` or `[n, d]`.
    TargetGrad,
}

/// Attention over a block. `d` columns are split into heads of equal width.
///
/// In the output of [`AttentionPass::Forward`] the heads are side by side. In all other matrices, the columns of a group
/// of heads alternate, so that the same column of all its heads is one piece of memory: see [`head_groups`].
///
/// Operands after the two matrices: for [`Score::Gatv2`], `a`, f32 `[1, d]`; with `edge_values`, f32 `[edges]` and the
/// vector by which an edge's value is multiplied before it is added to the score, f32 `[1, heads]` or `[1, d]`; with
/// `dropout`, the clock and the global ids of the block's sources, u32.
///
/// A call may be a *window*, as in [`super::Gather`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The block.
    pub block: BlockSpec,
    /// The score.
    pub score: Score,
    /// Number of heads.
    pub heads: usize,
    /// Slope of the leaky ReLU below 0.
    pub slope: f32,
    /// Dropout of the weights.
    pub dropout: Option<WeightDropout>,
    /// Whether edges have values that are part of the score.
    pub edge_values: bool,
    /// What is computed.
    pub pass: AttentionPass,
}

/// Returns the groups of heads whose columns alternate: the first head and the number of heads of each, which is 8, 4, 2 or
/// 1. Column `c` of head `h` of a group that starts at head `first` is at `first * width + c * size + h - first`.
pub fn head_groups(heads: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|&size| size <= heads - first)?;
        first += size;
        Some((first - size, size))
    })
}

/// Returns, for each column of heads that are side by side, its place where the columns of a group alternate.
pub fn alternating_columns(heads: usize, width: usize) -> Vec<usize> {
    let places = head_groups(heads).flat_map(|(first, size)| {
        (first..first + size).flat_map(move |head| (0..width).map(move |c| first * width + c * size + head - first))
    });
    places.collect()
}

/// Dropout of attention weights: [`super::RowStep::Dropout`], whose cells are the edges of a destination and the heads.
/// The draw depends on the global ids of both ends, so the transposed pass draws the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightDropout {
    /// Share of weights that are set to 0.
    pub rate: f32,
    /// Number of this dropout in the model.
    pub salt: u32,
}

/// Operations on single rows, or on parameters, that belong to attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionRows {
    /// `(dy, y, log_sum, rows) -> [dy | t or y of the row | log_sum | sum of dy * y for each head]`, f32: what the
    /// passes backward need from a destination, `[n, d + 3 heads]` or `[n, 2 d + 2 heads]`.
    Grads {
        /// Number of heads.
        heads: usize,
        /// The score.
        score: Score,
    },
    /// `(x) -> `columns `part * len ..` of `x`, where `len` is the number of columns divided by `parts`.
    Columns {
        /// Number of parts.
        parts: usize,
        /// The part that is copied.
        part: usize,
    },
    /// `(x, a) -> sum of x * a for each head`, for parameters: `x` and `a` are `[1, d]`.
    HeadDots {
        /// Number of heads.
        heads: usize,
    },
    /// `(dy, a) -> dx` of [`AttentionRows::HeadDots`]: `a`, multiplied by the number of its head.
    HeadScale {
        /// Number of heads.
        heads: usize,
    },
    /// `(x) -> `the rows of `x`, heads side by side, in alternating order; or the inverse.
    Alternate {
        /// Number of heads.
        heads: usize,
        /// Whether alternating rows become heads side by side.
        inverse: bool,
    },
    /// `(w, a, b) -> [w; a w; b w]`, for parameters: `w` is `[d, k]`, `a` and `b` are `[1, d]`, and `a w` has one row
    /// for each head. The rows of `w` alternate in the result. A product with it makes the rows of [`Score::Gat`].
    ScoreWeight {
        /// Number of heads.
        heads: usize,
    },
    /// `(dy, a, b) -> dw` of [`AttentionRows::ScoreWeight`].
    ScoreWeightGrad {
        /// Number of heads.
        heads: usize,
    },
    /// `(dy, w) -> da` of [`AttentionRows::ScoreWeight`], or `db`.
    ScoreVectorGrad {
        /// Number of heads.
        heads: usize,
        /// Whether it is `db`.
        second: bool,
    },
}

/// `d + 2 heads` columns.
const SCORED: Dim = Cols { d: 1, heads: 2 };
/// One column per head.
const HEADS: Dim = Cols { d: 0, heads: 1 };
const VALUES: Operand = of(DType::F32, "edge_values", Edges, Just(1));
const IDS: Operand = of(DType::U32, "source_ids", AllSources, Just(1));
const A: Operand = of(DType::F32, "a", Just(1), D);

/// Returns the operand that multiplies the values of the edges.
const fn edge(cols: Dim) -> Operand {
    of(DType::F32, "edge_vector", Just(1), cols)
}

/// Returns an output that windows add to.
const fn sum(cols: Dim) -> Operand {
    Operand { name: "out", rows: BlockRows, cols, stored: Stored::Sum }
}

const fn grads(rows: Dim, cols: Dim) -> Operand {
    of(DType::F32, "grads", rows, cols)
}

/// The records of one pass and score: plain, with edge values, with dropout, with both.
macro_rules! records {
    ($name:literal, [$($input:expr),*], $edge:expr, $gradient:expr, [$($output:expr),*], [$($with_edges:expr),*]) => {
        [
            Record { inputs: &[$($input),*], outputs: &[$($output),*], name: $name, gradient: $gradient, ..PASS },
            Record {
                inputs: &[$($input,)* VALUES, edge($edge)],
                outputs: &[$($with_edges),*],
                name: $name,
                gradient: $gradient,
                ..PASS
            },
            Record {
                inputs: &[$($input,)* CLOCK, IDS],
                outputs: &[$($output),*],
                name: $name,
                gradient: $gradient,
                ..PASS
            },
            Record {
                inputs: &[$($input,)* VALUES, edge($edge), CLOCK, IDS],
                outputs: &[$($with_edges),*],
                name: $name,
                gradient: $gradient,
                ..PASS
            },
        ]
    };
}

const PASS: Record = Record { cost: Cost::Gather, reference: pass_reference, ..PLAIN };
const FORWARD: Gradient = Gradient::Rule(|op, back| {
    let Op::Attention(op) = *op else { unreachable!("this is the rule of attention") };
    op.backward(back);
});

static GAT_FORWARD: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, SCORED), mat("rows", BlockRows, SCORED)];
    const OUT: [Operand; 2] = [mat("out", BlockRows, D), of(DType::F32, "log_sum", BlockRows, HEADS)];
    let all = records!("attention", [IN[0], IN[1]], HEADS, FORWARD, [OUT[0], OUT[1]], [OUT[0], OUT[1]]);
    heads(all)
};
static GAT_PARTIAL: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, SCORED), mat("rows", BlockRows, SCORED)];
    const OUT: Operand = of(DType::F32, "state", BlockRows, SCORED);
    records!("attention_window", [IN[0], IN[1]], HEADS, Gradient::None, [OUT], [OUT])
};
static GAT_SOURCE: [Record; 4] = {
    const IN: [Operand; 3] = [
        grads(Sources, Cols { d: 1, heads: 3 }),
        mat("rows", BlockRows, SCORED),
        of(DType::F32, "target_grad", BlockRows, HEADS),
    ];
    const OUT: Operand = sum(SCORED);
    records!("attention_source_grad", [IN[0], IN[1], IN[2]], HEADS, Gradient::None, [OUT], [OUT])
};
static GAT_TARGET: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, SCORED), grads(BlockRows, Cols { d: 1, heads: 3 })];
    const OUT: [Operand; 2] =
        [of(DType::F32, "out", BlockRows, HEADS), of(DType::F32, "out", BlockRows, Cols { d: 0, heads: 2 })];
    records!("attention_target_grad", [IN[0], IN[1]], HEADS, Gradient::None, [OUT[0]], [OUT[1]])
};
static GATV2_FORWARD: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, D), mat("rows", BlockRows, D)];
    const OUT: [Operand; 2] = [mat("out", BlockRows, D), of(DType::F32, "log_sum", BlockRows, HEADS)];
    let all = records!("attention_v2", [IN[0], IN[1], A], D, FORWARD, [OUT[0], OUT[1]], [OUT[0], OUT[1]]);
    heads(all)
};
static GATV2_PARTIAL: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, D), mat("rows", BlockRows, D)];
    const OUT: Operand = of(DType::F32, "state", BlockRows, SCORED);
    records!("attention_v2_window", [IN[0], IN[1], A], D, Gradient::None, [OUT], [OUT])
};
static GATV2_SOURCE: [Record; 4] = {
    const IN: [Operand; 2] = [grads(Sources, Cols { d: 2, heads: 2 }), mat("rows", BlockRows, D)];
    const OUT: Operand = sum(D);
    records!("attention_v2_source_grad", [IN[0], IN[1], A], D, Gradient::None, [OUT], [OUT])
};
static GATV2_TARGET: [Record; 4] = {
    const IN: [Operand; 2] = [mat("sources", Sources, D), grads(BlockRows, Cols { d: 2, heads: 2 })];
    const OUT: [Operand; 2] = [sum(Cols { d: 2, heads: 0 }), sum(Cols { d: 3, heads: 0 })];
    records!("attention_v2_target_grad", [IN[0], IN[1], A], D, Gradient::None, [OUT[0]], [OUT[1]])
};

/// Returns the same records for operations that row steps can follow.
const fn heads(mut all: [Record; 4]) -> [Record; 4] {
    let mut i = 0;
    while i < all.len() {
        all[i].row = Row::Head;
        i += 1;
    }
    all
}

impl Attention {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        let records = match (self.score, self.pass) {
            (Score::Gat, AttentionPass::Forward) => &GAT_FORWARD,
            (Score::Gat, AttentionPass::Partial) => &GAT_PARTIAL,
            (Score::Gat, AttentionPass::SourceGrad) => &GAT_SOURCE,
            (Score::Gat, AttentionPass::TargetGrad) => &GAT_TARGET,
            (Score::Gatv2, AttentionPass::Forward) => &GATV2_FORWARD,
            (Score::Gatv2, AttentionPass::Partial) => &GATV2_PARTIAL,
            (Score::Gatv2, AttentionPass::SourceGrad) => &GATV2_SOURCE,
            (Score::Gatv2, AttentionPass::TargetGrad) => &GATV2_TARGET,
        };
        &records[usize::from(self.edge_values) + 2 * usize::from(self.dropout.is_some())]
    }

    /// Returns the index of the operand `a`.
    pub fn place_of_a(&self) -> Option<usize> {
        (self.score == Score::Gatv2).then_some(2)
    }

    /// Returns the index of the values of the edges. The edge vector follows.
    pub fn place_of_edge_values(&self) -> Option<usize> {
        let extra = self.score == Score::Gatv2 || self.pass == AttentionPass::SourceGrad;
        self.edge_values.then_some(2 + usize::from(extra))
    }

    /// Returns the index of the clock. The ids of the sources follow.
    pub fn place_of_clock(&self) -> Option<usize> {
        self.dropout.map(|_| self.record().inputs.len() - 2)
    }

    /// Appends the passes backward.
    fn backward(self, back: &mut super::Backward) {
        use AttentionPass::{SourceGrad, TargetGrad};
        let (heads, score) = (self.heads, self.score);
        let of_rows = [Value::Dy, Value::Y, Value::Output(1), Value::X(1)];
        let grads = back.emit(AttentionRows::Grads { heads, score }, &of_rows);
        let a = self.place_of_a().map(Value::X);
        let (values, vector) = match self.place_of_edge_values() {
            Some(place) => (Some(Value::X(place)), Some(Value::X(place + 1))),
            None => (None, None),
        };
        let drawn = |ids| {
            let clock = self.place_of_clock().map(Value::X);
            clock.into_iter().chain(clock.map(|_| ids))
        };
        let ids = Value::SourceIds(self.block);
        let target: Vec<_> = [Value::X(0), grads].into_iter().chain(a).chain(values).chain(vector).collect();
        let target: Vec<_> = target.into_iter().chain(drawn(ids)).collect();
        let target = back.emit(Self { pass: TargetGrad, ..self }, &target);
        let vectors = 2 + usize::from(self.edge_values);
        let part = |back: &mut super::Backward, parts, part| {
            if parts == 1 { target } else { back.emit(AttentionRows::Columns { parts, part }, &[target]) }
        };
        let of_target = match score {
            Score::Gat => part(back, vectors - 1, 0),
            Score::Gatv2 => part(back, vectors, 0),
        };
        let block = self.block.transpose();
        let own = match (score, self.block) {
            (Score::Gatv2, _) => a,
            // The rows of a batch's block are some of its sources: the others have no part of a destination.
            (Score::Gat, BlockSpec::Batch { level, .. }) => {
                let own = BlockSpec::Batch { edges: BatchEdges::Own, level, transposed: true };
                Some(back.emit(Gather::over(own), &[of_target]))
            }
            (Score::Gat, _) => Some(of_target),
        };
        let values = values.map(|_| Value::EdgeWeights(block, LoopWeight::Mean));
        let source = [grads, Value::X(0)].into_iter().chain(own).chain(values).chain(vector);
        let source: Vec<_> = source.chain(drawn(Value::SourceIds(block))).collect();
        let of_source = back.emit(Self { pass: SourceGrad, block, ..self }, &source);
        back.give(0, of_source);
        if score == Score::Gat {
            // The rows of both ends are one tensor, so the gradient of the source has that of the destination.
            back.cover(1);
        } else {
            back.give(1, of_target);
            let of_a = part(back, vectors, 1);
            let of_a = back.emit(Linear::ColumnSum, &[of_a]);
            back.give(2, of_a);
        }
        if let Some(place) = self.place_of_edge_values() {
            let (parts, last) = if score == Score::Gat { (2, 1) } else { (3, 2) };
            let of_edges = part(back, parts, last);
            let of_edges = back.emit(Linear::ColumnSum, &[of_edges]);
            back.give(place + 1, of_edges);
        }
    }
}

fn pass_reference(given: &Given<'_>) -> Vec<Array> {
    let Op::Attention(op) = *given.op() else { unreachable!("this is the reference of attention") };
    reference::attention(given, &op)
}

static GAT_GRADS: Record = Record {
    name: "attention_grads",
    inputs: &[mat("grad", N, D), mat("y", N, D), of(DType::F32, "log_sum", N, HEADS), mat("rows", N, SCORED)],
    outputs: &[grads(N, Cols { d: 1, heads: 3 })],
    reference: |given| vec![reference::attention_grads(given, heads_of(given), Score::Gat).into()],
    ..PLAIN
};
static GATV2_GRADS: Record = Record {
    name: "attention_v2_grads",
    inputs: &[mat("grad", N, D), mat("y", N, D), of(DType::F32, "log_sum", N, HEADS), mat("rows", N, D)],
    outputs: &[grads(N, Cols { d: 2, heads: 2 })],
    reference: |given| vec![reference::attention_grads(given, heads_of(given), Score::Gatv2).into()],
    ..PLAIN
};
static HALF: Record = columns(&[mat("x", N, Cols { d: 2, heads: 0 })]);
static THIRD: Record = columns(&[mat("x", N, Cols { d: 3, heads: 0 })]);
static COLUMNS: [Operand; 1] = [mat("out", N, D)];

const fn columns(inputs: &'static [Operand]) -> Record {
    Record {
        name: "columns",
        inputs,
        outputs: &COLUMNS,
        reference: |given| {
            let Op::AttentionRows(AttentionRows::Columns { parts, part }) = *given.op() else {
                unreachable!("this is the reference of columns")
            };
            let x = given.mat(0);
            let len = x.cols / parts;
            vec![Dense::from_fn(x.rows, len, |r, c| x.at(r, part * len + c)).into()]
        },
        ..PLAIN
    }
}

static HEAD_DOTS: Record = Record {
    name: "head_dots",
    inputs: &[of(DType::F32, "x", Just(1), D), A],
    outputs: &[of(DType::F32, "out", Just(1), HEADS)],
    cost: Cost::Fixed,
    gradient: Gradient::Rule(|op, back| {
        let heads = op.heads().expect("it has heads");
        for (place, other) in [(0, 1), (1, 0)] {
            let gradient = back.emit(AttentionRows::HeadScale { heads }, &[Value::Dy, Value::X(other)]);
            back.give(place, gradient);
        }
    }),
    reference: |given| {
        let (x, a, heads) = (given.floats(0), given.floats(1), heads_of(given));
        let width = x.len() / heads;
        let dot = |head: usize| (head * width..(head + 1) * width).map(|c| x[c] * a[c]).sum();
        vec![Array::Float((0..heads).map(dot).collect())]
    },
    ..PLAIN
};
static HEAD_SCALE: Record = Record {
    name: "head_scale",
    inputs: &[of(DType::F32, "grad", Just(1), HEADS), A],
    outputs: &[of(DType::F32, "out", Just(1), D)],
    cost: Cost::Fixed,
    reference: |given| {
        let (grad, a) = (given.floats(0), given.floats(1));
        let width = a.len() / grad.len();
        vec![Array::Float(a.iter().enumerate().map(|(c, a)| grad[c / width] * a).collect())]
    },
    ..PLAIN
};
static ALTERNATE: Record = Record {
    name: "alternate",
    inputs: &[of(DType::F32, "x", D, Dim::K)],
    outputs: &[of(DType::F32, "out", D, Dim::K)],
    linear: true,
    cost: Cost::Fixed,
    gradient: Gradient::Rule(|op, back| {
        let Op::AttentionRows(AttentionRows::Alternate { heads, inverse }) = *op else {
            unreachable!("this is the rule of an order of rows")
        };
        let dx = back.emit(AttentionRows::Alternate { heads, inverse: !inverse }, &[Value::Dy]);
        back.give(0, dx);
    }),
    reference: |given| {
        let inverse = matches!(given.op(), Op::AttentionRows(AttentionRows::Alternate { inverse: true, .. }));
        let (x, heads) = (given.mat(0), heads_of(given));
        let places = alternating_columns(heads, x.rows / heads);
        let mut out = x.clone();
        for (row, place) in places.into_iter().enumerate() {
            let (from, to) = if inverse { (place, row) } else { (row, place) };
            out.data[to * x.cols..(to + 1) * x.cols].copy_from_slice(x.row(from));
        }
        vec![out.into()]
    },
    ..PLAIN
};
static SCORE_WEIGHT: Record = Record {
    name: "score_weight",
    inputs: &[of(DType::F32, "w", D, Dim::K), A, of(DType::F32, "b", Just(1), D)],
    outputs: &[of(DType::F32, "out", SCORED, Dim::K)],
    cost: Cost::Fixed,
    gradient: Gradient::Rule(|op, back| {
        let heads = op.heads().expect("it has heads");
        let dw = back.emit(AttentionRows::ScoreWeightGrad { heads }, &[Value::Dy, Value::X(1), Value::X(2)]);
        back.give(0, dw);
        for (place, second) in [(1, false), (2, true)] {
            let gradient = back.emit(AttentionRows::ScoreVectorGrad { heads, second }, &[Value::Dy, Value::X(0)]);
            back.give(place, gradient);
        }
    }),
    reference: |given| vec![reference::score_weight(given, heads_of(given)).into()],
    ..PLAIN
};
static SCORE_WEIGHT_GRAD: Record = Record {
    name: "score_weight_grad",
    inputs: &[of(DType::F32, "grad", SCORED, Dim::K), A, of(DType::F32, "b", Just(1), D)],
    outputs: &[of(DType::F32, "out", D, Dim::K)],
    leads: 1,
    cost: Cost::Fixed,
    reference: |given| vec![reference::score_weight_grad(given, heads_of(given)).into()],
    ..PLAIN
};
static SCORE_VECTOR_GRAD: Record = Record {
    name: "score_vector_grad",
    inputs: &[of(DType::F32, "grad", SCORED, Dim::K), of(DType::F32, "w", D, Dim::K)],
    outputs: &[of(DType::F32, "out", Just(1), D)],
    leads: 1,
    cost: Cost::Fixed,
    reference: |given| {
        let second = matches!(given.op(), Op::AttentionRows(AttentionRows::ScoreVectorGrad { second: true, .. }));
        vec![reference::score_vector_grad(given, heads_of(given), second).into()]
    },
    ..PLAIN
};

fn heads_of(given: &Given<'_>) -> usize {
    given.op().heads().expect("it has heads")
}

impl AttentionRows {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Grads { score: Score::Gat, .. } => &GAT_GRADS,
            Self::Grads { score: Score::Gatv2, .. } => &GATV2_GRADS,
            Self::Columns { parts: 3, .. } => &THIRD,
            Self::Columns { .. } => &HALF,
            Self::HeadDots { .. } => &HEAD_DOTS,
            Self::HeadScale { .. } => &HEAD_SCALE,
            Self::Alternate { .. } => &ALTERNATE,
            Self::ScoreWeight { .. } => &SCORE_WEIGHT,
            Self::ScoreWeightGrad { .. } => &SCORE_WEIGHT_GRAD,
            Self::ScoreVectorGrad { .. } => &SCORE_VECTOR_GRAD,
        }
    }

    /// Returns the number of heads.
    pub(super) fn heads(&self) -> Option<usize> {
        match *self {
            Self::Grads { heads, .. }
            | Self::HeadDots { heads }
            | Self::HeadScale { heads }
            | Self::Alternate { heads, .. }
            | Self::ScoreWeight { heads }
            | Self::ScoreWeightGrad { heads }
            | Self::ScoreVectorGrad { heads, .. } => Some(heads),
            Self::Columns { .. } => None,
        }
    }
}
