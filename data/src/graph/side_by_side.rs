//! Graphs side by side: one graph with no edge between them.

use lapidary_arrays::{NoHostMemory, SpareArrays};

use super::csr::Graph;

impl Graph {
    /// Returns one graph with the vertices of all graphs, those of each after those of the one before. Its arrays are in
    /// `spare` memory, if there is any.
    ///
    /// # Errors
    /// [`NoHostMemory`].
    /// # Panics
    /// If there are more vertices than [`MAX_VERTICES`](super::MAX_VERTICES).
    /// # Cost
    /// O(n + e).
    pub fn side_by_side(graphs: &[&Self], spare: &mut SpareArrays) -> Result<Self, NoHostMemory> {
        let [vertices, edges] = [Self::vertex_count, Self::edge_count]
            .map(|count: fn(&Self) -> usize| graphs.iter().map(|graph| count(graph)).sum::<usize>());
        let indptr = spare.filled(vertices + 1, |indptr: &mut [u64]| {
            let (mut first, mut edge) = (0, 0);
            indptr[0] = 0;
            for graph in graphs {
                let ends = &graph.indptr()[1..];
                indptr[first + 1..][..ends.len()].iter_mut().zip(ends).for_each(|(to, end)| *to = edge + end);
                (first, edge) = (first + ends.len(), edge + graph.edge_count() as u64);
            }
        })?;
        let indices = spare.filled(edges, |mut indices: &mut [u32]| {
            let mut first = 0;
            for graph in graphs {
                let (own, later) = indices.split_at_mut(graph.edge_count());
                own.iter_mut().zip(graph.indices().iter()).for_each(|(to, &source)| *to = first + source);
                first += u32::try_from(graph.vertex_count()).expect("ids of vertices have 32 bits");
                indices = later;
            }
        })?;
        Ok(Self::new(indptr, indices).expect("rows ascend, and sources are vertices, as before"))
    }
}
