//! Draws of the edges of a vertex. They follow from a key alone, so a batch has the same blocks on any thread, on any
//! rank, and however far ahead it is prepared.

use std::ops::Range;

/// What the draws of a batch depend on, beside the layer and the vertex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchKey {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// The number of the batch in the epoch.
    pub batch: u64,
}

/// Puts the seeds of an epoch in a random order, each with the same probability.
pub fn epoch_order(seeds: &mut [u32], seed: u64, epoch: u64) {
    let mut draws = Draws::new(BatchKey { seed, epoch, batch: u64::MAX }.of_layer(usize::MAX), 0);
    // Fisher and Yates.
    for last in (1..seeds.len()).rev() {
        seeds.swap(last, draws.below(last as u64 + 1) as usize);
    }
}

/// A sequence of uniform numbers: SplitMix64, begun at a hash of a key.
#[derive(Clone, Debug)]
pub(super) struct Draws(u64);

/// The odd number nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl BatchKey {
    /// Returns what the draws of all vertices of a layer share.
    pub(super) fn of_layer(self, layer: usize) -> u64 {
        let numbers = [self.seed, self.epoch, self.batch, layer as u64];
        numbers.into_iter().fold(STEP, |key, number| mix(key ^ mix(number.wrapping_add(STEP))))
    }
}

impl Draws {
    /// Begins the sequence of a vertex in a layer.
    pub(super) fn new(layer: u64, vertex: u32) -> Self {
        Self(mix(layer ^ u64::from(vertex).wrapping_mul(STEP)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `limit`. The probabilities differ by less than `limit / 2^64`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns the time of an event that happens at the rate 1.
    pub(super) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// Returns a number in (0, 1].
    pub(super) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Draws `count` of the numbers of a range without replacement, each set with the same probability, and appends them
    /// in ascending order. All of them, if there are no more.
    ///
    /// # Cost
    /// O(count) from a range of few numbers; O(count^2) for few from more; else O(numbers of the range).
    /// # Source
    /// Floyd's algorithm: Bentley & Floyd, Programming pearls: a sample of brilliance, CACM 1987.
    pub(super) fn distinct(&mut self, count: u64, range: Range<u64>, to: &mut Vec<u64>) {
        let limit = range.end - range.start;
        if count >= limit {
            return to.extend(range);
        }
        if limit <= 64 * WORDS as u64 {
            return self.distinct_of_few(count, range, to);
        }
        if count > FEW {
            // Selection sampling: each number is taken with the probability that fills what is left.
            let mut wanted = count;
            for number in 0..limit {
                if self.below(limit - number) < wanted {
                    to.push(range.start + number);
                    wanted -= 1;
                }
            }
            return;
        }
        let before = to.len();
        for last in limit - count..limit {
            let number = range.start + self.below(last + 1);
            let taken = to[before..].contains(&number);
            to.push(if taken { range.start + last } else { number });
        }
        to[before..].sort_unstable();
    }

    /// Floyd's algorithm with a bit for each number, which are then in order.
    fn distinct_of_few(&mut self, count: u64, range: Range<u64>, to: &mut Vec<u64>) {
        let limit = range.end - range.start;
        let mut taken = [0u64; WORDS];
        for last in limit - count..limit {
            let number = self.below(last + 1);
            let is_taken = taken[number as usize / 64 % WORDS] >> (number % 64) & 1 == 1;
            let number = if is_taken { last } else { number };
            taken[number as usize / 64 % WORDS] |= 1 << (number % 64);
        }
        for (first, mut word) in (range.start..range.end).step_by(64).zip(taken) {
            while word != 0 {
                to.push(first + u64::from(word.trailing_zeros()));
                word &= word - 1;
            }
        }
    }

    /// Draws `count` numbers of a range with replacement, and appends them in ascending order.
    pub(super) fn repeated(&mut self, count: u64, range: Range<u64>, to: &mut Vec<u64>) {
        let before = to.len();
        to.extend((0..count).map(|_| range.start + self.below(range.end - range.start)));
        to[before..].sort_unstable();
    }

    /// Draws `count` positions without replacement, one after the other, each with a probability in proportion to its
    /// weight among those that are left, and appends them in ascending order. They count from `first`. Positions of
    /// weight 0 are not drawn.
    ///
    /// # Cost
    /// O(n + count log count) in expectation.
    /// # Source
    /// Efraimidis & Spirakis, Weighted random sampling with a reservoir, 2006.
    pub(super) fn distinct_weighted(&mut self, count: usize, first: u64, weights: &[f32], to: &mut Vec<u64>) {
        // The time of the first event of a process whose rate is the weight; the earliest are drawn.
        let mut times: Vec<(f64, u64)> = Vec::with_capacity(weights.len());
        for (position, &weight) in (first..).zip(weights) {
            let time = self.exponential() / f64::from(weight);
            if weight > 0.0 {
                times.push((time, position));
            }
        }
        if times.len() > count {
            times.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0));
            times.truncate(count);
        }
        let before = to.len();
        to.extend(times.iter().map(|&(_, position)| position));
        to[before..].sort_unstable();
    }
}

/// Up to so many numbers, looking through them is faster than anything else.
const FEW: u64 = 64;

/// Words of bits for the numbers of a range, of most vertices.
const WORDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often each of `limit` numbers is drawn in `rounds` draws of `count`.
    fn counts(limit: u64, rounds: u32, mut draw: impl FnMut(&mut Draws, &mut Vec<u64>)) -> Vec<f64> {
        let mut counts = vec![0.0; limit as usize];
        for vertex in 0..rounds {
            let mut drawn = Vec::new();
            draw(&mut Draws::new(BatchKey::default().of_layer(0), vertex), &mut drawn);
            assert!(drawn.is_sorted());
            drawn.iter().for_each(|&number| counts[number as usize] += 1.0);
        }
        counts
    }

    /// Returns the statistic of a chi-square test, of counts that should be equal.
    fn chi_square(counts: &[f64]) -> f64 {
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        counts.iter().map(|count| (count - mean).powi(2) / mean).sum()
    }

    #[test]
    fn each_number_is_drawn_as_often() {
        // 40 degrees of freedom: 73.4 is exceeded with a probability of 0.001. The draws are fixed.
        let limit = 41;
        for count in [1, 5, 20] {
            let distinct = counts(limit, 4_000, |draws, to| draws.distinct(count, 0..limit, to));
            assert!(chi_square(&distinct) < 73.4, "{count}: {}", chi_square(&distinct));
            let repeated = counts(limit, 4_000, |draws, to| draws.repeated(count, 0..limit, to));
            assert!(chi_square(&repeated) < 73.4, "{count}: {}", chi_square(&repeated));
        }
        // 599 degrees of freedom. Looking through few, and selection from many.
        for count in [40, 80] {
            let many = counts(600, 2_000, |draws, to| draws.distinct(count, 0..600, to));
            assert!(chi_square(&many) < 711.0, "{}", chi_square(&many));
        }
    }

    #[test]
    fn distinct_numbers_are_distinct_and_as_many_as_wanted() {
        for (count, limit) in [
            (0, 5),
            (1, 1),
            (3, 5),
            (5, 5),
            (9, 5),
            (64, 1000),
            (65, 66),
            (64, 512),
            (511, 512),
            (64, 513),
            (65, 513),
            (512, 513),
            (700, 3),
        ] {
            for vertex in 0..50 {
                let mut drawn = vec![7];
                Draws::new(3, vertex).distinct(count, 10..10 + limit, &mut drawn);
                assert_eq!(drawn.remove(0), 7);
                assert_eq!(drawn.len() as u64, count.min(limit));
                assert!(
                    drawn.windows(2).all(|pair| pair[0] < pair[1])
                        && drawn.iter().all(|number| (10..10 + limit).contains(number))
                );
            }
        }
    }

    #[test]
    fn weights_are_probabilities() {
        let weights = [1.0, 0.0, 3.0, 6.0];
        let counts = counts(4, 20_000, |draws, to| draws.distinct_weighted(1, 0, &weights, to));
        for (count, weight) in counts.iter().zip(weights) {
            assert!((count / 20_000.0 - f64::from(weight) / 10.0).abs() < 0.015, "{counts:?}");
        }
        let mut all = Vec::new();
        Draws::new(1, 1).distinct_weighted(9, 5, &weights, &mut all);
        assert_eq!(all, [5, 7, 8]);
    }

    #[test]
    fn each_part_of_the_key_counts() {
        let keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)];
        let layers = keys.map(|(seed, epoch, batch, layer)| BatchKey { seed, epoch, batch }.of_layer(layer));
        let distinct: std::collections::BTreeSet<u64> = layers.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_ne!(Draws::new(5, 1).below(1 << 40), Draws::new(5, 2).below(1 << 40));
    }
}
