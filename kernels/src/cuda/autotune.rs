//! Chooses the fastest way to run a gather on this GPU. All ways are measured the first time that such a gather runs.
//!
//! With wide rows, the matrix of sources does not fit any cache. A few of its columns at a time may fit the L2 cache,
//! which all multiprocessors share; but then the graph is read once per group of columns. All ways give the same bits.

use std::collections::HashMap;

use parking_lot::Mutex;

pub(super) use crate::cuda::columns::{Shape, columns_to_try};
use crate::storage_type::StorageType;

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

#[cfg(test)]
mod tests {
    use super::*;

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
