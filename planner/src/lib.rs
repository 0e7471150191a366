//! Partitioning and memory planning on plain numbers, without devices, clocks, I/O or threads. The same input gives the
//! same output.
//!
//! [`partition`] splits the vertices by a given cost. [`tasks`] describes the ops of one device in an epoch. [`memory`]
//! plans which tensors stay on the device between them, and [`check`] replays such plans without knowing how they were
//! made.

pub mod check;
pub mod memory;
pub mod partition;
pub mod tasks;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
