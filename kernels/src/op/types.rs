//! Tensor types before sizes are known; shape inference works on them.

pub use crate::storage_type::DType;

/// The block that an operation gathers over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockSpec {
    /// The graph: rows and sources are vertices.
    Graph {
        /// Whether every vertex has exactly one self-loop (`A + I`).
        self_loops: bool,
        /// Whether every edge is reversed.
        transposed: bool,
    },
    /// The non-zeros of the sparse features: rows are vertices, sources are feature columns.
    Features {
        /// Number of feature columns.
        width: usize,
        /// Whether it is transposed: rows are feature columns, sources are vertices.
        transposed: bool,
    },
}

impl BlockSpec {
    /// Returns the same block with every edge reversed.
    pub fn transpose(self) -> Self {
        match self {
            Self::Graph { self_loops, transposed } => Self::Graph { self_loops, transposed: !transposed },
            Self::Features { width, transposed } => Self::Features { width, transposed: !transposed },
        }
    }

    /// Returns the row space of the block's rows.
    pub fn rows(self) -> RowSpace {
        match self {
            Self::Features { width, transposed: true } => RowSpace::Param(width),
            _ => RowSpace::Vertices,
        }
    }

    /// Returns the row space of the block's sources.
    pub fn sources(self) -> RowSpace {
        self.transpose().rows()
    }
}

/// The weight of a self-loop that a block adds to the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoopWeight {
    /// 1.
    One,
    /// The mean of the weights of the vertex's in-edges; 0 if there are none.
    Mean,
}

/// The meaning of the rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSpace {
    /// One row per vertex of the current part.
    Vertices,
    /// One row per vertex of other parts that this part reads.
    Halo,
    /// One row per edge of a block.
    Edges(BlockSpec),
    /// One row per source of a block: the vertices of the current part, and those of other parts that it reads.
    Sources(BlockSpec),
    /// A fixed number of rows, independent of the graph.
    Param(usize),
    /// One row.
    Scalar,
}

/// The shape of a tensor, with symbolic row count, and its element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Row space.
    pub rows: RowSpace,
    /// Elements per row.
    pub width: usize,
    /// Element type.
    pub dtype: DType,
}

impl TensorType {
    /// Returns the type of `f32` rows of this width.
    pub fn f32(rows: RowSpace, width: usize) -> Self {
        Self { rows, width, dtype: DType::F32 }
    }
}

/// A split: a subset of the vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SplitName {
    /// The vertices that the loss is computed on.
    Train,
    /// The vertices that choose the best epoch.
    Val,
    /// The vertices that the result is reported on.
    Test,
}
