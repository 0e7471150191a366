//! The CPU device.
/// x
pub struct CpuDevice;
