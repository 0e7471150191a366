//! Sums over in-neighbours, and over whatever else is a block.
//!
//! What an edge adds is its source's row times the edge's weight: [`EdgeWeight`] says where that comes from.

use super::oracle::{Array, Given};
use super::record::Dim::{BlockRows, D, Edges, Just, Sources};
use super::record::{Cost, Gradient, Operand, PLAIN, Record, Row, Stored, Value, mat, of};
use super::types::{BlockSpec, DType};
use super::{EdgeOp, Op};
use crate::reference;

/// `out[v] = sum over sources u of v, in order, of weight[edge] * x[u]`.
///
/// A call may be a *window*: over the sources `first_source ..` alone, added to `sum`. Windows one after the other, each of which is
/// given the one before's output, come to the same bits as the whole. A window's block has no halo, and the sources of its rows ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// Over this block.
    pub block: BlockSpec,
    /// What an edge counts.
    pub weight: EdgeWeight,
}

/// Where the weight of an edge comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeWeight {
    /// It is 1: `(x) -> y`.
    One,
    /// It is an operand: `(x, weights) -> y`.
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
        let weights = back.emit(EdgeOp::Permute { block }, &[Value::X(1), Value::EdgeOrder(block)]);
        let block = block.transpose();
        let dx = back.emit(Gather { block, weight: EdgeWeight::Stored }, &[Value::Dy, weights]);
        back.give(0, dx);
    }),
    reference,
    ..PLAIN
};

fn reference(given: &Given<'_>) -> Vec<Array> {
    let weights = (given.count_operands() > 1).then(|| given.floats(1));
    let (block, own) = (given.block(), given.mat(0));
    let out = match given.first_source() {
        None => reference::gather(block, weights, &own, given.halo().as_ref()),
        Some(first) => reference::gather_window(block, weights, &own, first, given.sum()),
    };
    vec![out.into()]
}

impl Gather {
    /// Sums of rows over a block.
    pub fn over(block: BlockSpec) -> Op {
        Self { block, weight: EdgeWeight::One }.into()
    }

    /// Sums of rows over a block, each times its edge's weight.
    pub fn weighted(block: BlockSpec) -> Op {
        Self { block, weight: EdgeWeight::Stored }.into()
    }

    /// What is written down of it.
    pub fn record(&self) -> &'static Record {
        match self.weight {
            EdgeWeight::One => &SUM,
            EdgeWeight::Stored => &WEIGHTED,
        }
    }
}
