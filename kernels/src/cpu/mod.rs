//! The CPU device: the host's cores, in host memory.
//!
//! Calls are complete when they return, so every event has happened when it is returned. The kernels are also available
//! here as plain functions over views, for callers that have slices and need no device; these run on as many threads as
//! rayon's global pool has. All kernels give the same bits on any number of threads.

mod attention;
mod bf16_pairs;
mod bf16_product;
#[cfg(target_arch = "x86_64")]
mod bf16_vectors;
mod dropout;
mod edge_windows;
mod edges;
mod element;
mod exp;
mod gather;
mod gather_rows;
mod launch;
mod linear;
mod loss;
mod moves;
mod multi_label;
mod narrow;
mod near;
mod norm;
mod optimizer;
mod pack;
mod parallel;
mod passes;
mod prefetch;
mod product;
mod repeated;
mod row_sum;
mod rows;
mod slots;
mod sources;
mod sum;
mod transpose;
mod weights;
mod window_rows;
mod windows;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use dropout::sparse_dropout;
pub use edge_windows::EdgeWindows;
pub use edges::permute_edges;
pub use gather::{Window, gather, gather_bytes, gather_passes, gather_then, gather_window, repeated_gather_passes};
pub use linear::{
    column_sum, linear, linear_flops, linear_input_grad, linear_input_grad_then, linear_then, linear_weight_grad,
    linear_weight_grad_workspace_bytes,
};
pub use loss::{count_correct, half_squares, softmax_cross_entropy, softmax_cross_entropy_grad};
pub use moves::pack;
pub use multi_label::{count_micro, sigmoid_cross_entropy, sigmoid_cross_entropy_grad};
pub use norm::{layer_norm, layer_norm_gain_grad, layer_norm_input_grad};
pub use optimizer::{adam, sgd};
pub use rows::{Numbers, RowWork, dropout, elementwise_bytes, rows_then};
pub use transpose::transpose;

use crate::device::{Device, Event, Lane, Recorder, Span};
use crate::error::{Error, Result};
use crate::lent::Lent;
use crate::matmul::Matmul;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};
use crate::semaphore::Semaphore;
use crate::team::{self, Team};
use slots::Slots;

/// The host's cores as a device.
///
/// A constant of the host is used in place, and copied only when a call writes its slot; it counts towards the capacity
/// in both cases. Memory is taken from the host when a slot is first used. When a slot is freed, its memory is kept for
/// the next slot of the same size. In total the device holds at most its capacity, and at most 1.5 times the largest
/// number of bytes that were in use at once.
/// The edges of a block over which gathers repeat may be stored a second time ([`EdgeWindows`]), within the same limit.
/// Debug builds fill the fresh memory of an output with NaN.
pub struct CpuDevice {
    /// The calling thread and its helpers.
    team: Arc<Team>,
    slots: Slots,
    /// Bytes copied to the device, to the host, and from other devices.
    copied: [AtomicU64; 3],
    semaphore: Option<Arc<Semaphore>>,
    matmul: Matmul,
    recorder: Recorder,
    /// Number of the last event. Every event has happened when it is returned.
    events: AtomicU64,
}

impl CpuDevice {
    /// Creates a device whose slots may hold `capacity_bytes` bytes together. `threads` is the number of threads that
    /// compute, including the caller; by default the size of rayon's pool.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn new(threads: Option<NonZeroUsize>, capacity_bytes: u64) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, true), None, team::ALONE)
    }

    /// Creates a device as [`CpuDevice::new`] does. Its kernels run under a semaphore that it shares with other
    /// devices.
    ///
    /// # Errors
    /// [`Error::Threads`].
    pub fn with_semaphore(
        threads: Option<NonZeroUsize>,
        capacity_bytes: u64,
        semaphore: Arc<Semaphore>,
    ) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, true), Some(semaphore), team::BESIDE_OTHERS)
    }

    /// Creates a device whose memory is separate from the host's: constants are copied as well.
    pub(crate) fn apart(threads: Option<NonZeroUsize>, capacity_bytes: u64) -> Result<Self> {
        Self::with_memory(threads, Slots::new(capacity_bytes, false), None, team::BESIDE_OTHERS)
    }

    fn with_memory(
        threads: Option<NonZeroUsize>,
        slots: Slots,
        semaphore: Option<Arc<Semaphore>>,
        awake: Duration,
    ) -> Result<Self> {
        let threads = threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let team = Arc::new(Team::new(threads, awake).map_err(|source| Error::Threads { threads, source })?);
        let copied = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        let (recorder, events) = (Recorder::default(), AtomicU64::new(0));
        Ok(Self { team, slots, copied, semaphore, matmul: Matmul::F32, recorder, events })
    }

    /// Sets how bf16 matrices are multiplied; [`Matmul::F32`] by default.
    ///
    /// # Errors
    /// [`Error::NoBf16`], [`Error::NoTf32`].
    pub fn matmul(mut self, matmul: Matmul) -> Result<Self> {
        if !matmul.supported() {
            return Err(match matmul {
                Matmul::Tf32 | Matmul::Tf32x3 => Error::NoTf32 { why: "it is a CPU, and only GPUs can".into() },
                _ => Error::NoBf16,
            });
        }
        self.matmul = matmul;
        Ok(self)
    }

    /// Returns how many threads compute.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Runs `work` as a new event, after `memory` has made its memory ready.
    fn now<T>(&self, lane: Lane, memory: impl FnOnce(), work: impl FnOnce() -> T) -> T {
        let event = Event(self.events.fetch_add(1, Ordering::Relaxed) + 1);
        self.recorder.note(event, lane, memory, work)
    }

    /// Allocates memory for the outputs of a call and has its pages cleared. A kernel that causes this by its own
    /// writes takes up to twice as long.
    pub(crate) fn make_ready(&self, call: &Call) {
        self.slots.make_ready(call.writes());
    }

    fn last_event(&self) -> Event {
        Event(self.events.load(Ordering::Relaxed))
    }

    /// Counts what the plan calls a copy, whether or not bytes were moved for it.
    fn count(&self, lane: Lane, direction: usize, bytes: usize) {
        if lane != Lane::Control {
            self.copied[direction].fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

/// Methods for devices whose memory is separate from the host's.
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
        let run = || launch::launch(&self.slots.open(), call, self.matmul);
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
