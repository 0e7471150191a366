//! Lowering: programs and sizes become one table of tensors with true sizes, and kernel calls over it.
//!
//! Several programs (a training epoch, its evaluation) are lowered together and share what they have in common:
//! tensors of one origin, blocks, and everything that is computed from constants alone, which runs once before the
//! first epoch (that is how a hoisted gather comes to be).

mod contents;
mod inputs;
mod sizes;
mod table;

use std::collections::BTreeMap;

use lapidary_kernels::{Call, DropoutKey, Mat, Slot};

pub use contents::{Contents, Supply};
pub use inputs::{FeatureData, Inputs, LabelData};
pub use sizes::Sizes;
use table::Table;

use crate::program::{BlockSpec, Op, OpId, Origin, Program, RowSpace, TensorId};

/// What a lowered tensor is to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The same in every epoch.
    Constant,
    /// Carried from one epoch to the next: parameters, moments, the clock.
    State,
    /// Made and used up within an epoch.
    Local,
}

/// One tensor with its true size. Its place in [`Lowered::tensors`] is its [`Slot`].
#[derive(Clone, Debug)]
pub struct LoweredTensor {
    /// A name for people.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it is to the plan.
    pub kind: Kind,
    /// What a constant that no operation makes holds.
    pub contents: Option<Contents>,
}

/// One kernel call and the name of the operation behind it.
#[derive(Clone, Debug)]
pub struct Step {
    /// Unique within its phase.
    pub name: String,
    /// What the device does.
    pub call: Call,
}

/// One of the programs that were lowered together.
#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// Its calls, in order.
    pub steps: Vec<Step>,
    /// Its results.
    pub outputs: BTreeMap<String, Slot>,
}

/// Programs bound to sizes.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// All tensors of all phases.
    pub tensors: Vec<LoweredTensor>,
    /// Where each origin lies.
    pub origins: BTreeMap<Origin, Slot>,
    /// What runs once, before everything else.
    pub setup: Vec<Step>,
    /// The programs, in the order in which they were given.
    pub phases: Vec<Phase>,
}

impl Lowered {
    /// Bytes of all tensors together. What no memory could hold saturates.
    pub fn byte_count(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Whether each tensor is used by a phase, rather than by the setup alone.
    pub fn used_after_setup(&self) -> Vec<bool> {
        let mut used = vec![false; self.tensors.len()];
        for phase in &self.phases {
            let outputs = phase.outputs.values().copied();
            for slot in phase.steps.iter().flat_map(|s| s.call.slots()).chain(outputs) {
                used[slot.0 as usize] = true;
            }
        }
        used
    }
}

/// Binds programs to sizes.
///
/// # Cost
/// O(operations log operations); nothing is looked at or allocated that grows with the graph.
pub fn lower(programs: &[&Program], sizes: &Sizes, seed: u64) -> Lowered {
    let mut table = Table::new(sizes);
    let mut setup = Vec::new();
    let mut constants: BTreeMap<String, Vec<Slot>> = BTreeMap::new();
    let mut phases = Vec::new();
    for program in programs {
        let mut slots: BTreeMap<TensorId, Slot> = BTreeMap::new();
        for (origin, &tensor) in program.origins() {
            let described = program.tensor(tensor);
            slots.insert(tensor, table.origin(origin, &described.name, described.ty));
        }
        let mut phase = Phase::default();
        for op in program.ops() {
            let reads: Vec<Slot> = program.inputs(op).iter().map(|t| slots[t]).collect();
            let outputs = program.op_outputs(op);
            let constant = program.tensor(outputs[0]).constant;
            let key = format!("{:?} {reads:?}", program.op(op));
            if let Some(known) = constants.get(&key).filter(|_| constant) {
                slots.extend(outputs.iter().copied().zip(known.iter().copied()));
                continue;
            }
            let kind = if constant { Kind::Constant } else { Kind::Local };
            let writes: Vec<Slot> = outputs
                .iter()
                .map(|&tensor| match program.next().get(&tensor) {
                    Some(input) => slots[input],
                    None => table.tensor(program.tensor(tensor), kind),
                })
                .collect();
            slots.extend(outputs.iter().copied().zip(writes.iter().copied()));
            let call = Binder { program, op, slots: &slots, table: &mut table, seed }.call();
            let step = Step { name: program.tensor(outputs[0]).name.clone(), call };
            if constant {
                constants.insert(key, writes);
                setup.push(step);
            } else {
                phase.steps.push(step);
            }
        }
        assert_updates_come_last(program);
        phase.outputs = program.outputs().iter().map(|(name, tensor)| (name.clone(), slots[tensor])).collect();
        phases.push(phase);
    }
    let (tensors, origins) = table.finish();
    Lowered { tensors, origins, setup, phases }
}

/// An output that is the next value of an input is written over it, so nothing may read the input afterwards.
fn assert_updates_come_last(program: &Program) {
    let place: BTreeMap<OpId, usize> = program.ops().into_iter().enumerate().map(|(i, op)| (op, i)).collect();
    for (&output, &input) in program.next() {
        let update = program.producer(output).map(|op| place[&op]);
        let last_read = program.consumers(input).into_iter().map(|op| place[&op]).max();
        assert_eq!(update, last_read, "a parameter is read after its update");
    }
}

/// One operation being bound.
struct Binder<'a, 'i> {
    program: &'a Program,
    op: OpId,
    slots: &'a BTreeMap<TensorId, Slot>,
    table: &'a mut Table<'i>,
    seed: u64,
}

impl Binder<'_, '_> {
    fn call(&mut self) -> Call {
        match *self.program.op(self.op) {
            Op::Gather { block } => self.gather(block, None, 0),
            Op::WeightedGather { block } => self.gather(block, Some(self.read(0)), 1),
            Op::RowScale => Call::RowScale { x: self.operand(0), scale: self.read(1), out: self.output() },
            Op::Linear => Call::Linear { x: self.operand(0), weight: self.operand(1), out: self.output() },
            Op::LinearInputGrad => {
                Call::LinearInputGrad { grad: self.operand(0), weight: self.operand(1), out: self.output() }
            }
            Op::LinearWeightGrad => {
                Call::LinearWeightGrad { grad: self.operand(0), x: self.operand(1), out: self.output() }
            }
            Op::Transpose => Call::Transpose { x: self.operand(0), out: self.output() },
            Op::AddBias => Call::AddBias { x: self.operand(0), bias: self.read(1), out: self.output() },
            Op::ColumnSum => Call::ColumnSum { x: self.operand(0), out: self.write() },
            Op::Add => Call::Add { a: self.operand(0), b: self.operand(1), out: self.output() },
            Op::Relu => Call::Relu { x: self.operand(0), out: self.output() },
            Op::ReluGrad => Call::ReluGrad { grad: self.operand(0), y: self.operand(1), out: self.output() },
            Op::LayerNorm { eps } => {
                let (x, gain, bias) = (self.operand(0), self.read(1), self.read(2));
                Call::LayerNorm { x, gain, bias, eps, out: self.output() }
            }
            Op::LayerNormInputGrad { eps } => {
                let (grad, x, gain) = (self.operand(0), self.operand(1), self.read(2));
                Call::LayerNormInputGrad { grad, x, gain, eps, out: self.output() }
            }
            Op::LayerNormGainGrad { eps } => {
                Call::LayerNormGainGrad { grad: self.operand(0), x: self.operand(1), eps, out: self.write() }
            }
            Op::Dropout { rate, salt } => self.dropout(rate, salt),
            Op::PermuteEdges { block } => {
                let edges = self.table.block(block).edges;
                Call::PermuteEdges { values: self.read(0), permutation: self.read(1), out: self.write(), edges }
            }
            Op::SoftmaxCrossEntropy { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.sizes().split(split);
                Call::SoftmaxCrossEntropy { logits, labels, split: splits, select, count, loss: self.write() }
            }
            Op::SoftmaxCrossEntropyGrad { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.sizes().split(split);
                Call::SoftmaxCrossEntropyGrad { logits, labels, split: splits, select, count, out: self.output() }
            }
            Op::SigmoidCrossEntropy { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.sizes().split(split);
                Call::SigmoidCrossEntropy { logits, targets, split: splits, select, count, loss: self.write() }
            }
            Op::SigmoidCrossEntropyGrad { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.sizes().split(split);
                Call::SigmoidCrossEntropyGrad { logits, targets, split: splits, select, count, out: self.output() }
            }
            Op::CountMicro { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, _) = self.table.sizes().split(split);
                Call::CountMicro { logits, targets, split: splits, select, out: self.write() }
            }
            Op::CountCorrect { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, _) = self.table.sizes().split(split);
                Call::CountCorrect { logits, labels, split: splits, select, out: self.write() }
            }
            Op::Sgd { .. } | Op::Adam { .. } => self.update(),
        }
    }

    fn gather(&mut self, block: BlockSpec, weights: Option<Slot>, x: usize) -> Call {
        let (own, out) = (self.operand(x), self.output());
        Call::Gather { block: self.table.block(block), weights, own, halo: None, out }
    }

    fn dropout(&mut self, rate: f32, salt: u32) -> Call {
        let key = DropoutKey { seed: self.seed, op: salt, first_row: 0, rate };
        let clock = self.read(1);
        match self.program.tensor(self.program.inputs(self.op)[0]).ty.rows {
            RowSpace::Edges(block) => {
                let block = self.table.block(block);
                Call::SparseDropout { block, values: self.read(0), out: self.write(), key, clock }
            }
            _ => Call::Dropout { x: self.operand(0), out: self.output(), key, clock },
        }
    }

    fn update(&mut self) -> Call {
        let (param, grad, clock, rate) = (self.read(0), self.read(1), self.read(2), self.read(3));
        let Mat { rows, cols, .. } = self.operand(0);
        let len = rows.saturating_mul(cols); // refused later, if no memory could hold it
        match *self.program.op(self.op) {
            Op::Adam { beta1, beta2, eps, weight_decay, decoupled } => {
                let (m, v) = (self.read(4), self.read(5));
                Call::Adam { param, grad, m, v, len, clock, rate, beta1, beta2, eps, weight_decay, decoupled }
            }
            Op::Sgd { momentum, weight_decay } => {
                let moment = (momentum > 0.0).then(|| self.read(4));
                Call::Sgd { param, grad, moment, len, clock, rate, momentum, weight_decay }
            }
            _ => unreachable!("only optimizer steps update"),
        }
    }

    fn read(&self, place: usize) -> Slot {
        self.slots[&self.program.inputs(self.op)[place]]
    }

    fn write(&self) -> Slot {
        self.slots[&self.program.op_outputs(self.op)[0]]
    }

    fn operand(&mut self, place: usize) -> Mat {
        self.mat(self.program.inputs(self.op)[place])
    }

    fn output(&mut self) -> Mat {
        self.mat(self.program.op_outputs(self.op)[0])
    }

    fn mat(&mut self, tensor: TensorId) -> Mat {
        let ty = self.program.tensor(tensor).ty;
        Mat { slot: self.slots[&tensor], rows: self.table.row_count(ty.rows), cols: ty.width }
    }
}
