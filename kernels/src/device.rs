//! The interface between the code that decides (plans, workers) and the code that computes (devices).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::lent::Lent;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};

/// An independent queue of a device. Jobs on one lane run in the order in which they were queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies from the host to the device.
    CopyIn,
    /// Copies from the device to the host.
    CopyOut,
    /// Small copies in either direction: the clock, losses. They are not part of a plan and are not counted.
    Control,
}

/// A job that was queued on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

impl Event {
    /// An event that has already happened.
    pub const DONE: Event = Event(0);
}

/// The times at which a job ran.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The event that [`Device::launch`] or a copy returned.
    pub event: Event,
    /// The lane that it ran on.
    pub lane: Lane,
    /// When it started.
    pub start: Instant,
    /// When its memory was ready. The time before that is what the host needs to clear fresh pages.
    pub ready: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Records spans while recording is on.
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

    /// Runs `work` and records its span. While recording is on, memory is made ready first, so that the span shows how
    /// long each took.
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

/// One device: memory with a capacity, and kernels that work on it. Buffers are handles, never pointers. Calls are
/// queued on a lane and return an event.
///
/// # Laws
/// - A call starts only when every event of `after`, and everything queued before it on its lane, has happened.
/// - After a failed call, a slot has its old contents, or, if it is an output, contents that must not be read.
/// - [`Device::used_bytes`] never exceeds [`Device::capacity_bytes`]: an allocation that would exceed it fails.
pub trait Device: Send {
    /// Returns the name of the device for tables and errors (`cpu`, `sim:1`).
    fn name(&self) -> String;

    /// Allocates `bytes` bytes for `slot`. Their contents are undefined.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::SlotInUse`].
    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()>;

    /// Frees the memory of `slot`.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`].
    fn free(&self, slot: Slot) -> Result<()>;

    /// Moves the contents of `from` to the empty slot `to` without a copy. No queued job may still use `from`.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotInUse`].
    fn rename(&self, from: Slot, to: Slot) -> Result<()>;

    /// Returns the contents of `slot` as a constant of the host, without a copy, if the device uses host memory; `None`
    /// otherwise. The call that wrote the contents must have happened. A later write to the slot does not change the
    /// shared contents.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`].
    fn share(&self, slot: Slot) -> Result<Option<HostSlot>>;

    /// Queues a copy of all of `src` into `dst`, which must have the same number of bytes.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`].
    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> Result<Event>;

    /// Queues a copy of all of `src` into `dst`, which must have the same number of bytes.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`], [`crate::Error::ConstantWritten`].
    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> Result<Event>;

    /// Queues one kernel call. A failure is reported here or at the next [`Device::wait`], never later.
    ///
    /// # Errors
    /// Any of [`crate::Error`].
    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> Result<Event>;

    /// Lets other devices read the contents of `slot`. The call that wrote them must have happened. Until all readers
    /// are done, nothing may write or free the slot.
    ///
    /// # Errors
    /// [`crate::Error::EmptySlot`]; [`crate::Error::NoPeers`] if other devices cannot reach this memory.
    fn lend(&self, _slot: Slot) -> Result<Lent> {
        Err(Error::NoPeers)
    }

    /// Queues a copy of rows that other devices lend. `from` lists the owners in order, each with its number of rows.
    /// The next that many entries of `rows` are row indices into the owner's lent matrix; those rows are copied to the
    /// next rows of `out`, which has the same width.
    ///
    /// # Shapes
    /// `rows`: u32 `[out.rows]`; the row counts in `from` add up to `out.rows`.
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`], [`crate::Error::Shape`]; [`crate::Error::NoPeers`] if
    /// the memory of a lender cannot be reached; [`crate::Error::Index`], here or at the next [`Device::wait`].
    fn fetch(&self, _lane: Lane, _rows: Slot, _out: Mat, _from: &[(Lent, usize)], _after: &[Event]) -> Result<Event> {
        Err(Error::NoPeers)
    }

    /// Queues the sum of a term of each device of a group, to the sum of each of them. Every device of the group makes the
    /// same calls in the same order. A device that fails leaves the others waiting: see [`Device::interrupter`].
    ///
    /// # Shapes
    /// Both matrices are f32, of the same shape on all devices.
    /// # Errors
    /// [`crate::Error::EmptySlot`], [`crate::Error::SlotSize`], [`crate::Error::Shape`]; [`crate::Error::NoGroup`] if the
    /// device is in no group.
    fn all_reduce(&self, _term: Mat, _sum: Mat, _after: &[Event]) -> Result<Event> {
        Err(Error::NoGroup)
    }

    /// Returns a function that ends what this device and others of its group wait for from each other, with an error. Any
    /// thread may call it. `None` if the device is in no group.
    fn interrupter(&self) -> Option<Box<dyn Fn() + Send>> {
        None
    }

    /// Starts a batch: calls that are launched from now on are collected and queued as one job. They all return the
    /// event of that job. This saves time where calls are short. Returns whether the device supports it; if not, calls
    /// are queued one by one as usual.
    ///
    /// While a batch is open, the memory of its calls, and of copies that follow them, may be freed at once. Its
    /// contents stay until a later call of the batch writes there; for a copy, until the copy has happened. Before a
    /// batch begins, the caller must have waited for everything else.
    ///
    /// # Errors
    /// The error of an earlier call.
    fn begin_batch(&self) -> Result<bool> {
        Ok(false)
    }

    /// Ends the batch and queues it. Waiting for any event does so as well.
    ///
    /// # Errors
    /// The error of an earlier call.
    fn end_batch(&self) -> Result<()> {
        Ok(())
    }

    /// Blocks until `event` has happened.
    ///
    /// # Errors
    /// The error of the call behind the event, or of an earlier one.
    fn wait(&self, event: Event) -> Result<()>;

    /// Whether `event` has happened, as far as the device knows without waiting: `false` may mean that it does not know.
    fn has_happened(&self, event: Event) -> bool {
        event == Event::DONE
    }

    /// Blocks until all events of one of the `groups` have happened, and returns its index. A device that cannot wait for
    /// several at once waits for the first.
    ///
    /// # Errors
    /// As [`Device::wait`].
    /// # Panics
    /// If there is no group.
    fn wait_any(&self, groups: &[[Event; 3]]) -> Result<usize> {
        groups[0].iter().try_for_each(|&event| self.wait(event)).map(|()| 0)
    }

    /// Returns what the device chose by itself, and why: libraries, and ways to run a call. One line of text each.
    fn choices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what makes the device slower than it could be, and what to do, as sentences for the user.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the most bytes that the slots may hold together.
    fn capacity_bytes(&self) -> u64;

    /// Turns recording of spans on or off.
    fn record(&self, on: bool);

    /// Returns and clears the recorded spans.
    fn take_spans(&self) -> Vec<Span>;

    /// Returns the bytes copied so far to the device and to the host, without [`Lane::Control`].
    fn copied_bytes(&self) -> [u64; 2];

    /// Returns the bytes fetched so far from other devices.
    fn fetched_bytes(&self) -> u64 {
        0
    }

    /// Returns the bytes that the slots hold now.
    fn used_bytes(&self) -> u64;

    /// Returns the largest value that [`Device::used_bytes`] has had.
    fn peak_bytes(&self) -> u64;
}
