//! The implementation for a build with the feature `cuda`.
#![allow(unsafe_code)]

#[path = "args.rs"]
mod args;
#[path = "attention.rs"]
mod attention;
#[path = "autotune.rs"]
mod autotune;
#[path = "batch.rs"]
mod batch;
#[path = "blas.rs"]
mod blas;
#[path = "cache.rs"]
mod cache;
#[path = "compile.rs"]
mod compile;
#[path = "counts.rs"]
mod counts;
#[path = "device.rs"]
mod device;
#[path = "driver.rs"]
mod driver;
#[path = "edges.rs"]
mod edges;
#[path = "engine.rs"]
mod engine;
#[path = "events.rs"]
mod events;
#[path = "faults.rs"]
mod faults;
#[path = "gather.rs"]
mod gather;
#[path = "graphs.rs"]
mod graphs;
#[path = "hubs.rs"]
mod hubs;
#[path = "linear.rs"]
mod linear;
#[path = "loss.rs"]
mod loss;
#[path = "modules.rs"]
mod modules;
#[path = "moves.rs"]
mod moves;
#[path = "nccl.rs"]
mod nccl;
#[path = "norm.rs"]
mod norm;
#[path = "optimizer.rs"]
mod optimizer;
#[path = "peer.rs"]
mod peer;
#[path = "prepare.rs"]
mod prepare;
#[path = "rows.rs"]
mod rows;
#[path = "slots.rs"]
mod slots;
#[path = "staging.rs"]
mod staging;
#[path = "task.rs"]
mod task;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};
use parking_lot::Mutex;

use super::gpu::{Counts, Gpu, Libraries, Options};
use crate::device::Device;
use crate::error::{Error, Result};
use device::CudaDevice;
use driver::Named;
pub use nccl::{Group, Member};

/// Lists the GPUs of this machine in the driver's order; the list can be empty.
///
/// # Errors
/// [`Error::NoLibrary`] or [`Error::OldDriver`] without a driver that can be used; [`Error::Cuda`] when the driver fails.
pub fn gpus() -> Result<Vec<Gpu>> {
    (0..count()?).map(describe).collect()
}

/// Returns NVIDIA's libraries on this machine.
pub fn libraries() -> Libraries {
    Libraries {
        driver: driver::find(),
        compiler: driver::find_compiler(),
        blas: driver::find_blas(),
        nccl: nccl::find(),
    }
}

/// Returns the free bytes of a GPU's memory. The first call for a GPU takes a good part of a second and some of its
/// memory, until the program ends.
///
/// # Errors
/// [`Error::NoLibrary`] or [`Error::OldDriver`] without a driver that can be used; [`Error::NoGpu`]; [`Error::Cuda`]
/// when the driver fails.
pub fn free_bytes(ordinal: u32) -> Result<u64> {
    check_ordinals(&[ordinal])?;
    let [free, _] = keep_context(ordinal)?.mem_get_info().during("asking for a GPU's memory")?.into();
    Ok(free as u64)
}

/// Returns what the driver counts of a GPU, and the graphs that this process launched on any.
///
/// # Errors
/// As [`free_bytes`].
pub fn counts(ordinal: u32) -> Result<Counts> {
    check_ordinals(&[ordinal])?;
    let context = keep_context(ordinal)?;
    counts::read(&context)
}

/// Sets the most bytes that the driver has reserved and used on a GPU to those of now.
///
/// # Errors
/// As [`free_bytes`].
pub fn forget_most(ordinal: u32) -> Result<()> {
    check_ordinals(&[ordinal])?;
    let context = keep_context(ordinal)?;
    counts::forget_most(&context)
}

fn count() -> Result<u32> {
    driver::find()?;
    match CudaContext::device_count() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        count => count.during("counting GPUs").map(|count| count as u32),
    }
}

/// Asks only the driver: a context would take a good part of a second for each GPU.
fn describe(ordinal: u32) -> Result<Gpu> {
    let gpu = result::device::get(ordinal as i32).during("looking for a GPU")?;
    let name = result::device::get_name(gpu).during("asking for a GPU's name")?;
    // SAFETY: the GPU exists, as its handle shows.
    let total_bytes = unsafe { result::device::total_mem(gpu) }.during("asking for a GPU's memory")? as u64;
    let (capability, cache_bytes) = (driver::capability(gpu)?, driver::cache_bytes(gpu)?);
    Ok(Gpu { ordinal, name, capability, total_bytes, cache_bytes })
}

/// Returns the context of a GPU, which all devices on it share, and keeps it until the program ends. Creating a context
/// takes a good part of a second, and it would be lost when the last device on the GPU is closed.
fn keep_context(ordinal: u32) -> Result<Arc<CudaContext>> {
    static KEPT: Mutex<BTreeMap<u32, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    Ok(match KEPT.lock().entry(ordinal) {
        Entry::Occupied(place) => place.get().clone(),
        Entry::Vacant(place) => place.insert(CudaContext::new(ordinal as usize).during("opening a GPU")?).clone(),
    })
}

/// Returns an error unless all these GPUs exist.
fn check_ordinals(ordinals: &[u32]) -> Result<()> {
    let count = count()?;
    match ordinals.iter().find(|&&ordinal| ordinal >= count) {
        Some(&ordinal) => Err(Error::NoGpu { ordinal, count }),
        None => Ok(()),
    }
}

/// Returns whether each of these GPUs can read the memory of all others. The same number may occur more than once.
///
/// # Errors
/// [`Error::NoLibrary`] or [`Error::OldDriver`] without a driver that can be used; [`Error::NoGpu`]; [`Error::Cuda`] when the driver fails.
pub fn reach_each_other(ordinals: &[u32]) -> Result<bool> {
    check_ordinals(ordinals)?;
    for &reader in ordinals {
        for &owner in ordinals.iter().filter(|&&owner| owner != reader) {
            if !peer::can_reach(reader as i32, owner as i32)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Lets the devices opened on these GPUs read each other's memory ([`Device::fetch`]), until the program ends.
///
/// # Errors
/// As [`reach_each_other`]; [`Error::Cuda`] if the GPUs cannot reach each other.
pub fn link(ordinals: &[u32]) -> Result<()> {
    check_ordinals(ordinals)?;
    let numbers: std::collections::BTreeSet<u32> = ordinals.iter().copied().collect();
    peer::link(&numbers.into_iter().map(keep_context).collect::<Result<Vec<_>>>()?)
}

/// Makes a group of different GPUs, which takes NCCL up to seconds.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::OldDriver`]; [`Error::NoGpu`]; [`Error::Cuda`], also for a GPU that is named twice.
pub fn group(ordinals: &[u32]) -> Result<Group> {
    check_ordinals(ordinals)?;
    Group::new(ordinals)
}

/// Opens a device called `name` on GPU `ordinal`, whose slots may hold `capacity_bytes` bytes together. A GPU may be
/// opened more than once: each device has its own capacity and lanes.
///
/// # Errors
/// [`Error::NoLibrary`] or [`Error::OldDriver`] without a driver that can be used; [`Error::NoGpu`]; [`Error::Cuda`] when the driver fails.
pub fn open(name: &str, ordinal: u32, capacity_bytes: u64) -> Result<Box<dyn Device>> {
    open_with(name, ordinal, capacity_bytes, &Options::default(), None)
}

/// As [`open`], with options, and as a member of a group if it is in one.
///
/// # Errors
/// As [`open`]; [`Error::NoTf32`].
pub fn open_with(
    name: &str,
    ordinal: u32,
    capacity_bytes: u64,
    options: &Options,
    group: Option<Member>,
) -> Result<Box<dyn Device>> {
    check_ordinals(&[ordinal])?;
    Ok(Box::new(CudaDevice::new(name, keep_context(ordinal)?, capacity_bytes, options, group)?))
}
