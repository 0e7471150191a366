//! A batch that grows from the seeds outwards: the edges of a layer are drawn, then their sources are numbered.

use std::ops::Range;

use super::table::Table;
use super::{MiniBatch, Outwards, SampleError, Scratch, number_seeds};
use crate::graph::{Block, Graph};

/// In-edges that were drawn of some vertices.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnEdges {
    /// Where the edges of each vertex begin and end, `[vertices + 1]`.
    pub offsets: Vec<u64>,
    /// For each edge, its position in the graph; empty if that is not known.
    pub positions: Vec<u64>,
    /// For each edge, the vertex that it comes from.
    pub sources: Vec<u32>,
    /// For each edge, how many edges of the graph it stands for.
    pub stands_for: Vec<f32>,
}

impl Default for DrawnEdges {
    /// Returns the edges of no vertices.
    fn default() -> Self {
        Self { offsets: vec![0], positions: Vec::new(), sources: Vec::new(), stands_for: Vec::new() }
    }
}

impl DrawnEdges {
    /// Returns the number of vertices.
    pub fn row_count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns where the edges of a vertex are.
    pub fn row(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// Appends the edges of a vertex of another list.
    pub fn push_row(&mut self, other: &Self, row: usize) {
        let edges = other.row(row);
        if !other.positions.is_empty() {
            self.positions.extend_from_slice(&other.positions[edges.clone()]);
        }
        self.sources.extend_from_slice(&other.sources[edges.clone()]);
        self.stands_for.extend_from_slice(&other.stands_for[edges]);
        self.offsets.push(self.sources.len() as u64);
    }
}

/// A batch of which some layers have been drawn.
///
/// Each layer has the in-edges of all vertices met so far. [`super::NeighborSampler::draw_edges`] draws them, here or in
/// another process.
#[derive(Debug)]
pub struct GrowingBatch<'s> {
    table: &'s mut Table,
    batch: Outwards,
    seeds: usize,
}

impl<'s> GrowingBatch<'s> {
    /// Begins a batch around seeds, which are distinct vertices.
    ///
    /// # Errors
    /// [`SampleError::NoVertex`]; [`SampleError::Twice`].
    pub fn begin(graph: &Graph, seeds: &[u32], scratch: &'s mut Scratch) -> Result<Self, SampleError> {
        Self::in_table(graph, seeds, &mut scratch.table)
    }

    pub(super) fn in_table(graph: &Graph, seeds: &[u32], table: &'s mut Table) -> Result<Self, SampleError> {
        number_seeds(graph, seeds, table)?;
        Ok(Self { table, batch: Outwards::default(), seeds: seeds.len() })
    }

    /// Returns the vertices met so far, by local number.
    pub fn vertices(&self) -> &[u32] {
        self.table.vertices()
    }

    /// Adds a layer: edges of all vertices met so far, in their order. Their sources get local numbers.
    ///
    /// # Panics
    /// If there are edges of another number of vertices. It may also panic if a source is no vertex of the graph.
    pub fn push(&mut self, drawn: DrawnEdges) {
        assert_eq!(drawn.row_count(), self.vertices().len(), "a layer has edges of all vertices met so far");
        let DrawnEdges { offsets, positions, mut sources, stands_for } = drawn;
        self.table.number_all(&mut sources);
        let block = Block::rectangular(offsets.into(), sources.into(), self.table.vertices().len());
        self.batch.push(block, positions, stands_for);
    }

    /// Returns the batch.
    pub fn finish(self) -> MiniBatch {
        self.batch.finish(self.table.take(), self.seeds)
    }
}
