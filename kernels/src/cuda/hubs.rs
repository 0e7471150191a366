//! Which rows of a gather are hubs, and the blocks that sum them.

/// Columns of a hub that a block sums: `HUB_COLUMNS` of `gather.cuh`.
const COLUMNS: usize = 8;

/// Most rows among which a block looks for hubs: `HUB_ROWS` of `gather.cuh`.
const ROWS: usize = 1024;

/// Blocks that sum hubs side by side on a large GPU, and the fewest rows in which such a block looks for hubs.
const BLOCKS: usize = 512;
const LEAST_ROWS: usize = 32;

/// How a launch of a gather sums its hubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hubs {
    /// Edges of a row that is no hub, at most.
    pub(super) most_edges: u32,
    /// Groups of rows. No groups: there are no hubs.
    pub(super) groups: u32,
    /// Slices of columns in a slice of the grid. There is a block for each of them and each group.
    pub(super) slices: u32,
}

impl Hubs {
    /// Chooses them for a gather of so many edges, whose slices have `columns` columns.
    ///
    /// A block that sums a hub reads narrow pieces of rows, which takes more time in all; a group of threads takes longer
    /// for one row, which counts if it is the last to end. The limits are near the best of `bench/results/gpu_gathers.md`:
    /// 170 edges where there are ninety thousand, 1,300 where there are two million, 8,192 where there are a hundred
    /// million. A launch over few rows, such as those of a tile, has more groups than it takes to look at all rows, so that
    /// its hubs are summed side by side.
    pub(super) fn of(rows: usize, edges: usize, columns: usize) -> Self {
        let (most_edges, slices) = ((128 + (edges >> 11)).min(8192), columns.div_ceil(COLUMNS));
        let beside = (BLOCKS / slices.max(1)).min(rows.div_ceil(LEAST_ROWS));
        let groups = if edges > most_edges { rows.div_ceil(ROWS).max(beside) } else { 0 };
        let groups = u32::try_from(groups).expect("a GPU's memory has fewer rows");
        Self { most_edges: most_edges as u32, groups, slices: slices as u32 }
    }

    pub(super) fn blocks(&self) -> usize {
        self.groups as usize * self.slices as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::gather_kernel::Division;
    use crate::storage_type::StorageType;

    #[test]
    fn hubs_are_rows_that_take_much_of_the_time() {
        let graphs = [(2708, 10_556), (232_965, 114_615_892)].map(|(rows, edges)| Hubs::of(rows, edges, 41));
        assert_eq!(graphs[0], Hubs { most_edges: 133, groups: 85, slices: 6 });
        assert_eq!(graphs[1], Hubs { most_edges: 8192, groups: 228, slices: 6 });
        assert_eq!(graphs[1].blocks(), 228 * 6);
        // A tile of Reddit: its hubs are in 85 groups, where four would be enough to look at all rows.
        assert_eq!(Hubs::of(3640, 1_790_873, 41), Hubs { most_edges: 1002, groups: 85, slices: 6 });
        assert_eq!(Hubs::of(1_000, 128, 16).blocks(), 0);
    }

    #[test]
    fn slices_of_hubs_do_not_reach_into_the_next_slice_of_the_grid() {
        for stored in [StorageType::F32, StorageType::Bf16] {
            for d in 1..700 {
                for columns in [32, 64, d] {
                    let division = Division::of(d, stored, columns.min(d));
                    assert!(division.slices == 1 || division.columns.is_multiple_of(COLUMNS), "{d} by {columns}");
                }
            }
        }
    }
}
