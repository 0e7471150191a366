//! Launches of layer normalisation and its gradients.

use super::args;
use super::compile::File;
use super::prepare::{Plan, blocks_of_cells, blocks_of_warps};
use crate::error::{Error, Result};
use crate::op::Norm;
use crate::op::call::Call;
use crate::storage_type::StorageType;

impl Plan<'_> {
    pub(super) fn norm(&mut self, op: Norm, call: &Call) -> Result<()> {
        let (name, first, second, out) = (call.name(), call.inputs[0], call.inputs[1], call.out());
        let (Norm::Layer { eps } | Norm::InputGrad { eps } | Norm::GainGrad { eps }) = op;
        let (first_at, second_at, out_at) = (self.mat(first)?, self.mat(second)?, self.mat(out)?);
        let third_at = call.inputs.get(2).map_or(Ok(0), |&third| self.mat(third))?;
        check_eps(name, eps)?;
        let none = args::LayerNorm {
            grad: 0,
            x: 0,
            gain: 0,
            bias: 0,
            out: out_at,
            partial: 0,
            rows: first.rows as u64,
            rows_of_part: 0,
            d: first.cols as u64,
            eps: f64::from(eps),
        };
        let text = File::LayerNorm.over(first.float());
        match op {
            Norm::Layer { .. } => {
                let args = args::LayerNorm { x: first_at, gain: second_at, bias: third_at, ..none };
                self.kernel(text, name, blocks_of_warps(first.rows), &args);
            }
            Norm::InputGrad { .. } => {
                let args = args::LayerNorm { grad: first_at, x: second_at, gain: third_at, ..none };
                self.kernel(text, name, blocks_of_warps(first.rows), &args);
            }
            Norm::GainGrad { .. } => {
                let (cut, sums) = self.columns(first, out_at)?;
                let (partial, rows_of_part) = (sums.partial, cut.rows as u64);
                let args = args::LayerNorm { grad: first_at, x: second_at, out: 0, partial, rows_of_part, ..none };
                self.kernel(text, "layer_norm_gain_partials", [cut.parts, 1], &args);
                self.kernel(File::Sums.over(StorageType::F32), "column_finish", blocks_of_cells(first.cols), &sums);
            }
        }
        Ok(())
    }
}

fn check_eps(call: &'static str, eps: f32) -> Result<()> {
    let got = f64::from(eps);
    if got >= 0.0 { Ok(()) } else { Err(Error::Argument { call, operand: "eps", want: "at least 0", got }) }
}
