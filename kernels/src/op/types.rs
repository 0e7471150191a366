//! The types of tensors whose sizes are not known yet: what shapes are inferred from.

use crate::float::Float;

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

/// Element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// 32-bit unsigned.
    U32,
    /// 64-bit unsigned.
    U64,
    /// 8-bit unsigned.
    U8,
}

impl DType {
    /// How a matrix of it is stored, if it is of floating-point numbers.
    pub fn float(self) -> Option<Float> {
        match self {
            Self::F32 => Some(Float::F32),
            Self::Bf16 => Some(Float::Bf16),
            Self::U32 | Self::U64 | Self::U8 => None,
        }
    }

    /// Size of one element, in bytes.
    pub fn byte_count(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U8 => "u8",
        })
    }
}

impl From<Float> for DType {
    fn from(float: Float) -> Self {
        match float {
            Float::F32 => Self::F32,
            Float::Bf16 => Self::Bf16,
        }
    }
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
