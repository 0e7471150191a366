//! The predicted and the measured seconds of a training's kernels, side by side.

use std::collections::BTreeMap;

use lapidary_cost_model::KernelTimes;
use serde_json::{Value, json};

use super::output::{align, count, seconds, table};
use crate::runtime::MeasuredCall;

/// The columns of [`Compared::rows`].
pub(super) const COLUMNS: [&str; 5] = ["kernel, in an epoch", "calls", "predicted", "measured", "ratio"];

/// The times of an epoch, predicted and measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    /// Number of epochs whose typical times these are.
    pub epochs: usize,
    /// Each kernel, the slowest first.
    pub kernels: Vec<(String, Sum)>,
    /// Each part.
    pub parts: Vec<Sum>,
}

/// Calls of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    /// Their number.
    pub calls: u64,
    /// Their measured seconds.
    pub measured_s: f64,
    /// Their predicted seconds; `None` if the time of a kernel is not known.
    pub predicted_s: Option<f64>,
}

impl Sum {
    /// Adds other calls.
    fn add(&mut self, other: Self) {
        if self.calls == 0 || other.calls == 0 {
            *self = if self.calls == 0 { other } else { *self };
            return;
        }
        *self = Self {
            calls: self.calls + other.calls,
            measured_s: self.measured_s + other.measured_s,
            predicted_s: self.predicted_s.zip(other.predicted_s).map(|(a, b)| a + b),
        };
    }

    /// Returns the texts of its row, behind its name.
    fn texts(&self) -> [String; 4] {
        let ratio = self.predicted_s.map(|predicted_s| format!("{:.2}", predicted_s / self.measured_s));
        [
            count(self.calls),
            self.predicted_s.map_or("not known".into(), seconds),
            seconds(self.measured_s),
            ratio.unwrap_or_else(|| "-".into()),
        ]
    }
}

impl Compared {
    /// Predicts each of the measured calls of an epoch, which are typical for so many epochs.
    pub(super) fn new(times: &KernelTimes, calls: &[MeasuredCall], epochs: usize) -> Self {
        let mut kernels: BTreeMap<&str, Sum> = BTreeMap::new();
        let mut parts = vec![Sum::default(); calls.iter().map(|call| call.part + 1).max().unwrap_or(0)];
        for call in calls {
            let predicted_s = times.predict(&call.kernel, &call.work).map(|estimate| estimate.seconds);
            let sum = Sum { calls: 1, measured_s: call.seconds, predicted_s };
            kernels.entry(&call.kernel).or_default().add(sum);
            parts[call.part].add(sum);
        }
        let mut kernels: Vec<(String, Sum)> = kernels.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect();
        kernels.sort_by(|a, b| b.1.measured_s.total_cmp(&a.1.measured_s));
        Self { epochs, kernels, parts }
    }

    /// Whether the times of all kernels were known.
    pub(super) fn is_known(&self) -> bool {
        self.kernels.iter().all(|(_, sum)| sum.predicted_s.is_some())
    }

    /// Returns a row for each kernel, and one for all.
    pub(super) fn rows(&self) -> Vec<[String; 5]> {
        let mut all = Sum::default();
        self.kernels.iter().for_each(|(_, sum)| all.add(*sum));
        let row = |name: &str, sum: &Sum| {
            let [calls, predicted, measured, ratio] = sum.texts();
            [name.to_owned(), calls, predicted, measured, ratio]
        };
        let of_kernels = self.kernels.iter().map(|(name, sum)| row(name, sum));
        of_kernels.chain([row("all", &all)]).collect()
    }

    /// Returns the rows as a table for a terminal.
    pub(super) fn text(&self) -> String {
        let mut rows = table(COLUMNS);
        rows.add_rows(self.rows());
        format!("{}\n", align(rows))
    }

    /// Returns the line for `--json`.
    pub(super) fn json(&self) -> Value {
        let line = |(name, sum): &(String, Sum)| {
            json!({
                "kernel": name,
                "calls": sum.calls,
                "predicted_seconds": sum.predicted_s,
                "measured_seconds": sum.measured_s,
            })
        };
        let kernels: Vec<Value> = self.kernels.iter().map(line).collect();
        json!({ "event": "kernels", "epochs": self.epochs, "kernels": kernels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_known_if_all_of_its_calls_are() {
        let call = |measured_s, predicted_s| Sum { calls: 1, measured_s, predicted_s };
        let mut sum = Sum::default();
        sum.add(call(2.0, Some(1.0)));
        sum.add(Sum::default());
        sum.add(call(2.0, Some(0.5)));
        assert_eq!(sum, Sum { calls: 2, measured_s: 4.0, predicted_s: Some(1.5) });
        assert_eq!(sum.texts()[3], "0.38");
        sum.add(call(1.0, None));
        sum.add(call(1.0, Some(1.0)));
        assert_eq!(sum, Sum { calls: 4, measured_s: 6.0, predicted_s: None });
        assert_eq!(sum.texts(), ["4".to_owned(), "not known".into(), seconds(6.0), "-".into()]);
    }
}
