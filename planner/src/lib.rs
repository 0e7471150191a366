//! Partitioning and memory planning, on plain numbers: no device, clock, I/O or threads, and the same answer each time.
//!
<<<<<<< HEAD
//! [`partition`] splits vertices by a given cost. [`tasks`] describes what one device computes in an epoch; [`memory`] plans
//! what stays on the device meanwhile, and [`check`] replays such plans, knowing nothing of how they were made.
=======
//! This version splits vertices by a cost, given or learned ([`partition`]). Memory plans are to come; see `ARCHITECTURE.md`.
>>>>>>> cost

pub mod memory;
pub mod partition;
pub mod tasks;
