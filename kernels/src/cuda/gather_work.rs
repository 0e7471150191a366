//! What a gather does on a GPU by its machine code: the instructions that it issues, and the bytes that it reads from
//! the L2 cache.

use super::columns::{Shape, columns_to_try};
use super::gather_kernel::{Division, GatherKind};
use super::machine_code::issued_per_edge;
use super::width::WARP;
use crate::storage_type::StorageType;

/// Bytes that a GPU reads from its caches at a time.
const SECTOR_BYTES: usize = 32;

/// The sizes of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherSizes {
    /// Rows that it makes.
    pub rows: usize,
    /// Edges that it follows.
    pub edges: usize,
    /// Rows that it may read.
    pub sources: usize,
    /// Columns.
    pub d: usize,
    /// Storage type of the rows.
    pub stored: StorageType,
    /// Whether each edge has a weight.
    pub weighted: bool,
    /// Whether the sources are a window of all, or are in two matrices.
    pub split: bool,
}

impl GatherSizes {
    /// Returns the bytes that a gather reads from the memory if this share of its reads of sources misses the L2 cache. Each
    /// slice reads the graph, and each source is read at least once.
    pub fn memory_bytes(&self, way: &GatherWay, misses: f64) -> f64 {
        let graph = 8 * (self.rows + 1) + if self.weighted { 8 } else { 4 } * self.edges;
        let row_bytes = (self.d * self.stored.byte_count()) as f64;
        (graph * way.slices) as f64 + row_bytes * (misses * self.edges as f64).max(self.sources as f64)
    }

    /// Returns the bytes of the sources that a slice reads again and again.
    pub fn slice_bytes(&self, way: &GatherWay) -> f64 {
        (self.sources * way.columns * self.stored.byte_count()) as f64
    }
}

/// One way to run a gather: by whole rows, or by groups of columns that fit the L2 cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherWay {
    /// Slices of columns. Each reads all indices.
    pub slices: usize,
    /// Columns of a slice.
    pub columns: usize,
    /// Instructions that warps issue for all edges. Starts, ends and row steps of rows are not counted.
    pub instructions: f64,
    /// Bytes that are read from the L2 cache, and written.
    pub l2_bytes: f64,
}

/// Returns the ways in which a GPU with an L2 cache of `cache_bytes` may run a gather, by whole rows first. A run takes
/// the faster one. Returns none for an architecture whose machine code was not counted.
///
/// Rows of fewer than a thousand edges are assumed.
pub fn gather_ways(sizes: GatherSizes, cache_bytes: usize, architecture: &str) -> Vec<GatherWay> {
    let GatherSizes { rows, edges, sources, d, stored, weighted, .. } = sizes;
    if d == 0 {
        return Vec::new();
    }
    let narrow = columns_to_try(&Shape { rows, edges, sources, d, stored, weighted }, cache_bytes);
    std::iter::once(d).chain(narrow).filter_map(|columns| way(sizes, columns, architecture)).collect()
}

/// Returns the way that divides `columns` columns at a time among the threads of a group.
fn way(sizes: GatherSizes, columns: usize, architecture: &str) -> Option<GatherWay> {
    let GatherSizes { rows, edges, d, stored, weighted, split, .. } = sizes;
    let division = Division::of(d, stored, columns);
    let Division { width, slices, columns, .. } = division;
    let of_warp = issued_per_edge(GatherKind { weighted, split }.kernel(&division), stored, architecture)?;
    let of_edges = if weighted { 8.0 } else { 4.0 } * slices as f64;
    let cells = stored.byte_count();
    // Every row begins at a multiple of this, which decides how many sectors it touches.
    let step = if (d * cells).is_multiple_of(SECTOR_BYTES) { SECTOR_BYTES } else { cells * width.vector };
    let step = step.min(SECTOR_BYTES) as f64;
    let row_bytes = (d * cells) as f64 + slices as f64 * (SECTOR_BYTES as f64 - step);
    let of_rows = (d * cells) as f64 + 8.0 * slices as f64;
    Some(GatherWay {
        slices,
        columns,
        instructions: edges as f64 * of_warp * (width.lanes * slices) as f64 / WARP as f64,
        l2_bytes: edges as f64 * (row_bytes + of_edges) + rows as f64 * of_rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDDIT: GatherSizes = GatherSizes {
        rows: 232_965,
        edges: 114_848_857,
        sources: 232_965,
        d: 16,
        stored: StorageType::F32,
        weighted: false,
        split: false,
    };

    #[test]
    fn narrow_rows_share_a_warp_and_wide_ones_have_slices() {
        let ways = gather_ways(REDDIT, 50_000_000, "sm_90");
        let [way] = ways[..] else { panic!("16 columns fit the cache: {ways:?}") };
        let of_warp = issued_per_edge("gather_4x1", StorageType::F32, "sm_90").expect("it is in the table");
        // Four threads a row, so eight rows a warp.
        assert_eq!((way.slices, way.columns), (1, 16));
        assert_eq!(way.instructions, 114_848_857.0 * of_warp / 8.0);
        assert_eq!(way.l2_bytes, 114_848_857.0 * 68.0 + 232_965.0 * 72.0);

        let wide = GatherSizes { d: 256, ..REDDIT };
        let ways = gather_ways(wide, 50_000_000, "sm_90");
        assert_eq!(ways.iter().map(|way| (way.slices, way.columns)).collect::<Vec<_>>(), [(1, 256), (8, 32)]);
        // Each of the eight slices reads the indices.
        assert_eq!(ways[1].l2_bytes - ways[0].l2_bytes, 7.0 * (4.0 * 114_848_857.0 + 8.0 * 232_965.0));
        assert_eq!(ways[1].instructions, 114_848_857.0 * of_warp * 2.0);
    }

    #[test]
    fn rows_that_begin_anywhere_touch_one_more_sector() {
        // 41 columns: 164 bytes that begin at a multiple of 4, which touch 6 sectors on average.
        let odd = GatherSizes { d: 41, rows: 0, ..REDDIT };
        let ways = gather_ways(odd, 50_000_000, "sm_90");
        assert_eq!(ways[0].l2_bytes, 114_848_857.0 * (6.0 * 32.0 + 4.0));
    }

    #[test]
    fn what_was_not_counted_has_no_ways() {
        assert_eq!(gather_ways(REDDIT, 50_000_000, "sm_61"), []);
        assert_eq!(gather_ways(GatherSizes { d: 0, ..REDDIT }, 50_000_000, "sm_90"), []);
        let weighted = GatherSizes { weighted: true, split: true, ..REDDIT };
        let [plain, weighted] = [REDDIT, weighted].map(|sizes| gather_ways(sizes, 50_000_000, "sm_90")[0]);
        assert!(weighted.instructions > plain.instructions && weighted.l2_bytes > plain.l2_bytes);
    }

    #[test]
    fn memory_has_the_graph_by_slice_and_each_source_once_or_as_often_as_it_misses() {
        let stored = StorageType::F32;
        let sizes = GatherSizes { rows: 10, edges: 100, sources: 20, d: 64, stored, weighted: false, split: false };
        let way = GatherWay { slices: 2, columns: 32, instructions: 1.0, l2_bytes: 1.0 };
        assert_eq!(sizes.memory_bytes(&way, 0.0), 2.0 * (88.0 + 400.0) + 256.0 * 20.0);
        assert_eq!(sizes.memory_bytes(&way, 0.5), 2.0 * (88.0 + 400.0) + 256.0 * 50.0);
        let weighted = GatherSizes { weighted: true, stored: StorageType::Bf16, ..sizes };
        assert_eq!(weighted.memory_bytes(&way, 0.5), 2.0 * (88.0 + 800.0) + 128.0 * 50.0);
        assert_eq!(weighted.slice_bytes(&way), 64.0 * 20.0);
    }
}
