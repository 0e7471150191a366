//! Copies between pageable host memory and a GPU, through pinned buffers that are reused.
//!
//! A GPU can copy asynchronously only from and to pinned memory. The host's data is in vectors and mapped files. So a
//! copy is done in pieces: while the GPU moves one piece, the host's cores copy the next.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use parking_lot::Mutex;
use rayon::prelude::*;

use super::driver::Named;
use crate::error::Result;

/// Bytes per piece.
const PIECE: usize = 4 << 20;

/// Buffers per direction: one that the GPU moves, one that the host fills, and one between them.
const BUFFERS: usize = 3;

/// Bytes per task when the host's cores copy a piece.
const TASK: usize = 256 << 10;

/// Pinned host memory, which a GPU can read and write.
pub(super) struct Pinned {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is plain memory with a single owner.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only gives access through `take_words`, and each place has one caller at a time.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `len` bytes that the host can read at full speed. The context must be current.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn new(len: usize) -> Result<Self> {
        // Portable: for every GPU. Mapped: kernels may write it.
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        // SAFETY: the memory is freed when this is dropped, and not used after that.
        let start = unsafe { result::malloc_host(len, PORTABLE_AND_MAPPED) }.during("pinning host memory")?;
        Ok(Self { start: start.cast(), len })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the driver gave `len` bytes, and a reader has waited for the copy that wrote them. They are
        // initialised by the driver or by `bytes_mut`: a buffer is only read where it was copied into.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a writer has waited for the copy that read them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Returns two words and sets them to 0.
    pub(super) fn take_words(&self, offset: usize) -> [u64; 2] {
        assert!(offset.is_multiple_of(8) && offset + 16 <= self.len, "{offset} of {}", self.len);
        let words = self.start.wrapping_add(offset).cast::<u64>();
        // SAFETY: inside the memory and aligned, by the assertion; volatile, because a GPU writes them.
        unsafe {
            let found = [words.read_volatile(), words.add(1).read_volatile()];
            words.write_volatile(0);
            words.add(1).write_volatile(0);
            found
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it came from `malloc_host`; all queued work on it has been waited for. A failure only leaks it.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// The buffers of one direction.
pub(super) struct Staging {
    context: Arc<CudaContext>,
    ring: Mutex<Ring>,
}

/// Buffers that copies use by turns, also short ones of a single piece, so that each may begin while the one before is still
/// moved.
#[derive(Default)]
struct Ring {
    /// They are allocated when they are first used.
    buffers: Vec<Buffer>,
    /// Number of pieces so far.
    pieces: usize,
}

struct Buffer {
    memory: Pinned,
    /// Happens when the GPU has finished its last copy with this buffer.
    moved: CudaEvent,
}

impl Staging {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: context.clone(), ring: Mutex::default() }
    }

    /// Queues a copy of `src` to the GPU's `address`. `src` is no longer needed when this returns.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn upload(&self, stream: &CudaStream, address: u64, src: &[u8]) -> Result<()> {
        let mut ring = self.ring.lock();
        for (i, piece) in src.chunks(PIECE).enumerate() {
            let place = ring.pieces;
            ring.pieces += 1;
            let buffer = self.buffer(&mut ring, place)?;
            buffer.moved.synchronize().during("waiting for a copy")?;
            let pinned = &mut buffer.memory.bytes_mut()[..piece.len()];
            move_bytes(pinned, piece);
            // SAFETY: the slot has room for all of `src` from `address` on (checked when the copy was queued); the
            // buffer is not written again before `moved` has happened.
            unsafe { result::memcpy_htod_async(address + (i * PIECE) as u64, pinned, stream.cu_stream()) }
                .during("copying to the GPU")?;
            buffer.moved.record(stream).during("recording an event")?;
        }
        Ok(())
    }

    /// Copies from the GPU's `address` to `dst`, and waits until that is done.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn download(&self, stream: &CudaStream, address: u64, dst: &mut [u8]) -> Result<()> {
        let mut ring = self.ring.lock();
        let (pieces, first) = (dst.len().div_ceil(PIECE), ring.pieces);
        ring.pieces += pieces;
        for i in 0..pieces + BUFFERS - 1 {
            // The oldest piece must leave its buffer before the buffer is used again.
            if let Some(out) = i.checked_sub(BUFFERS - 1) {
                let dst = &mut dst[out * PIECE..];
                let len = dst.len().min(PIECE);
                let buffer = self.buffer(&mut ring, first + out)?;
                buffer.moved.synchronize().during("waiting for a copy")?;
                move_bytes(&mut dst[..len], &buffer.memory.bytes()[..len]);
            }
            if i < pieces {
                let len = (dst.len() - i * PIECE).min(PIECE);
                let buffer = self.buffer(&mut ring, first + i)?;
                let pinned = &mut buffer.memory.bytes_mut()[..len];
                // SAFETY: the slot has as many bytes from `address` on; the buffer is not read before `moved` has
                // happened.
                unsafe { result::memcpy_dtoh_async(pinned, address + (i * PIECE) as u64, stream.cu_stream()) }
                    .during("copying from the GPU")?;
                buffer.moved.record(stream).during("recording an event")?;
            }
        }
        Ok(())
    }

    fn buffer<'a>(&self, ring: &'a mut Ring, piece: usize) -> Result<&'a mut Buffer> {
        let index = piece % BUFFERS;
        while ring.buffers.len() <= index {
            let moved = self.context.new_event(None).during("making an event")?;
            ring.buffers.push(Buffer { memory: Pinned::new(PIECE)?, moved });
        }
        Ok(&mut ring.buffers[index])
    }
}

/// Copies bytes with all cores, because one core is slower than a GPU's link.
fn move_bytes(dst: &mut [u8], src: &[u8]) {
    if src.len() <= TASK {
        dst.copy_from_slice(src);
    } else {
        dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each(|(dst, src)| dst.copy_from_slice(src));
    }
}
