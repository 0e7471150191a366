//! The CPU device: the host's cores, in the host's memory.
//!
//! Calls are complete when they return, so every event has happened when it is handed out. The kernels are also here as plain
//! functions over views, for whoever has slices and needs no device; they run on as many threads as rayon's global pool has.
//! All of them give the same bits on any number of threads.

mod dropout;
mod edges;
mod exp;
mod gather;
mod gather_rows;
mod launch;
mod linear;
mod loss;
mod moves;
mod multi_label;
mod norm;
mod optimizer;
mod pack;
mod parallel;
mod passes;
mod prefetch;
mod product;
mod row_sum;
mod rows;
mod slots;
mod sources;
mod sum;
mod weights;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use dropout::sparse_dropout;
pub use edges::permute_edges;
pub use gather::{Window, gather, gather_bytes, gather_then, gather_window};
pub use linear::{
    column_sum, linear, linear_flops, linear_input_grad, linear_input_grad_then, linear_then, linear_weight_grad,
    linear_weight_grad_workspace_bytes, transpose,
};
pub use loss::{count_correct, half_squares, softmax_cross_entropy, softmax_cross_entropy_grad};
pub use moves::pack;
pub use multi_label::{count_micro, sigmoid_cross_entropy, sigmoid_cross_entropy_grad};
pub use norm::{layer_norm, layer_norm_gain_grad, layer_norm_input_grad};
pub use optimizer::{adam, sgd};
pub use rows::{RowWork, dropout, elementwise_bytes, rows_then};

use crate::device::{Device, Event, Lane, Recorder, Span};
use crate::error::{Error, Result};
use crate::lent::Lent;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};
use crate::semaphore::Semaphore;
use crate::team::Team;
use slots::Slots;

/// The host's cores as a device.
///
/// A constant of the host is used where it lies and only copied when a call writes its slot; everything counts
/// towards the capacity all the same. Memory is taken from the host when a slot is first used, and kept for the next
/// slot of the same size when it is freed: never more than the capacity, nor than half above the largest number of
/// bytes that were in use at once.
/// Debug builds fill an output's fresh memory with NaN.
pub struct CpuDevice {
    /// The thread that calls, and its helpers.
    team: Arc<Team>,
    slots: Slots,
    /// To the device, to the host, from other devices.
    copied: [AtomicU64; 3],
    semaphore: Option<Arc<Semaphore>>,
    recorder: Recorder,
    /// Numbers events. All have happened when they are handed out.
    events: AtomicU64,
}

impl CpuDevice {
    /// A device on which `threads` threads compute, the calling one among them, or as many as the host has cores, whose slots
    /// may hold `capacity_bytes` bytes together.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn new(threads: Option<NonZeroUsize>, capacity_bytes: u64) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, true), None)
    }

    /// As [`CpuDevice::new`], its kernels running under a semaphore that it shares with other devices.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn with_semaphore(
        threads: Option<NonZeroUsize>,
        capacity_bytes: u64,
        semaphore: Arc<Semaphore>,
    ) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, true), Some(semaphore))
    }

    /// A device whose memory is apart from the host's: constants are copied as well.
    pub(crate) fn apart(threads: Option<NonZeroUsize>, capacity_bytes: u64) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, false), None)
    }

    fn with_memory(threads: Option<NonZeroUsize>, slots: Slots, semaphore: Option<Arc<Semaphore>>) -> Result<Self> {
        let threads = threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let team = Arc::new(Team::new(threads).map_err(|source| Error::Threads { threads, source })?);
        let copied = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        let (recorder, events) = (Recorder::default(), AtomicU64::new(0));
        Ok(Self { team, slots, copied, semaphore, recorder, events })
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Does something as a new event, when memory is ready for it.
    fn now<T>(&self, lane: Lane, memory: impl FnOnce(), work: impl FnOnce() -> T) -> T {
        let event = Event(self.events.fetch_add(1, Ordering::Relaxed) + 1);
        self.recorder.note(event, lane, memory, work)
    }

    /// Takes memory for what a call writes, and has its pages cleared: a kernel that does so by writing to them takes up to
    /// twice as long.
    pub(crate) fn make_ready(&self, call: &Call) {
        self.slots.make_ready(call.writes());
    }

    fn last_event(&self) -> Event {
        Event(self.events.load(Ordering::Relaxed))
    }

    /// Counts what a plan calls a copy, whether or not bytes had to move for it.
    fn count(&self, lane: Lane, direction: usize, bytes: usize) {
        if lane != Lane::Control {
            self.copied[direction].fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

/// What devices do whose memory is apart from the host's.
impl CpuDevice {
    pub(crate) fn lend_apart(&self, slot: Slot) -> Result<Lent> {
        self.slots.lend(slot)
    }

    pub(crate) fn fetch_apart(&self, lane: Lane, rows: Slot, out: Mat, from: &[(Lent, usize)]) -> Result<()> {
        self.slots.fetch(rows, out, from)?;
        self.count(lane, 2, out.rows * out.row_bytes());
        Ok(())
    }

    pub(crate) fn fetched_apart(&self) -> u64 {
        self.copied[2].load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, capacity) = (self.slots.used(), self.slots.capacity());
        write!(f, "CpuDevice({} threads, {used} of {capacity} bytes)", self.threads())
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        "cpu".to_owned()
    }

    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        self.slots.alloc(slot, bytes)
    }

    fn free(&self, slot: Slot) -> Result<()> {
        self.slots.free(slot)
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        self.slots.rename(from, to)
    }

    fn share(&self, slot: Slot) -> Result<Option<HostSlot>> {
        let shared = self.slots.share(slot)?;
        self.count(Lane::CopyOut, 1, shared.len());
        Ok(Some(shared))
    }

    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, _after: &[Event]) -> Result<Event> {
        self.now(lane, || (), || self.slots.copy_in(dst, src))?;
        self.count(lane, 0, src.len());
        Ok(self.last_event())
    }

    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, _after: &[Event]) -> Result<Event> {
        self.now(lane, || (), || self.slots.copy_out(src, dst))?;
        self.count(lane, 1, dst.len());
        Ok(self.last_event())
    }

    fn launch(&self, lane: Lane, call: &Call, _after: &[Event]) -> Result<Event> {
        let run = || launch::launch(&self.slots.open(), call);
        let run = || self.team.install(|| self.now(lane, || self.make_ready(call), run));
        match &self.semaphore {
            Some(semaphore) => semaphore.pass(run)?,
            None => run()?,
        }
        Ok(self.last_event())
    }

    fn wait(&self, _event: Event) -> Result<()> {
        Ok(())
    }

    fn record(&self, on: bool) {
        self.recorder.record(on);
    }

    fn take_spans(&self) -> Vec<Span> {
        self.recorder.take()
    }

    fn copied_bytes(&self) -> [u64; 2] {
        [self.copied[0].load(Ordering::Relaxed), self.copied[1].load(Ordering::Relaxed)]
    }

    fn capacity_bytes(&self) -> u64 {
        self.slots.capacity()
    }

    fn used_bytes(&self) -> u64 {
        self.slots.used()
    }

    fn peak_bytes(&self) -> u64 {
        self.slots.peak()
    }
}
