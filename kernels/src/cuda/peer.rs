//! Fetches: rows that other devices hold, read in place by a kernel on the reader's copy-in stream.
//!
//! The owner does not change the memory until the reader says that it is done; the runtime takes care of this. The
//! memory must exist as long as any kernel may read it. So a reader holds on to the owner's engine until its own stream
//! has passed the read, even if a run ends with an error.

use std::sync::Arc;

use parking_lot::Mutex;

use super::args;
use super::compile::File;
use super::driver::Named;
use super::engine::{CudaEngine, LANE_IN};
use super::faults::Lookup;
use super::modules::KernelCall;
use super::prepare::kernel_call;
use super::rows::{Width, columns, rows_kernel_name};
use super::slots::Buffer;
use crate::error::{Error, Result, check_shape};
use crate::lent::Lent;
use crate::memory::Slot;
use crate::op::call::Mat;

/// A lent slot of a GPU.
pub(super) struct PeerSlot {
    /// The engine that owns the memory.
    _engine: Arc<CudaEngine>,
    address: u64,
    bytes: u64,
}

impl PeerSlot {
    /// # Errors
    /// [`Error::EmptySlot`].
    pub(super) fn new(engine: Arc<CudaEngine>, slot: Slot) -> Result<Self> {
        let Buffer { address, bytes } = engine.slots.get(slot)?;
        Ok(Self { _engine: engine, address, bytes })
    }
}

/// The lent slots that jobs of one device may still be reading.
pub(super) struct PeerReads {
    engine: Arc<CudaEngine>,
    /// Lent slots, with the number of the job that reads them.
    held: Mutex<Vec<(u64, Vec<Lent>)>>,
}

impl PeerReads {
    pub(super) fn new(engine: Arc<CudaEngine>) -> Self {
        Self { engine, held: Mutex::default() }
    }

    /// Registers that job `number` reads `lent`.
    pub(super) fn hold(&self, number: u64, lent: Vec<Lent>) {
        let done = self.engine.events(LANE_IN).done();
        let mut held = self.held.lock();
        held.retain(|(job, _)| *job > done);
        held.push((number, lent));
    }
}

impl Drop for PeerReads {
    fn drop(&mut self) {
        // The lanes have ended, but their queued work may still run. A failure was reported before.
        let _ = self.engine.bind();
        let _ = self.engine.events(LANE_IN).stream.synchronize();
    }
}

/// Returns the launches that copy rows of other devices into `out`. `from` lists the owners, each with its share of the
/// entries of `rows`.
///
/// # Errors
/// [`Error::EmptySlot`], [`Error::SlotSize`], [`Error::Shape`], [`Error::NoPeers`], [`Error::Argument`].
pub(super) fn prepare_fetch(
    engine: &CudaEngine,
    rows: Slot,
    out: Mat,
    from: &[(Lent, usize)],
    fault: u64,
) -> Result<(Vec<KernelCall>, Lookup)> {
    const CALL: &str = "fetch";
    let cell_bytes = out.dtype.byte_count() as usize;
    let address = |slot: Slot, cells: Option<usize>, cell_bytes: usize| {
        let buffer = engine.slots.get(slot)?;
        let need_bytes = cells.and_then(|cells| cells.checked_mul(cell_bytes)).map_or(u64::MAX, |bytes| bytes as u64);
        match need_bytes <= buffer.bytes {
            true => Ok(buffer.address),
            false => Err(Error::SlotSize { slot, need_bytes, have_bytes: buffer.bytes }),
        }
    };
    let mut picked = address(rows, Some(out.rows), 4)?;
    let mut to = address(out.slot, out.rows.checked_mul(out.cols), cell_bytes)?;
    let given = from.iter().fold(0usize, |sum, (_, count)| sum.saturating_add(*count));
    check_shape(CALL, "out", [given, out.cols], [out.rows, out.cols])?;
    let width = Width::of(out.cols, out.float());
    let (d, row_bytes) = (columns(CALL, out.cols)?, (cell_bytes * out.cols) as u64);
    let mut launches = Vec::new();
    let mut limit = u64::MAX;
    for (lent, count) in from {
        let loan = lent.of::<PeerSlot>().ok_or(Error::NoPeers)?;
        let sources = loan.bytes.checked_div(row_bytes).unwrap_or(u64::MAX);
        limit = limit.min(sources);
        let args = args::Rows {
            x: loan.address,
            picked,
            out: to,
            fault,
            rows: *count as u64,
            sources,
            d,
            lanes: width.lanes as u32,
            steps: args::RowStepsArgs::default(),
        };
        let blocks = if out.cols == 0 { 0 } else { count.div_ceil(width.rows_of_block()) };
        launches.extend(kernel_call(File::Rows.over(out.float()), rows_kernel_name(width), [blocks, 1], &args));
        picked += 4 * *count as u64;
        to += row_bytes * *count as u64;
    }
    Ok((launches, Lookup { call: CALL, operand: "rows", limit, edges: 0 }))
}

/// Lets the GPUs read each other's memory.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn link(contexts: &[Arc<cudarc::driver::CudaContext>]) -> Result<()> {
    use cudarc::driver::{result, sys};
    const CALL: &str = "letting a GPU read another's memory";
    for reader in contexts {
        for owner in contexts.iter().filter(|owner| owner.cu_device() != reader.cu_device()) {
            reader.bind_to_thread().during(CALL)?;
            // SAFETY: both contexts exist, and the reader's is current.
            match unsafe { sys::cuCtxEnablePeerAccess(owner.cu_ctx(), 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
                other => other.result().during(CALL)?,
            }
            if !owner.has_async_alloc() {
                continue;
            }
            // Peer access alone does not cover memory from a pool.
            let location = sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: reader.cu_device(),
            };
            let access =
                sys::CUmemAccessDesc { location, flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
            // SAFETY: the device exists, and the description is read before the call returns.
            unsafe {
                let pool = result::device::get_default_mem_pool(owner.cu_device()).during(CALL)?;
                sys::cuMemPoolSetAccess(pool, &raw const access, 1).result().during(CALL)?;
            }
        }
    }
    Ok(())
}

/// Returns whether a GPU can read the memory of another.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn can_reach(reader: i32, owner: i32) -> Result<bool> {
    let mut can = 0;
    // SAFETY: the number is written before the call returns.
    let asked = unsafe { cudarc::driver::sys::cuDeviceCanAccessPeer(&raw mut can, reader, owner) };
    asked.result().during("asking whether GPUs reach each other")?;
    Ok(can != 0)
}
