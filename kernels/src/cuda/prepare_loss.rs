//! Losses on a selection of rows, their gradients, and counts of right answers.

use super::args;
use super::compile::File;
use super::engine::Task;
use super::prepare::{Plan, blocks_of_warps, check_same};
use super::prepare_dense::Cut;
use crate::call::{Call, Mat};
use crate::error::Result;
use crate::float::Float;
use crate::memory::Slot;

/// Most parts of a sum over rows, and fewest rows of one.
const MOST_PARTS: usize = 1024;
const LEAST_ROWS: usize = 64;

impl Plan<'_> {
    pub(super) fn loss(&mut self, call: &Call) -> Result<()> {
        let name = call.name();
        match *call {
            Call::SoftmaxCrossEntropy { logits, labels, split, select, count, loss } => {
                let args = self.labels(logits, labels, split, select, count)?;
                self.mean(name, args, logits, loss, count as f64)
            }
            Call::SigmoidCrossEntropy { logits, targets, split, select, count, loss } => {
                let args = self.targets(logits, targets, split, select, count)?;
                self.mean(name, args, logits, loss, count as f64 * logits.cols as f64)
            }
            Call::SoftmaxCrossEntropyGrad { logits, labels, split, select, count, out } => {
                let args = self.labels(logits, labels, split, select, count)?;
                self.grad(name, args, logits, out)
            }
            Call::SigmoidCrossEntropyGrad { logits, targets, split, select, count, out } => {
                let args = self.targets(logits, targets, split, select, count)?;
                self.grad(name, args, logits, out)
            }
            Call::CountCorrect { logits, labels, split, select, out } => {
                let args = self.labels(logits, labels, split, select, 0)?;
                self.count(name, args, logits, out, 2)
            }
            Call::CountMicro { logits, targets, split, select, out } => {
                let args = self.targets(logits, targets, split, select, 0)?;
                self.count(name, args, logits, out, 3)
            }
            _ => unreachable!("only losses come here"),
        }
    }

    fn labels(&self, logits: Mat, labels: Slot, split: Slot, select: u32, count: u64) -> Result<args::Loss> {
        let logits_at = self.mat(logits)?;
        self.selection(logits, logits_at, self.vec::<u32>(labels, logits.rows)?, split, select, count)
    }

    fn targets(&self, logits: Mat, targets: Slot, split: Slot, select: u32, count: u64) -> Result<args::Loss> {
        let logits_at = self.mat(logits)?;
        let targets = self.vec::<u8>(targets, logits.rows * logits.cols)?;
        self.selection(logits, logits_at, targets, split, select, count)
    }

    fn selection(
        &self,
        logits: Mat,
        logits_at: u64,
        targets: u64,
        split: Slot,
        select: u32,
        count: u64,
    ) -> Result<args::Loss> {
        let split = self.vec::<u32>(split, logits.rows)?;
        let (rows, classes) = (logits.rows as u64, logits.cols as u32);
        let (out, partial, rows_of_part) = (0, 0, 0);
        Ok(args::Loss { logits: logits_at, targets, split, out, partial, rows, rows_of_part, count, classes, select })
    }

    /// The sum over the selected rows, divided.
    fn mean(&mut self, name: &'static str, args: args::Loss, logits: Mat, loss: Slot, divisor: f64) -> Result<()> {
        let out = self.vec::<f32>(loss, 1)?;
        let cut = Cut::new(logits.rows, MOST_PARTS, LEAST_ROWS);
        let partial = self.partials(cut.parts.max(1))?;
        let args = args::Loss { partial, rows_of_part: cut.rows as u64, ..args };
        self.kernel(File::Losses.over(logits.float), name, [cut.parts, 1], &args);
        let args = args::Finish { partial, out, parts: cut.parts as u64, divisor };
        self.kernel(File::Sums.over(Float::F32), "mean_finish", [1, 1], &args);
        Ok(())
    }

    fn grad(&mut self, name: &'static str, args: args::Loss, logits: Mat, out: Mat) -> Result<()> {
        let args = args::Loss { out: self.mat(out)?, ..args };
        check_same(name, "out", logits, out)?;
        self.kernel(File::Losses.over(logits.float), name, blocks_of_warps(logits.rows), &args);
        Ok(())
    }

    fn count(&mut self, name: &'static str, args: args::Loss, logits: Mat, out: Slot, counts: usize) -> Result<()> {
        let out = self.vec::<u64>(out, counts)?;
        self.add(Task::Zero { address: out, bytes: 8 * counts as u64 });
        let text = File::Losses.over(logits.float);
        self.kernel(text, name, blocks_of_warps(logits.rows), &args::Loss { out, ..args });
        Ok(())
    }
}
