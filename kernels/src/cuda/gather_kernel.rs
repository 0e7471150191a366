//! The kernels of gathers: their kinds and names, and how their threads divide columns.

use super::width::Width;
use crate::storage_type::StorageType;

/// Which of the gathers of `gather.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GatherKind {
    pub(super) weighted: bool,
    /// Whether the sources are a window of all, or are in two matrices.
    pub(super) split: bool,
}

impl GatherKind {
    /// Returns the name of the kernel that divides columns so; see the end of `gather.cu`.
    pub(super) fn kernel(self, division: &Division) -> &'static str {
        macro_rules! name {
            ($variant:literal) => {
                [
                    concat!("gather_", $variant),
                    concat!("gather_weighted_", $variant),
                    concat!("gather_split_", $variant),
                    concat!("gather_weighted_split_", $variant),
                ]
            };
        }
        let names = match (division.width.vector, division.tiles) {
            (8, _) => name!("8x1"),
            (4, 1) => name!("4x1"),
            (4, _) => name!("4x2"),
            (2, 1) => name!("2x1"),
            (2, 2) => name!("2x2"),
            (2, _) => name!("2x4"),
            (_, 1) => name!("1x1"),
            (_, 2) => name!("1x2"),
            _ => name!("1x4"),
        };
        names[usize::from(self.weighted) + 2 * usize::from(self.split)]
    }
}

/// How a gather divides its columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub(super) width: Width,
    /// Loads per row of each thread.
    pub(super) tiles: usize,
    /// Slices of the grid. Each reads all indices.
    pub(super) slices: usize,
    /// Columns of a slice.
    pub(super) columns: usize,
}

impl Division {
    /// Divides rows of `d` columns, at least 1, into slices of about `columns`.
    pub(super) fn of(d: usize, stored: StorageType, columns: usize) -> Self {
        let width = Width::of_columns(columns, Width::of(d, stored).vector);
        let tiles = width.tiles(columns);
        let columns = (tiles * width.lanes * width.vector).min(d);
        Self { width, tiles, slices: d.div_ceil(columns), columns }
    }
}
