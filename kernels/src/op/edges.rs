//! Operations on edge values.

use super::oracle::Array;
use super::record::Dim::{Edges, EdgesBack, Just};
use super::record::{CLOCK, PLAIN, Record, of};
use super::types::{BlockSpec, DType};
use crate::reference;

/// An operation on edge values, f32 `[e]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EdgeOp {
    /// `(values, permutation) -> out[i] = values[permutation[i]]`: the values, reordered for the transposed block.
    Permute {
        /// The block that the values belong to.
        block: BlockSpec,
    },
    /// `(values, clock) -> out`: [`super::RowStep::Dropout`] on the values of a sparse matrix in CSR. It drops the same
    /// cells as on the dense matrix. Lowering turns a dropout of edges into this operation.
    Dropout {
        /// The block that the values belong to. The cells of row `v` are in the columns that are its sources. If it is
        /// transposed, its rows are the columns of the matrix, and its sources the rows.
        block: BlockSpec,
        /// Share of cells that are set to 0.
        rate: f32,
        /// Number of this dropout in the model.
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
        let is_transposed = given.block_spec().is_transposed();
        vec![Array::Float(reference::sparse_dropout((block, is_transposed), given.floats(0), key, given.u64s(1)[0]))]
    },
    ..PLAIN
};

impl EdgeOp {
    /// Returns the operation's record.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Permute { .. } => &PERMUTE,
            Self::Dropout { .. } => &DROPOUT,
        }
    }

    /// Returns the block that the values belong to.
    pub fn block(&self) -> Option<BlockSpec> {
        match *self {
            Self::Permute { block } | Self::Dropout { block, .. } => Some(block),
        }
    }
}
