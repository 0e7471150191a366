//! The cost model: predicts seconds, and learns from measurements.

use std::collections::BTreeMap;

use crate::error::SumsError;
use crate::feature::Features;
use crate::fit::fit;
use crate::op::{Operation, Weights};
use crate::profile::{Profile, ProfileError};
use crate::range_cost::RangeCost;
use crate::sample::{self, Sample};
use crate::sums::{Column, FeatureSums};

/// Seconds that cannot be a measurement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{op}` was measured to take {seconds} s; expected a finite number above 0")]
pub struct SampleError {
    /// The operation's name.
    pub op: String,
    /// The measured seconds.
    pub seconds: f64,
}

/// Predicts the seconds of operations on ranges of vertices: at first from the device's profile, then from
/// measurements.
///
/// # Source
/// ROC (Jia et al., MLSys 2020), section 4.1. The prior, the constant per call, the bound at 0 and the quartiles are
/// additions.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    pub(crate) profile: Profile,
    pub(crate) ops: BTreeMap<Operation, Learned>,
}

/// The weights and samples of one operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Learned {
    pub(crate) weights: Weights,
    pub(crate) samples: Vec<Sample<Features>>,
}

impl CostModel {
    /// Creates a model that knows only the profile.
    ///
    /// # Errors
    /// [`ProfileError::Rate`].
    pub fn new(profile: Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        Ok(Self { profile, ops: BTreeMap::new() })
    }

    /// Returns the profile of the device whose seconds are predicted.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the number of ranges on which an operation was measured.
    pub fn sample_count(&self, op: &Operation) -> usize {
        self.ops.get(op).map_or(0, |learned| learned.samples.len())
    }

    /// Adds a measurement: `op` took `seconds` on a range with these features. Predictions change at the next
    /// [`CostModel::refit`].
    ///
    /// For each range, the lower quartile of its last nine measurements counts, because disturbances only slow a call.
    /// An operation keeps its last 1,024 ranges, of all graphs together.
    ///
    /// # Errors
    /// [`SampleError`] if the seconds are not finite or not above 0; the model is then unchanged.
    pub fn observe(&mut self, op: &Operation, features: &Features, seconds: f64) -> Result<(), SampleError> {
        if !sample::can_be_measured(seconds) {
            return Err(SampleError { op: op.name.clone(), seconds });
        }
        let prior = || Learned { weights: op.work.prior(&self.profile), samples: Vec::new() };
        let learned = self.ops.entry(op.clone()).or_insert_with(prior);
        sample::add(&mut learned.samples, features, seconds);
        Ok(())
    }

    /// Fits the weights of all operations to their samples.
    ///
    /// # Cost
    /// About as many small least-squares problems per operation as it has features, each O(samples).
    pub fn refit(&mut self) {
        for (op, learned) in &mut self.ops {
            let samples: Vec<_> =
                learned.samples.iter().map(|sample| (sample.features, sample.undisturbed_s())).collect();
            learned.weights = fit(op.work, &samples, &op.work.prior(&self.profile));
        }
    }

    /// Returns the predicted seconds of one call on a range with these features (see [`FeatureSums::columns`]).
    pub fn predict(&self, op: &Operation, features: &Features) -> f64 {
        self.weights(op).seconds(features)
    }

    /// Returns the measured seconds of one call on a range with these features, if there are any.
    pub fn measured(&self, op: &Operation, features: &Features) -> Option<f64> {
        let samples = &self.ops.get(op)?.samples;
        samples.iter().rev().find(|sample| sample.features == *features).map(Sample::undisturbed_s)
    }

    /// Returns the seconds of the latest calls on a range with these features, one by one, oldest first.
    pub fn measurements(&self, op: &Operation, features: &Features) -> impl Iterator<Item = f64> {
        let samples = self.ops.get(op).map_or(&[][..], |learned| &learned.samples);
        let sample = samples.iter().rev().find(|sample| sample.features == *features);
        sample.into_iter().flat_map(|sample| sample.seconds.iter().copied())
    }

    /// Returns the predicted seconds of all `ops` together as a cost of ranges, for splitting.
    ///
    /// Constants per call are left out: they are the same for every range and do not affect a split. An operation that
    /// runs several times occurs in `ops` as often.
    ///
    /// # Errors
    /// [`SumsError::Device`] if the sums were counted for a device with other accesses or caches; [`SumsError::Width`].
    pub fn range_cost<'a>(&self, ops: &[Operation], sums: &'a FeatureSums<'_>) -> Result<RangeCost<'a>, SumsError> {
        sums.check_device(&self.profile)?;
        let mut cost = RangeCost::nothing(sums.vertex_count());
        for op in ops {
            let columns = sums.columns(op.work.width())?.columns();
            for (weight, column) in self.weights(op).per_feature_s.into_iter().zip(columns) {
                match column {
                    Column::Index => cost.add_per_vertex(weight),
                    Column::Scaled { factor, sums } => cost.add_column(weight * factor as f64, sums),
                }
            }
        }
        Ok(cost)
    }

    fn weights(&self, op: &Operation) -> Weights {
        self.ops.get(op).map_or_else(|| op.work.prior(&self.profile), |learned| learned.weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Work;

    /// Returns rows of 0 to 12 neighbours, some of them consecutive.
    fn graph() -> (Vec<u64>, Vec<u32>) {
        let rows = (0..500u32).map(|v| (0..v * 7 % 13).map(move |i| i * (1 + v % 3)));
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in rows {
            indices.extend(row);
            indptr.push(indices.len() as u64);
        }
        (indptr, indices)
    }

    fn model() -> CostModel {
        CostModel::new(Profile::named("a100").expect("it is built in")).expect("its rates are good")
    }

    #[test]
    fn a_split_minimises_what_is_predicted() {
        let (indptr, indices) = graph();
        let mut model = model();
        let sums = FeatureSums::new(&indptr, &indices, model.profile(), &[41, 16, 64]).expect("a CSR");
        let ops = [
            Operation::new("gather", Work::Gather { width: 41 }),
            Operation::new("gather", Work::Gather { width: 16 }),
            Operation::new("gather", Work::Gather { width: 64 }),
            Operation::new("linear", Work::Product { k: 41, m: 16 }),
            Operation::new("linear", Work::Product { k: 41, m: 16 }),
        ];
        for (i, op) in ops.iter().enumerate() {
            for range in [0..100, 50..300, 200..210, 300..500] {
                let features = sums.columns(op.work.width()).expect("it was named").of(range);
                let seconds: u64 =
                    features.iter().zip([3, 5, 7, 11, 13, 17, 19, 23]).map(|(&count, weight)| count * weight).sum();
                model.observe(op, &features, (i + 1) as f64 * 1e-9 * seconds as f64).expect("it is a number");
            }
        }
        model.refit();
        let cost = model.range_cost(&ops, &sums).expect("all widths are there");
        for range in [0..500, 7..8, 123..456, 9..9] {
            let predict = |op: &Operation| {
                let features = sums.columns(op.work.width()).expect("it was named").of(range.clone());
                model.predict(op, &features) - model.predict(op, &[0; 8])
            };
            let want: f64 = ops.iter().map(predict).sum();
            let got = cost.of(range.clone());
            assert!((got - want).abs() <= 1e-9 * cost.total(), "{range:?}: {got} is not {want}");
        }
    }

    #[test]
    fn predictions_change_with_a_refit_alone() {
        let mut model = model();
        let op = Operation::new("gather", Work::Gather { width: 64 });
        let features = [10, 100, 90, 90, 200, 0, 9000, 95];
        let before = model.predict(&op, &features);
        assert_eq!(before, op.work.prior(model.profile()).seconds(&features));
        model.observe(&op, &features, 7.0).expect("it is a number");
        assert_eq!(model.predict(&op, &features), before);
        model.refit();
        assert!((model.predict(&op, &features) - 7.0).abs() < 0.2);
        let other = Operation::new("gather", Work::Gather { width: 32 });
        assert_eq!(model.predict(&other, &features), other.work.prior(model.profile()).seconds(&features));
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let mut model = model();
        let op = Operation::new("add", Work::Elementwise { bytes: 12 });
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = model.observe(&op, &[1; 8], bad).expect_err("no clock says that");
            assert!(error.to_string().contains("`add`"));
        }
        assert_eq!(model.sample_count(&op), 0);
    }

    #[test]
    fn sums_of_another_device_are_refused() {
        let (indptr, indices) = graph();
        let other = Profile { cache_bytes: 1, ..model().profile().clone() };
        let sums = FeatureSums::new(&indptr, &indices, &other, &[]).expect("a CSR");
        assert!(matches!(model().range_cost(&[], &sums), Err(SumsError::Device { .. })));
    }
}
