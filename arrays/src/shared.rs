//! Read-only arrays with any number of holders.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, Weak};

use bytemuck::Pod;

use crate::{AlignedBytes, NoHostMemory};

/// Bytes that can have many holders at once.
pub trait Owner: AsRef<[u8]> + Send + Sync {
    /// Tells the owner that `range` will probably not be read soon. Memory that can be read again, such as the pages of
    /// a file, may be released; the contents stay the same.
    fn release(&self, _range: Range<usize>) {}
}

impl Owner for Vec<u8> {}

impl Owner for AlignedBytes {}

struct VecBytes<T>(Vec<T>);

impl<T: Pod + Send + Sync> Owner for VecBytes<T> {}

impl<T: Pod> AsRef<[u8]> for VecBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// A read-only array that can have many holders at once: a vector, or part of a mapped file. Cloning it copies no
/// elements.
#[derive(Clone)]
pub struct Shared<T> {
    // Invariant: `offset .. offset + bytes` lies inside the owner, is aligned for `T` and holds whole elements.
    owner: Arc<dyn Owner>,
    offset: usize,
    bytes: usize,
    element: PhantomData<T>,
}

impl<T: Pod + Send + Sync> Shared<T> {
    /// Returns the `len` elements that start `offset` bytes into `owner`; `None` if they are outside of it or not
    /// aligned. `owner` must always return the same bytes.
    pub fn from_owner(owner: Arc<dyn Owner>, offset: usize, len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?;
        let end = offset.checked_add(bytes)?;
        let slice = (*owner).as_ref().get(offset..end)?;
        bytemuck::try_cast_slice::<u8, T>(slice).ok()?;
        Some(Self { owner, offset, bytes, element: PhantomData })
    }

    /// Allocates `len` zeroed elements and lets `fill` write them. Large arrays use huge pages.
    ///
    /// # Errors
    /// [`NoHostMemory`] if the allocator refuses.
    pub fn filled(len: usize, fill: impl FnOnce(&mut [T])) -> Result<Self, NoHostMemory> {
        let mut bytes = AlignedBytes::zeroed(len.saturating_mul(size_of::<T>()))?;
        fill(bytes.as_mut_slice());
        Ok(Self::from_owner(Arc::new(bytes), 0, len).expect("they are aligned, and as many"))
    }

    /// Returns the same array as bytes.
    pub fn to_bytes(&self) -> Shared<u8> {
        Shared { owner: self.owner.clone(), offset: self.offset, bytes: self.bytes, element: PhantomData }
    }
}

impl Shared<u8> {
    /// Returns the same bytes as elements of another type, which they are aligned for.
    ///
    /// # Panics
    /// If they are not, or if they are no whole elements.
    pub(crate) fn cast<T: Pod>(self) -> Shared<T> {
        bytemuck::cast_slice::<u8, T>(&self);
        Shared { owner: self.owner, offset: self.offset, bytes: self.bytes, element: PhantomData }
    }
}

/// Tells whether two arrays are the same memory. It does not keep the memory.
#[derive(Clone)]
pub struct Identity {
    owner: Weak<dyn Owner>,
    offset: usize,
    bytes: usize,
}

impl Identity {
    /// Whether the array still has a holder. No later array equals one that has none.
    pub fn is_alive(&self) -> bool {
        self.owner.strong_count() > 0
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.owner.as_ptr(), other.owner.as_ptr())
            && (self.offset, self.bytes) == (other.offset, other.bytes)
    }
}

impl<T: Pod> Shared<T> {
    /// Returns what distinguishes this array from all others, but not from its own clones.
    pub fn identity(&self) -> Identity {
        Identity { owner: Arc::downgrade(&self.owner), offset: self.offset, bytes: self.bytes }
    }

    /// Tells the owner that the elements will probably not be read soon. Pages of a mapped file then take no memory
    /// until they are read again.
    pub fn release(&self) {
        self.owner.release(self.offset..self.offset + self.bytes);
    }

    /// Returns the same bytes as elements of another type of the same size (i64 offsets as u64, i32 columns as u32).
    pub fn reinterpret<U: Pod>(self) -> Shared<U> {
        const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
        Shared { owner: self.owner, offset: self.offset, bytes: self.bytes, element: PhantomData }
    }
}

impl<T: Pod + Send + Sync> From<Vec<T>> for Shared<T> {
    fn from(values: Vec<T>) -> Self {
        let bytes = size_of_val(values.as_slice());
        Self { owner: Arc::new(VecBytes(values)), offset: 0, bytes, element: PhantomData }
    }
}

impl<T: Pod + Send + Sync> Shared<T> {
    /// Returns some of the elements, without a copy.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} elements", self.len());
        let (offset, bytes) = (self.offset + range.start * size_of::<T>(), range.len() * size_of::<T>());
        Self { owner: self.owner.clone(), offset, bytes, element: PhantomData }
    }
}

impl From<AlignedBytes> for Shared<u8> {
    fn from(bytes: AlignedBytes) -> Self {
        let len = bytes.len();
        Self { owner: Arc::new(bytes), offset: 0, bytes: len, element: PhantomData }
    }
}

impl<T: Pod> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = &(*self.owner).as_ref()[self.offset..self.offset + self.bytes];
        bytemuck::cast_slice(bytes)
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.bytes)
    }
}
