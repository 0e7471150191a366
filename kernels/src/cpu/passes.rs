//! How a wide gather is cut so that its sources stay in a cache.
//!
//! A row of a popular source is read once an edge. Where the sources together fit no cache, most of these reads go to
//! memory. Then the gather is done in passes: a few columns of some of the sources are copied one behind the other,
//! which makes them fit, and their share of every row is added before the next are copied. The copy costs about as much
//! as reading every source once or twice, so it pays where sources are read often.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::parallel::for_rows;
use crate::view::BlockView;

/// Bytes of sources that a pass may read at most: more than that do not stay in the last cache, which all cores share, and
/// other programs too.
const CACHE_BYTES: usize = 16 << 20;

/// Bytes of sources of a pass, if rows have edges enough for many passes.
const WINDOW_BYTES: usize = 8 << 20;

/// Floats of a cache line.
const LINE: usize = 16;

/// Lines of a source that a pass reads: fewer, and finding the line takes longer than adding it.
const LINES: usize = 4;

/// How often a source must be read for a pass to pay.
const READ_OFTEN: usize = 32;

/// How many edges of a row a pass must have, on average, to pay for reading and writing the row's sum.
const EDGES_OF_ROW: usize = 16;

/// The cut of a gather into passes.
pub(super) struct Passes {
    /// Columns of one pass, whole lines.
    pub(super) width: usize,
    /// Sources of one pass.
    pub(super) sources: usize,
}

impl Passes {
    /// The cut of a gather of `d` columns from `own` sources at hand and `halo` ones; `None` if one pass over the sources
    /// where they lie is better.
    pub(super) fn new(block: BlockView<'_>, own: usize, halo: usize, d: usize) -> Option<Self> {
        let (sources, edges) = (own + halo, block.indices.len());
        if sources.saturating_mul(4 * d) <= CACHE_BYTES || edges / READ_OFTEN < sources {
            return None;
        }
        let width = d.div_ceil(d.div_ceil(LINES * LINE)).next_multiple_of(LINE);
        // Rows do not ascend where there is a halo.
        let most = if halo > 0 { 1 } else { edges / EDGES_OF_ROW / block.rows().max(1) };
        let windows = sources.div_ceil(WINDOW_BYTES / (4 * width)).min(most).max(1);
        if sources.div_ceil(windows) > CACHE_BYTES / (4 * width) {
            return None;
        }
        Some(Self { width, sources: sources.div_ceil(windows) })
    }
}

/// Where the edges of each row begin, and where among them each source of `limits` would stand: those of the first row, then
/// of the next, and at last the number of edges. Empty if there are no limits.
///
/// The sources of each row must ascend. If that is to be `checked`, and that they exist, `None` says that they do not. A row
/// whose edges are no range of the edges gets points that are none either.
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

/// Copies some columns of the rows of matrices of `d`, one behind the other, into rows of `width`.
pub(super) fn copy_columns(from: [&[f32]; 2], d: usize, columns: Range<usize>, to: &mut [f32], width: usize) {
    let mut rest = to;
    for from in from {
        let (to, after) = rest.split_at_mut(from.len() / d * width);
        rest = after;
        for_rows(to, width, |first, to| {
            for (to, from) in to.chunks_exact_mut(width).zip(from[first * d..].chunks_exact(d)) {
                to[..columns.len()].copy_from_slice(&from[columns.clone()]);
            }
        });
    }
}
