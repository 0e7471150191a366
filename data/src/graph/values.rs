//! Values of edges, such as weights, which follow their edges when these are rearranged.
//!
//! Values are in the order of [`Graph::indices`], one per edge.

use std::hash::{BuildHasher, RandomState};

use rayon::prelude::*;

use super::csr::{Graph, GraphError, mixed, offsets_of, rows_mut};

impl Graph {
    /// Builds a CSR as [`Graph::from_edges`] does, and puts the values of the edges into its order. Repeated edges keep
    /// their order.
    ///
    /// # Shapes
    /// `edges`, `values` and the returned values: `[e]`.
    /// # Errors
    /// Those of [`Graph::from_edges`].
    /// # Panics
    /// If `values` has another length than `edges`.
    /// # Cost
    /// That of [`Graph::from_edges`], and 12 e bytes more.
    pub fn from_edges_and_values(
        vertices: usize,
        edges: &[(u32, u32)],
        values: &[f32],
    ) -> Result<(Self, Vec<f32>), GraphError> {
        assert_eq!(edges.len(), values.len(), "one value for each edge");
        let indptr = offsets_of(vertices, edges)?;
        let mut next = indptr[..vertices].to_vec();
        let mut entries = vec![(0u32, 0f32); edges.len()];
        for (&(u, v), &value) in edges.iter().zip(values) {
            let slot = &mut next[v as usize];
            entries[*slot as usize] = (u, value);
            *slot += 1;
        }
        rows_mut(&indptr, &mut entries).into_par_iter().for_each(|row| row.sort_by_key(|&(u, _)| u));
        let (indices, values): (Vec<u32>, Vec<f32>) = entries.into_par_iter().unzip();
        Ok((Self::new(indptr.into(), indices.into())?, values))
    }

    /// Returns the values of the edges in the edge order of [`Graph::with_self_loops`]. The self-loop of vertex v has the
    /// value `of_loop(v, old)`, where `old` is that of the last self-loop that v had.
    ///
    /// # Shapes
    /// `values`: `[e]`; the result: one value per edge of the graph with self-loops.
    /// # Panics
    /// If `values` has another length than the edges.
    /// # Cost
    /// O(n + e), in parallel except for O(n).
    /// # Source
    /// With `|_, old| old.unwrap_or(1.0)`, PyTorch Geometric's `add_remaining_self_loops`, which `gcn_norm` uses.
    pub fn with_self_loops_and_values(
        &self,
        values: &[f32],
        of_loop: impl Fn(usize, Option<f32>) -> f32 + Sync,
    ) -> Vec<f32> {
        let rows = self.rows(0..self.vertex_count());
        rows.with_self_loops_and_values(values, &rows.offsets_with_self_loops(), of_loop)
    }

    /// Returns the values of the edges in the edge order of [`Graph::transpose_without_permutation`]. A symmetric graph
    /// has the edges of its transpose, but its values move all the same. Repeated edges keep their order.
    ///
    /// # Shapes
    /// `values` and the result: `[e]`.
    /// # Panics
    /// If `values` has another length than the edges.
    /// # Cost
    /// O(n + e), with e sequential reads per thread; 8 n bytes besides the result.
    pub fn transpose_values(&self, values: &[f32]) -> Vec<f32> {
        self.transposed_row_values(values, 0..self.vertex_count())
    }

    /// Returns whether the values of `u -> v` are those of `v -> u`, for all u and v: whether the matrix of the values is
    /// symmetric. 0 and -0 are the same value.
    ///
    /// The method is that of [`Graph::is_symmetric`], with numbers from the two ends and the value.
    ///
    /// # Panics
    /// If `values` has another length than the edges.
    /// # Cost
    /// O(n + e) time, in parallel, without memory.
    pub fn has_symmetric_values(&self, values: &[f32]) -> bool {
        assert_eq!(self.edge_count(), values.len(), "one value for each edge");
        let seed = RandomState::new().hash_one(self.edge_count());
        let of_row = |v: usize| {
            let mut sum = 0u64;
            for (&u, &value) in self.sources(v).iter().zip(&values[self.edges(v)]) {
                let (u, v) = (u64::from(u), v as u64);
                let ends = mixed(seed ^ (u.min(v) << 32 | u.max(v)));
                let number = mixed(ends ^ u64::from((value + 0.0).to_bits()));
                match u.cmp(&v) {
                    std::cmp::Ordering::Less => sum = sum.wrapping_add(number),
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => sum = sum.wrapping_sub(number),
                }
            }
            sum
        };
        (0..self.vertex_count()).into_par_iter().map(of_row).reduce(|| 0, u64::wrapping_add) == 0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::Permutation;
    use super::*;

    const N: usize = 7;

    /// Edges of a graph of `N` vertices, of which the last two may have none. Repeats and loops occur.
    fn edges() -> impl Strategy<Value = Vec<(u32, u32)>> {
        proptest::collection::vec((0u32..5, 0u32..5), 0..40)
    }

    /// The edges of a graph with their values, row by row.
    fn listed(graph: &Graph, values: &[f32]) -> Vec<(u32, u32, f32)> {
        let row = |v: usize| graph.edges(v).map(move |i| (graph.indices()[i], v as u32, values[i]));
        (0..graph.vertex_count()).flat_map(row).collect()
    }

    /// The values of the edges `u -> v` in their order.
    fn between(all: &[(u32, u32, f32)], u: u32, v: u32) -> Vec<f32> {
        all.iter().filter(|edge| (edge.0, edge.1) == (u, v)).map(|edge| edge.2).collect()
    }

    proptest! {
        #[test]
        fn values_follow_their_edges(edges in edges(), seed in 0u64..100) {
            // The value of an edge is its position in the list, so no two are equal.
            let values: Vec<f32> = (0..edges.len()).map(|i| i as f32).collect();
            let (graph, sorted) = Graph::from_edges_and_values(N, &edges, &values).unwrap();
            let plain = Graph::from_edges(N, &edges).unwrap();
            prop_assert_eq!(&plain.indices()[..], &graph.indices()[..]);
            prop_assert_eq!(&plain.indptr()[..], &graph.indptr()[..]);
            let all = listed(&graph, &sorted);
            let given: Vec<_> = edges.iter().zip(&values).map(|(&(u, v), &x)| (u, v, x)).collect();
            let turned = graph.transpose_without_permutation();
            let turned = listed(&turned, &graph.transpose_values(&sorted));
            let looped = graph.with_self_loops();
            let filled = graph.with_self_loops_and_values(&sorted, |v, old| old.unwrap_or(-1.0 - v as f32));
            prop_assert_eq!(filled.len(), looped.edge_count());
            let looped = listed(&looped, &filled);
            let order = Permutation::random(N, seed);
            let renamed = listed(&order.apply(&graph), &order.apply_values(&graph, &sorted));
            for u in 0..N as u32 {
                for v in 0..N as u32 {
                    let want = between(&given, u, v);
                    prop_assert_eq!(between(&all, u, v), want.clone());
                    prop_assert_eq!(between(&turned, v, u), want.clone());
                    let new = order.new_of_old();
                    prop_assert_eq!(between(&renamed, new[u as usize], new[v as usize]), want.clone());
                    let with_loop = match u == v {
                        true => vec![want.last().copied().unwrap_or(-1.0 - v as f32)],
                        false => want,
                    };
                    prop_assert_eq!(between(&looped, u, v), with_loop);
                }
            }
        }

        #[test]
        fn values_are_symmetric_if_those_of_both_directions_are_the_same(
            edges in edges(), values in proptest::collection::vec(0u8..3, 40),
        ) {
            let values: Vec<f32> = values[..edges.len()].iter().map(|&x| f32::from(x)).collect();
            let (graph, sorted) = Graph::from_edges_and_values(N, &edges, &values).unwrap();
            let all = listed(&graph, &sorted);
            let sorted_between = |u, v| {
                let mut values = between(&all, u, v);
                values.sort_by(f32::total_cmp);
                values
            };
            let pairs = (0..N as u32).flat_map(|u| (0..u).map(move |v| (u, v)));
            let want = pairs.clone().all(|(u, v)| sorted_between(u, v) == sorted_between(v, u));
            prop_assert_eq!(graph.has_symmetric_values(&sorted), want);
            // The same edges with their reverses are symmetric.
            let both: Vec<(u32, u32)> = edges.iter().copied().chain(edges.iter().map(|&(u, v)| (v, u))).collect();
            let twice = [&values[..], &values[..]].concat();
            let (graph, sorted) = Graph::from_edges_and_values(N, &both, &twice).unwrap();
            prop_assert!(graph.has_symmetric_values(&sorted));
        }
    }

    #[test]
    fn a_value_of_minus_zero_is_zero() {
        let (graph, values) = Graph::from_edges_and_values(2, &[(0, 1), (1, 0)], &[0.0, -0.0]).unwrap();
        assert!(graph.has_symmetric_values(&values));
        let (graph, values) = Graph::from_edges_and_values(2, &[(0, 1), (1, 0)], &[1.0, -1.0]).unwrap();
        assert!(!graph.has_symmetric_values(&values));
    }

    #[test]
    fn the_values_of_a_symmetric_graph_move_when_it_is_transposed() {
        let edges = [(0, 1), (1, 0), (1, 2), (2, 1)];
        let (graph, values) = Graph::from_edges_and_values(3, &edges, &[10.0, 1.0, 21.0, 12.0]).unwrap();
        assert_eq!(values, [1.0, 10.0, 12.0, 21.0]);
        assert_eq!(graph.transpose_values(&values), [10.0, 1.0, 21.0, 12.0]);
    }
}
