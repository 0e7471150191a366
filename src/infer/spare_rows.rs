//! Matrices of predictions whose memory is used again.

use std::collections::VecDeque;

use ndarray::{ArcArray2, Array2};

/// Batches whose matrices are remembered. The next one may run before the predictions of the last one are read.
const MOST_BATCHES: usize = 2;

/// Memory of earlier matrices, once nobody reads them any more.
#[derive(Debug, Default)]
pub(super) struct SpareRows {
    /// The matrices of the last batches, the latest last.
    lent: VecDeque<Vec<ArcArray2<f32>>>,
    free: Vec<Vec<f32>>,
}

impl SpareRows {
    /// Begins a batch: takes back the matrices of the batches before that nobody reads. Those of older batches belong to their
    /// readers.
    pub(super) fn next_batch(&mut self) {
        let mut unread = Vec::new();
        let matrices = self.lent.iter().map(Vec::len).max().unwrap_or(0);
        for batch in &mut self.lent {
            for matrix in std::mem::take(batch) {
                match matrix.try_into_owned_nocopy() {
                    Ok(matrix) => unread.push(matrix.into_raw_vec_and_offset().0),
                    Err(matrix) => batch.push(matrix),
                }
            }
        }
        self.lent.retain(|batch| !batch.is_empty());
        self.lent.drain(..self.lent.len().saturating_sub(MOST_BATCHES - 1));
        self.lent.push_back(Vec::new());
        unread.append(&mut self.free);
        unread.truncate(MOST_BATCHES * matrices);
        self.free = unread;
    }

    /// Returns an empty vector with room for so many numbers.
    pub(super) fn take(&mut self, numbers: usize) -> Vec<f32> {
        let serves = |vec: &Vec<f32>| vec.capacity() >= numbers && vec.capacity() / 2 <= numbers;
        match self.free.iter().position(serves) {
            Some(place) => {
                let mut vec = self.free.swap_remove(place);
                vec.clear();
                vec
            }
            // Batches differ in size by little.
            None => Vec::with_capacity(numbers + numbers / 8),
        }
    }

    /// Shares a matrix. Its memory comes back with the next batch, if nobody reads it then.
    pub(super) fn lend(&mut self, matrix: Array2<f32>) -> ArcArray2<f32> {
        let shared = matrix.into_shared();
        self.lent.back_mut().expect("a batch has begun").push(shared.clone());
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let mut spare = SpareRows::default();
        let mut made = |rows: usize| {
            spare.next_batch();
            let mut cells = spare.take(2 * rows);
            cells.resize(2 * rows, 1.0);
            let address = cells.as_ptr().addr();
            let matrix = Array2::from_shape_vec((rows, 2), cells).expect("as many cells");
            (spare.lend(matrix), address)
        };
        let (first, address) = made(100);
        drop(first);
        // If the memory were free now, this would take it.
        let _other = Vec::<f32>::with_capacity(225);
        let (second, again) = made(90);
        assert_eq!(again, address);
        let (third, other) = made(90);
        assert_ne!(other, address, "the second one is still read");
        let (fourth, last) = made(90);
        assert!(![address, other].contains(&last), "both are still read");
        drop((second, third, fourth));
        assert!([other, last].contains(&made(90).1), "the second one is forgotten");
        assert!(![other, last].contains(&made(9).1), "they are far too large");
        spare.next_batch();
        let capacities: Vec<usize> = spare.free.iter().map(Vec::capacity).collect();
        assert!(spare.free.len() <= MOST_BATCHES && capacities.contains(&20), "{capacities:?}");
    }
}
