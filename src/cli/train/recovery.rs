//! What a run does when an epoch fails: it goes back, or keeps what it has.

use std::sync::Arc;

use super::args::{OnNan, TrainArgs};
use crate::cli::failure;
use crate::cli::signals::{self, Watch};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::ranks::Ranks;
use crate::train::{CheckpointSchedule, Snapshot, Trainer};

/// Number of times that `--on-nan rollback` returns to a checkpoint before it gives up.
const MOST_ROLLBACKS: u32 = 10;

/// What a run does when an epoch fails.
pub(super) struct Recovery {
    on_nan: OnNan,
    /// The state of the last checkpoint, or of the start.
    checkpoint: Option<Arc<Snapshot>>,
    rollbacks: u32,
    schedule: CheckpointSchedule,
}

impl Recovery {
    pub(super) fn new(args: &TrainArgs, trainer: &mut Trainer) -> Result<Self> {
        let on_nan = args.training.on_nan;
        let checkpoint = match on_nan {
            OnNan::Rollback => Some(trainer.snapshot()?),
            OnNan::Stop => None,
        };
        Ok(Self { on_nan, checkpoint, rollbacks: 0, schedule: args.checkpoints.schedule() })
    }

    /// Returns how many mini-batches may run before a checkpoint is due.
    pub(super) fn batches_to_run(&self, trainer: &Trainer) -> u64 {
        self.schedule.batches_to_run(trainer)
    }

    /// After an epoch, or some batches of it, writes a checkpoint beside training if one is due. A run goes on if it cannot
    /// be written. The state after the last epoch is only checked here, since the end of the run writes it.
    ///
    /// # Errors
    /// Those of [`Trainer::snapshot`]: the epoch has failed.
    pub(super) fn keep(&mut self, args: &TrainArgs, trainer: &mut Trainer, watch: &Watch, ranks: &Ranks) -> Result<()> {
        if trainer.epoch() >= args.training.epochs() {
            return trainer.snapshot().map(drop);
        }
        // All ranks have the same snapshots, to return to the same one. Rank 0 writes it.
        if args.checkpoints.checkpoint.is_none() || !ranks.first(|| Ok(self.schedule.is_due(trainer)))? {
            return Ok(());
        }
        let snapshot = trainer.snapshot()?;
        if self.on_nan == OnNan::Rollback {
            self.checkpoint = Some(snapshot.clone());
        }
        if let Some(writer) = &mut watch.state().writer
            && let Err(error) = writer.write(snapshot)
        {
            signals::warn(&error);
        }
        self.schedule.restart();
        Ok(())
    }

    /// Handles the error of an epoch: returns to the last checkpoint if the run may, and returns a note. Otherwise
    /// saves the state before the epoch, and returns the error.
    pub(super) fn after(&mut self, error: Error, trainer: &mut Trainer, watch: &Watch) -> Result<String> {
        match (&error, &self.checkpoint) {
            (Error::Diverged { .. }, Some(checkpoint)) if self.rollbacks < MOST_ROLLBACKS => {
                self.rollbacks += 1;
                let lr = trainer.learning_rate() / 2.0;
                trainer.restore(checkpoint)?;
                trainer.change_learning_rate(lr, "rollback")?;
                let text = failure::in_flags(&error);
                Ok(format!("{text}: back to {}, with learning rate {lr}", checkpoint.position()))
            }
            // The state before numbers went wrong is finite, but may be on its way there: it must not replace an older
            // checkpoint.
            (Error::Diverged { .. } | Error::NotFiniteAtStart { .. }, _) => Err(error),
            _ => {
                watch.state().save_newest();
                Err(error)
            }
        }
    }
}

/// Prints no panic if a file of the dataset has changed, because the change is then reported as the error.
pub(super) struct QuietPanics;

impl QuietPanics {
    pub(super) fn start(data: &Dataset) -> Self {
        let (data, usual) = (data.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            if data.check_files().is_ok() {
                usual(panic);
            }
        }));
        Self
    }
}

impl Drop for QuietPanics {
    /// Restores the hook of the standard library.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
}
