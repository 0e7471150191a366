//! The times of kernels: predicts a call from what it does, by weights that are fitted to measured calls.
//!
//! The time of a call is a weighted sum of its quantities ([`KernelWork`]). Each kernel has weights of its own, which are
//! fitted to its samples: some of a suite that is measured once, which covers small and large, cached and uncached work,
//! and some of later runs. Errors are those of logarithms, so a short call counts as much as a long one, and half as much as
//! twice as much. With few samples, the weights stay near a prior, times a common factor: near those of the kernel that works
//! most like this one ([`kin`]), or else near those that the device's profile implies.

use std::collections::BTreeMap;

use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use crate::kernel_work::{KernelWork, QUANTITIES, prior};
use crate::kin::kin;
use crate::model::SampleError;
use crate::nnls::active_set;
use crate::profile::Profile;
use crate::sample::{self, Sample};

/// How strongly a weight stays near the prior: a weight that is twice as large, or half as large, counts as much as one sample
/// that is predicted 15 % wrong. If the pull is weak, a few samples in which two quantities grow alike can make one of them
/// nearly free.
const PULL: f64 = 0.2;

/// The same for a kernel of the suite, which has samples in which they do not grow alike.
const PULL_IN_SUITE: f64 = 0.1;

/// Rounds of the fit. Each weighs the samples by the predictions of the one before.
const ROUNDS: usize = 5;

/// The most that a prediction or a weight is taken to be wrong when samples and pulls are weighed, as a factor.
const MOST_WRONG: f64 = 10.0;

/// Spread of the first prediction of a kernel, as a standard deviation of logarithms, and how many samples it is worth.
const FIRST_SPREAD: f64 = 0.4;
const FIRST_WEIGHT: f64 = 4.0;

/// Least spread of what the times of another kernel predict.
const OF_KIN: f64 = 0.3;

/// The format of a file.
const FORMAT: &str = "lapidary kernel times 1";

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds.
    pub seconds: f64,
    /// Standard deviation of the logarithm of measured over predicted seconds.
    pub spread: f64,
}

/// Why a file has no kernel times.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelTimesError {
    /// The file is not JSON, or not the JSON of kernel times.
    #[error("these are no kernel times")]
    Json(#[from] serde_json::Error),
    /// The file has another version, or numbers that cannot be measured.
    #[error("the kernel times cannot be used: {0}")]
    Invalid(&'static str),
}

/// The samples and weights of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kernel {
    /// Samples of the suite. They stay.
    suite: Vec<Sample<KernelWork>>,
    /// Samples of later runs. The oldest give way.
    runs: Vec<Sample<KernelWork>>,
    /// Seconds per unit of each quantity.
    #[serde(skip)]
    weights: [f64; QUANTITIES.len()],
    #[serde(skip)]
    spread: f64,
}

/// The times of the kernels of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTimes {
    prior: [f64; QUANTITIES.len()],
    kernels: BTreeMap<String, Kernel>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    kernels: BTreeMap<String, Kernel>,
}

impl KernelTimes {
    /// Returns the times of a device of which nothing was measured but its profile.
    pub fn new(profile: &Profile) -> Self {
        Self { prior: prior(profile), kernels: BTreeMap::new() }
    }

    /// Whether the suite was measured.
    pub fn has_suite(&self) -> bool {
        self.kernels.values().any(|kernel| !kernel.suite.is_empty())
    }

    /// Adds a call that took `seconds`: one of the suite, or one of a run. Predictions change with the next
    /// [`KernelTimes::refit`].
    ///
    /// Of the same work, the mean of the last nine measurements counts, without those above twice their median, which something
    /// has disturbed. They may be of different calls, whose caches and contents differ. A kernel keeps 1024 kinds of work, of
    /// the suite and of runs each.
    ///
    /// # Errors
    /// [`SampleError`] if the seconds are not finite or not above 0; nothing is then changed.
    pub fn observe(
        &mut self,
        kernel: &str,
        work: &KernelWork,
        seconds: f64,
        is_suite: bool,
    ) -> Result<(), SampleError> {
        if !sample::can_be_measured(seconds) || !work.is_valid() {
            return Err(SampleError { op: kernel.into(), seconds });
        }
        let new = || Kernel { suite: Vec::new(), runs: Vec::new(), weights: self.prior, spread: FIRST_SPREAD };
        let kernel = self.kernels.entry(kernel.into()).or_insert_with(new);
        sample::add(if is_suite { &mut kernel.suite } else { &mut kernel.runs }, work, seconds);
        Ok(())
    }

    /// Fits the weights of all kernels to their samples.
    ///
    /// # Cost
    /// About a dozen least-squares problems per kernel, each O(samples).
    pub fn refit(&mut self) {
        // Names ascend, so the next of kin is fitted before: its name is the beginning of this one.
        let names: Vec<String> = self.kernels.keys().cloned().collect();
        for name in names {
            let prior = self.prior_of(&name);
            let kernel = self.kernels.get_mut(&name).expect("it is one of them");
            let samples: Vec<(KernelWork, f64)> =
                kernel.suite.iter().chain(&kernel.runs).map(|sample| (sample.features, sample.typical_s())).collect();
            let pull = if kernel.suite.is_empty() { PULL } else { PULL_IN_SUITE };
            kernel.weights = fit(&samples, &prior, pull);
            let log = |(work, seconds): &(KernelWork, f64)| (work.seconds(&kernel.weights) / seconds).ln();
            let squares: f64 = samples.iter().map(log).filter(|log| log.is_finite()).map(|log| log * log).sum();
            let first = FIRST_WEIGHT * FIRST_SPREAD * FIRST_SPREAD;
            kernel.spread = ((squares + first) / (samples.len() as f64 + FIRST_WEIGHT)).sqrt();
        }
    }

    /// Returns the weights that a kernel has before its own samples count.
    fn prior_of(&self, name: &str) -> [f64; QUANTITIES.len()] {
        match kin(name).find_map(|name| self.kernels.get(name)) {
            // A weight of 0 could not change.
            Some(next) => std::array::from_fn(|q| next.weights[q].max(self.prior[q] / MOST_WRONG)),
            None => self.prior,
        }
    }

    /// Returns the predicted time of a call, by the times of its kernel or of the next of kin that was measured; `None` if
    /// none was.
    pub fn predict(&self, kernel: &str, work: &KernelWork) -> Option<Estimate> {
        if let Some(kernel) = self.kernels.get(kernel) {
            return Some(Estimate { seconds: work.seconds(&kernel.weights), spread: kernel.spread });
        }
        let next = kin(kernel).find_map(|name| self.kernels.get(name))?;
        Some(Estimate { seconds: work.seconds(&next.weights), spread: next.spread.max(OF_KIN) })
    }

    /// Returns the seconds of a call by the device's profile alone.
    pub fn by_profile(&self, work: &KernelWork) -> f64 {
        work.seconds(&self.prior)
    }

    /// Returns the name of each kernel, its number of samples, of the suite and of runs, and its spread.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, [usize; 2], f64)> {
        self.kernels.iter().map(|(name, kernel)| (&**name, [kernel.suite.len(), kernel.runs.len()], kernel.spread))
    }

    /// Returns the samples in the format that [`KernelTimes::from_json`] reads.
    ///
    /// # Panics
    /// Never: the file has only numbers and names.
    pub fn to_json(&self) -> String {
        let file = File { format: FORMAT.into(), kernels: self.kernels.clone() };
        serde_json::to_string(&file).expect("numbers and names are JSON")
    }

    /// Reads the samples of a device with this profile, and fits the weights.
    ///
    /// # Errors
    /// [`KernelTimesError`].
    pub fn from_json(json: &str, profile: &Profile) -> Result<Self, KernelTimesError> {
        let File { format, kernels } = serde_json::from_str(json)?;
        if format != FORMAT {
            return Err(KernelTimesError::Invalid("they are of another version"));
        }
        let is_valid = |sample: &Sample<KernelWork>| sample.is_valid() && sample.features.is_valid();
        if !kernels.values().all(|kernel| kernel.suite.iter().chain(&kernel.runs).all(is_valid)) {
            return Err(KernelTimesError::Invalid("a sample is no measurement"));
        }
        let mut times = Self { prior: prior(profile), kernels };
        times.refit();
        Ok(times)
    }
}

/// Fits weights to measured seconds. A weight whose quantity occurs in no sample keeps the prior's value, times the common
/// factor.
fn fit(samples: &[(KernelWork, f64)], prior: &[f64; QUANTITIES.len()], pull: f64) -> [f64; QUANTITIES.len()] {
    let mut factors: Vec<f64> = samples.iter().map(|(work, seconds)| seconds / work.seconds(prior)).collect();
    factors.retain(|factor| factor.is_finite() && *factor > 0.0);
    factors.sort_by(f64::total_cmp);
    let factor = factors.get(factors.len() / 2).copied().unwrap_or(1.0);
    let mut weights = prior.map(|weight| weight * factor);
    let used: Vec<usize> =
        (0..QUANTITIES.len()).filter(|&q| samples.iter().any(|(work, _)| work.amounts()[q] > 0.0)).collect();
    let (m, k) = (samples.len(), used.len());
    let centre = weights;
    let mut rows = Array2::zeros((m + k, k));
    let mut target = Array1::zeros(m + k);
    for _ in 0..ROUNDS {
        for (i, (work, seconds)) in samples.iter().enumerate() {
            // The difference of predicted and measured over the root of their product: twice the half of the logarithm's
            // hyperbolic sine. Over the measured seconds alone, what is too much would count more than what is too little.
            let scale = (seconds * work.seconds(&weights).max(seconds / MOST_WRONG)).sqrt();
            for (j, &q) in used.iter().enumerate() {
                // In units of the centre, so that the columns are alike.
                rows[[i, j]] = work.amounts()[q] * centre[q] / scale;
            }
            target[i] = seconds / scale;
        }
        for (j, &q) in used.iter().enumerate() {
            // Like a sample whose measured value is the centre.
            let pull = pull / (weights[q] / centre[q]).max(1.0 / MOST_WRONG).sqrt();
            (rows[[m + j, j]], target[m + j]) = (pull, pull);
        }
        for (&q, fitted) in used.iter().zip(active_set(&rows, &target)) {
            if fitted.is_finite() {
                weights[q] = centre[q] * fitted;
            }
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_work::Quantity;

    fn profile() -> Profile {
        Profile::named("p100").expect("it is built in")
    }

    /// A gather of some size.
    fn gather(rows: f64, edges: f64, width: f64, misses: f64) -> KernelWork {
        KernelWork::call()
            .with(Quantity::Rows, rows)
            .with(Quantity::Edges, edges)
            .with(Quantity::GatheredBytes, 4.0 * edges * width)
            .with(Quantity::PastLastCache, 4.0 * edges * width * misses)
            .with(Quantity::StreamedBytes, 4.0 * rows * width)
    }

    fn truth(work: &KernelWork) -> f64 {
        let weights = [(Quantity::Calls, 9e-6), (Quantity::Edges, 2e-9), (Quantity::GatheredBytes, 4e-12)];
        let more = [(Quantity::PastLastCache, 3e-11), (Quantity::StreamedBytes, 2e-11)];
        weights.iter().chain(&more).map(|(quantity, weight)| weight * work.get(*quantity)).sum()
    }

    fn learned() -> KernelTimes {
        let mut times = KernelTimes::new(&profile());
        for (i, rows) in [500.0, 3_000.0, 20_000.0, 90_000.0].into_iter().enumerate() {
            for degree in [3.0, 20.0, 150.0] {
                for width in [16.0, 100.0, 256.0] {
                    let work = gather(rows, rows * degree, width, i as f64 / 4.0);
                    for noise in [1.0, 1.02, 3.0] {
                        times.observe("gather", &work, noise * truth(&work), true).expect("it is a measurement");
                    }
                }
            }
        }
        times.refit();
        times
    }

    #[test]
    fn calls_that_were_never_seen_are_predicted() {
        let times = learned();
        for (rows, edges, width, misses) in [(1e3, 1e5, 64.0, 0.0), (5e4, 2e5, 41.0, 0.9), (1e6, 3e7, 128.0, 0.5)] {
            let work = gather(rows, edges, width, misses);
            let got = times.predict("gather", &work).expect("it was measured");
            assert!((got.seconds / truth(&work)).ln().abs() < 0.1, "{work:?}: {got:?} is not {}", truth(&work));
            assert!(got.spread < 0.2, "{got:?}");
        }
        assert_eq!(times.predict("scatter", &KernelWork::call()), None);
    }

    #[test]
    fn a_single_sample_sets_the_scale() {
        let mut times = KernelTimes::new(&profile());
        let work = gather(1e4, 1e6, 64.0, 1.0);
        times.observe("gather", &work, 5e-3, false).expect("it is a measurement");
        times.refit();
        let twice = times.predict("gather", &gather(2e4, 2e6, 64.0, 1.0)).expect("it was measured");
        assert!((twice.seconds / 1e-2 - 1.0).abs() < 0.1 && twice.spread > 0.3, "{twice:?}");
    }

    #[test]
    fn a_variant_that_was_hardly_measured_works_like_its_next_of_kin() {
        let mut times = learned();
        let others = [gather(3e4, 9e4, 256.0, 1.0), gather(2e3, 2e5, 16.0, 0.0)];
        let predicted = |times: &KernelTimes, kernel: &str| {
            others.map(|other| times.predict(kernel, &other).expect("it or its kin was measured"))
        };
        let kin = predicted(&times, "gather").map(|estimate| estimate.seconds);
        let unmeasured = predicted(&times, "gather with halo");
        assert_eq!(unmeasured.map(|estimate| estimate.seconds), kin);
        assert!(unmeasured.iter().all(|estimate| estimate.spread >= OF_KIN), "{unmeasured:?}");
        // One call took 1.5 times as long as it would without a halo. So do others, however unlike they are.
        let measured = gather(1e4, 3e5, 64.0, 0.3);
        let seconds = 1.5 * times.predict("gather", &measured).expect("it was measured").seconds;
        times.observe("gather with halo", &measured, seconds, false).expect("it is a measurement");
        times.refit();
        for (got, kin) in predicted(&times, "gather with halo").iter().zip(kin) {
            assert!((got.seconds / kin / 1.5).ln().abs() < 0.05, "{} times", got.seconds / kin);
        }
    }

    #[test]
    fn a_few_small_products_do_not_say_that_operations_are_free() {
        let profile = Profile { memory_bytes_per_s: 33e9, flops_per_s: 180e9, launch_s: 1e-7, ..profile() };
        let mut times = KernelTimes::new(&profile);
        let product = |[rows, k, m]: [f64; 3]| {
            KernelWork::call()
                .with(Quantity::Rows, rows)
                .with(Quantity::StreamedBytes, 4.0 * rows * (k + m))
                .with(Quantity::Flops, 2.0 * rows * k * m)
                .with(Quantity::ProductCells, rows * (k + m))
        };
        // Measured on a machine with this profile. The second is slow.
        for (sizes, seconds) in [([3e3, 64.0, 16.0], 48e-6), ([3e3, 16.0, 7.0], 24e-6), ([3e3, 64.0, 16.0], 40e-6)] {
            times.observe("linear", &product(sizes), seconds, false).expect("it is a measurement");
        }
        times.refit();
        let large = product([6e4, 600.0, 128.0]);
        let got = times.predict("linear", &large).expect("it was measured").seconds / times.by_profile(&large);
        assert!((0.33..1.6).contains(&got), "{got} times what the profile says");
    }

    #[test]
    fn runs_are_added_to_the_suite() {
        let mut times = learned();
        for i in 0..1100 {
            times.observe("gather", &gather(1e3 + f64::from(i), 1e4, 64.0, 0.0), 1e-4, false).expect("a measurement");
        }
        assert_eq!(times.kernels().map(|(_, counts, _)| counts).collect::<Vec<_>>(), [[36, 1024]]);
        for bad in [0.0, -1.0, f64::NAN] {
            times.observe("gather", &KernelWork::call(), bad, false).expect_err("no clock says that");
        }
        let odd = KernelWork::call().with(Quantity::Rows, f64::INFINITY);
        times.observe("gather", &odd, 1.0, false).expect_err("no call has that many rows");
    }

    #[test]
    fn files_are_read_back_and_checked() {
        let times = learned();
        let json = times.to_json();
        assert_eq!(KernelTimes::from_json(&json, &profile()).expect("it was written"), times);
        for broken in
            [&json[..json.len() / 2], "{}", &json.replace("times 1", "times 0"), &json.replace("[1.0,", "[-1.0,")]
        {
            KernelTimes::from_json(broken, &profile()).expect_err("it is broken");
        }
    }
}
