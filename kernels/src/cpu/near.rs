//! The edges of a window of sources, side by side.
//!
//! A gather over some of the sources skips most edges of a row. What it reads is then copied, a few thousand edges at a
//! time, into a small block of its own in the first-level cache. So the row loop is the same as for a whole gather: it
//! prefetches across rows, and source 0 is the first at hand.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::element::Element;
use super::prefetch::prefetch;
use super::sources::{CALL, Cuts, LINE, Pass, Sources, Start, bad_row, bad_source};
use crate::error::Result;
use crate::view::{BlockView, MatView};

/// Most rows that are copied together, and the number of edges after which no further row is.
const ROWS: usize = 512;
const EDGES: usize = 4096;

/// Rows ahead for which the edges are prefetched, and most cache lines of each.
const ROWS_AHEAD: usize = 8;
const LINES_OF_ROW: usize = 8;

/// Edges that are all compared with the limits. A longer row is searched.
const COUNTED: usize = 64;

/// Edges of a row that is first searched near where a limit is likely to be: its edges span many cache lines.
const LONG: usize = 256;

/// Returns the edges of row `v` that a pass covers; `None` if their range is invalid.
#[inline(always)]
fn covered(cuts: Cuts<'_>, block: BlockView<'_>, v: usize) -> Option<Range<usize>> {
    let edges = match cuts {
        Cuts::All => return edges_of(block, v),
        Cuts::Window { first, end } => {
            let edges = edges_of(block, v)?;
            let [low, high] = below(block, edges.clone(), [first, end]).map(|count| edges.start + count);
            low..high.max(low)
        }
        Cuts::Points { points, stride, window, .. } => {
            let at = v * stride + window;
            *points.get(at)? as usize..*points.get(at + 1)? as usize
        }
    };
    block.indices.get(edges.clone())?;
    Some(edges)
}

/// Prefetches the edges of row `v` that a pass covers, or where they are likely to be, and their weights.
#[inline(always)]
fn prefetch_edges(cuts: Cuts<'_>, block: BlockView<'_>, weights: Option<&[f32]>, v: usize) {
    let edges = match cuts {
        // The edges of short rows follow each other, so the processor loads them by itself.
        Cuts::Window { first, end } => edges_of(block, v).filter(|edges| edges.len() > LONG).map(|edges| {
            let [low, high] = [first, end].map(|limit| place(edges.len(), limit, block.own_sources));
            edges.start + low.saturating_sub(LINE)..edges.start + high
        }),
        _ => covered(cuts, block, v),
    };
    for edge in edges.unwrap_or(0..0).step_by(LINE).take(LINES_OF_ROW) {
        prefetch(block.indices, edge);
        weights.iter().for_each(|weights| prefetch(weights, edge));
    }
}

/// Returns all edges of row `v`; `None` if their range is invalid.
#[inline(always)]
pub(super) fn edges_of(block: BlockView<'_>, v: usize) -> Option<Range<usize>> {
    let edges = *block.indptr.get(v)? as usize..*block.indptr.get(v + 1)? as usize;
    block.indices.get(edges.clone())?;
    Some(edges)
}

/// Returns how many of `count` ascending sources are below `limit` if they are spread evenly over `all` sources.
#[inline(always)]
fn place(count: usize, limit: usize, all: usize) -> usize {
    (count as f64 * (limit as f64 / all.max(1) as f64)) as usize
}

/// Returns how many of the ascending sources of a row are below each of two limits.
#[inline(always)]
fn below(block: BlockView<'_>, edges: Range<usize>, limits: [usize; 2]) -> [usize; 2] {
    if edges.len() > COUNTED {
        let (row, [low, high]) = (&block.indices[edges], limits);
        return [search(row, low, block.own_sources), search(row, high, block.own_sources)];
    }
    let mut counts = [0; 2];
    for first in edges.clone().step_by(LINE) {
        let (row, count) = (&block.indices[first..], edges.end - first);
        // A vector may reach into the next row, whose sources are left out.
        let Some(line) = row.first_chunk::<LINE>() else {
            let rest = &block.indices[first..edges.end];
            let rest = limits.map(|limit| rest.iter().filter(|&&u| (u as usize) < limit).count());
            return [counts[0] + rest[0], counts[1] + rest[1]];
        };
        for (limit, sum) in limits.into_iter().zip(&mut counts) {
            let [limit, count] = [limit, count].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
            let is_below = |(i, &u): (usize, &u32)| u32::from(u < limit) & u32::from((i as u32) < count);
            *sum += line.iter().enumerate().map(is_below).sum::<u32>() as usize;
        }
    }
    counts
}

/// Does the same for more edges and one limit. In most long rows, the limit is near the place where it would be if
/// sources were spread evenly.
#[inline(always)]
fn search(row: &[u32], limit: usize, all: usize) -> usize {
    let is_below = |&u: &u32| (u as usize) < limit;
    if row.len() <= LONG {
        return row.partition_point(is_below);
    }
    let middle = place(row.len(), limit, all).min(row.len());
    let (low, high) = (middle.saturating_sub(COUNTED / 2), (middle + COUNTED / 2).min(row.len()));
    let starts_below = low == 0 || is_below(&row[low - 1]);
    let ends_above = high == row.len() || !is_below(&row[high]);
    match (starts_below, ends_above) {
        (true, true) => low + row[low..high].partition_point(is_below),
        (true, false) => high + row[high..].partition_point(is_below),
        (false, _) => row[..low].partition_point(is_below),
    }
}

/// A small block with the edges of some rows; its buffers are used again.
#[derive(Default)]
pub(super) struct Near {
    indptr: Vec<u64>,
    indices: Vec<u32>,
    weights: Vec<f32>,
}

impl Near {
    /// Copies the edges of the first of `rows`. Returns the pass over these rows, and their number.
    ///
    /// # Errors
    /// [`crate::Error::Index`] if the edges of a row or a source are invalid.
    pub(super) fn copy<'b, E: Element>(
        &'b mut self,
        pass: &Pass<'b, E>,
        rows: Range<usize>,
    ) -> Result<(Pass<'b, E>, usize)> {
        let first = rows.start;
        let count = Arch::new().dispatch(Copy { near: self, pass, rows })?;
        let block = BlockView { indptr: &self.indptr, indices: &self.indices, ..pass.sources.block };
        let start = match pass.start {
            Start::Sum(sum) => {
                let d = sum.cols();
                let rows = &sum.data()[first * d..(first + count) * d];
                Start::Sum(MatView::new(rows, count, d).expect("the length is that of the rows"))
            }
            other => other,
        };
        let (sources, weights) = (Sources { block, ..pass.sources }, pass.weights.map(|_| &self.weights[..]));
        Ok((Pass { sources, cuts: Cuts::All, weights, start, ..pass.clone() }, count))
    }
}

/// Copies the edges of some rows, and returns the number of rows.
struct Copy<'a, 'b, E> {
    near: &'a mut Near,
    pass: &'a Pass<'b, E>,
    rows: Range<usize>,
}

impl<E: Element> WithSimd for Copy<'_, '_, E> {
    type Output = Result<usize>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<usize> {
        let Self { near: Near { indptr, indices, weights }, pass, rows } = self;
        let (block, cuts) = (pass.sources.block, pass.cuts);
        let first = cuts.first() as u32;
        indptr.clear();
        indices.clear();
        weights.clear();
        indptr.push(0);
        for v in rows.clone().take(ROWS) {
            prefetch_edges(cuts, block, pass.weights, v + ROWS_AHEAD);
            let edges = covered(cuts, block, v).ok_or_else(|| bad_row(CALL, block, v))?;
            match block.indices[edges.start..].first_chunk::<LINE>().filter(|_| edges.len() <= LINE) {
                Some(line) => {
                    indices.extend_from_slice(&line.map(|u| u.wrapping_sub(first)));
                    indices.truncate(indices.len() + edges.len() - LINE);
                }
                None => indices.extend(block.indices[edges.clone()].iter().map(|u| u.wrapping_sub(first))),
            }
            if let Some(all) = pass.weights {
                weights.extend_from_slice(&all[edges]);
            }
            indptr.push(indices.len() as u64);
            if indices.len() >= EDGES {
                break;
            }
        }
        let at_hand = pass.sources.rows();
        // Not `all`, which would stop at the first and so take them one by one.
        let bad = indices.iter().fold(false, |bad, &u| bad | (u as usize >= at_hand));
        if bad {
            let is_bad = |edges: &Range<usize>| {
                block.indices[edges.clone()].iter().any(|u| u.wrapping_sub(first) as usize >= at_hand)
            };
            let edges = rows.clone().filter_map(|v| covered(cuts, block, v)).find(is_bad);
            return Err(bad_source(block, edges.unwrap_or(0..0)));
        }
        Ok(indptr.len() - 1)
    }
}
