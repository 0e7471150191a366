//! Devices between two sessions. Inference on many small graphs opens a session for each batch; memory that the system has
//! to clear anew would take a third of its time.

use lapidary_kernels::{Device, HostSlot};

/// A device without tensors. It may have been used by a session that has ended: then it still has the freed memory that
/// devices keep, up to 1.5 times their peak.
pub(crate) struct IdleDevice {
    pub(super) device: Box<dyn Device>,
    /// Buffers on the host for copies from the device: one for each tensor that the last session stored.
    pub(super) staging: Vec<HostSlot>,
}

impl From<Box<dyn Device>> for IdleDevice {
    fn from(device: Box<dyn Device>) -> Self {
        Self { device, staging: Vec::new() }
    }
}

/// Returns a buffer for a copy of `bytes` bytes to the host: one of `spare` that serves, or a new one.
///
/// # Errors
/// [`lapidary_kernels::Error::HostMemory`].
pub(super) fn staging(spare: &mut Vec<HostSlot>, bytes: usize) -> lapidary_kernels::Result<HostSlot> {
    match spare.iter().position(|buffer| buffer.resize(bytes)) {
        Some(place) => Ok(spare.swap_remove(place)),
        None => HostSlot::staging(bytes),
    }
}
