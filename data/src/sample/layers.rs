//! Layer sampling: a number of vertices for each layer, instead of a number of edges for each vertex.

use std::sync::Arc;

use super::fastgcn::ColumnNorms;
use super::table::Table;
use super::{BatchKey, Chosen, Fanout, Fanouts, MiniBatch, Outwards, SampleError, Sampler, Scratch, number_seeds};
use crate::graph::{Block, Graph};

/// Draws vertices for each layer, and keeps the edges from them to the vertices of the layer. So a batch does not grow
/// from layer to layer as with [`super::NeighborSampler`].
///
/// The fan-outs are the numbers of vertices that are drawn for each layer, from the seeds outwards; `-1` takes all
/// in-neighbours. Vertices are drawn without replacement, with probabilities in proportion to the squared norms of
/// columns of the row-normalised adjacency: those of the whole matrix ([`LayerSampler::fastgcn`]), or those of its rows of
/// this layer's vertices ([`LayerSampler::ladies`]). An edge stands for as many as its source does, so a sum over the
/// edges of a layer is on average the sum over the graph, whatever was drawn for other layers. A vertex of whose
/// in-neighbours none is drawn gathers nothing.
///
/// # Source
/// Chen, Ma & Xiao, FastGCN, ICLR 2018; Zou et al., Layer-dependent importance sampling for training deep and large graph
/// convolutional networks (LADIES), NeurIPS 2019. Different from both: without replacement, and without a normalisation
/// of the rows that were drawn, so that sums stay unbiased (Cohen & Kaplan, PODC 2007).
#[derive(Clone, Debug)]
pub struct LayerSampler {
    fanouts: Fanouts,
    /// The weights of FastGCN; LADIES has those of each layer.
    norms: Option<Arc<ColumnNorms>>,
}

impl LayerSampler {
    /// Creates a sampler that draws from the in-neighbours of the vertices of a layer.
    pub fn ladies(fanouts: Fanouts) -> Self {
        Self { fanouts, norms: None }
    }

    /// Creates a sampler that draws from all vertices of this graph. Most of them are no in-neighbours of the layer's
    /// vertices unless many are drawn; these are left out of the batch, as nothing reads them.
    ///
    /// # Cost
    /// O(n + e); it keeps 12 n bytes.
    pub fn fastgcn(fanouts: Fanouts, graph: &Graph) -> Self {
        Self { fanouts, norms: Some(Arc::new(ColumnNorms::new(graph))) }
    }
}

impl Sampler for LayerSampler {
    fn name(&self) -> String {
        let name = if self.norms.is_some() { "fastgcn" } else { "ladies" };
        format!("{name} {}", self.fanouts)
    }

    fn layers(&self) -> usize {
        self.fanouts.0.len()
    }

    /// # Cost
    /// O(in-edges of the vertices of the layers): each is looked up among the vertices drawn. With `k` of these, FastGCN
    /// adds O(k log n), or O(n) if most of what there is to draw is drawn. Memory in the size of the batch and of the
    /// vertices drawn; with LADIES, of all in-neighbours of the largest layer.
    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError> {
        let sizes = [graph.vertex_count(), graph.edge_count()];
        if let Some(of_graph) = self.norms.as_ref().map(|norms| norms.of_graph()).filter(|other| *other != sizes) {
            return Err(SampleError::OtherGraph { made_for: of_graph, given: sizes });
        }
        let Scratch { table, chosen, in_neighbors, .. } = scratch;
        number_seeds(graph, seeds, table)?;
        let mut batch = Outwards::default();
        for (layer, &fanout) in self.fanouts.0.iter().enumerate() {
            let of_layer = key.of_layer(layer);
            let chosen = match (fanout, &self.norms) {
                (Fanout::All, _) => None,
                (Fanout::AtMost(count), Some(norms)) => {
                    norms.draw(graph, count as usize, of_layer, chosen);
                    Some(&*chosen)
                }
                (Fanout::AtMost(count), None) => {
                    in_neighbors.draw(graph, table.vertices(), count as usize, of_layer, chosen);
                    Some(&*chosen)
                }
            };
            let (block, positions, counts) = edges_from(graph, table, chosen);
            batch.push(block, positions, counts);
        }
        Ok(batch.finish(table.take(), seeds.len()))
    }
}

/// Returns the edges from the chosen vertices, or from all, to those met so far: as a block, by their positions in the
/// graph, and how many each stands for. Their sources get local numbers.
fn edges_from(graph: &Graph, table: &mut Table, chosen: Option<&Chosen>) -> (Block, Vec<u64>, Vec<f32>) {
    let rows = table.vertices().len();
    let mut indptr = Vec::with_capacity(rows + 1);
    indptr.push(0u64);
    let (mut indices, mut positions, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..rows {
        let v = table.vertices()[row] as usize;
        for (&u, edge) in graph.sources(v).iter().zip(graph.indptr()[v]..) {
            if let Some(count) = chosen.map_or(Some(1.0), |chosen| chosen.count(u)) {
                table.reserve(1);
                indices.push(table.number(u));
                positions.push(edge);
                counts.push(count);
            }
        }
        indptr.push(indices.len() as u64);
    }
    (Block::rectangular(indptr.into(), indices.into(), table.vertices().len()), positions, counts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::sample::draw::Draws;
    use crate::sample::testing::{
        assert_rejects_wrong_seeds, assert_same_on_threads, assert_unbiased, assert_valid, fan_outs, hostile, pairs,
    };

    /// Returns the sums over edges to `rows` of the squared inverse in-degree, by source.
    fn weights(graph: &Graph, rows: impl Iterator<Item = u32>) -> BTreeMap<u32, f64> {
        let mut weights = BTreeMap::new();
        for v in rows {
            let sources = graph.sources(v as usize);
            sources.iter().for_each(|&u| *weights.entry(u).or_insert(0.0) += (sources.len() as f64).powi(-2));
        }
        weights
    }

    /// Returns the vertices drawn, and what each stands for, from a full list of times.
    fn drawn_by_times(weights: &BTreeMap<u32, f64>, count: usize, of_layer: u64) -> BTreeMap<u32, f64> {
        let time = |u: u32, weight: f64| -Draws::new(of_layer, u).unit().ln() / weight;
        let mut times: Vec<(f64, u32)> = weights.iter().map(|(&u, &weight)| (time(u, weight), u)).collect();
        times.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let next = times.get(count).map_or(f64::INFINITY, |&(time, _)| time);
        times.iter().take(count).map(|&(_, u)| (u, 1.0 / (1.0 - (-weights[&u] * next).exp()))).collect()
    }

    /// Checks a batch against lists of pairs of vertices. `draw` returns what is drawn for vertices of a layer, in the
    /// order from the seeds.
    fn assert_is(
        graph: &Graph,
        batch: &MiniBatch,
        fanouts: &[i32],
        draw: impl Fn(usize, &[u32]) -> BTreeMap<u32, f64>,
    ) -> Result<(), TestCaseError> {
        let mut vertices = batch.vertices[..batch.seeds].to_vec();
        for (layer, &fanout) in fanouts.iter().enumerate() {
            let drawn = if fanout < 0 { (0..70).map(|u| (u, 1.0)).collect() } else { draw(layer, &vertices) };
            let mut edges: Vec<(u32, u32)> = Vec::new();
            for &v in &vertices {
                edges.extend(graph.sources(v as usize).iter().filter(|u| drawn.contains_key(u)).map(|&u| (v, u)));
            }
            for &(_, u) in &edges {
                if !vertices.contains(&u) {
                    vertices.push(u);
                }
            }
            let local = |v: u32| vertices.iter().position(|&other| other == v).unwrap();
            let at = fanouts.len() - 1 - layer;
            let want: Vec<[usize; 2]> = edges.iter().map(|&(v, u)| [local(v), local(u)]).collect();
            prop_assert_eq!(pairs(&batch.blocks[at]), want);
            for ((_, u), &count) in edges.iter().zip(&batch.stands_for[at]) {
                prop_assert!((f64::from(count) - drawn[u]).abs() <= 1e-5 * drawn[u], "{} of {}", count, drawn[u]);
            }
        }
        prop_assert_eq!(&batch.vertices, &vertices);
        Ok(())
    }

    proptest! {
        #[test]
        fn batches_are_those_of_a_naive_reference(
            fanouts in proptest::collection::vec(-1i32..30, 1..4),
            seeds in proptest::collection::btree_set(0u32..70, 0..20),
            batch in 0u64..50,
        ) {
            let graph = hostile();
            let seeds: Vec<u32> = seeds.into_iter().rev().collect();
            let key = BatchKey { seed: 5, epoch: 2, batch };
            let mut scratch = Scratch::default();
            let ladies = LayerSampler::ladies(fan_outs(&fanouts));
            // What another batch left behind changes nothing.
            ladies.sample(&graph, &[3, 5, 7], BatchKey::default(), &mut scratch).unwrap();
            let drawn = ladies.sample(&graph, &seeds, key, &mut scratch).unwrap();
            assert_valid(&graph, &drawn);
            assert_is(&graph, &drawn, &fanouts, |layer, rows| {
                drawn_by_times(&weights(&graph, rows.iter().copied()), fanouts[layer] as usize, key.of_layer(layer))
            })?;
            let fastgcn = LayerSampler::fastgcn(fan_outs(&fanouts), &graph);
            let drawn = fastgcn.sample(&graph, &seeds, key, &mut scratch).unwrap();
            assert_valid(&graph, &drawn);
            assert_is(&graph, &drawn, &fanouts, |layer, _| {
                drawn_by_arrivals(&graph, fanouts[layer] as usize, key.of_layer(layer))
            })?;
        }
    }

    /// Does what FastGCN does with a list of all edges: each is met with a probability in proportion to its weight.
    fn drawn_by_arrivals(graph: &Graph, count: usize, of_layer: u64) -> BTreeMap<u32, f64> {
        let shares: Vec<f64> = (0..70).map(|v| 1.0 / graph.in_degree(v) as f64).collect();
        let total: f64 = shares.iter().filter(|share| share.is_finite()).sum();
        let weights = weights(graph, 0..70);
        let mut draws = Draws::new(of_layer, u32::MAX);
        let (mut time, mut drawn, mut next) = (0.0, BTreeSet::new(), None);
        for _ in 0..4 * (count + 1) {
            time -= draws.unit().ln() / total;
            let mut left = draws.unit() * total;
            let with_edges = (0..70).filter(|&v| graph.in_degree(v) > 0);
            let v = with_edges.into_iter().find(|&v| {
                left -= shares[v];
                left <= 0.0
            });
            let v = v.unwrap_or(39);
            let u = graph.sources(v)[draws.below(graph.in_degree(v)) as usize];
            if drawn.len() == count && !drawn.contains(&u) {
                next = Some(time);
                break;
            }
            drawn.insert(u);
        }
        let next = next.unwrap_or_else(|| {
            let others = weights.iter().filter(|(u, _)| !drawn.contains(u));
            let mut times: Vec<(f64, u32)> =
                others.map(|(&u, weight)| (time - Draws::new(of_layer, u).unit().ln() / weight, u)).collect();
            times.sort_by(|a, b| a.partial_cmp(b).unwrap());
            let left = count - drawn.len();
            drawn.extend(times.iter().take(left).map(|&(_, u)| u));
            times.get(left).map_or(f64::INFINITY, |&(time, _)| time)
        });
        drawn.into_iter().map(|u| (u, 1.0 / (1.0 - (-weights[&u] * next).exp()))).collect()
    }

    #[test]
    fn arrivals_draw_as_times_of_all_vertices_do() {
        const KEYS: u32 = 6000;
        let graph = hostile();
        let weights = weights(&graph, 0..70);
        // Of the largest count, the last ones are drawn from a list.
        for count in [1usize, 8, 50] {
            let sampler = LayerSampler::fastgcn(fan_outs(&[count as i32]), &graph);
            let norms = sampler.norms.as_ref().unwrap();
            let mut shares = vec![[0.0f64; 2]; 70];
            let mut chosen = Chosen::default();
            for key in 0..KEYS {
                norms.draw(&graph, count, u64::from(key), &mut chosen);
                assert_eq!(chosen.table.vertices().len(), count);
                chosen.table.vertices().iter().for_each(|&u| shares[u as usize][0] += 1.0 / f64::from(KEYS));
                let other = drawn_by_times(&weights, count, u64::from(key) << 32);
                other.keys().for_each(|&u| shares[u as usize][1] += 1.0 / f64::from(KEYS));
            }
            for (u, [arrived, timed]) in shares.into_iter().enumerate() {
                // The standard error of the difference is at most 0.0092.
                assert!((arrived - timed).abs() < 0.04, "{count}: vertex {u}: {arrived} and {timed}");
            }
        }
    }

    #[test]
    fn sums_are_unbiased() {
        for count in [3, 10, 25, 55] {
            assert_unbiased(&LayerSampler::ladies(fan_outs(&[count])), 4000);
            assert_unbiased(&LayerSampler::fastgcn(fan_outs(&[count]), &hostile()), 4000);
        }
        assert_unbiased(&LayerSampler::ladies(fan_outs(&[-1, 3])), 1);
        assert_unbiased(&crate::sample::NeighborSampler::new(fan_outs(&[3])), 4000);
    }

    #[test]
    fn all_in_neighbors_are_drawn_if_there_are_no_more() {
        let graph = hostile();
        let all = crate::sample::NeighborSampler::new(fan_outs(&[-1, -1]));
        let samplers = [&[70, 70], &[-1, 70]]
            .map(|fanouts| [LayerSampler::ladies(fan_outs(fanouts)), LayerSampler::fastgcn(fan_outs(fanouts), &graph)]);
        let want = all.sample(&graph, &[8, 60, 3], BatchKey::default(), &mut Scratch::default()).unwrap();
        for sampler in samplers.as_flattened() {
            let drawn = sampler.sample(&graph, &[8, 60, 3], BatchKey::default(), &mut Scratch::default()).unwrap();
            assert_eq!((&drawn.vertices, &drawn.edges), (&want.vertices, &want.edges));
            assert_eq!(drawn.stands_for, want.stands_for);
        }
    }

    #[test]
    fn graphs_without_edges_have_batches_without_edges() {
        let graph = Graph::from_edges(3, &[]).unwrap();
        for sampler in [LayerSampler::ladies(fan_outs(&[2, -1])), LayerSampler::fastgcn(fan_outs(&[2, -1]), &graph)] {
            let drawn = sampler.sample(&graph, &[2, 0], BatchKey::default(), &mut Scratch::default()).unwrap();
            assert_eq!(drawn.vertices, [2, 0]);
            assert_valid(&graph, &drawn);
        }
    }

    #[test]
    fn wrong_seeds_and_other_graphs_are_errors() {
        let fastgcn = LayerSampler::fastgcn(fan_outs(&[5, 5]), &hostile());
        assert_rejects_wrong_seeds(&fastgcn);
        assert_rejects_wrong_seeds(&LayerSampler::ladies(fan_outs(&[5, 5])));
        let other = Graph::from_edges(2, &[(0, 1)]).unwrap();
        let error = fastgcn.sample(&other, &[0], BatchKey::default(), &mut Scratch::default()).unwrap_err();
        assert_eq!(error, SampleError::OtherGraph { made_for: [70, hostile().edge_count()], given: [2, 1] });
    }

    #[test]
    fn batches_do_not_depend_on_threads() {
        assert_same_on_threads(&LayerSampler::ladies(fan_outs(&[9, 7])));
        assert_same_on_threads(&LayerSampler::fastgcn(fan_outs(&[20, 20]), &hostile()));
    }
}
