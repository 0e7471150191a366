//! Buffers for messages that arrive, used again and again. An epoch has the same messages as the one before, and the
//! system clears memory that it gives out anew.

use std::sync::Arc;

use lapidary_kernels::{AlignedBytes, Shared};

/// Shorter messages get memory of their own: there, the allocator is as fast.
const SMALLEST: usize = 1 << 16;

/// The most buffers that are kept while nobody reads them.
const MOST: usize = 4;

/// Buffers of messages that were delivered. Those that nobody reads any more can be used again.
#[derive(Default)]
pub(super) struct Spare(Vec<Arc<AlignedBytes>>);

impl Spare {
    /// Returns a buffer of this length. Its contents are any bytes.
    pub(super) fn take(&mut self, len: usize) -> AlignedBytes {
        let fits = |kept: &Arc<AlignedBytes>| kept.len() == len && Arc::strong_count(kept) == 1;
        let found = self.0.iter().position(fits).map(|place| self.0.remove(place));
        let found = found.and_then(|kept| Arc::try_unwrap(kept).ok());
        found.unwrap_or_else(|| AlignedBytes::zeroed(len).expect("the host has memory for a message"))
    }

    /// Returns the contents of a buffer, and keeps the buffer for later.
    pub(super) fn lend(&mut self, buffer: AlignedBytes) -> Shared<u8> {
        if buffer.len() < SMALLEST {
            return buffer.into();
        }
        let (len, buffer) = (buffer.len(), Arc::new(buffer));
        self.0.push(buffer.clone());
        let mut idle = self.0.iter().filter(|kept| Arc::strong_count(kept) == 1).count();
        // The oldest first.
        self.0.retain(|kept| {
            let is_dropped = idle > MOST && Arc::strong_count(kept) == 1;
            idle -= usize::from(is_dropped);
            !is_dropped
        });
        Shared::from_owner(buffer, 0, len).expect("bytes are aligned, and as many")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_once_nobody_reads_it() {
        let (mut spare, len) = (Spare::default(), SMALLEST);
        let mut buffer = spare.take(len);
        buffer.as_mut_slice::<u8>().fill(1);
        let read = spare.lend(buffer);
        assert_eq!(spare.take(len).as_slice::<u8>()[0], 0, "the first one is still read");
        assert!(read.len() == len && read.iter().all(|&byte| byte == 1));
        drop(read);
        assert_eq!(spare.take(len + 1).as_slice::<u8>()[0], 0, "it has another length");
        assert_eq!(spare.take(len).as_slice::<u8>()[0], 1, "it is used again");
        assert!(spare.0.is_empty());
    }

    #[test]
    fn few_buffers_are_kept() {
        let mut spare = Spare::default();
        let read: Vec<Shared<u8>> =
            (0..9).map(|i| spare.lend(AlignedBytes::zeroed(SMALLEST + i).expect("memory"))).collect();
        assert_eq!(spare.0.len(), 9);
        drop(read);
        let _read = spare.lend(AlignedBytes::zeroed(SMALLEST).expect("memory"));
        assert_eq!(spare.0.len(), MOST + 1);
        let lengths: Vec<usize> = spare.0.iter().map(|kept| kept.len() - SMALLEST).collect();
        assert_eq!(lengths, [5, 6, 7, 8, 0]);
        let short = spare.lend(AlignedBytes::zeroed(8).expect("memory"));
        assert!(short.len() == 8 && spare.0.len() == MOST + 1);
    }
}
