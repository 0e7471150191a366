//! The words of a program: row spaces, types, tensors and operations.

use lapidary_kernels::Float;

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

/// A power of the in-degree that scales a vertex's row. A vertex without in-edges gets 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Degree {
    /// `degree^-1/2`.
    InverseRoot {
        /// Counted with exactly one self-loop at every vertex.
        self_loops: bool,
    },
    /// `1 / degree`.
    Inverse {
        /// Counted with exactly one self-loop at every vertex.
        self_loops: bool,
    },
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

/// Where a tensor comes from that no operation produces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Dense features.
    Features,
    /// The values of sparse features, in the order of [`BlockSpec::Features`].
    FeatureValues,
    /// For each edge of the transposed block, where it was in this one.
    EdgePermutation(BlockSpec),
    /// One factor a vertex.
    Scale(Degree),
    /// The identity matrix of this width.
    Identity(usize),
    /// Class ids.
    Labels,
    /// For each vertex and class, whether it has it.
    Targets,
    /// Which split each vertex belongs to.
    Split,
    /// A trained parameter.
    Parameter(String),
    /// What an optimizer remembers of a parameter: its `which`-th moment.
    Moment {
        /// The parameter's name.
        parameter: String,
        /// From 1.
        which: u8,
    },
    /// `[epoch, step]`.
    Clock,
    /// The learning rate.
    LearningRate,
}

/// One value of the dataflow.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// A name for people: traces, plans, errors.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// The same in every epoch.
    pub constant: bool,
    /// It depends on a parameter, so that the loss has a gradient for it that someone needs.
    pub wants_gradient: bool,
    /// Where it comes from; `None` for an operation's output.
    pub origin: Option<Origin>,
}

/// One operation. Its operands are tensors, in the order that each variant gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `(x) -> y`: the sum over a block's sources.
    Gather {
        /// Over this block.
        block: BlockSpec,
    },
    /// `(weights, x) -> y`: the weighted sum over a block's sources.
    WeightedGather {
        /// Over this block.
        block: BlockSpec,
    },
    /// `(x, scale) -> y`: each row times its factor.
    RowScale,
    /// `(x, w) -> x w^T`.
    Linear,
    /// `(dy, w) -> dy w`.
    LinearInputGrad,
    /// `(dy, x) -> dy^T x`.
    LinearWeightGrad,
    /// `(x) -> x` in bf16, of a parameter: what is multiplied with rows that are stored so.
    Round,
    /// `(x) -> x^T`, of a parameter.
    Transpose,
    /// `(x, b) -> x + b` in every row.
    AddBias,
    /// `(x) -> the sum of its rows`.
    ColumnSum,
    /// `(a, b) -> a + b`.
    Add,
    /// `(x) -> max(x, 0)`.
    Relu,
    /// `(dy, y) -> dy where y > 0`.
    ReluGrad,
    /// `(x, gain, bias) -> y`: each row centred, divided by its standard deviation, scaled and shifted.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// `(dy, x, gain) -> dx`.
    LayerNormInputGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// `(dy, x) -> dgain`.
    LayerNormGainGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// `(x, clock) -> y`: drops cells of vertex rows, or of the values of sparse features.
    Dropout {
        /// Share of cells that become 0.
        rate: f32,
        /// Which dropout of the model this is.
        salt: u32,
    },
    /// `(values) -> values` in the order of the transposed block.
    PermuteEdges {
        /// The block whose edges the values belong to.
        block: BlockSpec,
    },
    /// `(logits, labels, split) -> loss`: mean cross-entropy over a split.
    SoftmaxCrossEntropy {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(logits, labels, split) -> dlogits`.
    SoftmaxCrossEntropyGrad {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(logits, labels, split) -> [correct, counted]`.
    CountCorrect {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(logits, targets, split) -> loss`: mean sigmoid cross-entropy over a split and all classes.
    SigmoidCrossEntropy {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(logits, targets, split) -> dlogits`.
    SigmoidCrossEntropyGrad {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(logits, targets, split) -> [true positives, false positives, false negatives]`.
    CountMicro {
        /// Over these vertices.
        split: SplitName,
    },
    /// `(operands of head, then of each step all but its first) -> y`: the head, and what each step makes of the result
    /// before it, which is its first operand. Only the pass `fuse` makes these.
    Fused {
        /// Any operation that [`Op::takes_steps`].
        head: Box<Op>,
        /// Operations that are a [row step](Op::is_row_step), in order.
        steps: Vec<Op>,
    },
    /// `(param, grad, clock, rate) -> param'`, or with momentum `(param, grad, clock, rate, m) -> (param', m')`.
    Sgd {
        /// In `[0, 1)`.
        momentum: f64,
        /// L2 decay.
        weight_decay: f64,
    },
    /// `(param, grad, clock, rate, m, v) -> (param', m', v')`.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// L2 decay, or shrinkage when decoupled.
        weight_decay: f64,
        /// AdamW.
        decoupled: bool,
    },
}

impl Op {
    /// Whether it works on the rows of its first operand one by one, so that it can follow another operation in one kernel.
    pub fn is_row_step(&self) -> bool {
        matches!(self, Self::RowScale | Self::AddBias | Self::Add | Self::Relu | Self::ReluGrad | Self::Dropout { .. })
    }

    /// Whether row steps can follow it in one kernel.
    pub fn takes_steps(&self) -> bool {
        let sums = matches!(self, Self::Gather { .. } | Self::WeightedGather { .. });
        sums || matches!(self, Self::Linear | Self::LinearInputGrad) || self.is_row_step()
    }

    /// The operation's name, as in traces and plans.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gather { .. } => "gather",
            Self::WeightedGather { .. } => "weighted_gather",
            Self::RowScale => "row_scale",
            Self::Linear => "linear",
            Self::LinearInputGrad => "linear_input_grad",
            Self::LinearWeightGrad => "linear_weight_grad",
            Self::Round => "round",
            Self::Transpose => "transpose",
            Self::AddBias => "add_bias",
            Self::ColumnSum => "column_sum",
            Self::Add => "add",
            Self::Relu => "relu",
            Self::ReluGrad => "relu_grad",
            Self::LayerNorm { .. } => "layer_norm",
            Self::LayerNormInputGrad { .. } => "layer_norm_input_grad",
            Self::LayerNormGainGrad { .. } => "layer_norm_gain_grad",
            Self::Dropout { .. } => "dropout",
            Self::PermuteEdges { .. } => "permute_edges",
            Self::SoftmaxCrossEntropy { .. } => "softmax_cross_entropy",
            Self::SoftmaxCrossEntropyGrad { .. } => "softmax_cross_entropy_grad",
            Self::CountCorrect { .. } => "count_correct",
            Self::SigmoidCrossEntropy { .. } => "sigmoid_cross_entropy",
            Self::SigmoidCrossEntropyGrad { .. } => "sigmoid_cross_entropy_grad",
            Self::CountMicro { .. } => "count_micro",
            Self::Fused { .. } => "fused",
            Self::Sgd { .. } => "sgd",
            Self::Adam { .. } => "adam",
        }
    }
}
