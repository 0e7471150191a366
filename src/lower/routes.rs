//! Which rows the parts send to each other for one block.

use std::ops::Range;

use crate::graph::{Graph, VertexSet, outside};

/// The rows that cross between parts when every part gathers over one block.
///
/// A part packs each row that any other part reads once, in ascending order; a reader takes from each owner's pack the
/// rows of its halo. Halos are ascending as well, and parts are consecutive, so a halo is its owners' rows one after the
/// other.
#[derive(Clone, Debug)]
pub struct Routes {
    /// For each part its own rows (numbered from its first) that others read.
    pub packed: Vec<Vec<u32>>,
    /// For each part where its halo's rows come from, in order.
    pub sources: Vec<Vec<Source>>,
}

/// The rows of one part's halo that one other part owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The owner.
    pub part: usize,
    /// Rows of the owner's pack, ascending.
    pub rows: Vec<u32>,
}

impl Routes {
    /// Those of `parts`, which are consecutive and cover the graph.
    ///
    /// # Cost
    /// O(parts n / 64 + e).
    pub(super) fn new(graph: &Graph, parts: &[Range<usize>]) -> Self {
        let n = graph.vertex_count();
        let halos: Vec<Vec<u32>> = parts.iter().map(|part| outside(graph, part).iter().collect()).collect();
        let read = VertexSet::of(n, halos.iter().flatten().copied());
        let mut packed = vec![Vec::new(); parts.len()];
        let mut owner = 0;
        for v in read.iter() {
            while v as usize >= parts[owner].end {
                owner += 1;
            }
            packed[owner].push(v - parts[owner].start as u32);
        }
        let sources = halos.iter().map(|halo| {
            let owners = parts.iter().enumerate().map(|(part, range)| {
                let [start, end] = [range.start, range.end].map(|v| halo.partition_point(|&h| (h as usize) < v));
                let first = read.rank(range.start);
                let rows = halo[start..end].iter().map(|&v| (read.rank(v as usize) - first) as u32).collect();
                Source { part, rows }
            });
            owners.filter(|source| !source.rows.is_empty()).collect()
        });
        Self { sources: sources.collect(), packed }
    }
}
