//! Which edges a rank draws itself: any, or those of the vertices that it owns.

use std::fmt;
use std::str::FromStr;

use super::gathering::Fetched;
use super::{Batches, Drawing, SeedShares, failed};
use crate::error::{Error, Result};
use crate::ranks::{Bounds, EdgePulls, Ranks};
use crate::sample::{GrowingBatch, MiniBatch, Sampler, Scratch};

/// How the edges of the graph are spread over the ranks. Batches are the same.
///
/// # Source
/// FastSample, 2023: hybrid partitioning is [`Topology::Whole`], vanilla partitioning [`Topology::Parts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Each rank draws from all edges, which it maps. Sampling needs no messages.
    #[default]
    Whole,
    /// A rank draws only in-edges of the vertices of its parts, and asks other ranks to draw those of theirs: two rounds
    /// of messages for each layer but the first. Needs several ranks, [`SeedShares::Own`] and
    /// [`NeighborSampler`](crate::sample::NeighborSampler).
    Parts,
}

/// The error of a text that is not the name of a [`Topology`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write whole or parts")]
pub struct ParseTopologyError;

impl FromStr for Topology {
    type Err = ParseTopologyError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "whole" => Ok(Self::Whole),
            "parts" => Ok(Self::Parts),
            _ => Err(ParseTopologyError),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "whole",
            Self::Parts => "parts",
        })
    }
}

impl Batches {
    /// Checks that these ranks can draw edges for each other, if they have to.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub(super) fn check_topology(&self, ranks: &Ranks) -> Result<()> {
        if self.topology == Topology::Whole {
            return Ok(());
        }
        let is_neighbor = |sampler: &dyn Sampler| sampler.as_neighbor().is_some();
        let expected = if ranks.count() == 1 {
            "it is for several ranks, and this process is alone; start several, or leave this option out"
        } else if self.shares != SeedShares::Own {
            "a rank begins with vertices of its own parts; give option `seeds` own as well"
        } else if !is_neighbor(&*self.sampler) {
            "other ranks draw edges only as option `sampler` neighbor does"
        } else if self.evaluation.as_ref().is_some_and(|sampler| !is_neighbor(&**sampler)) {
            "other ranks draw edges only as `NeighborSampler` does, also those of evaluations"
        } else {
            return Ok(());
        };
        Err(Error::Value { option: "topology", value: self.topology.to_string(), expected: expected.into() })
    }
}

/// Memory that is used from batch to batch, by a thread that draws the shares of this rank.
#[derive(Debug, Default)]
pub(super) struct DrawScratch {
    drawing: Scratch,
    /// Of each share, if other ranks draw edges too.
    shares: Vec<Scratch>,
}

impl DrawScratch {
    /// Takes shares that are not needed any more, for their memory.
    pub(super) fn take_back(&mut self, shares: Vec<MiniBatch>) {
        shares.into_iter().for_each(|share| self.drawing.take_back(share));
    }
}

impl Drawing {
    /// Begins a series in which the ranks draw edges for each other; `None` if each rank draws all by itself. All ranks
    /// have to call it, in the same order among series and sessions.
    pub(super) fn begin_drawing(&self) -> Option<EdgePulls> {
        if self.ranks.count() == 1 || self.batches.topology == Topology::Whole {
            return None;
        }
        // Positions are read only to find the weights of edges.
        let inputs = &self.inputs;
        let edges = inputs.edge_weights.as_ref().map(|_| inputs.graph.edge_count());
        let bounds = Bounds { vertices: inputs.graph.vertex_count(), edges };
        Some(EdgePulls::begin(&self.ranks, self.offsets(), bounds))
    }

    /// Draws this rank's shares of a batch, and returns what was fetched for them. If other ranks draw some of the edges,
    /// all ranks have to call it.
    ///
    /// # Errors
    /// [`Error::Batch`]; [`Error::WrongLetter`]; [`Error::OtherRank`].
    pub(super) fn sample(
        &self,
        epoch: u64,
        number: usize,
        order: &[u32],
        scratch: &mut DrawScratch,
        edges: Option<&EdgePulls>,
    ) -> Result<(Vec<MiniBatch>, Fetched)> {
        match edges {
            None => Ok((self.draw(epoch, number, order, &mut scratch.drawing)?, Fetched::default())),
            Some(edges) => self.sample_with_others(epoch, number, order, scratch, edges),
        }
    }

    /// Draws this rank's shares together, layer by layer: a vertex that several of them meet is asked for once. The seeds
    /// are of this rank, so the first layer needs no messages.
    fn sample_with_others(
        &self,
        epoch: u64,
        number: usize,
        order: &[u32],
        scratch: &mut DrawScratch,
        edges: &EdgePulls,
    ) -> Result<(Vec<MiniBatch>, Fetched)> {
        let sampler = self.batches.sampler.as_neighbor();
        let sampler =
            sampler.ok_or_else(|| failed("sampling", number, "it does not draw vertex by vertex any more"))?;
        let (graph, key, seeds) = (&self.inputs.graph, self.key(epoch, number), self.own_shares(number, order));
        scratch.shares.resize_with(seeds.len(), Scratch::default);
        let growing =
            seeds.iter().zip(&mut scratch.shares).map(|(seeds, scratch)| GrowingBatch::begin(graph, seeds, scratch));
        let growing: std::result::Result<Vec<GrowingBatch<'_>>, _> = growing.collect();
        let mut growing = growing.map_err(|source| failed("sampling", number, source))?;
        let (mut fetched, layers) = (Fetched::default(), sampler.layers());
        for layer in 0..layers {
            let vertices = growing.iter().flat_map(|batch| batch.vertices()).copied().collect();
            let draw = |vertices: &[u32]| {
                let drawn = sampler.draw_edges(graph, layer, vertices, key, &mut scratch.drawing);
                drawn.map_err(|source| failed("sampling", number, source))
            };
            let pulled = match layer {
                0 => edges.own(vertices, draw)?,
                _ => edges.pull((number * layers + layer) as u64, vertices, draw)?,
            };
            fetched.add(Fetched {
                rounds: pulled.rounds,
                edges: pulled.edge_count,
                edge_bytes: pulled.bytes,
                ..Fetched::default()
            });
            let mut first = 0;
            for batch in &mut growing {
                let rows = first..first + batch.vertices().len();
                first = rows.end;
                batch.push(pulled.edges(rows));
            }
        }
        Ok((growing.into_iter().map(GrowingBatch::finish).collect(), fetched))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use lapidary_kernels::StorageType;

    use super::*;
    use crate::bind::bind;
    use crate::dataset::{Arrays, Dataset, FeatureNorm};
    use crate::graph::Graph;
    use crate::sample::NeighborSampler;

    const N: u32 = 70;

    /// A directed graph with a hub, repeated edges, self-loops, isolated vertices and edge weights, some of them 0.
    fn hostile() -> Dataset {
        let hub = (0..60u32).map(|u| (u, 7));
        let ring = (0..40u32).flat_map(|v| [(v, (v + 1) % 40), (v, (v + 1) % 40), (v, v), ((v * 5) % 40, v)]);
        let graph = Graph::from_edges(N as usize, &hub.chain(ring).collect::<Vec<_>>()).unwrap();
        let weights: Vec<f32> = (0..graph.edge_count()).map(|e| (e % 3) as f32).collect();
        let labels: Vec<i64> = (0..i64::from(N)).map(|v| v % 3).collect();
        let train: Vec<i64> = (0..i64::from(N)).filter(|v| v % 3 > 0).collect();
        let features = ndarray::Array2::from_elem((N as usize, 2), 0.5);
        let arrays = Arrays::new(graph).directed(true).edge_weights(weights).features(features);
        Dataset::from_arrays(arrays.labels(&labels).train(&train)).unwrap()
    }

    fn assert_same(got: &MiniBatch, want: &MiniBatch, has_positions: bool) {
        assert_eq!((&got.vertices, got.seeds), (&want.vertices, want.seeds));
        assert_eq!(got.blocks.len(), want.blocks.len());
        for (got, want) in got.blocks.iter().zip(&want.blocks) {
            assert_eq!(got.own_sources(), want.own_sources());
            assert_eq!((&got.indptr()[..], &got.indices()[..]), (&want.indptr()[..], &want.indices()[..]));
        }
        let bits = |batch: &MiniBatch| -> Vec<u32> { batch.stands_for.concat().iter().map(|c| c.to_bits()).collect() };
        assert_eq!(bits(got), bits(want));
        match has_positions {
            true => assert_eq!(got.edges, want.edges),
            false => assert!(got.edges.iter().all(Vec::is_empty)),
        }
    }

    /// Counts one by one the edges that the shares of a rank, whose vertices these are, ask other ranks for.
    fn edges_of_others(shares: &[MiniBatch], own: &Range<usize>) -> u64 {
        let layers = shares[0].blocks.len();
        let of_layer = |layer: usize| {
            let mut asked = BTreeSet::new();
            let mut edges = 0;
            for batch in shares {
                let block = &batch.blocks[layer];
                for (row, &v) in batch.vertices[..block.row_count()].iter().enumerate() {
                    if !own.contains(&(v as usize)) && asked.insert(v) {
                        edges += block.view().sources(row).len() as u64;
                    }
                }
            }
            edges
        };
        (0..layers).map(of_layer).sum()
    }

    #[test]
    fn blocks_are_those_of_a_rank_that_draws_all_edges() {
        let data = hostile();
        let weights = data.edge_weights().unwrap().clone();
        let n = N as usize;
        for layers in 1..=4 {
            let sampler = |fanouts: [&str; 4]| NeighborSampler::new(fanouts[..layers].join(",").parse().unwrap());
            for (case, sampler) in [
                sampler(["4", "3", "2", "2"]),
                sampler(["-1", "2", "-1", "0"]),
                sampler(["3", "3", "3", "3"]).with_replacement(true),
                sampler(["3", "2", "3", "2"]).weights(weights.clone()),
            ]
            .into_iter()
            .enumerate()
            {
                for (count, devices, ends) in
                    [(2, 1, vec![20, n]), (3, 1, vec![11, 11, n]), (3, 1, vec![30, 50, n]), (2, 2, vec![5, 30, 31, n])]
                {
                    let starts = [0].into_iter().chain(ends.iter().copied());
                    let parts: Vec<Range<usize>> = starts.zip(&ends).map(|(start, &end)| start..end).collect();
                    let has_weights = case % 2 == 0;
                    let work = |ranks: Ranks| {
                        let inputs = bind(&data, FeatureNorm::None, has_weights, true).unwrap();
                        assert_eq!(inputs.edge_weights.is_some(), has_weights);
                        let of = |topology: Topology| {
                            let batches = Batches::new(9, sampler.clone()).seeds(SeedShares::Own).topology(topology);
                            batches.check_ranks(&ranks).unwrap();
                            let parts = parts.clone();
                            let drawing = Drawing::new(batches, &data, &inputs, StorageType::F32, 3, parts).unwrap();
                            drawing.on_ranks(&ranks)
                        };
                        let [whole, by_parts] = [Topology::Whole, Topology::Parts].map(of);
                        assert!(whole.begin_drawing().is_none());
                        assert_eq!(by_parts.expected_sizes().unwrap(), whole.expected_sizes().unwrap());
                        let edges = by_parts.begin_drawing();
                        let (mut scratch, mut other) = (DrawScratch::default(), DrawScratch::default());
                        let own = parts[ranks.rank() * devices].start..parts[(ranks.rank() + 1) * devices - 1].end;
                        for number in 0..whole.count() {
                            let order = whole.order(2);
                            let (want, _) = whole.sample(2, number, &order, &mut other, None).unwrap();
                            let (got, fetched) =
                                by_parts.sample(2, number, &order, &mut scratch, edges.as_ref()).unwrap();
                            assert_eq!(got.len(), devices);
                            got.iter().zip(&want).for_each(|(got, want)| assert_same(got, want, has_weights));
                            assert_eq!(fetched.rounds, 2 * (layers as u64 - 1));
                            assert_eq!(fetched.edges, edges_of_others(&want, &own));
                        }
                    };
                    std::thread::scope(|scope| {
                        Ranks::threads(count).into_iter().for_each(|ranks| drop(scope.spawn(|| work(ranks))));
                    });
                }
            }
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for topology in [Topology::Whole, Topology::Parts] {
            assert_eq!(topology.to_string().parse(), Ok(topology));
        }
        assert_eq!("hybrid".parse::<Topology>(), Err(ParseTopologyError));
    }
}
