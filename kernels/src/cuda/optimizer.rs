//! Launches of optimizer steps.

use super::args;
use super::compile::File;
use super::prepare::{Plan, blocks_of_cells};
use crate::error::Result;
use crate::op::Optimizer;
use crate::op::call::Call;
use crate::storage_type::StorageType;

impl Plan<'_> {
    pub(super) fn optimizer(&mut self, op: Optimizer, call: &Call) -> Result<()> {
        let (window, len) = (call.part.window, call.part.window.len);
        let (name, text) = (call.name(), File::Optimizers.over(StorageType::F32));
        match (op, &call.inputs[..], &call.outputs[..]) {
            (Optimizer::Sgd { momentum, weight_decay }, &[param, grad, clock, rate, ref m @ ..], outputs) => {
                let args = args::Sgd {
                    param: self.updated(param, window)?,
                    grad: self.updated(grad, window)?,
                    moment: m.first().map_or(Ok(0), |&m| self.mat(m))?,
                    next_moment: outputs.get(1).map_or(Ok(0), |&m| self.mat(m))?,
                    out: self.mat(call.out())?,
                    clock: self.mat(clock)?,
                    rate: self.mat(rate)?,
                    len: len as u64,
                    momentum: momentum as f32,
                    decay: weight_decay as f32,
                };
                self.kernel(text, name, blocks_of_cells(len), &args);
            }
            (
                Optimizer::Adam { beta1, beta2, eps, weight_decay, decoupled },
                &[param, grad, m, v, clock, rate],
                &[out, next_m, next_v],
            ) => {
                let args = args::Adam {
                    clock: self.mat(clock)?,
                    rate: self.mat(rate)?,
                    param: self.updated(param, window)?,
                    grad: self.updated(grad, window)?,
                    m: self.mat(m)?,
                    v: self.mat(v)?,
                    out: self.mat(out)?,
                    next_m: self.mat(next_m)?,
                    next_v: self.mat(next_v)?,
                    len: len as u64,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    decoupled: u64::from(decoupled),
                };
                self.kernel(text, name, blocks_of_cells(len), &args);
            }
            _ => unreachable!("a call has the operands of its record"),
        }
        Ok(())
    }
}
