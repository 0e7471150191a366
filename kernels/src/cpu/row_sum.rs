//! The sum of one row of a gather, in vector registers.
//!
//! Columns are split into tiles of up to [`TILE`] registers, which hold the sums while the row's edges stream past. A
//! row can have few edges; most of its time would then go into choosing a method. So every kind of tile is a type of
//! its own, and what it needs is computed once for all rows. Every type adds the edges one by one, in order.

use std::ops::Range;

use pulp::Simd;

use super::element::{Element, wide_array};
use super::prefetch::prefetch;
use super::sources::{Cursor, Sources, TILE};
use super::weights::Weights;

/// Bytes of a cache line.
const LINE_BYTES: usize = f32::LINE * size_of::<f32>();

/// A method to sum the columns of a row.
pub(super) trait Columns<S: Simd, E: Element>: Copy {
    /// Adds the columns `first..first + out.len()` of a row's sources to `out`, or to 0 if `out` is fresh. Returns
    /// `None` if a source does not exist.
    fn sum<W: Weights, const TILED: bool>(
        self,
        simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        from: (usize, bool),
        out: &mut [f32],
    ) -> Option<()>;
}

/// Any number of columns, tile by tile.
#[derive(Clone, Copy)]
pub(super) struct Tiles;

impl<S: Simd, E: Element> Columns<S, E> for Tiles {
    #[inline(always)]
    fn sum<W: Weights, const TILED: bool>(
        self,
        simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        (first, fresh): (usize, bool),
        out: &mut [f32],
    ) -> Option<()> {
        let vectors = out.len().div_ceil(S::F32_LANES);
        let tiles = vectors.div_ceil(TILE);
        let mut start = 0;
        for tile in 1..=tiles {
            let end = if tile == tiles { out.len() } else { vectors * tile / tiles * S::F32_LANES };
            let from = (first + start, fresh);
            sum_tile::<S, E, W, TILED>(simd, sources, weights, edges.clone(), from, &mut out[start..end])?;
            start = end;
        }
        Some(())
    }
}

/// So few columns that a vector would mostly read other sources.
#[derive(Clone, Copy)]
pub(super) struct Few<const N: usize>;

impl<S: Simd, E: Element, const N: usize> Columns<S, E> for Few<N> {
    #[inline(always)]
    fn sum<W: Weights, const TILED: bool>(
        self,
        _simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        (first, fresh): (usize, bool),
        out: &mut [f32],
    ) -> Option<()> {
        let out = out.first_chunk_mut::<N>()?;
        let mut sums = if fresh { [0.0; N] } else { *out };
        let (offset, indices) = (first, sources.block.indices);
        let later = sources.later(&edges, 1);
        let (mut here, mut ahead) = (Cursor::<E, TILED>::new(sources), Cursor::<E, TILED>::new(sources));
        for (i, &u) in indices.get(edges.clone())?.iter().enumerate() {
            if let Some(&u) = later.get(i) {
                ahead.prefetch(u, offset, 1, N, false);
            }
            let x = wide_array(here.from(u, offset)?.first_chunk::<N>()?);
            weights.accumulate_few(edges.start + i, &mut sums, &x);
        }
        *out = sums;
        Some(())
    }
}

/// One tile of `FULL` vectors and, with `TAIL`, a part of one more.
#[derive(Clone, Copy)]
pub(super) struct Vectors<const FULL: usize, const TAIL: bool>;

impl<S: Simd, E: Element, const FULL: usize, const TAIL: bool> Columns<S, E> for Vectors<FULL, TAIL> {
    #[inline(always)]
    fn sum<W: Weights, const TILED: bool>(
        self,
        simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        from: (usize, bool),
        out: &mut [f32],
    ) -> Option<()> {
        sum::<S, E, W, FULL, TAIL, TILED>(simd, sources, weights, edges, from, out)
    }
}

/// All columns of a source, as `N` elements of type `T`. For gathers from one matrix: the sources are an array of arrays.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a, T, const N: usize> {
    rows: &'a [[T; N]],
    /// The edges a few steps ahead, if their sources must be prefetched.
    later: &'a [u32],
}

impl<'a, T, const N: usize> Whole<'a, T, N> {
    pub(super) fn new<E: Element>(sources: Sources<'a, E>, own: &'a [T]) -> Self {
        let lines = (N * size_of::<T>()).div_ceil(LINE_BYTES);
        Self { rows: own.as_chunks().0, later: sources.later(&(0..0), lines) }
    }

    /// Returns source `u` of an edge. Prefetches the source of the edge a few steps ahead.
    #[inline(always)]
    fn row(&self, edge: usize, u: u32) -> Option<&'a [T; N]> {
        if let Some(&u) = self.later.get(edge) {
            let line = const { LINE_BYTES.div_ceil(size_of::<T>()) };
            let start = (u as usize).wrapping_mul(N);
            (0..N).step_by(line).for_each(|part| prefetch(self.rows.as_flattened(), start.wrapping_add(part)));
        }
        self.rows.get(u as usize)
    }
}

impl<S: Simd, E: Element, const N: usize> Columns<S, E> for Whole<'_, E, N> {
    #[inline(always)]
    fn sum<W: Weights, const TILED: bool>(
        self,
        _simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        (_, fresh): (usize, bool),
        out: &mut [f32],
    ) -> Option<()> {
        let out = out.first_chunk_mut::<N>()?;
        let mut sums = if fresh { [0.0; N] } else { *out };
        for (edge, &u) in edges.clone().zip(sources.block.indices.get(edges)?) {
            weights.accumulate_few(edge, &mut sums, &wide_array(self.row(edge, u)?));
        }
        *out = sums;
        Some(())
    }
}

/// The same as [`Whole`], for vectors.
#[derive(Clone, Copy)]
pub(super) struct WholeVectors<'a, V, const N: usize>(pub(super) Whole<'a, V, N>);

impl<S: Simd, E: Element, const N: usize> Columns<S, E> for WholeVectors<'_, S::f32s, N> {
    #[inline(always)]
    fn sum<W: Weights, const TILED: bool>(
        self,
        simd: S,
        sources: Sources<'_, E>,
        weights: W,
        edges: Range<usize>,
        (_, fresh): (usize, bool),
        out: &mut [f32],
    ) -> Option<()> {
        let out = S::as_mut_simd_f32s(out).0.first_chunk_mut::<N>()?;
        let mut sums = if fresh { [simd.splat_f32s(0.0); N] } else { *out };
        for (edge, &u) in edges.clone().zip(sources.block.indices.get(edges)?) {
            weights.accumulate(simd, edge, &mut sums, self.0.row(edge, u)?);
        }
        *out = sums;
        Some(())
    }
}

/// Does [`Columns::sum`] for one of the [`Tiles`], of at least three vectors.
#[inline(always)]
fn sum_tile<S: Simd, E: Element, W: Weights, const TILED: bool>(
    simd: S,
    sources: Sources<'_, E>,
    weights: W,
    edges: Range<usize>,
    from: (usize, bool),
    tile: &mut [f32],
) -> Option<()> {
    let full = tile.len() / S::F32_LANES;
    if const { S::F32_LANES > 1 } && !tile.len().is_multiple_of(S::F32_LANES) {
        return match full {
            3 => sum::<S, E, W, 3, true, TILED>(simd, sources, weights, edges, from, tile),
            4 => sum::<S, E, W, 4, true, TILED>(simd, sources, weights, edges, from, tile),
            5 => sum::<S, E, W, 5, true, TILED>(simd, sources, weights, edges, from, tile),
            6 => sum::<S, E, W, 6, true, TILED>(simd, sources, weights, edges, from, tile),
            _ => sum::<S, E, W, 7, true, TILED>(simd, sources, weights, edges, from, tile),
        };
    }
    match full {
        3 => sum::<S, E, W, 3, false, TILED>(simd, sources, weights, edges, from, tile),
        4 => sum::<S, E, W, 4, false, TILED>(simd, sources, weights, edges, from, tile),
        5 => sum::<S, E, W, 5, false, TILED>(simd, sources, weights, edges, from, tile),
        6 => sum::<S, E, W, 6, false, TILED>(simd, sources, weights, edges, from, tile),
        7 => sum::<S, E, W, 7, false, TILED>(simd, sources, weights, edges, from, tile),
        _ => sum::<S, E, W, TILE, false, TILED>(simd, sources, weights, edges, from, tile),
    }
}

/// Does [`sum_tile`] for a tile of exactly `FULL` vectors and, with `TAIL`, one more that ends where the tile ends.
/// That one overlaps the vector before it. If there is none, it reaches into the next source, which is left out of the
/// result.
#[inline(always)]
fn sum<S: Simd, E: Element, W: Weights, const FULL: usize, const TAIL: bool, const TILED: bool>(
    simd: S,
    sources: Sources<'_, E>,
    weights: W,
    edges: Range<usize>,
    from: (usize, bool),
    tile: &mut [f32],
) -> Option<()> {
    let (len, (first, fresh)) = (tile.len(), from);
    let lines = const { (FULL * S::F32_LANES).div_ceil(E::LINE) + TAIL as usize };
    let back = if FULL > 0 { Some(len.checked_sub(S::F32_LANES)?) } else { len.checked_sub(S::F32_LANES) };
    let (mut head, mut last) = ([simd.splat_f32s(0.0); FULL], [simd.splat_f32s(0.0)]);
    if !fresh {
        head = *S::as_simd_f32s(tile).0.first_chunk()?;
        match back {
            Some(back) => last = *S::as_simd_f32s(&tile[back..]).0.first_chunk()?,
            None => last = [simd.partial_load_f32s(tile)],
        }
    }
    let (offset, straddle) = (first, sources.straddle());
    let indices = sources.block.indices;
    let later = sources.later(&edges, lines);
    let (mut here, mut ahead) = (Cursor::<E, TILED>::new(sources), Cursor::<E, TILED>::new(sources));
    for (i, &u) in indices.get(edges.clone())?.iter().enumerate() {
        if let Some(&u) = later.get(i) {
            ahead.prefetch(u, offset, lines, len, straddle);
        }
        let (edge, x) = (edges.start + i, here.from(u, offset)?);
        let all = if TAIL { x.get(..len)? } else { x.get(..FULL * S::F32_LANES)? };
        weights.accumulate(simd, edge, &mut head, &E::vectors::<S, FULL>(simd, all)?);
        if TAIL {
            let vector = match back {
                Some(back) => E::vectors::<S, 1>(simd, all.get(back..)?)?,
                None => E::vectors::<S, 1>(simd, x).unwrap_or_else(|| [E::part_of_vector(simd, all)]),
            };
            weights.accumulate(simd, edge, &mut last, &vector);
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
