//! Kernel calls as plain data: what a device is asked to compute, over which slots.

mod operands;
mod stored;

pub use lapidary_arrays::NO_LABEL;

use crate::float::Float;
use crate::memory::Slot;

/// A dense row-major matrix in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mat {
    /// Where it lies.
    pub slot: Slot,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// How its numbers are stored.
    pub float: Float,
}

impl Mat {
    /// An `f32` matrix.
    pub fn f32(slot: Slot, rows: usize, cols: usize) -> Self {
        Self { slot, rows, cols, float: Float::F32 }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols.saturating_mul(self.float.byte_count())
    }
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

/// What a [`Call::Fused`] does to each row of its output `[n, d]`, while the row is in a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowStep {
    /// Times its factor: [`Call::RowScale`] by f32 `[n]`.
    Scale(Slot),
    /// [`Call::AddBias`] of f32 `[d]`.
    AddBias(Slot),
    /// [`Call::Add`] of the same row of `[n, d]`, stored as the output.
    Add(Slot),
    /// [`Call::Relu`].
    Relu,
    /// [`Call::ReluGrad`], the row being the gradient, by the same row of `[n, d]`, stored as the output.
    ReluGrad(Slot),
    /// [`Call::Dropout`].
    Dropout {
        /// Which cells.
        key: DropoutKey,
        /// The clock.
        clock: Slot,
    },
}

/// One kernel call.
///
/// Letters: `n` rows, `d` columns, `e` edges. Unless it says otherwise a call overwrites its outputs, and no output
/// may be an input's slot. What changes from epoch to epoch is read from two small slots: the *clock*, u64
/// `[epoch, step]` (`step` counts optimizer steps from 1), and the learning rate, f32 `[1]`.
///
/// # Rounding
/// All matrices of a call are [stored](Mat::float) alike, but for sums: those of a [`Call::GatherWindow`] so far and the output
/// of a [`Call::LinearWeightGrad`] are f32, and a gather may write f32 whatever it reads. Numbers are widened to f32 when
/// they are read, computed with in f32 (sums over rows in f64), and rounded once, when a row is written. A GPU writes twice what a
/// [`Call::Fused`] makes of a product: before its steps, and behind every six of them.
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
    /// The share of a [`Call::Gather`] over the sources `first .. first + own.rows` alone, added to `sum`. Windows one after
    /// the other, each of which is given the one before's output, come to the same bits as the whole.
    GatherWindow {
        /// `n` rows, each of whose sources ascend; no halo.
        block: BlockSlots,
        /// f32 `[e]`, one factor an edge.
        weights: Option<Slot>,
        /// The first source at hand.
        first: usize,
        /// `[sources at hand, d]`.
        own: Mat,
        /// f32 `[n, d]`; absent, it is 0.
        sum: Option<Mat>,
        /// `[n, d]`.
        out: Mat,
    },
    /// A call that sums over rows, added to what it came to over other rows.
    Accumulate {
        /// [`Call::LinearWeightGrad`], [`Call::ColumnSum`], [`Call::LayerNormGainGrad`], [`Call::SoftmaxCrossEntropy`],
        /// [`Call::SigmoidCrossEntropy`], [`Call::CountCorrect`] or [`Call::CountMicro`].
        head: Box<Call>,
        /// Of the type and size of the head's output.
        sum: Slot,
    },
    /// `out[i] = x[rows[i]]`: the rows that other parts read, one after the other.
    Pack {
        /// `[n, d]`.
        x: Mat,
        /// u32 `[out.rows]`.
        rows: Slot,
        /// `[rows, d]`.
        out: Mat,
    },
    /// Rows that other parts packed, one part's after the other's: what [`crate::Device::fetch`] does, and never a launch. Other
    /// parts read `packed` at the same time.
    Fetch {
        /// `[any, d]`: what this part lends.
        packed: Slot,
        /// u32 `[out.rows]`: of each row of `out` the place in its owner's pack.
        rows: Slot,
        /// `[halo_sources, d]`.
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
        /// f32 `[d_out, d_in]`.
        out: Mat,
        /// Room for partial sums, [`linear_weight_grad_workspace_bytes`](crate::linear_weight_grad_workspace_bytes);
        /// absent if that is 0.
        workspace: Option<Slot>,
    },
    /// `out = x`, rounded: what a product reads of a weight where rows are not stored in f32.
    Round {
        /// f32 `[n, d]`.
        x: Mat,
        /// bf16 `[n, d]`.
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
    /// `out = parts[0], parts[1], ..`, one after the other.
    Concat {
        /// f32, and how many of them.
        parts: Vec<(Slot, usize)>,
        /// f32, as many as all parts together.
        out: Slot,
    },
    /// A call, and what other calls would do to its output's rows one after the other: the same bits, without the
    /// matrices between them.
    Fused {
        /// [`Call::Gather`], [`Call::Linear`], [`Call::LinearInputGrad`] or one that works cell by cell:
        /// [`Call::RowScale`], [`Call::AddBias`], [`Call::Add`], [`Call::Relu`], [`Call::ReluGrad`],
        /// [`Call::Dropout`].
        head: Box<Call>,
        /// In this order.
        steps: Vec<RowStep>,
    },
    /// Stochastic gradient descent as `torch.optim.SGD`: `g = grad + decay * param`;
    /// `m = momentum * m + g` (`m = g` at step 1); `param -= rate * m`. Without momentum `m` is `g`. The new values have
    /// slots of their own.
    Sgd {
        /// f32, of which `window` is updated.
        param: Slot,
        /// f32, as long as `param`.
        grad: Slot,
        /// f32 `m` of the window, and where its new value goes; present exactly with momentum.
        moment: Option<[Slot; 2]>,
        /// f32: the new values of the window.
        out: Slot,
        /// Which elements.
        window: Window,
        /// The clock.
        clock: Slot,
        /// The learning rate.
        rate: Slot,
        /// In `[0, 1)`.
        momentum: f64,
        /// L2 decay.
        weight_decay: f64,
    },
    /// Adam as `torch.optim.Adam`, or with `decoupled` as `torch.optim.AdamW`. The new values have slots of their own.
    Adam {
        /// f32, of which `window` is updated.
        param: Slot,
        /// f32, as long as `param`.
        grad: Slot,
        /// First moment of the window, f32.
        m: Slot,
        /// Second moment of the window, f32.
        v: Slot,
        /// f32: the new values, `m` and `v` of the window.
        out: [Slot; 3],
        /// Which elements.
        window: Window,
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

/// How many numbers the parts of a [`Call::Concat`] are together.
pub(crate) fn concat_len(parts: &[(Slot, usize)]) -> usize {
    parts.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len)) // refused later, if no array is that long
}

/// Elements of an array, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The first one's place.
    pub first: usize,
    /// How many.
    pub len: usize,
}

impl Window {
    /// The place after the last.
    pub fn end(&self) -> usize {
        self.first.saturating_add(self.len) // refused later, if no array is that long
    }
}

impl Call {
    /// The kernel's name, as it stands in traces and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gather { .. } | Self::GatherWindow { .. } => "gather",
            Self::Accumulate { head, .. } => head.name(),
            Self::Pack { .. } => "pack",
            Self::Fetch { .. } => "fetch",
            Self::RowScale { .. } => "row_scale",
            Self::Linear { .. } => "linear",
            Self::LinearInputGrad { .. } => "linear_input_grad",
            Self::LinearWeightGrad { .. } => "linear_weight_grad",
            Self::Round { .. } => "round",
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
            Self::Fused { head, .. } => match **head {
                Self::Gather { .. } | Self::GatherWindow { .. } => "fused_gather",
                Self::Linear { .. } => "fused_linear",
                Self::LinearInputGrad { .. } => "fused_linear_input_grad",
                _ => "fused_rows",
            },
            Self::Concat { .. } => "concat",
            Self::Sgd { .. } => "sgd",
            Self::Adam { .. } => "adam",
        }
    }

    /// The matrix that row steps can follow: that of a call which may be the head of a [`Call::Fused`].
    pub fn rows_out(&self) -> Option<Mat> {
        match *self {
            Self::Gather { out, .. }
            | Self::GatherWindow { out, .. }
            | Self::Linear { out, .. }
            | Self::LinearInputGrad { out, .. }
            | Self::RowScale { out, .. }
            | Self::AddBias { out, .. }
            | Self::Add { out, .. }
            | Self::Relu { out, .. }
            | Self::ReluGrad { out, .. }
            | Self::Dropout { out, .. } => Some(out),
            _ => None,
        }
    }

    /// A call that works cell by cell, as what it reads, the step that it does to each row of that, and where the rows go:
    /// so it may stand at the head of a chain of steps, or be one.
    pub fn as_row_step(&self) -> Option<(Mat, RowStep, Mat)> {
        match *self {
            Self::RowScale { x, scale, out } => Some((x, RowStep::Scale(scale), out)),
            Self::AddBias { x, bias, out } => Some((x, RowStep::AddBias(bias), out)),
            Self::Add { a, b, out } => Some((a, RowStep::Add(b.slot), out)),
            Self::Relu { x, out } => Some((x, RowStep::Relu, out)),
            Self::ReluGrad { grad, y, out } => Some((grad, RowStep::ReluGrad(y.slot), out)),
            Self::Dropout { x, out, key, clock } => Some((x, RowStep::Dropout { key, clock }, out)),
            _ => None,
        }
    }

    /// The sum over rows that the call makes, which an [`Call::Accumulate`] may add to: where it lies, and its numbers.
    pub fn summed(&self) -> Option<Summed> {
        match *self {
            Self::LinearWeightGrad { out, .. } => Some(Summed::Floats(out.slot, out.rows.saturating_mul(out.cols))),
            Self::ColumnSum { x, out } | Self::LayerNormGainGrad { x, out, .. } => Some(Summed::Floats(out, x.cols)),
            Self::SoftmaxCrossEntropy { loss, .. } | Self::SigmoidCrossEntropy { loss, .. } => {
                Some(Summed::Floats(loss, 1))
            }
            Self::CountCorrect { out, .. } => Some(Summed::Counts(out, 2)),
            Self::CountMicro { out, .. } => Some(Summed::Counts(out, 3)),
            _ => None,
        }
    }
}

/// A sum over rows: its slot, and how many numbers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summed {
    /// f32.
    Floats(Slot, usize),
    /// u64.
    Counts(Slot, usize),
}
