//! The draws of LADIES: in-neighbours of the vertices of a layer, by what these gather from them.

use super::Chosen;
use super::draw::Draws;
use super::earliest::{Candidate, keep_earliest, stands_for};
use super::table::Table;
use crate::graph::Graph;

/// The in-neighbours of the vertices of a layer, and their weights: that of `u` is the sum over its out-edges `u -> v` to
/// these of `1 / in_degree(v)^2`.
#[derive(Clone, Debug, Default)]
pub(super) struct InNeighbors {
    table: Table,
    /// The sources of one vertex, by their numbers in the table.
    sources: Vec<u32>,
    weights: Vec<f64>,
    candidates: Vec<Candidate>,
}

impl InNeighbors {
    /// Draws `count` of the in-neighbours of some vertices.
    ///
    /// # Cost
    /// O(in-edges of the vertices), and memory for each of their in-neighbours once.
    pub(super) fn draw(&mut self, graph: &Graph, rows: &[u32], count: usize, of_layer: u64, chosen: &mut Chosen) {
        self.table.clear();
        self.weights.clear();
        for &v in rows {
            let sources = graph.sources(v as usize);
            let share = 1.0 / sources.len() as f64;
            self.sources.clear();
            self.sources.extend(sources);
            self.table.number_all(&mut self.sources);
            self.weights.resize(self.table.vertices().len(), 0.0);
            self.sources.iter().for_each(|&local| self.weights[local as usize] += share * share);
        }
        self.candidates.clear();
        self.candidates.extend(self.table.vertices().iter().zip(&self.weights).map(|(&vertex, &weight)| Candidate {
            time: Draws::new(of_layer, vertex).exponential() / weight,
            weight,
            vertex,
        }));
        let next = keep_earliest(&mut self.candidates, count);
        chosen.clear();
        chosen.table.reserve(self.candidates.len());
        for candidate in &self.candidates {
            chosen.table.number(candidate.vertex);
            chosen.stands_for.push(stands_for(candidate.weight, next));
        }
    }
}
