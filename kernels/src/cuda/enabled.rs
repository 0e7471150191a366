//! A build with GPUs.
#![allow(unsafe_code)]

#[path = "args.rs"]
mod args;
#[path = "batch.rs"]
mod batch;
#[path = "blas.rs"]
mod blas;
#[path = "cache.rs"]
mod cache;
#[path = "choices.rs"]
mod choices;
#[path = "compile.rs"]
mod compile;
#[path = "device.rs"]
mod device;
#[path = "driver.rs"]
mod driver;
#[path = "engine.rs"]
mod engine;
#[path = "faults.rs"]
mod faults;
#[path = "graphs.rs"]
mod graphs;
#[path = "marks.rs"]
mod marks;
#[path = "modules.rs"]
mod modules;
#[path = "prepare.rs"]
mod prepare;
#[path = "prepare_dense.rs"]
mod prepare_dense;
#[path = "prepare_loss.rs"]
mod prepare_loss;
#[path = "prepare_rows.rs"]
mod prepare_rows;
#[path = "slots.rs"]
mod slots;
#[path = "staging.rs"]
mod staging;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};
use parking_lot::Mutex;

use super::Gpu;
use crate::device::Device;
use crate::error::{Error, Result};
use device::CudaDevice;
use driver::Named;

/// The GPUs of this machine, in the driver's order; perhaps none.
///
/// # Errors
/// [`Error::NoLibrary`] without a driver; [`Error::Cuda`] when the driver fails.
pub fn gpus() -> Result<Vec<Gpu>> {
    (0..count()?).map(describe).collect()
}

fn count() -> Result<u32> {
    driver::find()?;
    match CudaContext::device_count() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        count => count.during("counting GPUs").map(|count| count as u32),
    }
}

fn describe(ordinal: u32) -> Result<Gpu> {
    let context = CudaContext::new(ordinal as usize).during("opening a GPU")?;
    let name = context.name().during("asking for a GPU's name")?;
    let (free, total) = context.mem_get_info().during("asking for a GPU's memory")?;
    let cache_bytes = driver::cache_bytes(&context)?;
    Ok(Gpu { ordinal, name, total_bytes: total as u64, free_bytes: free as u64, cache_bytes })
}

/// Keeps the context of a GPU until the program ends. Making one takes a good part of a second, and a GPU whose last device
/// is closed would lose it.
fn keep_context(ordinal: u32) -> Result<()> {
    static KEPT: Mutex<BTreeMap<u32, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    if let Entry::Vacant(place) = KEPT.lock().entry(ordinal) {
        place.insert(CudaContext::new(ordinal as usize).during("opening a GPU")?);
    }
    Ok(())
}

/// A device called `name` on GPU `ordinal`, whose slots may hold `capacity_bytes` together. A GPU may be opened more than
/// once: each device has a capacity and lanes of its own.
///
/// # Errors
/// [`Error::NoLibrary`] without a driver; [`Error::NoGpu`]; [`Error::Cuda`] when the driver fails.
pub fn open(name: &str, ordinal: u32, capacity_bytes: u64) -> Result<Box<dyn Device>> {
    let count = count()?;
    if ordinal >= count {
        return Err(Error::NoGpu { ordinal, count });
    }
    keep_context(ordinal)?;
    Ok(Box::new(CudaDevice::new(name, ordinal, capacity_bytes)?))
}
