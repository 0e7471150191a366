//! Copies between the host's ordinary memory and a GPU, through pinned buffers that are used again and again.
//!
//! A GPU copies by itself only from and to memory that the system keeps in place. What the host has is elsewhere: vectors,
//! mapped files. A copy goes in pieces; while the GPU moves one, the host's cores move the next.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use parking_lot::Mutex;
use rayon::prelude::*;

use super::driver::Named;
use crate::error::Result;

/// Bytes of one piece.
const PIECE: usize = 4 << 20;

/// Buffers a direction: one that the GPU moves, one that the host fills, and one between them.
const BUFFERS: usize = 3;

/// Bytes that are worth a task when the host's cores move a piece.
const TASK: usize = 256 << 10;

/// Memory of the host that stays in place and that a GPU reads and writes.
pub(super) struct Pinned {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is plain memory that one value owns.
unsafe impl Send for Pinned {}
// SAFETY: through a shared reference it is only reached by `take_words`, whose place one caller has at a time.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` bytes that can be read on the host without a penalty. The context must be current.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn new(len: usize) -> Result<Self> {
        // Portable: for every GPU; mapped: kernels may write it.
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        // SAFETY: the memory is given back when this is dropped, and not used after.
        let start = unsafe { result::malloc_host(len, PORTABLE_AND_MAPPED) }.during("pinning host memory")?;
        Ok(Self { start: start.cast(), len })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the driver gave `len` bytes; whoever reads waited for the copy that wrote them. They hold what the driver or
        // `bytes_mut` wrote: a buffer is read only where it was copied into.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; whoever writes waited for the copy that read them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Two words, which become 0.
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
        // SAFETY: it came from `malloc_host`; everything queued over it was waited for. A failure leaks it, no worse.
        let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
    }
}

/// The buffers of one direction. They are taken from the system at the first copy.
pub(super) struct Staging {
    context: Arc<CudaContext>,
    buffers: Mutex<Vec<Buffer>>,
}

struct Buffer {
    memory: Pinned,
    /// When the GPU has moved what it was last given.
    moved: CudaEvent,
}

impl Staging {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: context.clone(), buffers: Mutex::default() }
    }

    /// Queues a copy of `src` to the GPU's `address`. `src` is not needed any more when this returns.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn upload(&self, stream: &CudaStream, address: u64, src: &[u8]) -> Result<()> {
        let mut buffers = self.buffers.lock();
        for (i, piece) in src.chunks(PIECE).enumerate() {
            let buffer = self.buffer(&mut buffers, i)?;
            buffer.moved.synchronize().during("waiting for a copy")?;
            let pinned = &mut buffer.memory.bytes_mut()[..piece.len()];
            move_bytes(pinned, piece);
            // SAFETY: the slot has room for all of `src` from `address` on (checked when it was queued); the buffer is not
            // written again before `moved` has happened.
            unsafe { result::memcpy_htod_async(address + (i * PIECE) as u64, pinned, stream.cu_stream()) }
                .during("copying to the GPU")?;
            buffer.moved.record(stream).during("recording an event")?;
        }
        Ok(())
    }

    /// Copies from the GPU's `address` to `dst`, and waits for it.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn download(&self, stream: &CudaStream, address: u64, dst: &mut [u8]) -> Result<()> {
        let mut buffers = self.buffers.lock();
        let pieces = dst.len().div_ceil(PIECE);
        for i in 0..pieces + BUFFERS - 1 {
            // The oldest piece comes out before its buffer is given another.
            if let Some(out) = i.checked_sub(BUFFERS - 1) {
                let dst = &mut dst[out * PIECE..];
                let len = dst.len().min(PIECE);
                let buffer = self.buffer(&mut buffers, out)?;
                buffer.moved.synchronize().during("waiting for a copy")?;
                move_bytes(&mut dst[..len], &buffer.memory.bytes()[..len]);
            }
            if i < pieces {
                let len = (dst.len() - i * PIECE).min(PIECE);
                let buffer = self.buffer(&mut buffers, i)?;
                let pinned = &mut buffer.memory.bytes_mut()[..len];
                // SAFETY: the slot has as many bytes from `address` on; the buffer is not read before `moved` has happened.
                unsafe { result::memcpy_dtoh_async(pinned, address + (i * PIECE) as u64, stream.cu_stream()) }
                    .during("copying from the GPU")?;
                buffer.moved.record(stream).during("recording an event")?;
            }
        }
        Ok(())
    }

    fn buffer<'a>(&self, buffers: &'a mut Vec<Buffer>, piece: usize) -> Result<&'a mut Buffer> {
        let index = piece % BUFFERS;
        while buffers.len() <= index {
            let moved = self.context.new_event(None).during("making an event")?;
            buffers.push(Buffer { memory: Pinned::new(PIECE)?, moved });
        }
        Ok(&mut buffers[index])
    }
}

/// One core cannot keep up with a GPU's link.
fn move_bytes(dst: &mut [u8], src: &[u8]) {
    if src.len() <= TASK {
        dst.copy_from_slice(src);
    } else {
        dst.par_chunks_mut(TASK).zip(src.par_chunks(TASK)).for_each(|(dst, src)| dst.copy_from_slice(src));
    }
}
