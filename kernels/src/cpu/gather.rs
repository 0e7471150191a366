//! Sums over in-neighbours, the kernel that a graph network spends its time in.
//!
//! Rows are cut into tasks of nearly equal edges + rows. Within a row, columns are cut into tiles of up to
//! [`TILE`] vector registers, which stay in registers while the row's edges stream past; the source rows of the
//! edges a few steps ahead are prefetched, because their addresses are random. Wide gathers go in passes that a cache
//! holds (`passes.rs`). A row's edges are added one after the other in the block's order, so neither the threads, nor the
//! vector width, nor the passes, nor the cut of the graph into parts changes a bit of the result.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::parallel::{balanced_rows, split_at_ends, task_count};
use super::passes::{Passes, copy_columns, points};
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use crate::error::{Error, Result, check_shape};
use crate::memory::AlignedBytes;
use crate::view::{BlockView, MatMut, MatView};

const CALL: &str = "gather";

/// Vector registers of one column tile.
const TILE: usize = 8;

/// Floats of a cache line.
const LINE: usize = 16;

/// How many edges ahead source rows are asked for, when a tile spans `lines` cache lines: as far as 64 lines reach, but
/// never less than the latency of memory.
const fn ahead(lines: usize) -> usize {
    match 64 / lines {
        0..=4 => 4,
        5..16 => 8,
        16..32 => 16,
        far => far,
    }
}

/// Floats of sources that a second-level cache holds, which need not be asked for.
const NEAR: usize = 1 << 18;

/// How many rows ahead the edges of a window are asked for, and how many cache lines of them.
const ROWS_AHEAD: usize = 8;
const LINES_OF_ROW: usize = 3;

/// Cell additions that are worth a task of their own.
const LEAST_WORK: usize = 1 << 15;

/// Bytes that [`gather`] reads and writes if no source row is found in a cache; with weights, `4 e` more.
pub fn gather_bytes(n: u64, e: u64, d: u64) -> u64 {
    8 * (n + 1) + 4 * e * (1 + d) + 4 * n * d
}

/// Sum over in-neighbours: `out[v] = sum_{u -> v} weights[edge] * x[u]`; without weights, of `x[u]`.
///
/// # Shapes
/// `block`: `n` rows, `m` own sources, `h` halo rows, `e` edges; `weights`: `[e]`; `own`: `[m, d]`; `halo`: `[h, d]`,
/// may be absent when `h` is 0; `out`: `[n, d]`, overwritten.
/// # Cost
/// `e * d` additions; [`gather_bytes`] bytes moved; no allocation but a few words a task, and where passes pay, 16 MiB and
/// 8 bytes for each row and window of sources.
/// # Errors
/// [`Error::Shape`], and `out` is untouched; [`Error::Index`] when a row's edges or a source do not exist, and `out`
/// must not be read.
/// # Order
/// A row's edges are added one by one in the block's order, from 0, with a rounding after the product: the same bits
/// on any number of threads, any width of vectors and any cut into parts.
/// # Source
/// Kipf & Welling 2017, eq. 2, without the degree scaling.
pub fn gather(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    own: MatView<'_>,
    halo: Option<MatView<'_>>,
    out: MatMut<'_>,
) -> Result<()> {
    gather_then(block, weights, own, halo, &[], out)
}

/// The share of a gather over some of its sources, and what the sources before them came to.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The first source at hand.
    pub first: usize,
    /// What the sources before came to, `[n, d]`; 0 if it is absent.
    pub sum: Option<MatView<'a>>,
}

/// `out[v] = sum[v] + sum of x[u]` over the sources `u` of `v` in `first .. first + own.rows`: [`gather_then`] over those
/// that are at hand.
///
/// # Shapes
/// `block`: `n` rows, each of whose sources ascend, no halo; `own`: `[sources at hand, d]`; the rest as of [`gather`].
/// # Cost
/// O(n log(edges of a row)) to find the edges, `d` additions each; 24 bytes a row allocated.
/// # Errors
/// As of [`gather_then`]; a source beyond the block is not noticed if it is not at hand.
/// # Order
/// Windows one after the other give the bits of one gather over all of them.
pub fn gather_window(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    window: Window<'_>,
    own: MatView<'_>,
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    let end = window.first.saturating_add(own.rows());
    if end > block.own_sources {
        let (index, limit) = (end as u64, block.own_sources as u64 + 1);
        return Err(Error::Index { call: CALL, operand: "the window's end", index, limit });
    }
    if let Some(sum) = window.sum {
        check_shape(CALL, "sum", [block.rows(), out.cols()], [sum.rows(), sum.cols()])?;
    }
    check_shape(CALL, "halo", [0, out.cols()], [block.halo_sources, out.cols()])?;
    check_shape(CALL, "own", [own.rows(), out.cols()], [own.rows(), own.cols()])?;
    let (first, d) = (window.first, out.cols());
    let cuts = Cuts { points: block.indptr, stride: 1, window: 0 };
    let sources = Sources { block, cuts, first, own_rows: own.rows(), own: own.data(), halo: &[], d };
    gather_sources(sources, Some(end), window.sum, weights, steps, out)
}

/// [`gather`], with `steps` done to each row while it is in a cache.
///
/// # Shapes
/// As of [`gather`]; the steps' rows are those of `out`.
/// # Errors
/// As of [`gather`], and [`Error::Argument`]; `out` is then untouched.
/// # Order
/// Per cell what the kernels one after the other compute, bit for bit.
pub fn gather_then(
    block: BlockView<'_>,
    weights: Option<&[f32]>,
    own: MatView<'_>,
    halo: Option<MatView<'_>>,
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    let d = out.cols();
    check_shape(CALL, "own", [block.own_sources, d], [own.rows(), own.cols()])?;
    if halo.is_some() || block.halo_sources > 0 {
        let got = halo.map_or([0, 0], |halo| [halo.rows(), halo.cols()]);
        check_shape(CALL, "halo", [block.halo_sources, d], got)?;
    }
    let halo = halo.map_or(&[][..], |halo| halo.data());
    let cuts = Cuts { points: block.indptr, stride: 1, window: 0 };
    let sources = Sources { block, cuts, first: 0, own_rows: own.rows(), own: own.data(), halo, d };
    gather_sources(sources, None, None, weights, steps, out)
}

/// Adds to `sum`, or to 0, in as many passes as are good. `end`: behind the last source at hand, if there are others.
fn gather_sources(
    sources: Sources<'_>,
    end: Option<usize>,
    sum: Option<MatView<'_>>,
    weights: Option<&[f32]>,
    steps: &[RowWork<'_>],
    mut out: MatMut<'_>,
) -> Result<()> {
    let Sources { block, d, first, own_rows, .. } = sources;
    let (n, e) = (block.rows(), block.indices.len());
    check_block(CALL, block)?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    if let Some(weights) = weights {
        check_shape(CALL, "weights", [e, 1], [weights.len(), 1])?;
    }
    let steps = Steps::new(CALL, steps, n, d)?;
    if n == 0 || d == 0 {
        return Ok(());
    }
    let start = sum.map_or(Start::Zero, Start::Sum);
    let halo_rows = sources.halo.len() / d;
    let all = own_rows + halo_rows;
    let passes = Passes::new(block, own_rows, halo_rows, d);
    // Where the sources of each window begin, and where the last of them end, if there are others.
    let step = passes.as_ref().map_or(all, |passes| passes.sources).max(1);
    let windows = (0..all.max(1)).step_by(step).map(|window| first + window).skip(usize::from(end.is_none()));
    let limits: Vec<usize> = windows.chain(end).collect();
    let points = points(block, &limits, end.is_none());
    let passes = passes.filter(|_| points.is_some());
    let points = points.unwrap_or_default();
    let cuts = |window: usize| match points.is_empty() {
        true => sources.cuts,
        false => Cuts { points: &points, stride: limits.len() + 1, window: window + usize::from(end.is_some()) },
    };
    let sources = Sources { cuts: cuts(0), ..sources };
    let Some(passes) = passes else {
        return pass(Pass { sources, weights, columns: 0..d, start, d }, Some(&steps), out.data());
    };
    let width = passes.width;
    let mut copy = AlignedBytes::zeroed(4 * passes.sources * width)?;
    for column in (0..d).step_by(width) {
        let columns = column..(column + width).min(d);
        for (i, window) in (0..all).step_by(passes.sources).enumerate() {
            let own_rows = passes.sources.min(all - window);
            // Only a single window has a halo, and all of it.
            let own = &sources.own[window * d..][..own_rows.min(sources.own_rows) * d];
            copy_columns([own, sources.halo], d, columns.clone(), copy.as_mut_slice(), width);
            let (first, own) = (first + window, copy.as_slice());
            let sources = Sources { block, cuts: cuts(i), first, own_rows, own, halo: &[], d: width };
            let start = if window == 0 { start } else { Start::Out };
            let steps = Some(&steps).filter(|_| columns.end == d && window + own_rows == all);
            pass(Pass { sources, weights, columns: columns.clone(), start, d }, steps, out.data())?;
        }
    }
    Ok(())
}

/// Some columns of some sources.
#[derive(Clone)]
struct Pass<'a> {
    sources: Sources<'a>,
    weights: Option<&'a [f32]>,
    columns: Range<usize>,
    start: Start<'a>,
    /// Columns of the output.
    d: usize,
}

/// What the sources are added to.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    Sum(MatView<'a>),
    /// What the output holds.
    Out,
}

/// Cuts the rows into tasks and runs them.
fn pass(pass: Pass<'_>, steps: Option<&Steps<'_>>, out: &mut [f32]) -> Result<()> {
    let (block, d) = (pass.sources.block, pass.d);
    let (n, e) = (block.rows(), block.indices.len());
    let task = |rows: Range<usize>, out: &mut [f32]| {
        let group = steps.map_or(n, Steps::group);
        for (first, out) in rows.clone().step_by(group).zip(out.chunks_mut(group * d)) {
            let (rows, pass) = (first..(first + group).min(rows.end), &pass);
            let out = &mut *out;
            match (pass.weights, pass.sources.halo.is_empty()) {
                (None, true) => Rows::<_, false> { pass, weights: Unweighted, rows, out }.run(),
                (None, false) => Rows::<_, true> { pass, weights: Unweighted, rows, out }.run(),
                (Some(weights), true) => Rows::<_, false> { pass, weights: Weighted(weights), rows, out }.run(),
                (Some(weights), false) => Rows::<_, true> { pass, weights: Weighted(weights), rows, out }.run(),
            }?;
            steps.iter().for_each(|steps| steps.apply(first, out));
        }
        Ok(())
    };
    let work = (n + e).saturating_mul(pass.columns.len());
    let ranges = balanced_rows(block.indptr, task_count(work, LEAST_WORK));
    if let [all] = &ranges[..] {
        return task(all.clone(), out);
    }
    let parts = split_at_ends(out, ranges.iter().map(|range| range.end * d));
    ranges.into_par_iter().zip(parts).with_max_len(1).try_for_each(|(rows, out)| task(rows, out))
}

/// Objects to a block whose offsets do not start at 0 or do not end at the number of edges.
pub(super) fn check_block(call: &'static str, block: BlockView<'_>) -> Result<()> {
    let e = block.indices.len();
    let (Some(&first), Some(&last)) = (block.indptr.first(), block.indptr.last()) else {
        return Err(Error::Shape { call, operand: "indptr", want: [1, 1], got: [0, 1] });
    };
    if first != 0 {
        return Err(Error::Index { call, operand: "indptr", index: first, limit: 1 });
    }
    check_shape(call, "indices", [usize::try_from(last).unwrap_or(usize::MAX), 1], [e, 1])
}

/// The error for row `v`, whose edges are not a range of the edges.
pub(super) fn bad_row(call: &'static str, block: BlockView<'_>, v: usize) -> Error {
    Error::Index { call, operand: "indptr", index: block.indptr[v], limit: block.indices.len() as u64 + 1 }
}

/// A factor an edge, or none; known when compiling, so that the inner loop has no branch for it.
trait Weights: Copy {
    /// `acc + factor of edge * x`.
    fn accumulate<S: Simd>(self, simd: S, edge: usize, acc: &mut [S::f32s], x: &[S::f32s]);

    /// The same for a few numbers.
    fn accumulate_few(self, edge: usize, acc: &mut [f32], x: &[f32]);
}

#[derive(Clone, Copy)]
struct Unweighted;

impl Weights for Unweighted {
    #[inline(always)]
    fn accumulate<S: Simd>(self, simd: S, _edge: usize, acc: &mut [S::f32s], x: &[S::f32s]) {
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = simd.add_f32s(*acc, x);
        }
    }

    #[inline(always)]
    fn accumulate_few(self, _edge: usize, acc: &mut [f32], x: &[f32]) {
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += x);
    }
}

#[derive(Clone, Copy)]
struct Weighted<'a>(&'a [f32]);

impl Weights for Weighted<'_> {
    #[inline(always)]
    fn accumulate<S: Simd>(self, simd: S, edge: usize, acc: &mut [S::f32s], x: &[S::f32s]) {
        let factor = simd.splat_f32s(self.0[edge]);
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = simd.add_f32s(*acc, simd.mul_f32s(factor, x));
        }
    }

    #[inline(always)]
    fn accumulate_few(self, edge: usize, acc: &mut [f32], x: &[f32]) {
        let factor = self.0[edge];
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += factor * x);
    }
}

/// Where the source rows lie.
#[derive(Clone, Copy)]
struct Sources<'a> {
    block: BlockView<'a>,
    cuts: Cuts<'a>,
    /// The sources from `first` on are the `own_rows` rows of `own`; those behind them are in `halo`.
    first: usize,
    own_rows: usize,
    own: &'a [f32],
    halo: &'a [f32],
    d: usize,
}

/// The edges that count of each row: from point `window` to the next of the row's `stride` points. The indptr of a block is
/// the points of all its edges.
#[derive(Clone, Copy)]
struct Cuts<'a> {
    points: &'a [u64],
    stride: usize,
    window: usize,
}

impl<'a> Sources<'a> {
    /// The edges of row `v` whose sources are at hand; `None` if they are not a range of the edges.
    #[inline(always)]
    fn edges(&self, v: usize) -> Option<Range<usize>> {
        let Cuts { points, stride, window } = self.cuts;
        let at = v * stride + window;
        let edges = *points.get(at)? as usize..*points.get(at + 1)? as usize;
        self.block.indices.get(edges.clone())?;
        Some(edges)
    }

    /// Whether there are edges between those of one row and those of the next that do not count.
    fn apart(&self) -> bool {
        self.cuts.stride > 1
    }

    /// Asks for the edges of row `v`.
    #[inline(always)]
    fn prefetch_edges(&self, v: usize) {
        if let Some(&start) = self.cuts.points.get(v * self.cuts.stride + self.cuts.window) {
            (0..LINES_OF_ROW).for_each(|line| prefetch(self.block.indices, start as usize + line * LINE));
        }
    }

    /// Asks for the first columns of the first sources of a row's edges.
    #[inline(always)]
    fn prefetch_first(&self, edges: Range<usize>, columns: usize) {
        let lines = columns.min(TILE * LINE).div_ceil(LINE);
        for &u in self.block.indices[edges].iter().take(ahead(lines)) {
            self.prefetch::<false>(u, self.offset(0), lines, columns, self.straddle());
        }
    }

    /// The sources of the edges `ahead` of a row's edges; where the next row's edges lie apart, of this row's only.
    #[inline(always)]
    fn later(&self, edges: &Range<usize>, ahead: usize) -> &'a [u32] {
        let indices = self.block.indices;
        if self.own.len() <= NEAR && self.halo.is_empty() {
            return &[];
        }
        indices.get(edges.start + ahead..if self.apart() { edges.end } else { indices.len() }).unwrap_or(&[])
    }

    /// What must be added to `u * d` to find column `column` of source `u` among the own ones.
    #[inline(always)]
    fn offset(&self, column: usize) -> usize {
        column.wrapping_sub(self.first.wrapping_mul(self.d))
    }

    /// The matrix that holds source `u`, from the column of this offset on. `HALO`: whether there is more than one.
    #[inline(always)]
    fn from<const HALO: bool>(&self, u: u32, offset: usize) -> Option<&'a [f32]> {
        let start = (u as usize * self.d).wrapping_add(offset);
        if HALO && (u as usize) >= self.first + self.own_rows {
            return self.halo.get(start.wrapping_sub(self.own_rows * self.d)..);
        }
        self.own.get(start..)
    }

    /// Asks for `len` columns, of `lines` lines, of source `u`, wherever that is; and if rows `straddle` lines, for
    /// the one more that they may end in.
    #[inline(always)]
    fn prefetch<const HALO: bool>(&self, u: u32, offset: usize, lines: usize, len: usize, straddle: bool) {
        // Any address may be asked for.
        let start = (u as usize * self.d).wrapping_add(offset);
        let (from, start) = match HALO && (u as usize) >= self.first + self.own_rows {
            true => (self.halo, start.wrapping_sub(self.own_rows * self.d)),
            false => (self.own, start),
        };
        for line in 0..lines {
            prefetch(from, start.wrapping_add(line * LINE));
        }
        if straddle {
            prefetch(from, start.wrapping_add(len - 1));
        }
    }

    /// Whether rows may start within a cache line.
    fn straddle(&self) -> bool {
        !self.d.is_multiple_of(LINE) || !(self.own.as_ptr() as usize).is_multiple_of(4 * LINE)
    }
}

/// One task: consecutive rows and their part of the output; `HALO` says whether there is a halo.
struct Rows<'a, W, const HALO: bool> {
    pass: &'a Pass<'a>,
    weights: W,
    rows: Range<usize>,
    /// All columns of the rows.
    out: &'a mut [f32],
}

impl<W: Weights, const HALO: bool> Rows<'_, W, HALO> {
    fn run(self) -> Result<()> {
        Arch::new().dispatch(self)
    }
}

impl<W: Weights, const HALO: bool> WithSimd for Rows<'_, W, HALO> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let Self { pass: Pass { sources, columns, start, d, .. }, weights, rows, out } = self;
        let vectors = columns.len().div_ceil(S::F32_LANES);
        let tiles = vectors.div_ceil(TILE);
        let end = |i: usize| match i {
            0 => 0,
            _ if i == tiles => columns.len(),
            _ => vectors * i / tiles * S::F32_LANES,
        };
        for (v, out) in rows.zip(out.chunks_exact_mut(*d)) {
            let edges = sources.edges(v).ok_or_else(|| bad_row(CALL, sources.block, v))?;
            if sources.apart() {
                sources.prefetch_edges(v + ROWS_AHEAD);
                sources.prefetch_first(sources.edges(v + 1).unwrap_or(0..0), columns.len());
            }
            let out = &mut out[columns.clone()];
            if let Start::Sum(sum) = start {
                out.copy_from_slice(&sum.row(v)[columns.clone()]);
            }
            let fresh = matches!(start, Start::Zero);
            for tile in 0..tiles {
                let (first, end) = (end(tile), end(tile + 1));
                let (edges, tile) = (edges.clone(), &mut out[first..end]);
                if sum_tile::<S, W, HALO>(simd, *sources, weights, edges.clone(), (first, fresh), tile).is_none() {
                    return Err(bad_source(*sources, edges));
                }
            }
        }
        Ok(())
    }
}

/// The error for the first source of a row that does not exist.
fn bad_source(sources: Sources<'_>, edges: Range<usize>) -> Error {
    let limit = (sources.block.own_sources + sources.block.halo_sources) as u64;
    let found = sources.block.indices[edges].iter().copied().map(u64::from).find(|&u| u >= limit);
    Error::Index { call: CALL, operand: "indices", index: found.unwrap_or(limit), limit }
}

/// Adds the columns `first..first + tile.len()` of a row's sources to `tile`, or if it is fresh to 0; `None` if a source
/// does not exist.
#[inline(always)]
fn sum_tile<S: Simd, W: Weights, const HALO: bool>(
    simd: S,
    sources: Sources<'_>,
    weights: W,
    edges: Range<usize>,
    from: (usize, bool),
    tile: &mut [f32],
) -> Option<()> {
    let (full, tail) = (tile.len() / S::F32_LANES, !tile.len().is_multiple_of(S::F32_LANES));
    match (full, tail) {
        (0, _) => match tile.len() {
            1 => sum_few::<W, 1, HALO>(sources, weights, edges, from, tile),
            2 => sum_few::<W, 2, HALO>(sources, weights, edges, from, tile),
            3 => sum_few::<W, 3, HALO>(sources, weights, edges, from, tile),
            4 => sum_few::<W, 4, HALO>(sources, weights, edges, from, tile),
            _ => sum::<S, W, 0, true, HALO>(simd, sources, weights, edges, from, tile),
        },
        (1, false) => sum::<S, W, 1, false, HALO>(simd, sources, weights, edges, from, tile),
        (1, true) => sum::<S, W, 1, true, HALO>(simd, sources, weights, edges, from, tile),
        (2, false) => sum::<S, W, 2, false, HALO>(simd, sources, weights, edges, from, tile),
        (2, true) => sum::<S, W, 2, true, HALO>(simd, sources, weights, edges, from, tile),
        (3, false) => sum::<S, W, 3, false, HALO>(simd, sources, weights, edges, from, tile),
        (3, true) => sum::<S, W, 3, true, HALO>(simd, sources, weights, edges, from, tile),
        (4, false) => sum::<S, W, 4, false, HALO>(simd, sources, weights, edges, from, tile),
        (4, true) => sum::<S, W, 4, true, HALO>(simd, sources, weights, edges, from, tile),
        (5, false) => sum::<S, W, 5, false, HALO>(simd, sources, weights, edges, from, tile),
        (5, true) => sum::<S, W, 5, true, HALO>(simd, sources, weights, edges, from, tile),
        (6, false) => sum::<S, W, 6, false, HALO>(simd, sources, weights, edges, from, tile),
        (6, true) => sum::<S, W, 6, true, HALO>(simd, sources, weights, edges, from, tile),
        (7, false) => sum::<S, W, 7, false, HALO>(simd, sources, weights, edges, from, tile),
        (7, true) => sum::<S, W, 7, true, HALO>(simd, sources, weights, edges, from, tile),
        _ => sum::<S, W, TILE, false, HALO>(simd, sources, weights, edges, from, tile),
    }
}

/// [`sum_tile`] for a tile of `FEW` columns, so few that reading a vector of them would read other sources mostly.
#[inline(always)]
fn sum_few<W: Weights, const FEW: usize, const HALO: bool>(
    sources: Sources<'_>,
    weights: W,
    edges: Range<usize>,
    (first, fresh): (usize, bool),
    tile: &mut [f32],
) -> Option<()> {
    let tile = tile.first_chunk_mut::<FEW>()?;
    let mut sums = if fresh { [0.0; FEW] } else { *tile };
    let (offset, indices) = (sources.offset(first), sources.block.indices);
    let later = sources.later(&edges, ahead(1));
    for (i, &u) in indices.get(edges.clone())?.iter().enumerate() {
        if let Some(&u) = later.get(i) {
            sources.prefetch::<HALO>(u, offset, 1, FEW, false);
        }
        weights.accumulate_few(edges.start + i, &mut sums, sources.from::<HALO>(u, offset)?.first_chunk::<FEW>()?);
    }
    *tile = sums;
    Some(())
}

/// [`sum_tile`] for a tile of exactly `FULL` vectors, and with `TAIL` one more that ends where the tile ends: it begins
/// within the one before it, or, where there is none, reaches into the source behind, which is left out of the result.
#[inline(always)]
fn sum<S: Simd, W: Weights, const FULL: usize, const TAIL: bool, const HALO: bool>(
    simd: S,
    sources: Sources<'_>,
    weights: W,
    edges: Range<usize>,
    from: (usize, bool),
    tile: &mut [f32],
) -> Option<()> {
    let (len, (first, fresh)) = (tile.len(), from);
    let lines = const { (FULL * S::F32_LANES).div_ceil(LINE) + TAIL as usize };
    let ahead = const { ahead((FULL * S::F32_LANES).div_ceil(LINE) + TAIL as usize) };
    let back = len.checked_sub(S::F32_LANES);
    let (mut head, mut last) = ([simd.splat_f32s(0.0); FULL], [simd.splat_f32s(0.0)]);
    if !fresh {
        head = *S::as_simd_f32s(tile).0.first_chunk()?;
        match back {
            Some(back) => last = *S::as_simd_f32s(&tile[back..]).0.first_chunk()?,
            None => last = [simd.partial_load_f32s(tile)],
        }
    }
    let (offset, straddle) = (sources.offset(first), sources.straddle());
    let indices = sources.block.indices;
    let later = sources.later(&edges, ahead);
    for (i, &u) in indices.get(edges.clone())?.iter().enumerate() {
        if let Some(&u) = later.get(i) {
            sources.prefetch::<HALO>(u, offset, lines, len, straddle);
        }
        let (edge, x) = (edges.start + i, sources.from::<HALO>(u, offset)?);
        let all = if TAIL { x.get(..len)? } else { x.get(..FULL * S::F32_LANES)? };
        weights.accumulate(simd, edge, &mut head, S::as_simd_f32s(all).0.first_chunk::<FULL>()?);
        if TAIL {
            let vector = match S::as_simd_f32s(x.get(back.unwrap_or(0)..)?).0.first() {
                Some(&vector) => vector,
                None => simd.partial_load_f32s(all),
            };
            weights.accumulate(simd, edge, &mut last, &[vector]);
        }
    }
    if TAIL {
        match back {
            Some(back) => *S::as_mut_simd_f32s(&mut tile[back..]).0.first_mut()? = last[0],
            None => simd.partial_store_f32s(tile, last[0]),
        }
    }
    *S::as_mut_simd_f32s(tile).0.first_chunk_mut::<FULL>()? = head;
    Some(())
}
