//! Graphs side by side: one graph with no edge between them.

use super::csr::Graph;

impl Graph {
    /// Returns one graph with the vertices of all graphs, those of each after those of the one before.
    ///
    /// # Panics
    /// If there are more vertices than [`MAX_VERTICES`](super::MAX_VERTICES).
    /// # Cost
    /// O(n + e).
    pub fn side_by_side(graphs: &[&Self]) -> Self {
        let [vertices, edges] = [Self::vertex_count, Self::edge_count]
            .map(|count: fn(&Self) -> usize| graphs.iter().map(|graph| count(graph)).sum::<usize>());
        let (mut indptr, mut indices) = (Vec::with_capacity(vertices + 1), Vec::with_capacity(edges));
        indptr.push(0);
        for graph in graphs {
            let (first, edge) = (u32::try_from(indptr.len() - 1).expect("ids of vertices have 32 bits"), indices.len());
            indptr.extend(graph.indptr()[1..].iter().map(|end| edge as u64 + end));
            indices.extend(graph.indices().iter().map(|&source| first + source));
        }
        Self::new(indptr.into(), indices.into()).expect("rows ascend, and sources are vertices, as before")
    }
}
