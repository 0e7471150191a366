//! Device memory on the host: numbered slots, a hard capacity, and one lock per slot.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;
use lapidary_arrays::serves;
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};

use super::edge_windows::EdgeWindows;
use super::pack::pack_cells;
use super::repeated::{Answer, Key, Watched};
use crate::error::{Error, Result, check_shape};
use crate::lent::Lent;
use crate::memory::{AlignedBytes, HostSlot, Shared, Slot, read, touch, write, zeroed};
use crate::op::call::{BlockSlots, Call, Mat};
use crate::storage_type::{StorageType, round, widen};
use crate::view::{BlockView, MatMut, MatView};

/// The contents of a slot.
enum Contents {
    /// No memory yet: it is taken from the host when the slot is first used.
    Reserved,
    /// Memory of its own.
    Own(AlignedBytes),
    /// A constant of the host, used in place. It is copied when the slot is written.
    Constant(Shared<u8>),
}

impl Contents {
    fn bytes<T: Pod>(&self) -> &[T] {
        match self {
            Self::Reserved => &[],
            Self::Own(bytes) => bytes.as_slice(),
            Self::Constant(bytes) => bytemuck::try_cast_slice(bytes).unwrap_or(&[]),
        }
    }

    fn bytes_mut<T: Pod>(&mut self) -> &mut [T] {
        match self {
            Self::Own(bytes) => bytes.as_mut_slice(),
            Self::Reserved | Self::Constant(_) => &mut [],
        }
    }
}

/// A slot. Each slot has its own lock, so that copies, kernels and allocations can run in parallel.
#[derive(Clone)]
pub(super) struct Cell {
    bytes: u64,
    contents: Arc<RwLock<Contents>>,
}

type Reading = ArcRwLockReadGuard<RawRwLock, Contents>;
type Writing = ArcRwLockWriteGuard<RawRwLock, Contents>;

/// Bytes in use, freed buffers that are kept, and edges that are stored window by window.
struct Account {
    // Invariant: reserved <= used <= peak <= capacity. used - reserved, the spare bytes and those of the windows together
    // never exceed 1.5 times the peak nor, if the memory is the host's, the capacity. A simulated device that is full keeps
    // spare buffers too: it has its memory at hand, as a GPU has. Without that margin, buffers of sizes that are not needed
    // next would be returned to the host at the peak of every epoch, and come back as new pages that the system has to
    // clear.
    used: u64,
    /// Bytes of slots that have no memory yet: most of them will take spare buffers.
    reserved: u64,
    peak: u64,
    spare: Vec<AlignedBytes>,
    spare_bytes: u64,
    watched: Watched,
}

/// The numbered slots of a device, with a capacity.
pub(super) struct Slots {
    capacity: u64,
    /// Whether constants of the host are used in place.
    in_place: bool,
    account: Mutex<Account>,
    table: RwLock<Vec<Option<Cell>>>,
}

impl Slots {
    pub(super) fn new(capacity: u64, in_place: bool) -> Self {
        let account =
            Account { used: 0, reserved: 0, peak: 0, spare: Vec::new(), spare_bytes: 0, watched: Watched::default() };
        Self { capacity, in_place, account: Mutex::new(account), table: RwLock::new(Vec::new()) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the limit of the bytes in use and the spare bytes together.
    fn most_bytes(&self) -> u64 {
        if self.in_place { self.capacity } else { u64::MAX }
    }

    pub(super) fn used(&self) -> u64 {
        self.account.lock().used
    }

    pub(super) fn peak(&self) -> u64 {
        self.account.lock().peak
    }

    pub(super) fn alloc(&self, slot: Slot, bytes: u64) -> Result<()> {
        let mut table = self.table.write();
        let index = slot.0 as usize;
        if table.get(index).is_some_and(Option::is_some) {
            return Err(Error::SlotInUse { slot });
        }
        let mut account = self.account.lock();
        let used = account.used.saturating_add(bytes);
        if used > self.capacity {
            return Err(Error::OutOfMemory { need_bytes: used, have_bytes: self.capacity });
        }
        account.used = used;
        account.reserved += bytes;
        account.peak = account.peak.max(used);
        account.trim(self.most_bytes());
        if table.len() <= index {
            table.resize_with(index + 1, || None);
        }
        table[index] = Some(Cell { bytes, contents: Arc::new(RwLock::new(Contents::Reserved)) });
        Ok(())
    }

    pub(super) fn free(&self, slot: Slot) -> Result<()> {
        let cell = self.table.write().get_mut(slot.0 as usize).and_then(Option::take);
        let cell = cell.ok_or(Error::EmptySlot { slot })?;
        let contents = std::mem::replace(&mut *try_write(&cell, slot)?, Contents::Reserved);
        let mut account = self.account.lock();
        account.used -= cell.bytes;
        match contents {
            Contents::Own(bytes) => {
                account.spare_bytes += bytes.len() as u64;
                account.spare.push(bytes);
                account.trim(self.most_bytes());
            }
            // The slot is loaded again before anything reads it, so its pages can be released.
            Contents::Constant(bytes) => bytes.release(),
            Contents::Reserved => account.reserved -= cell.bytes,
        }
        Ok(())
    }

    pub(super) fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        let mut table = self.table.write();
        let (source, target) = (from.0 as usize, to.0 as usize);
        if !table.get(source).is_some_and(Option::is_some) {
            return Err(Error::EmptySlot { slot: from });
        }
        if table.get(target).is_some_and(Option::is_some) {
            return Err(Error::SlotInUse { slot: to });
        }
        if table.len() <= target {
            table.resize_with(target + 1, || None);
        }
        table.swap(source, target);
        Ok(())
    }

    pub(super) fn share(&self, slot: Slot) -> Result<HostSlot> {
        let table = self.open();
        drop(table.readable(slot)?);
        let mut contents = try_write(&table.cell(slot)?, slot)?;
        let shared = match std::mem::replace(&mut *contents, Contents::Reserved) {
            Contents::Own(bytes) => Shared::from(bytes),
            Contents::Constant(bytes) => bytes,
            Contents::Reserved => unreachable!("a slot that was read has contents"),
        };
        *contents = Contents::Constant(shared.clone());
        Ok(HostSlot::Constant(shared))
    }

    /// Returns memory for a slot with these contents: a spare buffer of the same size, or hardly more, whose pages are already
    /// mapped, or a new one after `prepare`.
    fn memory(&self, bytes: u64, contents: &Contents, prepare: impl FnOnce(&mut AlignedBytes)) -> Result<AlignedBytes> {
        let len = usize::try_from(bytes).map_err(|_| Error::HostMemory { need_bytes: bytes })?;
        let spare = {
            let mut account = self.account.lock();
            let spare = account.take(len);
            account.gets_memory(bytes, contents, self.most_bytes());
            spare
        };
        let mut memory = match spare {
            Some(memory) => memory,
            None => {
                let mut memory = zeroed(len).inspect_err(|_| self.account.lock().gets_none(bytes, contents))?;
                prepare(&mut memory);
                memory
            }
        };
        if cfg!(debug_assertions) {
            // 0xff bytes are NaN as f32, so a cell that a kernel forgot is visible.
            memory.as_mut_slice::<u8>().fill(0xff);
        }
        Ok(memory)
    }

    /// Allocates memory for those of the slots that have none yet, and clears every page of it. A slot that is in use,
    /// or for which there is no memory, is left to the call that needs it.
    pub(super) fn make_ready(&self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            let Ok(cell) = self.open().cell(slot) else { continue };
            let Ok(mut contents) = try_write(&cell, slot) else { continue };
            if matches!(*contents, Contents::Reserved)
                && let Ok(memory) = self.memory(cell.bytes, &contents, touch)
            {
                *contents = Contents::Own(memory);
            }
        }
    }

    pub(super) fn copy_in(&self, dst: Slot, src: &HostSlot) -> Result<()> {
        let table = self.open();
        let cell = table.cell(dst)?;
        check_size(dst, src.len() as u64, cell.bytes)?;
        match src {
            HostSlot::Constant(bytes) if self.in_place && is_aligned(bytes) => {
                let mut contents = try_write(&cell, dst)?;
                self.account.lock().gets_memory(cell.bytes, &contents, self.most_bytes());
                *contents = Contents::Constant(bytes.clone());
            }
            HostSlot::Constant(bytes) => table.writable(dst)?.bytes_mut().copy_from_slice(bytes),
            HostSlot::Staging(bytes) => table.writable(dst)?.bytes_mut().copy_from_slice(read(bytes).as_slice::<u8>()),
        }
        Ok(())
    }

    pub(super) fn copy_out(&self, src: Slot, dst: &HostSlot) -> Result<()> {
        let HostSlot::Staging(host) = dst else { return Err(Error::ConstantWritten) };
        let table = self.open();
        let mut host = write(host);
        check_size(src, host.len() as u64, table.cell(src)?.bytes)?;
        host.as_mut_slice::<u8>().copy_from_slice(table.readable(src)?.bytes());
        Ok(())
    }

    /// Returns the memory of a slot for other devices to read.
    pub(super) fn lend(&self, slot: Slot) -> Result<Lent> {
        let table = self.open();
        drop(table.readable(slot)?);
        Ok(Lent::new(table.cell(slot)?))
    }

    /// Copies rows of memory that others lent: see [`crate::Device::fetch`].
    pub(super) fn fetch(&self, rows: Slot, out: Mat, from: &[(Lent, usize)]) -> Result<()> {
        match out.float() {
            StorageType::F32 => self.fetch_as::<f32>(rows, out, from),
            StorageType::Bf16 => self.fetch_as::<bf16>(rows, out, from),
        }
    }

    fn fetch_as<T: Pod + Send + Sync>(&self, rows: Slot, out: Mat, from: &[(Lent, usize)]) -> Result<()> {
        const CALL: &str = "fetch";
        let table = self.open();
        let (rows, d) = (table.vec::<u32>(rows, out.rows)?, out.cols);
        let mut values = table.vec_mut::<T>(out.slot, table.check_mat::<T>(out)?)?;
        let given = from.iter().fold(0usize, |sum, (_, count)| sum.saturating_add(*count));
        check_shape(CALL, "out", [given, d], [out.rows, d])?;
        let (mut rows, mut to) = (rows.view(), values.view());
        for (lent, count) in from.iter().filter(|_| d > 0) {
            let memory = lent.of::<Cell>().ok_or(Error::NoPeers)?.contents.read_arc();
            let (wanted, later) = rows.split_at(*count);
            let (here, rest) = std::mem::take(&mut to).split_at_mut(count * d);
            let x = memory.bytes::<T>();
            pack_cells(CALL, (x, x.len() / d), wanted, d, here)?;
            (rows, to) = (later, rest);
        }
        Ok(())
    }

    /// Returns the edges of a block window by window, if they are stored, or stores them now, if gathers over it repeat and
    /// there is room. Only constants of the host are watched: they never change.
    ///
    /// `columns` are those that the call gathers.
    pub(super) fn windows(&self, block: &Block, columns: usize) -> Option<Arc<EdgeWindows>> {
        let view = block.view();
        let bytes = EdgeWindows::bytes([view.rows(), view.indices.len(), view.own_sources]);
        if !self.in_place || bytes == 0 || view.halo_sources > 0 {
            return None;
        }
        let arrays = [block.indptr.constant()?.identity(), block.indices.constant()?.identity()];
        let key = Key { arrays, sources: view.own_sources };
        let most = self.most_bytes();
        let answer = {
            let mut account = self.account.lock();
            let room = account.most(most).saturating_sub(account.peak);
            account.watched.gather(&key, columns, |stored| stored + bytes <= room)
        };
        match answer {
            Answer::Csr => None,
            Answer::Windows(windows) => Some(windows),
            Answer::Store => {
                // Whatever is wrong with the block, the gather over it will tell.
                let windows = Arc::new(EdgeWindows::new(view).ok().flatten()?);
                let mut account = self.account.lock();
                account.watched.keep(&key, windows.clone(), bytes);
                account.trim(most);
                Some(windows)
            }
        }
    }

    /// Opens the table for one call.
    pub(super) fn open(&self) -> Open<'_> {
        Open { slots: self }
    }
}

fn check_size(slot: Slot, need_bytes: u64, have_bytes: u64) -> Result<()> {
    if need_bytes == have_bytes { Ok(()) } else { Err(Error::SlotSize { slot, need_bytes, have_bytes }) }
}

impl Account {
    fn take(&mut self, len: usize) -> Option<AlignedBytes> {
        let same = self.spare.iter().rposition(|spare| spare.len() == len);
        // Mini-batches, whose sizes differ by little, use their memory again.
        let index = same.or_else(|| self.spare.iter().rposition(|spare| serves(spare.capacity(), len)))?;
        let mut memory = self.spare.remove(index);
        self.spare_bytes -= memory.len() as u64;
        memory.resize(len);
        Some(memory)
    }

    /// Returns the limit of all bytes together.
    fn most(&self, capacity: u64) -> u64 {
        self.peak.saturating_add(self.peak / 2).min(capacity)
    }

    /// Notes that a slot with these contents gets memory.
    fn gets_memory(&mut self, bytes: u64, contents: &Contents, capacity: u64) {
        if matches!(contents, Contents::Reserved) {
            self.reserved -= bytes;
            self.trim(capacity);
        }
    }

    /// Notes that there was no memory for such a slot after all.
    fn gets_none(&mut self, bytes: u64, contents: &Contents) {
        if matches!(contents, Contents::Reserved) {
            self.reserved += bytes;
        }
    }

    /// Returns the oldest spare buffers to the host until the invariant holds, and then the windows.
    fn trim(&mut self, capacity: u64) {
        let most = self.most(capacity);
        let held = self.used + self.watched.bytes();
        while held - self.reserved + self.spare_bytes > most && !self.spare.is_empty() {
            self.spare_bytes -= self.spare.remove(0).len() as u64;
        }
        if held > most {
            self.watched.clear();
        }
    }
}

/// Kernels read 8-byte numbers from constants in place, which needs this alignment.
fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(align_of::<u64>())
}

fn try_write(cell: &Cell, slot: Slot) -> Result<Writing> {
    cell.contents.try_write_arc().ok_or(Error::Aliased { slot })
}

fn try_read(cell: &Cell, slot: Slot) -> Result<Reading> {
    cell.contents.try_read_arc().ok_or(Error::Aliased { slot })
}

/// The slots as one call sees them. Locks are only tried, so a slot that is used twice is an error and not a deadlock.
pub(super) struct Open<'a> {
    slots: &'a Slots,
}

impl Open<'_> {
    fn cell(&self, slot: Slot) -> Result<Cell> {
        let table = self.slots.table.read();
        table.get(slot.0 as usize).and_then(Option::as_ref).cloned().ok_or(Error::EmptySlot { slot })
    }

    fn readable(&self, slot: Slot) -> Result<Reading> {
        let cell = self.cell(slot)?;
        let contents = try_read(&cell, slot)?;
        if !matches!(*contents, Contents::Reserved) {
            return Ok(contents);
        }
        drop(contents);
        drop(self.writable(slot)?);
        try_read(&cell, slot)
    }

    /// Locks a slot for writing and makes sure that it has memory of its own.
    fn writable(&self, slot: Slot) -> Result<Writing> {
        let cell = self.cell(slot)?;
        let mut contents = try_write(&cell, slot)?;
        match &*contents {
            Contents::Own(_) => {}
            Contents::Reserved => *contents = Contents::Own(self.slots.memory(cell.bytes, &contents, |_| {})?),
            Contents::Constant(bytes) => {
                let mut own = self.slots.memory(cell.bytes, &contents, |_| {})?;
                own.as_mut_slice().copy_from_slice(bytes);
                *contents = Contents::Own(own);
            }
        }
        Ok(contents)
    }

    /// Returns the edges of a block window by window, if gathers over it repeat.
    pub(super) fn windows(&self, block: &Block, columns: usize) -> Option<Arc<EdgeWindows>> {
        self.slots.windows(block, columns)
    }

    /// Locks `len` elements of a slot for reading.
    pub(super) fn vec<T: Pod>(&self, slot: Slot, len: usize) -> Result<Vector<T>> {
        self.check_len::<T>(slot, Some(len))?;
        Ok(Vector { contents: self.readable(slot)?, len, element: PhantomData })
    }

    /// Locks `len` elements of a slot for writing.
    pub(super) fn vec_mut<T: Pod>(&self, slot: Slot, len: usize) -> Result<VectorMut<T>> {
        self.check_len::<T>(slot, Some(len))?;
        Ok(VectorMut { contents: self.writable(slot)?, len, element: PhantomData })
    }

    /// Locks all elements of an operand for reading, in their storage type.
    pub(super) fn numbers<T: Pod>(&self, mat: Mat) -> Result<Vector<T>> {
        self.vec(mat.slot, self.check_mat::<T>(mat)?)
    }

    /// Locks all elements of an operand for writing, in their storage type.
    pub(super) fn numbers_mut<T: Pod>(&self, mat: Mat) -> Result<VectorMut<T>> {
        self.vec_mut(mat.slot, self.check_mat::<T>(mat)?)
    }

    /// Returns the epoch and the step.
    pub(super) fn clock(&self, clock: Mat) -> Result<[u64; 2]> {
        let clock = self.vec(clock.slot, 2)?;
        Ok([clock.view()[0], clock.view()[1]])
    }

    /// Locks the block of a call for reading.
    pub(super) fn block_of(&self, call: &Call) -> Result<Block> {
        self.block(call.block.expect("an operation over a block is bound to one"))
    }

    /// Locks a matrix for reading. A bf16 matrix is widened into a copy; kernels over many rows read it as it is stored.
    pub(super) fn mat(&self, mat: Mat) -> Result<Matrix> {
        let values = match mat.float() {
            StorageType::F32 => Values::AsStored(self.vec(mat.slot, self.check_mat::<f32>(mat)?)?),
            StorageType::Bf16 => {
                let stored = self.vec(mat.slot, self.check_mat::<bf16>(mat)?)?;
                let mut wide = zeroed(4 * stored.len)?;
                widen(stored.view(), wide.as_mut_slice());
                Values::Widened { wide, _stored: stored }
            }
        };
        Ok(Matrix { values, mat })
    }

    /// Locks a matrix for writing. A bf16 matrix is rounded and stored when it is dropped.
    pub(super) fn mat_mut(&self, mat: Mat) -> Result<MatrixMut> {
        let values = match mat.float() {
            StorageType::F32 => ValuesMut::AsStored(self.vec_mut(mat.slot, self.check_mat::<f32>(mat)?)?),
            StorageType::Bf16 => {
                let stored = self.vec_mut(mat.slot, self.check_mat::<bf16>(mat)?)?;
                let mut wide = zeroed(4 * stored.len)?;
                if cfg!(debug_assertions) {
                    wide.as_mut_slice::<u8>().fill(0xff);
                }
                ValuesMut::Widened { wide, stored }
            }
        };
        Ok(MatrixMut { values, mat })
    }

    fn check_mat<T>(&self, mat: Mat) -> Result<usize> {
        self.check_len::<T>(mat.slot, mat.rows.checked_mul(mat.cols))
    }

    /// Locks a block for reading.
    pub(super) fn block(&self, block: BlockSlots) -> Result<Block> {
        let indptr = self.vec(block.indptr, block.rows.saturating_add(1))?;
        Ok(Block { indptr, indices: self.vec(block.indices, block.edges)?, block })
    }

    fn check_len<T>(&self, slot: Slot, len: Option<usize>) -> Result<usize> {
        let have_bytes = self.cell(slot)?.bytes;
        let need_bytes = len.and_then(|len| len.checked_mul(size_of::<T>())).map_or(u64::MAX, |bytes| bytes as u64);
        match len {
            Some(len) if need_bytes <= have_bytes => Ok(len),
            _ => Err(Error::SlotSize { slot, need_bytes, have_bytes }),
        }
    }
}

/// Elements locked for reading.
pub(super) struct Vector<T> {
    // Invariant: the contents hold at least `len` elements.
    contents: Reading,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Vector<T> {
    /// Returns the constant of the host that the elements are read from.
    fn constant(&self) -> Option<&Shared<u8>> {
        if let Contents::Constant(bytes) = &*self.contents { Some(bytes) } else { None }
    }

    pub(super) fn view(&self) -> &[T] {
        &self.contents.bytes()[..self.len]
    }

    /// Returns the elements as the matrix that they were opened as.
    pub(super) fn matrix(&self, mat: Mat) -> MatView<'_, T> {
        MatView::new(self.view(), mat.rows, mat.cols).expect("the length was checked when it was opened")
    }
}

/// Elements locked for writing.
pub(super) struct VectorMut<T> {
    // Invariant: the contents hold at least `len` elements.
    contents: Writing,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> VectorMut<T> {
    pub(super) fn view(&mut self) -> &mut [T] {
        &mut self.contents.bytes_mut()[..self.len]
    }

    /// Returns the elements as the matrix that they were opened as.
    pub(super) fn matrix(&mut self, mat: Mat) -> MatMut<'_, T> {
        MatMut::new(self.view(), mat.rows, mat.cols).expect("the length was checked when it was opened")
    }
}

/// A matrix locked for reading.
pub(super) struct Matrix {
    values: Values,
    mat: Mat,
}

enum Values {
    AsStored(Vector<f32>),
    /// A copy in f32. The stored matrix stays locked as long, so that no call reads what it writes.
    Widened {
        wide: AlignedBytes,
        _stored: Vector<bf16>,
    },
}

impl Matrix {
    pub(super) fn view(&self) -> MatView<'_> {
        let values = match &self.values {
            Values::AsStored(values) => values.view(),
            Values::Widened { wide, .. } => wide.as_slice(),
        };
        MatView::new(values, self.mat.rows, self.mat.cols).expect("the length was checked when it was opened")
    }
}

/// A matrix locked for writing.
pub(super) struct MatrixMut {
    values: ValuesMut,
    mat: Mat,
}

enum ValuesMut {
    AsStored(VectorMut<f32>),
    /// An f32 matrix that is rounded and stored on drop.
    Widened {
        wide: AlignedBytes,
        stored: VectorMut<bf16>,
    },
}

impl MatrixMut {
    pub(super) fn view(&mut self) -> MatMut<'_> {
        let values = match &mut self.values {
            ValuesMut::AsStored(values) => values.view(),
            ValuesMut::Widened { wide, .. } => wide.as_mut_slice(),
        };
        MatMut::new(values, self.mat.rows, self.mat.cols).expect("the length was checked when it was opened")
    }
}

impl Drop for MatrixMut {
    fn drop(&mut self) {
        if let ValuesMut::Widened { wide, stored } = &mut self.values {
            round(wide.as_slice(), stored.view());
        }
    }
}

/// A block locked for reading.
pub(super) struct Block {
    indptr: Vector<u64>,
    indices: Vector<u32>,
    block: BlockSlots,
}

impl Block {
    pub(super) fn view(&self) -> BlockView<'_> {
        BlockView {
            indptr: self.indptr.view(),
            indices: self.indices.view(),
            own_sources: self.block.own_sources,
            halo_sources: self.block.halo_sources,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 12;

    /// Writes to a slot. Returns where its memory is.
    fn address(slots: &Slots, slot: Slot) -> usize {
        slots.open().vec_mut::<u8>(slot, BYTES).expect("there is memory").view().as_ptr().addr()
    }

    #[test]
    fn a_freed_buffer_waits_for_a_slot_that_has_no_memory_yet() {
        let slots = Slots::new(1 << 20, true);
        slots.alloc(Slot(0), BYTES as u64).expect("it fits");
        let first = address(&slots, Slot(0));
        slots.free(Slot(0)).expect("it is there");
        slots.alloc(Slot(1), BYTES as u64).expect("it fits");
        // If the buffer had been given back, this would take it.
        let other = zeroed(BYTES).expect("there is memory");
        assert_eq!(address(&slots, Slot(1)), first);
        slots.alloc(Slot(2), BYTES as u64).expect("it fits");
        slots.free(Slot(2)).expect("it is there");
        slots.free(Slot(1)).expect("it is there");
        assert_eq!((slots.used(), slots.account.lock().reserved), (0, 0));
        drop(other);
    }

    #[test]
    fn a_slot_that_gets_no_memory_can_be_freed() {
        let slots = Slots::new(u64::MAX, true);
        let bytes = 1u64 << 62;
        slots.alloc(Slot(0), bytes).expect("there is no limit");
        let refused = slots.open().vec_mut::<u8>(Slot(0), bytes as usize).map(drop);
        assert!(matches!(refused, Err(Error::HostMemory { .. })), "{refused:?}");
        slots.free(Slot(0)).expect("it is there");
        assert_eq!((slots.used(), slots.account.lock().reserved), (0, 0));
    }
}
