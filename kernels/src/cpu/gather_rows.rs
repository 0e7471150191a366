//! The rows of a gather on one thread, and where their sources lie.
//!
//! The addresses of sources are random, so those of the edges a few steps ahead are asked for, unless they are near anyway.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::gather::{CALL, Pass, Start};
use super::prefetch::prefetch;
use super::row_sum::{Columns, Few, TILE, Tiles, Vectors, Weights, Whole, WholeVectors};
use crate::error::{Error, Result};
use crate::view::BlockView;

/// Floats of a cache line.
pub(super) const LINE: usize = 16;

/// How many edges ahead source rows are asked for, when a tile spans `lines` cache lines: as far as 64 lines reach, but
/// never less than the latency of the last cache.
const fn ahead(lines: usize) -> usize {
    match 64 / lines {
        0..=4 => 4,
        5..16 => 8,
        16..32 => 16,
        far => far,
    }
}

/// The same where most sources are in memory, which is slower to answer and takes more questions at once.
const fn far_ahead(lines: usize) -> usize {
    if lines <= 4 { 64 } else { 16 }
}

/// Floats of sources that the last cache holds.
const FAR: usize = 1 << 22;

/// Floats of sources that a second-level cache holds, which need not be asked for.
const NEAR: usize = 1 << 18;

/// How many rows ahead the edges of a window are asked for, and how many cache lines of them at most.
const ROWS_AHEAD: usize = 8;
const LINES_OF_ROW: usize = 8;

/// Where the source rows lie.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) block: BlockView<'a>,
    pub(super) cuts: Cuts<'a>,
    /// The sources from `first` on are the `own_rows` rows of `own`; those behind them are in `halo`.
    pub(super) first: usize,
    pub(super) own_rows: usize,
    pub(super) own: &'a [f32],
    pub(super) halo: &'a [f32],
    pub(super) d: usize,
}

/// The edges that count of each row: from point `window` to the next of the row's `stride` points. The indptr of a block is
/// the points of all its edges.
#[derive(Clone, Copy)]
pub(super) struct Cuts<'a> {
    pub(super) points: &'a [u64],
    pub(super) stride: usize,
    pub(super) window: usize,
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

    /// Asks for the edges of row `v`, and their weights.
    #[inline(always)]
    fn prefetch_edges(&self, v: usize, weights: impl Weights) {
        for edge in self.edges(v).unwrap_or(0..0).step_by(LINE).take(LINES_OF_ROW) {
            prefetch(self.block.indices, edge);
            weights.prefetch(edge);
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

    /// The edges a few steps ahead of a row's, of whose sources `lines` cache lines are to be asked for; where the next row's
    /// edges lie apart, of this row's only.
    #[inline(always)]
    pub(super) fn later(&self, edges: &Range<usize>, lines: usize) -> &'a [u32] {
        let (indices, cells) = (self.block.indices, self.own.len() + self.halo.len());
        if cells <= NEAR {
            return &[];
        }
        let ahead = if cells <= FAR { ahead(lines) } else { far_ahead(lines) };
        indices.get(edges.start + ahead..if self.apart() { edges.end } else { indices.len() }).unwrap_or(&[])
    }

    /// What must be added to `u * d` to find column `column` of source `u` among the own ones.
    #[inline(always)]
    pub(super) fn offset(&self, column: usize) -> usize {
        column.wrapping_sub(self.first.wrapping_mul(self.d))
    }

    /// The matrix that holds source `u`, from the column of this offset on. `HALO`: whether there is more than one.
    #[inline(always)]
    pub(super) fn from<const HALO: bool>(&self, u: u32, offset: usize) -> Option<&'a [f32]> {
        let start = (u as usize * self.d).wrapping_add(offset);
        if HALO && (u as usize) >= self.first + self.own_rows {
            return self.halo.get(start.wrapping_sub(self.own_rows * self.d)..);
        }
        self.own.get(start..)
    }

    /// Asks for `len` columns, of `lines` lines, of source `u`, wherever that is; and if rows `straddle` lines, for
    /// the one more that they may end in.
    #[inline(always)]
    pub(super) fn prefetch<const HALO: bool>(&self, u: u32, offset: usize, lines: usize, len: usize, straddle: bool) {
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
    pub(super) fn straddle(&self) -> bool {
        !self.d.is_multiple_of(LINE) || !(self.own.as_ptr() as usize).is_multiple_of(4 * LINE)
    }
}

/// One task: consecutive rows and their part of the output; `HALO` says whether there is a halo.
pub(super) struct Rows<'a, W, const HALO: bool> {
    pub(super) pass: &'a Pass<'a>,
    pub(super) weights: W,
    pub(super) rows: Range<usize>,
    /// All columns of the rows.
    pub(super) out: &'a mut [f32],
}

impl<W: Weights, const HALO: bool> Rows<'_, W, HALO> {
    pub(super) fn run(self) -> Result<()> {
        Arch::new().dispatch(self)
    }
}

impl<W: Weights, const HALO: bool> WithSimd for Rows<'_, W, HALO> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let (sources, columns) = (self.pass.sources, self.pass.columns.len());
        // Rows may have few edges, so what is the same for all of them is settled before the first.
        let whole = !HALO && columns == sources.d && sources.first == 0 && !sources.apart();
        let cells = sources.own;
        let vectors = S::as_simd_f32s(cells).0;
        match (columns / S::F32_LANES, columns % S::F32_LANES) {
            (0, 1) if whole => self.each_row(simd, Whole::<f32, 1>::new(sources, cells)),
            (0, 2) if whole => self.each_row(simd, Whole::<f32, 2>::new(sources, cells)),
            (0, 3) if whole => self.each_row(simd, Whole::<f32, 3>::new(sources, cells)),
            (0, 4) if whole => self.each_row(simd, Whole::<f32, 4>::new(sources, cells)),
            (1, 0) if whole => self.each_row(simd, WholeVectors(Whole::<_, 1>::new(sources, vectors))),
            (2, 0) if whole => self.each_row(simd, WholeVectors(Whole::<_, 2>::new(sources, vectors))),
            (3, 0) if whole => self.each_row(simd, WholeVectors(Whole::<_, 3>::new(sources, vectors))),
            (4, 0) if whole => self.each_row(simd, WholeVectors(Whole::<_, 4>::new(sources, vectors))),
            (8, 0) if whole => self.each_row(simd, WholeVectors(Whole::<_, 8>::new(sources, vectors))),
            (0, 1) => self.each_row(simd, Few::<1>),
            (0, 2) => self.each_row(simd, Few::<2>),
            (0, 3) => self.each_row(simd, Few::<3>),
            (0, 4) => self.each_row(simd, Few::<4>),
            (0, _) => self.each_row(simd, Vectors::<0, true>),
            (1, 0) => self.each_row(simd, Vectors::<1, false>),
            (1, _) => self.each_row(simd, Vectors::<1, true>),
            (2, 0) => self.each_row(simd, Vectors::<2, false>),
            (2, _) => self.each_row(simd, Vectors::<2, true>),
            (4, 0) => self.each_row(simd, Vectors::<4, false>),
            _ => self.each_row(simd, Tiles),
        }
    }
}

impl<W: Weights, const HALO: bool> Rows<'_, W, HALO> {
    /// Sums the row's columns as `columns_of` says.
    #[inline(always)]
    fn each_row<S: Simd>(self, simd: S, columns_of: impl Columns<S>) -> Result<()> {
        let Self { pass: &Pass { sources, ref columns, start, d, .. }, weights, rows, out } = self;
        let (apart, fresh) = (sources.apart(), matches!(start, Start::Zero));
        for (v, out) in rows.zip(out.chunks_exact_mut(d)) {
            let edges = sources.edges(v).ok_or_else(|| bad_row(CALL, sources.block, v))?;
            if apart {
                sources.prefetch_edges(v + ROWS_AHEAD, weights);
                sources.prefetch_first(sources.edges(v + 1).unwrap_or(0..0), columns.len());
            }
            let out = &mut out[columns.clone()];
            if let Start::Sum(sum) = start {
                out.copy_from_slice(&sum.row(v)[columns.clone()]);
            }
            if columns_of.sum::<W, HALO>(simd, sources, weights, edges.clone(), (0, fresh), out).is_none() {
                return Err(bad_source(sources, edges));
            }
        }
        Ok(())
    }
}

/// The error for row `v`, whose edges are not a range of the edges.
pub(super) fn bad_row(call: &'static str, block: BlockView<'_>, v: usize) -> Error {
    Error::Index { call, operand: "indptr", index: block.indptr[v], limit: block.indices.len() as u64 + 1 }
}

/// The error for the first source of a row that does not exist.
fn bad_source(sources: Sources<'_>, edges: Range<usize>) -> Error {
    let limit = (sources.block.own_sources + sources.block.halo_sources) as u64;
    let found = sources.block.indices[edges].iter().copied().map(u64::from).find(|&u| u >= limit);
    Error::Index { call: CALL, operand: "indices", index: found.unwrap_or(limit), limit }
}
