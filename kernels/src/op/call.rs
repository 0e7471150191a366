//! Kernel calls as plain data: what a device is asked to compute, over which slots.

pub use lapidary_arrays::NO_LABEL;

use crate::memory::Slot;
use crate::op::{BlockSpec, Cost, DType, EdgeWeight, Gather, Move, Op, RowStep, Stored};
use crate::random::DropoutKey;
use crate::storage_type::StorageType;

/// A dense row-major matrix in a slot. A vector is one with a single row or column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mat {
    /// Where it lies.
    pub slot: Slot,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Its element type.
    pub dtype: DType,
}

impl Mat {
    /// An `f32` matrix.
    pub fn f32(slot: Slot, rows: usize, cols: usize) -> Self {
        Self { slot, rows, cols, dtype: DType::F32 }
    }

    /// How its numbers are stored, if it is of floating-point numbers; else `f32`, which it is not.
    pub fn float(&self) -> StorageType {
        self.dtype.float().unwrap_or_default()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols.saturating_mul(self.dtype.byte_count() as usize)
    }

    /// How many numbers it is; what no array can hold saturates, and is refused later.
    pub fn numbers(&self) -> usize {
        self.rows.saturating_mul(self.cols)
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

/// What a call is told of the run and of the part that it is over, beside its operands. An operation looks at what concerns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The run's seed: for dropouts.
    pub seed: u64,
    /// The global id of the first row: for dropouts.
    pub first_row: u64,
    /// Rows of this split are selected: for losses.
    pub select: u32,
    /// How many rows a loss is the mean over.
    pub count: u64,
    /// Which elements of a parameter are updated.
    pub window: Window,
}

/// Elements of an array, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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

/// One kernel call: an operation over slots.
///
/// Unless it says otherwise a call overwrites its outputs, and no output may be an input's slot. What changes from epoch to epoch is
/// read from two small operands: the *clock*, u64 `[epoch, step]` (`step` counts optimizer steps from 1), and the learning rate, f32
/// `[1]`.
///
/// # Rounding
/// All matrices of a call are stored alike, but for sums: those of a gather's window so far and the output of a
/// [`Linear::WeightGrad`](crate::op::Linear::WeightGrad) are f32, and a gather may write f32 whatever it reads. Numbers are widened to
/// f32 when they are read, computed with in f32 (sums over rows in f64), and rounded once, when a row is written. A GPU writes twice
/// what an [`Op::Fused`] makes of a product: before its steps, and behind every six of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is computed.
    pub op: Op,
    /// What it reads, in the order of the operation's record.
    pub inputs: Vec<Mat>,
    /// What it writes, in the order of the operation's record.
    pub outputs: Vec<Mat>,
    /// The block that it is over.
    pub block: Option<BlockSlots>,
    /// The sources of a gather in other parts; absent exactly when the block has none.
    pub halo: Option<Mat>,
    /// Of a gather's window, the first source at hand.
    pub first_source: Option<usize>,
    /// What it came to over other rows, or other sources, to which this call adds.
    pub sum: Option<Mat>,
    /// Room for partial sums.
    pub workspace: Option<Slot>,
    /// The part that it is over.
    pub part: Part,
}

/// An operand of a new call.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    /// With sizes.
    Mat(Mat),
    /// With the sizes and the type that go with the other operands.
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
    /// An operation over these inputs and outputs.
    pub fn new<A: Into<Arg>, B: Into<Arg>>(
        op: impl Into<Op>,
        inputs: impl IntoIterator<Item = A>,
        outputs: impl IntoIterator<Item = B>,
    ) -> Self {
        Self::over(op, Part::default(), None, inputs, outputs)
    }

    /// An operation over these inputs and outputs, a part and a block.
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
        let mut call =
            Self { op, inputs, outputs, block, halo: None, first_source: None, sum: None, workspace: None, part };
        if bare.contains(&true) {
            call.fill(&bare);
        }
        call
    }

    /// `out[v] = sum over sources u of v, in order, of weights[edge] * x[u]`; without weights, of `x[u]`.
    pub fn gather(block: BlockSlots, weights: Option<Slot>, own: Mat, halo: Option<Mat>, out: Mat) -> Self {
        let spec = BlockSpec::Graph { self_loops: false, transposed: false };
        let weight = if weights.is_some() { EdgeWeight::Stored } else { EdgeWeight::One };
        let inputs = std::iter::once(Arg::Mat(own)).chain(weights.map(Arg::Slot));
        Self { halo, ..Self::over(Gather { block: spec, weight }, Part::default(), Some(block), inputs, [out]) }
    }

    /// The share of a gather over the sources from `first` on that are at hand, added to `sum`, or to 0.
    pub fn window(self, first: usize, sum: Option<Mat>) -> Self {
        Self { first_source: Some(first), sum, ..self }
    }

    /// The same, added to what it came to over other rows.
    pub fn added_to(self, sum: Slot) -> Self {
        let sum = Some(Mat { slot: sum, ..self.out() });
        Self { sum, ..self }
    }

    /// Arrays of so many f32, one after the other.
    pub fn concat(parts: &[(Slot, usize)], out: Slot) -> Self {
        let parts = parts.iter().map(|&(part, len)| Mat::f32(part, 1, len));
        // Refused later, if no array is that long.
        let all = parts.clone().fold(0, |sum: usize, part| sum.saturating_add(part.cols));
        Self::new(Move::Concat, parts, [Mat::f32(out, 1, all)])
    }

    /// The same with row steps behind it, whose operands beside the row come one after the other.
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

    /// The call without the steps behind it, those, and their operands.
    pub fn apart(mut self) -> (Self, Vec<RowStep>, Vec<Mat>) {
        let operands = self.inputs.split_off(self.head_inputs().len());
        let steps = self.op.steps().to_vec();
        self.op = self.op.head().clone();
        (self, steps, operands)
    }

    /// What it makes: its first output.
    pub fn out(&self) -> Mat {
        self.outputs[0]
    }

    /// The inputs that are not those of steps.
    pub fn head_inputs(&self) -> &[Mat] {
        let of_steps: usize = self.op.steps().iter().map(|step| step.record().inputs.len() - 1).sum();
        &self.inputs[..self.inputs.len().saturating_sub(of_steps)]
    }

    /// The steps behind it, each with what it reads beside the row.
    pub fn steps(&self) -> impl Iterator<Item = (RowStep, Option<Mat>)> {
        let mut operands = self.inputs[self.head_inputs().len()..].iter().copied();
        self.op.steps().iter().map(move |step| (*step, step.record().inputs.get(1).and_then(|_| operands.next())))
    }

    /// Every slot that the call reads; some more than once.
    pub fn reads(&self) -> impl Iterator<Item = Slot> {
        let (head, steps) = self.inputs.split_at(self.head_inputs().len());
        let block = self.block.iter().flat_map(|block| [block.indptr, block.indices]);
        let mats = head.iter().chain(&self.halo).chain(&self.sum).chain(steps);
        block.chain(mats.map(|mat| mat.slot))
    }

    /// Every slot that the call writes.
    pub fn writes(&self) -> impl Iterator<Item = Slot> {
        self.outputs.iter().map(|mat| mat.slot).chain(self.workspace)
    }

    /// The same call over other slots.
    pub fn renamed(mut self, name: impl Fn(Slot) -> Slot) -> Self {
        let mats = self.inputs.iter_mut().chain(&mut self.outputs).chain(&mut self.halo).chain(&mut self.sum);
        mats.for_each(|mat| mat.slot = name(mat.slot));
        self.workspace.iter_mut().for_each(|slot| *slot = name(*slot));
        if let Some(block) = &mut self.block {
            (block.indptr, block.indices) = (name(block.indptr), name(block.indices));
        }
        self
    }

    /// Its kernel's name, as it stands in traces and errors.
    pub fn name(&self) -> &'static str {
        match &self.op {
            Op::Fused { head, .. } => match (&**head, head.record().name) {
                (Op::Gather(_), _) => "fused_gather",
                (_, "linear") => "fused_linear",
                (_, "linear_input_grad") => "fused_linear_input_grad",
                _ => "fused_rows",
            },
            _ => self.name_of_head(),
        }
    }

    /// The name of its kernel without steps.
    pub fn name_of_head(&self) -> &'static str {
        self.op.head().record().kernel()
    }

    /// Whether it copies rows from other devices, and is no launch.
    pub fn fetches(&self) -> bool {
        self.op == Op::Move(Move::Fetch)
    }

    /// The key of a dropout among its operations.
    pub(crate) fn dropout_key(&self, rate: f32, salt: u32) -> DropoutKey {
        DropoutKey { seed: self.part.seed, op: salt, first_row: self.part.first_row, rate }
    }

    /// What its time depends on.
    pub fn price(&self) -> Price {
        let record = self.op.head().record();
        match (record.cost, self.block) {
            (Cost::Gather, Some(block)) => {
                let (own, edges) = (self.inputs[0], block.edges as f64);
                // A window has its share of the edges.
                let share = match self.first_source {
                    Some(_) => edges * own.rows as f64 / block.own_sources.max(1) as f64,
                    None => edges,
                };
                let weighted = self.head_inputs().len() > 1;
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
            (Cost::Rows | Cost::Gather, _) => {
                let operands = record.operands().zip(self.head_inputs().iter().chain(&self.outputs));
                let rows = operands.filter(|(operand, _)| operand.stored == Stored::AsRows);
                Price::Rows { bytes: rows.map(|(_, mat)| mat.row_bytes()).sum() }
            }
        }
    }

    /// The bytes of a row that the steps read of matrices.
    pub fn step_row_bytes(&self) -> usize {
        let matrices = self.step_operands().filter(|(_, operand, _)| operand.stored == Stored::AsRows);
        matrices.map(|(_, _, mat)| mat.row_bytes()).fold(0, usize::saturating_add)
    }

    /// What its time is learned under, but for how rows are stored: its kernel's name, and those of the steps behind it.
    pub fn cost_name(&self) -> String {
        let steps = self.op.steps().iter().filter_map(|step| step.record().step());
        steps.fold(self.name_of_head().into(), |name: String, (short, _)| name + "+" + short)
    }
}

/// What a call's time depends on, without the steps behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    /// A sum over a block.
    Gather {
        /// The block.
        block: BlockSlots,
        /// As many of its edges as have their source at hand.
        edges: u64,
        /// Whether each edge has a weight.
        weighted: bool,
        /// Of a source's row.
        row_bytes: usize,
        /// Of a row that is made.
        out_row_bytes: usize,
    },
    /// A product `[rows, k]` by `[k, m]`, or its gradients, which are as much work.
    Product {
        /// Rows.
        rows: usize,
        /// Columns.
        k: usize,
        /// Columns.
        m: usize,
    },
    /// What reads and writes its operands.
    Rows {
        /// Of each vertex; 0 for what does not depend on vertices.
        bytes: usize,
    },
    /// No kernel.
    Nothing,
}
