//! Sums over in-neighbours, the kernel that a graph network spends its time in.
//!
//! Rows are cut into tasks of nearly equal edges + rows. Within a row, columns are cut into tiles of up to
//! [`TILE`] vector registers, which stay in registers while the row's edges stream past; the source rows of the
//! edges a few steps ahead are prefetched, because their addresses are random. A row's edges are added one after
//! the other in the block's order, so neither the threads, nor the vector width, nor the cut of the graph into
//! parts changes a bit of the result.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::parallel::{balanced_rows, split_at_ends, task_count};
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use crate::error::{Error, Result, check_shape};
use crate::view::{BlockView, MatMut, MatView};

const CALL: &str = "gather";

/// Vector registers of one column tile.
const TILE: usize = 8;

/// Floats of a cache line.
const LINE: usize = 16;

/// How many edges ahead source rows are asked for, when a tile spans `lines` cache lines: as far as 64 lines reach, but
/// never less than the latency of memory nor more than helps.
const fn ahead(lines: usize) -> usize {
    match 64 / lines {
        0..=4 => 4,
        5..16 => 8,
        _ => 16,
    }
}

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
/// `e * d` additions; [`gather_bytes`] bytes moved; no allocation but a few words a task.
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
    mut out: MatMut<'_>,
) -> Result<()> {
    let (n, d, e) = (block.rows(), out.cols(), block.indices.len());
    check_block(CALL, block)?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    check_shape(CALL, "own", [block.own_sources, d], [own.rows(), own.cols()])?;
    if halo.is_some() || block.halo_sources > 0 {
        let got = halo.map_or([0, 0], |halo| [halo.rows(), halo.cols()]);
        check_shape(CALL, "halo", [block.halo_sources, d], got)?;
    }
    if let Some(weights) = weights {
        check_shape(CALL, "weights", [e, 1], [weights.len(), 1])?;
    }
    let steps = Steps::new(CALL, steps, n, d)?;
    if n == 0 || d == 0 {
        return Ok(());
    }
    let halo = halo.map_or(&[][..], |halo| halo.data());
    let task = |rows: Range<usize>, out: &mut [f32]| {
        let sources = Sources { block, own: own.data(), halo, d };
        let group = steps.group();
        for (first, out) in rows.clone().step_by(group).zip(out.chunks_mut(group * d)) {
            let rows = first..(first + group).min(rows.end);
            match weights {
                None => Arch::new().dispatch(Rows { sources, weights: Unweighted, rows, out: &mut *out }),
                Some(weights) => {
                    Arch::new().dispatch(Rows { sources, weights: Weighted(weights), rows, out: &mut *out })
                }
            }?;
            steps.apply(first, out);
        }
        Ok(())
    };
    let work = (n + e).saturating_mul(d);
    let ranges = balanced_rows(block.indptr, task_count(work, LEAST_WORK));
    if let [all] = &ranges[..] {
        return task(all.clone(), out.data());
    }
    let parts = split_at_ends(out.data(), ranges.iter().map(|range| range.end * d));
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
}

/// Where the source rows lie.
#[derive(Clone, Copy)]
struct Sources<'a> {
    block: BlockView<'a>,
    own: &'a [f32],
    halo: &'a [f32],
    d: usize,
}

impl<'a> Sources<'a> {
    /// `len` columns from `first` on of source `u`.
    #[inline(always)]
    fn columns(&self, u: u32, first: usize, len: usize) -> Option<&'a [f32]> {
        let u = u as usize;
        let (rows, u) =
            if u < self.block.own_sources { (self.own, u) } else { (self.halo, u - self.block.own_sources) };
        let start = u * self.d + first;
        rows.get(start..start + len)
    }

    /// Asks for those columns of the source of `edge`, if there is such an edge.
    #[inline(always)]
    fn prefetch(&self, edge: usize, first: usize, len: usize) {
        if let Some(&u) = self.block.indices.get(edge)
            && (u as usize) < self.block.own_sources
        {
            let start = u as usize * self.d + first;
            for line in (0..len).step_by(LINE) {
                prefetch(self.own, start + line);
            }
            // Rows that start within a line end in one more.
            prefetch(self.own, start + len - 1);
        }
    }
}

/// One task: consecutive rows and their part of the output.
struct Rows<'a, W> {
    sources: Sources<'a>,
    weights: W,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl<W: Weights> WithSimd for Rows<'_, W> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let Self { sources, weights, rows, out } = self;
        let BlockView { indptr, indices, .. } = sources.block;
        for (v, out) in rows.zip(out.chunks_exact_mut(sources.d)) {
            let edges = indptr[v] as usize..indptr[v + 1] as usize;
            if edges.start > edges.end || edges.end > indices.len() {
                return Err(bad_row(CALL, sources.block, v));
            }
            let step = TILE * S::F32_LANES;
            for (i, tile) in out.chunks_mut(step).enumerate() {
                if sum_tile(simd, sources, weights, edges.clone(), i * step, tile).is_none() {
                    return Err(bad_source(sources, edges));
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

/// Sums the columns `first..first + tile.len()` of a row's sources; `None` if a source does not exist.
#[inline(always)]
fn sum_tile<S: Simd, W: Weights>(
    simd: S,
    sources: Sources<'_>,
    weights: W,
    edges: Range<usize>,
    first: usize,
    tile: &mut [f32],
) -> Option<()> {
    let (full, tail) = (tile.len() / S::F32_LANES, !tile.len().is_multiple_of(S::F32_LANES));
    match (full, tail) {
        (0, _) => sum::<S, W, 0, true>(simd, sources, weights, edges, first, tile),
        (1, false) => sum::<S, W, 1, false>(simd, sources, weights, edges, first, tile),
        (1, true) => sum::<S, W, 1, true>(simd, sources, weights, edges, first, tile),
        (2, false) => sum::<S, W, 2, false>(simd, sources, weights, edges, first, tile),
        (2, true) => sum::<S, W, 2, true>(simd, sources, weights, edges, first, tile),
        (3, false) => sum::<S, W, 3, false>(simd, sources, weights, edges, first, tile),
        (3, true) => sum::<S, W, 3, true>(simd, sources, weights, edges, first, tile),
        (4, false) => sum::<S, W, 4, false>(simd, sources, weights, edges, first, tile),
        (4, true) => sum::<S, W, 4, true>(simd, sources, weights, edges, first, tile),
        (5, false) => sum::<S, W, 5, false>(simd, sources, weights, edges, first, tile),
        (5, true) => sum::<S, W, 5, true>(simd, sources, weights, edges, first, tile),
        (6, false) => sum::<S, W, 6, false>(simd, sources, weights, edges, first, tile),
        (6, true) => sum::<S, W, 6, true>(simd, sources, weights, edges, first, tile),
        (7, false) => sum::<S, W, 7, false>(simd, sources, weights, edges, first, tile),
        (7, true) => sum::<S, W, 7, true>(simd, sources, weights, edges, first, tile),
        _ => sum::<S, W, TILE, false>(simd, sources, weights, edges, first, tile),
    }
}

/// [`sum_tile`] for a tile of exactly `FULL` vectors, and with `TAIL` a part of one more.
#[inline(always)]
fn sum<S: Simd, W: Weights, const FULL: usize, const TAIL: bool>(
    simd: S,
    sources: Sources<'_>,
    weights: W,
    edges: Range<usize>,
    first: usize,
    tile: &mut [f32],
) -> Option<()> {
    let len = tile.len();
    let ahead = const { ahead(((FULL + TAIL as usize) * S::F32_LANES).div_ceil(LINE)) };
    let zero = simd.splat_f32s(0.0);
    let mut head = [zero; FULL];
    let mut last = [zero; 1];
    for edge in edges {
        sources.prefetch(edge + ahead, first, len);
        let x = sources.columns(sources.block.indices[edge], first, len)?;
        let (vectors, rest) = S::as_simd_f32s(x);
        weights.accumulate(simd, edge, &mut head, vectors.first_chunk::<FULL>()?);
        if TAIL {
            weights.accumulate(simd, edge, &mut last, &[simd.partial_load_f32s(rest)]);
        }
    }
    let (vectors, rest) = S::as_mut_simd_f32s(tile);
    *vectors.first_chunk_mut::<FULL>()? = head;
    if TAIL {
        simd.partial_store_f32s(rest, last[0]);
    }
    Some(())
}
