//! Arrays in host memory that datasets and kernels share, and the blocks that gathers run over.
//!
//! This crate is below both, so that neither knows the other: it has no kernel, no device, no file format and no thread.

mod aligned;
mod block;
mod shared;

pub use aligned::{AlignedBytes, NoHostMemory};
pub use block::BlockView;
pub use shared::{Owner, Shared};

/// The label of a row that has none.
pub const NO_LABEL: u32 = u32::MAX;
