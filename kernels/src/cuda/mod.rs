//! NVIDIA GPUs, through libraries that are loaded at run time.
//!
//! The driver is required. NVRTC is required the first time that kernels are compiled for a GPU architecture. cuBLAS is
//! used if it is found. None of them is needed to build. On a machine without a GPU, the same code is tested over an
//! emulated driver (`kernels/emulator/`).

mod columns;
mod gather_kernel;
mod gather_work;
mod gpu;
#[cfg(feature = "cuda")]
#[path = "enabled.rs"]
mod imp;
#[cfg(not(feature = "cuda"))]
#[path = "disabled.rs"]
mod imp;
mod machine_code;
mod width;

pub use gather_work::{GatherSizes, GatherWay, gather_ways};
pub use gpu::{Counts, Gpu, Libraries, Options};
pub use imp::{
    Group, Member, counts, forget_most, free_bytes, gpus, group, libraries, link, open, open_with, reach_each_other,
};
