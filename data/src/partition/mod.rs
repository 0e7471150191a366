//! Partitions: the part of each vertex, what a partition costs, and datasets whose parts are consecutive.
//!
//! An [`Assignment`] says to which part each vertex belongs. It comes from ranges, at random, from a file, from METIS, or
//! from a partitioner of hypergraphs.
//! [`Volume`] counts the rows that its parts send to each other. [`write`](write()) writes a dataset in which the
//! vertices of each part are consecutive, so that everything that works on ranges works on any partition.
//!
//! ```
//! use std::num::NonZeroU32;
//!
//! use lapidary_data::dataset::Dataset;
//! use lapidary_data::partition::{Assignment, Volume};
//!
//! let data = Dataset::builtin("karate")?;
//! let parts = NonZeroU32::new(2).expect("two is not zero");
//! let assignment = Assignment::random(34, parts, 1);
//! let volume = Volume::of(data.graph(), &assignment);
//! // In an undirected graph, as many rows move backward as forward.
//! assert_eq!(volume.halo_rows, volume.backward_rows);
//! let (order, ranges) = assignment.relabelling();
//! let moved = data.relabelled(&order);
//! assert_eq!(Volume::of(moved.graph(), &Assignment::of_ranges(&ranges)), volume);
//! # Ok::<(), lapidary_data::dataset::Error>(())
//! ```

mod batches;
mod file;
pub mod hypergraph;
pub mod metis;
mod order;
mod volume;
mod write;

use std::num::NonZeroU32;
use std::ops::Range;

use crate::graph::{Graph, Permutation};

pub use batches::{BatchDraws, Estimate, fresh_run};
pub use order::{PART_VERTICES, permutation};
pub use volume::{Largest, PartVolume, Volume};
pub use write::write;

/// The part of each vertex. Parts are numbered from 0; a part may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    // Invariant: every entry is below `count`.
    part_of: Vec<u32>,
    count: NonZeroU32,
}

impl Assignment {
    /// Takes the part of each vertex. Returns `None` if one is not below `count`.
    pub fn new(part_of: Vec<u32>, count: NonZeroU32) -> Option<Self> {
        part_of.iter().all(|&part| part < count.get()).then_some(Self { part_of, count })
    }

    /// Makes one part of each range.
    ///
    /// # Panics
    /// Unless the ranges are consecutive and begin at 0, or if there are none.
    pub fn of_ranges(ranges: &[Range<usize>]) -> Self {
        let mut part_of = Vec::with_capacity(ranges.last().map_or(0, |last| last.end));
        for (part, range) in (0u32..).zip(ranges) {
            assert!(range.start == part_of.len() && range.end >= range.start, "ranges are consecutive");
            part_of.resize(range.end, part);
        }
        let count = u32::try_from(ranges.len()).ok().and_then(NonZeroU32::new);
        Self { part_of, count: count.expect("there is a part, and there are fewer than 2^32") }
    }

    /// Draws parts of equal sizes at random. The sizes differ by at most one; the same seed draws the same parts.
    ///
    /// # Cost
    /// O(n), with n random writes.
    pub fn random(vertices: usize, count: NonZeroU32, seed: u64) -> Self {
        let order = Permutation::random(vertices, seed);
        // Vertices at the places from `i n / count` on are in part i.
        let part_at = |place: u32| (u64::from(place) * u64::from(count.get()) / vertices as u64) as u32;
        Self { part_of: order.new_of_old().iter().map(|&place| part_at(place)).collect(), count }
    }

    /// Returns the part of each vertex, `[n]`.
    pub fn part_of(&self) -> &[u32] {
        &self.part_of
    }

    /// Returns the number of parts.
    pub fn count(&self) -> NonZeroU32 {
        self.count
    }

    /// Returns the weight of the heaviest part, divided by the mean weight of the parts; 1 if nothing has a weight.
    ///
    /// # Panics
    /// If the graph or the given weights have another number of vertices.
    pub fn imbalance(&self, graph: &Graph, weight: VertexWeight<'_>) -> f64 {
        assert_eq!(self.part_of.len(), graph.vertex_count(), "the part of each vertex");
        let mut weights = vec![0u64; self.count.get() as usize];
        for (v, &part) in self.part_of.iter().enumerate() {
            weights[part as usize] += weight.of(graph, v);
        }
        let (total, most) = (weights.iter().sum::<u64>(), weights.iter().copied().max().unwrap_or(0));
        if total == 0 { 1.0 } else { most as f64 * weights.len() as f64 / total as f64 }
    }

    /// Returns the order in which parts are consecutive, and the ranges of the parts in it. Inside of a part, vertices keep
    /// their order.
    ///
    /// # Cost
    /// O(n + parts): a counting sort.
    pub fn relabelling(&self) -> (Permutation, Vec<Range<usize>>) {
        let mut ends = vec![0usize; self.count.get() as usize];
        for &part in &self.part_of {
            ends[part as usize] += 1;
        }
        let mut start = 0;
        let ranges: Vec<Range<usize>> = ends
            .iter_mut()
            .map(|end| {
                let range = start..start + *end;
                // From here on: the place of the part's next vertex.
                *end = start;
                start = range.end;
                range
            })
            .collect();
        let mut old_of_new = vec![0u32; self.part_of.len()];
        for (old, &part) in (0u32..).zip(&self.part_of) {
            let place = &mut ends[part as usize];
            old_of_new[*place] = old;
            *place += 1;
        }
        (Permutation::new(old_of_new).expect("a sort of 0..n is a permutation"), ranges)
    }
}

/// The weight of a vertex. Partitioners give all parts about the same total weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VertexWeight<'a> {
    /// 1.
    Rows,
    /// The number of in-edges.
    #[default]
    Edges,
    /// Given numbers, one per vertex, such as predicted times as multiples of a small one.
    Given(&'a [u64]),
    /// 1 for these vertices, and 0 for others: the labelled vertices of a split. Partitioners give the others together a
    /// 64th of the weight of these, so that they are distributed too.
    Labelled(&'a [bool]),
}

/// How many times the weight of all other vertices the labelled ones have for a partitioner.
#[cfg(any(feature = "metis", feature = "hypergraph", test))]
const LABELLED_WEIGHT: u64 = 64;

impl VertexWeight<'_> {
    /// Returns the weight of a vertex.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn of(self, graph: &Graph, v: usize) -> u64 {
        match self {
            Self::Rows => 1,
            Self::Edges => graph.in_degree(v),
            Self::Given(weights) => weights[v],
            Self::Labelled(labelled) => u64::from(labelled[v]),
        }
    }

    /// Returns the weights that a partitioner gets. Each is at least 1, so that it distributes all vertices.
    #[cfg(any(feature = "metis", feature = "hypergraph", test))]
    fn positive(self, graph: &Graph) -> impl Fn(usize) -> u64 + Sync {
        let heavy = match self {
            Self::Labelled(labelled) => {
                let count = labelled.iter().filter(|&&is_labelled| is_labelled).count();
                (LABELLED_WEIGHT * labelled.len() as u64).div_ceil(count.max(1) as u64)
            }
            _ => 1,
        };
        move |v| (self.of(graph, v) * heavy).max(1)
    }
}

/// Returns the numbers of two ascending lists, ascending, each once.
#[cfg(any(feature = "metis", feature = "hypergraph", test))]
fn merged<'a>(mut a: &'a [u32], mut b: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    std::iter::from_fn(move || {
        let next = match (a.first(), b.first()) {
            (Some(&x), Some(&y)) => x.min(y),
            (x, y) => *x.or(y)?,
        };
        for list in [&mut a, &mut b] {
            let repeats = list.iter().take_while(|&&x| x == next).count();
            *list = &list[repeats..];
        }
        Some(next)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn labelled_vertices_have_nearly_all_of_the_weight() {
        let graph = Graph::from_edges(100, &[]).unwrap();
        let labelled: Vec<bool> = (0..100).map(|v| v < 10).collect();
        let weight = VertexWeight::Labelled(&labelled);
        assert_eq!((weight.of(&graph, 9), weight.of(&graph, 10)), (1, 0));
        let positive = weight.positive(&graph);
        assert_eq!((positive(9), positive(10)), (640, 1));
        // Without any, all weigh the same.
        assert_eq!(VertexWeight::Labelled(&[false; 100]).positive(&graph)(0), 1);
        assert_eq!(VertexWeight::Given(&[0, 7]).positive(&graph)(1), 7);
    }
}
