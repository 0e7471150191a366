//! What the driver counts of a GPU itself, to compare with the counts of this crate.

use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::driver::Named;
use crate::cuda::gpu::Counts;
use crate::error::Result;

/// Graphs that this process launched, and captures that the driver refused.
pub(super) static GRAPHS_LAUNCHED: AtomicU64 = AtomicU64::new(0);
pub(super) static CAPTURES_REFUSED: AtomicU64 = AtomicU64::new(0);

use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH};

/// Returns what the driver counts of a GPU, and the graphs that this process launched on any.
///
/// # Errors
/// [`crate::Error::Cuda`].
pub(super) fn read(context: &CudaContext) -> Result<Counts> {
    const CALL: &str = "asking for a GPU's memory";
    context.bind_to_thread().during(CALL)?;
    let (free, total) = context.mem_get_info().during(CALL)?;
    let most = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: the device exists, and the attribute is a 64-bit number that is written before the call returns.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).during(CALL)?;
            sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).result().during(CALL)?;
        }
        Ok(bytes)
    };
    let pooled = context.has_async_alloc();
    Ok(Counts {
        free_bytes: free as u64,
        total_bytes: total as u64,
        most_reserved_bytes: pooled.then(|| most(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)).transpose()?,
        most_used_bytes: pooled.then(|| most(CU_MEMPOOL_ATTR_USED_MEM_HIGH)).transpose()?,
        graphs_launched: GRAPHS_LAUNCHED.load(Ordering::Relaxed),
        captures_refused: CAPTURES_REFUSED.load(Ordering::Relaxed),
    })
}

/// Sets the most bytes that the driver has reserved and used to those of now.
///
/// # Errors
/// [`crate::Error::Cuda`].
pub(super) fn forget_most(context: &CudaContext) -> Result<()> {
    const CALL: &str = "resetting the memory pool's counts";
    if !context.has_async_alloc() {
        return Ok(());
    }
    context.bind_to_thread().during(CALL)?;
    for attribute in [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH] {
        let mut zero = 0u64;
        // SAFETY: the device exists, and the attribute is a 64-bit number, which may only be set to 0: it then becomes
        // the number of now.
        unsafe {
            let pool = result::device::get_default_mem_pool(context.cu_device()).during(CALL)?;
            sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()).result().during(CALL)?;
        }
    }
    Ok(())
}
