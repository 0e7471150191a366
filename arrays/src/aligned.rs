//! Byte arrays that are aligned for the widest vector loads.

use std::cell::Cell;
use std::fmt;

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;

/// The allocator has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host cannot allocate {need_bytes} bytes of memory")]
pub struct NoHostMemory {
    /// Bytes that were requested.
    pub need_bytes: u64,
}

thread_local! {
    /// Whether the thread is inside of [`fallible`]. A constant without a destructor, so that an allocator may read it.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Calls `allocate`, which handles that the allocator refuses, for example by `Vec::try_reserve`.
pub fn fallible<T>(allocate: impl FnOnce() -> T) -> T {
    let before = MAY_FAIL.replace(true);
    let allocated = allocate();
    MAY_FAIL.set(before);
    allocated
}

/// Returns whether this thread is in an allocation whose failure its caller handles ([`fallible`]). An allocator that
/// ends the process when memory runs out must then return null.
pub fn allocation_may_fail() -> bool {
    MAY_FAIL.get()
}

/// One cache line. A vector of them is aligned for the widest vector loads.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Smallest length that gets a memory map of its own, in huge pages if the system has them. Random reads in a large
/// matrix then cause far fewer TLB misses, and fresh memory far fewer page faults. Huge pages make it larger by at most a
/// third.
const MAPPED_BYTES: usize = 3 << 19;

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// Returns the length of the map for `len` bytes: with room to grow by an eighth, in whole huge pages. Pages that are never
/// touched take no memory.
fn mapped_bytes(len: usize) -> Option<usize> {
    len.checked_add(len / 8)?.checked_next_multiple_of(HUGE_BYTES)
}

/// Whether memory of `capacity` bytes serves for `len` bytes: it is large enough, and hardly larger than that, or than new
/// memory would be.
pub fn serves(capacity: usize, len: usize) -> bool {
    let new = if len >= MAPPED_BYTES { mapped_bytes(len).unwrap_or(len) } else { len };
    (len..=new.max(len.saturating_add(len / 4))).contains(&capacity)
}

enum Storage {
    Lines(Vec<Line>),
    Mapped(MmapMut),
}

/// Zeroed bytes on a 64-byte boundary, which can be read and written as any plain type.
pub struct AlignedBytes {
    // Invariant: the storage holds at least `len` bytes.
    storage: Storage,
    len: usize,
}

impl AlignedBytes {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// [`NoHostMemory`] if the allocator refuses.
    pub fn zeroed(len: usize) -> Result<Self, NoHostMemory> {
        let refused = || NoHostMemory { need_bytes: len as u64 };
        let storage = if len >= MAPPED_BYTES {
            let room = mapped_bytes(len).ok_or_else(refused)?;
            let map = MmapMut::map_anon(room).map_err(|_| refused())?;
            // The last page is huge if at least half of it is used. This is only a hint: without huge pages everything
            // works, but slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise_range(memmap2::Advice::HugePage, 0, (len + HUGE_BYTES / 2) / HUGE_BYTES * HUGE_BYTES);
            Storage::Mapped(map)
        } else {
            let lines = fallible(|| bytemuck::allocation::try_zeroed_vec(len.div_ceil(size_of::<Line>())));
            Storage::Lines(lines.map_err(|()| refused())?)
        };
        Ok(Self { storage, len })
    }

    /// Returns the bytes as elements of `T`, without an incomplete last element.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let whole = self.len / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&self.as_storage()[..whole])
    }

    /// Returns the bytes as mutable elements of `T`.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = match &mut self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Storage::Mapped(map) => map,
        };
        let whole = self.len / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytes[..whole])
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the length that it can have without new memory.
    pub fn capacity(&self) -> usize {
        self.as_storage().len()
    }

    /// Changes the length, up to the capacity. Bytes beyond the old length have any value.
    ///
    /// # Panics
    /// If the length is above the capacity.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes of {}", self.capacity());
        self.len = len;
    }

    fn as_storage(&self) -> &[u8] {
        match &self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice(lines),
            Storage::Mapped(map) => map,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for AlignedBytes {
    fn default() -> Self {
        Self { storage: Storage::Lines(Vec::new()), len: 0 }
    }
}

impl Clone for AlignedBytes {
    /// # Panics
    /// If the host has no memory left, as every clone does.
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len).expect("the host has memory for a copy");
        copy.as_mut_slice::<u8>().copy_from_slice(self.as_slice());
        copy
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}
