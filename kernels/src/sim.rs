//! A simulated device: separate memory with a hard capacity, and asynchronous lanes. It computes on the CPU.
//!
//! It shows the same mistakes as a GPU runtime: a copy that was not waited for, a buffer that was freed too early, a
//! capacity that is exceeded, an error that is reported late.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cpu::CpuDevice;
use crate::device::{Device, Event, Lane, Recorder, Span};
use crate::error::Result;
use crate::lanes::{Engine, LANES, LaneJob, LaneWork, Lanes};
use crate::lent::Lent;
use crate::matmul::Matmul;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};
use crate::semaphore::Semaphore;

/// See the [module](self).
#[derive(Debug)]
pub struct SimDevice {
    name: String,
    lanes: Lanes<SimEngine>,
}

/// The state that the lanes of a simulated device share.
#[derive(Debug)]
struct SimEngine {
    memory: CpuDevice,
    speed: SimSpeed,
    recorder: Recorder,
}

/// The speed of a simulated device.
#[derive(Clone, Debug, Default)]
pub struct SimSpeed {
    /// Factor by which kernels take longer; 1 if absent.
    pub slowdown: Option<f64>,
    /// Copy rate in each direction, in bytes per second; the host's own rate if absent.
    pub copy_bytes_per_s: Option<f64>,
    /// Semaphore of the compute lane, shared by devices that share cores.
    pub semaphore: Option<Arc<Semaphore>>,
    /// How bf16 matrices are multiplied.
    pub matmul: Matmul,
}

impl SimDevice {
    /// Creates a device. `name` is its name in tables and errors, `threads` the number of threads that compute.
    ///
    /// # Errors
    /// [`crate::Error::Threads`], [`crate::Error::NoBf16`], [`crate::Error::NoTf32`].
    pub fn new(name: &str, threads: Option<NonZeroUsize>, capacity_bytes: u64, speed: SimSpeed) -> Result<Self> {
        let memory = CpuDevice::apart(threads, capacity_bytes)?.matmul(speed.matmul)?;
        let engine = SimEngine { memory, speed, recorder: Recorder::default() };
        Ok(Self { name: name.into(), lanes: Lanes::new(name, engine)? })
    }

    fn memory(&self) -> &CpuDevice {
        &self.lanes.engine().memory
    }
}

impl Engine for SimEngine {
    fn perform(&self, job: LaneJob<'_>, work: LaneWork<Self>) -> Result<()> {
        let lane = LANES[job.lane];
        let run = || self.recorder.note(job.event, lane, || (), || self.timed(lane, work));
        match &self.speed.semaphore {
            Some(semaphore) if lane == Lane::Compute => semaphore.pass(run),
            _ => run(),
        }
    }
}

impl SimEngine {
    /// Runs the work, then sleeps until the simulated time has passed.
    fn timed(&self, lane: Lane, work: LaneWork<Self>) -> Result<()> {
        let (start, before) = (Instant::now(), self.memory.copied_bytes());
        let done = work(self);
        let took = start.elapsed();
        let wanted = match lane {
            Lane::Compute => self.speed.slowdown.map(|slowdown| took.mul_f64(slowdown.max(1.0))),
            _ => self.speed.copy_bytes_per_s.map(|rate| {
                let after = self.memory.copied_bytes();
                let direction = usize::from(lane == Lane::CopyOut);
                Duration::from_secs_f64((after[direction] - before[direction]) as f64 / rate)
            }),
        };
        std::thread::sleep(wanted.unwrap_or_default().saturating_sub(took));
        done
    }
}

impl Device for SimDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        self.memory().alloc(slot, bytes)
    }

    fn free(&self, slot: Slot) -> Result<()> {
        self.memory().free(slot)
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        self.memory().rename(from, to)
    }

    fn share(&self, _slot: Slot) -> Result<Option<HostSlot>> {
        Ok(None)
    }

    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> Result<Event> {
        let src = src.clone();
        let queue = if lane == Lane::Control { Lane::CopyIn } else { lane };
        self.lanes.queue(queue, after, move |engine| engine.memory.copy_in(lane, dst, &src, &[]).map(drop))
    }

    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> Result<Event> {
        let dst = dst.clone();
        let queue = if lane == Lane::Control { Lane::CopyOut } else { lane };
        self.lanes.queue(queue, after, move |engine| engine.memory.copy_out(lane, src, &dst, &[]).map(drop))
    }

    fn lend(&self, slot: Slot) -> Result<Lent> {
        self.memory().lend_apart(slot)
    }

    fn fetch(&self, lane: Lane, rows: Slot, out: Mat, from: &[(Lent, usize)], after: &[Event]) -> Result<Event> {
        let from = from.to_vec();
        self.lanes.queue(Lane::CopyIn, after, move |engine| engine.memory.fetch_apart(lane, rows, out, &from))
    }

    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> Result<Event> {
        if self.lanes.engine().recorder.is_on() {
            self.memory().make_ready(call);
        }
        let call = call.clone();
        self.lanes.queue(lane, after, move |engine| engine.memory.launch(lane, &call, &[]).map(drop))
    }

    fn wait(&self, event: Event) -> Result<()> {
        self.lanes.wait(event);
        self.lanes.check()
    }

    fn has_happened(&self, event: Event) -> bool {
        self.lanes.has_happened(event)
    }

    fn wait_any(&self, groups: &[[Event; 3]]) -> Result<usize> {
        let happened = self.lanes.wait_any(groups);
        self.lanes.check().map(|()| happened)
    }

    fn record(&self, on: bool) {
        self.lanes.engine().recorder.record(on);
    }

    fn take_spans(&self) -> Vec<Span> {
        self.lanes.engine().recorder.take()
    }

    fn copied_bytes(&self) -> [u64; 2] {
        self.memory().copied_bytes()
    }

    fn fetched_bytes(&self) -> u64 {
        self.memory().fetched_apart()
    }

    fn capacity_bytes(&self) -> u64 {
        self.memory().capacity_bytes()
    }

    fn used_bytes(&self) -> u64 {
        self.memory().used_bytes()
    }

    fn peak_bytes(&self) -> u64 {
        self.memory().peak_bytes()
    }
}
