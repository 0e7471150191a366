//! Neighbour sampling: a number of in-edges of each vertex, layer by layer.

use std::ops::Range;

use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::draw::Draws;
use super::{BatchKey, Buffers, DrawnEdges, Fanout, Fanouts, GrowingBatch, MiniBatch, SampleError, Sampler, Scratch};
use crate::graph::Graph;

/// Draws in-edges of the seeds, then of all vertices met so far, and so on: one layer per fan-out.
///
/// Edges are drawn, not neighbours: of repeated edges, each counts. They are drawn uniformly without replacement, unless
/// the options say otherwise. A layer is written as a block at once, with local numbers, and without a list of pairs of
/// vertices in between.
///
/// # Source
/// Hamilton, Ying & Leskovec, Inductive representation learning on large graphs, NeurIPS 2017, algorithm 2. The fused
/// kernel: FastSample, 2023.
#[derive(Clone, Debug)]
pub struct NeighborSampler {
    fanouts: Fanouts,
    with_replacement: bool,
    weights: Option<Shared<f32>>,
}

impl NeighborSampler {
    /// Creates a sampler with these fan-outs.
    pub fn new(fanouts: Fanouts) -> Self {
        Self { fanouts, with_replacement: false, weights: None }
    }

    /// Sets whether an edge can be drawn more than once. Then a vertex with in-edges has exactly as many as the fan-out.
    pub fn with_replacement(mut self, with_replacement: bool) -> Self {
        self.with_replacement = with_replacement;
        self
    }

    /// Draws edges with probabilities in proportion to these weights, `[e]`, in the order of the graph's edges. An edge
    /// of weight 0 is not drawn, unless all edges are. Not together with replacement, which draws uniformly.
    pub fn weights(mut self, weights: impl Into<Shared<f32>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// Draws in-edges of some vertices for a layer, which counts from the seeds. What is drawn of a vertex depends neither
    /// on the other vertices nor on their order.
    ///
    /// # Errors
    /// [`SampleError::NoVertex`]; [`SampleError::Weights`].
    /// # Panics
    /// If there is no such layer.
    /// # Cost
    /// See [`NeighborSampler::sample`](Sampler::sample).
    pub fn draw_edges(
        &self,
        graph: &Graph,
        layer: usize,
        vertices: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<DrawnEdges, SampleError> {
        self.check_weights(graph)?;
        let count = graph.vertex_count();
        match vertices.iter().position(|&v| v as usize >= count) {
            Some(place) => Err(SampleError::NoVertex { seed: vertices[place], place, vertices: count }),
            None => Ok(rayon::scope(|_| self.edges_of(graph, layer, vertices, key, &mut scratch.buffers))),
        }
    }

    /// Draws in-edges of some vertices of the graph.
    fn edges_of(
        &self,
        graph: &Graph,
        layer: usize,
        vertices: &[u32],
        key: BatchKey,
        buffers: &mut Buffers,
    ) -> DrawnEdges {
        let (starts, all_sources): (&[u64], &[u32]) = (graph.indptr(), graph.indices());
        let (fanout, of_layer) = (self.fanouts.0[layer], key.of_layer(layer));
        let Buffers { ranges, positions, stands_for, lent } = buffers;
        *lent += 1;
        let in_edges = |&v: &u32| starts[v as usize]..starts[v as usize + 1];
        vertices.par_iter().with_min_len(ROWS_A_TASK).map(in_edges).collect_into_vec(ranges);
        let mut offsets = vec![0u64; vertices.len() + 1];
        let counts = offsets[1..].par_iter_mut().zip(&*ranges).with_min_len(ROWS_A_TASK);
        counts.for_each(|(count, edges)| *count = self.count(fanout, edges));
        (1..offsets.len()).for_each(|row| offsets[row] += offsets[row - 1]);
        let drawn = offsets[vertices.len()] as usize;
        let mut sources = vec![0u32; drawn];
        // What these have from an earlier batch is overwritten.
        let (mut positions, mut stands_for) =
            (positions.pop().unwrap_or_default(), stands_for.pop().unwrap_or_default());
        positions.resize(drawn, 0);
        stands_for.resize(drawn, 0.0);
        let all = Rows {
            vertices,
            edges: ranges,
            offsets: &offsets,
            positions: &mut positions,
            sources: &mut sources,
            stands_for: &mut stands_for,
        };
        all.tasks().into_par_iter().for_each(|rows| {
            rows.draw(all_sources, |v, edges, to| self.draw(fanout, edges, Draws::new(of_layer, v), to));
        });
        DrawnEdges { offsets, positions, sources, stands_for }
    }

    fn check_weights(&self, graph: &Graph) -> Result<(), SampleError> {
        match self.weights.as_ref().filter(|weights| weights.len() != graph.edge_count()) {
            Some(weights) => Err(SampleError::Weights { weights: weights.len(), edges: graph.edge_count() }),
            None => Ok(()),
        }
    }

    /// Returns the number of edges that are drawn of a vertex whose in-edges have the positions `edges`.
    fn count(&self, fanout: Fanout, edges: &Range<u64>) -> u64 {
        let degree = edges.end - edges.start;
        match (fanout, &self.weights) {
            (Fanout::AtMost(count), _) if self.with_replacement && degree > 0 => count.into(),
            (Fanout::AtMost(count), Some(weights)) if u64::from(count) < degree => {
                let weights = &weights[edges.start as usize..edges.end as usize];
                let drawable = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
                drawable.min(count.into())
            }
            (Fanout::AtMost(count), _) => degree.min(count.into()),
            (Fanout::All, _) => degree,
        }
    }

    /// Draws some of the in-edges of a vertex, which have the positions `edges`, in ascending order.
    fn draw(&self, fanout: Fanout, edges: Range<u64>, mut draws: Draws, to: &mut Vec<u64>) {
        let Fanout::AtMost(count) = fanout else { return to.extend(edges) };
        let count = u64::from(count);
        match &self.weights {
            _ if edges.is_empty() => {}
            _ if self.with_replacement => draws.repeated(count, edges, to),
            Some(weights) if count < edges.end - edges.start => {
                let weights = &weights[edges.start as usize..edges.end as usize];
                draws.distinct_weighted(count as usize, edges.start, weights, to);
            }
            _ => draws.distinct(count, edges, to),
        }
    }
}

/// Rows that are drawn together, and rows that one task draws.
const ROWS_AT_ONCE: usize = 64;
const ROWS_A_TASK: usize = 1024;

/// The edges of consecutive rows of a layer, to be drawn.
struct Rows<'a> {
    vertices: &'a [u32],
    /// The positions of their in-edges.
    edges: &'a [Range<u64>],
    /// Where each row's drawn edges begin and end in the layer, `[rows + 1]`.
    offsets: &'a [u64],
    positions: &'a mut [u64],
    sources: &'a mut [u32],
    stands_for: &'a mut [f32],
}

impl<'a> Rows<'a> {
    /// Splits the rows into tasks.
    fn tasks(mut self) -> Vec<Self> {
        let mut tasks = Vec::new();
        while !self.vertices.is_empty() {
            let rows = self.vertices.len().min(ROWS_A_TASK);
            let drawn = (self.offsets[rows] - self.offsets[0]) as usize;
            let (vertices, later_vertices) = self.vertices.split_at(rows);
            let (edges, later_edges) = self.edges.split_at(rows);
            let (positions, later_positions) = self.positions.split_at_mut(drawn);
            let (sources, later_sources) = self.sources.split_at_mut(drawn);
            let (stands_for, later_stands_for) = self.stands_for.split_at_mut(drawn);
            tasks.push(Self { vertices, edges, offsets: &self.offsets[..=rows], positions, sources, stands_for });
            self = Self {
                vertices: later_vertices,
                edges: later_edges,
                offsets: &self.offsets[rows..],
                positions: later_positions,
                sources: later_sources,
                stands_for: later_stands_for,
            };
        }
        tasks
    }

    /// Draws the edges. `draw` appends those of a vertex with these in-edges.
    fn draw(self, all_sources: &[u32], draw: impl Fn(u32, Range<u64>, &mut Vec<u64>)) {
        let first = self.offsets[0];
        let mut drawn = Vec::new();
        // In steps, so that in each one the processor loads from many places at a time.
        for row in (0..self.vertices.len()).step_by(ROWS_AT_ONCE) {
            let rows = row..self.vertices.len().min(row + ROWS_AT_ONCE);
            drawn.clear();
            for row in rows.clone() {
                let edges = &self.edges[row];
                draw(self.vertices[row], edges.clone(), &mut drawn);
                let [start, end] = [row, row + 1].map(|row| (self.offsets[row] - first) as usize);
                self.stands_for[start..end].fill((edges.end - edges.start) as f32 / (end - start) as f32);
            }
            let [start, end] = [rows.start, rows.end].map(|row| (self.offsets[row] - first) as usize);
            self.positions[start..end].copy_from_slice(&drawn);
            for (source, &edge) in self.sources[start..end].iter_mut().zip(&drawn) {
                *source = all_sources[edge as usize];
            }
        }
    }
}

impl Sampler for NeighborSampler {
    fn name(&self) -> String {
        let how = if self.with_replacement { " with replacement" } else { "" };
        let by = if self.weights.is_some() { " by weight" } else { "" };
        format!("neighbor {}{how}{by}", self.fanouts)
    }

    fn layers(&self) -> usize {
        self.fanouts.0.len()
    }

    /// # Cost
    /// O(edges drawn), and the degrees of vertices of which more than 64 edges are drawn, or any by weight. Memory in
    /// the size of the batch.
    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError> {
        self.check_weights(graph)?;
        let Scratch { table, buffers, .. } = scratch;
        let mut batch = GrowingBatch::in_table(graph, seeds, table)?;
        // On a thread of the pool: otherwise each parallel loop would wait until one of them has woken up.
        Ok(rayon::scope(|_| {
            for layer in 0..self.layers() {
                let drawn = self.edges_of(graph, layer, batch.vertices(), key, buffers);
                batch.push(drawn);
            }
            batch.finish()
        }))
    }

    fn as_neighbor(&self) -> Option<&NeighborSampler> {
        Some(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::sample::testing::{
        assert_rejects_wrong_seeds, assert_row_sums, assert_same_on_threads, assert_valid, fan_outs, hostile, pairs,
    };
    use crate::sample::{LayerSampler, SubgraphSampler};

    /// Does the same in two steps and with other containers: lists the edges of a layer as pairs, then numbers them.
    fn naive(
        sampler: &NeighborSampler,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
    ) -> (Vec<u32>, Vec<Vec<[usize; 2]>>) {
        let mut vertices = seeds.to_vec();
        let mut layers = Vec::new();
        for (layer, &fanout) in sampler.fanouts.0.iter().enumerate() {
            let mut pairs: Vec<(u32, u32)> = Vec::new();
            for &v in &vertices {
                let (mut drawn, [first, end]) = (Vec::new(), [0, 1].map(|i| graph.indptr()[v as usize + i]));
                sampler.draw(fanout, first..end, Draws::new(key.of_layer(layer), v), &mut drawn);
                pairs.extend(drawn.iter().map(|&edge| (v, graph.indices()[edge as usize])));
            }
            for &(_, u) in &pairs {
                if !vertices.contains(&u) {
                    vertices.push(u);
                }
            }
            let numbers: BTreeMap<u32, usize> = vertices.iter().enumerate().map(|(i, &v)| (v, i)).collect();
            layers.push(pairs.iter().map(|(v, u)| [numbers[v], numbers[u]]).collect());
        }
        layers.reverse();
        (vertices, layers)
    }

    proptest! {
        #[test]
        fn batches_are_those_of_a_naive_reference(
            fanouts in proptest::collection::vec(-1i32..9, 1..4),
            seeds in proptest::collection::btree_set(0u32..70, 0..20),
            key in (0u64..5, 0u64..5, 0u64..5),
            with_replacement in any::<bool>(),
            weighted in any::<bool>(),
        ) {
            let graph = hostile();
            let mut sampler = NeighborSampler::new(fan_outs(&fanouts)).with_replacement(with_replacement);
            if weighted {
                sampler = sampler.weights((0..graph.edge_count()).map(|e| (e % 3) as f32).collect::<Vec<_>>());
            }
            let seeds: Vec<u32> = seeds.into_iter().rev().collect();
            let key = BatchKey { seed: key.0, epoch: key.1, batch: key.2 };
            let mut scratch = Scratch::default();
            // What another batch left behind changes nothing.
            sampler.sample(&graph, &[3, 5, 7], BatchKey::default(), &mut scratch).unwrap();
            let batch = sampler.sample(&graph, &seeds, key, &mut scratch).unwrap();
            let (vertices, layers) = naive(&sampler, &graph, &seeds, key);
            prop_assert_eq!(&batch.vertices, &vertices);
            prop_assert_eq!(batch.blocks.iter().map(pairs).collect::<Vec<_>>(), layers);
            assert_valid(&graph, &batch);
            assert_row_sums(&graph, &batch);
        }
    }

    #[test]
    fn without_replacement_no_edge_is_drawn_twice() {
        let graph = hostile();
        let sampler = NeighborSampler::new("9,9".parse().unwrap());
        let batch = sampler.sample(&graph, &[7, 60, 0], BatchKey::default(), &mut Scratch::default()).unwrap();
        for edges in &batch.edges {
            let mut distinct = edges.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), edges.len());
        }
        // The hub has more in-edges, an isolated vertex none, and another vertex fewer.
        let sizes: Vec<usize> = (0..3).map(|row| batch.blocks[1].view().sources(row).len()).collect();
        assert_eq!(sizes, [9, 0, 4]);
    }

    #[test]
    fn all_edges_of_all_vertices_are_the_graph() {
        let graph = hostile();
        let seeds: Vec<u32> = (0..70).collect();
        let sampler = NeighborSampler::new("-1,-1".parse().unwrap());
        let batch = sampler.sample(&graph, &seeds, BatchKey::default(), &mut Scratch::default()).unwrap();
        assert_eq!(batch.vertices, seeds);
        for block in &batch.blocks {
            assert_eq!((&block.indptr()[..], &block.indices()[..]), (&graph.indptr()[..], &graph.indices()[..]));
        }
    }

    #[test]
    fn edges_that_are_drawn_apart_make_the_same_batch() {
        let graph = hostile();
        let weights: Vec<f32> = (0..graph.edge_count()).map(|e| (e % 3) as f32).collect();
        let sampler = |fanouts: &str| NeighborSampler::new(fanouts.parse().unwrap());
        let samplers = [sampler("4,-1,2"), sampler("3,0,9").with_replacement(true), sampler("2,3,1").weights(weights)];
        let (seeds, key) = ([7, 60, 0, 33], BatchKey { seed: 4, epoch: 2, batch: 9 });
        let (mut scratch, mut other) = (Scratch::default(), Scratch::default());
        for sampler in samplers {
            let want = sampler.sample(&graph, &seeds, key, &mut scratch).unwrap();
            let mut batch = GrowingBatch::begin(&graph, &seeds, &mut scratch).unwrap();
            for layer in 0..3 {
                // Each vertex by itself, in another order.
                let vertices = batch.vertices().to_vec();
                let drawn = |v: u32| sampler.draw_edges(&graph, layer, &[v], key, &mut other).unwrap();
                let mut of_each: Vec<DrawnEdges> = vertices.iter().rev().copied().map(drawn).collect();
                of_each.reverse();
                let mut all = DrawnEdges::default();
                of_each.iter().for_each(|drawn| all.push_row(drawn, 0));
                batch.push(all);
            }
            let got = batch.finish();
            assert_eq!((&got.vertices, &got.edges), (&want.vertices, &want.edges));
            assert_eq!(got.stands_for, want.stands_for);
            assert_eq!(
                got.blocks.iter().map(pairs).collect::<Vec<_>>(),
                want.blocks.iter().map(pairs).collect::<Vec<_>>()
            );
        }
        let wrong = sampler("1").draw_edges(&graph, 0, &[3, 70], key, &mut scratch).unwrap_err();
        assert_eq!(wrong, SampleError::NoVertex { seed: 70, place: 1, vertices: 70 });
    }

    #[test]
    fn memory_comes_back_only_to_samplers_that_use_it() {
        let (graph, fanouts) = (hostile(), || "4,3".parse().unwrap());
        let samplers: [Box<dyn Sampler>; 3] = [
            Box::new(NeighborSampler::new(fanouts())),
            Box::new(SubgraphSampler::new(fanouts())),
            Box::new(LayerSampler::ladies(fanouts())),
        ];
        for (sampler, want) in samplers.iter().zip([2, 2, 0]) {
            let mut scratch = Scratch::default();
            for batch in 0..200 {
                let key = BatchKey { batch, ..BatchKey::default() };
                let drawn = sampler.sample(&graph, &[7, 0, 33], key, &mut scratch).unwrap();
                scratch.take_back(drawn);
                let Buffers { positions, stands_for, .. } = &scratch.buffers;
                assert_eq!([positions.len(), stands_for.len()], [want; 2], "{}", sampler.name());
            }
        }
    }

    #[test]
    fn wrong_seeds_and_weights_are_errors() {
        let graph = hostile();
        let sampler = NeighborSampler::new("2".parse().unwrap());
        assert_rejects_wrong_seeds(&sampler);
        let few = sampler.weights(vec![1.0]).sample(&graph, &[0], BatchKey::default(), &mut Scratch::default());
        assert_eq!(few.unwrap_err(), SampleError::Weights { weights: 1, edges: graph.edge_count() });
    }

    #[test]
    fn batches_do_not_depend_on_threads() {
        assert_same_on_threads(&NeighborSampler::new("4,3,2".parse().unwrap()));
        let weights: Vec<f32> = (0..hostile().edge_count()).map(|e| (e % 3) as f32).collect();
        assert_same_on_threads(&NeighborSampler::new("4,3".parse().unwrap()).weights(weights));
    }
}
