//! Copies selected rows.

use super::parallel::for_rows;
use crate::error::{Error, Result};

/// Copies the rows `rows` of a matrix with `n` rows of `d` cells; a cell can have any type.
pub(super) fn pack_cells<T: Copy + Send + Sync>(
    call: &'static str,
    (x, n): (&[T], usize),
    rows: &[u32],
    d: usize,
    out: &mut [T],
) -> Result<()> {
    if let Some(&index) = rows.iter().find(|&&row| row as usize >= n) {
        return Err(Error::Index { call, operand: "rows", index: u64::from(index), limit: n as u64 });
    }
    for_rows(out, d, |first, out| {
        for (out, &row) in out.chunks_exact_mut(d).zip(&rows[first..]) {
            out.copy_from_slice(&x[row as usize * d..][..d]);
        }
    });
    Ok(())
}
