//! Which vertices each device has, and moving them between epochs.

use std::ops::Range;
use std::time::Instant;

use super::Trainer;
use super::trainer::{EVALUATED_EPOCH, EVALUATION, PLAIN_EPOCH};
use crate::error::{Error, Result};
use crate::lower::Inputs;
use crate::model::Weights;
use crate::program::Program;
use crate::runtime::{Learner, RunOptions, Session, SessionSpec, SplitRecord};

/// All that a session is made of but its parts: kept, to make another one for other parts.
pub(super) struct Setup {
    pub options: RunOptions,
    pub training: Program,
    pub evaluation: Program,
    pub inputs: Inputs,
    pub eval_every: u64,
    pub seed: u64,
    pub keep: Vec<(usize, String)>,
    /// The last epoch that will run, as far as is known.
    pub epochs: u64,
}

/// What a session's kernels taught, and what a split costs.
pub(super) struct Learning {
    pub learner: Learner,
    /// Seconds that it took to make the last session.
    pub move_s: f64,
}

/// What a move did: see [`Trainer::last_move`].
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The first epoch with the new parts.
    pub epoch: u64,
    /// Predicted seconds of the slowest part in an epoch, before and after; `None` if the move was not for their sake.
    pub slowest_s: Option<[f64; 2]>,
    /// Seconds that the move took.
    pub seconds: f64,
}

impl Setup {
    pub(super) fn main(&self) -> &'static [usize] {
        if self.eval_every == 1 { EVALUATED_EPOCH } else { PLAIN_EPOCH }
    }

    pub(super) fn programs(&self) -> [(&'static str, &Program); 2] {
        [("train", &self.training), ("evaluate", &self.evaluation)]
    }

    /// Opens a session with these parts, in place of another if there is one.
    pub(super) fn open(&self, parts: Vec<Range<usize>>, old: Option<&mut Session>) -> Result<Session> {
        let job = SessionSpec {
            programs: &self.programs(),
            inputs: &self.inputs,
            parts,
            main: self.main(),
            others: match self.eval_every {
                0 => &[EVALUATION],
                1 => &[],
                _ => &[EVALUATED_EPOCH],
            },
            repeats: true,
            seed: self.seed,
            keep: &self.keep,
            plans: None,
        };
        match old {
            Some(old) => Session::open_in_place_of(old, &self.options, &job),
            None => Session::open(&self.options, &job),
        }
    }
}

impl Trainer {
    /// Every split so far, each from an epoch on; the last is the current one.
    pub fn splits(&self) -> &[SplitRecord] {
        &self.record.splits
    }

    /// The last time that vertices moved to other devices between epochs of this trainer, if they ever did.
    pub fn last_move(&self) -> Option<&Move> {
        self.last_move.as_ref()
    }

    /// Seconds that each part's kernels took in the last epoch whose kernels were timed: every one with several parts, and
    /// with one part those of a trace. Nothing before there was one.
    pub fn part_seconds(&self) -> &[f64] {
        &self.part_seconds
    }

    /// Of a learned split, seconds of each part's kernels in an epoch: as measured, as the profile predicts them, and as the cost
    /// model does that learned from them.
    #[cfg(feature = "command")]
    pub(crate) fn part_predictions(&self) -> Vec<[f64; 3]> {
        self.learning.as_ref().map_or_else(Vec::new, |learning| learning.learner.part_seconds())
    }

    /// Before `epoch`: moves to the split that a replay has for it, or that is predicted to pay.
    pub(super) fn move_if_due(&mut self, epoch: u64) -> Result<()> {
        if let Some(parts) = self.setup.options.partition.replayed(epoch) {
            let parts = parts.to_vec();
            return self.move_to(epoch, parts, None);
        }
        let Some(Learning { learner, move_s }) = &mut self.learning else { return Ok(()) };
        let remaining = (self.setup.epochs + 1).saturating_sub(epoch);
        let Some(better) = learner.better(&self.setup.inputs, remaining, *move_s) else { return Ok(()) };
        learner.count_move();
        match self.move_to(epoch, better.parts, Some(better.slowest_s)) {
            // Faster, but larger than a device: it stays as it is.
            Err(Error::DoesNotFit { device, need_bytes, have_bytes }) => {
                tracing::debug!("a faster split needs {need_bytes} bytes on {device}, which has {have_bytes}");
                Ok(())
            }
            done => done,
        }
    }

    /// Makes the parts those, from `epoch` on, and carries everything over: training goes on as if nothing had happened.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`], and all is as it was; [`Error::Device`], after which training cannot go on.
    pub(super) fn move_to(&mut self, epoch: u64, parts: Vec<Range<usize>>, slowest_s: Option<[f64; 2]>) -> Result<()> {
        let pairs: Vec<[usize; 2]> = parts.iter().map(|part| [part.start, part.end]).collect();
        if pairs == self.record.parts {
            return Ok(());
        }
        let start = Instant::now();
        let (weights, moments): (Weights, Weights) = (self.weights()?, self.moments()?);
        let peaks = [self.peak_device_bytes(), self.planned_peak_device_bytes()];
        self.session = self.setup.open(parts.clone(), Some(&mut self.session))?;
        self.earlier_peaks = peaks;
        self.set_weights(&weights)?;
        self.set_moments(&moments)?;
        self.set_learning_rate(self.record.learning_rate)?;
        if let Some(Learning { learner, move_s }) = &mut self.learning {
            learner.settle(&self.setup.inputs, parts);
            *move_s = start.elapsed().as_secs_f64();
        }
        self.record.parts = pairs.clone();
        self.record_split(epoch, pairs);
        self.last_move = Some(Move { epoch, slowest_s, seconds: start.elapsed().as_secs_f64() });
        Ok(())
    }

    /// From `epoch` on, these are the parts.
    pub(super) fn record_split(&mut self, epoch: u64, parts: Vec<[usize; 2]>) {
        let splits = &mut self.record.splits;
        // A split that no epoch ran with was none.
        splits.retain(|split| split.epoch < epoch);
        if splits.last().is_none_or(|split| split.parts != parts) {
            splits.push(SplitRecord { epoch, parts });
        }
    }
}

/// The larger of each: `now` has an entry a device, `earlier` as many or none.
pub(super) fn larger(now: Vec<u64>, earlier: &[u64]) -> Vec<u64> {
    let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
    now.into_iter().zip(earlier).map(|(now, earlier)| now.max(earlier)).collect()
}
