//! Partitioning and memory planning, on plain numbers: no device, clock, I/O or threads, and the same answer each time.
//!
//! This version splits vertices by a cost, given or learned ([`partition`]). Memory plans are to come; see `ARCHITECTURE.md`.

pub mod partition;
