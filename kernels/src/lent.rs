//! Memory of one device that others read.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The contents of a device's slot, for other devices of its kind to read: see [`crate::Device::lend`].
#[derive(Clone)]
pub struct Lent(Arc<dyn Any + Send + Sync>);

impl Lent {
    pub(crate) fn new<T: Any + Send + Sync>(memory: T) -> Self {
        Self(Arc::new(memory))
    }

    /// What was lent, if it is of this kind of device.
    pub(crate) fn of<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lent")
    }
}
