//! Operations on edge values.

use std::sync::atomic::{AtomicU64, Ordering};

use super::dropout::sparse_dropout;
use super::parallel::{CHUNK, for_chunks};
use super::slots::Open;
use crate::error::{Error, Result, check_shape};
use crate::op::EdgeOp;
use crate::op::call::Call;

pub(super) fn launch(slots: &Open<'_>, op: EdgeOp, call: &Call) -> Result<()> {
    let values = slots.numbers(call.inputs[0])?;
    match op {
        EdgeOp::Permute { .. } => {
            let permutation = slots.numbers(call.inputs[1])?;
            permute_edges(values.view(), permutation.view(), slots.numbers_mut(call.out())?.view())
        }
        EdgeOp::Dropout { block: spec, rate, salt } => {
            let [epoch, _] = slots.clock(call.inputs[1])?;
            let (block, key) = (slots.block_of(call)?, call.dropout_key(rate, salt, 0));
            let block = (block.view(), spec.is_transposed());
            sparse_dropout(block, values.view(), key, epoch, slots.numbers_mut(call.out())?.view())
        }
    }
}

/// Computes `out[i] = values[permutation[i]]`: reorders edge values for the transposed block.
///
/// # Shapes
/// `values`, `permutation`, `out`: `[e]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`], with `out` unchanged; [`Error::Index`] if an entry of the permutation is out of range, and `out`
/// must then not be read.
pub fn permute_edges(values: &[f32], permutation: &[u64], out: &mut [f32]) -> Result<()> {
    const CALL: &str = "permute_edges";
    let e = out.len();
    check_shape(CALL, "values", [e, 1], [values.len(), 1])?;
    check_shape(CALL, "permutation", [e, 1], [permutation.len(), 1])?;
    // A bad index + 1, or 0 if there is none.
    let bad = AtomicU64::new(0);
    for_chunks(out, CHUNK, |first, out| {
        for (out, &index) in out.iter_mut().zip(&permutation[first..]) {
            match usize::try_from(index).ok().and_then(|index| values.get(index)) {
                Some(&value) => *out = value,
                None => bad.store(index.saturating_add(1), Ordering::Relaxed),
            }
        }
    });
    match bad.into_inner().checked_sub(1) {
        None => Ok(()),
        Some(index) => Err(Error::Index { call: CALL, operand: "permutation", index, limit: e as u64 }),
    }
}
