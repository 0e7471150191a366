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

use lapidary_kernels::SpareArrays;
use ndarray::{ArcArray2, Array2, s};

use super::Predictor;
use super::evaluation::Counts;
use super::many::{BATCH_SIZE, GraphPrediction, size};
use super::pass::Pass;
use super::spare_devices::SpareDevices;
use super::spare_rows::SpareRows;
use crate::bind::watched;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::runtime::{Plans, RunOptions};

/// Lanes beside those of the cores, and batches that wait for a lane.
const MORE_LANES: usize = 1;
const WAITING: usize = 1;

/// A joined graph has offsets, sources, weights and features.
const MOST_ARRAYS: usize = 4;

/// The predictions for the graphs of a batch. If one failed, those for the graphs before it, and its error.
pub(super) struct BatchPredictions {
    pub(super) graphs: Vec<GraphPrediction>,
    pub(super) failed: Option<Error>,
}

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

/// What a batch leaves for the next one, if that is alike. It holds at most 1.5 times the memory of a batch on the device, and
/// beside it that of one batch.
#[derive(Default)]
pub(super) struct Lane {
    plans: Option<Plans>,
    devices: SpareDevices,
    arrays: Option<SpareArrays>,
    rows: SpareRows,
}

impl Predictor {
    /// Runs a batch, with what the batch before it has left, and leaves as much. If that fails, its graphs run one by one, so
    /// that the error is that of one graph, and those before it have their predictions.
    pub(super) fn run_batch(&self, batch: &[Dataset], lane: &mut Lane) -> BatchPredictions {
        let mut found = BatchPredictions { graphs: Vec::new(), failed: None };
        match self.run_joined(batch, lane) {
            Ok(graphs) => found.graphs = graphs,
            // Other ranks may not have failed, and would not run graphs again.
            Err(error) if batch.len() == 1 || self.options.ranks.count() > 1 => found.failed = Some(error),
            Err(_) => {
                let alone = batch.chunks(1).map_while(|data| {
                    let made = self.run_joined(data, lane);
                    made.map_err(|error| found.failed = Some(error)).ok()
                });
                found.graphs = alone.flatten().collect();
            }
        }
        found
    }

    /// Runs the graphs of a batch together.
    fn run_joined(&self, batch: &[Dataset], lane: &mut Lane) -> Result<Vec<GraphPrediction>> {
        batch.iter().try_for_each(|data| self.check_classes(data))?;
        let joined = match batch {
            [only] => only.clone(),
            _ => {
                let arrays = lane.arrays.get_or_insert_with(|| SpareArrays::new(MOST_ARRAYS));
                Dataset::joined_unlabelled(batch, arrays)?
            }
        };
        lane.rows.next_batch();
        let prediction = self.options.ranks.telling(watched(&joined, || {
            // The predictions of each graph are counted below.
            let pass = Pass::uncounted(self, &joined)?;
            let mut session = pass.open_on(self, lane.plans.as_ref(), lane.devices.take(self))?;
            let prediction = pass.run_into(self, &mut session, Instant::now(), &mut lane.rows)?;
            let (plans, idle) = session.into_plans_and_devices();
            lane.plans = Some(plans);
            lane.devices.keep(self, &joined, idle);
            Ok(prediction)
        }))?;
        let keeps = size(&joined) <= BATCH_SIZE;
        let mut share = |all: Array2<f32>| if keeps { lane.rows.lend(all) } else { all.into_shared() };
        let logits = share(prediction.logits);
        let outputs: BTreeMap<_, _> = prediction.outputs.into_iter().map(|(name, all)| (name, share(all))).collect();
        let mut first = 0;
        let own = batch.iter().map(|data| {
            let rows = first..first + data.graph().vertex_count();
            first = rows.end;
            let of_graph = |all: &ArcArray2<f32>| all.clone().slice_move(s![rows.clone(), ..]);
            let logits = of_graph(&logits);
            let outputs = outputs.iter().map(|(name, all)| (name.clone(), of_graph(all))).collect();
            let counts = Counts::of(logits.view(), data);
            GraphPrediction { accuracy: counts.accuracy(), data: data.clone(), logits, outputs, counts }
        });
        Ok(own.collect())
    }
}
