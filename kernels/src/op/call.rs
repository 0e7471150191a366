//! Kernel calls as plain data: an operation and the slots that it works on.

pub use lapidary_arrays::NO_LABEL;

use crate::memory::Slot;
use crate::op::{AttentionPass, BlockSpec, Cost, DType, EdgeWeight, Gather, Move, Op, RowStep, Stored};
use crate::random::DropoutKey;
use crate::storage_type::StorageType;

/// A dense row-major matrix in a slot. A vector is a matrix with a single row or column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mat {
    /// The slot that holds it.
    pub slot: Slot,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
}

impl Mat {
    /// Returns an `f32` matrix.
    pub fn f32(slot: Slot, rows: usize, cols: usize) -> Self {
        Self { slot, rows, cols, dtype: DType::F32 }
    }

    /// Returns the storage type of the matrix; `f32` if its elements are not floating-point numbers.
    pub fn float(&self) -> StorageType {
        self.dtype.float().unwrap_or_default()
    }

    /// Returns the bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols.saturating_mul(self.dtype.byte_count() as usize)
    }

    /// Returns the number of elements. The product saturates; a size that no array can hold is rejected later.
    pub fn numbers(&self) -> usize {
        self.rows.saturating_mul(self.cols)
    }
}

/// A block (see [`crate::BlockView`]) stored in two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSlots {
    /// u64 `[rows + 1]`.
    pub indptr: Slot,
    /// u32 `[edges]`.
    pub indices: Slot,
    /// Number of rows of the block: the destinations.
    pub rows: usize,
    /// Number of sources in the own matrix.
    pub own_sources: usize,
    /// Number of sources in the halo.
    pub halo_sources: usize,
    /// Number of edges.
    pub edges: usize,
}

/// Facts about the run and the part that a call needs beside its operands. Each operation reads only the fields that
/// concern it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Seed of the run, for dropout.
    pub seed: u64,
    /// Global id of the first row, for dropout.
    pub first_row: u64,
    /// Split code of the selected rows, for losses.
    pub select: u32,
    /// Number of rows that a loss is the mean over.
    pub count: u64,
    /// Elements of a parameter that an optimizer step updates.
    pub window: Window,
}

/// A range of consecutive elements of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Index of the first element.
    pub first: usize,
    /// Number of elements.
    pub len: usize,
}

impl Window {
    /// Returns the index after the last element.
    pub fn end(&self) -> usize {
        self.first.saturating_add(self.len) // saturates; a length that no array can hold is rejected later
    }
}

/// One kernel call: an operation over slots.
///
/// A call overwrites its outputs, unless its documentation says otherwise. No output may share a slot with an input.
/// Values that change from epoch to epoch are read from two small operands: the *clock*, u64 `[epoch, step]` (`step`
/// counts optimizer steps from 1), and the learning rate, f32 `[1]`.
///
/// # Rounding
/// All matrices of a call have the same storage type, except sums. The running sum of a windowed gather and the output
/// of a [`Linear::WeightGrad`](crate::op::Linear::WeightGrad) are f32, and a gather may write f32 whatever it reads.
/// Kernels widen numbers to f32 when they read them, compute in f32 (sums over rows in f64), and round once, when they
/// write a row. On a GPU, an [`Op::Fused`] also writes and rounds its rows after every six steps and, if its head is a
/// product, before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// Matrices that the call reads, in the order of the operation's record.
    pub inputs: Vec<Mat>,
    /// Matrices that the call writes, in the order of the operation's record.
    pub outputs: Vec<Mat>,
    /// The block of a gather or of an edge operation.
    pub block: Option<BlockSlots>,
    /// Sources of a gather that other parts own; absent exactly when the block has no halo.
    pub halo: Option<Mat>,
    /// Further sources of a windowed gather, in order after those of the first input. The call then writes f32.
    pub more_sources: Vec<Mat>,
    /// For a windowed gather, the first source in the window.
    pub first_source: Option<usize>,
    /// Result over other rows or other sources, to which this call adds its own.
    pub sum: Option<Mat>,
    /// Workspace for partial sums.
    pub workspace: Option<Slot>,
    /// Run and part of the call.
    pub part: Part,
}

/// An operand of a new call.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// An operand with its sizes.
    Mat(Mat),
    /// A slot alone. Its sizes and type are derived from the other operands.
    Slot(Slot),
}

impl From<Mat> for Arg {
    fn from(mat: Mat) -> Self {
        Self::Mat(mat)
    }
}

impl From<Slot> for Arg {
    fn from(slot: Slot) -> Self {
        Self::Slot(slot)
    }
}

impl Call {
    /// Creates a call of an operation over these inputs and outputs.
    pub fn new<A: Into<Arg>, B: Into<Arg>>(
        op: impl Into<Op>,
        inputs: impl IntoIterator<Item = A>,
        outputs: impl IntoIterator<Item = B>,
    ) -> Self {
        Self::over(op, Part::default(), None, inputs, outputs)
    }

    /// Creates a call of an operation over these inputs and outputs, for a part and a block.
    pub fn over<A: Into<Arg>, B: Into<Arg>>(
        op: impl Into<Op>,
        part: Part,
        block: Option<BlockSlots>,
        inputs: impl IntoIterator<Item = A>,
        outputs: impl IntoIterator<Item = B>,
    ) -> Self {
        let mut bare = Vec::new();
        let mut mat = |arg: Arg| {
            bare.push(matches!(arg, Arg::Slot(_)));
            match arg {
                Arg::Mat(mat) => mat,
                Arg::Slot(slot) => Mat::f32(slot, 0, 0),
            }
        };
        let inputs = inputs.into_iter().map(|arg| mat(arg.into())).collect();
        let outputs = outputs.into_iter().map(|arg| mat(arg.into())).collect();
        let op = op.into();
        let mut call = Self {
            op,
            inputs,
            outputs,
            block,
            halo: None,
            more_sources: Vec::new(),
            first_source: None,
            sum: None,
            workspace: None,
            part,
        };
        if bare.contains(&true) {
            call.fill(&bare);
        }
        call
    }

    /// Creates the call `out[v] = sum over sources u of v, in order, of weights[edge] * x[u]`; without weights, the
    /// plain sum of `x[u]`.
    pub fn gather(block: BlockSlots, weights: Option<Slot>, own: Mat, halo: Option<Mat>, out: Mat) -> Self {
        let spec = BlockSpec::Graph { self_loops: false, transposed: false };
        let weight = if weights.is_some() { EdgeWeight::Stored } else { EdgeWeight::One };
        let inputs = std::iter::once(Arg::Mat(own)).chain(weights.map(Arg::Slot));
        Self { halo, ..Self::over(Gather { block: spec, weight }, Part::default(), Some(block), inputs, [out]) }
    }

    /// Returns the sources of a gather, without those that other parts own.
    pub fn sources(&self) -> impl Iterator<Item = Mat> + Clone {
        self.inputs[..1].iter().chain(&self.more_sources).copied()
    }

    /// Restricts a gather to a window of sources that starts at `first`. Its result is added to `sum`, or to 0.
    pub fn window(self, first: usize, sum: Option<Mat>) -> Self {
        Self { first_source: Some(first), sum, ..self }
    }

    /// Adds the result over other rows, in `sum`, to the result of this call.
    pub fn added_to(self, sum: Slot) -> Self {
        let sum = Some(Mat { slot: sum, ..self.out() });
        Self { sum, ..self }
    }

    /// Creates a call that concatenates arrays of f32; each part has a slot and a length.
    pub fn concat(parts: &[(Slot, usize)], out: Slot) -> Self {
        let parts = parts.iter().map(|&(part, len)| Mat::f32(part, 1, len));
        // The sum saturates; a length that no array can hold is rejected later.
        let all = parts.clone().fold(0, |sum: usize, part| sum.saturating_add(part.cols));
        Self::new(Move::Concat, parts, [Mat::f32(out, 1, all)])
    }

    /// Appends row steps to the call. `operands` has the operands of all steps except the row itself, in order.
    pub fn followed_by<A: Into<Arg>>(
        mut self,
        steps: impl IntoIterator<Item = RowStep>,
        operands: impl IntoIterator<Item = A>,
    ) -> Self {
        let steps: Vec<RowStep> = steps.into_iter().collect();
        let of_steps = steps.iter().flat_map(|step| &step.record().inputs[1..]);
        let out = self.out();
        let operands = of_steps.zip(operands).map(|(operand, arg)| match arg.into() {
            Arg::Mat(mat) => mat,
            Arg::Slot(slot) => crate::op::step_operand(out, operand, Mat { slot, ..out }),
        });
        self.inputs.extend(operands);
        self.op = self.op.followed_by(steps);
        self
    }

    /// Splits the call into its head, the steps that follow it, and the operands of the steps.
    pub fn apart(mut self) -> (Self, Vec<RowStep>, Vec<Mat>) {
        let operands = self.inputs.split_off(self.head_inputs().len());
        let steps = self.op.steps().to_vec();
        self.op = self.op.head().clone();
        (self, steps, operands)
    }

    /// Returns the number of columns of the sum that a window continues: those of the output, or of the state of
    /// attention.
    pub fn sum_cols(&self) -> usize {
        let state = match self.op.head() {
            Op::Attention(op) if op.pass == AttentionPass::Forward => 2 * op.heads,
            _ => 0,
        };
        self.out().cols.saturating_add(state)
    }

    /// Returns the call for a window of a gather that others follow. Only the complete sum is rounded, and row steps
    /// need it. The slot of the output is that of the complete sum.
    pub fn partial(self) -> Self {
        let (cols, mut call) = (self.sum_cols(), self.apart().0);
        if let Op::Attention(op) = &mut call.op
            && op.pass == AttentionPass::Forward
        {
            op.pass = AttentionPass::Partial;
        }
        call.outputs.truncate(1);
        call.outputs[0] = Mat { cols, dtype: DType::F32, ..call.outputs[0] };
        call
    }

    /// Returns the first output.
    pub fn out(&self) -> Mat {
        self.outputs[0]
    }

    /// Returns the inputs of the head: all inputs except those of the steps.
    pub fn head_inputs(&self) -> &[Mat] {
        let of_steps: usize = self.op.steps().iter().map(|step| step.record().inputs.len() - 1).sum();
        &self.inputs[..self.inputs.len().saturating_sub(of_steps)]
    }

    /// Returns the steps, each with the operand that it reads beside the row.
    pub fn steps(&self) -> impl Iterator<Item = (RowStep, Option<Mat>)> {
        let mut operands = self.inputs[self.head_inputs().len()..].iter().copied();
        self.op.steps().iter().map(move |step| (*step, step.record().inputs.get(1).and_then(|_| operands.next())))
    }

    /// Returns every slot that the call reads. A slot can occur more than once.
    pub fn reads(&self) -> impl Iterator<Item = Slot> {
        let (head, steps) = self.inputs.split_at(self.head_inputs().len());
        let block = self.block.iter().flat_map(|block| [block.indptr, block.indices]);
        let mats = head.iter().chain(&self.more_sources).chain(&self.halo).chain(&self.sum).chain(steps);
        block.chain(mats.map(|mat| mat.slot))
    }

    /// Returns every slot that the call writes.
    pub fn writes(&self) -> impl Iterator<Item = Slot> {
        self.outputs.iter().map(|mat| mat.slot).chain(self.workspace)
    }

    /// Returns the same call with every slot renamed.
    pub fn renamed(mut self, name: impl Fn(Slot) -> Slot) -> Self {
        let sources = self.inputs.iter_mut().chain(&mut self.more_sources);
        let mats = sources.chain(&mut self.outputs).chain(&mut self.halo).chain(&mut self.sum);
        mats.for_each(|mat| mat.slot = name(mat.slot));
        self.workspace.iter_mut().for_each(|slot| *slot = name(*slot));
        if let Some(block) = &mut self.block {
            (block.indptr, block.indices) = (name(block.indptr), name(block.indices));
        }
        self
    }

    /// Returns the name of the kernel, as used in traces and errors.
    pub fn name(&self) -> &'static str {
        match &self.op {
            Op::Fused { head, .. } => match (&**head, head.record().name) {
                (Op::Gather(_), _) => "fused_gather",
                (Op::Attention(_), _) => "fused_attention",
                (_, "linear") => "fused_linear",
                (_, "linear_input_grad") => "fused_linear_input_grad",
                _ => "fused_rows",
            },
            _ => self.name_of_head(),
        }
    }

    /// Returns the name of the head's kernel, without steps.
    pub fn name_of_head(&self) -> &'static str {
        self.op.head().record().kernel()
    }

    /// Whether the call copies rows from other devices. Such a call launches no kernel.
    pub fn fetches(&self) -> bool {
        self.op == Op::Move(Move::Fetch)
    }

    /// Whether the call adds the terms of all devices. Such a call launches no kernel of ours.
    pub fn reduces(&self) -> bool {
        self.op == Op::Move(Move::AllReduce)
    }

    /// Whether the call takes other devices.
    pub fn is_exchange(&self) -> bool {
        self.fetches() || self.reduces()
    }

    /// Returns the key of a dropout operation of this call, for a matrix that begins at a column.
    pub(crate) fn dropout_key(&self, rate: f32, salt: u32, first_column: u32) -> DropoutKey {
        DropoutKey { seed: self.part.seed, op: salt, first_row: self.part.first_row, first_column, rate }
    }

    /// Returns what the time of the call depends on.
    pub fn price(&self) -> Price {
        let record = self.op.head().record();
        match (record.cost, self.block) {
            (Cost::Gather, Some(block)) => {
                let (own, edges) = (self.inputs[0], block.edges as f64);
                // A window has edges in proportion to its share of the sources.
                let share = match self.first_source {
                    Some(_) => {
                        let rows: usize = self.sources().map(|tile| tile.rows).sum();
                        edges * rows as f64 / block.own_sources.max(1) as f64
                    }
                    None => edges,
                };
                let weighted = matches!(self.op.head(), Op::Gather(Gather { weight: EdgeWeight::Stored, .. }));
                let out_row_bytes = self.out().row_bytes();
                Price::Gather { block, edges: share as u64, weighted, row_bytes: own.row_bytes(), out_row_bytes }
            }
            (Cost::Product { k, m }, _) => {
                let cols = |place: usize| self.inputs.get(place).unwrap_or(&self.outputs[0]).cols;
                let m = if m < record.inputs.len() { cols(m) } else { self.out().cols };
                Price::Product { rows: self.inputs[0].rows, k: cols(k), m }
            }
            (Cost::Nothing, _) => Price::Nothing,
            (Cost::Fixed, _) => Price::Rows { bytes: 0 },
            (Cost::Copy, _) => Price::Rows { bytes: 2 * self.out().row_bytes() },
            (Cost::Rows | Cost::Gather, _) => {
                let operands = record.operands().zip(self.head_inputs().iter().chain(&self.outputs));
                let rows = operands.filter(|(operand, _)| operand.stored == Stored::AsRows);
                Price::Rows { bytes: rows.map(|(_, mat)| mat.row_bytes()).sum() }
            }
        }
    }

    /// Returns the bytes per row of the matrices that the steps read.
    pub fn step_row_bytes(&self) -> usize {
        let matrices = self.step_operands().filter(|(_, operand, _)| operand.stored == Stored::AsRows);
        matrices.map(|(_, _, mat)| mat.row_bytes()).fold(0, usize::saturating_add)
    }

    /// Returns the name under which the cost model learns the call's time: the names of its kernel and of the steps
    /// that follow. The storage type is not included.
    pub fn cost_name(&self) -> String {
        let steps = self.op.steps().iter().filter_map(|step| step.record().step());
        steps.fold(self.name_of_head().into(), |name: String, (short, _)| name + "+" + short)
    }
}

/// The quantities that the time of a call depends on, without the steps that follow it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    /// A sum over a block.
    Gather {
        /// The block.
        block: BlockSlots,
        /// Number of edges whose source is in the window.
        edges: u64,
        /// Whether each edge has a weight.
        weighted: bool,
        /// Bytes per source row.
        row_bytes: usize,
        /// Bytes per output row.
        out_row_bytes: usize,
    },
    /// A product `[rows, k]` by `[k, m]`, or one of its gradients, which do the same number of multiplications.
    Product {
        /// Number of rows.
        rows: usize,
        /// Columns that are summed over.
        k: usize,
        /// Columns of the result.
        m: usize,
    },
    /// A kernel that reads and writes its operands once.
    Rows {
        /// Bytes per vertex; 0 for a call whose time does not depend on the vertices.
        bytes: usize,
    },
    /// No kernel runs.
    Nothing,
}
