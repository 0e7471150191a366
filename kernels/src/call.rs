//! Kernel calls as plain data: what a device is asked to compute, over which slots.

use crate::memory::Slot;

/// A dense row-major `f32` matrix in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mat {
    /// Where it lies.
    pub slot: Slot,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
}

/// A block (see [`crate::BlockView`]) in two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSlots {
    /// u64 `[rows + 1]`.
    pub indptr: Slot,
    /// u32 `[edges]`.
    pub indices: Slot,
    /// Rows that gather.
    pub rows: usize,
    /// Sources in the own matrix.
    pub own_sources: usize,
    /// Sources in the halo.
    pub halo_sources: usize,
    /// Number of edges.
    pub edges: usize,
}

/// What decides which cells a dropout keeps, beside the clock's epoch: see [`crate::random`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// Which dropout of the model this is.
    pub op: u32,
    /// The global id of the matrix's first row.
    pub first_row: u64,
    /// Share of cells that become 0, in `[0, 1)`; the others are scaled by `1 / (1 - rate)`.
    pub rate: f32,
}

/// One kernel call.
///
/// Letters: `n` rows, `d` columns, `e` edges. Unless it says otherwise a call overwrites its outputs, and no output
/// may be an input's slot. What changes from epoch to epoch is read from two small slots: the *clock*, u64
/// `[epoch, step]` (`step` counts optimizer steps from 1), and the learning rate, f32 `[1]`.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// `out[v] = sum over sources u of v, in order, of weights[edge] * x[u]`; without weights, of `x[u]`.
    Gather {
        /// `n` rows.
        block: BlockSlots,
        /// f32 `[e]`, one factor an edge.
        weights: Option<Slot>,
        /// `[own_sources, d]`.
        own: Mat,
        /// `[halo_sources, d]`; absent exactly when the block has no halo.
        halo: Option<Mat>,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out[v] = scale[v] * x[v]`.
    RowScale {
        /// `[n, d]`.
        x: Mat,
        /// f32 `[n]`.
        scale: Slot,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out = x * weight^T`.
    Linear {
        /// `[n, d_in]`.
        x: Mat,
        /// `[d_out, d_in]`.
        weight: Mat,
        /// `[n, d_out]`.
        out: Mat,
    },
    /// `out = grad * weight`: the gradient of [`Call::Linear`] for its input.
    LinearInputGrad {
        /// `[n, d_out]`.
        grad: Mat,
        /// `[d_out, d_in]`.
        weight: Mat,
        /// `[n, d_in]`.
        out: Mat,
    },
    /// `out = grad^T * x`: the gradient of [`Call::Linear`] for its weight.
    LinearWeightGrad {
        /// `[n, d_out]`.
        grad: Mat,
        /// `[n, d_in]`.
        x: Mat,
        /// `[d_out, d_in]`.
        out: Mat,
    },
    /// `out = x^T`.
    Transpose {
        /// `[n, d]`.
        x: Mat,
        /// `[d, n]`.
        out: Mat,
    },
    /// `out[v] = x[v] + bias`.
    AddBias {
        /// `[n, d]`.
        x: Mat,
        /// f32 `[d]`.
        bias: Slot,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out = sum over rows of x[v]`: the gradient of [`Call::AddBias`] for its bias.
    ColumnSum {
        /// `[n, d]`.
        x: Mat,
        /// f32 `[d]`.
        out: Slot,
    },
    /// `out = a + b`.
    Add {
        /// `[n, d]`.
        a: Mat,
        /// `[n, d]`.
        b: Mat,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out = max(x, 0)`.
    Relu {
        /// `[n, d]`.
        x: Mat,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out = grad where y > 0, else 0`: the gradient of [`Call::Relu`], from its output `y`.
    ReluGrad {
        /// `[n, d]`.
        grad: Mat,
        /// `[n, d]`: what [`Call::Relu`] wrote.
        y: Mat,
        /// `[n, d]`.
        out: Mat,
    },
    /// Per row: `out = (x - mean) / sqrt(variance + eps) * gain + bias`, with the biased variance, as
    /// `torch.nn.LayerNorm`.
    LayerNorm {
        /// `[n, d]`.
        x: Mat,
        /// f32 `[d]`.
        gain: Slot,
        /// f32 `[d]`.
        bias: Slot,
        /// Added to the variance.
        eps: f32,
        /// `[n, d]`.
        out: Mat,
    },
    /// The gradient of [`Call::LayerNorm`] for its input; the rows' statistics are computed again.
    LayerNormInputGrad {
        /// `[n, d]`.
        grad: Mat,
        /// `[n, d]`: what [`Call::LayerNorm`] read.
        x: Mat,
        /// f32 `[d]`.
        gain: Slot,
        /// Added to the variance.
        eps: f32,
        /// `[n, d]`.
        out: Mat,
    },
    /// `out = sum over rows of grad * (x - mean) / sqrt(variance + eps)`: the gradient of [`Call::LayerNorm`] for its
    /// gain. That for its bias is [`Call::ColumnSum`].
    LayerNormGainGrad {
        /// `[n, d]`.
        grad: Mat,
        /// `[n, d]`: what [`Call::LayerNorm`] read.
        x: Mat,
        /// Added to the variance.
        eps: f32,
        /// f32 `[d]`.
        out: Slot,
    },
    /// `out = x / (1 - rate)` in the cells that are kept, else 0. It is its own gradient.
    Dropout {
        /// `[n, d]`.
        x: Mat,
        /// `[n, d]`.
        out: Mat,
        /// Which cells.
        key: DropoutKey,
        /// The clock.
        clock: Slot,
    },
    /// [`Call::Dropout`] on the values of a sparse matrix in CSR: the same cells as of the dense one.
    SparseDropout {
        /// Row `v`'s cells are at the columns `indices`.
        block: BlockSlots,
        /// f32 `[e]`.
        values: Slot,
        /// f32 `[e]`.
        out: Slot,
        /// Which cells.
        key: DropoutKey,
        /// The clock.
        clock: Slot,
    },
    /// `out[i] = values[permutation[i]]`: edge values in the order of the transposed block.
    PermuteEdges {
        /// f32 `[edges]`.
        values: Slot,
        /// u64 `[edges]`.
        permutation: Slot,
        /// f32 `[edges]`.
        out: Slot,
        /// Number of edges.
        edges: usize,
    },
    /// Mean cross-entropy of the softmax of the selected rows:
    /// `loss = 1 / count * sum over selected v of -log softmax(logits[v])[labels[v]]`.
    SoftmaxCrossEntropy {
        /// `[n, classes]`.
        logits: Mat,
        /// u32 `[n]`; [`NO_LABEL`] marks a row without a label, which is never selected.
        labels: Slot,
        /// u32 `[n]`: which split each row belongs to.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// What the sum is divided by; 0 gives a loss of 0.
        count: u64,
        /// f32 `[1]`.
        loss: Slot,
    },
    /// The gradient of [`Call::SoftmaxCrossEntropy`] for the logits: `(softmax - onehot) / count` in selected rows,
    /// 0 in the others.
    SoftmaxCrossEntropyGrad {
        /// `[n, classes]`.
        logits: Mat,
        /// u32 `[n]`.
        labels: Slot,
        /// u32 `[n]`.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// What the sum was divided by.
        count: u64,
        /// `[n, classes]`.
        out: Mat,
    },
    /// `out = [selected rows whose largest logit (the first on a tie) is at the label, selected rows]`.
    CountCorrect {
        /// `[n, classes]`.
        logits: Mat,
        /// u32 `[n]`.
        labels: Slot,
        /// u32 `[n]`.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// u64 `[2]`.
        out: Slot,
    },
    /// Mean binary cross-entropy of the sigmoid over all cells `z` of the selected rows, as
    /// `torch.nn.BCEWithLogitsLoss`:
    /// `loss = 1 / (count * classes) * sum of max(z, 0) - z * t + ln(1 + exp(-|z|))`.
    SigmoidCrossEntropy {
        /// `[n, classes]`.
        logits: Mat,
        /// u8 `[n, classes]`, row by row: 0 or 1; what is neither counts as 1.
        targets: Slot,
        /// u32 `[n]`: which split each row belongs to.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// Number of rows that the sum is divided by; 0 gives a loss of 0.
        count: u64,
        /// f32 `[1]`.
        loss: Slot,
    },
    /// The gradient of [`Call::SigmoidCrossEntropy`] for the logits: `(sigmoid(z) - t) / (count * classes)` in selected
    /// rows, 0 in the others.
    SigmoidCrossEntropyGrad {
        /// `[n, classes]`.
        logits: Mat,
        /// u8 `[n, classes]`, row by row: 0 or 1.
        targets: Slot,
        /// u32 `[n]`.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// Number of rows that the sum was divided by.
        count: u64,
        /// `[n, classes]`.
        out: Mat,
    },
    /// `out = [true positives, false positives, false negatives]` over all cells of the selected rows. A cell is
    /// positive exactly if its logit is above 0, so NaN is not.
    CountMicro {
        /// `[n, classes]`.
        logits: Mat,
        /// u8 `[n, classes]`, row by row: 0 or 1.
        targets: Slot,
        /// u32 `[n]`.
        split: Slot,
        /// Rows of this split are selected.
        select: u32,
        /// u64 `[3]`.
        out: Slot,
    },
    /// Stochastic gradient descent as `torch.optim.SGD`: `g = grad + decay * param`;
    /// `m = momentum * m + g` (`m = g` at step 1); `param -= rate * m`. Without momentum `m` is `g`.
    Sgd {
        /// f32, read and written.
        param: Slot,
        /// f32.
        grad: Slot,
        /// f32, read and written; present exactly with momentum.
        moment: Option<Slot>,
        /// Number of elements.
        len: usize,
        /// The clock.
        clock: Slot,
        /// The learning rate.
        rate: Slot,
        /// In `[0, 1)`.
        momentum: f64,
        /// L2 decay.
        weight_decay: f64,
    },
    /// Adam as `torch.optim.Adam`, or with `decoupled` as `torch.optim.AdamW`.
    Adam {
        /// f32, read and written.
        param: Slot,
        /// f32.
        grad: Slot,
        /// First moment, f32, read and written.
        m: Slot,
        /// Second moment, f32, read and written.
        v: Slot,
        /// Number of elements.
        len: usize,
        /// The clock.
        clock: Slot,
        /// The learning rate.
        rate: Slot,
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// L2 decay, added to the gradient; with `decoupled`, `param` shrinks by `rate * weight_decay` first.
        weight_decay: f64,
        /// AdamW.
        decoupled: bool,
    },
}

/// The label of a row that has none.
pub const NO_LABEL: u32 = u32::MAX;

impl Call {
    /// The kernel's name, as it stands in traces and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gather { .. } => "gather",
            Self::RowScale { .. } => "row_scale",
            Self::Linear { .. } => "linear",
            Self::LinearInputGrad { .. } => "linear_input_grad",
            Self::LinearWeightGrad { .. } => "linear_weight_grad",
            Self::Transpose { .. } => "transpose",
            Self::AddBias { .. } => "add_bias",
            Self::ColumnSum { .. } => "column_sum",
            Self::Add { .. } => "add",
            Self::Relu { .. } => "relu",
            Self::ReluGrad { .. } => "relu_grad",
            Self::LayerNorm { .. } => "layer_norm",
            Self::LayerNormInputGrad { .. } => "layer_norm_input_grad",
            Self::LayerNormGainGrad { .. } => "layer_norm_gain_grad",
            Self::Dropout { .. } => "dropout",
            Self::SparseDropout { .. } => "sparse_dropout",
            Self::PermuteEdges { .. } => "permute_edges",
            Self::SoftmaxCrossEntropy { .. } => "softmax_cross_entropy",
            Self::SoftmaxCrossEntropyGrad { .. } => "softmax_cross_entropy_grad",
            Self::CountCorrect { .. } => "count_correct",
            Self::SigmoidCrossEntropy { .. } => "sigmoid_cross_entropy",
            Self::SigmoidCrossEntropyGrad { .. } => "sigmoid_cross_entropy_grad",
            Self::CountMicro { .. } => "count_micro",
            Self::Sgd { .. } => "sgd",
            Self::Adam { .. } => "adam",
        }
    }

    /// Every slot that the call reads or writes; some more than once.
    pub fn slots(&self) -> Vec<Slot> {
        match *self {
            Self::Gather { block, weights, own, halo, out } => {
                let optional = weights.into_iter().chain(halo.map(|h| h.slot));
                [block.indptr, block.indices, own.slot, out.slot].into_iter().chain(optional).collect()
            }
            Self::RowScale { x, scale, out } => vec![x.slot, scale, out.slot],
            Self::Linear { x, weight, out } => vec![x.slot, weight.slot, out.slot],
            Self::LinearInputGrad { grad, weight, out } => vec![grad.slot, weight.slot, out.slot],
            Self::LinearWeightGrad { grad, x, out } => vec![grad.slot, x.slot, out.slot],
            Self::Transpose { x, out } | Self::Relu { x, out } => vec![x.slot, out.slot],
            Self::AddBias { x, bias, out } => vec![x.slot, bias, out.slot],
            Self::ColumnSum { x, out } => vec![x.slot, out],
            Self::Add { a, b, out } => vec![a.slot, b.slot, out.slot],
            Self::ReluGrad { grad, y, out } => vec![grad.slot, y.slot, out.slot],
            Self::LayerNorm { x, gain, bias, out, .. } => vec![x.slot, gain, bias, out.slot],
            Self::LayerNormInputGrad { grad, x, gain, out, .. } => vec![grad.slot, x.slot, gain, out.slot],
            Self::LayerNormGainGrad { grad, x, out, .. } => vec![grad.slot, x.slot, out],
            Self::Dropout { x, out, clock, .. } => vec![x.slot, out.slot, clock],
            Self::SparseDropout { block, values, out, clock, .. } => {
                vec![block.indptr, block.indices, values, out, clock]
            }
            Self::PermuteEdges { values, permutation, out, .. } => vec![values, permutation, out],
            Self::SoftmaxCrossEntropy { logits, labels, split, loss, .. } => vec![logits.slot, labels, split, loss],
            Self::SoftmaxCrossEntropyGrad { logits, labels, split, out, .. } => {
                vec![logits.slot, labels, split, out.slot]
            }
            Self::CountCorrect { logits, labels, split, out, .. } => vec![logits.slot, labels, split, out],
            Self::SigmoidCrossEntropy { logits, targets, split, loss, .. } => vec![logits.slot, targets, split, loss],
            Self::SigmoidCrossEntropyGrad { logits, targets, split, out, .. } => {
                vec![logits.slot, targets, split, out.slot]
            }
            Self::CountMicro { logits, targets, split, out, .. } => vec![logits.slot, targets, split, out],
            Self::Sgd { param, grad, moment, clock, rate, .. } => {
                [param, grad, clock, rate].into_iter().chain(moment).collect()
            }
            Self::Adam { param, grad, m, v, clock, rate, .. } => vec![param, grad, m, v, clock, rate],
        }
    }
}
