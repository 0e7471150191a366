//! Edges stored window by window, for gathers of rows with hundreds of edges.
//!
//! A window is a range of sources of which a few columns fit the second-level cache of a core. In CSR, the edges of a
//! row in one window are too few to be read in sequence. Here, all edges of the first window come first, row by row,
//! then those of the second. A source takes two bytes, because it is counted from the start of its window. A gather
//! then runs in passes, as in `passes.rs`: each copies some columns of one window and adds their share to every row.
//! The sources of a row ascend, so the windows in turn give the order of the block.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::parallel::{balanced_rows, split_at_ends};
use super::passes::{copy_columns, points};
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use super::sources::{CALL, LINE, NEAR, check_block};
use super::weights::{Unweighted, Weights};
use crate::error::{Result, check_shape};
use crate::memory::{AlignedBytes, zeroed};
use crate::team::for_each;
use crate::view::{BlockView, MatMut, MatView};

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

/// Most vector registers for sums.
const TILE: usize = 8;

/// Rows ahead for which sums are prefetched.
const ROWS_AHEAD: usize = 4;

/// The edges of a block, stored window by window.
pub struct EdgeWindows {
    // Invariant: every id is below `step`, and `firsts` never decreases and ends at the number of ids.
    rows: usize,
    sources: usize,
    /// Sources per window.
    step: usize,
    /// For each window and row, the place of its first edge in `ids`; then the number of edges.
    firsts: AlignedBytes,
    /// The source of each edge, counted from the start of its window.
    ids: AlignedBytes,
    /// Rows of each task.
    tasks: Vec<Range<usize>>,
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
        Ok(Some(Self { rows: n, sources, step, firsts, ids, tasks: balanced_rows(block.indptr, TASKS) }))
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
    /// sources: 2 per edge, and 4 for each row and window; 0 if it stores nothing.
    pub fn bytes([rows, edges, sources]: [usize; 3]) -> u64 {
        let step = Self::sources_per_window([rows, edges, sources]);
        step.map_or(0, |step| (2 * edges + 4 * rows * sources.div_ceil(step)) as u64)
    }

    /// Returns whether gathers of `d` columns are faster over windows, for a block of `rows` rows, `edges` edges and
    /// `sources` sources. They are not if all sources fit the second-level cache. With one vector for each edge, reading
    /// and writing the sums takes twice as many edges to pay.
    pub(super) fn pays([rows, edges, sources]: [usize; 3], d: usize) -> bool {
        let Some(step) = Self::sources_per_window([rows, edges, sources]) else { return false };
        let edges_of_row = if d <= LINE { 2 * EDGES_OF_ROW } else { EDGES_OF_ROW };
        let long = edges / edges_of_row / sources.div_ceil(step) >= rows;
        long && sources.saturating_mul(4 * d) > NEAR
    }

    /// Returns how many columns of how many sources a pass copies, for a block of `rows` rows, `edges` edges and `sources`
    /// sources and `d` columns; `None` if its edges are better left in CSR.
    pub(super) fn pass(sizes: [usize; 3], d: usize) -> Option<[usize; 2]> {
        let step = Self::sources_per_window(sizes)?;
        Some([columns_of_pass(step, d), step])
    }

    /// Sums over in-neighbours as [`super::gather_then`] does over the block, without weights: those of a window are not
    /// stored side by side, so reading them takes longer than windows save.
    ///
    /// # Shapes
    /// Those of [`super::gather_then`] for the block that was stored.
    /// # Cost
    /// `e * d` additions; the edges are read once per 64 columns, and the sums once per window. It allocates 1 MiB.
    /// # Errors
    /// As in [`super::gather_then`].
    /// # Order
    /// The same bits as [`super::gather_then`].
    pub fn gather_then(&self, own: MatView<'_>, steps: &[RowWork<'_>], mut out: MatMut<'_>) -> Result<()> {
        let (n, d) = (self.rows, out.cols());
        check_shape(CALL, "own", [self.sources, d], [own.rows(), own.cols()])?;
        check_shape(CALL, "out", [n, d], [out.rows(), d])?;
        let steps = Steps::new(CALL, steps, n, d)?;
        if n == 0 || d == 0 {
            return Ok(());
        }
        let width = columns_of_pass(self.step, d);
        let mut copy = zeroed(4 * self.step * width)?;
        for column in (0..d).step_by(width) {
            let columns = column..(column + width).min(d);
            for window in 0..self.sources.div_ceil(self.step) {
                let rows = window * self.step..((window + 1) * self.step).min(self.sources);
                let last = columns.end == d && rows.end == self.sources;
                copy_columns(&[own.data()], d, rows, columns.clone(), copy.as_mut_slice(), width);
                let pass = Pass { windows: self, window, cells: copy.as_slice(), width, columns: columns.clone(), d };
                pass.run(Some(&steps).filter(|_| last), out.data());
            }
        }
        Ok(())
    }

    fn ids(&self) -> &[u16] {
        self.ids.as_slice()
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
fn columns_of_pass(step: usize, d: usize) -> usize {
    let most = (CACHE_BYTES / size_of::<f32>() / step).clamp(LINE, COLUMNS);
    d.div_ceil(d.div_ceil(most).max(1)).next_multiple_of(LINE)
}

/// One pass: some columns of the sources of a window.
struct Pass<'a> {
    windows: &'a EdgeWindows,
    window: usize,
    /// The columns of the window's sources, in rows of `width`.
    cells: &'a [f32],
    width: usize,
    columns: Range<usize>,
    /// Number of columns of the output.
    d: usize,
}

impl Pass<'_> {
    /// Adds the pass to all rows of `out`. The steps follow the last pass.
    fn run(&self, steps: Option<&Steps<'_>>, out: &mut [f32]) {
        let d = self.d;
        let tasks = &self.windows.tasks;
        let parts = split_at_ends(out, tasks.iter().map(|rows| rows.end * d));
        for_each(tasks.iter().zip(parts), |(rows, out)| {
            let group = steps.map_or(rows.len(), Steps::group::<f32>).max(1);
            for (first, out) in rows.clone().step_by(group).zip(out.chunks_mut(group * d)) {
                Arch::new().dispatch(Rows { pass: self, first, out: &mut *out });
                steps.iter().for_each(|steps| steps.apply(first, out));
            }
        });
    }
}

/// Consecutive rows of a pass, from row `first` on, and their part of the output.
struct Rows<'a> {
    pass: &'a Pass<'a>,
    first: usize,
    out: &'a mut [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Pass { width, ref columns, cells, .. } = *self.pass;
        let vectors = columns.len().div_ceil(S::F32_LANES);
        for tile in (0..vectors).step_by(TILE) {
            let from = tile * S::F32_LANES;
            let whole = tile == 0 && vectors * S::F32_LANES == width;
            match vectors - tile {
                1 if whole => self.each::<S, 1>(simd, from, |u| source_of::<S, _>(cells, u)),
                2 if whole => self.each::<S, 2>(simd, from, |u| source_of::<S, _>(cells, u)),
                3 if whole => self.each::<S, 3>(simd, from, |u| source_of::<S, _>(cells, u)),
                4 if whole => self.each::<S, 4>(simd, from, |u| source_of::<S, _>(cells, u)),
                1 => self.each::<S, 1>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                2 => self.each::<S, 2>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                3 => self.each::<S, 3>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                4 => self.each::<S, 4>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                5 => self.each::<S, 5>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                6 => self.each::<S, 6>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                7 => self.each::<S, 7>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
                _ => self.each::<S, TILE>(simd, from, |u| part_of::<S, _>(cells, u * width + from)),
            }
        }
    }
}

/// Returns source `u` if sources are `N` vectors.
#[inline(always)]
fn source_of<S: Simd, const N: usize>(cells: &[f32], u: usize) -> Option<[S::f32s; N]> {
    S::as_simd_f32s(cells).0.as_chunks::<N>().0.get(u).copied()
}

/// Returns the `N` vectors from a cell on.
#[inline(always)]
fn part_of<S: Simd, const N: usize>(cells: &[f32], at: usize) -> Option<[S::f32s; N]> {
    S::as_simd_f32s(cells.get(at..at + N * S::F32_LANES)?).0.first_chunk().copied()
}

impl Rows<'_> {
    /// Adds the sources that `source` returns to at most `N` vectors of each row, of which the first begins at `from`.
    #[inline(always)]
    fn each<S: Simd, const N: usize>(&mut self, simd: S, from: usize, source: impl Fn(usize) -> Option<[S::f32s; N]>) {
        let Pass { windows, window, ref columns, d, .. } = *self.pass;
        let (count, fresh) = (self.out.len() / d, window == 0);
        let begin = window * windows.rows + self.first;
        let firsts = &windows.firsts.as_slice::<u32>()[begin..=begin + count];
        let ids = windows.ids();
        let tile = columns.start + from..columns.end.min(columns.start + from + N * S::F32_LANES);
        for i in 0..count {
            for cell in tile.clone().step_by(LINE) {
                prefetch(self.out, (i + ROWS_AHEAD) * d + cell);
            }
            let Some(ids) = ids.get(firsts[i] as usize..firsts[i + 1] as usize) else { continue };
            if ids.is_empty() && !fresh {
                continue;
            }
            let out = &mut self.out[i * d..][tile.clone()];
            let mut sums = if fresh { [simd.splat_f32s(0.0); N] } else { load(simd, out) };
            for &u in ids {
                let Some(x) = source(usize::from(u)) else { break };
                Unweighted.accumulate(simd, 0, &mut sums, &x);
            }
            store(simd, out, &sums);
        }
    }
}

/// Reads at most `N` vectors, of which the last may be a part.
#[inline(always)]
fn load<S: Simd, const N: usize>(simd: S, from: &[f32]) -> [S::f32s; N] {
    if let Some(vectors) = S::as_simd_f32s(from).0.first_chunk::<N>() {
        return *vectors;
    }
    let mut vectors = [simd.splat_f32s(0.0); N];
    vectors.iter_mut().zip(from.chunks(S::F32_LANES)).for_each(|(to, from)| *to = simd.partial_load_f32s(from));
    vectors
}

/// Writes what [`load`] reads.
#[inline(always)]
fn store<S: Simd, const N: usize>(simd: S, to: &mut [f32], vectors: &[S::f32s; N]) {
    if let Some(all) = S::as_mut_simd_f32s(to).0.first_chunk_mut::<N>() {
        *all = *vectors;
        return;
    }
    to.chunks_mut(S::F32_LANES).zip(vectors).for_each(|(to, &from)| simd.partial_store_f32s(to, from));
}
