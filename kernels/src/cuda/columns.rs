//! How many columns of its sources a gather adds at a time, so that they stay in the L2 cache of a GPU.

use crate::storage_type::StorageType;

/// The properties of a gather that its time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) edges: usize,
    pub(super) sources: usize,
    pub(super) d: usize,
    pub(super) stored: StorageType,
    pub(super) weighted: bool,
}

/// Returns how many columns of a gather's sources may be added at a time so that they stay in a cache of `cache_bytes`:
/// the most that leave a quarter for other data, then a half and a quarter of them, but at least one cache line of each
/// row. Returns nothing if all columns fit, or if not even one line does.
pub(super) fn columns_to_try(shape: &Shape, cache_bytes: usize) -> Vec<usize> {
    const LINE_BYTES: usize = 128;
    const MOST: usize = 3;
    let &Shape { sources, edges, d, stored, .. } = shape;
    let line = LINE_BYTES / stored.byte_count();
    let bytes = |columns: usize| sources.saturating_mul(columns).saturating_mul(stored.byte_count());
    // A source that is read only once or twice gains nothing from a cache.
    if bytes(d) <= cache_bytes || edges < 2 * sources {
        return Vec::new();
    }
    let fits = |columns: &usize| *columns < d && bytes(*columns) <= cache_bytes / 4 * 3;
    let fitting: Vec<usize> = std::iter::successors(Some(line), |columns| Some(columns * 2)).take_while(fits).collect();
    fitting.into_iter().rev().take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(stored: StorageType, [sources, edges, d]: [usize; 3]) -> Vec<usize> {
        columns_to_try(&Shape { rows: sources, edges, sources, d, stored, weighted: false }, 60_000_000)
    }

    #[test]
    fn columns_fit_the_cache_and_fill_lines() {
        let reddit = |d| columns(StorageType::F32, [232_965, 114_615_892, d]);
        assert_eq!([reddit(41), reddit(128), reddit(602)], [vec![], vec![32], vec![32]]);
        assert_eq!(columns(StorageType::F32, [2_449_029, 123_718_280, 256]), [0; 0]);
        assert_eq!(columns(StorageType::F32, [50_000, 1_000_000, 602]), [128, 64, 32]);
        assert_eq!(columns(StorageType::F32, [50_000, 60_000, 602]), [0; 0]);
        // Half the bytes per cell: twice the columns, or all of them.
        let reddit = |d| columns(StorageType::Bf16, [232_965, 114_615_892, d]);
        assert_eq!([reddit(128), reddit(256), reddit(602)], [vec![], vec![64], vec![64]]);
    }
}
