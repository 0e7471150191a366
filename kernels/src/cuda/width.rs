//! How the threads of a GPU divide the columns of a row.

use crate::storage_type::StorageType;

/// Threads per warp.
pub(super) const WARP: usize = 32;

/// How the threads of a group divide a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    /// Cells per load.
    pub(super) vector: usize,
    /// Threads per row: a power of two.
    pub(super) lanes: usize,
}

impl Width {
    /// Chooses as many cells per load as 16 bytes hold, if the row length is a multiple of that.
    pub(super) fn of(d: usize, stored: StorageType) -> Self {
        let vector = match d {
            _ if d.is_multiple_of(8) && stored == StorageType::Bf16 => 8,
            _ if d.is_multiple_of(4) => 4,
            _ => 2 - d % 2,
        };
        Self::of_columns(d, vector)
    }

    /// Returns how a group divides `columns` columns of a row that is read by `vector` cells.
    pub(super) fn of_columns(columns: usize, vector: usize) -> Self {
        Self { vector, lanes: columns.div_ceil(vector).next_power_of_two().clamp(1, WARP) }
    }

    /// Returns the tiles that each thread of a gather keeps in registers: as many as the row needs, up to the most that
    /// the kernels support.
    pub(super) fn tiles(&self, d: usize) -> usize {
        let most = [4, 4, 2, 2, 1][self.vector / 2];
        d.div_ceil(self.vector * self.lanes).next_power_of_two().clamp(1, most)
    }
}
