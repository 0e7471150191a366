//! Which slots a call uses, and how.

use super::{Call, RowStep};
use crate::memory::Slot;

/// How a call uses a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl RowStep {
    /// The slot that it reads beside the row.
    pub fn operand(&self) -> Option<Slot> {
        { *self }.operand_mut().copied()
    }

    fn operand_mut(&mut self) -> Option<&mut Slot> {
        match self {
            Self::Scale(slot) | Self::AddBias(slot) | Self::Add(slot) | Self::ReluGrad(slot) => Some(slot),
            Self::Dropout { clock, .. } => Some(clock),
            Self::Relu => None,
        }
    }
}

impl Call {
    /// Every slot that the call reads; some more than once.
    pub fn reads(&self) -> Vec<Slot> {
        self.operands(Access::Read)
    }

    /// Every slot that the call writes.
    pub fn writes(&self) -> Vec<Slot> {
        self.operands(Access::Write)
    }

    /// The same call over other slots.
    pub fn renamed(&self, name: impl Fn(Slot) -> Slot) -> Self {
        let mut call = self.clone();
        call.visit(&mut |slot, _| *slot = name(*slot));
        call
    }

    fn operands(&self, wanted: Access) -> Vec<Slot> {
        let mut slots = Vec::new();
        self.clone().visit(&mut |slot, access| slots.extend((access == wanted).then_some(*slot)));
        slots
    }

    /// Shows every operand's slot to `see`, and how it is used.
    fn visit(&mut self, see: &mut dyn FnMut(&mut Slot, Access)) {
        use Access::{Read, Write};
        let mut all = |reads: &mut [&mut Slot], writes: &mut [&mut Slot]| {
            reads.iter_mut().for_each(|slot| see(slot, Read));
            writes.iter_mut().for_each(|slot| see(slot, Write));
        };
        match self {
            Self::Gather { block, weights, own, halo, out } => {
                all(&mut [&mut block.indptr, &mut block.indices, &mut own.slot], &mut [&mut out.slot]);
                weights.iter_mut().chain(halo.as_mut().map(|halo| &mut halo.slot)).for_each(|slot| see(slot, Read));
            }
            Self::GatherWindow { block, weights, own, sum, out, .. } => {
                all(&mut [&mut block.indptr, &mut block.indices, &mut own.slot], &mut [&mut out.slot]);
                weights.iter_mut().chain(sum.as_mut().map(|sum| &mut sum.slot)).for_each(|slot| see(slot, Read));
            }
            Self::Accumulate { head, sum } => {
                head.visit(see);
                see(sum, Read);
            }
            Self::Pack { x, rows, out } => all(&mut [&mut x.slot, rows], &mut [&mut out.slot]),
            Self::Fetch { packed, rows, out } => all(&mut [packed, rows], &mut [&mut out.slot]),
            Self::RowScale { x, scale, out } => all(&mut [&mut x.slot, scale], &mut [&mut out.slot]),
            Self::Linear { x, weight, out } => all(&mut [&mut x.slot, &mut weight.slot], &mut [&mut out.slot]),
            Self::LinearInputGrad { grad, weight, out } => {
                all(&mut [&mut grad.slot, &mut weight.slot], &mut [&mut out.slot]);
            }
            Self::LinearWeightGrad { grad, x, out, workspace } => {
                all(&mut [&mut grad.slot, &mut x.slot], &mut [&mut out.slot]);
                workspace.iter_mut().for_each(|slot| see(slot, Write));
            }
            Self::Round { x, out } | Self::Transpose { x, out } | Self::Relu { x, out } => {
                all(&mut [&mut x.slot], &mut [&mut out.slot])
            }
            Self::AddBias { x, bias, out } => all(&mut [&mut x.slot, bias], &mut [&mut out.slot]),
            Self::ColumnSum { x, out } => all(&mut [&mut x.slot], &mut [out]),
            Self::Add { a, b, out } => all(&mut [&mut a.slot, &mut b.slot], &mut [&mut out.slot]),
            Self::ReluGrad { grad, y, out } => all(&mut [&mut grad.slot, &mut y.slot], &mut [&mut out.slot]),
            Self::LayerNorm { x, gain, bias, out, .. } => all(&mut [&mut x.slot, gain, bias], &mut [&mut out.slot]),
            Self::LayerNormInputGrad { grad, x, gain, out, .. } => {
                all(&mut [&mut grad.slot, &mut x.slot, gain], &mut [&mut out.slot]);
            }
            Self::LayerNormGainGrad { grad, x, out, .. } => all(&mut [&mut grad.slot, &mut x.slot], &mut [out]),
            Self::Dropout { x, out, clock, .. } => all(&mut [&mut x.slot, clock], &mut [&mut out.slot]),
            Self::SparseDropout { block, values, out, clock, .. } => {
                all(&mut [&mut block.indptr, &mut block.indices, values, clock], &mut [out]);
            }
            Self::PermuteEdges { values, permutation, out, .. } => all(&mut [values, permutation], &mut [out]),
            Self::SoftmaxCrossEntropy { logits, labels: targets, split, loss: out, .. }
            | Self::CountCorrect { logits, labels: targets, split, out, .. }
            | Self::SigmoidCrossEntropy { logits, targets, split, loss: out, .. }
            | Self::CountMicro { logits, targets, split, out, .. } => {
                all(&mut [&mut logits.slot, targets, split], &mut [out]);
            }
            Self::SoftmaxCrossEntropyGrad { logits, labels: targets, split, out, .. }
            | Self::SigmoidCrossEntropyGrad { logits, targets, split, out, .. } => {
                all(&mut [&mut logits.slot, targets, split], &mut [&mut out.slot]);
            }
            Self::Fused { head, steps } => {
                head.visit(see);
                steps.iter_mut().filter_map(RowStep::operand_mut).for_each(|slot| see(slot, Read));
            }
            Self::Concat { parts, out } => {
                parts.iter_mut().for_each(|(part, _)| see(part, Read));
                see(out, Write);
            }
            Self::Sgd { param, grad, moment, out, clock, rate, .. } => {
                all(&mut [param, grad, clock, rate], &mut [out]);
                if let Some([old, new]) = moment {
                    see(old, Read);
                    see(new, Write);
                }
            }
            Self::Adam { param, grad, m, v, out: [param_out, m_out, v_out], clock, rate, .. } => {
                all(&mut [param, grad, m, v, clock, rate], &mut [param_out, m_out, v_out]);
            }
        }
    }
}
