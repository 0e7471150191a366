//! Launches of losses over selected rows, their gradients, and counts of correct predictions.

use super::args;
use super::compile::File;
use super::engine::Task;
use super::linear::Cut;
use super::prepare::{Plan, blocks_of_warps};
use crate::error::Result;
use crate::op::Loss;
use crate::op::call::{Call, Mat, Part};
use crate::storage_type::StorageType;

/// Most parts of a sum over rows, and fewest rows per part.
const MOST_PARTS: usize = 1024;
const LEAST_ROWS: usize = 64;

impl Plan<'_> {
    pub(super) fn loss(&mut self, op: Loss, call: &Call) -> Result<()> {
        let (logits, out, Part { select, count, .. }) = (call.inputs[0], call.out(), call.part);
        let (name, text) = (call.name(), File::Losses.over(logits.float()));
        let args = args::Loss {
            logits: self.mat(logits)?,
            targets: call.inputs.get(1).map_or(Ok(0), |&targets| self.mat(targets))?,
            split: call.inputs.get(2).map_or(Ok(0), |&split| self.mat(split))?,
            weights: call.inputs.get(3).map_or(Ok(0), |&weights| self.mat(weights))?,
            out: self.mat(out)?,
            partial: 0,
            rows: logits.rows as u64,
            rows_of_part: 0,
            count,
            classes: logits.cols as u32,
            select,
        };
        match op {
            Loss::SoftmaxCrossEntropy(_) | Loss::WeightedSoftmaxCrossEntropy(_) => {
                self.mean(name, args, logits, count as f64)
            }
            Loss::SigmoidCrossEntropy(_) => self.mean(name, args, logits, count as f64 * logits.cols as f64),
            Loss::HalfSquares => self.mean(name, args, logits, 2.0),
            Loss::SoftmaxCrossEntropyGrad(_)
            | Loss::WeightedSoftmaxCrossEntropyGrad(_)
            | Loss::SigmoidCrossEntropyGrad(_) => {
                self.kernel(text, name, blocks_of_warps(logits.rows), &args);
                Ok(())
            }
            Loss::CountCorrect(_) | Loss::CountMicro(_) => {
                self.add(Task::Zero { address: args.out, bytes: 8 * out.cols as u64 });
                self.kernel(text, name, blocks_of_warps(logits.rows), &args::Loss { count: 0, ..args });
                Ok(())
            }
        }
    }

    /// Prepares the sum over the selected rows, divided by `divisor`.
    fn mean(&mut self, name: &'static str, args: args::Loss, logits: Mat, divisor: f64) -> Result<()> {
        let cut = Cut::new(logits.rows, MOST_PARTS, LEAST_ROWS);
        let partial = self.partials(cut.parts.max(1))?;
        let (out, args) = (args.out, args::Loss { out: 0, partial, rows_of_part: cut.rows as u64, ..args });
        self.kernel(File::Losses.over(logits.float()), name, [cut.parts, 1], &args);
        let args = args::Finish { partial, out, parts: cut.parts as u64, divisor };
        self.kernel(File::Sums.over(StorageType::F32), "mean_finish", [1, 1], &args);
        Ok(())
    }
}
