//! The state that the lanes of a GPU share: one stream per lane, the kernels, and pinned memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaEvent, result, sys};
use parking_lot::Mutex;

use super::autotune::{Autotune, Shape, Tried};
use super::blas::{self, Blas};
use super::driver::{self, Named};
use super::events::Events;
use super::faults::Faults;
use super::graphs::Graphs;
use super::modules::{KernelCall, Modules};
use super::nccl::Member;
use super::slots::{Pool, Slots};
use super::staging::Staging;
pub(super) use super::task::Task;
use crate::cuda::gpu::Options;
use crate::device::{Event, Span};
use crate::error::Result;
use crate::lanes::{Engine, LANES, LaneJob, LaneWork, lane_and_number};
use crate::matmul::Matmul;

/// The lane of copies to the device. It also fetches rows from other devices.
pub(super) const LANE_IN: usize = 1;

pub(super) struct CudaEngine {
    // The fields are dropped in this order: users of a stream before the stream.
    pub(super) slots: Slots,
    pub(super) faults: Faults,
    /// Index reports of the calls of a batch.
    pub(super) batch_faults: Faults,
    /// Index reports of fetches.
    pub(super) peer_faults: Faults,
    graphs: Mutex<Graphs>,
    pub(super) staging: [Staging; 2],
    /// Bytes of the L2 cache.
    pub(super) cache_bytes: usize,
    pub(super) autotune: Autotune,
    /// How f32 matrices are multiplied.
    pub(super) matmul: Matmul,
    /// cuBLAS, or why it cannot be used.
    pub(super) blas: Result<Blas>,
    /// The group with which the GPU adds, and its place there.
    pub(super) group: Option<Member>,
    modules: Modules,
    scratch: Mutex<Scratch>,
    events: [Events; LANES.len()],
    recorder: Recorder,
    context: Arc<CudaContext>,
}

/// Scratch memory for partial sums, outside of the plan. Consecutive calls share it.
struct Scratch {
    pool: Pool,
    /// Addresses and bytes of the allocations. The newest is used. Earlier ones were too small, but running calls may
    /// still use them.
    rooms: Vec<(u64, u64)>,
}

impl CudaEngine {
    /// # Errors
    /// [`crate::Error::Cuda`], [`crate::Error::NoTf32`].
    pub(super) fn new(
        context: Arc<CudaContext>,
        capacity_bytes: u64,
        options: &Options,
        group: Option<Member>,
    ) -> Result<Self> {
        context.bind_to_thread().during("using a GPU")?;
        let events = [Events::new(&context)?, Events::new(&context)?, Events::new(&context)?];
        Ok(Self {
            slots: Slots::new(&context, capacity_bytes)?,
            faults: Faults::new()?,
            batch_faults: Faults::new()?,
            peer_faults: Faults::new()?,
            graphs: Mutex::default(),
            staging: [Staging::new(&context), Staging::new(&context)],
            cache_bytes: options.cache_bytes.map_or_else(|| driver::cache_bytes(context.cu_device()), Ok)? as usize,
            autotune: Autotune::default(),
            matmul: options.matmul,
            blas: blas::start(&context, &events[0].stream, options.matmul)?,
            group,
            modules: Modules::new(&context)?,
            scratch: Mutex::new(Scratch { pool: Pool::new(&context)?, rooms: Vec::new() }),
            events,
            recorder: Recorder::default(),
            context,
        })
    }

    /// Makes the GPU's context current on this thread.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().during("using a GPU")
    }

    /// Queues the launches of a fetch on the copy-in stream. Runs on the thread of that lane.
    pub(super) fn fetch(&self, launches: &[KernelCall]) -> Result<()> {
        launches.iter().try_for_each(|call| self.modules.launch(&self.events[LANE_IN].stream, call))
    }

    pub(super) fn events(&self, lane: usize) -> &Events {
        &self.events[lane]
    }

    /// Runs the tasks of one call, on the compute lane's thread.
    pub(super) fn run(&self, tasks: &[Task]) -> Result<()> {
        let stream = &self.events[0].stream;
        tasks.iter().try_for_each(|task| match task {
            Task::Kernel(call) => self.modules.launch(stream, call),
            Task::Product(product) => self.blas.as_ref().expect("`prepare` asked for it").product(product, self.matmul),
            Task::Trial { shape, ways } => self.try_all(*shape, ways),
            Task::Zero { address, bytes } => {
                // SAFETY: `prepare` checked that the buffer has as many bytes.
                unsafe { result::memset_d8_async(*address, 0, *bytes as usize, stream.cu_stream()) }
                    .during("setting memory to 0")
            }
        })
    }

    /// Launches all ways twice, and stores the times of the second round.
    fn try_all(&self, shape: Shape, ways: &[(usize, KernelCall)]) -> Result<()> {
        let stream = &self.events[0].stream;
        let round = || -> Result<Vec<Tried>> {
            let timed = ways.iter().map(|(columns, call)| {
                let start = self.timestamp(0)?;
                self.modules.launch(stream, call)?;
                let seconds = driver::elapsed(&start, &self.timestamp(0)?)?.as_secs_f64();
                Ok((*columns, seconds))
            });
            timed.collect()
        };
        round()?;
        self.autotune.keep(shape, round()?);
        Ok(())
    }

    /// Returns the address of at least `bytes` bytes of scratch memory for the next call on the compute lane.
    pub(super) fn scratch(&self, bytes: u64) -> Result<u64> {
        let mut scratch = self.scratch.lock();
        let newest = scratch.rooms.last().copied();
        let (address, has_bytes) = newest.unwrap_or((0, 0));
        if has_bytes >= bytes {
            return Ok(address);
        }
        // Each allocation at least doubles, so all earlier ones together are no larger than this one.
        let bytes = bytes.max(2 * has_bytes);
        let address = scratch.pool.take(bytes)?;
        scratch.rooms.push((address, bytes));
        Ok(address)
    }

    /// Runs the tasks of a batch, on the compute lane's thread.
    pub(super) fn run_batch(&self, tasks: Vec<Task>) -> Result<()> {
        self.graphs.lock().run(&self.events[0].stream, tasks, |tasks| self.run(tasks))
    }

    /// Whether times are recorded.
    pub(super) fn records(&self) -> bool {
        self.recorder.on.load(Ordering::Relaxed)
    }

    /// Waits until the job behind `event` is done on the GPU. The job must have been queued there before.
    pub(super) fn finish(&self, event: Event) -> Result<()> {
        let (lane, number) = lane_and_number(event);
        if number > 0 { self.events[lane].finish(number) } else { Ok(()) }
    }

    /// Whether the job behind `event` is done on the GPU. The job must have been queued there before.
    pub(super) fn has_happened(&self, event: Event) -> bool {
        let (lane, number) = lane_and_number(event);
        number == 0 || self.events[lane].is_done(number)
    }

    /// See [`crate::Device::record`].
    pub(super) fn record(&self, on: bool) -> Result<()> {
        if on {
            let start = self.timestamp(0)?;
            start.synchronize().during("waiting for the GPU")?;
            *self.recorder.start.lock() = Some((start, Instant::now()));
        }
        self.recorder.on.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// See [`crate::Device::take_spans`].
    pub(super) fn take_spans(&self) -> Vec<Span> {
        let timed = std::mem::take(&mut *self.recorder.timed.lock());
        let Some((event, start)) = &*self.recorder.start.lock() else { return Vec::new() };
        let after = |end: &CudaEvent| Some(*start + driver::elapsed(event, end).ok()?);
        let span = |(job, lane, [start, end]): (Event, usize, [CudaEvent; 2])| {
            let start = after(&start)?;
            Some(Span { event: job, lane: LANES[lane], start, ready: start, end: after(&end)? })
        };
        timed.into_iter().filter_map(span).collect()
    }

    /// Records a timestamp on a lane's stream.
    fn timestamp(&self, lane: usize) -> Result<CudaEvent> {
        let event = self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).during("making an event")?;
        event.record(&self.events[lane].stream).during("recording an event")?;
        Ok(event)
    }
}

/// Start and end times of jobs, measured by the GPU.
#[derive(Default)]
struct Recorder {
    on: AtomicBool,
    /// The same moment on the GPU's clock and on the host's.
    start: Mutex<Option<(CudaEvent, Instant)>>,
    timed: Mutex<Vec<(Event, usize, [CudaEvent; 2])>>,
}

impl Engine for CudaEngine {
    fn perform(&self, job: LaneJob<'_>, work: LaneWork<Self>) -> Result<()> {
        self.bind()?;
        let events = &self.events[job.lane];
        for &event in job.after {
            let (lane, number) = lane_and_number(event);
            if lane != job.lane && number > 0 {
                self.events[lane].hold_back(&events.stream, number)?;
            }
        }
        let timed = self.recorder.on.load(Ordering::Relaxed);
        let start = timed.then(|| self.timestamp(job.lane)).transpose()?;
        work(self)?;
        if let Some(start) = start {
            self.recorder.timed.lock().push((job.event, job.lane, [start, self.timestamp(job.lane)?]));
        }
        events.mark(lane_and_number(job.event).1)
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        // Errors were reported before. Queued jobs must end before their memory is freed.
        let _ = self.context.bind_to_thread();
        for events in &self.events {
            let _ = events.stream.synchronize();
        }
        let scratch = self.scratch.get_mut();
        for (address, _) in scratch.rooms.drain(..) {
            let _ = scratch.pool.give_back(address);
        }
    }
}
