//! Operations on edge values.

use super::args;
use super::compile::File;
use super::faults::Lookup;
use super::prepare::{BlockAddresses, Plan, blocks_of_cells, blocks_of_warps};
use super::rows::mask;
use crate::error::Result;
use crate::op::EdgeOp;
use crate::op::call::{BlockSlots, Call};
use crate::storage_type::StorageType;

impl Plan<'_> {
    pub(super) fn edges(&mut self, op: EdgeOp, call: &Call) -> Result<()> {
        let (name, text) = (call.name(), File::Rows.over(StorageType::F32));
        let (values, second) = (self.mat(call.inputs[0])?, self.mat(call.inputs[1])?);
        let (out, edges) = (self.mat(call.out())?, call.out().rows);
        match op {
            EdgeOp::Permute { .. } => {
                let limit = edges as u64;
                let fault = self.lookup(Lookup { call: name, operand: "permutation", limit, edges: limit });
                let args = args::Permute { values, permutation: second, out, fault, edges: limit };
                self.kernel(text, name, blocks_of_cells(edges), &args);
            }
            EdgeOp::Dropout { block: spec, rate, salt } => {
                let (block, BlockAddresses { indptr, indices }) = self.block_of(call)?;
                let mask = mask(name, call.dropout_key(rate, salt, 0))?;
                let fault = self.lookup(lookup(name, block, u64::MAX));
                let (rows, edges) = (block.rows as u64, block.edges as u64);
                let clock = second;
                let transposed = u64::from(spec.is_transposed());
                let args =
                    args::SparseDropout { indptr, indices, values, out, clock, fault, rows, edges, transposed, mask };
                self.kernel(text, name, blocks_of_warps(block.rows), &args);
            }
        }
        Ok(())
    }
}

/// Returns the lookup for kernels over a block.
pub(super) fn lookup(call: &'static str, block: BlockSlots, limit: u64) -> Lookup {
    Lookup { call, operand: "indices", limit, edges: block.edges as u64 }
}
