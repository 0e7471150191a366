//! NVIDIA GPUs, through libraries that are looked for when the program runs.
//!
//! The driver is needed, and NVRTC the first time a kernel is compiled for a kind of GPU; cuBLAS is used where it is found.
//! None is needed to build. The same code runs over an emulated driver (`kernels/emulator/`), which is how it is tested on a
//! machine without a GPU.

mod gpu;
#[cfg(feature = "cuda")]
#[path = "enabled.rs"]
mod imp;
#[cfg(not(feature = "cuda"))]
#[path = "disabled.rs"]
mod imp;

pub use gpu::Gpu;
pub use imp::{gpus, link, open, reach_each_other};
