//! Asynchronous lanes: one thread per lane, which runs the queued jobs in order.
//!
//! What a job does is up to the device ([`Engine`]). This module has what all such devices share: event numbers,
//! waiting for events of other lanes, and failure. The first failure ends everything and is reported in full once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use crate::device::{Event, Lane};
use crate::error::{Error, Result};
use crate::sync::{Builder, Condvar, JoinHandle, Mutex, Receiver, Sender, unbounded};

/// The lanes that have a thread. Control copies use the copy lane of their direction.
pub(crate) const LANES: [Lane; 3] = [Lane::Compute, Lane::CopyIn, Lane::CopyOut];

/// The part of a device that runs the jobs of its lanes.
pub(crate) trait Engine: Send + Sync + Sized + 'static {
    /// Runs the next job of a lane, on the lane's thread. All events in `job.after` have happened.
    ///
    /// # Errors
    /// The error of the job. No job runs after a failure.
    fn perform(&self, job: LaneJob<'_>, work: LaneWork<Self>) -> Result<()>;
}

/// The lane, event and dependencies of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneJob<'a> {
    pub(crate) lane: usize,
    pub(crate) event: Event,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) after: &'a [Event],
}

/// The function that a job runs.
pub(crate) type LaneWork<E> = Box<dyn FnOnce(&E) -> Result<()> + Send>;

/// The lanes of one device.
pub(crate) struct Lanes<E> {
    engine: Arc<E>,
    progress: Arc<Progress>,
    queues: Vec<Sender<Queued<E>>>,
    // Joined after the queues are dropped: a thread ends when its queue does.
    threads: Vec<JoinHandle<()>>,
    queued: Mutex<[u64; LANES.len()]>,
}

struct Queued<E> {
    event: Event,
    after: Vec<Event>,
    work: LaneWork<E>,
}

/// The progress of each lane. Jobs of a lane finish in order, so one number per lane is enough.
#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    done: [u64; LANES.len()],
    /// The first failure. No job runs after it.
    failure: Option<Failure>,
}

#[derive(Debug)]
enum Failure {
    New(Error),
    Reported,
}

/// Returns the lane of an event and the number of its job, from 1. [`Event::DONE`] has number 0, which is always done.
pub(crate) fn lane_and_number(event: Event) -> (usize, u64) {
    let lanes = LANES.len() as u64;
    ((event.0 % lanes) as usize, event.0 / lanes)
}

fn event_of(lane: usize, number: u64) -> Event {
    Event(number * LANES.len() as u64 + lane as u64)
}

impl<E: Engine> Lanes<E> {
    /// Starts the lanes of a device called `name`.
    ///
    /// # Errors
    /// [`Error::LaneThread`].
    pub(crate) fn new(name: &str, engine: E) -> Result<Self> {
        let (engine, progress) = (Arc::new(engine), Arc::new(Progress::default()));
        let (mut queues, mut threads) = (Vec::new(), Vec::new());
        for (index, lane) in LANES.iter().enumerate() {
            let (sender, receiver) = unbounded();
            let (engine, progress) = (engine.clone(), progress.clone());
            let builder = Builder::new().name(format!("{name} {lane:?}"));
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

    /// Returns the event that the next job of a lane will have.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn next(&self, lane: Lane) -> Event {
        let index = LANES.iter().position(|&l| l == lane).expect("control copies were given a lane");
        event_of(index, self.queued.lock()[index] + 1)
    }

    /// Waits until the job behind `event` is done. Returns whether the device has not failed.
    pub(crate) fn wait(&self, event: Event) -> bool {
        self.progress.wait(event)
    }

    /// Returns whether the job behind `event` is done.
    pub(crate) fn has_happened(&self, event: Event) -> bool {
        self.progress.state.lock().has_done(event)
    }

    /// Waits until all jobs of one of the groups are done, and returns its index; 0 if the device has failed.
    pub(crate) fn wait_any(&self, groups: &[[Event; 3]]) -> usize {
        let done = |state: &State| groups.iter().position(|events| events.iter().all(|&event| state.has_done(event)));
        let mut state = self.progress.state.lock();
        self.progress.changed.wait_while(&mut state, |state| done(state).is_none() && state.failure.is_none());
        done(&state).unwrap_or(0)
    }

    /// Returns the failure, if there is one: with its cause the first time, then as [`Error::Failed`].
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
            // A panic of a kernel fails the device, so that other lanes do not wait forever.
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

/// Returns the message of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

impl State {
    fn has_done(&self, event: Event) -> bool {
        let (lane, number) = lane_and_number(event);
        self.done[lane] >= number
    }
}

impl Progress {
    fn wait(&self, event: Event) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.has_done(event) && state.failure.is_none());
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
            // A lane catches the panics of its jobs, so joining cannot fail.
            drop(thread.join());
        }
    }
}

impl<E> std::fmt::Debug for Lanes<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({:?})", self.progress)
    }
}
