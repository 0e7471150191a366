//! Matrices of predictions whose memory is used again.

use ndarray::{ArcArray2, Array2};

/// Memory of earlier matrices, once nobody reads them any more.
#[derive(Debug, Default)]
pub(super) struct SpareRows {
    /// The matrices of the last batch.
    lent: Vec<ArcArray2<f32>>,
    free: Vec<Vec<f32>>,
}

impl SpareRows {
    /// Begins a batch: takes back the matrices of the batch before that nobody reads. The others belong to their readers.
    pub(super) fn next_batch(&mut self) {
        let unread = self.lent.drain(..).filter_map(|matrix| matrix.try_into_owned_nocopy().ok());
        self.free = unread.map(|matrix| matrix.into_raw_vec_and_offset().0).collect();
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
        self.lent.push(shared.clone());
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
        drop((second, third));
        assert_eq!(made(90).1, other, "the second one is forgotten");
        assert_ne!(made(9).1, other, "it is far too large");
        spare.next_batch();
        assert!(spare.lent.is_empty() && spare.free.len() == 1 && spare.free[0].capacity() < 100, "one batch is kept");
    }
}
