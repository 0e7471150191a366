//! Signals: what the command does when the system or a person ends a training run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure;
use super::output::say;
use crate::error::{Error, Result};
use crate::ranks::Ranks;
use crate::train::{CheckpointWriter, RunLock, Snapshot, Trainer};

/// Time between two looks at the signal.
const PERIOD: Duration = Duration::from_millis(20);

/// Everything that is needed to end a run from outside of its loop.
#[derive(Default)]
pub(super) struct RunState {
    /// Writes the checkpoints of the run; `None` without a checkpoint folder.
    pub writer: Option<CheckpointWriter>,
    /// The newest state that may be written.
    pub newest: Option<Arc<Snapshot>>,
    /// The lock of the checkpoint folder.
    pub lock: Option<RunLock>,
    /// Whether this process is one of several ranks.
    pub is_rank: bool,
    /// Whether the run may end within an epoch, after any batch.
    pub ends_at_batches: bool,
    /// Whether the last epoch is over, and only the end of the run is left.
    pub is_ending: bool,
    /// Whether the run's state is safe: nothing is left to abandon.
    is_done: bool,
}

impl RunState {
    /// Returns what a run ends after.
    fn unit(&self) -> &'static str {
        if self.ends_at_batches { "batch or evaluation" } else { "epoch" }
    }

    /// Queues the newest state, unless it was queued already. A run goes on if a checkpoint cannot be written, since
    /// there may be room again for the next one.
    pub(super) fn save_newest(&mut self) {
        if let (Some(writer), Some(newest)) = (&mut self.writer, &self.newest)
            && newest.position() > writer.newest().unwrap_or_default()
            && let Err(error) = writer.write(newest.clone())
        {
            warn(&error);
        }
    }
}

/// Reports a checkpoint that could not be written.
pub(super) fn warn(error: &Error) {
    failure::warn(error);
    say("the run goes on; the checkpoints before are complete");
}

/// Watches for SIGINT (Ctrl-C) and SIGTERM while a run trains.
///
/// After the first signal, the current epoch is the last, or the current mini-batch. If it takes longer than the grace
/// period, it is abandoned: the newest state is written, and the process ends. The second signal ends the process at
/// once.
pub(super) struct Watch {
    signal: Arc<AtomicUsize>,
    state: Arc<Mutex<RunState>>,
}

impl Watch {
    /// Installs the handlers, and starts the thread that enforces the grace period.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no thread to be had.
    pub(super) fn start(state: RunState, grace: Duration) -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let is_second = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // Handlers run in this order, so the first signal only raises the flag that the second one sees.
            let installed = flag::register_conditional_shutdown(number, 128 + number, is_second.clone())
                .and_then(|_| flag::register(number, is_second.clone()))
                .and_then(|_| flag::register_usize(number, signal.clone(), number as usize));
            if let Err(error) = installed {
                tracing::debug!("signal {number} ends the program at once: {error}");
            }
        }
        let state = Arc::new(Mutex::new(state));
        let watch = Self { signal, state };
        let (signal, state) = (watch.signal.clone(), watch.state.clone());
        let thread = std::thread::Builder::new().name("signals".into());
        let failed = |source| Error::Io { action: "start a thread in", path: "<this process>".into(), source };
        thread.spawn(move || wait_for_signal(&signal, &state, grace)).map_err(failed)?;
        Ok(watch)
    }

    /// Returns whether a signal asked the run to end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a signal asked the run to end; of several ranks, whether all of them know that. From then on, it
    /// has asked this one.
    pub(super) fn is_over(&self, trainer: &Trainer, ranks: &Ranks) -> bool {
        if ranks.count() == 1 {
            return self.is_interrupted();
        }
        let signal = trainer.signalled();
        if signal != 0 {
            self.signal.store(signal, Ordering::Relaxed);
        }
        signal != 0
    }

    /// Returns where the number of the signal is found.
    pub(super) fn signal(&self) -> Arc<AtomicUsize> {
        self.signal.clone()
    }

    /// Returns the exit code of a run that a signal has cut short: 128 + its number.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(128 + self.signal.load(Ordering::Relaxed) as u8)
    }

    /// Locks the state of the run. While it is locked, the run cannot be abandoned.
    pub(super) fn state(&self) -> MutexGuard<'_, RunState> {
        lock(&self.state)
    }

    /// Ends the grace period: the state of the run is safe.
    pub(super) fn stand_down(&self) {
        self.state().is_done = true;
    }
}

impl Drop for Watch {
    /// Ends the thread, and releases the checkpoint folder.
    fn drop(&mut self) {
        let mut state = self.state();
        state.is_done = true;
        state.writer = None;
        state.lock = None;
    }
}

fn lock(state: &Mutex<RunState>) -> MutexGuard<'_, RunState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_for_signal(signal: &AtomicUsize, state: &Mutex<RunState>, grace: Duration) {
    let mut deadline = None;
    loop {
        std::thread::sleep(PERIOD);
        let number = signal.load(Ordering::Relaxed);
        let mut state = lock(state);
        if state.is_done {
            return;
        }
        if number != 0 && deadline.is_none() {
            deadline = Some(Instant::now() + grace);
            if state.is_rank {
                // `mpirun` kills its ranks about a second after it was told to end.
                state.save_newest();
            }
            if !state.is_ending {
                let name = if number == SIGINT as usize { "interrupted" } else { "terminated" };
                say(format_args!("{name}: this {} is the last (once more to stop at once)", state.unit()));
            }
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            abandon(&mut state, grace);
            signal_hook::low_level::exit(128 + number as i32);
        }
    }
}

/// Writes the newest state, without waiting for the epoch or the batch that runs.
fn abandon(state: &mut RunState, grace: Duration) {
    state.save_newest();
    let not_done = format!("the {} was not done after {} s of grace: abandoned", state.unit(), grace.as_secs_f64());
    let Some(writer) = state.writer.take() else {
        say(not_done);
        return;
    };
    let newest = writer.newest();
    let written = writer.finish();
    match (written, newest) {
        (Err(error), _) => failure::report(&error),
        (Ok(()), Some(newest)) => say(format_args!("{not_done}; the checkpoint has {newest}")),
        (Ok(()), None) => say(format_args!("{not_done}; there was nothing new to save")),
    }
    state.lock = None;
}
