//! Features that are larger than memory: the rows that batches read most often are kept, the others are read from their
//! file for each batch.

use std::sync::atomic::{AtomicU64, Ordering};

use lapidary_kernels::memory::AlignedBytes;
use rayon::prelude::*;

use crate::dataset::{Error, RowFile};
use crate::lower::{FeatureSource, Gathered, KeptRows};

/// Rows that one task copies.
const ROWS_A_TASK: usize = 256;

/// Rows of features, of which some are in memory.
#[derive(Debug)]
pub(crate) struct FeatureRows {
    file: RowFile,
    width: usize,
    kept: KeptRows,
    /// The rows that are kept.
    memory: AlignedBytes,
    rows_read: AtomicU64,
    bytes_read: AtomicU64,
}

impl FeatureRows {
    /// Reads the rows that are kept into memory of their size.
    ///
    /// # Errors
    /// Those of [`RowFile::read`].
    pub(super) fn new(file: RowFile, kept: KeptRows, mut memory: AlignedBytes) -> Result<Self, Error> {
        let width = file.row_bytes() as usize / size_of::<f32>();
        let cells: &mut [f32] = memory.as_mut_slice();
        file.read(kept.rows(), |place, row| {
            cells[place * width..][..width].copy_from_slice(bytemuck::cast_slice(row))
        })?;
        let [rows_read, bytes_read] = [const { AtomicU64::new(0) }; 2];
        Ok(Self { file, width, kept, memory, rows_read, bytes_read })
    }

    /// Returns how many of these rows would be read, and the bytes of it.
    ///
    /// # Cost
    /// O(rows + r log r) for r rows that would be read.
    pub(crate) fn would_read(&self, rows: &[u32]) -> [u64; 2] {
        let ids: Vec<u32> = self.missing(rows).into_iter().map(|(row, _)| row).collect();
        [ids.len() as u64, self.file.bytes_for(&ids)]
    }

    /// Returns the number of rows that were read since the last call, and the bytes of it.
    pub(super) fn reads_since(&self) -> [u64; 2] {
        [&self.rows_read, &self.bytes_read].map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// Returns the rows that have to be read, in the order of the file, each with its place in the list.
    fn missing(&self, rows: &[u32]) -> Vec<(u32, u32)> {
        let is_read = |&(row, _): &(u32, u32)| self.kept.place(row).is_none();
        let mut missing: Vec<(u32, u32)> = rows.iter().copied().zip(0..).filter(is_read).collect();
        missing.par_sort_unstable();
        missing
    }
}

impl FeatureSource for FeatureRows {
    /// Costs O(rows * width + r log r) for r rows that are read.
    fn take(&self, rows: &[u32], into: &mut [f32]) -> Gathered<()> {
        let missing = self.missing(rows);
        let ids: Vec<u32> = missing.iter().map(|&(row, _)| row).collect();
        let width = self.width;
        let bytes = self.file.read(&ids, |place, row| {
            let to = missing[place].1 as usize * width;
            into[to..to + width].copy_from_slice(bytemuck::cast_slice(row));
        })?;
        self.rows_read.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        let kept: &[f32] = self.memory.as_slice();
        let tasks = into.par_chunks_mut((ROWS_A_TASK * width).max(1)).zip(rows.par_chunks(ROWS_A_TASK));
        tasks.for_each(|(into, rows)| {
            for (to, &row) in into.chunks_exact_mut(width.max(1)).zip(rows) {
                if let Some(place) = self.kept.place(row) {
                    to.copy_from_slice(&kept[place as usize * width..][..width]);
                }
            }
        });
        Ok(())
    }
}
