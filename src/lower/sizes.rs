//! The numbers that row spaces and blocks are bound to.

use super::{FeatureData, Inputs};
use crate::program::{BlockSpec, RowSpace, SplitName, TensorType};

/// All that lowering needs to know of the data: so a plan needs no data, and a run that does not fit is refused before any
/// of it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges.
    pub edges: u64,
    /// How many of them are self-loops.
    pub self_loops: u64,
    /// Whether the graph equals its transpose.
    pub symmetric: bool,
    /// Non-zeros of sparse features.
    pub feature_cells: u64,
    /// Labelled vertices of each split, by its code.
    pub labelled: [u64; 4],
}

impl Sizes {
    /// Those of the data at hand.
    ///
    /// # Cost
    /// O(n log d), for the self-loops.
    pub fn of(inputs: &Inputs) -> Self {
        Self {
            vertices: inputs.graph.vertex_count() as u64,
            edges: inputs.graph.edge_count() as u64,
            self_loops: inputs.graph.self_loop_count() as u64,
            symmetric: inputs.symmetric,
            feature_cells: match &inputs.features {
                FeatureData::Sparse { values, .. } => values.len() as u64,
                FeatureData::Dense { .. } => 0,
            },
            labelled: inputs.labelled,
        }
    }

    /// Rows of a row space. Sizes that no memory could hold saturate.
    pub fn rows(&self, rows: RowSpace) -> u64 {
        match rows {
            RowSpace::Vertices => self.vertices,
            RowSpace::Halo => 0,
            RowSpace::Edges(block) => self.block_edges(block),
            RowSpace::Param(rows) => rows as u64,
            RowSpace::Scalar => 1,
        }
    }

    /// Bytes of a tensor. Sizes that no memory could hold saturate.
    pub fn bytes(&self, ty: TensorType) -> u64 {
        self.rows(ty.rows).saturating_mul(ty.width as u64).saturating_mul(ty.dtype.byte_count())
    }

    /// Edges of a block.
    pub fn block_edges(&self, block: BlockSpec) -> u64 {
        match block {
            BlockSpec::Graph { self_loops: true, .. } => self.edges - self.self_loops + self.vertices,
            BlockSpec::Graph { self_loops: false, .. } => self.edges,
            BlockSpec::Features { .. } => self.feature_cells,
        }
    }

    /// The block that stands for `block`: a symmetric graph is its own transpose.
    pub fn canonical(&self, block: BlockSpec) -> BlockSpec {
        match block {
            BlockSpec::Graph { self_loops, .. } if self.symmetric => BlockSpec::Graph { self_loops, transposed: false },
            other => other,
        }
    }

    /// A split's code, and how many of its vertices are labelled.
    pub fn split(&self, split: SplitName) -> (u32, u64) {
        let code = Inputs::split_code(split);
        (code, self.labelled[code as usize])
    }
}
