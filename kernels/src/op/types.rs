//! The types of tensors whose sizes are not known yet: what shapes are inferred from.

pub use crate::storage_type::DType;

/// Which block an operation gathers over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockSpec {
    /// The graph: rows and sources are vertices.
    Graph {
        /// Exactly one self-loop at every vertex (`A + I`).
        self_loops: bool,
        /// Every edge turned round.
        transposed: bool,
    },
    /// The non-zeros of the sparse features: rows are vertices, sources are feature columns.
    Features {
        /// Number of feature columns.
        width: usize,
        /// Rows are feature columns, sources are vertices.
        transposed: bool,
    },
}

impl BlockSpec {
    /// The same block with every edge turned round.
    pub fn transpose(self) -> Self {
        match self {
            Self::Graph { self_loops, transposed } => Self::Graph { self_loops, transposed: !transposed },
            Self::Features { width, transposed } => Self::Features { width, transposed: !transposed },
        }
    }

    /// What its rows are.
    pub fn rows(self) -> RowSpace {
        match self {
            Self::Features { width, transposed: true } => RowSpace::Param(width),
            _ => RowSpace::Vertices,
        }
    }

    /// What it gathers from.
    pub fn sources(self) -> RowSpace {
        self.transpose().rows()
    }
}

/// What the rows of a tensor stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSpace {
    /// One row a vertex (of the part at hand).
    Vertices,
    /// One row a vertex of other parts that this part reads.
    Halo,
    /// One row an edge of a block.
    Edges(BlockSpec),
    /// So many rows, whatever the graph.
    Param(usize),
    /// One row.
    Scalar,
}

/// The shape of a tensor, not yet bound to numbers, and its element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// What its rows are.
    pub rows: RowSpace,
    /// Elements a row.
    pub width: usize,
    /// Element type.
    pub dtype: DType,
}

impl TensorType {
    /// `f32` rows of `width`.
    pub fn f32(rows: RowSpace, width: usize) -> Self {
        Self { rows, width, dtype: DType::F32 }
    }
}

/// A part of the vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SplitName {
    /// What the loss is computed on.
    Train,
    /// What chooses the best epoch.
    Val,
    /// What the result is reported on.
    Test,
}
