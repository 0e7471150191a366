//! A simulated device: memory of its own with a hard capacity, and lanes that run by themselves. It computes on the CPU.
//!
//! All of what a GPU's runtime has to get right can go wrong here as well: a copy that was not waited for, a buffer that was
//! freed too early, a capacity that is exceeded, an error that surfaces late.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::{Condvar, Mutex};

use crate::call::Call;
use crate::cpu::CpuDevice;
use crate::device::{Device, Event, Lane, Recorder, Span};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::memory::{HostSlot, Slot};

/// Lanes that have a thread. Control copies go with the other copies of their direction.
const LANES: [Lane; 3] = [Lane::Compute, Lane::CopyIn, Lane::CopyOut];

/// See the [module](self).
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    memory: Arc<CpuDevice>,
    progress: Arc<Progress>,
    queues: Vec<Sender<Job>>,
    // Dropped after the queues, whose end ends the threads.
    threads: Vec<JoinHandle<()>>,
    queued: Mutex<[u64; LANES.len()]>,
}

/// Something queued on a lane.
struct Job {
    event: Event,
    after: Vec<Event>,
    work: Work,
}

type Work = Box<dyn FnOnce(&CpuDevice) -> Result<()> + Send>;

/// How far each lane has come. Jobs of a lane are done in order, so a number a lane says it all.
#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
    recorder: Recorder,
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

/// How slow a simulated device is.
#[derive(Clone, Debug, Default)]
pub struct SimSpeed {
    /// A kernel takes so many times as long as it would; 1 if absent.
    pub slowdown: Option<f64>,
    /// Bytes a second of copies each way; as fast as the host copies if absent.
    pub copy_bytes_per_s: Option<f64>,
    /// Shared by devices that share cores.
    pub gate: Option<Arc<Gate>>,
}

impl SimDevice {
    /// A device with a name for tables and errors, threads to compute with, a capacity, and a speed.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn new(name: &str, threads: Option<NonZeroUsize>, capacity_bytes: u64, speed: SimSpeed) -> Result<Self> {
        let memory = Arc::new(CpuDevice::apart(threads, capacity_bytes)?);
        let progress = Arc::new(Progress::default());
        let (mut queues, mut handles) = (Vec::new(), Vec::new());
        for (index, lane) in LANES.iter().enumerate() {
            let (sender, receiver) = unbounded();
            let (memory, progress, speed) = (memory.clone(), progress.clone(), speed.clone());
            let builder = std::thread::Builder::new().name(format!("{name} {lane:?}"));
            let run = move || run_lane(index, &receiver, &memory, &progress, &speed);
            handles.push(builder.spawn(run).map_err(|source| Error::LaneThread { source })?);
            queues.push(sender);
        }
        Ok(Self { name: name.into(), memory, progress, queues, threads: handles, queued: Mutex::default() })
    }

    fn queue(
        &self,
        lane: Lane,
        after: &[Event],
        work: impl FnOnce(&CpuDevice) -> Result<()> + Send + 'static,
    ) -> Result<Event> {
        let index = LANES.iter().position(|&l| l == lane).expect("control copies were given a lane");
        self.progress.check()?;
        let mut queued = self.queued.lock();
        queued[index] += 1;
        let event = Event(queued[index] * LANES.len() as u64 + index as u64);
        let job = Job { event, after: after.to_vec(), work: Box::new(work) };
        self.queues[index].send(job).expect("a lane's thread lives as long as the device");
        Ok(event)
    }
}

/// A lane and the number of its job, from 1.
fn lane_and_number(event: Event) -> (usize, u64) {
    let lanes = LANES.len() as u64;
    ((event.0 % lanes) as usize, event.0 / lanes)
}

fn run_lane(lane: usize, jobs: &Receiver<Job>, memory: &CpuDevice, progress: &Progress, speed: &SimSpeed) {
    for Job { event, after, work } in jobs {
        if after.iter().all(|&event| progress.wait(event)) {
            // A panic of a kernel is a failure of the device, and no reason for others to wait forever.
            let work = std::panic::AssertUnwindSafe(|| work(memory));
            let run = || progress.recorder.note(event, LANES[lane], || timed(lane, memory, speed, work));
            let done = match (&speed.gate, LANES[lane]) {
                (Some(gate), Lane::Compute) => gate.pass(run),
                _ => run(),
            };
            if let Err(error) = done {
                progress.fail(error);
            }
        }
        progress.advance(lane);
    }
}

/// Does the work, and takes as long as the device is slow.
fn timed(
    lane: usize,
    memory: &CpuDevice,
    speed: &SimSpeed,
    work: std::panic::AssertUnwindSafe<impl FnOnce() -> Result<()>>,
) -> Result<()> {
    let (start, before) = (Instant::now(), memory.copied_bytes());
    let done =
        std::panic::catch_unwind(work).unwrap_or_else(|panic| Err(Error::Panicked { message: panic_message(&*panic) }));
    let took = start.elapsed();
    let wanted = match LANES[lane] {
        Lane::Compute => speed.slowdown.map(|slowdown| took.mul_f64(slowdown.max(1.0))),
        _ => speed.copy_bytes_per_s.map(|rate| {
            let after = memory.copied_bytes();
            let direction = usize::from(LANES[lane] == Lane::CopyOut);
            Duration::from_secs_f64((after[direction] - before[direction]) as f64 / rate)
        }),
    };
    std::thread::sleep(wanted.unwrap_or_default().saturating_sub(took));
    done
}

/// What a panic said.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

impl Progress {
    /// Waits for an event; whether the device is still well.
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

    /// The failure, in full the first time.
    fn check(&self) -> Result<()> {
        let mut state = self.state.lock();
        match state.failure.replace(Failure::Reported) {
            None => state.failure = None,
            Some(Failure::New(error)) => return Err(error),
            Some(Failure::Reported) => return Err(Error::Failed),
        }
        Ok(())
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A lane catches the panics of its jobs.
            drop(thread.join());
        }
    }
}

impl Device for SimDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        self.memory.alloc(slot, bytes)
    }

    fn free(&self, slot: Slot) -> Result<()> {
        self.memory.free(slot)
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        self.memory.rename(from, to)
    }

    fn share(&self, _slot: Slot) -> Result<Option<HostSlot>> {
        Ok(None)
    }

    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> Result<Event> {
        let src = src.clone();
        let queue = if lane == Lane::Control { Lane::CopyIn } else { lane };
        self.queue(queue, after, move |memory| memory.copy_in(lane, dst, &src, &[]).map(drop))
    }

    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> Result<Event> {
        let dst = dst.clone();
        let queue = if lane == Lane::Control { Lane::CopyOut } else { lane };
        self.queue(queue, after, move |memory| memory.copy_out(lane, src, &dst, &[]).map(drop))
    }

    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> Result<Event> {
        let call = call.clone();
        self.queue(lane, after, move |memory| memory.launch(lane, &call, &[]).map(drop))
    }

    fn wait(&self, event: Event) -> Result<()> {
        self.progress.wait(event);
        self.progress.check()
    }

    fn record(&self, on: bool) {
        self.progress.recorder.record(on);
    }

    fn take_spans(&self) -> Vec<Span> {
        self.progress.recorder.take()
    }

    fn copied_bytes(&self) -> [u64; 2] {
        self.memory.copied_bytes()
    }

    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn used_bytes(&self) -> u64 {
        self.memory.used_bytes()
    }

    fn peak_bytes(&self) -> u64 {
        self.memory.peak_bytes()
    }
}
