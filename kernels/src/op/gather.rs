//! Gather: sums over in-neighbours, or over the sources of any other block.
//!
//! Each edge adds its source's row, multiplied by the edge's weight. [`EdgeWeight`] says where the weight comes from.

use super::oracle::{Array, Given};
use super::record::Dim::{BlockRows, D, Edges, Just, Sources};
use super::record::{Cost, Gradient, Operand, PLAIN, Record, Row, Stored, Value, mat, of};
use super::types::{BatchEdges, BlockSpec, DType, LoopWeight};
use super::{EdgeOp, Op};
use crate::reference;

/// `out[v] = sum over sources u of v, in order, of weight[edge] * x[u]`.
///
/// A call may be a *window*: it sums only the sources from `first_source` on that it is given, and adds them to `sum`.
/// A sequence of consecutive windows, each given the output of the one before, produces the same bits as the whole
/// gather. A window's block has no halo, and the sources of each row ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The block to sum over.
    pub block: BlockSpec,
    /// The weight of an edge.
    pub weight: EdgeWeight,
}

/// The source of the edge weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeWeight {
    /// Every weight is 1: `(x) -> y`.
    One,
    /// The weights are an operand: `(x, weights) -> y`.
    Stored,
}

const OUT: Operand = Operand { name: "out", rows: BlockRows, cols: D, stored: Stored::Sum };

static SUM: Record = Record {
    name: "gather",
    kernel: None,
    inputs: &[mat("own", Sources, D)],
    leads: 1,
    gradient: Gradient::Rule(|op, back| {
        let block = op.block().expect("a gather has a block").transpose();
        let dx = back.emit(Gather { block, weight: EdgeWeight::One }, &[Value::Dy]);
        back.give(0, dx);
    }),
    ..WEIGHTED
};

static WEIGHTED: Record = Record {
    name: "weighted_gather",
    kernel: Some("gather"),
    inputs: &[mat("own", Sources, D), of(DType::F32, "weights", Edges, Just(1))],
    outputs: &[OUT],
    leads: 2,
    row: Row::Head,
    cost: Cost::Gather,
    gradient: Gradient::Rule(|op, back| {
        let block = op.block().expect("a gather has a block");
        let weights = match block {
            BlockSpec::Graph { .. } | BlockSpec::Batch { edges: BatchEdges::Drawn { .. }, .. } => {
                Value::EdgeWeights(block.transpose(), LoopWeight::One)
            }
            BlockSpec::Features { .. } | BlockSpec::Batch { .. } => {
                back.emit(EdgeOp::Permute { block }, &[Value::X(1), Value::EdgeOrder(block)])
            }
        };
        let block = block.transpose();
        let dx = back.emit(Gather { block, weight: EdgeWeight::Stored }, &[Value::Dy, weights]);
        back.give(0, dx);
    }),
    reference,
    ..PLAIN
};

fn reference(given: &Given<'_>) -> Vec<Array> {
    let weights = (given.count_operands() > 1).then(|| given.floats(1));
    let (block, own) = (given.block(), given.sources());
    let out = match given.first_source() {
        None => reference::gather(block, weights, &own, given.halo().as_ref()),
        Some(first) => reference::gather_window(block, weights, &own, first, given.sum()),
    };
    vec![out.into()]
}

impl Gather {
    /// Creates an unweighted gather over a block.
    pub fn over(block: BlockSpec) -> Op {
        Self { block, weight: EdgeWeight::One }.into()
    }

    /// Creates a weighted gather over a block.
    pub fn weighted(block: BlockSpec) -> Op {
        Self { block, weight: EdgeWeight::Stored }.into()
    }

    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self.weight {
            EdgeWeight::One => &SUM,
            EdgeWeight::Stored => &WEIGHTED,
        }
    }
}
