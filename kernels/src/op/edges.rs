//! What works on values of edges.

use super::oracle::Array;
use super::record::Dim::{Edges, EdgesBack, Just};
use super::record::{CLOCK, PLAIN, Record, of};
use super::types::{BlockSpec, DType};
use crate::reference;

/// An operation on values of edges, f32 `[e]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EdgeOp {
    /// `(values, permutation) -> out[i] = values[permutation[i]]`: the values in the order of the transposed block.
    Permute {
        /// The block whose edges the values belong to.
        block: BlockSpec,
    },
    /// `(values, clock) -> out`: [`super::RowStep::Dropout`] on the values of a sparse matrix in CSR, the same cells as of the dense one.
    /// It is what a dropout of edges becomes when it is lowered.
    Dropout {
        /// The block whose edges the values belong to: row `v`'s cells are at the columns that are its sources.
        block: BlockSpec,
        /// Share of cells that become 0.
        rate: f32,
        /// Which dropout of the model this is.
        salt: u32,
    },
}

static PERMUTE: Record = Record {
    name: "permute_edges",
    inputs: &[of(DType::F32, "values", Edges, Just(1)), of(DType::U64, "permutation", Edges, Just(1))],
    outputs: &[of(DType::F32, "out", EdgesBack, Just(1))],
    reference: |given| vec![Array::Float(reference::permute_edges(given.floats(0), given.u64s(1)))],
    ..PLAIN
};

static DROPOUT: Record = Record {
    name: "sparse_dropout",
    inputs: &[of(DType::F32, "values", Edges, Just(1)), CLOCK],
    outputs: &[of(DType::F32, "out", Edges, Just(1))],
    reference: |given| {
        let (block, key) = (given.block(), given.dropout());
        vec![Array::Float(reference::sparse_dropout(block, given.floats(0), key, given.u64s(1)[0]))]
    },
    ..PLAIN
};

impl EdgeOp {
    /// What is written down of it.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Permute { .. } => &PERMUTE,
            Self::Dropout { .. } => &DROPOUT,
        }
    }

    /// The block whose edges the values belong to.
    pub fn block(&self) -> Option<BlockSpec> {
        match *self {
            Self::Permute { block } | Self::Dropout { block, .. } => Some(block),
        }
    }
}
