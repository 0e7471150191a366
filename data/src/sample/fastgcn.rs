//! The draws of FastGCN: vertices of the whole graph, by what all other vertices gather from them.

use super::Chosen;
use super::draw::Draws;
use super::earliest::{Candidate, keep_earliest, stands_for};
use crate::graph::Graph;

/// Weights of all vertices: the squared norms of the columns of the row-normalised adjacency. That of `u` is the sum
/// over its out-edges `u -> v` of `1 / in_degree(v)^2`.
///
/// A vertex is drawn with a probability in proportion to its weight without a table of them: first `v` with a
/// probability in proportion to `1 / in_degree(v)`, then one of its in-edges uniformly. So `u` is drawn by each of its
/// out-edges with a probability in proportion to `1 / in_degree(v)^2`.
#[derive(Debug)]
pub(super) struct ColumnNorms {
    /// `[n]`.
    weights: Vec<f32>,
    /// `[n]`: the sum of `1 / in_degree(v)` over all vertices up to `v`. Those without in-edges add nothing.
    ends: Vec<f64>,
    edges: usize,
}

/// Arrivals for each vertex to draw, after which the rest are drawn from a list of all vertices.
const PATIENCE: usize = 4;

impl ColumnNorms {
    /// # Cost
    /// O(n + e). It keeps 12 n bytes, and takes 8 n more.
    pub(super) fn new(graph: &Graph) -> Self {
        let (indptr, indices): (&[u64], &[u32]) = (graph.indptr(), graph.indices());
        let mut weights = vec![0.0f64; graph.vertex_count()];
        let mut ends = Vec::with_capacity(graph.vertex_count());
        let mut sum = 0.0;
        for row in indptr.windows(2) {
            let share = 1.0 / (row[1] - row[0]) as f64;
            for &u in &indices[row[0] as usize..row[1] as usize] {
                weights[u as usize] += share * share;
            }
            sum += if row[1] > row[0] { share } else { 0.0 };
            ends.push(sum);
        }
        Self { weights: weights.into_iter().map(|weight| weight as f32).collect(), ends, edges: indices.len() }
    }

    /// Returns the numbers of vertices and edges of the graph.
    pub(super) fn of_graph(&self) -> [usize; 2] {
        [self.weights.len(), self.edges]
    }

    fn weight(&self, u: u32) -> f64 {
        f64::from(self.weights[u as usize])
    }

    /// Draws `count` vertices.
    ///
    /// The arrivals at all vertices together are those of one process, whose rate is the sum of their weights, and each
    /// is at a vertex that is drawn by weight. The vertices at which the first arrivals are, each counted once, are
    /// those that arrive first. So no time has to be drawn for each vertex of the graph.
    ///
    /// # Cost
    /// O(count log n), and memory for `count` vertices. If `count` is so large that most arrivals are at vertices that
    /// are drawn already, O(n) and memory for all vertices.
    pub(super) fn draw(&self, graph: &Graph, count: usize, of_layer: u64, chosen: &mut Chosen) {
        chosen.clear();
        let next = self.arrive(graph, count.min(self.weights.len()), of_layer, chosen);
        let weights = chosen.table.vertices().iter().map(|&u| self.weight(u));
        chosen.stands_for.extend(weights.map(|weight| stands_for(weight, next)));
    }

    /// Draws vertices, and returns the time of the first one that is not drawn.
    fn arrive(&self, graph: &Graph, count: usize, of_layer: u64, chosen: &mut Chosen) -> f64 {
        let Some(&total) = self.ends.last().filter(|&&total| total > 0.0) else { return f64::INFINITY };
        let mut draws = Draws::new(of_layer, u32::MAX);
        let mut time = 0.0;
        for _ in 0..PATIENCE * (count + 1) {
            time += draws.exponential() / total;
            let at = draws.unit() * total;
            let v = self.ends.partition_point(|&end| end < at);
            let u = graph.sources(v)[draws.below(graph.in_degree(v)) as usize];
            if chosen.table.get(u).is_none() {
                if chosen.table.vertices().len() == count {
                    return time;
                }
                chosen.table.reserve(1);
                chosen.table.number(u);
            }
        }
        // Arrivals have no memory: the others arrive as if they began now.
        let is_left = |u: &u32| self.weights[*u as usize] > 0.0 && chosen.table.get(*u).is_none();
        let mut others: Vec<Candidate> = (0..self.weights.len() as u32)
            .filter(is_left)
            .map(|vertex| {
                let weight = self.weight(vertex);
                Candidate { time: time + Draws::new(of_layer, vertex).exponential() / weight, weight, vertex }
            })
            .collect();
        let next = keep_earliest(&mut others, count - chosen.table.vertices().len());
        chosen.table.reserve(others.len());
        others.iter().for_each(|other| _ = chosen.table.number(other.vertex));
        next
    }
}
