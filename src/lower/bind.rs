//! One operation of a program as a kernel call over slots.

use std::collections::BTreeMap;

use lapidary_kernels::{Call, DropoutKey, Mat, RowStep, Slot, Window};

use super::table::Table;
use crate::program::{BlockSpec, Op, OpId, Program, RowSpace, TensorId, operand_count};

/// One operation being bound.
pub(super) struct Binder<'a, 'i> {
    pub(super) program: &'a Program,
    pub(super) op: OpId,
    pub(super) slots: &'a BTreeMap<TensorId, Vec<Slot>>,
    pub(super) table: &'a mut Table<'i>,
    /// Which tile of what is cut, or which window of what is updated.
    pub(super) tile: usize,
    pub(super) seed: u64,
}

impl Binder<'_, '_> {
    /// The call over one tile. Its halo and workspace are the caller's to add.
    pub(super) fn call(&mut self) -> Call {
        self.call_of(self.program.op(self.op))
    }

    /// The call of `op`, whose operands are the first ones.
    fn call_of(&mut self, op: &Op) -> Call {
        match *op {
            Op::Fused { ref head, ref steps } => {
                let steps = self.row_steps(operand_count(head), steps);
                Call::Fused { head: Box::new(self.call_of(head)), steps }
            }
            Op::Gather { block } => self.gather(block, None, 0),
            Op::WeightedGather { block } => self.gather(block, Some(self.read(0)), 1),
            Op::RowScale => Call::RowScale { x: self.operand(0), scale: self.read(1), out: self.output() },
            Op::Linear => Call::Linear { x: self.operand(0), weight: self.operand(1), out: self.output() },
            Op::LinearInputGrad => {
                Call::LinearInputGrad { grad: self.operand(0), weight: self.operand(1), out: self.output() }
            }
            Op::LinearWeightGrad => {
                let (grad, x) = (self.operand(0), self.operand(1));
                Call::LinearWeightGrad { grad, x, out: self.output(), workspace: None }
            }
            Op::Round => Call::Round { x: self.operand(0), out: self.output() },
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
                let edges = self.table.block(block, self.tile).edges;
                Call::PermuteEdges { values: self.read(0), permutation: self.read(1), out: self.write(), edges }
            }
            Op::SoftmaxCrossEntropy { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.tiling().part.split(split);
                Call::SoftmaxCrossEntropy { logits, labels, split: splits, select, count, loss: self.write() }
            }
            Op::SoftmaxCrossEntropyGrad { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.tiling().part.split(split);
                Call::SoftmaxCrossEntropyGrad { logits, labels, split: splits, select, count, out: self.output() }
            }
            Op::SigmoidCrossEntropy { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.tiling().part.split(split);
                Call::SigmoidCrossEntropy { logits, targets, split: splits, select, count, loss: self.write() }
            }
            Op::SigmoidCrossEntropyGrad { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, count) = self.table.tiling().part.split(split);
                Call::SigmoidCrossEntropyGrad { logits, targets, split: splits, select, count, out: self.output() }
            }
            Op::CountMicro { split } => {
                let (logits, targets, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, _) = self.table.tiling().part.split(split);
                Call::CountMicro { logits, targets, split: splits, select, out: self.write() }
            }
            Op::CountCorrect { split } => {
                let (logits, labels, splits) = (self.operand(0), self.read(1), self.read(2));
                let (select, _) = self.table.tiling().part.split(split);
                Call::CountCorrect { logits, labels, split: splits, select, out: self.write() }
            }
            Op::Sgd { .. } | Op::Adam { .. } => unreachable!("updates are bound by window"),
        }
    }

    /// What follows the head of a fused operation; its operands begin at `place`.
    fn row_steps(&mut self, mut place: usize, steps: &[Op]) -> Vec<RowStep> {
        let mut bound = Vec::new();
        for step in steps {
            bound.push(match *step {
                Op::RowScale => RowStep::Scale(self.read(place)),
                Op::AddBias => RowStep::AddBias(self.read(place)),
                Op::Add => RowStep::Add(self.read(place)),
                Op::Relu => RowStep::Relu,
                Op::ReluGrad => RowStep::ReluGrad(self.read(place)),
                Op::Dropout { rate, salt } => {
                    RowStep::Dropout { key: self.dropout_key(rate, salt), clock: self.read(place) }
                }
                _ => unreachable!("a fused operation was checked when it was made"),
            });
            place += operand_count(step) - 1;
        }
        bound
    }

    fn dropout_key(&self, rate: f32, salt: u32) -> DropoutKey {
        DropoutKey { seed: self.seed, op: salt, first_row: self.table.tile(self.tile).first_vertex, rate }
    }

    fn gather(&mut self, block: BlockSpec, weights: Option<Slot>, x: usize) -> Call {
        let (own, out) = (self.operand(x), self.output());
        Call::Gather { block: self.table.block(block, self.tile), weights, own, halo: None, out }
    }

    fn dropout(&mut self, rate: f32, salt: u32) -> Call {
        let key = self.dropout_key(rate, salt);
        let clock = self.read(1);
        match self.program.tensor(self.program.inputs(self.op)[0]).ty.rows {
            RowSpace::Edges(block) => {
                let block = self.table.block(block, self.tile);
                Call::SparseDropout { block, values: self.read(0), out: self.write(), key, clock }
            }
            _ => Call::Dropout { x: self.operand(0), out: self.output(), key, clock },
        }
    }

    /// The update of one window, whose number is the tile's.
    pub(super) fn update(&self, window: Window) -> Call {
        let (param, grad, clock, rate) = (self.read(0), self.read(1), self.read(2), self.read(3));
        let outputs: Vec<Slot> = self.program.op_outputs(self.op).iter().map(|tensor| self.slot(*tensor)).collect();
        match *self.program.op(self.op) {
            Op::Adam { beta1, beta2, eps, weight_decay, decoupled } => {
                let (m, v) = (self.read(4), self.read(5));
                let out = [outputs[0], outputs[1], outputs[2]];
                Call::Adam { param, grad, m, v, out, window, clock, rate, beta1, beta2, eps, weight_decay, decoupled }
            }
            Op::Sgd { momentum, weight_decay } => {
                let moment = (momentum > 0.0).then(|| [self.read(4), outputs[1]]);
                Call::Sgd { param, grad, moment, out: outputs[0], window, clock, rate, momentum, weight_decay }
            }
            _ => unreachable!("only optimizer steps update"),
        }
    }

    fn read(&self, place: usize) -> Slot {
        self.slot(self.program.inputs(self.op)[place])
    }

    fn write(&self) -> Slot {
        self.slot(self.program.op_outputs(self.op)[0])
    }

    /// The tile, or window, at hand of a tensor that is cut, or the only slot of one that is not.
    fn slot(&self, tensor: TensorId) -> Slot {
        match self.slots[&tensor][..] {
            [slot] => slot,
            ref tiles => tiles[self.tile],
        }
    }

    fn operand(&mut self, place: usize) -> Mat {
        self.mat(self.program.inputs(self.op)[place])
    }

    fn output(&mut self) -> Mat {
        self.mat(self.program.op_outputs(self.op)[0])
    }

    fn mat(&mut self, tensor: TensorId) -> Mat {
        let ty = self.program.tensor(tensor).ty;
        let rows = self.table.tile(self.tile).rows(ty.rows) as usize;
        let float = ty.dtype.float().expect("a call's matrices are of floating-point numbers");
        Mat { slot: self.slot(tensor), rows, cols: ty.width, float }
    }
}
