//! The boundary between what decides (plans, workers) and what computes (devices).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::lent::Lent;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};

/// An independent queue of a device. Calls on one lane happen in the order in which they were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies from the host to the device.
    CopyIn,
    /// Copies from the device to the host.
    CopyOut,
    /// Small copies either way that steer and report: the clock, losses. They are no part of a plan and not counted.
    Control,
}

/// Something queued on a device that has happened or will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

impl Event {
    /// An event that has happened.
    pub const DONE: Event = Event(0);
}

/// When something queued ran.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// What [`Device::launch`] or a copy returned.
    pub event: Event,
    /// On which lane it ran.
    pub lane: Lane,
    /// When it began.
    pub start: Instant,
    /// When it had its memory. What passes before is the host's time to clear fresh pages.
    pub ready: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Spans that a device notes while someone wants them.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    spans: Mutex<Vec<Span>>,
}

impl Recorder {
    pub(crate) fn record(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.spans.lock())
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Runs `work` and notes when. Its memory is made ready before, if somebody wants to know how long each took.
    pub(crate) fn note<T>(&self, event: Event, lane: Lane, memory: impl FnOnce(), work: impl FnOnce() -> T) -> T {
        if !self.is_on() {
            return work();
        }
        let start = Instant::now();
        memory();
        let ready = Instant::now();
        let done = work();
        self.spans.lock().push(Span { event, lane, start, ready, end: Instant::now() });
        done
    }
}

/// One device: memory with a capacity, and the kernels over it. Buffers are handles, never pointers; calls are
/// queued on a lane and return an event.
///
/// # Laws
/// - A call starts only when every event of `after`, and everything queued before it on its lane, has happened.
/// - A failed call leaves every slot as it was or, where it is an output, with contents that must not be read.
/// - [`Device::used_bytes`] never exceeds [`Device::capacity_bytes`]: the allocation that would do so fails.
pub trait Device: Send {
    /// What the device is called in tables and errors (`cpu`, `sim:1`).
    fn name(&self) -> String;

    /// Gives `slot` `bytes` bytes of memory. What is in them is not defined.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::SlotInUse`].
    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()>;

    /// Gives the memory of `slot` back.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`].
    fn free(&self, slot: Slot) -> Result<()>;

    /// Lets `to`, which holds nothing, hold what `from` holds, without a copy. Nothing queued may still use `from`.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotInUse`].
    fn rename(&self, from: Slot, to: Slot) -> Result<()>;

    /// The contents of `slot` as a constant of the host, if the device's memory is the host's: nothing is copied. The
    /// call that wrote them must have happened; a later write to the slot does not change what was shared.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`].
    fn share(&self, slot: Slot) -> Result<Option<HostSlot>>;

    /// Queues a copy of all of `src` into `dst`, which has that many bytes.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`].
    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> Result<Event>;

    /// Queues a copy of all of `src` into `dst`, which has that many bytes.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`], [`crate::Error::ConstantWritten`].
    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> Result<Event>;

    /// Queues one kernel call. Its failure surfaces here or at the next [`Device::wait`], never later.
    ///
    /// # Errors
    /// Any of [`crate::Error`].
    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> Result<Event>;

    /// Lets other devices read what `slot` holds. The call that wrote it must have happened; until all of them are done, nothing may
    /// write the slot or free it.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`]; [`crate::Error::NoPeers`] if others cannot reach this memory.
    fn lend(&self, _slot: Slot) -> Result<Lent> {
        Err(Error::NoPeers)
    }

    /// Queues a copy of rows that other devices lend: for each of `from`, in order, that many more of the numbers in `rows` are rows of
    /// what was lent, and become rows of `out`, which is as wide.
    ///
    /// # Shapes
    /// `rows`: u32 `[out.rows]`; the numbers of rows in `from` add up to `out.rows`.
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`], [`crate::Error::Shape`]; [`crate::Error::NoPeers`] for what a device that
    /// cannot be reached lent; [`crate::Error::Index`], here or at the next [`Device::wait`].
    fn fetch(&self, _lane: Lane, _rows: Slot, _out: Mat, _from: &[(Lent, usize)], _after: &[Event]) -> Result<Event> {
        Err(Error::NoPeers)
    }

    /// Collects the calls that are launched from now on, to queue them as one job, whose event they all return: much is saved where
    /// calls are short. Returns whether it does so; a device may not, and then calls are queued as ever.
    ///
    /// While a batch is open, memory of its calls, and of copies that follow them, may be freed at once: what is in it stays until a later
    /// call of the batch writes there, and for a copy until that has happened. Before a batch begins, everything else was waited for.
    ///
    /// # Errors
    /// That of a call before.
    fn begin_batch(&self) -> Result<bool> {
        Ok(false)
    }

    /// Queues what was collected. Waiting for anything does so as well.
    ///
    /// # Errors
    /// That of a call before.
    fn end_batch(&self) -> Result<()> {
        Ok(())
    }

    /// Returns when `event` has happened.
    ///
    /// # Errors
    /// That of the call behind the event, or of one before it.
    fn wait(&self, event: Event) -> Result<()>;

    /// What the device tried to find the faster way of a call, in words: a line each.
    fn autotuned(&self) -> Vec<String> {
        Vec::new()
    }

    /// The most bytes that the slots may hold together.
    fn capacity_bytes(&self) -> u64;

    /// Notes from now on when what is queued runs, or stops to.
    fn record(&self, on: bool);

    /// What was noted, which is then forgotten.
    fn take_spans(&self) -> Vec<Span>;

    /// Bytes that were copied so far, not counting [`Lane::Control`]: to the device, and to the host.
    fn copied_bytes(&self) -> [u64; 2];

    /// Bytes that were fetched so far from other devices.
    fn fetched_bytes(&self) -> u64 {
        0
    }

    /// Bytes that the slots hold now.
    fn used_bytes(&self) -> u64;

    /// The largest value that [`Device::used_bytes`] has had.
    fn peak_bytes(&self) -> u64;
}
