//! Permutations of the vertices.

use lapidary_arrays::Shared;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;

use super::csr::{Graph, prefix_sum, rows_mut};

/// A permutation of the vertices: the new vertex `i` is the old vertex `old_of_new[i]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    // Invariant: the two are permutations of 0..n, and inverse to each other.
    old_of_new: Vec<u32>,
    new_of_old: Vec<u32>,
}

impl Permutation {
    /// Makes a permutation from the old id of each new id. Returns `None` if an id is missing, repeated or out of
    /// range.
    pub fn new(old_of_new: Vec<u32>) -> Option<Self> {
        let mut new_of_old = vec![u32::MAX; old_of_new.len()];
        for (new, &old) in old_of_new.iter().enumerate() {
            let place = new_of_old.get_mut(old as usize)?;
            if *place != u32::MAX {
                return None;
            }
            *place = new as u32;
        }
        Some(Self { old_of_new, new_of_old })
    }

    /// Returns a random permutation, the same for the same seed.
    pub fn random(vertices: usize, seed: u64) -> Self {
        let mut order: Vec<u32> = (0..vertices as u32).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        Self::new(order).expect("a shuffle of 0..n is a permutation")
    }

    /// Orders the vertices by descending in-degree; vertices of equal degree keep their order.
    ///
    /// # Cost
    /// O(n log n).
    pub fn by_degree(graph: &Graph) -> Self {
        let mut order: Vec<u32> = (0..graph.vertex_count() as u32).collect();
        order.par_sort_by_key(|&v| std::cmp::Reverse(graph.in_degree(v as usize)));
        Self::new(order).expect("a sort of 0..n is a permutation")
    }

    /// Returns the old id of each new id.
    pub fn old_of_new(&self) -> &[u32] {
        &self.old_of_new
    }

    /// Returns the new id of each old id.
    pub fn new_of_old(&self) -> &[u32] {
        &self.new_of_old
    }

    /// Returns the graph with its vertices renamed.
    ///
    /// # Panics
    /// If the graph has a different number of vertices.
    /// # Cost
    /// O(n + e) and sorting each row.
    pub fn apply(&self, graph: &Graph) -> Graph {
        let n = graph.vertex_count();
        assert_eq!(n, self.old_of_new.len(), "a permutation of another graph");
        let mut indptr = vec![0u64; n + 1];
        for (new, &old) in self.old_of_new.iter().enumerate() {
            indptr[new + 1] = graph.in_degree(old as usize);
        }
        prefix_sum(&mut indptr);
        let mut indices = vec![0u32; graph.edge_count()];
        rows_mut(&indptr, &mut indices).into_par_iter().enumerate().for_each(|(new, row)| {
            let sources = graph.sources(self.old_of_new[new] as usize);
            for (to, &u) in row.iter_mut().zip(sources) {
                *to = self.new_of_old[u as usize];
            }
            row.sort_unstable();
        });
        Graph::new(Shared::from(indptr), Shared::from(indices)).expect("renaming keeps a CSR a CSR")
    }

    /// Returns the values of the edges of `graph` in the edge order of [`Permutation::apply`]. Repeated edges keep their
    /// order.
    ///
    /// # Shapes
    /// `values` and the result: `[e]`.
    /// # Panics
    /// If the graph has a different number of vertices, or `values` has another length than its edges.
    /// # Cost
    /// O(n + e) and sorting each row.
    pub fn apply_values(&self, graph: &Graph, values: &[f32]) -> Vec<f32> {
        assert_eq!(graph.vertex_count(), self.old_of_new.len(), "a permutation of another graph");
        assert_eq!(graph.edge_count(), values.len(), "one value for each edge");
        let mut indptr = vec![0u64; graph.vertex_count() + 1];
        for (new, &old) in self.old_of_new.iter().enumerate() {
            indptr[new + 1] = graph.in_degree(old as usize);
        }
        prefix_sum(&mut indptr);
        let mut permuted = vec![0f32; values.len()];
        rows_mut(&indptr, &mut permuted).into_par_iter().enumerate().for_each(|(new, row)| {
            let old = self.old_of_new[new] as usize;
            let new_ids = graph.sources(old).iter().map(|&u| self.new_of_old[u as usize]);
            let mut pairs: Vec<(u32, f32)> = new_ids.zip(values[graph.edges(old)].iter().copied()).collect();
            pairs.sort_by_key(|&(u, _)| u);
            row.iter_mut().zip(pairs).for_each(|(to, (_, value))| *to = value);
        });
        permuted
    }
}
