//! A dataset with everything that one can have, parts of its vertices, and a graph whose best parts are known.

use std::num::NonZeroU32;

use lapidary::dataset::{Arrays, Dataset};
use lapidary::graph::Graph;
use lapidary::partition::Assignment;
use ndarray::Array2;

use super::hostile_graph;

/// Vertices of `hostile_graph`.
pub const N: usize = 12;

/// Returns a number of parts.
pub fn parts(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

/// Returns the parts of the vertices of `hostile_graph`. Part 2 is empty.
pub fn with_an_empty_part() -> Assignment {
    Assignment::new(vec![3, 0, 1, 0, 3, 1, 0, 1, 3, 1, 0, 3], parts(5)).unwrap()
}

/// Returns a directed graph with everything that a dataset can have, and dense features.
pub fn dense() -> Dataset {
    let graph = hostile_graph();
    let weights: Vec<f32> = (0..graph.edge_count()).map(|edge| edge as f32 - 3.5).collect();
    let x = Array2::from_shape_fn((N, 3), |(v, c)| (10 * v + c) as f32);
    let arrays = Arrays::new(graph)
        .name("dense")
        .edge_weights(weights)
        .features(x)
        .labels(&[0, 1, 2, -1, 1, 0, 2, 1, 0, 0, 1, 2]);
    let arrays =
        arrays.train(&[0, 4, 6, 11]).val(&[1, 2]).test(&[5, 9, 10]).graph_ids(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 7, 9]);
    Dataset::from_arrays(arrays.source("a test").licence("CC0")).unwrap()
}

/// Returns a directed graph of four cliques of eight, joined in a ring. Vertex v is in clique v % 4.
pub fn four_cliques() -> Graph {
    let clique = |v: u32| (0..8).map(move |i| (v % 4 + 4 * i, v)).filter(|(u, v)| u != v);
    let mut edges: Vec<(u32, u32)> = (0..32).flat_map(clique).collect();
    edges.extend([(0, 1), (1, 2), (2, 3), (3, 0)]);
    Graph::from_edges(32, &edges).unwrap()
}
