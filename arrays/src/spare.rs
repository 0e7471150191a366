//! Buffers that are used again and again. The system clears memory that it gives out anew, page by page, which takes longer
//! than to write it once.

use std::sync::Arc;

use bytemuck::Pod;

use crate::aligned::serves;
use crate::{AlignedBytes, NoHostMemory, Shared};

/// Shorter buffers get memory of their own: there, the allocator is as fast.
const SMALLEST: usize = 1 << 16;

/// Arrays that were lent, and the most of them that are kept while nobody reads them. An array that nobody reads any more
/// gives its memory to the next one that needs as much, or hardly less.
#[derive(Debug, Default)]
pub struct SpareArrays {
    kept: Vec<Arc<AlignedBytes>>,
    most: usize,
}

impl SpareArrays {
    /// Keeps at most `most` arrays that nobody reads.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most }
    }

    /// Returns a buffer of this length. Its contents are any bytes.
    ///
    /// # Errors
    /// [`NoHostMemory`] if there is no such buffer and the allocator refuses.
    pub fn take(&mut self, len: usize) -> Result<AlignedBytes, NoHostMemory> {
        let fits = |kept: &Arc<AlignedBytes>| Arc::strong_count(kept) == 1 && serves(kept.capacity(), len);
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        let place = fitting.min_by_key(|(_, kept)| kept.len().abs_diff(len)).map(|(place, _)| place);
        match place.and_then(|place| Arc::try_unwrap(self.kept.remove(place)).ok()) {
            Some(mut buffer) => {
                buffer.resize(len);
                Ok(buffer)
            }
            None => AlignedBytes::zeroed(len),
        }
    }

    /// Returns the contents of a buffer, and keeps the buffer for later.
    pub fn lend(&mut self, buffer: AlignedBytes) -> Shared<u8> {
        if buffer.len() < SMALLEST {
            return buffer.into();
        }
        let (len, buffer) = (buffer.len(), Arc::new(buffer));
        self.kept.push(buffer.clone());
        let mut idle = self.kept.iter().filter(|kept| Arc::strong_count(kept) == 1).count();
        // The oldest first.
        self.kept.retain(|kept| {
            let is_dropped = idle > self.most && Arc::strong_count(kept) == 1;
            idle -= usize::from(is_dropped);
            !is_dropped
        });
        Shared::from_owner(buffer, 0, len).expect("bytes are aligned, and as many")
    }

    /// Returns an array of `len` elements that `fill` has written. Before, they are any numbers.
    ///
    /// # Errors
    /// As [`SpareArrays::take`].
    pub fn filled<T: Pod + Send + Sync>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Shared<T>, NoHostMemory> {
        let mut buffer = self.take(len.saturating_mul(size_of::<T>()))?;
        fill(buffer.as_mut_slice());
        Ok(self.lend(buffer).cast())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_used_again_once_nobody_reads_it() {
        let (mut spare, len) = (SpareArrays::new(4), SMALLEST);
        let mut buffer = spare.take(len).unwrap();
        buffer.as_mut_slice::<u8>().fill(1);
        let read = spare.lend(buffer);
        assert_eq!(spare.take(len).unwrap().as_slice::<u8>()[0], 0, "the first one is still read");
        assert!(read.len() == len && read.iter().all(|&byte| byte == 1));
        drop(read);
        assert_eq!(spare.take(len + 1).unwrap().as_slice::<u8>()[0], 0, "it is too short");
        assert_eq!(spare.take(len / 2).unwrap().as_slice::<u8>()[0], 0, "it is far too long");
        let again = spare.take(len - 8).unwrap();
        assert!(again.as_slice::<u8>()[0] == 1 && again.len() == len - 8, "it is used again");
        assert!(spare.kept.is_empty());
    }

    #[test]
    fn filled_arrays_have_the_same_memory_in_turns() {
        let mut spare = SpareArrays::new(4);
        let make = |spare: &mut SpareArrays, first: u32| {
            spare.filled(1 << 20, |numbers: &mut [u32]| (first..).zip(numbers).for_each(|(i, x)| *x = i)).unwrap()
        };
        let (mut last, mut addresses) = (make(&mut spare, 0), Vec::new());
        for first in 1..9 {
            // The array before is still read.
            let next = make(&mut spare, first);
            assert!(next[0] == first && last[9] == first + 8);
            addresses.push(next.as_ptr().addr());
            last = next;
        }
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 2);
    }

    #[test]
    fn few_arrays_are_kept() {
        let mut spare = SpareArrays::new(4);
        let new = |len: usize| AlignedBytes::zeroed(len).unwrap();
        let read: Vec<Shared<u8>> = (0..9).map(|i| spare.lend(new(SMALLEST + i))).collect();
        assert_eq!(spare.kept.len(), 9);
        drop(read);
        let _read = spare.lend(new(SMALLEST));
        assert_eq!(spare.kept.len(), 5);
        let lengths: Vec<usize> = spare.kept.iter().map(|kept| kept.len() - SMALLEST).collect();
        assert_eq!(lengths, [5, 6, 7, 8, 0]);
        let short = spare.lend(new(8));
        assert!(short.len() == 8 && spare.kept.len() == 5);
    }
}
