//! Measurements of one operation.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Number of latest measurements of a range that count: that many epochs, if the ranges stay the same.
const RECENT: usize = 9;

/// Most ranges that are kept. More would slow the fit without improving it.
pub(crate) const MOST: usize = 1024;

/// The features of some work, and its latest measured seconds.
///
/// What has the same features is the same amount of work and shares one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample<F> {
    pub(crate) features: F,
    /// Oldest first; 1 to [`RECENT`] values, each finite and above 0.
    pub(crate) seconds: VecDeque<f64>,
}

impl<F> Sample<F> {
    /// Returns the lower quartile of the measurements (the least, if there are at most four). Disturbances make a
    /// measurement too slow, and hardly anything makes one too fast.
    pub(crate) fn undisturbed_s(&self) -> f64 {
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 4]
    }

    /// Returns the mean of the measurements. Those above twice their median do not count: something has disturbed them.
    pub(crate) fn typical_s(&self) -> f64 {
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let most = 2.0 * sorted[(sorted.len() - 1) / 2];
        sorted.retain(|&seconds| seconds <= most);
        sorted.iter().sum::<f64>() / sorted.len() as f64
    }

    /// Whether it could have been created by [`add`].
    pub(crate) fn is_valid(&self) -> bool {
        (1..=RECENT).contains(&self.seconds.len()) && self.seconds.iter().all(|&seconds| can_be_measured(seconds))
    }
}

/// Whether this number can be a measurement.
pub(crate) fn can_be_measured(seconds: f64) -> bool {
    seconds.is_finite() && seconds > 0.0
}

/// Adds a measurement to the sample of its range, or creates that sample. The oldest are removed if there are too many.
pub(crate) fn add<F: Copy + PartialEq>(samples: &mut Vec<Sample<F>>, features: &F, seconds: f64) {
    let Some(sample) = samples.iter_mut().rev().find(|sample| sample.features == *features) else {
        if samples.len() == MOST {
            samples.remove(0);
        }
        return samples.push(Sample { features: *features, seconds: [seconds].into() });
    };
    if sample.seconds.len() == RECENT {
        sample.seconds.pop_front();
    }
    sample.seconds.push_back(seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_do_not_count() {
        let mut samples = Vec::new();
        for seconds in [2.0, 900.0, 700.0, 2.0, 1e-9, 2.0] {
            add(&mut samples, &[1; 8], seconds);
        }
        assert_eq!((samples.len(), samples[0].undisturbed_s()), (1, 2.0));
        assert!((samples[0].typical_s() - 1.5).abs() < 1e-6, "{}", samples[0].typical_s());
    }

    #[test]
    fn different_calls_of_the_same_work_count_alike() {
        let mut samples = Vec::new();
        [1.0, 1.5, 2.0].into_iter().for_each(|seconds| add(&mut samples, &[1; 8], seconds));
        assert_eq!((samples[0].typical_s(), samples[0].undisturbed_s()), (1.5, 1.0));
    }

    #[test]
    fn only_recent_epochs_count_and_old_ranges_stay() {
        let mut samples = Vec::new();
        add(&mut samples, &[7; 8], 3.0);
        for epoch in 0..40 {
            add(&mut samples, &[1; 8], if epoch < 30 { 5.0 } else { 1.0 });
        }
        assert_eq!((samples[0].undisturbed_s(), samples[1].undisturbed_s()), (3.0, 1.0));
        assert_eq!(samples[1].seconds.len(), RECENT);
        for range in 0..2 * MOST as u64 {
            add(&mut samples, &[range + 100; 8], 1.0);
        }
        assert_eq!(samples.len(), MOST);
        assert!(samples.iter().all(Sample::is_valid));
    }
}
