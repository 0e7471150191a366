//! The runtime: devices that run what was lowered.

mod devices;
mod session;

pub use devices::Devices;
pub(crate) use session::Session;
