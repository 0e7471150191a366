//! Measures copies of rows from one GPU to another.

use lapidary_kernels::cuda;

use super::gpu::{Bench, grown};
use crate::error::Result;

/// Numbers of rows to try. The last ones have 64 MiB.
const ROWS: [usize; 3] = [1 << 8, 1 << 12, 1 << 16];

/// Floats per row.
const WIDTH: usize = 256;

/// Timed copies of each pair, after one that is not timed.
const RUNS: usize = 3;

/// Returns the bytes per second of the slowest copy between two of these GPUs, in either direction; `None` if there are
/// fewer than two, or if any two do not reach each other: rows then go through the host.
///
/// # Cost
/// A few milliseconds per pair, and 64 MiB of each GPU and of the host.
/// # Errors
/// [`Error::Device`](crate::Error::Device).
pub(super) fn slowest(ordinals: &[u32]) -> Result<Option<f64>> {
    let mut ordinals = ordinals.to_vec();
    ordinals.sort_unstable();
    ordinals.dedup();
    let name = format!("cuda:{}", ordinals[0]);
    let failed = Bench::failed(&name, "asking for its links");
    if ordinals.len() < 2 || !cuda::reach_each_other(&ordinals).map_err(&failed)? {
        return Ok(None);
    }
    cuda::link(&ordinals).map_err(&failed)?;
    let benches = ordinals.iter().map(|&ordinal| Bench::open(ordinal)).collect::<Result<Vec<_>>>()?;
    let mut slowest = f64::INFINITY;
    for (i, reader) in benches.iter().enumerate() {
        for (_, owner) in benches.iter().enumerate().filter(|&(j, _)| j != i) {
            let rate = grown(&ROWS, |rows| copy_rate(reader, owner, rows), |rows| (rows * 4 * WIDTH) as f64)?;
            slowest = slowest.min(rate);
        }
    }
    Ok(Some(slowest))
}

/// Returns the bytes per second of a copy of all rows of a matrix.
fn copy_rate(reader: &Bench, owner: &Bench, rows: usize) -> Result<f64> {
    let lent = owner.matrix(0, rows, WIDTH)?;
    let (out, all) = (reader.room(0, rows, WIDTH)?, reader.put(1, (0..rows as u32).collect())?);
    let rate = reader.fetch_rate(owner, lent, all, out, RUNS);
    owner.free(&[lent.slot])?;
    reader.free(&[out.slot, all])?;
    rate
}
