//! Threads that run batches of graphs side by side, for [`Predictor::predictions`].
//!
//! Each keeps what a batch leaves for the next one. It takes the next batch as soon as it is done, so no core waits for the
//! slowest batch. There is a lane more than there are cores: a batch goes from thread to thread, and while one wakes up, the
//! core runs another batch.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Instant;

use super::Predictor;
use super::batch::{BatchPredictions, Lane};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::runtime::RunOptions;

/// Lanes beside those of the cores, and batches that wait for a lane.
const MORE_LANES: usize = 1;
const WAITING: usize = 1;

/// What became of a batch.
struct Outcome {
    /// When it ran.
    ran: [Instant; 2],
    /// Its predictions, or a panic.
    made: thread::Result<BatchPredictions>,
}

/// The lanes, and the batches that they have.
pub(super) struct Lanes {
    /// `None` once no more batches come.
    batches: Option<Sender<(u64, Vec<Dataset>)>>,
    done: Receiver<(u64, Outcome)>,
    threads: Vec<JoinHandle<()>>,
    /// Batches that are done before earlier ones, by number.
    early: BTreeMap<u64, Outcome>,
    /// The number of batches that were given, and that were taken.
    given: u64,
    taken: u64,
}

impl Lanes {
    /// Starts lanes for so many cores.
    ///
    /// # Errors
    /// [`Error::Device`] if the system has no thread.
    pub(super) fn start(predictor: &Predictor, cores: usize) -> Result<Self> {
        let options = &predictor.options;
        let options = RunOptions { devices: options.devices.one_thread(), ..options.clone() };
        let predictor = predictor.clone().options(options);
        let ((batches, queue), (outcomes, done)) = (channel(), channel());
        let queue = Arc::new(Mutex::new(queue));
        let start = |number: usize| {
            let (predictor, queue, outcomes) = (predictor.clone(), queue.clone(), outcomes.clone());
            let thread = Builder::new().name(format!("batches {number}"));
            let thread = thread.spawn(move || serve(&predictor, &queue, &outcomes));
            thread.map_err(|source| Error::Device {
                device: "cpu".into(),
                op: "starting".into(),
                source: Box::new(lapidary_kernels::Error::LaneThread { source }),
            })
        };
        let threads = (0..cores + MORE_LANES).map(start).collect::<Result<_>>()?;
        Ok(Self { batches: Some(batches), done, threads, early: BTreeMap::new(), given: 0, taken: 0 })
    }

    /// Returns the number of batches that were given and not taken.
    pub(super) fn count(&self) -> usize {
        (self.given - self.taken) as usize
    }

    /// Returns whether there is a place for another batch.
    pub(super) fn has_place(&self) -> bool {
        self.count() < self.threads.len() + WAITING
    }

    /// Gives a batch to the next free lane.
    pub(super) fn give(&mut self, batch: Vec<Dataset>) {
        let batches = self.batches.as_ref().expect("they are open until the end");
        batches.send((self.given, batch)).expect("lanes wait for batches until the end");
        self.given += 1;
    }

    /// Waits for the first batch that was not taken. Returns when it ran, and its predictions. Batches begin in their order.
    ///
    /// # Panics
    /// If the batch did; and if all batches were taken.
    pub(super) fn take(&mut self) -> ([Instant; 2], BatchPredictions) {
        let Outcome { ran, made } = loop {
            if let Some(outcome) = self.early.remove(&self.taken) {
                break outcome;
            }
            assert!(self.count() > 0, "all batches were taken");
            let (number, outcome) = self.done.recv().expect("a lane says what became of each batch");
            self.early.insert(number, outcome);
        };
        self.taken += 1;
        (ran, made.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.batches = None;
        // Nobody waits for the batches that are left: a lane ends when it cannot say what became of one.
        self.done = channel().1;
        // Panics were sent as outcomes.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Runs batches until no more come.
fn serve(predictor: &Predictor, queue: &Mutex<Receiver<(u64, Vec<Dataset>)>>, outcomes: &Sender<(u64, Outcome)>) {
    let mut lane = Lane::default();
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, batch)) = next else { return };
        let start = Instant::now();
        let made = catch_unwind(AssertUnwindSafe(|| predictor.run_batch(&batch, &mut lane)));
        let ran = [start, Instant::now()];
        if outcomes.send((number, Outcome { ran, made })).is_err() {
            return; // nobody waits for it
        }
    }
}
