//! How a wide gather is cut so that its sources stay in a cache.
//!
//! A row of a popular source is read once an edge. Where the sources together fit no cache, most of these reads go to
//! memory. Then the gather is done in passes: a few columns of some of the sources are copied one behind the other,
//! which makes them fit, and their share of every row is added before the next are copied. The copy costs about as much
//! as reading every source once or twice, so it pays where sources are read often.

use std::ops::Range;

use rayon::prelude::*;

use super::parallel::{CHUNK, for_rows};
use crate::view::BlockView;

/// Bytes of sources that may be hoped to stay in the last cache, which all cores share.
const CACHE_BYTES: usize = 16 << 20;

/// Floats of a cache line.
const LINE: usize = 16;

/// Lines of a source that a pass reads: fewer, and finding the line takes longer than adding it.
const LINES: usize = 4;

/// How often a source must be read for a pass to pay.
const READ_OFTEN: usize = 32;

/// How many edges of a row a pass must have, on average, to pay for reading and writing the row's sum.
const EDGES_OF_ROW: usize = 16;

/// The cut of a gather into passes.
pub(super) struct Passes {
    /// Columns of one pass, whole lines.
    pub(super) width: usize,
    /// Sources of one pass.
    pub(super) sources: usize,
}

impl Passes {
    /// The cut of a gather of `d` columns from `own` sources at hand and `halo` ones; `None` if one pass over the sources
    /// where they lie is better.
    pub(super) fn new(block: BlockView<'_>, own: usize, halo: usize, d: usize) -> Option<Self> {
        let (sources, edges) = (own + halo, block.indices.len());
        if sources.saturating_mul(4 * d) <= CACHE_BYTES || edges / READ_OFTEN < sources {
            return None;
        }
        let width = d.div_ceil(d.div_ceil(LINES * LINE)).next_multiple_of(LINE);
        let windows = sources.div_ceil(CACHE_BYTES / (4 * width));
        // What nearly fits is read from the cache mostly, as few sources are read most often.
        if windows > 1 && sources.saturating_mul(d) < CACHE_BYTES {
            return None;
        }
        if windows > 1 && (halo > 0 || edges / EDGES_OF_ROW / windows < block.rows() || !ascend(block)) {
            return None;
        }
        Some(Self { width, sources: sources.div_ceil(windows) })
    }
}

/// Whether the sources of every row exist and ascend, so that those of a window are one behind the other.
fn ascend(block: BlockView<'_>) -> bool {
    let exist = |row: &[u32]| row.last().is_none_or(|&last| (last as usize) < block.own_sources);
    let row = |v: usize| block.indices.get(block.edges(v)).is_some_and(|row| row.is_sorted() && exist(row));
    (0..block.rows()).into_par_iter().with_min_len(CHUNK / LINE).all(row)
}

/// Copies some columns of the rows of matrices of `d`, one behind the other, into rows of `width`.
pub(super) fn copy_columns(from: [&[f32]; 2], d: usize, columns: Range<usize>, to: &mut [f32], width: usize) {
    let mut rest = to;
    for from in from {
        let (to, after) = rest.split_at_mut(from.len() / d * width);
        rest = after;
        for_rows(to, width, |first, to| {
            for (to, from) in to.chunks_exact_mut(width).zip(from[first * d..].chunks_exact(d)) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        });
    }
}
