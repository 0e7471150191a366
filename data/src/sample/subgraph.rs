//! Subgraph sampling: neighbours are drawn, and all edges among them are kept.

use super::{BatchKey, Fanouts, MiniBatch, NeighborSampler, SampleError, Sampler, Scratch, number_seeds};
use crate::graph::{Block, Graph};

/// Draws vertices as [`NeighborSampler`] does, and keeps all edges of the graph among them, in every layer.
///
/// All layers below the last compute all vertices of the batch; the last one computes the seeds. The edges of a vertex
/// that are kept stand for all of its in-edges in equal shares. Which ones are kept depends on how near their sources are
/// to the seeds, so sums over them are not on average the sums over the graph.
///
/// # Source
/// Zeng et al., Decoupling the depth and scope of graph neural networks, NeurIPS 2021. The same as PyTorch Geometric's
/// `NeighborLoader` with `subgraph_type="induced"`, and as DGL's `ShaDowKHopSampler`.
#[derive(Clone, Debug)]
pub struct SubgraphSampler {
    neighbors: NeighborSampler,
    fanouts: Fanouts,
}

impl SubgraphSampler {
    /// Creates a sampler that meets vertices with these fan-outs. There are as many layers as fan-outs.
    pub fn new(fanouts: Fanouts) -> Self {
        Self { neighbors: NeighborSampler::new(fanouts.clone()), fanouts }
    }
}

impl Sampler for SubgraphSampler {
    fn name(&self) -> String {
        format!("subgraph {}", self.fanouts)
    }

    fn layers(&self) -> usize {
        self.neighbors.layers()
    }

    /// # Cost
    /// O(in-edges of the vertices of the batch): each is looked up. Memory in the size of the batch.
    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError> {
        let vertices = self.neighbors.sample(graph, seeds, key, scratch)?.vertices;
        number_seeds(graph, &vertices, &mut scratch.table)?;
        let layers = self.layers();
        let rows = if layers > 1 { vertices.len() } else { seeds.len() };
        let mut indptr = Vec::with_capacity(rows + 1);
        indptr.push(0u64);
        let (mut indices, mut edges, mut stands_for) = (Vec::new(), Vec::new(), Vec::new());
        for &v in &vertices[..rows] {
            let sources = graph.sources(v as usize);
            let before = indices.len();
            for (&u, edge) in sources.iter().zip(graph.indptr()[v as usize]..) {
                if let Some(local) = scratch.table.get(u) {
                    indices.push(local);
                    edges.push(edge);
                }
            }
            let kept = indices.len() - before;
            stands_for.resize(indices.len(), sources.len() as f32 / kept as f32);
            indptr.push(indices.len() as u64);
        }
        let mut batch = MiniBatch {
            vertices: scratch.table.take(),
            seeds: seeds.len(),
            blocks: Vec::with_capacity(layers),
            edges: Vec::with_capacity(layers),
            stands_for: Vec::with_capacity(layers),
        };
        let whole = Block::rectangular(indptr.into(), indices.into(), batch.vertices.len());
        for _ in 1..layers {
            batch.blocks.push(whole.clone());
            batch.edges.push(edges.clone());
            batch.stands_for.push(stands_for.clone());
        }
        if layers > 0 {
            let last = first_rows(&whole, seeds.len());
            edges.truncate(last.edge_count());
            stands_for.truncate(last.edge_count());
            batch.blocks.push(last);
            batch.edges.push(edges);
            batch.stands_for.push(stands_for);
        }
        Ok(batch)
    }
}

/// Returns the first rows of a block, without a copy.
fn first_rows(block: &Block, rows: usize) -> Block {
    let indptr = block.indptr().slice(0..rows + 1);
    let edges = indptr[rows] as usize;
    Block::rectangular(indptr, block.indices().slice(0..edges), block.own_sources())
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

    /// Lists all edges of the graph whose ends are both among some vertices, as pairs of local numbers.
    fn naive(graph: &Graph, vertices: &[u32], rows: usize) -> Vec<[usize; 2]> {
        let local: BTreeMap<u32, usize> = vertices.iter().enumerate().map(|(i, &v)| (v, i)).collect();
        let mut all = Vec::new();
        for (row, &v) in vertices[..rows].iter().enumerate() {
            all.extend(graph.sources(v as usize).iter().filter_map(|u| local.get(u)).map(|&u| [row, u]));
        }
        all
    }

    proptest! {
        #[test]
        fn layers_have_all_edges_among_the_vertices_of_a_neighbor_sampler(
            fanouts in proptest::collection::vec(-1i32..6, 1..4),
            seeds in proptest::collection::btree_set(0u32..70, 0..20),
            batch in 0u64..5,
        ) {
            let graph = hostile();
            let fanouts = fan_outs(&fanouts);
            let (layers, sampler) = (fanouts.0.len(), SubgraphSampler::new(fanouts.clone()));
            let seeds: Vec<u32> = seeds.into_iter().rev().collect();
            let key = BatchKey { seed: 1, epoch: 2, batch };
            let mut scratch = Scratch::default();
            let met = NeighborSampler::new(fanouts).sample(&graph, &seeds, key, &mut scratch).unwrap().vertices;
            let drawn = sampler.sample(&graph, &seeds, key, &mut scratch).unwrap();
            prop_assert_eq!(&drawn.vertices, &met);
            prop_assert_eq!(drawn.blocks.len(), layers);
            for (layer, block) in drawn.blocks.iter().enumerate() {
                let rows = if layer + 1 < layers { met.len() } else { seeds.len() };
                prop_assert_eq!(block.row_count(), rows);
                prop_assert_eq!(pairs(block), naive(&graph, &met, rows));
            }
            assert_valid(&graph, &drawn);
            assert_row_sums(&graph, &drawn);
        }
    }

    #[test]
    fn all_vertices_are_the_whole_graph() {
        let graph = hostile();
        let seeds: Vec<u32> = (0..70).collect();
        let sampler = SubgraphSampler::new("1,1".parse().unwrap());
        let batch = sampler.sample(&graph, &seeds, BatchKey::default(), &mut Scratch::default()).unwrap();
        for (block, stands_for) in batch.blocks.iter().zip(&batch.stands_for) {
            assert_eq!((&block.indptr()[..], &block.indices()[..]), (&graph.indptr()[..], &graph.indices()[..]));
            assert!(stands_for.iter().all(|&count| count == 1.0));
        }
    }

    #[test]
    fn wrong_seeds_are_errors() {
        assert_rejects_wrong_seeds(&SubgraphSampler::new("2,2".parse().unwrap()));
    }

    #[test]
    fn batches_do_not_depend_on_threads() {
        assert_same_on_threads(&SubgraphSampler::new("3,2".parse().unwrap()));
    }
}
