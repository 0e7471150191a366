//! The nets of mini-batches.

use super::pins::Pins;
use crate::graph::Block;
use crate::sample::MiniBatch;

/// Marks a source that no row has drawn.
const NOBODY: u32 = u32::MAX;

impl Pins {
    /// Adds the nets of a batch: for each block and each of its sources, the source and the rows that drew it. Nets of a
    /// single vertex are left out.
    ///
    /// # Cost
    /// O(vertices and edges of the batch).
    pub(super) fn add_batch(&mut self, batch: &MiniBatch) {
        let n = batch.vertices.len();
        for block in &batch.blocks {
            // A counting sort by source.
            let mut places = vec![0usize; n];
            each_drawn(block, n, |u, _| places[u] += 1);
            let mut end = self.pins.len();
            for (&u, place) in batch.vertices.iter().zip(&mut places) {
                let size = *place;
                // From here on: the place of the next row.
                *place = end + 1;
                if size > 0 {
                    end += size + 1;
                    self.offsets.push(end);
                    self.pins.resize(end, u as usize);
                }
            }
            each_drawn(block, n, |u, row| {
                self.pins[places[u]] = batch.vertices[row] as usize;
                places[u] += 1;
            });
        }
    }

    /// Adds other nets.
    pub(super) fn extend(&mut self, more: &Self) {
        let before = self.pins.len();
        self.offsets.extend(more.offsets[1..].iter().map(|offset| before + offset));
        self.pins.extend_from_slice(&more.pins);
    }
}

/// Calls a function once with each pair of a source and another vertex whose row drew it. A block has `n` sources.
fn each_drawn(block: &Block, n: usize, mut with: impl FnMut(usize, usize)) {
    let mut drawn_by = vec![NOBODY; n];
    for row in 0..block.row_count() {
        for &u in block.view().sources(row) {
            if u as usize != row && drawn_by[u as usize] != row as u32 {
                drawn_by[u as usize] = row as u32;
                with(u as usize, row);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::graph::Graph;
    use crate::sample::{BatchKey, NeighborSampler, Sampler, Scratch};

    proptest! {
        #[test]
        fn nets_are_those_of_sets(
            edges in proptest::collection::vec((0u32..20, 0u32..20), 0..120),
            seeds in proptest::collection::btree_set(0u32..22, 0..9),
            batches in 1u64..3,
        ) {
            let graph = Graph::from_edges(22, &edges).unwrap();
            let sampler = NeighborSampler::new("3,2".parse().unwrap());
            let seeds: Vec<u32> = seeds.into_iter().collect();
            // A net that was there before stays.
            let mut found = Pins { offsets: vec![0], pins: Vec::new() };
            found.extend(&Pins { offsets: vec![0, 2], pins: vec![5, 6] });
            let mut wanted = vec![(5, BTreeSet::from([6]))];
            for batch in 0..batches {
                let key = BatchKey { batch, ..BatchKey::default() };
                let batch = sampler.sample(&graph, &seeds, key, &mut Scratch::default()).unwrap();
                found.add_batch(&batch);
                for block in &batch.blocks {
                    let mut nets: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
                    for row in 0..block.row_count() {
                        for &source in block.view().sources(row) {
                            let [u, v] = [source as usize, row].map(|local| batch.vertices[local]);
                            if u != v {
                                nets.entry(u as usize).or_default().insert(v as usize);
                            }
                        }
                    }
                    wanted.extend(nets);
                }
            }
            let mut found: Vec<(usize, BTreeSet<usize>)> = found
                .offsets
                .windows(2)
                .map(|net| {
                    let (u, rows) = found.pins[net[0]..net[1]].split_first().unwrap();
                    let distinct: BTreeSet<usize> = rows.iter().copied().collect();
                    assert!(distinct.len() == rows.len() && !distinct.contains(u));
                    (*u, distinct)
                })
                .collect();
            found.sort();
            wanted.sort();
            prop_assert_eq!(found, wanted);
        }
    }
}
