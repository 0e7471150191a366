//! The runtime: devices, and workers that run what was planned.

mod devices;
mod driver;
mod exchange;
mod message;
mod session;
mod trace;
mod worker;

pub use devices::Devices;
pub(crate) use session::{Done, Job, Session};
pub use trace::Span;
