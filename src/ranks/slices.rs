//! Sums over all parts, added by the ranks together.
//!
//! A small sum is added by every rank. Of a large one, every rank adds a slice, and tells the others: so each rank sends
//! about twice the sum in all, however many ranks there are (Rabenseifner 2004, section 3). Either way, terms are added
//! in the order of the parts.

use std::ops::Range;

/// Bytes that a rank may send for a sum that every rank adds. A second round takes at least two latencies.
const SMALL: u64 = 1 << 16;

/// How the ranks add a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slices {
    ranks: usize,
    /// Length of the sum, in numbers.
    len: usize,
    is_shared: bool,
}

impl Slices {
    /// Chooses how `ranks` ranks add a sum of `len` numbers.
    pub(crate) fn new(ranks: usize, len: usize) -> Self {
        let is_shared = ranks > 2 && 4 * len as u64 * (ranks as u64 - 1) > SMALL;
        Self { ranks, len, is_shared }
    }

    /// Whether each rank adds only its slice.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the numbers that a rank adds.
    pub(crate) fn of(&self, rank: usize) -> Range<usize> {
        if !self.is_shared {
            return 0..self.len;
        }
        let [start, end] = [rank, rank + 1].map(|i| (self.len as u128 * i as u128 / self.ranks as u128) as usize);
        start..end
    }

    /// Returns the bytes that each rank sends, with `parts` parts of its own. Slices of unequal length are rounded.
    pub(crate) fn sent_bytes(&self, parts: usize) -> u64 {
        let (others, bytes, parts) = (self.ranks as u64 - 1, 4 * self.len as u64, parts as u64);
        if self.is_shared { others * bytes * (parts + 1) / self.ranks as u64 } else { others * bytes * parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_sum_once() {
        for (ranks, len) in [(1, 10), (2, 1 << 20), (3, 100_000), (7, 100_003), (64, 1 << 20), (64, 1)] {
            let slices = Slices::new(ranks, len);
            let all: Vec<Range<usize>> = (0..ranks).map(|rank| slices.of(rank)).collect();
            if slices.is_shared() {
                assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
                assert_eq!((all[0].start, all[ranks - 1].end), (0, len));
            } else {
                assert!(all.iter().all(|slice| *slice == (0..len)));
            }
        }
        assert!(Slices::new(64, 1 << 20).is_shared() && !Slices::new(2, 1 << 20).is_shared());
        assert_eq!(Slices::new(64, 1 << 20).sent_bytes(1), 63 * (4 << 20) * 2 / 64);
    }
}
