//! Optimizer steps, rounded where PyTorch rounds: scalars in `f64`, elements in `f32`.

use pulp::Arch;
use rayon::prelude::*;

use super::parallel::CHUNK;
use crate::error::{Result, check_shape};
use crate::step::{AdamStep, SgdStep, as_written};

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
    let (rate, momentum) = (step.rate, step.momentum);
    let decay = step.weight_decay;
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
    let (rate, beta1, beta2) = (as_written(step.rate), as_written(step.beta1), as_written(step.beta2));
    let t = step.step.max(1) as f64;
    let step_size = (rate / (1.0 - beta1.powf(t))) as f32;
    let root_correction = (1.0 - beta2.powf(t)).sqrt() as f32;
    let (gain1, keep2, gain2) = ((1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32);
    let eps = step.eps;
    let (shrink, decay) = if step.decoupled {
        ((1.0 - rate * as_written(step.weight_decay)) as f32, 0.0)
    } else {
        (1.0, step.weight_decay)
    };
    let parts = param.par_chunks_mut(CHUNK).zip(grad.par_chunks(CHUNK));
    let parts = parts.zip(m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)));
    parts.for_each(|((param, grad), (m, v))| {
        Arch::new().dispatch(|| {
            for ((param, &grad), (m, v)) in param.iter_mut().zip(grad).zip(m.iter_mut().zip(v)) {
                let p = *param * shrink;
                let g = grad + decay * p;
                *m += gain1 * (g - *m);
                *v = keep2 * *v + gain2 * g * g;
                *param = p - step_size * *m / (v.sqrt() / root_correction + eps);
            }
        });
    });
    Ok(())
}
