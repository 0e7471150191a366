//! Arrays in host memory that datasets and kernels share, and the blocks that gathers run over.
//!
//! This crate is below `data` and `kernels`, so that neither depends on the other. It has no kernels, devices, file
//! formats or threads.

mod aligned;
mod block;
mod shared;
mod spare;

pub use aligned::{AlignedBytes, NoHostMemory, allocation_may_fail, fallible, serves};
pub use block::BlockView;
pub use shared::{Identity, Owner, Shared};
pub use spare::SpareArrays;

/// The label of a row without a label.
pub const NO_LABEL: u32 = u32::MAX;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
