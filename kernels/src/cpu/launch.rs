//! From a [`Call`] over slots to a kernel over slices.

use super::dropout::{dropout, sparse_dropout};
use super::elementwise::{add, add_bias, column_sum, pack, permute_edges, relu, relu_grad, row_scale, transpose};
use super::fused::{launch_fused, read_clock};
use super::layer_norm::{layer_norm, layer_norm_gain_grad, layer_norm_input_grad};
use super::linear::{linear, linear_input_grad, linear_weight_grad, linear_weight_grad_workspace_bytes};
use super::loss::{count_correct, softmax_cross_entropy, softmax_cross_entropy_grad};
use super::multi_label::{count_micro, sigmoid_cross_entropy, sigmoid_cross_entropy_grad};
use super::optimizer::{adam, sgd};
use super::slots::Open;
use crate::call::{Call, Mat, Summed, concat_len};
use crate::error::{Error, Result, check_shape};
use crate::memory::Slot;
use crate::step::{AdamStep, SgdStep};
use crate::view::{MultiTargets, Targets};

/// Runs one call to its end. Everything is opened, and so checked for its size, before anything is written.
pub(super) fn launch(slots: &Open<'_>, call: &Call) -> Result<()> {
    call.stored()?;
    match call {
        Call::Gather { .. } | Call::GatherWindow { .. } => launch_fused(slots, call, &[]),
        Call::Pack { .. }
        | Call::RowScale { .. }
        | Call::Dropout { .. }
        | Call::SparseDropout { .. }
        | Call::PermuteEdges { .. } => launch_sparse(slots, call),
        Call::Linear { x, weight, out } => {
            let (x, weight) = (slots.mat(*x)?, slots.mat(*weight)?);
            linear(x.view(), weight.view(), slots.mat_mut(*out)?.view())
        }
        Call::LinearInputGrad { grad, weight, out } => {
            let (grad, weight) = (slots.mat(*grad)?, slots.mat(*weight)?);
            linear_input_grad(grad.view(), weight.view(), slots.mat_mut(*out)?.view())
        }
        Call::LinearWeightGrad { grad, x, out, workspace } => {
            let need_bytes = linear_weight_grad_workspace_bytes(x.rows as u64, x.cols as u64, grad.cols as u64);
            let (grad, x) = (slots.mat(*grad)?, slots.mat(*x)?);
            let mut room = workspace.map(|slot| slots.vec_mut(slot, need_bytes as usize / 4)).transpose()?;
            let room = room.as_mut().map_or(&mut [][..], |room| room.view());
            linear_weight_grad(grad.view(), x.view(), slots.mat_mut(*out)?.view(), room)
        }
        Call::Round { x, out } => {
            check_shape("round", "out", [x.rows, x.cols], [out.rows, out.cols])?;
            slots.mat_mut(*out)?.view().data().copy_from_slice(slots.mat(*x)?.view().data());
            Ok(())
        }
        Call::Transpose { x, out } => transpose(slots.mat(*x)?.view(), slots.mat_mut(*out)?.view()),
        Call::AddBias { x, bias, out } => {
            let bias = slots.vec(*bias, x.cols)?;
            add_bias(slots.mat(*x)?.view(), bias.view(), slots.mat_mut(*out)?.view())
        }
        Call::ColumnSum { x, out } => {
            let cols = x.cols;
            column_sum(slots.mat(*x)?.view(), slots.vec_mut(*out, cols)?.view())
        }
        Call::Add { a, b, out } => {
            let (a, b) = (slots.mat(*a)?, slots.mat(*b)?);
            add(a.view(), b.view(), slots.mat_mut(*out)?.view())
        }
        Call::Relu { x, out } => relu(slots.mat(*x)?.view(), slots.mat_mut(*out)?.view()),
        Call::ReluGrad { grad, y, out } => {
            let (grad, y) = (slots.mat(*grad)?, slots.mat(*y)?);
            relu_grad(grad.view(), y.view(), slots.mat_mut(*out)?.view())
        }
        Call::SoftmaxCrossEntropy { .. } | Call::SoftmaxCrossEntropyGrad { .. } | Call::CountCorrect { .. } => {
            launch_loss(slots, call)
        }
        Call::LayerNorm { .. } | Call::LayerNormInputGrad { .. } | Call::LayerNormGainGrad { .. } => {
            launch_layer_norm(slots, call)
        }
        Call::SigmoidCrossEntropy { .. } | Call::SigmoidCrossEntropyGrad { .. } | Call::CountMicro { .. } => {
            launch_multi_label(slots, call)
        }
        Call::Fused { head, steps } => launch_fused(slots, head, steps),
        Call::Fetch { .. } => Err(Error::NoPeers),
        Call::Accumulate { head, sum } => launch_accumulate(slots, head, *sum),
        Call::Concat { parts, out } => launch_concat(slots, parts, *out),
        Call::Sgd { .. } | Call::Adam { .. } => launch_optimizer(slots, call),
    }
}

fn launch_concat(slots: &Open<'_>, parts: &[(Slot, usize)], out: Slot) -> Result<()> {
    let opened = parts.iter().map(|&(part, len)| slots.vec::<f32>(part, len)).collect::<Result<Vec<_>>>()?;
    let mut out = slots.vec_mut::<f32>(out, concat_len(parts))?;
    let mut rest = out.view();
    for part in &opened {
        let (place, after) = rest.split_at_mut(part.view().len());
        place.copy_from_slice(part.view());
        rest = after;
    }
    Ok(())
}

/// The head, and then what it is added to.
fn launch_accumulate(slots: &Open<'_>, head: &Call, sum: Slot) -> Result<()> {
    match head.summed() {
        None => Err(Error::NoSum { call: head.name() }),
        Some(Summed::Floats(out, len)) => {
            let sum = slots.vec::<f32>(sum, len)?;
            launch(slots, head)?;
            slots.vec_mut::<f32>(out, len)?.view().iter_mut().zip(sum.view()).for_each(|(out, sum)| *out += sum);
            Ok(())
        }
        Some(Summed::Counts(out, len)) => {
            let sum = slots.vec::<u64>(sum, len)?;
            launch(slots, head)?;
            slots.vec_mut::<u64>(out, len)?.view().iter_mut().zip(sum.view()).for_each(|(out, sum)| *out += sum);
            Ok(())
        }
    }
}

fn launch_sparse(slots: &Open<'_>, call: &Call) -> Result<()> {
    match call {
        Call::Pack { x, rows, out } => {
            let rows = slots.vec(*rows, out.rows)?;
            pack(slots.mat(*x)?.view(), rows.view(), slots.mat_mut(*out)?.view())
        }
        Call::RowScale { x, scale, out } => {
            let scale = slots.vec(*scale, x.rows)?;
            row_scale(slots.mat(*x)?.view(), scale.view(), slots.mat_mut(*out)?.view())
        }
        Call::Dropout { x, out, key, clock } => {
            let [epoch, _] = read_clock(slots, *clock)?;
            dropout(slots.mat(*x)?.view(), *key, epoch, slots.mat_mut(*out)?.view())
        }
        Call::SparseDropout { block, values, out, key, clock } => {
            let [epoch, _] = read_clock(slots, *clock)?;
            let edges = block.edges;
            let (block, values) = (slots.block(*block)?, slots.vec(*values, edges)?);
            sparse_dropout(block.view(), values.view(), *key, epoch, slots.vec_mut(*out, edges)?.view())
        }
        Call::PermuteEdges { values, permutation, out, edges } => {
            let (values, permutation) = (slots.vec(*values, *edges)?, slots.vec(*permutation, *edges)?);
            permute_edges(values.view(), permutation.view(), slots.vec_mut(*out, *edges)?.view())
        }
        _ => unreachable!("launch() sends no other call here"),
    }
}

fn launch_loss(slots: &Open<'_>, call: &Call) -> Result<()> {
    let open = |logits: &Mat, labels: &Slot, split: &Slot| {
        Ok((slots.mat(*logits)?, slots.vec(*labels, logits.rows)?, slots.vec(*split, logits.rows)?))
    };
    match call {
        Call::SoftmaxCrossEntropy { logits, labels, split, select, count, loss } => {
            let (logits, labels, split) = open(logits, labels, split)?;
            let targets = Targets { labels: labels.view(), split: split.view(), select: *select };
            let mut loss = slots.vec_mut(*loss, 1)?;
            loss.view()[0] = softmax_cross_entropy(logits.view(), targets, *count)?;
            Ok(())
        }
        Call::SoftmaxCrossEntropyGrad { logits, labels, split, select, count, out } => {
            let (logits, labels, split) = open(logits, labels, split)?;
            let targets = Targets { labels: labels.view(), split: split.view(), select: *select };
            softmax_cross_entropy_grad(logits.view(), targets, *count, slots.mat_mut(*out)?.view())
        }
        Call::CountCorrect { logits, labels, split, select, out } => {
            let (logits, labels, split) = open(logits, labels, split)?;
            let targets = Targets { labels: labels.view(), split: split.view(), select: *select };
            let mut out = slots.vec_mut(*out, 2)?;
            out.view().copy_from_slice(&count_correct(logits.view(), targets)?);
            Ok(())
        }
        _ => unreachable!("launch() sends no other call here"),
    }
}

fn launch_multi_label(slots: &Open<'_>, call: &Call) -> Result<()> {
    let open = |logits: &Mat, targets: &Slot, split: &Slot| {
        let matrix = slots.mat(*logits)?;
        Ok((matrix, slots.vec(*targets, logits.rows * logits.cols)?, slots.vec(*split, logits.rows)?))
    };
    match call {
        Call::SigmoidCrossEntropy { logits, targets, split, select, count, loss } => {
            let (classes, select) = (logits.cols, *select);
            let (logits, targets, split) = open(logits, targets, split)?;
            let targets = MultiTargets { targets: targets.view(), classes, split: split.view(), select };
            let mut loss = slots.vec_mut(*loss, 1)?;
            loss.view()[0] = sigmoid_cross_entropy(logits.view(), targets, *count)?;
            Ok(())
        }
        Call::SigmoidCrossEntropyGrad { logits, targets, split, select, count, out } => {
            let (classes, select) = (logits.cols, *select);
            let (logits, targets, split) = open(logits, targets, split)?;
            let targets = MultiTargets { targets: targets.view(), classes, split: split.view(), select };
            sigmoid_cross_entropy_grad(logits.view(), targets, *count, slots.mat_mut(*out)?.view())
        }
        Call::CountMicro { logits, targets, split, select, out } => {
            let (classes, select) = (logits.cols, *select);
            let (logits, targets, split) = open(logits, targets, split)?;
            let targets = MultiTargets { targets: targets.view(), classes, split: split.view(), select };
            let mut out = slots.vec_mut(*out, 3)?;
            out.view().copy_from_slice(&count_micro(logits.view(), targets)?);
            Ok(())
        }
        _ => unreachable!("launch() sends no other call here"),
    }
}

fn launch_layer_norm(slots: &Open<'_>, call: &Call) -> Result<()> {
    match call {
        Call::LayerNorm { x, gain, bias, eps, out } => {
            let (gain, bias) = (slots.vec(*gain, x.cols)?, slots.vec(*bias, x.cols)?);
            layer_norm(slots.mat(*x)?.view(), gain.view(), bias.view(), *eps, slots.mat_mut(*out)?.view())
        }
        Call::LayerNormInputGrad { grad, x, gain, eps, out } => {
            let gain = slots.vec(*gain, x.cols)?;
            let (grad, x) = (slots.mat(*grad)?, slots.mat(*x)?);
            layer_norm_input_grad(grad.view(), x.view(), gain.view(), *eps, slots.mat_mut(*out)?.view())
        }
        Call::LayerNormGainGrad { grad, x, eps, out } => {
            let cols = x.cols;
            let (grad, x) = (slots.mat(*grad)?, slots.mat(*x)?);
            layer_norm_gain_grad(grad.view(), x.view(), *eps, slots.vec_mut(*out, cols)?.view())
        }
        _ => unreachable!("launch() sends no other call here"),
    }
}

fn launch_optimizer(slots: &Open<'_>, call: &Call) -> Result<()> {
    match call {
        Call::Sgd { param, grad, moment, out, window, clock, rate, momentum, weight_decay } => {
            let [_, step] = read_clock(slots, *clock)?;
            let rate = f64::from(slots.vec::<f32>(*rate, 1)?.view()[0]);
            let step = SgdStep { step, rate, momentum: *momentum, weight_decay: *weight_decay };
            let (param, grad) = (slots.vec(*param, window.end())?, slots.vec(*grad, window.end())?);
            let mut moment = match moment {
                Some([old, new]) => Some((slots.vec(*old, window.len)?, slots.vec_mut(*new, window.len)?)),
                None => None,
            };
            let moment = moment.as_mut().map(|(old, new)| (old.view(), new.view()));
            let (param, grad) = (&param.view()[window.first..], &grad.view()[window.first..]);
            sgd(param, grad, moment, slots.vec_mut(*out, window.len)?.view(), step)
        }
        Call::Adam { param, grad, m, v, out, window, clock, rate, beta1, beta2, eps, weight_decay, decoupled } => {
            let [_, step] = read_clock(slots, *clock)?;
            let rate = f64::from(slots.vec::<f32>(*rate, 1)?.view()[0]);
            let (beta1, beta2, eps, weight_decay, decoupled) = (*beta1, *beta2, *eps, *weight_decay, *decoupled);
            let step = AdamStep { step, rate, beta1, beta2, eps, weight_decay, decoupled };
            let (param, grad) = (slots.vec(*param, window.end())?, slots.vec(*grad, window.end())?);
            let (m, v) = (slots.vec(*m, window.len)?, slots.vec(*v, window.len)?);
            let [param_out, m_out, v_out] = out.map(|slot| slots.vec_mut(slot, window.len));
            let (mut param_out, mut m_out, mut v_out) = (param_out?, m_out?, v_out?);
            let new = [param_out.view(), m_out.view(), v_out.view()];
            let (param, grad) = (&param.view()[window.first..], &grad.view()[window.first..]);
            adam([param, m.view(), v.view()], grad, new, step)
        }
        _ => unreachable!("launch() sends no other call here"),
    }
}
