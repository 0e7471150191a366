//! Draws items in proportion to weights.

use rand::Rng;

/// Cumulative weights with a guide table: a draw takes one table look-up and a few steps.
pub(super) struct Sampler {
    // Invariant: `cumulative` rises from 0 and has one element more than there are items; `guide[b]` is the item that
    // contains the mass at b / buckets of the total.
    cumulative: Vec<f64>,
    guide: Vec<u32>,
}

impl Sampler {
    /// Builds the tables from the weights.
    ///
    /// # Cost
    /// O(items): 12 bytes each.
    pub(super) fn new(weights: impl ExactSizeIterator<Item = f64>) -> Self {
        let items = weights.len();
        let mut cumulative = Vec::with_capacity(items + 1);
        let mut sum = 0.0;
        cumulative.push(0.0);
        for weight in weights {
            sum += weight;
            cumulative.push(sum);
        }
        let mut guide = Vec::with_capacity(items);
        let mut item = 0;
        for bucket in 0..items {
            let mass = sum * (bucket as f64 / items as f64);
            while item + 1 < items && cumulative[item + 1] <= mass {
                item += 1;
            }
            guide.push(item as u32);
        }
        Self { cumulative, guide }
    }

    /// Returns the mass before an item. For the number of items, this is the total.
    pub(super) fn mass_before(&self, item: usize) -> f64 {
        self.cumulative[item]
    }

    /// Returns the item that contains `mass`.
    pub(super) fn item_at(&self, mass: f64) -> usize {
        let items = self.guide.len();
        let total = self.cumulative[items];
        let bucket = ((mass / total * items as f64) as usize).min(items - 1);
        let mut item = self.guide[bucket] as usize;
        while item + 1 < items && self.cumulative[item + 1] <= mass {
            item += 1;
        }
        // Rounding may have led one bucket too far.
        while item > 0 && self.cumulative[item] > mass {
            item -= 1;
        }
        item
    }
}

/// A power law: density ~ w^-exponent between `low` and `high`.
#[derive(Clone, Copy)]
pub(super) struct PowerLaw {
    low: f64,
    high: f64,
    exponent: f64,
}

impl PowerLaw {
    /// Finds the law with this mean and largest value. `exponent` is above 1; `mean` is above 0 and at most `high`.
    pub(super) fn with_mean(mean: f64, high: f64, exponent: f64) -> Self {
        // The mean rises with the lower end, so bisect on its logarithm.
        let (mut least, mut most) = ((mean * 1e-9).ln(), mean.min(high).ln());
        for _ in 0..80 {
            let middle = 0.5 * (least + most);
            if (Self { low: middle.exp(), high, exponent }).mean() > mean {
                most = middle;
            } else {
                least = middle;
            }
        }
        Self { low: least.exp(), high, exponent }
    }

    fn mean(&self) -> f64 {
        // The integral of w^(1-g) over the integral of w^-g, each by its antiderivative.
        let integral = |power: f64| {
            if power.abs() < 1e-12 {
                (self.high / self.low).ln()
            } else {
                (self.high.powf(power) - self.low.powf(power)) / power
            }
        };
        integral(2.0 - self.exponent) / integral(1.0 - self.exponent)
    }

    /// Draws one weight by inverting the distribution.
    pub(super) fn draw(&self, rng: &mut impl Rng) -> f64 {
        let power = 1.0 - self.exponent;
        let (at_low, at_high) = (self.low.powf(power), self.high.powf(power));
        let u: f64 = rng.random();
        (at_low + u * (at_high - at_low)).powf(1.0 / power).clamp(self.low, self.high)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn items_are_found_by_their_mass() {
        let weights = [0.5, 3.0, 1e-9, 0.0, 2.0, 0.25];
        let sampler = Sampler::new(weights.into_iter());
        let total = sampler.mass_before(6);
        for step in 0..1000 {
            let mass = total * step as f64 / 1000.0;
            let item = sampler.item_at(mass);
            assert!(sampler.mass_before(item) <= mass && mass < sampler.mass_before(item + 1), "mass {mass}");
        }
    }

    #[test]
    fn the_power_law_has_the_mean_that_was_asked_for() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for (mean, high, exponent) in [(8.0, 200.0, 2.5), (3.0, 1000.0, 2.0), (10.0, 50.0, 3.5), (5.0, 5.0, 2.2)] {
            let law = PowerLaw::with_mean(mean, high, exponent);
            assert!((law.mean() - mean).abs() < 1e-6 * mean, "{} for {mean}", law.mean());
            let draws = 200_000;
            let sum: f64 = (0..draws).map(|_| law.draw(&mut rng)).sum();
            assert!((sum / f64::from(draws) / mean - 1.0).abs() < 0.05);
        }
    }
}
