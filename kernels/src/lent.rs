//! Memory of one device that other devices read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The contents of a device's slot, lent to other devices of the same kind: see [`crate::Device::lend`].
#[derive(Clone)]
pub struct Lent(Arc<dyn Any + Send + Sync>);

impl Lent {
    pub(crate) fn new<T: Any + Send + Sync>(memory: T) -> Self {
        Self(Arc::new(memory))
    }

    /// Returns the lent memory, if it belongs to this kind of device.
    pub(crate) fn of<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lent")
    }
}
