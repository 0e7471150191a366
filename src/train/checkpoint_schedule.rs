//! When a run writes checkpoints.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::Trainer;
use crate::infer::Position;

/// How often a run writes checkpoints, beside the one at its end.
///
/// ```
/// use std::time::Duration;
/// use lapidary::CheckpointInterval;
///
/// assert_eq!("50".parse(), Ok(CheckpointInterval::Epochs(50)));
/// assert_eq!("10m".parse(), Ok(CheckpointInterval::Time(Duration::from_secs(600))));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// After every so many epochs; 0 for never.
    Epochs(u64),
    /// When this time has passed since the last one.
    Time(Duration),
}

/// The error of a text that is not a [`CheckpointInterval`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number of epochs, or a time with its unit, such as 90s, 10m or 1h")]
pub struct ParseCheckpointIntervalError;

impl FromStr for CheckpointInterval {
    type Err = ParseCheckpointIntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(epochs) = text.parse() {
            return Ok(Self::Epochs(epochs));
        }
        let units = [("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0)];
        let time = units.into_iter().find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            Duration::try_from_secs_f64(number * seconds).ok()
        });
        time.filter(|time| !time.is_zero()).map(Self::Time).ok_or(ParseCheckpointIntervalError)
    }
}

impl CheckpointInterval {
    /// Returns whether a checkpoint is due, if a run has come to `position`, and wrote the last one at `last`, or began then.
    fn is_due(self, position: Position, last: Instant) -> bool {
        match self {
            Self::Epochs(every) => every > 0 && position.batch == 0 && position.epoch.is_multiple_of(every),
            Self::Time(time) => last.elapsed() >= time,
        }
    }
}

/// When a run writes its next checkpoint.
///
/// ```
/// use lapidary::{CheckpointSchedule, CheckpointWriter, Dataset, Model, Trainer};
///
/// let folder = tempfile::tempdir().unwrap();
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let mut trainer = Trainer::builder(&model, &data).build()?;
/// let mut schedule = CheckpointSchedule::new("4".parse()?, None);
/// let mut writer = CheckpointWriter::open(folder.path(), 2)?;
/// while trainer.epoch() < 10 {
///     trainer.step_batches(schedule.batches_to_run(&trainer))?;
///     if schedule.is_due(&trainer) {
///         writer.write(trainer.snapshot()?)?;
///         schedule.restart();
///     }
/// }
/// writer.finish()?;
/// assert_eq!(trainer.resume(folder.path())?, Some(8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CheckpointSchedule {
    every: CheckpointInterval,
    every_batches: Option<NonZeroU64>,
    /// When the last checkpoint was queued, or the run began.
    since: Instant,
}

impl CheckpointSchedule {
    /// Starts the schedule of a run: a checkpoint after each interval, and after every `every_batches` mini-batches of the run,
    /// also within an epoch.
    pub fn new(every: CheckpointInterval, every_batches: Option<NonZeroU64>) -> Self {
        Self { every, every_batches, since: Instant::now() }
    }

    /// Returns how many mini-batches may run before one is due because of their number, for [`Trainer::step_batches`].
    pub fn batches_to_run(&self, trainer: &Trainer) -> u64 {
        self.every_batches.map_or(u64::MAX, |every| every.get() - batches_done(trainer) % every)
    }

    /// Returns whether a checkpoint is due. It is asked after an epoch, or after some of its mini-batches.
    pub fn is_due(&self, trainer: &Trainer) -> bool {
        let done = batches_done(trainer);
        let is_after = |every: NonZeroU64| done > 0 && done.is_multiple_of(every.get());
        self.every.is_due(trainer.position(), self.since) || self.every_batches.is_some_and(is_after)
    }

    /// Starts the next interval of time, after a checkpoint.
    pub fn restart(&mut self) {
        self.since = Instant::now();
    }
}

/// Returns the number of mini-batches since the start of the run; 0 on the whole graph.
fn batches_done(trainer: &Trainer) -> u64 {
    let Position { epoch, batch } = trainer.position();
    trainer.batches_per_epoch().map_or(0, |count| epoch * count + batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_epochs_or_times() {
        let time = |text: &str| match text.parse() {
            Ok(CheckpointInterval::Time(time)) => Some(time.as_secs_f64()),
            _ => None,
        };
        assert_eq!(["90s", "1.5 m", "2min", "1h"].map(time), [90.0, 90.0, 120.0, 3600.0].map(Some));
        assert_eq!(["0s", "-1s", "1e300h", "10d", "s", "5"].map(time), [None; 6]);
        assert_eq!("0".parse(), Ok(CheckpointInterval::Epochs(0)));
        assert_eq!("-1".parse::<CheckpointInterval>(), Err(ParseCheckpointIntervalError));
    }

    #[test]
    fn a_checkpoint_is_due_after_epochs_or_after_a_time() {
        let now = Instant::now();
        let at = |epoch, batch| Position { epoch, batch };
        let every_two = CheckpointInterval::Epochs(2);
        assert_eq!(
            [at(1, 0), at(2, 0), at(2, 1), at(4, 0)].map(|at| every_two.is_due(at, now)),
            [false, true, false, true]
        );
        assert!(!CheckpointInterval::Epochs(0).is_due(at(2, 0), now));
        assert!(CheckpointInterval::Time(Duration::from_nanos(1)).is_due(at(1, 3), now - Duration::from_secs(1)));
        assert!(!CheckpointInterval::Time(Duration::from_secs(3600)).is_due(at(1, 3), now));
    }
}
