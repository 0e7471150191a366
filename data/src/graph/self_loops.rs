//! The self-loops of a graph, by vertex.

use std::ops::Range;

use rayon::prelude::*;

use super::rows::GraphRows;

/// The self-loops of some rows of a graph, so that those of fewer rows are counted without looking at edges again.
#[derive(Clone, Debug, Default)]
pub struct SelfLoops {
    /// The vertices with self-loops, ascending.
    vertices: Vec<u32>,
    /// For each of them, the number of self-loops up to and including its own.
    up_to: Vec<u64>,
}

impl SelfLoops {
    /// Counts the self-loops of these rows.
    ///
    /// # Cost
    /// O(rows log d), in parallel. Takes 12 bytes for each vertex with a self-loop.
    pub fn of(rows: &GraphRows) -> Self {
        let looped = rows.range().into_par_iter().map(|v| (v as u32, rows.loops_at(v) as u64));
        let looped: Vec<(u32, u64)> = looped.filter(|(_, loops)| *loops > 0).collect();
        let (vertices, loops): (Vec<u32>, Vec<u64>) = looped.into_iter().unzip();
        let sum = |sum: &mut u64, loops: u64| {
            *sum += loops;
            Some(*sum)
        };
        Self { vertices, up_to: loops.into_iter().scan(0, sum).collect() }
    }

    /// Returns the number of self-loops at a range of vertices.
    ///
    /// # Cost
    /// O(log n).
    pub fn within(&self, range: &Range<usize>) -> u64 {
        let before = |end: usize| match self.vertices.partition_point(|&v| (v as usize) < end) {
            0 => 0,
            count => self.up_to[count - 1],
        };
        before(range.end) - before(range.start)
    }
}
