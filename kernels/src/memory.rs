//! Memory handles: device buffers ([`Slot`]) and host memory ([`Shared`], [`HostSlot`]).

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::Pod;
use lapidary_arrays::serves;

pub use lapidary_arrays::{AlignedBytes, NoHostMemory, Owner, Shared, SpareArrays};

use crate::error::{Error, Result};
pub use crate::slot::Slot;
use crate::team::for_each;

/// Page size of the system, and the number of pages that one task touches.
const PAGE_BYTES: usize = 4 << 10;
const PAGES_A_TASK: usize = 512;

/// Allocates `len` zeroed bytes.
///
/// # Errors
/// [`Error::HostMemory`].
pub(crate) fn zeroed(len: usize) -> Result<AlignedBytes> {
    AlignedBytes::zeroed(len).map_err(|NoHostMemory { need_bytes }| Error::HostMemory { need_bytes })
}

/// Makes the system allocate and clear every page that was not written yet. Sets one byte of each page to 0.
pub(crate) fn touch(bytes: &mut AlignedBytes) {
    for_each(bytes.as_mut_slice::<u8>().chunks_mut(PAGES_A_TASK * PAGE_BYTES), |pages| {
        pages.chunks_mut(PAGE_BYTES).for_each(|page| *std::hint::black_box(&mut page[0]) = 0);
    });
}

/// A handle to host memory that a device copies from or to.
#[derive(Clone, Debug)]
pub enum HostSlot {
    /// Memory that never changes. A device in host memory may use it in place.
    Constant(Shared<u8>),
    /// Written by copies out of a device, and by the host between them.
    Staging(Arc<RwLock<AlignedBytes>>),
}

impl HostSlot {
    /// Returns a handle to a constant array.
    pub fn constant<T: Pod + Send + Sync>(values: &Shared<T>) -> Self {
        Self::Constant(values.to_bytes())
    }

    /// Allocates zeroed bytes that can be written.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn staging(bytes: usize) -> Result<Self> {
        Ok(Self::Staging(Arc::new(RwLock::new(zeroed(bytes)?))))
    }

    /// Allocates writable bytes with a copy of `values`.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn staged<T: Pod>(values: &[T]) -> Result<Self> {
        let mut bytes = zeroed(size_of_val(values))?;
        bytes.as_mut_slice::<T>().copy_from_slice(values);
        Ok(Self::Staging(Arc::new(RwLock::new(bytes))))
    }

    /// Calls `see` with the bytes.
    pub fn read<R>(&self, see: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Constant(bytes) => see(bytes),
            Self::Staging(bytes) => see(read(bytes).as_slice()),
        }
    }

    /// Calls `fill` to write the bytes.
    ///
    /// # Errors
    /// [`Error::ConstantWritten`].
    pub fn write(&self, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        match self {
            Self::Constant(_) => Err(Error::ConstantWritten),
            Self::Staging(bytes) => {
                fill(write(bytes).as_mut_slice());
                Ok(())
            }
        }
    }

    /// Returns a copy of the elements.
    pub fn to_vec<T: Pod>(&self) -> Vec<T> {
        match self {
            Self::Constant(bytes) => bytemuck::pod_collect_to_vec(bytes),
            Self::Staging(bytes) => read(bytes).as_slice().to_vec(),
        }
    }

    /// Changes the length, if the bytes can be written, no other handle to them exists, and their memory is neither smaller
    /// nor much larger. Returns whether it did. The contents are then any bytes.
    pub fn resize(&self, bytes: usize) -> bool {
        let Self::Staging(memory) = self else { return false };
        let is_alone = Arc::strong_count(memory) == 1;
        let mut memory = write(memory);
        let fits = is_alone && serves(memory.capacity(), bytes);
        if fits {
            memory.resize(bytes);
        }
        fits
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Constant(bytes) => bytes.len(),
            Self::Staging(bytes) => read(bytes).len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Locks for reading. Poison is ignored: after a panic of another holder the contents are still valid bytes.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poison| poison.into_inner())
}

/// Locks for writing; see [`read`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poison| poison.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_again_has_one_holder_and_fits() {
        let memory = HostSlot::staging(1000).expect("there is memory");
        assert!(memory.resize(900) && memory.len() == 900);
        let other = memory.clone();
        assert!(!memory.resize(950) && other.len() == 900, "somebody may read it");
        drop(other);
        assert!(!memory.resize(1 << 20) && !memory.resize(10) && memory.len() == 900);
        assert!(!HostSlot::constant(&Shared::from(vec![0u8; 900])).resize(900), "it never changes");
    }
}
