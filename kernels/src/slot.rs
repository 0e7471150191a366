//! Handles of a device's buffers.

/// A handle to one buffer of a device. The caller chooses the numbers; they are dense and start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);
