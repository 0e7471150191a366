//! How likely it is that a neighbour's row is not in a cache when it is read.
//!
//! What a gather costs an edge depends more on this than on anything that a vertex's own list tells: a graph whose rows
//! fit a cache takes a fifth of the time, and on a skewed one a few popular rows serve most edges. The model is Che's:
//! sources are drawn independently, each as often as it has out-edges, and a cache of K rows evicts the least recently
//! used. A source with the share p of the edges is then missing with the chance exp(-p t), where t, the time that a row
//! stays, is such that K rows are expected in the cache. A cache of pages is the same, with the rows of a page for a row.
//!
//! # Source
//! Che, Tung & Wang, "Hierarchical web caching systems" (2002), equation 4.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use crate::error::SumsError;

/// A chance of 1. Chances are whole numbers of this, so that their sums are exact.
pub(crate) const CERTAIN: u8 = 255;

/// Degrees below this are counted in a table; the few above are listed.
const TABLE: usize = 1 << 16;

/// How many sources have each out-degree.
pub(crate) struct Popularity {
    degrees: Vec<u32>,
    /// Distinct degrees above 0 and how many sources have each.
    counts: Vec<(f64, f64)>,
}

impl Popularity {
    /// Counts the out-edges of the sources `0..n`.
    ///
    /// # Cost
    /// One parallel pass over the edges, with a random access each; 4 n bytes.
    /// # Errors
    /// [`SumsError::Source`].
    pub(crate) fn new(n: usize, indices: &[u32]) -> Result<Self, SumsError> {
        let degrees: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
        indices.par_iter().enumerate().try_for_each(|(position, &u)| match degrees.get(u as usize) {
            Some(degree) => {
                degree.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            None => Err(SumsError::Source { position, found: u, vertices: n }),
        })?;
        Ok(Self::of_degrees(degrees.into_iter().map(AtomicU32::into_inner).collect()))
    }

    fn of_degrees(degrees: Vec<u32>) -> Self {
        let mut table = vec![0u64; TABLE];
        let mut counts = Vec::new();
        for &degree in &degrees {
            match table.get_mut(degree as usize) {
                Some(count) => *count += 1,
                None => counts.push((f64::from(degree), 1.0)),
            }
        }
        let low = table.iter().enumerate().skip(1).filter(|(_, count)| **count > 0);
        counts.extend(low.map(|(degree, &count)| (degree as f64, count as f64)));
        Self { degrees, counts }
    }

    /// The same of groups of so many sources, one behind the other; the last may be smaller.
    ///
    /// # Panics
    /// If groups are empty.
    pub(crate) fn of_groups(&self, size: usize) -> Self {
        Self::of_degrees(
            self.degrees.par_chunks(size).map(|group| group.iter().fold(0u32, |a, &b| a.saturating_add(b))).collect(),
        )
    }

    /// Each source's chance to be missing from a cache of `rows` rows, in shares of [`CERTAIN`].
    pub(crate) fn misses(&self, rows: f64) -> Vec<u8> {
        let t = self.stay(rows);
        let chance = |degree: u32| (f64::from(CERTAIN) * (-f64::from(degree) * t).exp()).round() as u8;
        // Most sources have one of a few degrees.
        let table: Vec<u8> = (0..TABLE as u32).map(chance).collect();
        let of = |&degree: &u32| table.get(degree as usize).copied().unwrap_or_else(|| chance(degree));
        self.degrees.par_iter().map(of).collect()
    }

    /// The time that a row stays, in reads of each edge: with it, `rows` rows are in the cache. Infinite if all are.
    fn stay(&self, rows: f64) -> f64 {
        let sources: f64 = self.counts.iter().map(|(_, count)| count).sum();
        if rows >= sources {
            return f64::INFINITY;
        }
        let held = |t: f64| self.counts.iter().map(|(degree, count)| count * -(-degree * t).exp_m1()).sum::<f64>();
        // In powers of two: a source with one edge of 2^40 stays for 2^-40 at least.
        let (mut low, mut high) = (-80.0f64, 80.0f64);
        for _ in 0..50 {
            let middle = (low + high) / 2.0;
            if held(middle.exp2()) < rows { low = middle } else { high = middle }
        }
        high.exp2()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Edges whose sources have out-degrees that fall as a power, in random order.
    fn edges() -> Vec<u32> {
        let degree = |u: u32| 1 + 20_000 / (u + 10);
        let mut edges: Vec<u32> = (0..3000).flat_map(|u| std::iter::repeat_n(u, degree(u) as usize)).collect();
        let mut state = 1u64;
        for i in (1..edges.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            edges.swap(i, (state >> 33) as usize % (i + 1));
        }
        edges
    }

    /// The share of misses of a cache that is simulated, when all edges were read before.
    fn simulated(edges: &[u32], rows: usize) -> f64 {
        let mut cache: VecDeque<u32> = VecDeque::new();
        let mut misses = 0;
        for (i, u) in edges.iter().chain(edges).enumerate() {
            match cache.iter().position(|cached| cached == u) {
                Some(place) => drop(cache.remove(place)),
                None => misses += usize::from(i >= edges.len()),
            }
            cache.push_front(*u);
            cache.truncate(rows);
        }
        misses as f64 / edges.len() as f64
    }

    #[test]
    fn misses_are_those_of_a_simulated_cache() {
        let edges = edges();
        let popularity = Popularity::new(3000, &edges).expect("all are sources");
        for rows in [3, 100, 1000, 2500] {
            let chances = popularity.misses(rows as f64);
            let predicted =
                edges.iter().map(|&u| f64::from(chances[u as usize])).sum::<f64>() / 255.0 / edges.len() as f64;
            let found = simulated(&edges, rows);
            assert!((predicted - found).abs() < 0.02, "{rows} rows: {predicted} is not {found}");
        }
    }

    #[test]
    fn a_cache_that_holds_all_misses_nothing_and_none_holds_nothing() {
        let popularity = Popularity::new(5, &[0, 0, 1, 4]).expect("all are sources");
        assert_eq!(popularity.misses(3.0)[..2], [0, 0]);
        assert_eq!(popularity.misses(0.0), [CERTAIN; 5]);
        assert_eq!(popularity.degrees, [2, 1, 0, 0, 1]);
        let outside = Popularity::new(4, &[0, 4]).map(|_| ());
        assert_eq!(outside, Err(SumsError::Source { position: 1, found: 4, vertices: 4 }));
    }
}
