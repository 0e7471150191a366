//! Gathers over edges that are stored window by window (`edge_windows.rs`). They run in passes, as in `passes.rs`: each copies
//! some columns of one window and adds their share to every row. The sources of a row ascend, so the windows in turn give
//! the order of the block.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::edge_windows::{EdgeWindows, columns_of_pass};
use super::parallel::split_at_ends;
use super::passes::copy_columns;
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use super::sources::{CALL, LINE};
use super::weights::{Unweighted, Weights};
use crate::error::{Result, check_shape};
use crate::memory::zeroed;
use crate::team::for_each;
use crate::view::{MatMut, MatView};

/// Most vector registers for sums.
const TILE: usize = 8;

/// Rows ahead for which sums are prefetched.
const ROWS_AHEAD: usize = 4;

impl EdgeWindows {
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
        let firsts = windows.places(window, self.first, count);
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
