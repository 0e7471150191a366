//! The stand-in for a build without the feature `cuda`.

use std::sync::Arc;

use super::gpu::{Counts, Gpu, Libraries, Options};
use crate::device::Device;
use crate::error::{Error, Result};

/// GPUs that add together. This build has none.
#[derive(Debug)]
pub struct Group(std::convert::Infallible);

/// A group, and the place of a GPU in it.
pub type Member = (Arc<Group>, usize);

/// Makes a group of GPUs.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn group(_ordinals: &[u32]) -> Result<Group> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Lists the GPUs of this machine.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn gpus() -> Result<Vec<Gpu>> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Returns NVIDIA's libraries, of which this build uses none: it has no `cuda` feature.
pub fn libraries() -> Libraries {
    let not_built = || Err(Error::NotBuilt { feature: "cuda" });
    Libraries { driver: not_built(), compiler: not_built(), blas: not_built(), nccl: not_built() }
}

/// Returns the free bytes of a GPU's memory.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn free_bytes(_ordinal: u32) -> Result<u64> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Returns whether GPUs can read each other's memory.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn reach_each_other(_ordinals: &[u32]) -> Result<bool> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Lets GPUs read each other's memory.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn link(_ordinals: &[u32]) -> Result<()> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Opens a device on a GPU.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn open(_name: &str, _ordinal: u32, _capacity_bytes: u64) -> Result<Box<dyn Device>> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Opens a device on a GPU, with options.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn open_with(
    _name: &str,
    _ordinal: u32,
    _capacity: u64,
    _options: &Options,
    _group: Option<Member>,
) -> Result<Box<dyn Device>> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Returns what the driver counts of a GPU.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn counts(_ordinal: u32) -> Result<Counts> {
    Err(Error::NotBuilt { feature: "cuda" })
}

/// Resets what the driver counts of a GPU.
///
/// # Errors
/// Always [`Error::NotBuilt`]: this build has no `cuda` feature.
pub fn forget_most(_ordinal: u32) -> Result<()> {
    Err(Error::NotBuilt { feature: "cuda" })
}
