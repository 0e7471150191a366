//! The edges of consecutive parts, and their weights. A rank holds those of its own parts, and no others.

use std::collections::BTreeMap;
use std::ops::Range;

use lapidary_kernels::Shared;

use super::Inputs;
use crate::graph::{Graph, GraphRows};
use crate::program::{BlockSpec, LoopWeight};

/// The rows of a range of vertices in the graph and in its transpose. What is not a slice of the data is made when it
/// is first needed.
#[derive(Debug)]
pub(super) struct OwnEdges<'a> {
    inputs: &'a Inputs,
    vertices: Range<usize>,
    transposed: Option<GraphRows>,
    weights: BTreeMap<(BlockSpec, LoopWeight), Weights>,
}

/// The weights of the edges of consecutive rows.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    first: usize,
    /// `[rows + 1]`. The first one need not be 0.
    offsets: Shared<u64>,
    values: Shared<f32>,
}

impl Weights {
    /// Returns the weights of the edges of some of the rows.
    pub(super) fn of(&self, rows: &Range<usize>) -> Shared<f32> {
        self.values.slice(self.edges(rows))
    }

    /// Returns the sum of the weights of a row.
    pub(super) fn sum(&self, v: usize) -> f64 {
        self.values[self.edges(&(v..v + 1))].iter().map(|&weight| f64::from(weight)).sum()
    }

    fn edges(&self, rows: &Range<usize>) -> Range<usize> {
        let offsets = &self.offsets[..];
        let [start, end] = [rows.start, rows.end].map(|v| (offsets[v - self.first] - offsets[0]) as usize);
        start..end
    }
}

impl<'a> OwnEdges<'a> {
    pub(super) fn new(inputs: &'a Inputs, vertices: Range<usize>) -> Self {
        Self { inputs, vertices, transposed: None, weights: BTreeMap::new() }
    }

    /// Returns the rows of the graph, or of its transpose.
    ///
    /// # Cost
    /// That of [`Graph::transposed_rows`] the first time that the transpose of a directed graph is asked for.
    pub(super) fn rows(&mut self, transposed: bool) -> GraphRows {
        let Inputs { graph, symmetric, .. } = self.inputs;
        if !transposed || *symmetric {
            return graph.rows(self.vertices.clone());
        }
        self.transposed.get_or_insert_with(|| graph.transposed_rows(self.vertices.clone())).clone()
    }

    /// Returns the weights of the edges over a block of the graph, in its order; 1 if edges have no weights.
    ///
    /// # Cost
    /// O(n + edges of these rows); of a transposed block, once that of [`Graph::transposed_row_values`].
    pub(super) fn weights(&mut self, block: BlockSpec, loops: LoopWeight) -> Weights {
        if let Some(weights) = self.weights.get(&(block, loops)) {
            return weights.clone();
        }
        let BlockSpec::Graph { self_loops, transposed } = block else {
            unreachable!("the features' block has values, and no weights");
        };
        let (first, rows) = (self.vertices.start, self.rows(transposed));
        let weights = if self_loops {
            let plain = self.weights(BlockSpec::Graph { self_loops: false, transposed }, loops);
            let offsets = rows.offsets_with_self_loops();
            // The loop of a vertex has the same weight in both directions. Its mean is that of the in-edges.
            let (graph, of_graph) = match loops {
                LoopWeight::One => (rows.clone(), plain.clone()),
                LoopWeight::Mean => {
                    let forward = BlockSpec::Graph { self_loops: false, transposed: false };
                    (self.rows(false), self.weights(forward, loops))
                }
            };
            let values = rows.with_self_loops_and_values(&plain.values, &offsets, |v, old| match loops {
                LoopWeight::One => old.unwrap_or(1.0),
                LoopWeight::Mean => mean_of_others(graph.sources(v), &of_graph.values[of_graph.edges(&(v..v + 1))], v),
            });
            Weights { first, offsets: offsets.into(), values: values.into() }
        } else {
            let graph: &Graph = &self.inputs.graph;
            let values = match &self.inputs.edge_weights {
                None => vec![1.0; rows.edge_count()].into(),
                Some(weights) if transposed => graph.transposed_row_values(weights, self.vertices.clone()).into(),
                Some(weights) => weights.slice(graph.rows(0..graph.vertex_count()).edges(&self.vertices)),
            };
            Weights { first, offsets: rows.offsets().clone(), values }
        };
        self.weights.insert((block, loops), weights.clone());
        weights
    }
}

/// Returns the mean weight of a vertex's in-edges from other vertices; 0 if it has none.
pub(super) fn mean_of_others(sources: &[u32], weights: &[f32], v: usize) -> f32 {
    let others = sources.iter().zip(weights).filter(|(u, _)| **u as usize != v);
    let (count, sum) = others.fold((0u64, 0.0), |(count, sum), (_, &weight)| (count + 1, sum + f64::from(weight)));
    if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
}
