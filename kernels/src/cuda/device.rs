//! A GPU as a [`Device`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::batch::Batch;
use super::engine::{CudaEngine, LANE_IN};
use super::faults;
use super::nccl::Member;
use super::peer::{PeerReads, PeerSlot, prepare_fetch};
use super::prepare::prepare;
use super::slots::Spares;
use crate::cuda::gpu::Options;
use crate::device::{Device, Event, Lane, Span};
use crate::error::{Error, Result, check_shape};
use crate::lanes::{LANES, Lanes, lane_and_number};
use crate::lent::Lent;
use crate::matmul::Matmul;
use crate::memory::{HostSlot, Slot};
use crate::op::call::{Call, Mat};

/// One GPU, or a share of its memory.
///
/// Each lane has a thread and a stream of the GPU, so that a host copy into pinned memory does not delay other lanes. A
/// job that depends on a job of another lane waits for it on the GPU. Kernels run on [`Lane::Compute`] only.
pub(super) struct CudaDevice {
    name: String,
    lanes: Lanes<CudaEngine>,
    /// Bytes copied to the device and to the host.
    copied: [AtomicU64; 2],
    /// The open batch, if there is one.
    batch: Mutex<Option<Batch>>,
    /// Copies that read results of the batch before.
    copies: Mutex<Vec<Event>>,
    /// Bytes fetched from other devices.
    fetched: AtomicU64,
    // Dropped after the lanes, which may still queue reads.
    peer_reads: PeerReads,
}

impl CudaDevice {
    /// # Errors
    /// [`Error::Cuda`], [`Error::NoTf32`], [`Error::LaneThread`].
    pub(super) fn new(
        name: &str,
        context: Arc<CudaContext>,
        capacity_bytes: u64,
        options: &Options,
        group: Option<Member>,
    ) -> Result<Self> {
        let lanes = Lanes::new(name, CudaEngine::new(context, capacity_bytes, options, group)?)?;
        Ok(Self {
            name: name.to_owned(),
            peer_reads: PeerReads::new(lanes.shared_engine()),
            fetched: AtomicU64::new(0),
            lanes,
            copied: Default::default(),
            batch: Mutex::default(),
            copies: Mutex::default(),
        })
    }

    fn engine(&self) -> &CudaEngine {
        self.lanes.engine()
    }

    fn count(&self, lane: Lane, direction: usize, bytes: u64) {
        if lane != Lane::Control {
            self.copied[direction].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the address of the slot, if it has exactly `need_bytes` bytes.
    fn address(&self, slot: Slot, need_bytes: u64) -> Result<u64> {
        let buffer = self.engine().slots.get(slot)?;
        if buffer.bytes == need_bytes {
            Ok(buffer.address)
        } else {
            Err(Error::SlotSize { slot, need_bytes, have_bytes: buffer.bytes })
        }
    }

    /// Waits for a job, and checks the index reports of all jobs that are done.
    fn finish(&self, event: Event) -> Result<()> {
        self.lanes.wait(event);
        self.lanes.check()?;
        self.engine().finish(event)?;
        let done = self.engine().events(0).done();
        self.engine().faults.look(done)?;
        self.engine().batch_faults.look(done)?;
        self.engine().peer_faults.look(self.engine().events(LANE_IN).done())
    }

    /// Adds a call to the batch.
    fn collect(&self, batch: &mut Batch, call: &Call, after: &[Event]) -> Result<Event> {
        let engine = self.engine();
        let prepared = prepare(engine, call, engine.batch_faults.address_of(batch.lookups.len()))?;
        batch.tasks.extend(prepared.tasks);
        batch.lookups.extend(prepared.lookup);
        batch.wait_for(after);
        Ok(batch.event)
    }

    /// Queues the batch, waits for it, and starts a new one.
    fn start_again(&self, event: Event) -> Result<()> {
        self.end_batch()?;
        self.finish(event)?;
        self.begin_batch().map(drop)
    }

    /// Queues the batch as one job.
    fn queue(&self, batch: Batch) -> Result<()> {
        let Batch { event, tasks, after, lookups, copies } = batch;
        self.copies.lock().extend(copies.into_iter().map(|(_, event)| event));
        let queued = self.lanes.queue(Lane::Compute, &after, move |engine| engine.run_batch(tasks))?;
        assert_eq!(queued, event, "nothing else is queued on the lane while a batch is collected");
        self.engine().batch_faults.watch_batch(lane_and_number(event).1, lookups);
        Ok(())
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Copies may wait for the open batch.
        let _ = self.end_batch();
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        let slots = &self.engine().slots;
        let Some(event) = self.batch.lock().as_ref().map(|batch| batch.event) else {
            return slots.alloc(slot, bytes, Spares::MayGo);
        };
        match slots.alloc(slot, bytes, Spares::Stay) {
            Err(Error::Cuda { .. } | Error::OutOfMemory { .. }) => {
                // Freeing spare memory may help. But calls of the batch may still use it, so the batch must be done
                // first.
                self.start_again(event)?;
                slots.alloc(slot, bytes, Spares::MayGo)
            }
            done => done,
        }
    }

    fn free(&self, slot: Slot) -> Result<()> {
        let batch = self.batch.lock();
        let is_copied = batch.as_ref().is_some_and(|batch| batch.copies.iter().any(|(copied, _)| *copied == slot));
        if is_copied { self.engine().slots.retire(slot) } else { self.engine().slots.free(slot) }
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
            // If another copy writes `src`, it must be done before the host reads it.
            if matches!(src, HostSlot::Staging(_)) {
                earlier.into_iter().try_for_each(|event| engine.finish(event))?;
            }
            src.read(|bytes| engine.staging[0].upload(&engine.events(1).stream, address, bytes))
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
            dst.write(|bytes| done = engine.staging[1].download(&engine.events(2).stream, address, bytes))?;
            done
        })?;
        self.count(lane, 1, bytes);
        if let Some(batch) = &mut *self.batch.lock() {
            batch.copies.push((src, event));
        }
        Ok(event)
    }

    fn lend(&self, slot: Slot) -> Result<Lent> {
        PeerSlot::new(self.lanes.shared_engine(), slot).map(Lent::new)
    }

    fn fetch(&self, lane: Lane, rows: Slot, out: Mat, from: &[(Lent, usize)], after: &[Event]) -> Result<Event> {
        let engine = self.engine();
        if let Some(job) = engine.peer_faults.in_the_way() {
            self.finish(Event(job * LANES.len() as u64 + LANE_IN as u64))?;
        }
        let (launches, lookup) = prepare_fetch(engine, rows, out, from, engine.peer_faults.address())?;
        let event = self.lanes.queue(Lane::CopyIn, after, move |engine| engine.fetch(&launches))?;
        let number = lane_and_number(event).1;
        engine.peer_faults.watch(number, lookup);
        self.peer_reads.hold(number, from.iter().map(|(lent, _)| lent.clone()).collect());
        if lane != Lane::Control {
            self.fetched.fetch_add((out.rows * out.row_bytes()) as u64, Ordering::Relaxed);
        }
        Ok(event)
    }

    fn all_reduce(&self, term: Mat, sum: Mat, after: &[Event]) -> Result<Event> {
        let Some((group, place)) = self.engine().group.clone() else { return Err(Error::NoGroup) };
        check_shape("all_reduce", "sum", [term.rows, term.cols], [sum.rows, sum.cols])?;
        let count = term.numbers();
        let [from, to] = [term, sum].map(|mat| self.address(mat.slot, 4 * count as u64));
        let (from, to) = (from?, to?);
        // It is queued by itself, and may wait for others.
        self.end_batch()?;
        self.lanes.queue(Lane::Compute, after, move |engine| {
            group.all_reduce(place, [from, to], count, &engine.events(0).stream)
        })
    }

    fn interrupter(&self) -> Option<Box<dyn Fn() + Send>> {
        let (group, _) = self.engine().group.clone()?;
        Some(Box::new(move || group.interrupt()))
    }

    fn launch(&self, _lane: Lane, call: &Call, after: &[Event]) -> Result<Event> {
        let engine = self.engine();
        // A batch with more lookups would have no place for their reports.
        let full =
            self.batch.lock().as_ref().filter(|batch| batch.lookups.len() == faults::MOST).map(|batch| batch.event);
        full.map_or(Ok(()), |event| self.start_again(event))?;
        if let Some(batch) = &mut *self.batch.lock() {
            return self.collect(batch, call, after);
        }
        if let Some(job) = engine.faults.in_the_way() {
            self.finish(Event(job * LANES.len() as u64))?;
        }
        let prepared = prepare(engine, call, engine.faults.address())?;
        let event = self.lanes.queue(Lane::Compute, after, move |engine| engine.run(&prepared.tasks))?;
        if let Some(lookup) = prepared.lookup {
            engine.faults.watch(lane_and_number(event).1, lookup);
        }
        Ok(event)
    }

    fn begin_batch(&self) -> Result<bool> {
        // While times are recorded, each call is timed by itself.
        if self.engine().records() {
            return Ok(false);
        }
        let mut batch = self.batch.lock();
        if batch.is_none() {
            let next = self.lanes.next(Lane::Compute);
            // Checks the reports of the batch before. Then its copies must be done, so that the memory they read is
            // free.
            self.finish(Event(next.0 - LANES.len() as u64))?;
            std::mem::take(&mut *self.copies.lock()).into_iter().try_for_each(|event| self.finish(event))?;
            self.engine().slots.settle();
            *batch = Some(Batch::new(next));
        }
        Ok(true)
    }

    fn end_batch(&self) -> Result<()> {
        self.batch.lock().take().map_or(Ok(()), |batch| self.queue(batch))
    }

    fn wait(&self, event: Event) -> Result<()> {
        // An event of a batch can only happen after the batch is queued.
        self.end_batch()?;
        self.finish(event)
    }

    fn has_happened(&self, event: Event) -> bool {
        self.lanes.has_happened(event) && self.engine().has_happened(event)
    }

    fn choices(&self) -> Vec<String> {
        let CudaEngine { blas, matmul, .. } = self.engine();
        let products = match (blas, matmul) {
            (Ok(blas), Matmul::Tf32x3) => {
                format!("products by cuBLAS {}, of f32 matrices by Lapidary's own kernel in {matmul}", blas.version())
            }
            (Ok(blas), _) => format!("products by cuBLAS {}, of f32 matrices in {matmul}", blas.version()),
            (Err(error), Matmul::Tf32x3) => format!("products by Lapidary's own kernels, in {matmul}; {error}"),
            (Err(error), _) => format!("products by Lapidary's own kernels, because {error}"),
        };
        std::iter::once(products).chain(self.engine().autotune.told()).collect()
    }

    fn notices(&self) -> Vec<String> {
        let CudaEngine { blas, matmul, .. } = self.engine();
        let slow = |error: &Error| format!("products are slower than they could be: {error}");
        // Those of f32 matrices do without it.
        let missed = blas.as_ref().err().filter(|_| *matmul != Matmul::Tf32x3);
        missed.map(slow).into_iter().collect()
    }

    fn capacity_bytes(&self) -> u64 {
        self.engine().slots.capacity
    }

    fn record(&self, on: bool) {
        // Without times the cost model learns nothing and the trace is empty. A failure here will be reported by the
        // next call.
        let _ = self.engine().record(on);
    }

    fn take_spans(&self) -> Vec<Span> {
        self.engine().take_spans()
    }

    fn copied_bytes(&self) -> [u64; 2] {
        [self.copied[0].load(Ordering::Relaxed), self.copied[1].load(Ordering::Relaxed)]
    }

    fn fetched_bytes(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    fn used_bytes(&self) -> u64 {
        self.engine().slots.used_and_peak()[0]
    }

    fn peak_bytes(&self) -> u64 {
        self.engine().slots.used_and_peak()[1]
    }
}
