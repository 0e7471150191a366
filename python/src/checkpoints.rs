//! Checkpoints that are written while a trainer runs.

use std::ffi::CString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapidary::{CheckpointSchedule, CheckpointWriter, Error, Result, Trainer, parse_option};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;

use crate::error::{message, raised};
use crate::trainer::NativeTrainer;

/// Writes the checkpoints of a run into a folder, beside training. The caller holds the folder's lock.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativeCheckpoints {
    /// Number of epochs of the run. The state after the last one is written by [`NativeCheckpoints::finish`].
    epochs: u64,
    state: Mutex<State>,
}

struct State {
    /// `None` once the run has ended.
    writer: Option<CheckpointWriter>,
    schedule: CheckpointSchedule,
    /// Checkpoints that could not be written, and of which Python was not told yet.
    failed: Vec<Error>,
}

#[pymethods]
impl NativeCheckpoints {
    #[new]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        every: &str,
        every_batches: Option<NonZeroU64>,
        keep: usize,
        epochs: u64,
    ) -> PyResult<Self> {
        let made = || {
            let schedule = CheckpointSchedule::new(parse_option("checkpoint_every", every)?, every_batches);
            let writer = Some(CheckpointWriter::open(folder, keep)?);
            Ok(Self { epochs, state: Mutex::new(State { writer, schedule, failed: Vec::new() }) })
        };
        made().map_err(|error: Error| raised(py, &error))
    }

    /// Writes the state of the trainer, if one is given, and waits until everything is written.
    fn finish(&self, py: Python<'_>, trainer: Option<&NativeTrainer>) -> PyResult<()> {
        let finished = match trainer {
            Some(trainer) => trainer.with(py, |trainer| {
                let snapshot = trainer.snapshot()?;
                let mut state = self.locked();
                let Some(mut writer) = state.writer.take() else { return Ok(()) };
                state.failed.extend(writer.write(snapshot).err());
                writer.finish()
            }),
            None => {
                let finish = || self.locked().writer.take().map_or(Ok(()), CheckpointWriter::finish);
                py.detach(finish).map_err(|error| raised(py, &error))
            }
        };
        self.warn(py)?;
        finished
    }
}

impl NativeCheckpoints {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many mini-batches may run before a checkpoint is due.
    pub(crate) fn batches_to_run(&self, trainer: &Trainer) -> u64 {
        self.locked().schedule.batches_to_run(trainer)
    }

    /// Queues a checkpoint if one is due.
    ///
    /// # Errors
    /// Those of [`Trainer::snapshot`]: the epoch has failed.
    pub(crate) fn keep_if_due(&self, trainer: &mut Trainer) -> Result<()> {
        if trainer.epoch() >= self.epochs || !self.locked().schedule.is_due(trainer) {
            return Ok(());
        }
        let snapshot = trainer.snapshot()?;
        let mut state = self.locked();
        let failed = state.writer.as_mut().and_then(|writer| writer.write(snapshot).err());
        state.failed.extend(failed);
        state.schedule.restart();
        Ok(())
    }

    /// Warns of checkpoints that could not be written: a run goes on without them.
    pub(crate) fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let failed = std::mem::take(&mut self.locked().failed);
        failed.iter().try_for_each(|error| {
            let text = format!("a checkpoint could not be written; training goes on: {}", message(error));
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &CString::new(text).unwrap_or_default(), 2)
        })
    }
}
