//! The runtime: devices, and workers that run what was planned.

mod correction;
mod devices;
mod driver;
mod exchange;
mod learn;
mod message;
mod options;
mod packing;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod trace_file;
mod worker;

pub use devices::{Devices, ExchangeMode};
pub(crate) use learn::Learner;
pub use options::{Partition, SplitRecord};
pub(crate) use options::{RunOptions, Runs, check_ranges, prior, ranges_of, split_parts};
pub use session::StartUp;
pub(crate) use session::{Done, Session, SessionSpec};
pub use trace::{Busy, Span, Trace};
pub use trace_file::TraceFile;

/// How it is decided what stays on a device.
pub use lapidary_planner::memory::Policy as MemoryPolicy;
