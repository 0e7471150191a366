//! Tensors of a program, and where they come from.

use lapidary_kernels::op::{BlockSpec, LoopWeight, TensorType};

/// A power of the in-degree, used to scale a vertex's row. It is 0 for a vertex without in-edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Degree {
    /// `degree^-1/2`.
    InverseRoot {
        /// Whether the degree includes exactly one self-loop per vertex.
        self_loops: bool,
        /// Whether the degree is the sum of the weights of the edges, instead of their number.
        weighted: bool,
    },
    /// `1 / degree`.
    Inverse {
        /// Whether the degree includes exactly one self-loop per vertex.
        self_loops: bool,
        /// Whether the degree is the sum of the weights of the edges, instead of their number.
        weighted: bool,
    },
}

/// The origin of a tensor that no operation produces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Dense features.
    Features,
    /// Rows of dense features that stay on the device while mini-batches train.
    KeptFeatures,
    /// Rows of dense features of a mini-batch that do not stay on the device.
    CopiedFeatures,
    /// A learned row for each vertex, in place of features. The rows are kept on the host and given to each run.
    Embedding,
    /// Rows of a tensor that an earlier stage made: see [`Stages`](super::Stages).
    Made(usize),
    /// The values of sparse features, in the order of [`BlockSpec::Features`].
    FeatureValues,
    /// The edge permutation: for each edge of the transposed block, its index in this block.
    EdgePermutation(BlockSpec),
    /// One factor per vertex.
    Scale(Degree),
    /// The weight of each edge of a block of the graph.
    EdgeWeights(BlockSpec, LoopWeight),
    /// The global ids of the sources of a block of the graph.
    SourceIds(BlockSpec),
    /// The identity matrix of this width.
    Identity(usize),
    /// The matrix `[width, heads * width]` with which a product is the mean over heads.
    HeadMean {
        /// Number of heads.
        heads: usize,
        /// Columns of a head.
        width: usize,
    },
    /// The rows that the vertices of a level of a mini-batch have of another origin.
    OfBatch(Box<Origin>, u8),
    /// Class ids.
    Labels,
    /// For each vertex and class, whether the vertex has the class.
    Targets,
    /// The split code of each vertex.
    Split,
    /// How much each class counts in the loss: one row of this many columns. Those without a class have 0.
    ClassWeights(usize),
    /// A trained parameter.
    Parameter(String),
    /// The `which`-th moment of a parameter, kept by the optimizer.
    Moment {
        /// Name of the parameter.
        parameter: String,
        /// Number of the moment, from 1.
        which: u8,
    },
    /// Some rows of a parameter or of a moment, which is kept in several pieces.
    Rows {
        /// The whole.
        of: Box<Origin>,
        /// The first row.
        first: usize,
    },
    /// `[epoch, step]`.
    Clock,
    /// The learning rate.
    LearningRate,
}

impl Origin {
    /// Whether it is given to each run: new in each mini-batch, or in each evaluation.
    pub fn is_of_batch(&self) -> bool {
        match self {
            Self::OfBatch(..) | Self::CopiedFeatures | Self::Embedding => true,
            Self::EdgePermutation(block) | Self::EdgeWeights(block, _) | Self::SourceIds(block) => {
                matches!(block, BlockSpec::Batch { .. })
            }
            _ => false,
        }
    }

    /// Whether it has learned rows of vertices.
    pub fn is_embedding(&self) -> bool {
        match self {
            Self::Embedding => true,
            Self::OfBatch(origin, _) => origin.is_embedding(),
            _ => false,
        }
    }

    /// Whether it is learned, so that its gradient is needed.
    pub(super) fn is_learned(&self) -> bool {
        matches!(self, Self::Parameter(_)) || self.is_embedding()
    }

    /// Returns the origin of which it has some rows; itself if it has all.
    pub fn whole(&self) -> &Self {
        if let Self::Rows { of, .. } = self { of } else { self }
    }

    /// Whether it is carried from epoch to epoch.
    pub fn is_carried(&self) -> bool {
        matches!(self.whole(), Self::Parameter(_) | Self::Moment { .. } | Self::Clock | Self::LearningRate)
    }

    /// Whether it changes from one run to the next.
    pub(super) fn varies(&self) -> bool {
        self.is_carried() || self.is_of_batch()
    }
}

/// One value of the dataflow.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// A readable name, for traces, plans and errors.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// Whether it is the same in every epoch.
    pub constant: bool,
    /// Whether it depends on a parameter, so that its gradient is needed.
    pub wants_gradient: bool,
    /// The origin; `None` for an operation's output.
    pub origin: Option<Origin>,
}
