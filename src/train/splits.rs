//! The split of vertices over devices, and how it changes between epochs.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::Trainer;
use super::batches::Feeder;
use super::epoch::Instead;
use super::running::{EVALUATED_EPOCH, EVALUATION, PLAIN_EPOCH};
use crate::error::{Error, Result};
use crate::lower::Inputs;
use crate::model::Weights;
use crate::program::{LevelSizes, Program};
use crate::runtime::{Learner, RunOptions, Session, SessionSpec, SplitRecord};

/// Everything that a session is opened with except its parts. It is kept in order to open another session with other
/// parts.
pub(super) struct Setup {
    pub options: RunOptions,
    pub training: Program,
    /// Number of strips of columns that its wide matrices are cut into.
    pub strips: usize,
    /// Other programs with the same results, one pair of which may take their place.
    pub instead: Vec<Instead>,
    pub evaluation: Program,
    pub inputs: Inputs,
    pub eval_every: u64,
    pub seed: u64,
    pub keep: Vec<(usize, String)>,
    /// The last epoch that is expected to run.
    pub epochs: u64,
    /// The mini-batches that an epoch consists of, if it does, and the sizes that are planned for.
    pub batches: Option<(Feeder, LevelSizes)>,
    /// The mini-batches that an evaluation consists of; `None` if it is over the whole graph.
    pub evaluator: Option<Feeder>,
}

/// The learned cost model, and the cost of a move.
pub(super) struct Learning {
    pub learner: Learner,
    /// Seconds that it took to open the current session.
    pub move_s: f64,
}

/// A change of the split: see [`Trainer::last_move`].
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The first epoch with the new parts.
    pub epoch: u64,
    /// Predicted seconds of the slowest part in an epoch, before and after. `None` if the move was not made for speed,
    /// as in a replay.
    pub slowest_s: Option<[f64; 2]>,
    /// Seconds that the move took.
    pub seconds: f64,
}

impl Setup {
    pub(super) fn main(&self) -> &'static [usize] {
        if self.eval_every == 1 && self.batches.is_none() { EVALUATED_EPOCH } else { PLAIN_EPOCH }
    }

    pub(super) fn programs(&self) -> [(&'static str, &Program); 2] {
        [("train", &self.training), ("evaluate", &self.evaluation)]
    }

    /// Lets mini-batches follow the parts: each part has its seeds, and each of several ranks the features of its vertices.
    ///
    /// # Errors
    /// [`Error::Value`] if there is no memory for the rows that stay on the devices; [`Error::OtherRank`].
    pub(super) fn spread_batches(&mut self, parts: &[Range<usize>]) -> Result<()> {
        let Some((feeder, _)) = &mut self.batches else { return Ok(()) };
        self.evaluator.iter_mut().chain([&mut *feeder]).for_each(|feeder| feeder.drawing.set_parts(parts));
        let Some(store) = feeder.drawing.store().map(Arc::new) else { return Ok(()) };
        if self.inputs.kept.as_ref().is_some_and(|kept| kept.contents().is_none()) {
            self.inputs.kept = feeder.drawing.kept_from(&store)?;
        }
        for feeder in self.evaluator.iter_mut().chain([feeder]) {
            feeder.store = Some(store.clone());
        }
        Ok(())
    }

    /// Opens a session with these parts, in place of `old` if there is one.
    pub(super) fn open(&self, parts: Vec<Range<usize>>, old: Option<&mut Session>) -> Result<Session> {
        let instead = self.instead.iter();
        let instead = instead.map(|Instead { training, evaluation, strips }| ([training, evaluation], *strips));
        let instead: Vec<([&Program; 2], usize)> = instead.collect();
        let job = SessionSpec {
            programs: &self.programs(),
            strips: self.strips,
            instead: &instead,
            inputs: &self.inputs,
            parts,
            main: self.main(),
            others: match self.eval_every {
                _ if self.batches.is_some() => &[EVALUATION],
                0 => &[EVALUATION],
                1 => &[],
                _ => &[EVALUATED_EPOCH],
            },
            repeats: true,
            seed: self.seed,
            keep: &self.keep,
            plans: None,
            levels: self.batches.as_ref().map(|(_, sizes)| *sizes),
        };
        match old {
            Some(old) => Session::open_in_place_of(old, &self.options, &job),
            None => Session::open(&self.options, &job),
        }
    }
}

impl Trainer {
    /// Returns every split so far, each with its first epoch; the last is the current one.
    pub fn splits(&self) -> &[SplitRecord] {
        &self.record.splits
    }

    /// Returns the last move of vertices to other devices between epochs of this trainer, if there was one.
    pub fn last_move(&self) -> Option<&Move> {
        self.last_move.as_ref()
    }

    /// Returns the seconds of each part's kernels in the last epoch whose kernels were timed. With several parts, every
    /// epoch is timed; with one part, only an epoch that is traced. Empty if no epoch was timed.
    pub fn part_seconds(&self) -> &[f64] {
        &self.part_seconds
    }

    /// Returns, for a learned split, three values for each part: seconds of its kernels in an epoch as measured, as
    /// predicted by the profile, and as predicted by the cost model that learned from them.
    #[cfg(feature = "command")]
    pub(crate) fn part_predictions(&self) -> Vec<[f64; 3]> {
        self.learning.as_ref().map_or_else(Vec::new, |learning| learning.learner.part_seconds())
    }

    /// Moves, before `epoch`, to the split that a replay has for it, or to a split that is predicted to pay.
    pub(super) fn move_if_due(&mut self, epoch: u64) -> Result<()> {
        if let Some(parts) = self.setup.options.partition.replayed(epoch) {
            let parts = parts.to_vec();
            return self.move_to(epoch, parts, None);
        }
        let Some(Learning { learner, move_s }) = &mut self.learning else { return Ok(()) };
        let remaining = self.setup.epochs.saturating_add(1).saturating_sub(epoch);
        let better = learner.better(&self.setup.inputs, remaining, *move_s);
        // The ranks have measured the same, but each with its own clock and cost of a move.
        let Some(better) = self.setup.options.ranks.first(|| Ok(better))? else { return Ok(()) };
        learner.count_move();
        match self.move_to(epoch, better.parts, Some(better.slowest_s)) {
            // The faster split does not fit a device, so the current one stays.
            Err(Error::DoesNotFit { device, need_bytes, have_bytes }) => {
                tracing::debug!("a faster split needs {need_bytes} bytes on {device}, which has {have_bytes}");
                Ok(())
            }
            done => done,
        }
    }

    /// Replaces the parts from `epoch` on, and carries all state over, so that training continues as before.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`], after which everything is unchanged; [`Error::Device`], after which training cannot
    /// continue.
    pub(super) fn move_to(&mut self, epoch: u64, parts: Vec<Range<usize>>, slowest_s: Option<[f64; 2]>) -> Result<()> {
        let pairs: Vec<[usize; 2]> = parts.iter().map(|part| [part.start, part.end]).collect();
        if pairs == self.record.parts {
            return Ok(());
        }
        let start = Instant::now();
        let (weights, moments): (Weights, Weights) = (self.weights()?, self.moments()?);
        let peaks = [self.peak_device_bytes(), self.planned_peak_device_bytes()];
        self.session = self.setup.open(parts.clone(), Some(&mut self.session))?;
        self.setup.spread_batches(&parts)?;
        if let Some(table) = &mut self.embedding {
            table.spread(&parts)?;
        }
        self.has_gradients = false;
        self.earlier_peaks = peaks;
        self.write_weights(&weights)?;
        self.set_moments(&moments)?;
        self.write_learning_rate(self.record.learning_rate)?;
        if let Some(Learning { learner, move_s }) = &mut self.learning {
            learner.settle(&self.setup.inputs, parts);
            *move_s = start.elapsed().as_secs_f64();
        }
        self.record.parts = pairs.clone();
        self.record_split(epoch, pairs);
        self.last_move = Some(Move { epoch, slowest_s, seconds: start.elapsed().as_secs_f64() });
        Ok(())
    }

    /// Records that these are the parts from `epoch` on.
    pub(super) fn record_split(&mut self, epoch: u64, parts: Vec<[usize; 2]>) {
        let splits = &mut self.record.splits;
        // A recorded split that no epoch ran with is removed.
        splits.retain(|split| split.epoch < epoch);
        if splits.last().is_none_or(|split| split.parts != parts) {
            splits.push(SplitRecord { epoch, parts });
        }
    }
}

/// Returns the elementwise maximum. `now` has one entry per device; `earlier` has as many, or none.
pub(super) fn larger(now: Vec<u64>, earlier: &[u64]) -> Vec<u64> {
    let earlier = earlier.iter().copied().chain(std::iter::repeat(0));
    now.into_iter().zip(earlier).map(|(now, earlier)| now.max(earlier)).collect()
}
