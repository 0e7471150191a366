//! Lanes that run by themselves: a thread each, which does what is queued in order.
//!
//! What a lane does is its device's business ([`Engine`]); here is what all such devices share: numbers of events, waiting for
//! those of other lanes, and one failure that ends everything and is told once in full.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::{Condvar, Mutex};

use crate::device::{Event, Lane};
use crate::error::{Error, Result};

/// Lanes that have a thread. Control copies go with the other copies of their direction.
pub(crate) const LANES: [Lane; 3] = [Lane::Compute, Lane::CopyIn, Lane::CopyOut];

/// What the lanes of a device work on.
pub(crate) trait Engine: Send + Sync + Sized + 'static {
    /// Does the next job of a lane, on the lane's thread. The jobs of all events of `job.after` were done before.
    ///
    /// # Errors
    /// Those of the work: nothing is done after a failure.
    fn perform(&self, job: LaneJob<'_>, work: LaneWork<Self>) -> Result<()>;
}

/// A job as a lane sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneJob<'a> {
    pub(crate) lane: usize,
    pub(crate) event: Event,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) after: &'a [Event],
}

/// What a job does.
pub(crate) type LaneWork<E> = Box<dyn FnOnce(&E) -> Result<()> + Send>;

/// The lanes of one device.
pub(crate) struct Lanes<E> {
    engine: Arc<E>,
    progress: Arc<Progress>,
    queues: Vec<Sender<Queued<E>>>,
    // Joined after the queues are dropped, whose end ends the threads.
    threads: Vec<JoinHandle<()>>,
    queued: Mutex<[u64; LANES.len()]>,
}

struct Queued<E> {
    event: Event,
    after: Vec<Event>,
    work: LaneWork<E>,
}

/// How far each lane has come. Jobs of a lane are done in order, so a number a lane says it all.
#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    done: [u64; LANES.len()],
    /// The first failure; nothing is done after it.
    failure: Option<Failure>,
}

#[derive(Debug)]
enum Failure {
    New(Error),
    Reported,
}

/// A lane and the number of its job, from 1. [`Event::DONE`] is number 0, which was always done.
pub(crate) fn lane_and_number(event: Event) -> (usize, u64) {
    let lanes = LANES.len() as u64;
    ((event.0 % lanes) as usize, event.0 / lanes)
}

fn event_of(lane: usize, number: u64) -> Event {
    Event(number * LANES.len() as u64 + lane as u64)
}

impl<E: Engine> Lanes<E> {
    /// Lanes of a device called `name`.
    ///
    /// # Errors
    /// [`Error::LaneThread`].
    pub(crate) fn new(name: &str, engine: E) -> Result<Self> {
        let (engine, progress) = (Arc::new(engine), Arc::new(Progress::default()));
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for (index, lane) in LANES.iter().enumerate() {
            let (sender, receiver) = unbounded();
            let (engine, progress) = (engine.clone(), progress.clone());
            let builder = std::thread::Builder::new().name(format!("{name} {lane:?}"));
            let run = move || run_lane(index, &receiver, &*engine, &progress);
            threads.push(builder.spawn(run).map_err(|source| Error::LaneThread { source })?);
            queues.push(sender);
        }
        Ok(Self { engine, progress, queues, threads, queued: Mutex::default() })
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn shared_engine(&self) -> Arc<E> {
        self.engine.clone()
    }

    /// Queues `work` on `lane`.
    ///
    /// # Errors
    /// The failure of an earlier job.
    pub(crate) fn queue(
        &self,
        lane: Lane,
        after: &[Event],
        work: impl FnOnce(&E) -> Result<()> + Send + 'static,
    ) -> Result<Event> {
        let index = LANES.iter().position(|&l| l == lane).expect("control copies were given a lane");
        self.check()?;
        let mut queued = self.queued.lock();
        queued[index] += 1;
        let event = event_of(index, queued[index]);
        let job = Queued { event, after: after.to_vec(), work: Box::new(work) };
        self.queues[index].send(job).expect("a lane's thread lives as long as the device");
        Ok(event)
    }

    /// The event that the next job of a lane will have.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn next(&self, lane: Lane) -> Event {
        let index = LANES.iter().position(|&l| l == lane).expect("control copies were given a lane");
        event_of(index, self.queued.lock()[index] + 1)
    }

    /// Waits until the job behind `event` was done; whether the device is still well.
    pub(crate) fn wait(&self, event: Event) -> bool {
        self.progress.wait(event)
    }

    /// The failure, in full the first time.
    pub(crate) fn check(&self) -> Result<()> {
        let mut state = self.progress.state.lock();
        match state.failure.replace(Failure::Reported) {
            None => state.failure = None,
            Some(Failure::New(error)) => return Err(error),
            Some(Failure::Reported) => return Err(Error::Failed),
        }
        Ok(())
    }
}

fn run_lane<E: Engine>(lane: usize, jobs: &Receiver<Queued<E>>, engine: &E, progress: &Progress) {
    for Queued { event, after, work } in jobs {
        if after.iter().all(|&event| progress.wait(event)) {
            // A panic of a kernel is a failure of the device, and no reason for others to wait forever.
            let work = AssertUnwindSafe(|| engine.perform(LaneJob { lane, event, after: &after }, work));
            let done = std::panic::catch_unwind(work);
            let done = done.unwrap_or_else(|panic| Err(Error::Panicked { message: panic_message(&*panic) }));
            if let Err(error) = done {
                progress.fail(error);
            }
        }
        progress.advance(lane);
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

impl Progress {
    fn wait(&self, event: Event) -> bool {
        let (lane, number) = lane_and_number(event);
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.done[lane] < number && state.failure.is_none());
        state.failure.is_none()
    }

    fn advance(&self, lane: usize) {
        self.state.lock().done[lane] += 1;
        self.changed.notify_all();
    }

    fn fail(&self, error: Error) {
        self.state.lock().failure.get_or_insert(Failure::New(error));
        self.changed.notify_all();
    }
}

impl<E> Drop for Lanes<E> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A lane catches the panics of its jobs.
            drop(thread.join());
        }
    }
}

impl<E> std::fmt::Debug for Lanes<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({:?})", self.progress)
    }
}
