//! Matrices on the host whose rows change between runs, and which runs read.

use std::sync::Arc;

use half::bf16;
use lapidary_kernels::storage_type::round;
use lapidary_kernels::{AlignedBytes, HostSlot, NoHostMemory, Shared, SpareArrays, StorageType};
use ndarray::Array2;
use rayon::prelude::*;

use crate::lower::{ROWS_A_TASK, take};

/// A matrix as it is stored on a device.
#[derive(Debug)]
pub(super) struct StoredRows {
    bytes: Arc<AlignedBytes>,
    row_bytes: usize,
}

impl StoredRows {
    /// Stores a matrix.
    ///
    /// # Errors
    /// [`NoHostMemory`].
    pub(super) fn new(rows: &Array2<f32>, dtype: StorageType) -> Result<Self, NoHostMemory> {
        let (cells, width) = (rows.as_slice().expect("it is row-major"), rows.ncols());
        let size = dtype.byte_count();
        let mut bytes = AlignedBytes::zeroed(cells.len() * size)?;
        match dtype {
            StorageType::F32 => bytes.as_mut_slice().copy_from_slice(cells),
            StorageType::Bf16 => round(cells, bytes.as_mut_slice::<bf16>()),
        }
        Ok(Self { bytes: Arc::new(bytes), row_bytes: width * size })
    }

    /// Returns the whole matrix, without a copy.
    pub(super) fn all(&self) -> HostSlot {
        let bytes = Shared::from_owner(self.bytes.clone(), 0, self.bytes.len());
        HostSlot::Constant(bytes.expect("bytes are aligned, and as many"))
    }

    /// Returns a copy of some rows.
    ///
    /// # Errors
    /// [`NoHostMemory`].
    pub(super) fn some(&self, rows: &[u32], spare: &mut SpareArrays) -> Result<HostSlot, NoHostMemory> {
        let mut some = spare.take(rows.len() * self.row_bytes)?;
        take(self.bytes.as_slice(), rows, self.row_bytes, some.as_mut_slice::<u8>());
        Ok(HostSlot::Constant(spare.lend(some)))
    }

    /// Replaces some rows. If a run still held the matrix, it would be copied; none does after its end.
    pub(super) fn replace(&mut self, rows: ChangedRows<'_>, with: &[u8]) {
        replace_rows(Arc::make_mut(&mut self.bytes).as_mut_slice(), self.row_bytes, rows, with);
    }
}

/// Rows that change, ascending, and where their new contents are.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChangedRows<'a> {
    /// In a matrix of these rows alone.
    Alone(&'a [u32]),
    /// In a matrix of all rows.
    OfAll(&'a [u32]),
}

/// Replaces some rows of a matrix with `width` columns.
pub(super) fn replace_rows<T: Copy + Send + Sync>(all: &mut [T], width: usize, rows: ChangedRows<'_>, with: &[T]) {
    let (rows, alone) = match rows {
        ChangedRows::Alone(rows) => (rows, true),
        ChangedRows::OfAll(rows) => (rows, false),
    };
    let width = width.max(1);
    // Each task gets so many rows of the matrix that it copies about `ROWS_A_TASK` rows.
    let together = (all.len() / width * ROWS_A_TASK).div_ceil(rows.len().max(1)).max(1);
    all.par_chunks_mut(together * width).enumerate().for_each(|(task, all)| {
        let first = task * together;
        let [start, end] = [first, first + together].map(|row| rows.partition_point(|&v| (v as usize) < row));
        for (&v, place) in rows[start..end].iter().zip(start..) {
            let from = if alone { place } else { v as usize };
            all[(v as usize - first) * width..][..width].copy_from_slice(&with[from * width..][..width]);
        }
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_replaced_in_place_and_lent_ones_are_not_touched() {
        let matrix = Array2::from_shape_fn((5, 3), |(v, c)| (10 * v + c) as f32);
        let mut stored = StoredRows::new(&matrix, StorageType::F32).unwrap();
        let address = stored.bytes.as_slice::<u8>().as_ptr().addr();
        stored.replace(ChangedRows::Alone(&[1, 3]), bytemuck::cast_slice(&[4.0f32, 5.0, 6.0, 1.0, 2.0, 3.0]));
        assert_eq!(stored.bytes.as_slice::<u8>().as_ptr().addr(), address, "nobody held it");
        let some = stored.some(&[1, 3, 4], &mut SpareArrays::new(1)).unwrap();
        assert_eq!(some.to_vec::<f32>(), [4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 40.0, 41.0, 42.0]);
        let held = stored.all();
        stored.replace(ChangedRows::Alone(&[1]), bytemuck::cast_slice(&[7.0f32; 3]));
        assert_eq!((held.to_vec::<f32>()[3], stored.all().to_vec::<f32>()[3]), (4.0, 7.0));
    }

    #[test]
    fn any_ascending_rows_are_replaced() {
        for rows in [1usize, 2, 300, 5000] {
            for step in [1, 3, 170] {
                let mut all = vec![0u32; rows * 2];
                let some: Vec<u32> = (0..rows as u32).step_by(step).collect();
                let with: Vec<u32> = some.iter().flat_map(|&v| [v + 1, v + 2]).collect();
                let mut of_all = all.clone();
                replace_rows(&mut all, 2, ChangedRows::Alone(&some), &with);
                let with: Vec<u32> = (0..rows as u32).flat_map(|v| [v + 1, v + 2]).collect();
                replace_rows(&mut of_all, 2, ChangedRows::OfAll(&some), &with);
                assert_eq!(all, of_all);
                let want = (0..rows as u32)
                    .flat_map(|v| if (v as usize).is_multiple_of(step) { [v + 1, v + 2] } else { [0, 0] });
                assert_eq!(all, want.collect::<Vec<u32>>(), "{rows} rows, one in {step}");
            }
        }
        replace_rows::<u32>(&mut [], 3, ChangedRows::Alone(&[]), &[]);
        replace_rows::<u32>(&mut [], 0, ChangedRows::OfAll(&[]), &[]);
    }

    #[test]
    fn bf16_rows_are_rounded() {
        let matrix = Array2::from_shape_fn((2, 2), |(v, c)| 1.0 + 0.001 * (2 * v + c) as f32);
        let stored = StoredRows::new(&matrix, StorageType::Bf16).unwrap();
        let want: Vec<bf16> = matrix.iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(stored.all().to_vec::<bf16>(), want);
    }
}
