//! What was measured of one operation.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::feature::Features;

/// How many of the latest measurements of a range count: as many epochs, if ranges stay.
const RECENT: usize = 9;

/// How many different ranges are kept. More would slow the fit, not improve it.
pub(crate) const MOST: usize = 512;

/// One range's features, and the latest of its measured seconds.
///
/// Ranges with the same features are the same work, and are one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) features: Features,
    /// Oldest first; 1 to [`RECENT`], each above 0 and finite.
    pub(crate) seconds: VecDeque<f64>,
}

impl Sample {
    /// The lower quartile of the measurements (of up to four, the least): what disturbs a measurement slows it, and hardly
    /// anything makes one too fast.
    pub(crate) fn undisturbed_s(&self) -> f64 {
        let mut sorted: Vec<f64> = self.seconds.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() - 1) / 4]
    }

    /// Whether it is as [`add`] makes it.
    pub(crate) fn is_valid(&self) -> bool {
        (1..=RECENT).contains(&self.seconds.len()) && self.seconds.iter().all(|&seconds| can_be_measured(seconds))
    }
}

/// Whether that can be a measurement.
pub(crate) fn can_be_measured(seconds: f64) -> bool {
    seconds.is_finite() && seconds > 0.0
}

/// Adds a measurement to the sample of its range, or makes one; the oldest leave when there are too many.
pub(crate) fn add(samples: &mut Vec<Sample>, features: &Features, seconds: f64) {
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
