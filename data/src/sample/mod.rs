//! Mini-batches: blocks of sampled neighbours around seed vertices.
//!
//! A [`Sampler`] chooses the edges of a batch, layer by layer, from the seeds outwards:
//!
//! - [`NeighborSampler`] draws a number of in-edges of each vertex.
//! - [`SubgraphSampler`] draws the same vertices, and keeps all edges among them.
//! - [`LayerSampler`] draws a number of vertices for each layer, as LADIES or FastGCN.
//!
//! The result is a [`MiniBatch`]: one block per layer, over local vertices.
//!
//! ```
//! use lapidary_data::dataset::Dataset;
//! use lapidary_data::sample::{BatchKey, NeighborSampler, Sampler, Scratch};
//!
//! let data = Dataset::builtin("karate")?;
//! let sampler = NeighborSampler::new("3,2".parse()?);
//! let batch = sampler.sample(data.graph(), &[0, 33], BatchKey::default(), &mut Scratch::default())?;
//! // The seeds come first, and the last block has one row for each.
//! assert_eq!(batch.vertices[..2], [0, 33]);
//! assert_eq!((batch.blocks.len(), batch.blocks[1].row_count()), (2, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draw;
mod earliest;
mod fanout;
mod fastgcn;
mod growing;
mod ladies;
mod layers;
mod neighbor;
mod subgraph;
mod table;
#[cfg(test)]
mod testing;

use std::fmt;
use std::ops::Range;

use crate::graph::{Block, Graph};

pub use draw::{BatchKey, epoch_order};
pub use fanout::{Fanout, Fanouts, ParseFanoutsError};
pub use growing::{DrawnEdges, GrowingBatch};
pub use layers::LayerSampler;
pub use neighbor::NeighborSampler;
pub use subgraph::SubgraphSampler;

use ladies::InNeighbors;
use table::Table;

/// Blocks of sampled edges around seed vertices.
///
/// Vertices have local numbers: the seeds first, then others in the order in which they were met. So the rows of a block
/// are the first of its sources, and the rows of a layer are the sources of the next one.
#[derive(Clone, Debug)]
pub struct MiniBatch {
    /// The global ids of all vertices, by local number.
    pub vertices: Vec<u32>,
    /// The number of seeds.
    pub seeds: usize,
    /// One block per layer, in the order in which they are computed: the last one has the seeds as rows.
    pub blocks: Vec<Block>,
    /// For each edge of each block, its position in the graph. Empty if edges have no weights and come from other
    /// processes.
    pub edges: Vec<Vec<u64>>,
    /// For each edge of each block, how many edges of the graph it stands for. A sum over the edges of a block, each
    /// multiplied by this, is on average the sum over the edges of the graph, except with [`SubgraphSampler`] and edges
    /// drawn by weight. Samplers fill it in; if it is empty for a block, each edge stands for itself alone.
    pub stands_for: Vec<Vec<f32>>,
}

/// Chooses the edges of mini-batches.
pub trait Sampler: fmt::Debug + Send + Sync {
    /// Returns a text that says what is drawn, such as `neighbor 15,10,5`. It is recorded with a run.
    fn name(&self) -> String;

    /// Returns the number of layers, and so of blocks.
    fn layers(&self) -> usize;

    /// Samples around seeds, which are distinct vertices. The same key gives the same batch.
    ///
    /// # Errors
    /// [`SampleError`].
    fn sample(
        &self,
        graph: &Graph,
        seeds: &[u32],
        key: BatchKey,
        scratch: &mut Scratch,
    ) -> Result<MiniBatch, SampleError>;

    /// Returns this as a neighbour sampler, if it is one. What it draws of a vertex does not depend on others, so another
    /// process can draw it. `None` by default.
    fn as_neighbor(&self) -> Option<&NeighborSampler> {
        None
    }
}

/// Why a batch cannot be sampled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A seed is no vertex.
    #[error("seed number {place} is {seed}, but the graph has {vertices} vertices, counted from 0")]
    NoVertex {
        /// The seed.
        seed: u32,
        /// Its position.
        place: usize,
        /// Number of vertices.
        vertices: usize,
    },
    /// A vertex is a seed twice.
    #[error("vertex {seed} is a seed twice, the second time at position {place}; list each once")]
    Twice {
        /// The vertex.
        seed: u32,
        /// The position of the second time.
        place: usize,
    },
    /// There is not one weight per edge.
    #[error("there are {weights} weights for {edges} edges; each edge needs one")]
    Weights {
        /// Number of weights.
        weights: usize,
        /// Number of edges.
        edges: usize,
    },
    /// A sampler was made for another graph.
    #[error(
        "the sampler was made for a graph of {} vertices and {} edges, and is given one of {} and {}",
        made_for[0], made_for[1], given[0], given[1]
    )]
    OtherGraph {
        /// Numbers of vertices and edges of the graph it was made for.
        made_for: [usize; 2],
        /// Those of the graph given.
        given: [usize; 2],
    },
}

/// Memory that is used from batch to batch.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    table: Table,
    buffers: Buffers,
    chosen: Chosen,
    in_neighbors: InNeighbors,
}

impl Scratch {
    /// Takes a batch that is not needed any more, for its memory: later batches need less new memory then, which the
    /// system would have to fill with zeros. Of a sampler that draws its layers in other memory, nothing is kept.
    pub fn take_back(&mut self, batch: MiniBatch) {
        let Buffers { positions, stands_for, lent, .. } = &mut self.buffers;
        let room = (*lent).min(MOST_SPARE.saturating_sub(positions.len())).min(batch.edges.len());
        positions.extend(batch.edges.into_iter().take(room));
        stands_for.extend(batch.stands_for.into_iter().take(room));
        *lent -= room;
    }
}

/// The most layers from which memory is kept.
const MOST_SPARE: usize = 64;

/// Memory of the edges of layers.
#[derive(Clone, Debug, Default)]
struct Buffers {
    ranges: Vec<Range<u64>>,
    /// Those of batches that came back, the layer of the seeds last.
    positions: Vec<Vec<u64>>,
    stands_for: Vec<Vec<f32>>,
    /// The number of layers that were drawn and did not come back.
    lent: usize,
}

/// A batch that is drawn from the seeds outwards, layer by layer.
#[derive(Debug, Default)]
struct Outwards {
    blocks: Vec<Block>,
    edges: Vec<Vec<u64>>,
    stands_for: Vec<Vec<f32>>,
}

impl Outwards {
    fn push(&mut self, block: Block, edges: Vec<u64>, stands_for: Vec<f32>) {
        self.blocks.push(block);
        self.edges.push(edges);
        self.stands_for.push(stands_for);
    }

    /// Returns the batch, whose blocks are in the order in which they are computed.
    fn finish(mut self, vertices: Vec<u32>, seeds: usize) -> MiniBatch {
        self.blocks.reverse();
        self.edges.reverse();
        self.stands_for.reverse();
        let Self { blocks, edges, stands_for } = self;
        MiniBatch { vertices, seeds, blocks, edges, stands_for }
    }
}

/// Vertices that were drawn for a layer.
#[derive(Clone, Debug, Default)]
struct Chosen {
    table: Table,
    /// For each, how many it stands for.
    stands_for: Vec<f32>,
}

impl Chosen {
    fn clear(&mut self) {
        self.table.clear();
        self.stands_for.clear();
    }

    /// Returns how many a vertex stands for, if it was drawn.
    #[inline]
    fn count(&self, vertex: u32) -> Option<f32> {
        self.table.get(vertex).map(|local| self.stands_for[local as usize])
    }
}

/// Gives the seeds the first local numbers.
///
/// # Errors
/// [`SampleError::NoVertex`] and [`SampleError::Twice`].
fn number_seeds(graph: &Graph, seeds: &[u32], table: &mut Table) -> Result<(), SampleError> {
    let vertices = graph.vertex_count();
    table.begin(vertices);
    table.reserve(seeds.len());
    for (place, &seed) in seeds.iter().enumerate() {
        if seed as usize >= vertices {
            return Err(SampleError::NoVertex { seed, place, vertices });
        }
        if (table.number(seed) as usize) < place {
            return Err(SampleError::Twice { seed, place });
        }
    }
    Ok(())
}
