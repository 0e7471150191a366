//! Routes: which rows the parts send to each other for a block.

use std::ops::Range;

#[cfg(test)]
use crate::graph::{Graph, VertexSet};
use crate::program::BlockSpec;

/// The rows that cross between parts when every part gathers over one block.
///
/// A part packs each row that any other part reads, once and in ascending order. A reader takes the rows of its halo
/// from each owner's pack. Halos are ascending too, and parts are consecutive, so a halo is the concatenation of its
/// owners' rows.
#[derive(Clone, Debug)]
pub struct Routes {
    /// For each part, its own rows that others read, numbered from its first row.
    pub packed: Vec<Vec<u32>>,
    /// For each part, the owners of its halo's rows, in order.
    pub sources: Vec<Vec<Source>>,
}

/// The rows of one part's halo that another part owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Number of the owning part.
    pub part: usize,
    /// Row indices in the owner's pack, ascending; if that is on another rank, in what it sends.
    pub rows: Vec<u32>,
}

/// Which rows cross between parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crossing {
    /// A part is sent the rows that it gathers over the block.
    Pull(BlockSpec),
    /// A part is sent the sums of its rows over the edges of the block that other parts hold: over those of the
    /// transposed block, which they read forward.
    Fold(BlockSpec),
}

impl Routes {
    /// Computes the routes between `parts`, which are consecutive and cover the graph, by another way than
    /// [`Routes::of_own`].
    ///
    /// # Cost
    /// O(parts n / 64 + e).
    #[cfg(test)]
    pub(super) fn new(graph: &Graph, parts: &[Range<usize>]) -> Self {
        let n = graph.vertex_count();
        let halos: Vec<Vec<u32>> =
            parts.iter().map(|part| graph.rows(part.clone()).outside().iter().collect()).collect();
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

    /// Returns the routes of sums: for each row that a part reads over these routes, it sends back one. A part makes a
    /// row for each row of its halo, and packs nothing. `own` are the parts of this rank: from another one, it is sent
    /// just the sums that are meant for it, so these are numbered from 0.
    pub(super) fn folded(&self, own: &Range<usize>) -> Self {
        let mut sources = vec![Vec::new(); self.sources.len()];
        for (reader, owners) in self.sources.iter().enumerate() {
            let mut next = 0;
            for Source { part: owner, rows } in owners {
                let first = if own.contains(&reader) { next } else { 0 };
                next = first + rows.len() as u32;
                sources[*owner].push(Source { part: reader, rows: (first..next).collect() });
            }
        }
        Self { sources, packed: vec![Vec::new(); self.packed.len()] }
    }

    /// Returns the rows of a part that others read, for each of them in turn, and how many of these rows are read by
    /// parts before it.
    pub(super) fn lent(&self, part: usize) -> (Vec<u32>, usize) {
        let mut rows = Vec::new();
        let mut low = 0;
        for (reader, owners) in self.sources.iter().enumerate() {
            if reader == part {
                low = rows.len();
            }
            let read = owners.iter().filter(|source| source.part == part).flat_map(|source| &source.rows);
            rows.extend(read.map(|&row| self.packed[part][row as usize]));
        }
        (rows, low)
    }
}
