//! Estimates how far the measured times of a few parts are to be trusted over the model.
//!
//! The measured time of a part's gathers differs from the prediction for two reasons: the model does not know
//! everything about the graph and the machine, and something disturbed the measurement. A disturbance hits one call;
//! what the model does not know affects all gathers of the part alike. So the disagreement between the calls of one
//! part shows how uncertain their mean is. Parts are told apart only as far as they differ by more than that: their
//! factors shrink towards the mean of all parts (James & Stein 1961).

/// The prior standard deviation of the logarithm of one call's time, and how many measurements this prior is worth.
const FIRST_NOISE: f64 = 0.1;
const FIRST_WEIGHT: f64 = 1.0;

/// Times of the gathers of one part.
#[derive(Clone, Debug, Default)]
pub(super) struct Gathers {
    /// Total measured and predicted time of all gathers, in seconds.
    pub(super) measured_s: f64,
    pub(super) predicted_s: f64,
    /// For each operation, the ratio of measured to predicted time of each call.
    pub(super) calls: Vec<Vec<f64>>,
}

/// Returns for each part the factor by which its gathers take longer than predicted, shrunk as described above. The
/// factor is 1 for a part without measurements.
///
/// # Cost
/// O(calls).
pub(super) fn factors(parts: &[Gathers]) -> Vec<f64> {
    let log = |part: &Gathers| {
        let ratio = part.measured_s / part.predicted_s;
        (ratio.is_finite() && ratio > 0.0).then(|| ratio.ln())
    };
    let logs: Vec<Option<f64>> = parts.iter().map(log).collect();
    let known: Vec<f64> = logs.iter().flatten().copied().collect();
    let mean_log = mean(&known);
    let variance = known.iter().map(|log| (log - mean_log).powi(2)).sum::<f64>() / (known.len().max(2) - 1) as f64;
    let certain = if variance > 0.0 { (1.0 - noise(parts) / variance).max(0.0) } else { 0.0 };
    logs.into_iter().map(|log| log.map_or(1.0, |log| (mean_log + certain * (log - mean_log)).exp())).collect()
}

/// Returns the variance of a part's mean that the disagreement of single calls explains.
fn noise(parts: &[Gathers]) -> f64 {
    let logs = |part: &Gathers| -> Vec<Vec<f64>> {
        part.calls.iter().map(|calls| calls.iter().map(|ratio| ratio.ln()).collect()).collect()
    };
    let parts: Vec<Vec<Vec<f64>>> = parts.iter().map(logs).collect();
    let ops = parts.iter().map(Vec::len).max().unwrap_or(0);
    let of_op =
        |op: usize| mean(&parts.iter().filter_map(|part| part.get(op)).flatten().copied().collect::<Vec<f64>>());
    let op_means: Vec<f64> = (0..ops).map(of_op).collect();
    let (mut squares, mut calls) = (0.0, 0);
    for part in &parts {
        // Remove what is specific to the operation in all parts.
        let rests: Vec<f64> =
            part.iter().zip(&op_means).flat_map(|(calls, op)| calls.iter().map(move |log| log - op)).collect();
        let part_mean = mean(&rests);
        squares += rests.iter().map(|rest| (rest - part_mean).powi(2)).sum::<f64>();
        calls += rests.len();
    }
    let free = (calls + 1).saturating_sub(ops + parts.len()) as f64;
    let of_one_call = (squares + FIRST_WEIGHT * FIRST_NOISE.powi(2)) / (free + FIRST_WEIGHT);
    of_one_call * parts.len() as f64 / calls.max(1) as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts whose gathers took these multiples of the prediction.
    fn parts(calls: &[&[f64]]) -> Vec<Gathers> {
        let of_part = |calls: &&[f64]| Gathers {
            measured_s: calls.iter().sum(),
            predicted_s: calls.len() as f64,
            calls: calls.iter().map(|&ratio| vec![ratio]).collect(),
        };
        calls.iter().map(of_part).collect()
    }

    #[test]
    fn calls_that_agree_are_believed() {
        let got = factors(&parts(&[&[2.0, 2.0, 2.0], &[1.0, 1.0, 1.0], &[0.5, 0.5, 0.5]]));
        for (got, want) in got.iter().zip([2.0, 1.0, 0.5]) {
            assert!((got / want - 1.0f64).abs() < 0.01, "{got} is not {want}");
        }
    }

    #[test]
    fn calls_that_disagree_are_not() {
        let got = factors(&parts(&[&[1.6, 0.8], &[0.9, 1.4], &[1.3, 0.9], &[0.7, 1.6]]));
        assert!(got.iter().all(|factor| (factor / got[0] - 1.0).abs() < 0.01), "{got:?} are told apart");
        assert!((1.0..1.3).contains(&got[0]), "{} is not their mean", got[0]);
    }

    #[test]
    fn what_sets_an_operation_apart_everywhere_is_no_noise() {
        let got = factors(&parts(&[&[4.0, 1.0, 2.0], &[2.0, 0.5, 1.0], &[1.0, 0.25, 0.5]]));
        assert!((got[0] / got[2] - 4.0).abs() < 0.1, "{got:?}");
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        assert_eq!(factors(&[]), Vec::<f64>::new());
        assert_eq!(factors(&[Gathers::default(), Gathers::default()]), [1.0, 1.0]);
        let mut some = parts(&[&[2.0, 2.0], &[2.0, 2.0]]);
        some.push(Gathers::default());
        assert_eq!(factors(&some)[2], 1.0);
    }
}
