//! The numbers that row spaces and blocks are bound to.

use serde::{Deserialize, Serialize};

use super::{FeatureData, Inputs};
use crate::program::{BlockSpec, LevelSizes, RowSpace, SplitName, TensorType};

/// Everything that lowering needs to know about the data of a part or tile. So a plan needs no data, and a run that
/// does not fit is rejected before any data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Number of parts.
    pub parts: usize,
    /// The global id of this part's first vertex.
    pub first_vertex: u64,
    /// Number of vertices.
    pub vertices: u64,
    /// Edge and row counts of the part in the graph.
    pub forward: Cut,
    /// The same for the transposed graph.
    pub backward: Cut,
    /// Whether the whole graph equals its transpose.
    pub symmetric: bool,
    /// Number of non-zeros of sparse features.
    pub feature_cells: u64,
    /// Number of labelled vertices per split in the whole graph, indexed by split code.
    pub labelled: [u64; 4],
    /// Bounds of the sizes of mini-batches, or the sizes of one of them; 0 without mini-batches.
    pub levels: LevelSizes,
}

/// Edge and row counts of a part, for one direction of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Edges into the part's rows.
    pub edges: u64,
    /// Self-loops among them.
    pub self_loops: u64,
    /// Rows of other parts that the part's rows read: the halo.
    pub halo: u64,
    /// Halo rows that come before the part's own rows.
    pub low: u64,
    /// Rows of the part that other parts read.
    pub packed: u64,
    /// The same, each counted once for every part that reads it.
    pub lent: u64,
    /// Edges between two vertices of the part, self-loops included. Not counted for symmetric graphs.
    pub inner: u64,
}

impl Sizes {
    /// Returns the sizes of the whole data, as one part.
    ///
    /// # Cost
    /// O(n log d), for the self-loops.
    pub fn of(inputs: &Inputs) -> Self {
        let (edges, self_loops) = (inputs.graph.edge_count() as u64, inputs.graph.self_loop_count() as u64);
        let cut = Cut { edges, self_loops, ..Cut::default() };
        Self { forward: cut, backward: cut, ..Self::without_edges(inputs) }
    }

    /// Returns the sizes of the whole data, as one part without edges.
    pub(super) fn without_edges(inputs: &Inputs) -> Self {
        Self {
            parts: 1,
            first_vertex: 0,
            vertices: inputs.graph.vertex_count() as u64,
            forward: Cut::default(),
            backward: Cut::default(),
            symmetric: inputs.symmetric,
            feature_cells: match &inputs.features {
                FeatureData::Sparse { values, .. } => values.len() as u64,
                FeatureData::Dense { .. } => 0,
            },
            labelled: inputs.labelled,
            levels: LevelSizes::default(),
        }
    }

    /// Returns the number of rows of a row space. Saturates.
    pub fn rows(&self, rows: RowSpace) -> u64 {
        match rows {
            RowSpace::Vertices => self.vertices,
            RowSpace::Level(level) => self.levels.rows(level),
            RowSpace::Kept => self.levels.kept,
            RowSpace::Copied => self.levels.copied,
            RowSpace::Halo => self.forward.halo,
            RowSpace::Edges(block) => self.block_edges(block),
            RowSpace::Sources(block) => match block.sources() {
                RowSpace::Vertices => self.vertices.saturating_add(self.cut(block).halo),
                rows => self.rows(rows),
            },
            RowSpace::Param(rows) => rows as u64,
            RowSpace::Scalar => 1,
        }
    }

    /// Returns the bytes of a tensor. Saturates.
    pub fn bytes(&self, ty: TensorType) -> u64 {
        self.rows(ty.rows).saturating_mul(ty.width as u64).saturating_mul(ty.dtype.byte_count())
    }

    /// Returns the number of edges of a block.
    pub fn block_edges(&self, block: BlockSpec) -> u64 {
        match block {
            BlockSpec::Graph { self_loops: true, .. } => {
                let cut = self.cut(block);
                (cut.edges - cut.self_loops).saturating_add(self.vertices)
            }
            BlockSpec::Graph { self_loops: false, .. } => self.cut(block).edges,
            BlockSpec::Features { .. } => self.feature_cells,
            BlockSpec::Batch { edges, level, .. } => self.levels.block_edges(edges, level),
        }
    }

    /// Returns the counts of a block. Only blocks of the graph have a halo.
    pub fn cut(&self, block: BlockSpec) -> Cut {
        match self.canonical(block) {
            BlockSpec::Graph { transposed: false, .. } => self.forward,
            BlockSpec::Graph { transposed: true, .. } => self.backward,
            block => Cut { edges: self.block_edges(block), ..Cut::default() },
        }
    }

    /// Returns the block that is used for `block`: a symmetric graph is its own transpose.
    pub fn canonical(&self, block: BlockSpec) -> BlockSpec {
        canonical(block, self.symmetric)
    }

    /// Returns a split's code, and the number of its labelled vertices: of all, or of a mini-batch if these are the rows.
    pub fn split(&self, split: SplitName, rows: RowSpace) -> (u32, u64) {
        let code = Inputs::split_code(split);
        let of_batch = matches!(rows, RowSpace::Level(_));
        (code, if of_batch { self.levels.labelled } else { self.labelled[code as usize] })
    }
}

/// Returns the block that is used for `block`: a symmetric graph is its own transpose. Weights of edges are not part of a
/// block; those of the two directions are two arrays.
pub(super) fn canonical(block: BlockSpec, symmetric: bool) -> BlockSpec {
    match block {
        BlockSpec::Graph { self_loops, .. } if symmetric => BlockSpec::Graph { self_loops, transposed: false },
        other => other,
    }
}
