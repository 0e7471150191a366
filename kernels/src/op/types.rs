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
    /// Edges of a mini-batch into the vertices of one of its levels.
    Batch {
        /// Which edges.
        edges: BatchEdges,
        /// The level of the rows.
        level: u8,
        /// Whether every edge is reversed.
        transposed: bool,
    },
}

/// The edges of a block of a mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BatchEdges {
    /// Those that were drawn, from the vertices of the level before.
    Drawn {
        /// Whether every row has exactly one self-loop beside them.
        self_loops: bool,
    },
    /// From each vertex to itself, from the level before: a gather over them takes the rows of the vertices that stay.
    Own,
    /// The non-zeros of the sparse features of the level's vertices: sources are feature columns.
    Features {
        /// Number of feature columns.
        width: usize,
    },
    /// From the row of each vertex among those that stay on the device, if it is one of them.
    Kept,
    /// From the row of each vertex among those that are copied to the device for the batch, if it is one of them.
    Copied,
}

impl BlockSpec {
    /// Returns the same block with every edge reversed.
    pub fn transpose(self) -> Self {
        match self {
            Self::Graph { self_loops, transposed } => Self::Graph { self_loops, transposed: !transposed },
            Self::Features { width, transposed } => Self::Features { width, transposed: !transposed },
            Self::Batch { edges, level, transposed } => Self::Batch { edges, level, transposed: !transposed },
        }
    }

    /// Whether every edge is reversed.
    pub fn is_transposed(self) -> bool {
        match self {
            Self::Graph { transposed, .. } | Self::Features { transposed, .. } | Self::Batch { transposed, .. } => {
                transposed
            }
        }
    }

    /// Returns the row space of the block's rows.
    pub fn rows(self) -> RowSpace {
        match self {
            Self::Features { width, transposed: true }
            | Self::Batch { edges: BatchEdges::Features { width }, transposed: true, .. } => RowSpace::Param(width),
            Self::Batch { edges: BatchEdges::Kept, transposed: true, .. } => RowSpace::Kept,
            Self::Batch { edges: BatchEdges::Copied, transposed: true, .. } => RowSpace::Copied,
            Self::Batch { level, transposed: true, .. } => RowSpace::Level(level - 1),
            Self::Batch { level, .. } => RowSpace::Level(level),
            Self::Graph { .. } | Self::Features { .. } => RowSpace::Vertices,
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
    /// One row per vertex of a level of a mini-batch. Each level has the first vertices of the level before it; the last
    /// one has the seeds.
    Level(u8),
    /// One row per vertex whose features stay on the device while mini-batches train.
    Kept,
    /// One row per vertex of a mini-batch whose features are copied to the device.
    Copied,
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

impl RowSpace {
    /// Whether each row belongs to a vertex.
    pub fn is_of_vertices(self) -> bool {
        matches!(self, Self::Vertices | Self::Level(_))
    }
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
