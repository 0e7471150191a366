//! Bytes: where a device keeps them ([`Slot`]), and where the host does ([`Shared`], [`HostSlot`]).

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::team::for_each;

/// A handle to one buffer of a device. The caller chooses the numbers; they are dense and start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// One cache line, so that a vector of them is aligned for the widest vector loads.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// From this length on bytes are mapped by themselves, in huge pages where the system has them: random rows of a
/// large matrix are then found without a page walk each, and fresh memory costs far fewer faults.
const MAPPED_BYTES: usize = 4 << 20;

/// The least that the system clears at once, and how many of them are worth a task.
const PAGE_BYTES: usize = 4 << 10;
const PAGES_A_TASK: usize = 512;

/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;

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
    /// `len` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::HostMemory`] when the allocator refuses.
    pub fn zeroed(len: usize) -> Result<Self> {
        let refused = || Error::HostMemory { need_bytes: len as u64 };
        let storage = if len >= MAPPED_BYTES {
            // Whole pages are put where a huge page can begin; what is never touched takes no memory.
            let room = len.checked_next_multiple_of(HUGE_BYTES).ok_or_else(refused)?;
            let map = MmapMut::map_anon(room).map_err(|_| refused())?;
            // The last page is huge if at least half of it is used. A hint: without huge pages everything works, only
            // slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise_range(memmap2::Advice::HugePage, 0, (len + HUGE_BYTES / 2) / HUGE_BYTES * HUGE_BYTES);
            Storage::Mapped(map)
        } else {
            let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(size_of::<Line>()));
            Storage::Lines(lines.map_err(|()| refused())?)
        };
        Ok(Self { storage, len })
    }

    /// The bytes as elements of `T`; a remainder that is no whole element is left out.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let bytes: &[u8] = match &self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice(lines),
            Storage::Mapped(map) => map,
        };
        let whole = self.len / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&bytes[..whole])
    }

    /// The bytes as elements of `T`, to be written.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = match &mut self.storage {
            Storage::Lines(lines) => bytemuck::cast_slice_mut(lines),
            Storage::Mapped(map) => map,
        };
        let whole = self.len / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytes[..whole])
    }

    /// Has the system clear every page that was not written yet. A byte of each is 0 afterwards.
    pub(crate) fn touch(&mut self) {
        for_each(self.as_mut_slice::<u8>().chunks_mut(PAGES_A_TASK * PAGE_BYTES), |pages| {
            pages.chunks_mut(PAGE_BYTES).for_each(|page| *std::hint::black_box(&mut page[0]) = 0);
        });
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
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
    /// When the host has no memory left, as every clone does.
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

/// Bytes that many may hold at once.
pub trait Owner: AsRef<[u8]> + Send + Sync {
    /// Hears that nobody is likely to read `range` soon. What can be had again, such as pages of a file, need not stay in
    /// memory; the bytes stay what they are.
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

/// A read-only array that many may hold at once: a vector, or part of a mapped file. Cloning it copies no element.
#[derive(Clone)]
pub struct Shared<T> {
    // Invariant: `offset .. offset + bytes` lies inside the owner, is aligned for `T` and holds whole elements.
    owner: Arc<dyn Owner>,
    offset: usize,
    bytes: usize,
    element: PhantomData<T>,
}

impl<T: Pod + Send + Sync> Shared<T> {
    /// The `len` elements that start `offset` bytes into `owner`; `None` if they do not lie inside it or are not
    /// aligned. `owner` must always return the same bytes.
    pub fn from_owner(owner: Arc<dyn Owner>, offset: usize, len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?;
        let end = offset.checked_add(bytes)?;
        let slice = (*owner).as_ref().get(offset..end)?;
        bytemuck::try_cast_slice::<u8, T>(slice).ok()?;
        Some(Self { owner, offset, bytes, element: PhantomData })
    }

    /// `len` elements, 0 where `fill` leaves them; in huge pages if they are many.
    ///
    /// # Errors
    /// [`Error::HostMemory`] when the allocator refuses.
    pub fn filled(len: usize, fill: impl FnOnce(&mut [T])) -> Result<Self> {
        let mut bytes = AlignedBytes::zeroed(len.saturating_mul(size_of::<T>()))?;
        fill(bytes.as_mut_slice());
        Ok(Self::from_owner(Arc::new(bytes), 0, len).expect("they are aligned, and as many"))
    }

    /// The same bytes, counted in bytes.
    pub fn to_bytes(&self) -> Shared<u8> {
        Shared { owner: self.owner.clone(), offset: self.offset, bytes: self.bytes, element: PhantomData }
    }
}

impl<T: Pod> Shared<T> {
    /// Says that nobody is likely to read the elements soon: those of a mapped file then take no memory until somebody
    /// does.
    pub fn release(&self) {
        self.owner.release(self.offset..self.offset + self.bytes);
    }

    /// The same bytes as elements of another type of the same size (i64 offsets as u64, i32 columns as u32).
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
    /// Some of the elements, without a copy.
    ///
    /// # Panics
    /// If `range` is not one of elements.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} elements", self.len());
        let (offset, bytes) = (self.offset + range.start * size_of::<T>(), range.len() * size_of::<T>());
        Self { owner: self.owner.clone(), offset, bytes, element: PhantomData }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
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

/// A handle to host memory that a device copies from or to.
#[derive(Clone, Debug)]
pub enum HostSlot {
    /// Never changes: a device in the host's memory may use it where it lies.
    Constant(Shared<u8>),
    /// Written by copies out of a device, and by the host between them.
    Staging(Arc<RwLock<AlignedBytes>>),
}

impl HostSlot {
    /// A constant array.
    pub fn constant<T: Pod + Send + Sync>(values: &Shared<T>) -> Self {
        Self::Constant(values.to_bytes())
    }

    /// Zeroed bytes that can be written.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn staging(bytes: usize) -> Result<Self> {
        Ok(Self::Staging(Arc::new(RwLock::new(AlignedBytes::zeroed(bytes)?))))
    }

    /// Writable bytes that start out as a copy of `values`.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn staged<T: Pod>(values: &[T]) -> Result<Self> {
        let mut bytes = AlignedBytes::zeroed(size_of_val(values))?;
        bytes.as_mut_slice::<T>().copy_from_slice(values);
        Ok(Self::Staging(Arc::new(RwLock::new(bytes))))
    }

    /// Shows the bytes to `see`.
    pub fn read<R>(&self, see: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Constant(bytes) => see(bytes),
            Self::Staging(bytes) => see(read(bytes).as_slice()),
        }
    }

    /// Lets `fill` write the bytes.
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

    /// A copy of the elements.
    pub fn to_vec<T: Pod>(&self) -> Vec<T> {
        match self {
            Self::Constant(bytes) => bytemuck::pod_collect_to_vec(bytes),
            Self::Staging(bytes) => read(bytes).as_slice().to_vec(),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Constant(bytes) => bytes.len(),
            Self::Staging(bytes) => read(bytes).len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Locks for reading. A panic of another holder leaves bytes that are still bytes, so poison is no error here.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poison| poison.into_inner())
}

/// Locks for writing; see [`read`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poison| poison.into_inner())
}
