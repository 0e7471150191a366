//! Chooses the faster of two ways to run a gather on this GPU. Both are measured the first time that such a gather
//! runs.
//!
//! With wide rows, the matrix of sources does not fit any cache. A few of its columns at a time may fit the L2 cache,
//! which all multiprocessors share; but then the graph is read once per group of columns. Both ways give the same bits.

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

/// The columns per group, and the seconds of the gather by whole rows and by groups of columns.
#[derive(Clone, Copy, Debug)]
struct Tried {
    columns: usize,
    seconds: [f64; 2],
}

#[derive(Default)]
pub(super) struct Autotune(Mutex<HashMap<Shape, Tried>>);

impl Autotune {
    /// Returns whether groups of columns are faster, if both were measured.
    pub(super) fn by_columns(&self, shape: &Shape) -> Option<bool> {
        self.0.lock().get(shape).map(|tried| tried.seconds[1] < tried.seconds[0])
    }

    /// Stores the measured seconds of both ways.
    pub(super) fn keep(&self, shape: Shape, columns: usize, seconds: [f64; 2]) {
        self.0.lock().insert(shape, Tried { columns, seconds });
    }

    /// Returns all measurements, as lines of text.
    pub(super) fn told(&self) -> Vec<String> {
        let line = |(shape, tried): (&Shape, &Tried)| {
            let Shape { rows, edges, sources, d, stored, weighted } = shape;
            let [whole_ms, columns_ms] = tried.seconds.map(|seconds| 1e3 * seconds);
            format!(
                "gather of {rows} rows, {edges} edges, {sources} sources, width {d}{}{}: {whole_ms:.3} ms by whole rows, \
                 {columns_ms:.3} ms by {} columns at a time",
                if *stored == StorageType::F32 { "" } else { " in bf16" },
                if *weighted { ", weighted" } else { "" },
                tried.columns
            )
        };
        let mut lines: Vec<String> = self.0.lock().iter().map(line).collect();
        lines.sort();
        lines
    }
}

/// Returns how many columns of a gather's sources fit a cache of `cache_bytes`, with a quarter left for other data: at
/// least one cache line of each row. Returns `None` if all columns fit, or if not even one line does.
pub(super) fn columns_at_a_time(shape: &Shape, cache_bytes: usize) -> Option<usize> {
    const LINE_BYTES: usize = 128;
    let &Shape { sources, edges, d, stored, .. } = shape;
    let line = LINE_BYTES / stored.byte_count();
    let bytes = |columns: usize| sources.saturating_mul(columns).saturating_mul(stored.byte_count());
    // A source that is read only once or twice gains nothing from a cache.
    if bytes(d) <= cache_bytes || edges < 2 * sources {
        return None;
    }
    let fits = |columns: &usize| *columns < d && bytes(*columns) <= cache_bytes / 4 * 3;
    std::iter::successors(Some(line), |columns| Some(columns * 2)).take_while(fits).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(stored: StorageType, [sources, edges, d]: [usize; 3]) -> Option<usize> {
        columns_at_a_time(&Shape { rows: sources, edges, sources, d, stored, weighted: false }, 60_000_000)
    }

    #[test]
    fn columns_fit_the_cache_and_fill_lines() {
        let reddit = |d| columns(StorageType::F32, [232_965, 114_615_892, d]);
        assert_eq!([reddit(41), reddit(128), reddit(602)], [None, Some(32), Some(32)]);
        assert_eq!(columns(StorageType::F32, [2_449_029, 123_718_280, 256]), None);
        assert_eq!(columns(StorageType::F32, [50_000, 1_000_000, 602]), Some(128));
        assert_eq!(columns(StorageType::F32, [50_000, 60_000, 602]), None);
        // Half the bytes per cell: twice the columns, or all of them.
        let reddit = |d| columns(StorageType::Bf16, [232_965, 114_615_892, d]);
        assert_eq!([reddit(128), reddit(256), reddit(602)], [None, Some(64), Some(64)]);
    }
}
