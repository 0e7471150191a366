//! The sources of a gather's rows, and their addresses.
//!
//! The addresses are random, so the sources of the edges a few steps ahead are prefetched, unless all sources fit a
//! near cache.

use std::ops::Range;

use super::element::Element;
use super::prefetch::prefetch;
use crate::error::{Error, Result, check_shape};
use crate::view::{BlockView, MatView};

/// The kernel's name in errors.
pub(super) const CALL: &str = "gather";

/// Vector registers per column tile.
pub(super) const TILE: usize = 8;

/// Sources of edges per cache line.
pub(super) const LINE: usize = 16;

/// Returns how many edges ahead source rows are prefetched when a tile spans `lines` cache lines: as many as 64 lines
/// allow, but enough to cover the latency of the last-level cache.
const fn ahead(lines: usize) -> usize {
    match 64 / lines {
        0..=4 => 4,
        5..16 => 8,
        16..32 => 16,
        far => far,
    }
}

/// Returns the same for sources that are mostly in memory, which has a longer latency and needs more requests in
/// flight.
const fn far_ahead(lines: usize) -> usize {
    if lines <= 4 { 64 } else { 16 }
}

/// Bytes of sources that fit the last-level cache.
const FAR: usize = 16 << 20;

/// Bytes of sources that fit a second-level cache, and need no prefetch.
pub(super) const NEAR: usize = 1 << 20;

/// The source rows of a gather.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a, E> {
    pub(super) block: BlockView<'a>,
    /// The sources at hand, if they are in one matrix.
    pub(super) own: &'a [E],
    /// The sources at hand, if they are in several matrices.
    pub(super) tiles: Option<&'a Tiles<'a, E>>,
    pub(super) d: usize,
}

/// Consecutive sources in several matrices.
pub(super) struct Tiles<'a, E> {
    tiles: Vec<Tile<'a, E>>,
    /// The matrices, if there are two.
    pair: Option<[Tile<'a, E>; 2]>,
    /// For each range of `1 << shift` sources, the matrix of the first of them.
    at: Vec<Tile<'a, E>>,
    shift: u32,
    cells: usize,
    straddle: bool,
}

/// One of the matrices.
#[derive(Clone, Copy)]
struct Tile<'a, E> {
    cells: &'a [E],
    /// Index of its first source.
    first: usize,
    /// Index after its last source.
    end: usize,
}

/// Finds the sources of a row. `TILED` says whether there are several matrices. If there are more than two, the sources of a
/// row ascend, so most are in the same matrix as the one before. Of two, either may be next, as with a halo, so no branch
/// depends on which it is: a processor would guess wrong half of the time.
pub(super) struct Cursor<'a, E, const TILED: bool> {
    sources: Sources<'a, E>,
    cells: &'a [E],
    /// The first source of the matrix, and its number of sources.
    first: usize,
    rows: usize,
}

impl<'a, E: Element, const TILED: bool> Cursor<'a, E, TILED> {
    pub(super) fn new(sources: Sources<'a, E>) -> Self {
        Self { sources, cells: sources.own, first: 0, rows: 0 }
    }

    /// Returns the columns of source `u` from this offset on.
    #[inline(always)]
    pub(super) fn from(&mut self, u: u32, offset: usize) -> Option<&'a [E]> {
        let (cells, start) = self.place(u, offset)?;
        cells.get(start..)
    }

    /// Returns the matrix with source `u`, and the index of the source's columns from this offset on.
    #[inline(always)]
    fn place(&mut self, u: u32, offset: usize) -> Option<(&'a [E], usize)> {
        let d = self.sources.d;
        if !TILED {
            return Some((self.cells, u as usize * d + offset));
        }
        if let Some(pair) = &self.sources.tiles?.pair {
            let tile = &pair[usize::from(u as usize >= pair[1].first)];
            return Some((tile.cells, (u as usize).wrapping_sub(tile.first) * d + offset));
        }
        if (u as usize).wrapping_sub(self.first) >= self.rows {
            let tile = self.sources.tiles?.find(u as usize)?;
            (self.cells, self.first, self.rows) = (tile.cells, tile.first, tile.end - tile.first);
        }
        Some((self.cells, (u as usize).wrapping_sub(self.first) * d + offset))
    }

    /// Prefetches `len` columns of source `u`, which span `lines` cache lines. If rows `straddle` lines, it also
    /// prefetches the line that they end in.
    #[inline(always)]
    pub(super) fn prefetch(&mut self, u: u32, offset: usize, lines: usize, len: usize, straddle: bool) {
        // A prefetch may use any address.
        let Some((from, start)) = self.place(u, offset) else { return };
        for line in 0..lines {
            prefetch(from, start.wrapping_add(line * E::LINE));
        }
        if straddle {
            prefetch(from, start.wrapping_add(len - 1));
        }
    }
}

/// Most ranges of sources for which the matrix is stored. They fit a first-level cache beside the rows.
const RANGES: usize = 1 << 8;

impl<'a, E: Element> Tiles<'a, E> {
    /// Joins matrices of `d` columns, which all have rows.
    pub(super) fn new(tiles: &[&'a [E]], d: usize) -> Self {
        let place = |first: &mut usize, cells: &&'a [E]| {
            let tile = Tile { cells, first: *first, end: *first + cells.len() / d };
            *first = tile.end;
            Some(tile)
        };
        let placed: Vec<Tile<'_, E>> = tiles.iter().scan(0, place).collect();
        let all = placed.last().map_or(0, |tile| tile.end);
        let shift = (all / RANGES).checked_ilog2().map_or(0, |log| log + 1);
        let tile_of = |range: usize| placed.iter().find(|tile| range << shift < tile.end).copied();
        let at = (0..=all >> shift).map_while(tile_of).collect();
        let cells = tiles.iter().map(|tile| tile.len()).sum();
        let straddle = tiles.iter().any(|tile| straddles(tile, d));
        let pair = placed[..].try_into().ok();
        Self { tiles: placed, pair, at, shift, cells, straddle }
    }

    /// Returns the matrix of the source at `place`.
    #[inline(always)]
    fn find(&self, place: usize) -> Option<&Tile<'a, E>> {
        let tile = self.at.get(place >> self.shift)?;
        if place < tile.end { Some(tile) } else { self.search(place) }
    }

    /// Does [`Tiles::find`] for a source that is not in the first matrix of its range.
    #[cold]
    fn search(&self, place: usize) -> Option<&Tile<'a, E>> {
        self.tiles.get(self.tiles.partition_point(|tile| tile.end <= place))
    }
}

/// Whether rows of `d` numbers may start inside a cache line.
fn straddles<E: Element>(cells: &[E], d: usize) -> bool {
    !d.is_multiple_of(E::LINE) || !(cells.as_ptr() as usize).is_multiple_of(E::LINE * size_of::<E>())
}

/// The edges of each row that a pass covers.
#[derive(Clone, Copy)]
pub(super) enum Cuts<'a> {
    /// All.
    All,
    /// Those whose source is in a range. The sources of each row ascend.
    Window { first: usize, end: usize },
    /// Those from point `window` of the row's `stride` points to the next point. Their sources begin at `first`.
    Points { points: &'a [u64], stride: usize, window: usize, first: usize },
}

impl Cuts<'_> {
    /// Returns the first source at hand.
    pub(super) fn first(&self) -> usize {
        match *self {
            Cuts::All => 0,
            Cuts::Window { first, .. } | Cuts::Points { first, .. } => first,
        }
    }
}

impl<'a, E: Element> Sources<'a, E> {
    /// Returns the edges whose sources are to be prefetched while `edges` are summed, `lines` cache lines each. They
    /// start a few steps ahead and go on into the next rows.
    #[inline(always)]
    pub(super) fn later(&self, edges: &Range<usize>, lines: usize) -> &'a [u32] {
        let ahead = self.steps_ahead(lines);
        ahead.and_then(|ahead| self.block.indices.get(edges.start + ahead..)).unwrap_or(&[])
    }

    /// Prefetches `columns` columns of the sources of the first edges from `edge` on, which no row before prefetches.
    #[inline(always)]
    pub(super) fn begin<const TILED: bool>(&self, edge: usize, columns: usize) {
        let len = columns.min(TILE * E::LINE);
        let lines = len.div_ceil(E::LINE);
        let steps = self.steps_ahead(lines).unwrap_or(0);
        let mut cursor = Cursor::<E, TILED>::new(*self);
        for &u in self.block.indices.get(edge..).unwrap_or(&[]).iter().take(steps) {
            cursor.prefetch(u, 0, lines, len, self.straddle());
        }
    }

    /// Returns how many sources are at hand.
    pub(super) fn rows(&self) -> usize {
        self.cells() / self.d.max(1)
    }

    fn cells(&self) -> usize {
        self.tiles.map_or(self.own.len(), |tiles| tiles.cells)
    }

    /// Returns how many edges ahead sources of `lines` cache lines are prefetched; `None` if they need no prefetch.
    #[inline(always)]
    fn steps_ahead(&self, lines: usize) -> Option<usize> {
        let bytes = self.cells() * size_of::<E>();
        let steps = if bytes <= FAR { ahead(lines) } else { far_ahead(lines) };
        (bytes > NEAR).then_some(steps)
    }

    /// Whether rows may start inside a cache line.
    pub(super) fn straddle(&self) -> bool {
        self.tiles.map_or_else(|| straddles(self.own, self.d), |tiles| tiles.straddle)
    }
}

/// One pass: some columns of some sources.
#[derive(Clone)]
pub(super) struct Pass<'a, E> {
    pub(super) sources: Sources<'a, E>,
    pub(super) cuts: Cuts<'a>,
    pub(super) weights: Option<&'a [f32]>,
    pub(super) columns: Range<usize>,
    pub(super) start: Start<'a>,
    /// Number of columns of the output.
    pub(super) d: usize,
}

/// The initial value of the sums.
#[derive(Clone, Copy)]
pub(super) enum Start<'a> {
    Zero,
    Sum(MatView<'a>),
    /// The contents of the output.
    Out,
}

/// Returns an error for a block whose offsets do not start at 0 or do not end at the number of edges.
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

/// Returns the error for row `v`, whose edge range is invalid.
pub(super) fn bad_row(call: &'static str, block: BlockView<'_>, v: usize) -> Error {
    Error::Index { call, operand: "indptr", index: block.indptr[v], limit: block.indices.len() as u64 + 1 }
}

/// Returns the error for the first invalid source of a row.
pub(super) fn bad_source(block: BlockView<'_>, edges: Range<usize>) -> Error {
    let limit = (block.own_sources + block.halo_sources) as u64;
    let found = block.indices[edges].iter().copied().map(u64::from).find(|&u| u >= limit);
    Error::Index { call: CALL, operand: "indices", index: found.unwrap_or(limit), limit }
}
