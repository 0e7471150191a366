//! Cache misses: how likely it is that a neighbour's row is not in the cache when a gather reads it.
//!
//! The time that a gather takes per edge depends more on this than on anything in a vertex's own edge list. A graph
//! whose rows fit a cache takes a fifth of the time, and on a skewed graph a few popular rows serve most edges. The
//! model is Che's approximation. Sources are drawn independently, each in proportion to its out-degree, and a cache of
//! K rows evicts the least recently used row. A source with share p of the edges then misses with probability exp(-p
//! t). The time t that a row stays in the cache is such that the expected number of cached rows is K. A cache of pages
//! works the same way, with pages in place of rows.
//!
//! # Source
//! Che, Tung & Wang, "Hierarchical web caching systems" (2002), equation 4.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use crate::error::SumsError;

/// A probability of 1. Probabilities are whole multiples of 1/255, so that their sums are exact.
pub(crate) const CERTAIN: u8 = 255;

/// Degrees below this are counted in a table; the few larger ones are listed.
const TABLE: usize = 1 << 16;

/// The number of sources for each out-degree.
pub(crate) struct Popularity {
    degrees: Vec<u32>,
    /// Distinct degrees above 0, each with its number of sources.
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

    /// Returns the same for groups of `size` consecutive sources; the last group can be smaller.
    ///
    /// # Panics
    /// If `size` is 0.
    pub(crate) fn of_groups(&self, size: usize) -> Self {
        Self::of_degrees(
            self.degrees.par_chunks(size).map(|group| group.iter().fold(0u32, |a, &b| a.saturating_add(b))).collect(),
        )
    }

    /// Returns each source's probability of a miss in a cache of `rows` rows, in units of 1 / [`CERTAIN`].
    pub(crate) fn misses(&self, rows: f64) -> Vec<u8> {
        let t = self.stay(rows);
        let chance = |degree: u32| (f64::from(CERTAIN) * (-f64::from(degree) * t).exp()).round() as u8;
        // Most sources have one of a few degrees, so the probabilities are computed once per degree.
        let table: Vec<u8> = (0..TABLE as u32).map(chance).collect();
        let of = |&degree: &u32| table.get(degree as usize).copied().unwrap_or_else(|| chance(degree));
        self.degrees.par_iter().map(of).collect()
    }

    /// Returns the time that a row stays in the cache, in reads of each edge, such that the cache is expected to hold
    /// `rows` rows. Infinite if all rows fit.
    fn stay(&self, rows: f64) -> f64 {
        let sources: f64 = self.counts.iter().map(|(_, count)| count).sum();
        if rows >= sources {
            return f64::INFINITY;
        }
        let held = |t: f64| self.counts.iter().map(|(degree, count)| count * -(-degree * t).exp_m1()).sum::<f64>();
        // Bisection over the exponent of 2: a source with one edge of 2^40 stays for at least 2^-40.
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

    /// Returns edges in random order whose sources have out-degrees that follow a power law.
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

    /// Returns the miss rate of a simulated cache, after all edges were read once.
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
