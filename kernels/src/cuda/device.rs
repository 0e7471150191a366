//! A GPU as a [`Device`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::engine::CudaEngine;
use super::prepare::prepare;
use crate::call::Call;
use crate::device::{Device, Event, Lane, Span};
use crate::error::{Error, Result};
use crate::lanes::{LANES, Lanes, lane_and_number};
use crate::memory::{HostSlot, Slot};

/// One GPU, or a share of its memory.
///
/// Each lane has a thread, which queues on a stream of the GPU, so that a host's copy into pinned memory keeps no other lane
/// waiting. A job of one lane that comes after one of another waits for it on the GPU. Kernels run on [`Lane::Compute`] alone.
pub(super) struct CudaDevice {
    name: String,
    lanes: Lanes<CudaEngine>,
    /// To the device, to the host.
    copied: [AtomicU64; 2],
    /// The newest job of the compute lane.
    newest: AtomicU64,
}

impl CudaDevice {
    /// # Errors
    /// [`Error::Cuda`], [`Error::LaneThread`].
    pub(super) fn new(name: &str, ordinal: u32, capacity_bytes: u64) -> Result<Self> {
        let lanes = Lanes::new(name, CudaEngine::new(ordinal, capacity_bytes)?)?;
        Ok(Self { name: name.to_owned(), lanes, copied: Default::default(), newest: AtomicU64::new(Event::DONE.0) })
    }

    fn engine(&self) -> &CudaEngine {
        self.lanes.engine()
    }

    fn count(&self, lane: Lane, direction: usize, bytes: u64) {
        if lane != Lane::Control {
            self.copied[direction].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The slot's address, if it has exactly as many bytes as the host's end.
    fn address(&self, slot: Slot, need_bytes: u64) -> Result<u64> {
        let buffer = self.engine().slots.get(slot)?;
        if buffer.bytes == need_bytes {
            Ok(buffer.address)
        } else {
            Err(Error::SlotSize { slot, need_bytes, have_bytes: buffer.bytes })
        }
    }

    /// Waits for a job, and looks at what kernels reported until then.
    fn finish(&self, event: Event) -> Result<()> {
        self.lanes.wait(event);
        self.lanes.check()?;
        self.engine().finish(event)?;
        self.engine().faults.look(self.engine().marks(0).done())
    }

    fn finish_compute(&self) -> Result<()> {
        self.finish(Event(self.newest.load(Ordering::Relaxed)))
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        self.engine().slots.alloc(slot, bytes)
    }

    fn free(&self, slot: Slot) -> Result<()> {
        self.engine().slots.free(slot)
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        self.engine().slots.rename(from, to)
    }

    fn share(&self, _slot: Slot) -> Result<Option<HostSlot>> {
        Ok(None)
    }

    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> Result<Event> {
        let (address, src, earlier) = (self.address(dst, src.len() as u64)?, src.clone(), after.to_vec());
        let bytes = src.len() as u64;
        let event = self.lanes.queue(Lane::CopyIn, after, move |engine| {
            // What another copy writes must be there before the host reads it.
            if matches!(src, HostSlot::Staging(_)) {
                earlier.into_iter().try_for_each(|event| engine.finish(event))?;
            }
            src.read(|bytes| engine.staging[0].upload(&engine.marks(1).stream, address, bytes))
        })?;
        self.count(lane, 0, bytes);
        Ok(event)
    }

    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> Result<Event> {
        if matches!(dst, HostSlot::Constant(_)) {
            return Err(Error::ConstantWritten);
        }
        let (address, dst) = (self.address(src, dst.len() as u64)?, dst.clone());
        let bytes = dst.len() as u64;
        let event = self.lanes.queue(Lane::CopyOut, after, move |engine| {
            let mut done = Ok(());
            dst.write(|bytes| done = engine.staging[1].download(&engine.marks(2).stream, address, bytes))?;
            done
        })?;
        self.count(lane, 1, bytes);
        Ok(event)
    }

    fn launch(&self, _lane: Lane, call: &Call, after: &[Event]) -> Result<Event> {
        let engine = self.engine();
        if let Some(job) = engine.faults.in_the_way() {
            self.finish(Event(job * LANES.len() as u64))?;
        }
        let prepared = prepare(engine, call, || self.finish_compute())?;
        let event = self.lanes.queue(Lane::Compute, after, move |engine| engine.run(&prepared.tasks))?;
        if let Some(lookup) = prepared.lookup {
            engine.faults.watch(lane_and_number(event).1, lookup);
        }
        self.newest.store(event.0, Ordering::Relaxed);
        Ok(event)
    }

    fn wait(&self, event: Event) -> Result<()> {
        self.finish(event)
    }

    fn capacity_bytes(&self) -> u64 {
        self.engine().slots.capacity
    }

    fn record(&self, on: bool) {
        // Without times nothing is learned and nothing drawn; what fails here fails at the next call, too.
        let _ = self.engine().record(on);
    }

    fn take_spans(&self) -> Vec<Span> {
        self.engine().take_spans()
    }

    fn copied_bytes(&self) -> [u64; 2] {
        [self.copied[0].load(Ordering::Relaxed), self.copied[1].load(Ordering::Relaxed)]
    }

    fn used_bytes(&self) -> u64 {
        self.engine().slots.used_and_peak()[0]
    }

    fn peak_bytes(&self) -> u64 {
        self.engine().slots.used_and_peak()[1]
    }
}
