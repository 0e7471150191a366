//! The memory of a GPU: numbered slots with a hard capacity.
//!
//! As on every device, the capacity limits the sum of the slots' bytes. The driver's rounding and its context are not
//! counted. Memory comes from the driver's stream-ordered pool, which keeps freed memory, on a stream of its own. A
//! freed buffer is kept as a spare for the next slot of the same size, so that the driver is rarely called. A slot that
//! replaces another one each epoch alternates with it between the same two buffers. So the same calls have the same
//! addresses every other epoch, which `graphs.rs` relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use parking_lot::Mutex;

use super::driver::Named;
use crate::error::{Error, Result};
use crate::memory::Slot;

/// The memory of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    /// 0 if there are no bytes.
    pub(super) address: u64,
    pub(super) bytes: u64,
}

pub(super) struct Slots {
    pub(super) capacity: u64,
    pool: Pool,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    // Invariant: used <= peak <= capacity. `used` is the sum over the buffers, `kept` the sum over the spare, reserved
    // and retired ones. used + kept, which is everything taken from the driver, is at most the capacity as well.
    used: u64,
    peak: u64,
    kept: u64,
    buffers: Vec<Option<Buffer>>,
    /// Bytes and address of memory that no slot holds, but that a copy may still read.
    retired: Vec<(u64, u64)>,
    /// Bytes and address of memory that nothing uses.
    spare: BTreeSet<(u64, u64)>,
    /// For each slot that was the target of a rename, its source.
    successors: BTreeMap<u32, u32>,
    /// For each such source, bytes and address of the memory reserved for it. It is unused as well.
    reserved: BTreeMap<u32, (u64, u64)>,
}

/// Whether spare memory may be returned to the driver. It must stay if calls that are not queued yet may use it. The
/// allocation then fails if there is no room beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spares {
    MayGo,
    Stay,
}

impl Slots {
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn new(context: &Arc<CudaContext>, capacity: u64) -> Result<Self> {
        Ok(Self { capacity, pool: Pool::new(context)?, table: Mutex::default() })
    }

    /// Returns the bytes in use now, and the most that ever were.
    pub(super) fn used_and_peak(&self) -> [u64; 2] {
        let table = self.table.lock();
        [table.used, table.peak]
    }

    pub(super) fn get(&self, slot: Slot) -> Result<Buffer> {
        self.table.lock().buffers.get(slot.0 as usize).copied().flatten().ok_or(Error::EmptySlot { slot })
    }

    pub(super) fn alloc(&self, slot: Slot, bytes: u64, spares: Spares) -> Result<()> {
        let mut table = self.table.lock();
        table.vacant(slot)?;
        let used = table.used.saturating_add(bytes);
        if used > self.capacity {
            return Err(Error::OutOfMemory { need_bytes: used, have_bytes: self.capacity });
        }
        let buffer = Buffer { address: self.take(&mut table, slot, bytes, spares)?, bytes };
        table.used = used;
        table.peak = table.peak.max(used);
        table.buffers[slot.0 as usize] = Some(buffer);
        Ok(())
    }

    /// Takes spare memory of exactly `bytes` bytes, or allocates it. Reserved memory comes first, then the spare with
    /// the lowest address.
    fn take(&self, table: &mut Table, slot: Slot, bytes: u64, spares: Spares) -> Result<u64> {
        if let Some(spare) = table.take_spare(slot, bytes) {
            if cfg!(debug_assertions) && spares == Spares::MayGo {
                self.pool.spoil(spare.1, bytes)?;
            }
            return Ok(spare.1);
        }
        let used = table.used.saturating_add(bytes);
        if spares == Spares::Stay {
            let need_bytes = used.saturating_add(table.kept);
            if need_bytes > self.capacity {
                return Err(Error::OutOfMemory { need_bytes, have_bytes: self.capacity });
            }
            return self.pool.take(bytes);
        }
        // A margin of half the peak is enough for sizes that alternate.
        let most = self.capacity.min(table.peak.max(used).saturating_mul(3) / 2);
        while used.saturating_add(table.kept) > most && self.give_spare_back(table)? {}
        match self.pool.take(bytes) {
            Err(Error::Cuda { .. }) if table.kept > 0 => {
                while self.give_spare_back(table)? {}
                self.pool.take(bytes)
            }
            taken => taken,
        }
    }

    /// Returns the largest spare to the driver, or a reserved buffer if there is no spare. Returns whether there was
    /// one.
    fn give_spare_back(&self, table: &mut Table) -> Result<bool> {
        let spare = table.spare.pop_last().or_else(|| table.reserved.pop_last().map(|(_, spare)| spare));
        let Some((bytes, address)) = spare else { return Ok(false) };
        table.kept -= bytes;
        self.pool.give_back(address).map(|()| true)
    }

    /// Does the same as [`Slots::free`], but the memory is not reused before [`Slots::settle`].
    pub(super) fn retire(&self, slot: Slot) -> Result<()> {
        let mut table = self.table.lock();
        let Buffer { address, bytes } = table.give_up(slot)?;
        table.kept += bytes;
        table.retired.extend((bytes > 0).then_some((bytes, address)));
        Ok(())
    }

    /// Makes retired memory available. No copy may read it any more.
    pub(super) fn settle(&self) {
        let mut table = self.table.lock();
        let retired = std::mem::take(&mut table.retired);
        table.spare.extend(retired);
    }

    pub(super) fn free(&self, slot: Slot) -> Result<()> {
        let mut table = self.table.lock();
        let Buffer { address, bytes } = table.give_up(slot)?;
        if bytes > 0 {
            table.kept += bytes;
            let spare = match table.successors.get(&slot.0).copied() {
                Some(successor) => table.reserved.insert(successor, (bytes, address)),
                None => Some((bytes, address)),
            };
            table.spare.extend(spare);
        }
        Ok(())
    }

    pub(super) fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        let mut table = self.table.lock();
        if !table.buffers.get(from.0 as usize).is_some_and(Option::is_some) {
            return Err(Error::EmptySlot { slot: from });
        }
        table.vacant(to)?;
        table.successors.insert(to.0, from.0);
        table.buffers.swap(from.0 as usize, to.0 as usize);
        Ok(())
    }
}

impl Table {
    fn give_up(&mut self, slot: Slot) -> Result<Buffer> {
        let buffer = self.buffers.get_mut(slot.0 as usize).and_then(Option::take);
        let buffer = buffer.ok_or(Error::EmptySlot { slot })?;
        self.used -= buffer.bytes;
        Ok(buffer)
    }

    fn take_spare(&mut self, slot: Slot, bytes: u64) -> Option<(u64, u64)> {
        let spare = match self.reserved.get(&slot.0) {
            Some(reserved) if reserved.0 == bytes => self.reserved.remove(&slot.0),
            _ => {
                let spare = self.spare.range((bytes, 0)..=(bytes, u64::MAX)).next().copied().filter(|_| bytes > 0);
                if let Some(spare) = &spare {
                    self.spare.remove(spare);
                }
                spare
            }
        };
        spare.inspect(|_| self.kept -= bytes)
    }

    /// Makes sure that the slot's table entry exists and is empty.
    fn vacant(&mut self, slot: Slot) -> Result<()> {
        let index = slot.0 as usize;
        if self.buffers.get(index).is_some_and(Option::is_some) {
            return Err(Error::SlotInUse { slot });
        }
        if self.buffers.len() <= index {
            self.buffers.resize(index + 1, None);
        }
        Ok(())
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.settle();
        let table = self.table.get_mut();
        let held = table.buffers.drain(..).flatten().map(|buffer| buffer.address);
        let spare =
            std::mem::take(&mut table.spare).into_iter().chain(std::mem::take(&mut table.reserved).into_values());
        for address in held.chain(spare.map(|(_, address)| address)) {
            // A failure only leaks it.
            let _ = self.pool.give_back(address);
        }
        // Otherwise the pool would keep memory that other devices and programs could use.
        let _ = self.pool.empty();
    }
}

/// The allocator of a GPU's memory.
pub(super) struct Pool {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Pool {
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stream = context.new_stream().during("making a stream")?;
        if context.has_async_alloc() {
            keep_what_is_given_back(context)?;
        }
        Ok(Self { context: context.clone(), stream })
    }

    /// Allocates memory that every stream may use at once; address 0 for no bytes.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn take(&self, bytes: u64) -> Result<u64> {
        const CALL: &str = "allocating GPU memory";
        let Ok(len) = usize::try_from(bytes) else {
            return Err(Error::OutOfMemory { need_bytes: bytes, have_bytes: usize::MAX as u64 });
        };
        if len == 0 {
            return Ok(0);
        }
        self.context.bind_to_thread().during(CALL)?;
        if !self.context.has_async_alloc() {
            // SAFETY: the contents of the memory are not read before they are written.
            return unsafe { result::malloc_sync(len) }.during(CALL);
        }
        // SAFETY: as above; the stream has no other work, so the memory is valid on all streams after the wait.
        let address = unsafe { result::malloc_async(self.stream.cu_stream(), len) }.during(CALL)?;
        self.stream.synchronize().during(CALL)?;
        Ok(address)
    }

    /// Fills memory with NaN, so that a read before the first write is visible.
    fn spoil(&self, address: u64, bytes: u64) -> Result<()> {
        const CALL: &str = "filling GPU memory";
        self.context.bind_to_thread().during(CALL)?;
        // SAFETY: the memory came from `take` with as many bytes, and nothing uses it.
        unsafe { result::memset_d8_async(address, 0xff, bytes as usize, self.stream.cu_stream()) }.during(CALL)?;
        self.stream.synchronize().during(CALL)
    }

    /// Frees memory that no queued work uses any more.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn give_back(&self, address: u64) -> Result<()> {
        const CALL: &str = "freeing GPU memory";
        if address == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().during(CALL)?;
        // SAFETY: the memory came from `take` and is freed once; nothing uses it any more.
        unsafe {
            match self.context.has_async_alloc() {
                true => result::free_async(address, self.stream.cu_stream()).during(CALL),
                false => result::free_sync(address).during(CALL),
            }
        }
    }
}

impl Pool {
    /// Returns the free memory of the pool to the system.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    fn empty(&self) -> Result<()> {
        const CALL: &str = "emptying the memory pool";
        if !self.context.has_async_alloc() {
            return Ok(());
        }
        self.context.bind_to_thread().during(CALL)?;
        self.stream.synchronize().during(CALL)?;
        // SAFETY: the device exists; memory in use stays.
        unsafe {
            let pool = result::device::get_default_mem_pool(self.context.cu_device()).during(CALL)?;
            sys::cuMemPoolTrimTo(pool, 0).result().during(CALL)
        }
    }
}

/// Makes the pool keep freed memory. By default it returns memory to the system at every synchronisation, which costs
/// milliseconds.
fn keep_what_is_given_back(context: &CudaContext) -> Result<()> {
    const CALL: &str = "setting up the memory pool";
    context.bind_to_thread().during(CALL)?;
    let all = u64::MAX;
    // SAFETY: the device exists, and the attribute is a 64-bit number that is read before the call returns.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).during(CALL)?;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw const all).cast_mut().cast()).result().during(CALL)
    }
}
