//! The routes of the parts of one rank, from the edges of these parts alone.

use std::ops::Range;

use rayon::prelude::*;

use super::routes::{Routes, Source};
use crate::graph::GraphRows;

impl Routes {
    /// Computes the routes from and to the parts `own`, which are consecutive. `rows` are the rows that these parts
    /// gather over, and `turned` the same rows of the transpose: they say who reads a vertex.
    ///
    /// Of parts that are not in `own`, only what they exchange with those is known. A rank is sent just the rows that
    /// it reads, so what a part reads of another rank's is numbered from 0, without gaps.
    ///
    /// # Cost
    /// O(edges of these parts), n / 64 for each of them, and memory for their halos.
    pub(super) fn of_own(parts: &[Range<usize>], own: &Range<usize>, rows: &GraphRows, turned: &GraphRows) -> Self {
        let packs = own.clone().into_par_iter().map(|owner| Pack::new(parts, owner, turned));
        let packs: Vec<Pack> = packs.collect();
        let mut routes = Self { packed: vec![Vec::new(); parts.len()], sources: vec![Vec::new(); parts.len()] };
        for reader in 0..parts.len() {
            let of_packs = packs.iter().zip(own.clone()).map(|(pack, part)| (part, &pack.read_by[reader]));
            let of_packs = of_packs.filter(|(_, rows)| !rows.is_empty());
            routes.sources[reader] = of_packs.map(|(part, rows)| Source { part, rows: rows.clone() }).collect();
        }
        for (part, pack) in own.clone().zip(packs) {
            routes.packed[part] = pack.rows;
        }
        if own.len() < parts.len() {
            let others = own.clone().into_par_iter().map(|reader| from_others(parts, own, reader, rows));
            let others: Vec<Vec<Source>> = others.collect();
            for (reader, others) in own.clone().zip(others) {
                routes.sources[reader].extend(others);
                routes.sources[reader].sort_by_key(|source| source.part);
            }
        }
        routes
    }
}

/// The rows of one part that other parts read.
struct Pack {
    /// Numbered from the part's first row, ascending.
    rows: Vec<u32>,
    /// For each part, the indices in `rows` of those that it reads.
    read_by: Vec<Vec<u32>>,
}

impl Pack {
    fn new(parts: &[Range<usize>], owner: usize, turned: &GraphRows) -> Self {
        let (mut packed, mut read_by) = (Vec::new(), vec![Vec::new(); parts.len()]);
        for u in parts[owner].clone() {
            let (mut readers, mut is_read) = (turned.sources(u), false);
            while let Some(&v) = readers.first() {
                let reader = part_of(parts, v);
                if reader != owner {
                    read_by[reader].push(packed.len() as u32);
                    is_read = true;
                }
                // Readers ascend, so the others of the same part are next.
                readers = &readers[readers.partition_point(|&w| (w as usize) < parts[reader].end)..];
            }
            if is_read {
                packed.push((u - parts[owner].start) as u32);
            }
        }
        Self { rows: packed, read_by }
    }
}

/// Returns what a part reads of parts that are not in `own`.
fn from_others(parts: &[Range<usize>], own: &Range<usize>, reader: usize, rows: &GraphRows) -> Vec<Source> {
    let mut counts = vec![0u32; parts.len()];
    rows.of(&parts[reader]).outside().iter().for_each(|u| counts[part_of(parts, u)] += 1);
    let others = counts.into_iter().enumerate().filter(|(part, count)| !own.contains(part) && *count > 0);
    others.map(|(part, count)| Source { part, rows: (0..count).collect() }).collect()
}

/// Returns the part of a vertex. Parts are consecutive, and may be empty.
fn part_of(parts: &[Range<usize>], v: u32) -> usize {
    parts.partition_point(|part| part.end <= v as usize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::graph::Graph;

    proptest! {
        #[test]
        fn the_routes_of_a_rank_are_those_of_the_whole(
            edges in proptest::collection::vec((0u32..9, 0u32..9), 0..60),
            mut cuts in proptest::collection::vec(0usize..12, 1..6),
            own in (0usize..6, 0usize..6),
        ) {
            let n = 11; // the last two have no edges
            let graph = Graph::from_edges(n, &edges).unwrap();
            cuts.sort_unstable();
            let ends = || cuts.iter().copied().chain([n]);
            let parts: Vec<Range<usize>> = [0].into_iter().chain(ends()).zip(ends()).map(|(start, end)| start..end).collect();
            let own = [own.0, own.1].map(|part| part.min(parts.len()));
            let own = own[0].min(own[1])..own[0].max(own[1]);
            let first = parts.get(own.start).map_or(n, |part| part.start);
            let vertices = first..parts[..own.end].last().map_or(first, |part| part.end.max(first));
            let turned = graph.transpose_without_permutation();
            for (graph, other) in [(&graph, &turned), (&turned, &graph)] {
                let whole = Routes::new(graph, &parts);
                let got = Routes::of_own(&parts, &own, &graph.rows(vertices.clone()), &other.rows(vertices.clone()));
                for (part, packed) in got.packed.iter().enumerate() {
                    prop_assert_eq!(packed, if own.contains(&part) { &whole.packed[part] } else { &vec![] });
                }
                for reader in 0..parts.len() {
                    let known = |source: &&Source| own.contains(&reader) || own.contains(&source.part);
                    let want = whole.sources[reader].iter().filter(known).map(|source| match own.contains(&source.part) {
                        true => source.clone(),
                        false => Source { part: source.part, rows: (0..source.rows.len() as u32).collect() },
                    });
                    prop_assert_eq!(&got.sources[reader], &want.collect::<Vec<_>>());
                }
            }
        }
    }
}
