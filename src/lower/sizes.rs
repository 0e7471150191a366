//! The numbers that row spaces and blocks are bound to.

use super::{FeatureData, Inputs};
use crate::program::{BlockSpec, RowSpace, SplitName, TensorType};

/// All that lowering needs to know of the data of one part, or of a tile of it: so a plan needs no data, and a run that does not fit is refused
/// before any of it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// How many parts there are.
    pub parts: usize,
    /// The global id of this part's first vertex.
    pub first_vertex: u64,
    /// Number of vertices.
    pub vertices: u64,
    /// What the part's rows gather from.
    pub forward: Cut,
    /// The same of the transposed graph.
    pub backward: Cut,
    /// Whether the whole graph equals its transpose.
    pub symmetric: bool,
    /// Non-zeros of sparse features.
    pub feature_cells: u64,
    /// Labelled vertices of each split, by its code, in the whole graph.
    pub labelled: [u64; 4],
}

/// How the edges of one direction meet a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Edges into the part's rows.
    pub edges: u64,
    /// How many of them are self-loops.
    pub self_loops: u64,
    /// Rows of other parts that the part's rows read.
    pub halo: u64,
    /// How many of these come before the part's own.
    pub low: u64,
    /// The part's rows that other parts read.
    pub packed: u64,
}

impl Sizes {
    /// Those of the whole data, as one part.
    ///
    /// # Cost
    /// O(n log d), for the self-loops.
    pub fn of(inputs: &Inputs) -> Self {
        let (edges, self_loops) = (inputs.graph.edge_count() as u64, inputs.graph.self_loop_count() as u64);
        let cut = Cut { edges, self_loops, ..Cut::default() };
        Self {
            parts: 1,
            first_vertex: 0,
            vertices: inputs.graph.vertex_count() as u64,
            forward: cut,
            backward: cut,
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
            RowSpace::Halo => self.forward.halo,
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
        let cut = self.cut(block);
        match block {
            BlockSpec::Graph { self_loops: true, .. } => (cut.edges - cut.self_loops).saturating_add(self.vertices),
            BlockSpec::Graph { self_loops: false, .. } => cut.edges,
            BlockSpec::Features { .. } => self.feature_cells,
        }
    }

    /// How a block's edges meet the part. Those of the features stay inside it.
    pub fn cut(&self, block: BlockSpec) -> Cut {
        match self.canonical(block) {
            BlockSpec::Graph { transposed: false, .. } => self.forward,
            BlockSpec::Graph { transposed: true, .. } => self.backward,
            BlockSpec::Features { .. } => Cut { edges: self.feature_cells, ..Cut::default() },
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
