//! Measures a GPU: times single calls by the GPU's clock, and derives its profile.

use std::time::Instant;

use bytemuck::Pod;
use lapidary_cost_model::Profile;
use lapidary_kernels::op::{Linear, RowStep};
use lapidary_kernels::{BlockSlots, Call, Device, Event, HostSlot, Lane, Mat, Matmul, Shared, Slot, cpu, cuda};
use rayon::prelude::*;

use super::{WIDTH, far_apart, random_rate};
use crate::error::{Error, Result};

/// A GPU whose slots are filled explicitly.
pub(crate) struct Bench {
    device: Box<dyn Device>,
}

impl Bench {
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        Self::multiplying(ordinal, Matmul::F32)
    }

    /// Opens a GPU that multiplies f32 matrices like this.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn multiplying(ordinal: u32, matmul: Matmul) -> Result<Self> {
        Self::with(ordinal, &cuda::Options { matmul, ..cuda::Options::default() })
    }

    fn with(ordinal: u32, options: &cuda::Options) -> Result<Self> {
        let name = format!("cuda:{ordinal}");
        let opened = cuda::open_with(&name, ordinal, u64::MAX, options, None);
        Ok(Self { device: opened.map_err(Self::failed(&name, "opening it"))? })
    }

    /// Returns what makes the error of an operation on a device.
    pub(super) fn failed(device: &str, op: &str) -> impl Fn(lapidary_kernels::Error) -> Error {
        move |source| Error::Device { device: device.into(), op: op.into(), source: Box::new(source) }
    }

    fn named<T>(&self, op: &str, result: lapidary_kernels::Result<T>) -> Result<T> {
        result.map_err(Self::failed(&self.device.name(), op))
    }

    /// Fills an empty slot.
    pub(crate) fn put<T: Pod + Send + Sync>(&self, slot: u32, values: Vec<T>) -> Result<Slot> {
        let (slot, host) = (Slot(slot), HostSlot::constant(&Shared::from(values)));
        let copied = self.device.alloc(slot, host.len() as u64);
        let copied = copied.and_then(|()| self.device.copy_in(Lane::CopyIn, slot, &host, &[]));
        self.named("filling it", copied.and_then(|event| self.device.wait(event)))?;
        Ok(slot)
    }

    /// Creates a matrix of numbers between -0.5 and 0.5.
    pub(crate) fn matrix(&self, slot: u32, rows: usize, cols: usize) -> Result<Mat> {
        Ok(Mat::f32(self.put(slot, (0..rows * cols).into_par_iter().map(Self::cell).collect())?, rows, cols))
    }

    /// Returns cell `i` of such a matrix: the high bits of multiples of a large odd number.
    pub(crate) fn cell(i: usize) -> f32 {
        ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    }

    /// Allocates a matrix that a call will write.
    pub(crate) fn room(&self, slot: u32, rows: usize, cols: usize) -> Result<Mat> {
        let slot = Slot(slot);
        self.named("allocating memory", self.device.alloc(slot, 4 * (rows * cols) as u64))?;
        Ok(Mat::f32(slot, rows, cols))
    }

    /// Frees slots.
    pub(crate) fn free(&self, slots: &[Slot]) -> Result<()> {
        slots.iter().try_for_each(|&slot| self.named("freeing memory", self.device.free(slot)))
    }

    /// Returns the seconds of each of `runs` launches by the GPU's clock, after a warm-up launch.
    pub(crate) fn seconds(&self, call: &Call, runs: usize) -> Result<Vec<f64>> {
        self.timed(call.name(), runs, || self.device.launch(Lane::Compute, call, &[]))
    }

    /// Returns the seconds of each of `runs` jobs by the GPU's clock, after one that is not timed.
    fn timed(&self, op: &str, runs: usize, queue: impl Fn() -> lapidary_kernels::Result<Event>) -> Result<Vec<f64>> {
        let job = || self.named(op, queue().and_then(|event| self.device.wait(event)));
        job()?;
        self.device.record(true);
        (0..runs).try_for_each(|_| job())?;
        self.device.record(false);
        Ok(self.device.take_spans().iter().map(|span| (span.end - span.start).as_secs_f64()).collect())
    }

    /// Returns the seconds per launch by the host's clock: if the host waits for each, and if it queues many.
    pub(crate) fn launch_seconds(&self, launches: u32) -> Result<[f64; 2]> {
        let (x, out) = (self.matrix(0, 1, 1)?, self.room(1, 1, 1)?);
        let call = Call::new(RowStep::Relu, [x], [out]);
        let many = |wait_each: bool| {
            let start = Instant::now();
            let mut last = Event::DONE;
            for _ in 0..launches {
                last = self.device.launch(Lane::Compute, &call, &[])?;
                if wait_each {
                    self.device.wait(last)?;
                }
            }
            self.device.wait(last)?;
            Ok(start.elapsed().as_secs_f64() / f64::from(launches.max(1)))
        };
        let timed = many(true).and_then(|_| Ok([many(true)?, many(false)?]));
        self.free(&[x.slot, out.slot])?;
        self.named(call.name(), timed)
    }

    /// Returns the bytes per second of copies of `bytes` bytes to the device and to the host, by the host's clock. The
    /// host's own work is included.
    pub(crate) fn copy_rates(&self, bytes: usize, runs: usize) -> Result<[f64; 2]> {
        let slot = self.put(0, vec![1u8; bytes])?;
        let constant = HostSlot::constant(&Shared::from(vec![1u8; bytes]));
        let staging = self.named("allocating host memory", HostSlot::staging(bytes))?;
        let mut least = [f64::INFINITY; 2];
        for _ in 0..=runs {
            let copy_in = || self.device.copy_in(Lane::CopyIn, slot, &constant, &[]);
            let copy_out = || self.device.copy_out(Lane::CopyOut, slot, &staging, &[]);
            let copies: [&dyn Fn() -> lapidary_kernels::Result<Event>; 2] = [&copy_in, &copy_out];
            for (least, copy) in least.iter_mut().zip(copies) {
                let start = Instant::now();
                self.named("copying", copy().and_then(|event| self.device.wait(event)))?;
                *least = least.min(start.elapsed().as_secs_f64());
            }
        }
        self.free(&[slot])?;
        Ok(least.map(|seconds| bytes as f64 / seconds.max(1e-9)))
    }

    /// Returns the bytes per second of a kernel that reads and writes memory sequentially, half of the bytes each.
    pub(crate) fn memory_rate(&self, rows: usize, runs: usize) -> Result<f64> {
        const WIDTH: usize = 256;
        let (x, out) = (self.matrix(0, rows, WIDTH)?, self.room(1, rows, WIDTH)?);
        let seconds = least(&self.seconds(&Call::new(RowStep::Relu, [x], [out]), runs)?);
        self.free(&[x.slot, out.slot])?;
        Ok(cpu::elementwise_bytes(1, rows as u64, WIDTH as u64) as f64 / seconds)
    }

    /// Returns the bytes per second at which rows of another GPU's matrix are copied into `out`.
    pub(super) fn fetch_rate(&self, owner: &Self, matrix: Mat, rows: Slot, out: Mat, runs: usize) -> Result<f64> {
        let seconds = self.timed("copying rows from another GPU", runs, || {
            let lent = owner.device.lend(matrix.slot)?;
            self.device.fetch(Lane::CopyIn, rows, out, &[(lent, out.rows)], &[])
        })?;
        Ok((out.rows * out.row_bytes()) as f64 / least(&seconds))
    }

    /// Returns the bytes per second of a gather that reads random rows of a matrix with `sources` rows.
    fn gather_rate(&self, rows: usize, sources: usize, memory_bytes_per_s: f64) -> Result<f64> {
        const DEGREE: usize = 32;
        let indptr: Vec<u64> = (0..=rows as u64).map(|v| v * DEGREE as u64).collect();
        let indices: Vec<u32> = (0..(rows * DEGREE) as u64).map(|i| far_apart(i, sources)).collect();
        let edges = indices.len();
        let block = BlockSlots {
            indptr: self.put(2, indptr)?,
            indices: self.put(3, indices)?,
            rows,
            own_sources: sources,
            halo_sources: 0,
            edges,
        };
        let (own, out) = (self.matrix(0, sources, WIDTH)?, self.room(1, rows, WIDTH)?);
        let seconds = least(&self.seconds(&Call::gather(block, None, own, None, out), RUNS)?);
        self.free(&[own.slot, out.slot, block.indptr, block.indices])?;
        Ok(random_rate(rows, edges, seconds, memory_bytes_per_s))
    }

    /// Returns the floating-point operations per second of a product.
    fn product_rate(&self, rows: usize) -> Result<f64> {
        const WIDTH: usize = 256;
        let (x, weight) = (self.matrix(0, rows, WIDTH)?, self.matrix(1, WIDTH, WIDTH)?);
        let out = self.room(2, rows, WIDTH)?;
        let seconds = least(&self.seconds(&Call::new(Linear::Product, [x, weight], [out]), RUNS)?);
        self.free(&[x.slot, weight.slot, out.slot])?;
        Ok(cpu::linear_flops(rows as u64, WIDTH as u64, WIDTH as u64) as f64 / seconds)
    }
}

/// What only `gpu-check` needs.
#[cfg(feature = "command")]
impl Bench {
    /// Opens a GPU whose gathers are by whole rows, never by groups of columns.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn by_whole_rows(ordinal: u32) -> Result<Self> {
        Self::with(ordinal, &cuda::Options { cache_bytes: Some(u64::MAX), ..cuda::Options::default() })
    }

    /// Returns what the device chose by itself.
    pub(crate) fn choices(&self) -> Vec<String> {
        self.device.choices()
    }

    /// Fills slots 0 and 1 with a graph as one block.
    pub(crate) fn block(&self, graph: &crate::graph::Graph) -> Result<BlockSlots> {
        Ok(BlockSlots {
            indptr: self.put(0, graph.indptr().to_vec())?,
            indices: self.put(1, graph.indices().to_vec())?,
            rows: graph.vertex_count(),
            own_sources: graph.vertex_count(),
            halo_sources: 0,
            edges: graph.edge_count(),
        })
    }

    /// Runs a call and waits for it.
    pub(crate) fn run(&self, call: &Call) -> Result<()> {
        let done = self.device.launch(Lane::Compute, call, &[]).and_then(|event| self.device.wait(event));
        self.named(call.name(), done)
    }

    /// Returns the cells of a matrix.
    pub(crate) fn get(&self, mat: Mat) -> Result<Vec<f32>> {
        let host = self.named("allocating host memory", HostSlot::staging(4 * mat.rows * mat.cols))?;
        let copied = self.device.copy_out(Lane::CopyOut, mat.slot, &host, &[]);
        self.named("copying", copied.and_then(|event| self.device.wait(event)))?;
        Ok(host.to_vec())
    }
}

/// Timed launches of each call.
const RUNS: usize = 5;

/// Shortest time of a launch that measures the GPU's rate and not the launch overhead.
const LONG_S: f64 = 3e-4;

/// Returns the least time: disturbances only slow a run.
fn least(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min).max(1e-9)
}

/// Returns the rate at the smallest size that takes long enough, or at the largest size. So measuring a slow device
/// takes no longer than measuring a fast one.
pub(super) fn grown(
    sizes: &[usize],
    measure: impl Fn(usize) -> Result<f64>,
    work: impl Fn(usize) -> f64,
) -> Result<f64> {
    let mut rate = f64::NAN;
    for &size in sizes {
        rate = measure(size)?;
        if work(size) / rate >= LONG_S {
            break;
        }
    }
    Ok(rate)
}

/// Measures a GPU with Lapidary's own kernels.
///
/// # Cost
/// Less than a second, once the kernels are compiled; at most 1 GiB of the GPU's and of the host's memory during that
/// time.
/// # Errors
/// [`Error::Device`]; [`Error::NoGpus`] without a driver.
pub(super) fn measure(ordinal: u32) -> Result<Profile> {
    let name = format!("cuda:{ordinal}");
    let failed = |source| Error::Device { device: name.clone(), op: "looking for it".into(), source: Box::new(source) };
    let gpus = cuda::gpus().map_err(|source| Error::NoGpus {
        option: "profile",
        value: name.clone(),
        instead: format!("known without one are {}, and a file's", Profile::NAMES.join(", ")),
        source: Box::new(source),
    })?;
    let gpu = gpus.iter().find(|gpu| gpu.ordinal == ordinal);
    let none = || failed(lapidary_kernels::Error::NoGpu { ordinal, count: gpus.len() as u32 });
    let gpu = gpu.ok_or_else(none)?;
    let bench = Bench::open(ordinal)?;
    const ROWS: [usize; 4] = [1 << 8, 1 << 12, 1 << 15, 1 << 18];
    let memory = grown(&ROWS, |rows| bench.memory_rate(rows, RUNS), |rows| (rows * 256 * 8) as f64)?;
    // A quarter of the cache, because indices and sums need space as well.
    let cached_sources = (gpu.cache_bytes as usize / 4 / 256).max(1);
    let gather = |rows, sources| bench.gather_rate(rows, sources, memory);
    let random = |rows: usize| (rows * 32 * 256) as f64;
    let gather_bytes_per_s = grown(&ROWS, |rows| gather(rows, (16 * rows).min(1 << 21)), random)?;
    let cached_gather_bytes_per_s = grown(&ROWS, |rows| gather(rows, (16 * rows).min(cached_sources)), random)?;
    let flops_per_s = grown(&ROWS, |rows| bench.product_rate(rows), |rows| (2 * rows * 256 * 256) as f64)?;
    let mut copy_bytes = 1 << 16;
    let mut rates = bench.copy_rates(copy_bytes, RUNS)?;
    while copy_bytes < 1 << 28 && (copy_bytes as f64) < 2e-3 * rates[0] {
        copy_bytes *= 4;
        rates = bench.copy_rates(copy_bytes, RUNS)?;
    }
    let [to_device_bytes_per_s, to_host_bytes_per_s] = rates;
    let profile = Profile {
        name: gpu.name.clone(),
        memory_bytes_per_s: memory,
        gather_bytes_per_s,
        cached_gather_bytes_per_s,
        // Not measured; the extra cost of short rows is learned.
        short_gather_bytes_per_s: cached_gather_bytes_per_s,
        cache_bytes: gpu.cache_bytes,
        to_device_bytes_per_s,
        to_host_bytes_per_s,
        // As for shares of this GPU; `links` measures those between GPUs.
        between_devices_bytes_per_s: None,
        flops_per_s,
        launch_s: bench.launch_seconds(200)?[1].max(1e-7),
        capacity_bytes: gpu.total_bytes,
        access_width: std::num::NonZeroU32::new(32).expect("a warp has 32 threads"),
        gpu: None,
    };
    tracing::debug!(?profile, "measured");
    Ok(profile)
}
