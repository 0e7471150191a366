//! Edges stored window by window, for gathers of rows with hundreds of edges.
//!
//! A window is a range of sources of which a few columns fit the second-level cache of a core. In CSR, the edges of a
//! row in one window are too few to be read in sequence. Here, all edges of the first window come first, row by row,
//! then those of the second. A source takes two bytes, because it is counted from the start of its window. `windows.rs`
//! gathers over them.

use std::ops::Range;

use super::parallel::{balanced_rows, split_at_ends};
use super::passes::points;
use super::sources::{CALL, LINE, NEAR, check_block};
use crate::error::Result;
use crate::memory::{AlignedBytes, zeroed};
use crate::processor::is_amd;
use crate::storage_type::StorageType;
use crate::team::for_each;
use crate::view::BlockView;

/// Sources per window: the first number with enough edges of each row per window is taken.
const SOURCES: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];

/// Average edges per row and window that pay for reading and writing the row's sum.
const EDGES_OF_ROW: usize = 16;

/// Fewest edges of a block: with fewer, a gather is too short for so many passes.
const LEAST_EDGES: usize = 1 << 20;

/// Most bytes of the sources of a pass.
const CACHE_BYTES: usize = 1 << 20;

/// Most columns per pass.
const COLUMNS: usize = 64;

/// Tasks per pass, and rows per task when the edges are stored.
const TASKS: usize = 32;
const ROWS: usize = 1 << 11;

/// The edges of a block, stored window by window.
pub struct EdgeWindows {
    // Invariant: every id is below `step`, and `firsts` never decreases and ends at the number of ids.
    pub(super) rows: usize,
    pub(super) sources: usize,
    /// Sources per window.
    pub(super) step: usize,
    /// For each window and row, the place of its first edge in `ids`; then the number of edges.
    firsts: AlignedBytes,
    /// The source of each edge, counted from the start of its window.
    ids: AlignedBytes,
    /// The first edge of each row in the block.
    starts: AlignedBytes,
    /// Rows of each task.
    pub(super) tasks: Vec<Range<usize>>,
}

impl EdgeWindows {
    /// Stores the edges of a block window by window; `None` if that does not pay for blocks of this size, if the block
    /// has a halo, or if the sources of a row do not ascend.
    ///
    /// # Cost
    /// O(windows n log(edges of a row) + e) time. [`EdgeWindows::bytes`] stay, at most 2.25 per edge; while it runs, 8
    /// bytes for each row and window are used besides.
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Index`] for offsets that do not cover the edges, and
    /// [`crate::Error::HostMemory`].
    pub fn new(block: BlockView<'_>) -> Result<Option<Self>> {
        check_block(CALL, block)?;
        let (n, e, sources) = (block.rows(), block.indices.len(), block.own_sources);
        let Some(step) = Self::sources_per_window([n, e, sources]).filter(|_| block.halo_sources == 0) else {
            return Ok(None);
        };
        let limits: Vec<usize> = (step..sources).step_by(step).collect();
        let Some(points) = points(block, &limits, true) else { return Ok(None) };
        let (stride, windows) = (limits.len() + 1, limits.len() + 1);
        let end = |v: usize, window: usize| {
            if window + 1 < stride { points[v * stride + window + 1] } else { block.indptr[v + 1] }
        };
        let (mut firsts, mut ids) = (zeroed(4 * (windows * n + 1))?, zeroed(2 * e)?);
        let (starts, mut place) = (firsts.as_mut_slice::<u32>(), 0);
        for (start, cell) in starts.iter_mut().zip(0..=windows * n) {
            *start = place;
            if cell < windows * n {
                let (window, v) = (cell / n, cell % n);
                place += (end(v, window) - points[v * stride + window]) as u32;
            }
        }
        let starts = &*starts;
        let parts: Vec<(usize, Range<usize>)> =
            (0..windows).flat_map(|window| (0..n).step_by(ROWS).map(move |v| (window, v..(v + ROWS).min(n)))).collect();
        let ends = parts.iter().map(|(window, rows)| starts[window * n + rows.end] as usize);
        let to = split_at_ends(ids.as_mut_slice::<u16>(), ends);
        for_each(parts.iter().zip(to), |((window, rows), to)| {
            let from = rows
                .clone()
                .flat_map(|v| &block.indices[points[v * stride + window] as usize..end(v, *window) as usize]);
            to.iter_mut().zip(from).for_each(|(id, &u)| *id = (u as usize - window * step) as u16);
        });
        let mut starts = zeroed(4 * n)?;
        starts.as_mut_slice::<u32>().iter_mut().zip(block.indptr).for_each(|(start, &edge)| *start = edge as u32);
        Ok(Some(Self { rows: n, sources, step, firsts, ids, starts, tasks: balanced_rows(block.indptr, TASKS) }))
    }

    /// Returns how many sources a window has for a block of `rows` rows, `edges` edges and `sources` sources; `None` if
    /// its edges are better left in CSR.
    pub(super) fn sources_per_window([rows, edges, sources]: [usize; 3]) -> Option<usize> {
        if edges < LEAST_EDGES || u32::try_from(edges).is_err() {
            return None;
        }
        let pays = |&step: &usize| sources > step && edges / EDGES_OF_ROW / sources.div_ceil(step) >= rows;
        SOURCES.into_iter().find(pays)
    }

    /// Returns the bytes that [`EdgeWindows::new`] stores for a block of `rows` rows, `edges` edges and `sources`
    /// sources: 2 per edge, 4 for each row and window, and 4 per row; 0 if it stores nothing.
    pub fn bytes([rows, edges, sources]: [usize; 3]) -> u64 {
        let step = Self::sources_per_window([rows, edges, sources]);
        step.map_or(0, |step| (2 * edges + 4 * rows * (1 + sources.div_ceil(step))) as u64)
    }

    /// Returns how many columns of how many sources a pass copies, for a block of `rows` rows, `edges` edges and `sources`
    /// sources and gathers of `d` columns that are `stored` so; `None` if those are not faster over windows. They are not if all
    /// sources fit the second-level cache. With one vector for each edge, reading and writing the sums takes twice as many edges to
    /// pay. On processors of AMD, whose last cache is fast, those with weights and of bf16 are not.
    pub(super) fn pass(
        [rows, edges, sources]: [usize; 3],
        d: usize,
        stored: StorageType,
        weighted: bool,
    ) -> Option<[usize; 2]> {
        let step = Self::sources_per_window([rows, edges, sources])?;
        let edges_of_row = if d <= LINE { 2 * EDGES_OF_ROW } else { EDGES_OF_ROW };
        let long = edges / edges_of_row / sources.div_ceil(step) >= rows;
        let far = sources.saturating_mul(stored.byte_count() * d) > NEAR;
        let plain = !weighted && stored == StorageType::F32;
        (long && far && (plain || !is_amd())).then(|| [columns_of_pass(step, d), step])
    }

    /// Returns the tasks in groups of at most `rows` rows, if no task has more.
    pub(super) fn groups(&self, rows: usize) -> impl Iterator<Item = &[Range<usize>]> {
        let mut rest = &self.tasks[..];
        std::iter::from_fn(move || {
            let first = rest.first()?.start;
            let count = rest.partition_point(|task| task.end - first <= rows).max(1);
            let (group, later) = rest.split_at(count);
            rest = later;
            Some(group)
        })
    }

    /// Returns the most rows of such a group.
    pub(super) fn most_rows(&self, rows: usize) -> usize {
        self.groups(rows).map(|tasks| tasks.iter().map(Range::len).sum()).max().unwrap_or(0)
    }

    /// Returns the first edge of each row in the block.
    pub(super) fn starts(&self) -> &[u32] {
        self.starts.as_slice()
    }

    /// Returns the sources of all edges.
    pub(super) fn ids(&self) -> &[u16] {
        self.ids.as_slice()
    }

    /// Returns the places in [`EdgeWindows::ids`] of the first edges of `count` rows of a window, from row `first` on, and the
    /// place behind them.
    pub(super) fn places(&self, window: usize, first: usize, count: usize) -> &[u32] {
        &self.firsts.as_slice::<u32>()[window * self.rows + first..][..=count]
    }
}

impl std::fmt::Debug for EdgeWindows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rows, edges) = (self.rows, self.ids().len());
        write!(f, "EdgeWindows({rows} rows, {edges} edges, windows of {} of {} sources)", self.step, self.sources)
    }
}

/// Returns how many columns a pass over `step` sources has, in whole vectors, so that all passes over `d` columns have about as
/// many.
pub(super) fn columns_of_pass(step: usize, d: usize) -> usize {
    let most = (CACHE_BYTES / size_of::<f32>() / step).clamp(LINE, COLUMNS);
    d.div_ceil(d.div_ceil(most).max(1)).next_multiple_of(LINE)
}
