//! Partitioning and memory planning, on plain numbers: no device, clock, I/O or threads, and the same answer each time.
//!
//! [`partition`] splits vertices by a given cost. [`tasks`] describes what one device computes in an epoch; [`memory`] plans
//! what stays on the device meanwhile, and [`check`] replays such plans, knowing nothing of how they were made.

pub mod check;
pub mod memory;
pub mod partition;
pub mod tasks;
