//! NVIDIA GPUs, through libraries that are looked for when the program runs.
//!
//! The driver is needed, and NVRTC the first time a kernel is compiled for a kind of GPU; cuBLAS is used where it is found.
//! None is needed to build. The same code runs over an emulated driver (`kernels/emulator/`), which is how it is tested on a
//! machine without a GPU.

#[cfg(feature = "cuda")]
#[path = "enabled.rs"]
mod imp;
#[cfg(not(feature = "cuda"))]
#[path = "disabled.rs"]
mod imp;

pub use imp::{gpus, link, open, reach_each_other};

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, as the driver counts.
    pub ordinal: u32,
    /// What its maker calls it.
    pub name: String,
    /// Its memory.
    pub total_bytes: u64,
    /// What of it nobody uses now.
    pub free_bytes: u64,
    /// The cache that all its processors share.
    pub cache_bytes: u64,
}
