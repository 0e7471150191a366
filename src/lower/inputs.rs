//! The data of a dataset that programs are bound to.

use std::sync::Arc;

use lapidary_kernels::Shared;

use super::KeptRows;
use crate::graph::Graph;
use crate::program::SplitName;

/// Features, one row per vertex.
#[derive(Clone, Debug)]
pub enum FeatureData {
    /// `[n, width]`.
    Dense {
        /// Row by row.
        data: Shared<f32>,
        /// Numbers per row.
        width: usize,
    },
    /// A CSR matrix of the non-zeros.
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

impl FeatureData {
    /// Returns features without columns, for models that read none.
    pub fn none() -> Self {
        Self::Dense { data: Vec::new().into(), width: 0 }
    }
}

/// The labels to be predicted.
#[derive(Clone, Debug)]
pub enum LabelData {
    /// Class ids, `[n]`.
    Classes(Shared<u32>),
    /// Multi-label targets, `[n, classes]`: 1 for each class that a vertex has, else 0.
    Targets(Shared<u8>),
}

/// Checked arrays over the same vertices.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// The graph, as in-edges.
    pub graph: Graph,
    /// Whether the graph equals its transpose.
    pub symmetric: bool,
    /// The weight of each edge, `[e]`, if edges have weights; else all weights are 1.
    pub edge_weights: Option<Shared<f32>>,
    /// Features.
    pub features: FeatureData,
    /// Labels.
    pub labels: LabelData,
    /// Split code of each vertex, `[n]`; see [`Inputs::split_code`].
    pub split: Shared<u32>,
    /// Number of labelled vertices per split, indexed by split code.
    pub labelled: [u64; 4],
    /// How much each class counts in the loss, `[classes]`, if not all count alike.
    pub class_weights: Option<Shared<f32>>,
    /// The rows of dense features that stay on each device while mini-batches train, if any do.
    pub kept: Option<Arc<KeptRows>>,
}

impl Inputs {
    /// Returns those of these vertices whose features do not stay on the devices, in their order.
    pub fn copied(&self, vertices: &[u32]) -> Vec<u32> {
        let stays = |v: u32| self.kept.as_ref().is_some_and(|kept| kept.place(v).is_some());
        vertices.iter().copied().filter(|&v| !stays(v)).collect()
    }

    /// Returns the code of a split in [`Inputs::split`]. Code 0 means no split.
    pub fn split_code(split: SplitName) -> u32 {
        match split {
            SplitName::Train => 1,
            SplitName::Val => 2,
            SplitName::Test => 3,
        }
    }
}
