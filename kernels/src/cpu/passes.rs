//! Passes: splits a wide gather so that its sources stay in a cache.
//!
//! The row of a source is read once per edge. If the sources together do not fit a cache, most of these reads go to
//! memory. The gather then runs in passes: each pass copies a few columns of some sources into contiguous memory, so
//! that they fit, and adds their share to every row. The copy costs about as much as reading every source once or
//! twice, so it pays where sources are read often.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::element::Element;
use super::parallel::for_rows;
use crate::view::BlockView;

/// Most bytes of sources that one pass may read. More would not stay in the last-level cache, which is shared by all
/// cores and by other programs.
const CACHE_BYTES: usize = 16 << 20;

/// Bytes of sources per pass, if the rows have enough edges for many passes.
const WINDOW_BYTES: usize = 8 << 20;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Cache lines per source that a pass reads. With fewer, finding a line takes longer than adding it.
const LINES: usize = 4;

/// How often each source must be read for a pass to pay.
const READ_OFTEN: usize = 32;

/// Average edges per row that a pass must have to pay for reading and writing the row's sum.
const EDGES_OF_ROW: usize = 16;

/// How a gather is split into passes.
pub(super) struct Passes {
    /// Bytes of columns per pass, in whole cache lines.
    pub(super) width: usize,
    /// Sources per pass.
    pub(super) sources: usize,
}

impl Passes {
    /// Returns the split of a gather over a block of `rows` rows, `edges` edges and `sources` sources of `row_bytes`
    /// bytes; `None` if a single pass over the sources in place is better. `ascend` says whether the sources of each row
    /// ascend.
    pub(super) fn new([rows, edges, sources]: [usize; 3], ascend: bool, row_bytes: usize) -> Option<Self> {
        if sources.saturating_mul(row_bytes) <= CACHE_BYTES || edges / READ_OFTEN < sources {
            return None;
        }
        let width = row_bytes.div_ceil(row_bytes.div_ceil(LINES * LINE)).next_multiple_of(LINE);
        let most = if ascend { edges / EDGES_OF_ROW / rows.max(1) } else { 1 };
        let windows = sources.div_ceil(WINDOW_BYTES / width).min(most).max(1);
        if sources.div_ceil(windows) > CACHE_BYTES / width {
            return None;
        }
        Some(Self { width, sources: sources.div_ceil(windows) })
    }
}

/// Returns split points of the edges of each row: its first edge, then for each source in `limits` the first edge whose
/// source is not below it. The rows follow each other; the last entry is the number of edges. Returns an empty vector
/// if there are no limits.
///
/// The sources of each row must ascend. With `checked`, the function verifies this and that all sources exist, and
/// returns `None` if not. A row whose edge range is invalid gets invalid points.
pub(super) fn points(block: BlockView<'_>, limits: &[usize], checked: bool) -> Option<Vec<u64>> {
    if limits.is_empty() {
        return Some(Vec::new());
    }
    let stride = limits.len() + 1;
    let mut points = vec![u64::MAX; block.rows() * stride + 1];
    let fill = |v: usize, points: &mut [u64]| {
        let edges = block.edges(v);
        let Some(row) = block.indices.get(edges.clone()) else { return !checked };
        if checked && !(row.is_sorted() && row.last().is_none_or(|&last| (last as usize) < block.own_sources)) {
            return false;
        }
        points[0] = edges.start as u64;
        for (point, &limit) in points[1..].iter_mut().zip(limits) {
            *point = (edges.start + row.partition_point(|&u| (u as usize) < limit)) as u64;
        }
        true
    };
    let good = AtomicBool::new(true);
    for_rows(&mut points[..block.rows() * stride], stride, |first, points| {
        let mut rows = points.chunks_exact_mut(stride).zip(first..);
        if !(good.load(Ordering::Relaxed) && rows.all(|(points, v)| fill(v, points))) {
            good.store(false, Ordering::Relaxed);
        }
    });
    *points.last_mut()? = block.indices.len() as u64;
    good.into_inner().then_some(points)
}

/// Copies the columns `columns` of consecutive matrices with `d` columns, of which only the rows `rows`, into rows of
/// `width`.
pub(super) fn copy_columns<E: Element>(
    tiles: &[&[E]],
    d: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    to: &mut [E],
    width: usize,
) {
    let (mut rest, mut first) = (to, 0);
    for tile in tiles {
        let end = first + tile.len() / d;
        let [start, stop] = [rows.start, rows.end].map(|row| (row.clamp(first, end) - first) * d);
        let from = &tile[start..stop];
        first = end;
        let (to, after) = rest.split_at_mut(from.len() / d * width);
        rest = after;
        for_rows(to, width, |first, to| {
            for (to, from) in to.chunks_exact_mut(width).zip(from[first * d..].chunks_exact(d)) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        });
    }
}
