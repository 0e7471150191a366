//! Chooses the fastest way to run a gather on this GPU. All ways are measured the first time that such a gather runs.
//!
//! With wide rows, the matrix of sources does not fit any cache. A few of its columns at a time may fit the L2 cache,
//! which all multiprocessors share; but then the graph is read once per group of columns. All ways give the same bits.

use std::collections::HashMap;

use parking_lot::Mutex;

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

/// A measured way to run a gather: the columns that it adds at a time, and its seconds.
pub(super) type Tried = (usize, f64);

#[derive(Default)]
pub(super) struct Autotune(Mutex<HashMap<Shape, Vec<Tried>>>);

impl Autotune {
    /// Returns the columns at a time of the fastest way, if the ways were measured.
    pub(super) fn fastest(&self, shape: &Shape) -> Option<usize> {
        self.0.lock().get(shape).map(|tried| fastest(tried))
    }

    /// Stores the measured ways, by whole rows first.
    pub(super) fn keep(&self, shape: Shape, tried: Vec<Tried>) {
        self.0.lock().insert(shape, tried);
    }

    /// Returns all measurements, as lines of text.
    pub(super) fn told(&self) -> Vec<String> {
        let line = |(shape, tried): (&Shape, &Vec<Tried>)| {
            let Shape { rows, edges, sources, d, stored, weighted } = shape;
            let ways = tried.iter().map(|&(columns, seconds)| match columns {
                _ if columns >= *d => format!("{:.3} ms by whole rows", 1e3 * seconds),
                _ => format!("{:.3} ms by {columns} columns at a time", 1e3 * seconds),
            });
            format!(
                "gather of {rows} rows, {edges} edges, {sources} sources, width {d}{}{}: {}",
                if *stored == StorageType::F32 { "" } else { " in bf16" },
                if *weighted { ", weighted" } else { "" },
                ways.collect::<Vec<_>>().join(", ")
            )
        };
        let mut lines: Vec<String> = self.0.lock().iter().map(line).collect();
        lines.sort();
        lines
    }
}

/// Returns the columns of the fastest way, the first one if they are equal.
fn fastest(tried: &[Tried]) -> usize {
    tried.iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("whole rows were measured").0
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
    #[test]
    fn the_fastest_way_is_used_and_all_are_told() {
        let (shape, autotune) = (
            Shape { rows: 5, edges: 9, sources: 5, d: 100, stored: StorageType::F32, weighted: true },
            Autotune::default(),
        );
        assert_eq!(autotune.fastest(&shape), None);
        autotune.keep(shape, vec![(100, 3e-3), (64, 2e-3), (32, 2.5e-3)]);
        assert_eq!(autotune.fastest(&shape), Some(64));
        let told = autotune.told().concat();
        assert!(told.ends_with(
            "width 100, weighted: 3.000 ms by whole rows, 2.000 ms by 64 columns at a time, 2.500 ms by 32 columns at a time"
        ), "{told}");
    }
}
