//! The rows that parts fetch for mini-batches.

use std::num::NonZeroUsize;
use std::ops::Range;

use rayon::prelude::*;

use super::Assignment;
use crate::graph::Graph;
use crate::sample::{BatchKey, SampleError, Sampler, Scratch, epoch_order};

/// The mini-batches of training runs: what they draw from, and how.
///
/// ```
/// use std::num::{NonZeroU32, NonZeroUsize};
///
/// use lapidary_data::dataset::Dataset;
/// use lapidary_data::partition::{Assignment, BatchDraws, Estimate};
/// use lapidary_data::sample::NeighborSampler;
///
/// let data = Dataset::builtin("karate")?;
/// let sampler = NeighborSampler::new("3,2".parse()?);
/// let size = NonZeroUsize::new(8).expect("eight is not zero");
/// let seeds: Vec<u32> = (0..34).collect();
/// let draws = BatchDraws { graph: data.graph(), sampler: &sampler, seeds: &seeds, size };
/// let parts = NonZeroU32::new(2).expect("two is not zero");
/// let rows = draws.fetched_rows(&Assignment::random(34, parts, 1), 7, 100)?;
/// let Estimate { mean, error } = Estimate::of(&rows);
/// println!("{mean:.1} ± {error:.1} rows per batch");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BatchDraws<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What draws the blocks.
    pub sampler: &'a dyn Sampler,
    /// The seeds of an epoch, which are distinct vertices.
    pub seeds: &'a [u32],
    /// The number of seeds of a batch. The last batch of an epoch has what is left.
    pub size: NonZeroUsize,
}

/// A mean over batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the width of a 95 % interval around it: 1.96 standard errors. NaN for fewer than two batches.
    pub error: f64,
}

impl Estimate {
    /// Returns the mean of the numbers of batches.
    pub fn of(batches: &[u64]) -> Self {
        let count = batches.len() as f64;
        let mean = batches.iter().sum::<u64>() as f64 / count;
        let squares: f64 = batches.iter().map(|&number| (number as f64 - mean).powi(2)).sum();
        Self { mean, error: 1.96 * (squares / (count - 1.0) / count).sqrt() }
    }
}

/// Returns the seed of a run that has other batches than those that
/// [`hypergraph::stochastic`](super::hypergraph::stochastic) draws with this seed.
pub fn fresh_run(seed: u64) -> u64 {
    run(seed, 2)
}

/// Returns the seed of the run whose batches have one of three purposes.
pub(super) fn run(seed: u64, purpose: u64) -> u64 {
    seed.wrapping_mul(3).wrapping_add(purpose)
}

impl BatchDraws<'_> {
    /// Returns the rows that all parts together fetch for each of the first `count` batches of a run with this seed.
    ///
    /// Each part draws the blocks around the seeds that it owns. It fetches the features of the input vertices that it
    /// does not own, each once.
    ///
    /// # Errors
    /// [`SampleError`].
    /// # Panics
    /// If the assignment has another number of vertices than the graph.
    /// # Cost
    /// That of the draws. Batches of an epoch are counted in parallel.
    pub fn fetched_rows(&self, assignment: &Assignment, run: u64, count: usize) -> Result<Vec<u64>, SampleError> {
        let part_of = assignment.part_of();
        assert_eq!(part_of.len(), self.graph.vertex_count(), "the part of each vertex");
        self.each(run, 0..count, |seeds, key, scratch| {
            // The shares of the parts, one after the other; inside of a share, seeds keep their order.
            let mut shares = seeds.to_vec();
            shares.sort_by_key(|&seed| part_of[seed as usize]);
            let mut rows = 0;
            for share in shares.chunk_by(|&a, &b| part_of[a as usize] == part_of[b as usize]) {
                let part = part_of[share[0] as usize];
                let drawn = self.sampler.sample(self.graph, share, key, scratch)?;
                rows += drawn.vertices.iter().filter(|&&u| part_of[u as usize] != part).count() as u64;
            }
            Ok(rows)
        })
    }

    /// Calls a function with the seeds and the key of some batches of a run, in parallel, and returns what it does, in
    /// the order of the batches. They are numbered over all epochs.
    pub(super) fn each<T: Send>(
        &self,
        run: u64,
        batches: Range<usize>,
        of_batch: impl Fn(&[u32], BatchKey, &mut Scratch) -> Result<T, SampleError> + Sync,
    ) -> Result<Vec<T>, SampleError> {
        let per_epoch = self.seeds.len().div_ceil(self.size.get());
        let mut results = Vec::with_capacity(batches.len());
        let mut next = batches.start;
        while per_epoch > 0 && next < batches.end {
            // Epochs count from 1.
            let (epoch, first) = (next / per_epoch + 1, next % per_epoch);
            let last = per_epoch.min(first + batches.end - next);
            let mut order = self.seeds.to_vec();
            epoch_order(&mut order, run, epoch as u64);
            let of_epoch = (first..last).into_par_iter().map_init(Scratch::default, |scratch, batch| {
                let seeds = &order[batch * self.size.get()..order.len().min((batch + 1) * self.size.get())];
                of_batch(seeds, BatchKey { seed: run, epoch: epoch as u64, batch: batch as u64 }, scratch)
            });
            results.extend(of_epoch.collect::<Result<Vec<T>, SampleError>>()?);
            next += last - first;
        }
        Ok(results)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::sample::NeighborSampler;

    proptest! {
        #[test]
        fn counts_are_those_of_sets(
            edges in proptest::collection::vec((0u32..30, 0u32..30), 0..200),
            part_of in proptest::collection::vec(0u32..4, 32),
            seeds in proptest::collection::btree_set(0u32..32, 1..20),
            size in 1usize..9,
            run in 0u64..3,
        ) {
            let graph = Graph::from_edges(32, &edges).unwrap();
            let sampler = NeighborSampler::new("3,2".parse().unwrap());
            let seeds: Vec<u32> = seeds.into_iter().collect();
            let draws =
                BatchDraws { graph: &graph, sampler: &sampler, seeds: &seeds, size: NonZeroUsize::new(size).unwrap() };
            let assignment = Assignment::new(part_of.clone(), NonZeroU32::new(5).unwrap()).unwrap();
            let mut wanted = Vec::new();
            for epoch in 1..=3u64 {
                let mut order = seeds.clone();
                epoch_order(&mut order, run, epoch);
                for (batch, seeds) in (0u64..).zip(order.chunks(size)) {
                    // Each seed by itself: what is drawn of a vertex does not depend on the others.
                    let mut fetched = BTreeSet::new();
                    for &seed in seeds {
                        let key = BatchKey { seed: run, epoch, batch };
                        let part = part_of[seed as usize];
                        let drawn = sampler.sample(&graph, &[seed], key, &mut Scratch::default()).unwrap();
                        let others = drawn.vertices.iter().filter(|&&u| part_of[u as usize] != part);
                        fetched.extend(others.map(|&u| (part, u)));
                    }
                    wanted.push(fetched.len() as u64);
                }
            }
            for count in 0..wanted.len() {
                prop_assert_eq!(draws.fetched_rows(&assignment, run, count).unwrap(), &wanted[..count]);
            }
        }
    }

    #[test]
    fn an_interval_is_that_of_the_normal_distribution() {
        let Estimate { mean, error } = Estimate::of(&[1, 2, 3, 4, 5]);
        // The variance is 2.5.
        assert!((mean - 3.0).abs() < 1e-12 && (error - 1.96 * 0.5f64.sqrt()).abs() < 1e-12, "{mean} {error}");
        assert!(Estimate::of(&[3]).error.is_nan());
    }
}
