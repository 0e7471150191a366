//! What a data set gives to the programs that are bound to it.

use lapidary_kernels::Shared;

use crate::graph::Graph;
use crate::program::SplitName;

/// One row of features a vertex.
#[derive(Clone, Debug)]
pub enum FeatureData {
    /// `[n, width]`.
    Dense {
        /// Row by row.
        data: Shared<f32>,
        /// Numbers a row.
        width: usize,
    },
    /// A CSR of the non-zeros.
    Sparse {
        /// `[n + 1]`.
        indptr: Shared<u64>,
        /// Columns, `[non-zeros]`.
        indices: Shared<u32>,
        /// `[non-zeros]`.
        values: Shared<f32>,
        /// Number of columns.
        width: usize,
    },
}

/// What is to be predicted.
#[derive(Clone, Debug)]
pub enum LabelData {
    /// Class ids, `[n]`.
    Classes(Shared<u32>),
    /// 1 for each class that a vertex has, else 0: `[n, classes]`.
    Targets(Shared<u8>),
}

/// Checked arrays, all over the same vertices.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// In-edges.
    pub graph: Graph,
    /// Whether the graph equals its transpose.
    pub symmetric: bool,
    /// Features.
    pub features: FeatureData,
    /// Labels.
    pub labels: LabelData,
    /// Which split each vertex belongs to, `[n]`; see [`Inputs::split_code`].
    pub split: Shared<u32>,
    /// Labelled vertices of each split, by its code.
    pub labelled: [u64; 4],
}

impl Inputs {
    /// How a split is written in [`Inputs::split`]; 0 is no split.
    pub fn split_code(split: SplitName) -> u32 {
        match split {
            SplitName::Train => 1,
            SplitName::Val => 2,
            SplitName::Test => 3,
        }
    }
}
