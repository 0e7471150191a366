//! Optimizer steps, rounded where PyTorch rounds: scalars are `f64`, elements `f32`.

use pulp::{Arch, Simd, WithSimd};

use super::parallel::{CHUNK, for_each};
use super::slots::Open;
use crate::error::{Result, check_shape};
use crate::op::call::{Call, Mat};
use crate::op::{Optimizer, adam_step, sgd_step};
use crate::step::{AdamStep, SgdStep};

pub(super) fn launch(slots: &Open<'_>, op: Optimizer, call: &Call) -> Result<()> {
    let window = call.part.window.first..;
    let settings = |clock: Mat, rate: Mat| {
        let [_, step] = slots.clock(clock)?;
        Ok((step, f64::from(slots.numbers::<f32>(rate)?.view()[0])))
    };
    match (op, &call.inputs[..], &call.outputs[..]) {
        (Optimizer::Sgd { .. }, &[param, grad, clock, rate, ref old @ ..], &[out, ref new @ ..]) => {
            let (step, rate) = settings(clock, rate)?;
            let (param, grad) = (slots.numbers(param)?, slots.numbers(grad)?);
            let mut moment = match (old, new) {
                (&[old], &[new]) => Some((slots.numbers(old)?, slots.numbers_mut(new)?)),
                _ => None,
            };
            let moment = moment.as_mut().map(|(old, new)| (old.view(), new.view()));
            let (param, grad) = (&param.view()[window.clone()], &grad.view()[window]);
            sgd(param, grad, moment, slots.numbers_mut(out)?.view(), sgd_step(&call.op, step, rate))
        }
        (Optimizer::Adam { .. }, &[param, grad, m, v, clock, rate], &[param_out, m_out, v_out]) => {
            let (step, rate) = settings(clock, rate)?;
            let (param, grad) = (slots.numbers(param)?, slots.numbers(grad)?);
            let (m, v) = (slots.numbers(m)?, slots.numbers(v)?);
            let [mut param_out, mut m_out, mut v_out] =
                [slots.numbers_mut(param_out)?, slots.numbers_mut(m_out)?, slots.numbers_mut(v_out)?];
            let new = [param_out.view(), m_out.view(), v_out.view()];
            let (param, grad) = (&param.view()[window.clone()], &grad.view()[window]);
            adam([param, m.view(), v.view()], grad, new, adam_step(&call.op, step, rate))
        }
        _ => unreachable!("a call has the operands of its record"),
    }
}

/// One step of stochastic gradient descent: `g = grad + decay * param`; `m = momentum * m + g` (`m = g` at step 1);
/// `out = param - rate * m`. Without a moment, `m` is `g`.
///
/// # Shapes
/// All slices have the same length; `moment` has the old and the new value of `m`.
/// # Errors
/// [`crate::Error::Shape`]; nothing is written then.
/// # Source
/// `torch.optim.SGD` without dampening.
pub fn sgd(
    param: &[f32],
    grad: &[f32],
    moment: Option<(&[f32], &mut [f32])>,
    out: &mut [f32],
    step: SgdStep,
) -> Result<()> {
    let len = out.len();
    for (operand, got) in [("param", param.len()), ("grad", grad.len())] {
        check_shape("sgd", operand, [len, 1], [got, 1])?;
    }
    let (rate, momentum, decay) = (step.rate as f32, step.momentum as f32, step.weight_decay as f32);
    let first = step.step <= 1;
    let old = param.chunks(CHUNK).zip(grad.chunks(CHUNK));
    let Some((moment, next)) = moment else {
        for_each(old.zip(out.chunks_mut(CHUNK)), |((param, grad), out)| {
            Arch::new().dispatch(|| {
                for ((&param, &grad), out) in param.iter().zip(grad).zip(out) {
                    *out = param - rate * (grad + decay * param);
                }
            });
        });
        return Ok(());
    };
    for (operand, got) in [("moment", moment.len()), ("next moment", next.len())] {
        check_shape("sgd", operand, [len, 1], [got, 1])?;
    }
    let new = out.chunks_mut(CHUNK).zip(next.chunks_mut(CHUNK));
    for_each(old.zip(moment.chunks(CHUNK)).zip(new), |(((param, grad), moment), (out, next))| {
        Arch::new().dispatch(|| {
            let new = out.iter_mut().zip(next.iter_mut());
            for (((&param, &grad), &moment), (out, next)) in param.iter().zip(grad).zip(moment).zip(new) {
                let g = grad + decay * param;
                *next = if first { g } else { momentum * moment + g };
                *out = param - rate * *next;
            }
        });
    });
    Ok(())
}

/// One step of Adam or AdamW. With `t` the step: `g = grad + decay * param`; `m += (1 - beta1) (g - m)`;
/// `v = beta2 v + (1 - beta2) g^2`;
/// `param -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)`.
///
/// # Shapes
/// All slices have the same length. `old` and `new` are `[param, m, v]`; the moments are 0 before step 1.
/// # Errors
/// [`crate::Error::Shape`]; nothing is written then.
/// # Source
/// `torch.optim.Adam` and `torch.optim.AdamW`; Kingma & Ba 2015, Loshchilov & Hutter 2019.
pub fn adam(old: [&[f32]; 3], grad: &[f32], new: [&mut [f32]; 3], step: AdamStep) -> Result<()> {
    let len = old[0].len();
    let lens = [grad.len(), old[1].len(), old[2].len(), new[0].len(), new[1].len(), new[2].len()];
    for (operand, got) in ["grad", "m", "v", "next param", "next m", "next v"].into_iter().zip(lens) {
        check_shape("adam", operand, [len, 1], [got, 1])?;
    }
    let AdamStep { rate, beta1, beta2, weight_decay, .. } = step;
    let t = step.step.max(1) as f64;
    let decoupled = if step.decoupled { rate * weight_decay } else { 0.0 };
    let update = AdamUpdate {
        step_size: (rate / (1.0 - beta1.powf(t))) as f32,
        root_correction: (1.0 - beta2.powf(t)).sqrt() as f32,
        gain1: (1.0 - beta1) as f32,
        keep2: beta2 as f32,
        gain2: (1.0 - beta2) as f32,
        eps: step.eps as f32,
        shrink: (1.0 - decoupled) as f32,
        decay: if step.decoupled { 0.0 } else { weight_decay as f32 },
    };
    let [param, m, v] = old.map(|old| old.chunks(CHUNK));
    let [param_out, m_out, v_out] = new.map(|new| new.chunks_mut(CHUNK));
    let old = param.zip(m).zip(v).zip(grad.chunks(CHUNK));
    for_each(old.zip(param_out.zip(m_out).zip(v_out)), |((((param, m), v), grad), ((param_out, m_out), v_out))| {
        Arch::new().dispatch(AdamPart { update, old: [param, m, v], grad, new: [param_out, m_out, v_out] });
    });
    Ok(())
}

/// The scalars of a step, rounded once.
#[derive(Clone, Copy)]
struct AdamUpdate {
    step_size: f32,
    root_correction: f32,
    gain1: f32,
    keep2: f32,
    gain2: f32,
    eps: f32,
    shrink: f32,
    decay: f32,
}

struct AdamPart<'a> {
    update: AdamUpdate,
    old: [&'a [f32]; 3],
    grad: &'a [f32],
    new: [&'a mut [f32]; 3],
}

impl WithSimd for AdamPart<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { update, old: [param, m, v], grad, new: [param_out, m_out, v_out] } = self;
        let old = param.iter().zip(grad).zip(m.iter().zip(v));
        let new = param_out.iter_mut().zip(m_out.iter_mut().zip(v_out));
        for (((&param, &grad), (&m, &v)), (param_out, (m_out, v_out))) in old.zip(new) {
            let p = param * update.shrink;
            let g = grad + update.decay * p;
            *m_out = m + update.gain1 * (g - m);
            *v_out = update.keep2 * v + update.gain2 * g * g;
            *param_out = p - update.step_size * *m_out / (v_out.sqrt() / update.root_correction + update.eps);
        }
    }
}
