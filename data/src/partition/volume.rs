//! The rows that the parts of a partition send to each other.

use rayon::prelude::*;

use super::Assignment;
use crate::graph::{Graph, prefix_sum, ranges_of_edges, scan_count};

/// Marks what no part has read yet.
const NOBODY: u32 = u32::MAX;

/// What crosses between parts, for one gather over the whole graph and for its backward pass.
///
/// A row of a vertex is sent once to each other part that reads it, however many edges lead there.
///
/// # Units
/// Rows of vertices. A row of width d in f32 has 4 d bytes.
/// # Source
/// `halo_rows` is the connectivity minus one of the column-net hypergraph: Demirci et al., Scalable Graph Convolutional
/// Network Training on Distributed-Memory Systems, VLDB 2023.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Each part, in order.
    pub parts: Vec<PartVolume>,
    /// Rows sent forward by all parts together: the sum of the sizes of their halos.
    pub halo_rows: u64,
    /// Rows sent backward if parts pull gradients: the halos in the transposed graph.
    pub backward_rows: u64,
    /// Rows sent backward if parts send partial sums of gradients to the owners of their halos. These are the rows of the
    /// forward pass, in the other direction.
    pub fold_rows: u64,
    /// Ordered pairs of parts of which the first sends rows to the second, forward.
    pub messages: u64,
}

/// What one part holds, and sends and receives forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartVolume {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of in-edges of these vertices.
    pub edges: u64,
    /// Rows sent: one for each of its vertices and each other part that reads it.
    pub sends: u64,
    /// Rows received: the size of its halo.
    pub receives: u64,
}

/// The largest number of rows that one part sends or receives, forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Number of rows.
    pub rows: u64,
    /// The part; the first, if several have as many.
    pub part: usize,
    /// Whether it sends them, or receives them. If it sends as many as it receives, it sends them.
    pub sends: bool,
}

impl Volume {
    /// Counts what crosses between the parts.
    ///
    /// # Panics
    /// If the assignment has another number of vertices than the graph.
    /// # Cost
    /// O(n + e + parts) time, in parallel. Each of at most 8 threads takes 4 bytes per vertex and 16 per part.
    pub fn of(graph: &Graph, assignment: &Assignment) -> Self {
        assert_eq!(assignment.part_of().len(), graph.vertex_count(), "the part of each vertex");
        let forward = Forward::count(graph, assignment);
        let halo_rows = forward.parts.iter().map(|part| part.receives).sum();
        Self {
            halo_rows,
            backward_rows: backward_rows(graph, assignment),
            fold_rows: halo_rows,
            messages: forward.messages,
            parts: forward.parts,
        }
    }

    /// Returns the part that sends or receives most rows, forward.
    pub fn largest(&self) -> Largest {
        let mut largest = Largest { rows: 0, part: 0, sends: true };
        for (part, found) in self.parts.iter().enumerate() {
            for (rows, sends) in [(found.sends, true), (found.receives, false)] {
                if rows > largest.rows {
                    largest = Largest { rows, part, sends };
                }
            }
        }
        largest
    }
}

/// The counts of the forward pass.
struct Forward {
    parts: Vec<PartVolume>,
    messages: u64,
}

impl Forward {
    /// Counts part by part, with the vertices of each part one after the other: a mark at each vertex says which part has
    /// counted it last.
    fn count(graph: &Graph, assignment: &Assignment) -> Self {
        let (order, ranges) = assignment.relabelling();
        let mut offsets = vec![0u64; ranges.len() + 1];
        for (edges, range) in offsets[1..].iter_mut().zip(&ranges) {
            *edges = order.old_of_new()[range.clone()].iter().map(|&v| graph.in_degree(v as usize)).sum();
        }
        prefix_sum(&mut offsets);
        let counted = ranges_of_edges(&offsets, scan_count()).into_par_iter().map(|group| {
            let mut counts = Self { parts: vec![PartVolume::default(); ranges.len()], messages: 0 };
            let (mut read_by, mut asked_by) = (vec![NOBODY; graph.vertex_count()], vec![NOBODY; ranges.len()]);
            for reader in group {
                let rows = &order.old_of_new()[ranges[reader].clone()];
                counts.parts[reader].vertices = rows.len() as u64;
                counts.parts[reader].edges = offsets[reader + 1] - offsets[reader];
                for &u in rows.iter().flat_map(|&v| graph.sources(v as usize)) {
                    let owner = assignment.part_of()[u as usize] as usize;
                    if owner == reader || read_by[u as usize] == reader as u32 {
                        continue;
                    }
                    read_by[u as usize] = reader as u32;
                    counts.parts[owner].sends += 1;
                    counts.parts[reader].receives += 1;
                    counts.messages += u64::from(asked_by[owner] != reader as u32);
                    asked_by[owner] = reader as u32;
                }
            }
            counts
        });
        counted.reduce_with(Self::plus).expect("there is at least one part")
    }

    fn plus(mut self, other: Self) -> Self {
        for (part, more) in self.parts.iter_mut().zip(other.parts) {
            part.vertices += more.vertices;
            part.edges += more.edges;
            part.sends += more.sends;
            part.receives += more.receives;
        }
        self.messages += other.messages;
        self
    }
}

/// Counts the rows that parts pull in the backward pass: the gradient of a vertex goes to each other part that owns one of
/// its sources. So the transposed graph is not needed.
fn backward_rows(graph: &Graph, assignment: &Assignment) -> u64 {
    let part_of = assignment.part_of();
    let ranges = ranges_of_edges(graph.indptr(), 4 * scan_count());
    let count = |rows: std::ops::Range<usize>| {
        let mut sent_for = vec![NOBODY; assignment.count().get() as usize];
        let mut total = 0;
        for v in rows {
            for &u in graph.sources(v) {
                let reader = part_of[u as usize];
                let mark = &mut sent_for[reader as usize];
                if reader != part_of[v] && *mark != v as u32 {
                    *mark = v as u32;
                    total += 1;
                }
            }
        }
        total
    };
    ranges.into_par_iter().map(count).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::partition::VertexWeight;

    /// Counts with sets of what each part reads.
    fn naive(graph: &Graph, assignment: &Assignment) -> Volume {
        let part_of = assignment.part_of();
        let mut parts = vec![PartVolume::default(); assignment.count().get() as usize];
        let (mut forward, mut backward, mut pairs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for v in 0..graph.vertex_count() {
            let reader = part_of[v];
            parts[reader as usize].vertices += 1;
            parts[reader as usize].edges += graph.in_degree(v);
            for &u in graph.sources(v) {
                let owner = part_of[u as usize];
                if owner != reader {
                    forward.insert((u, reader));
                    backward.insert((v, owner));
                    pairs.insert((owner, reader));
                }
            }
        }
        for &(u, reader) in &forward {
            parts[part_of[u as usize] as usize].sends += 1;
            parts[reader as usize].receives += 1;
        }
        let (halo_rows, backward_rows) = (forward.len() as u64, backward.len() as u64);
        Volume { parts, halo_rows, backward_rows, fold_rows: halo_rows, messages: pairs.len() as u64 }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_sets(
            edges in proptest::collection::vec((0u32..12, 0u32..12), 0..80),
            parts in proptest::collection::vec(0u32..4, 14),
            threads in 1usize..4,
        ) {
            let graph = Graph::from_edges(14, &edges).unwrap();
            let assignment = Assignment::new(parts, NonZeroU32::new(5).unwrap()).unwrap();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let volume = pool.install(|| Volume::of(&graph, &assignment));
            prop_assert_eq!(&volume, &naive(&graph, &assignment));
            // The backward rows are the forward rows of the transposed graph.
            let turned = Volume::of(&graph.transpose_without_permutation(), &assignment);
            prop_assert_eq!((turned.halo_rows, turned.backward_rows), (volume.backward_rows, volume.halo_rows));
            let sent: u64 = volume.parts.iter().map(|part| part.sends).sum();
            prop_assert_eq!(sent, volume.halo_rows);
        }
    }

    #[test]
    fn the_largest_part_is_named() {
        // Part 0 owns vertex 0, which parts 1 and 2 read; part 1 reads 0 and 3.
        let graph = Graph::from_edges(4, &[(0, 1), (0, 2), (3, 1)]).unwrap();
        let assignment = Assignment::new(vec![0, 1, 2, 2], NonZeroU32::new(3).unwrap()).unwrap();
        let volume = Volume::of(&graph, &assignment);
        assert_eq!((volume.halo_rows, volume.messages), (3, 3));
        assert_eq!(volume.largest(), Largest { rows: 2, part: 0, sends: true });
        assert_eq!(assignment.imbalance(&graph, VertexWeight::Rows), 1.5);
        assert_eq!(assignment.imbalance(&graph, VertexWeight::Edges), 2.0);
        assert_eq!(assignment.imbalance(&graph, VertexWeight::Given(&[7, 1, 0, 4])), 7.0 * 3.0 / 12.0);
        let (graph, assignment) = (Graph::from_edges(2, &[]).unwrap(), Assignment::of_ranges(&[0..2, 2..2]));
        let alone = Volume::of(&graph, &assignment);
        assert_eq!((alone.halo_rows, alone.messages, alone.largest().rows), (0, 0, 0));
        assert_eq!(assignment.imbalance(&graph, VertexWeight::Edges), 1.0);
        assert_eq!(assignment.imbalance(&graph, VertexWeight::Rows), 2.0);
    }
}
