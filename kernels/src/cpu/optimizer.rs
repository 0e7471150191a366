//! Optimizer steps, rounded where PyTorch rounds: scalars in `f64`, elements in `f32`.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::parallel::CHUNK;
use crate::error::{Result, check_shape};
use crate::step::{AdamStep, SgdStep};

/// Stochastic gradient descent: `g = grad + decay * param`; `m = momentum * m + g` (`m = g` at step 1);
/// `param -= rate * m`. Without a moment, `m` is `g`.
///
/// # Shapes
/// All of one length.
/// # Errors
/// [`crate::Error::Shape`]; nothing is then written.
/// # Source
/// `torch.optim.SGD` without dampening.
pub fn sgd(param: &mut [f32], grad: &[f32], moment: Option<&mut [f32]>, step: SgdStep) -> Result<()> {
    let len = param.len();
    check_shape("sgd", "grad", [len, 1], [grad.len(), 1])?;
    let (rate, momentum, decay) = (step.rate as f32, step.momentum as f32, step.weight_decay as f32);
    let first = step.step <= 1;
    let Some(moment) = moment else {
        param.par_chunks_mut(CHUNK).zip(grad.par_chunks(CHUNK)).for_each(|(param, grad)| {
            Arch::new().dispatch(|| {
                for (param, &grad) in param.iter_mut().zip(grad) {
                    *param -= rate * (grad + decay * *param);
                }
            });
        });
        return Ok(());
    };
    check_shape("sgd", "moment", [len, 1], [moment.len(), 1])?;
    let parts = param.par_chunks_mut(CHUNK).zip(grad.par_chunks(CHUNK)).zip(moment.par_chunks_mut(CHUNK));
    parts.for_each(|((param, grad), moment)| {
        Arch::new().dispatch(|| {
            for ((param, &grad), moment) in param.iter_mut().zip(grad).zip(moment) {
                let g = grad + decay * *param;
                *moment = if first { g } else { momentum * *moment + g };
                *param -= rate * *moment;
            }
        });
    });
    Ok(())
}

/// Adam, or AdamW. With `t` the step: `g = grad + decay * param`; `m += (1 - beta1) (g - m)`;
/// `v = beta2 v + (1 - beta2) g^2`;
/// `param -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)`.
///
/// # Shapes
/// All of one length. The moments are 0 before step 1.
/// # Errors
/// [`crate::Error::Shape`]; nothing is then written.
/// # Source
/// `torch.optim.Adam` and `torch.optim.AdamW`; Kingma & Ba 2015, Loshchilov & Hutter 2019.
pub fn adam(param: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], step: AdamStep) -> Result<()> {
    const CALL: &str = "adam";
    let len = param.len();
    check_shape(CALL, "grad", [len, 1], [grad.len(), 1])?;
    check_shape(CALL, "m", [len, 1], [m.len(), 1])?;
    check_shape(CALL, "v", [len, 1], [v.len(), 1])?;
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
    let parts = param.par_chunks_mut(CHUNK).zip(grad.par_chunks(CHUNK));
    let parts = parts.zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)));
    parts.for_each(|((param, grad), (m, v))| Arch::new().dispatch(AdamPart { update, param, grad, m, v }));
    Ok(())
}

/// What an element's step needs, rounded once.
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
    param: &'a mut [f32],
    grad: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl WithSimd for AdamPart<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { update, param, grad, m, v } = self;
        for ((param, &grad), (m, v)) in param.iter_mut().zip(grad).zip(m.iter_mut().zip(v)) {
            let p = *param * update.shrink;
            let g = grad + update.decay * p;
            *m += update.gain1 * (g - *m);
            *v = update.keep2 * *v + update.gain2 * g * g;
            *param = p - update.step_size * *m / (v.sqrt() / update.root_correction + update.eps);
        }
    }
}
