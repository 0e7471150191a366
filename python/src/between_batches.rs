//! What happens between two mini-batches: a bar moves, and Ctrl-C ends the epoch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lapidary::Trainer;
use pyo3::prelude::*;

/// How often Python gets a turn. That takes the GIL, which another thread may not give away at once.
const EVERY: Duration = Duration::from_millis(100);

/// What Python does between two mini-batches.
#[derive(Clone, Default)]
pub(crate) struct BetweenBatches {
    /// 1 once something was raised, so that the trainer ends after the batch.
    asked: Arc<AtomicUsize>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Default)]
struct Calls {
    /// Is called with the number of the batch in the epoch, from 1, and the number of batches.
    show: Option<Py<PyAny>>,
    /// What a signal raised, such as `KeyboardInterrupt`, or the call.
    raised: Option<PyErr>,
}

impl BetweenBatches {
    /// Gives Python its turns. It handles signals in the main thread alone.
    pub(crate) fn watch(&self, trainer: &mut Trainer) {
        let (between, mut looked_at) = (self.clone(), Instant::now());
        trainer.watch(self.asked.clone());
        trainer.on_batch(move |number, count| {
            if looked_at.elapsed() < EVERY && number < count {
                return;
            }
            looked_at = Instant::now();
            if let Err(error) = Python::attach(|py| between.turn(py, number, count)) {
                between.locked().raised = Some(error);
                between.asked.store(1, Ordering::Relaxed);
            }
        });
    }

    fn turn(&self, py: Python<'_>, number: u64, count: u64) -> PyResult<()> {
        let show = self.locked().show.as_ref().map(|show| show.clone_ref(py));
        show.map_or(Ok(()), |show| show.call1(py, (number, count)).map(drop))?;
        py.check_signals()
    }

    /// Sets what is called with the number of a batch, about ten times a second and after the last one.
    pub(crate) fn show(&self, show: Option<Py<PyAny>>) {
        self.locked().show = show;
    }

    /// Returns whether the epoch is to end.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != 0
    }

    /// Returns what was raised, and forgets it.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.asked.store(0, Ordering::Relaxed);
        self.locked().raised.take()
    }

    fn locked(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
