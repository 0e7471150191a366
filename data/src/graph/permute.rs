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
        Self::checked(old_of_new).ok()
    }

    /// Makes a permutation from the old id of each new id.
    ///
    /// # Errors
    /// The position of the first id that is repeated or out of range.
    pub(crate) fn checked(old_of_new: Vec<u32>) -> Result<Self, usize> {
        let mut new_of_old = vec![u32::MAX; old_of_new.len()];
        for (new, &old) in old_of_new.iter().enumerate() {
            match new_of_old.get_mut(old as usize) {
                Some(place) if *place == u32::MAX => *place = new as u32,
                _ => return Err(new),
            }
        }
        Ok(Self { old_of_new, new_of_old })
    }

    /// Returns the permutation that renames no vertex.
    pub fn identity(vertices: usize) -> Self {
        let ids: Vec<u32> = (0..vertices as u32).collect();
        Self { old_of_new: ids.clone(), new_of_old: ids }
    }

    /// Returns the permutation that does this one, and then `next`.
    ///
    /// # Panics
    /// If `next` has another number of vertices.
    /// # Cost
    /// O(n), in parallel.
    pub fn then(&self, next: &Self) -> Self {
        Self {
            old_of_new: next.rows(&self.old_of_new, 1),
            new_of_old: self.new_of_old.par_iter().map(|&middle| next.new_of_old[middle as usize]).collect(),
        }
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
        let indptr = self.offsets(graph.indptr());
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
        let indptr = self.offsets(graph.indptr());
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

    /// Returns the rows of a matrix with one row per vertex in the new order.
    ///
    /// # Shapes
    /// `rows` and the result: `[n, width]`, row-major.
    /// # Panics
    /// If there is not one row per vertex.
    /// # Cost
    /// O(n width), in parallel.
    pub fn rows<T: Copy + Default + Send + Sync>(&self, rows: &[T], width: usize) -> Vec<T> {
        gathered(&self.old_of_new, rows, width)
    }

    /// Undoes [`Permutation::rows`]: returns rows that are in the new order in the old order.
    ///
    /// # Shapes
    /// `rows` and the result: `[n, width]`, row-major.
    /// # Panics
    /// If there is not one row per vertex.
    /// # Cost
    /// O(n width), in parallel.
    pub fn restored<T: Copy + Default + Send + Sync>(&self, rows: &[T], width: usize) -> Vec<T> {
        gathered(&self.new_of_old, rows, width)
    }

    /// Returns the offsets of the rows of a CSR in the new order, `[n + 1]`.
    pub(crate) fn offsets(&self, indptr: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0u64; self.old_of_new.len() + 1];
        for (offset, &old) in offsets[1..].iter_mut().zip(&self.old_of_new) {
            *offset = indptr[old as usize + 1] - indptr[old as usize];
        }
        prefix_sum(&mut offsets);
        offsets
    }

    /// Returns the entries of the rows of a CSR in the new order. Within a row, their order stays.
    pub(crate) fn entries<T: Copy + Default + Send + Sync>(&self, indptr: &[u64], entries: &[T]) -> Vec<T> {
        let mut moved = vec![T::default(); entries.len()];
        let work = |(row, &old): (&mut [T], &u32)| {
            row.copy_from_slice(&entries[indptr[old as usize] as usize..indptr[old as usize + 1] as usize]);
        };
        rows_mut(&self.offsets(indptr), &mut moved).into_par_iter().zip(&self.old_of_new).for_each(work);
        moved
    }
}

/// Returns the rows `ids` of a row-major matrix, in that order.
fn gathered<T: Copy + Default + Send + Sync>(ids: &[u32], rows: &[T], width: usize) -> Vec<T> {
    /// Cells that are worth a task of their own.
    const TASK_CELLS: usize = 1 << 12;
    assert_eq!(rows.len(), ids.len() * width, "one row per vertex");
    let mut gathered = vec![T::default(); rows.len()];
    if width > 0 {
        let copy = |(to, &id): (&mut [T], &u32)| to.copy_from_slice(&rows[id as usize * width..][..width]);
        let to = gathered.par_chunks_exact_mut(width).with_min_len(TASK_CELLS.div_ceil(width));
        to.zip(ids).for_each(copy);
    }
    gathered
}
