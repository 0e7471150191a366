//! The runtime: devices, and workers that run the planned scripts.

mod correction;
mod delivery;
mod devices;
mod driver;
mod exchange;
mod idle;
mod learn;
mod message;
mod options;
mod packing;
mod session;
#[cfg(test)]
mod tests;
mod told;
mod trace;
mod trace_file;
mod wire;
mod worker;

pub use devices::{Devices, ExchangeMode};
pub(crate) use idle::IdleDevice;
pub(crate) use learn::Learner;
pub(crate) use message::Note;
pub use options::{Partition, RunOptions, SplitRecord};
pub(crate) use options::{Runs, check_ranges, prior, ranges_of, run_option_setters, split_parts};
pub use session::StartUp;
pub(crate) use session::{BatchShare, Done, MeasuredCall, Plans, Session, SessionSpec, SharedBatch};
pub(crate) use trace::STAGES;
pub use trace::{Busy, Span, StageSpan, Trace};
pub use trace_file::TraceFile;

/// Memory policy: which tensors stay on the device.
pub use lapidary_planner::memory::Policy as MemoryPolicy;
