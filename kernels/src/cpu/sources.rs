//! The sources of a gather's rows, and where they lie.
//!
//! Their addresses are random, so those of the edges a few steps ahead are asked for, unless they are near anyway.

use std::ops::Range;

use super::prefetch::prefetch;
use super::weights::Weights;
use crate::error::{Error, Result, check_shape};
use crate::view::{BlockView, MatView};

/// The kernel's name in errors.
pub(super) const CALL: &str = "gather";

/// Vector registers of one column tile.
pub(super) const TILE: usize = 8;

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

/// How many cache lines of a row's edges are asked for at most.
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
    pub(super) fn edges(&self, v: usize) -> Option<Range<usize>> {
        let Cuts { points, stride, window } = self.cuts;
        let at = v * stride + window;
        let edges = *points.get(at)? as usize..*points.get(at + 1)? as usize;
        self.block.indices.get(edges.clone())?;
        Some(edges)
    }

    /// Whether there are edges between those of one row and those of the next that do not count.
    #[inline(always)]
    pub(super) fn apart(&self) -> bool {
        self.cuts.stride > 1
    }

    /// Asks for the edges of row `v`, and their weights.
    #[inline(always)]
    pub(super) fn prefetch_edges(&self, v: usize, weights: impl Weights) {
        for edge in self.edges(v).unwrap_or(0..0).step_by(LINE).take(LINES_OF_ROW) {
            prefetch(self.block.indices, edge);
            weights.prefetch(edge);
        }
    }

    /// Asks for the first columns of the first sources of a row's edges.
    #[inline(always)]
    pub(super) fn prefetch_first(&self, edges: Range<usize>, columns: usize) {
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

/// Some columns of some sources.
#[derive(Clone)]
pub(super) struct Pass<'a> {
    pub(super) sources: Sources<'a>,
    pub(super) weights: Option<&'a [f32]>,
    pub(super) columns: Range<usize>,
    pub(super) start: Start<'a>,
    /// Columns of the output.
    pub(super) d: usize,
}

/// What the sources are added to.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    Sum(MatView<'a>),
    /// What the output holds.
    Out,
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
