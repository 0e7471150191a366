//! The tools of the checks, and programs over the emulated GPU.

#[cfg(feature = "cuda")]
pub mod emulator;

pub use lapidary_battery::common::*;
