//! Measures of the quality of predictions.

/// Returns the mean of `|predicted - measured| / measured`; `None` if the slices are empty.
///
/// # Panics
/// If the slices differ in length.
pub fn mean_absolute_percentage_error(predicted: &[f64], measured: &[f64]) -> Option<f64> {
    assert_eq!(predicted.len(), measured.len(), "one prediction for each measurement");
    let errors = predicted.iter().zip(measured).map(|(predicted, measured)| (predicted - measured).abs() / measured);
    (!measured.is_empty()).then(|| errors.sum::<f64>() / measured.len() as f64)
}

/// Returns Spearman's rank correlation: 1 if the predictions have the order of the measurements, -1 for the reverse
/// order. Equal values share the mean of their ranks. `None` if all values of one side are equal, or if there are none.
///
/// # Panics
/// If the slices differ in length.
/// # Source
/// Spearman 1904; computed as the linear correlation of the ranks.
pub fn rank_correlation(predicted: &[f64], measured: &[f64]) -> Option<f64> {
    assert_eq!(predicted.len(), measured.len(), "one prediction for each measurement");
    let (a, b) = (ranks(predicted), ranks(measured));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (scale > 0.0).then(|| product(&a, &b) / scale)
}

/// Returns the rank of each value in ascending order, from 0. Equal values get the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for group in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let mean = first as f64 + (group.len() as f64 - 1.0) / 2.0;
        group.iter().for_each(|&i| ranks[i] = mean);
        first += group.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_shares_of_what_was_measured() {
        assert_eq!(mean_absolute_percentage_error(&[1.5, 3.0], &[1.0, 4.0]), Some(0.375));
        assert_eq!(mean_absolute_percentage_error(&[], &[]), None);
    }

    #[test]
    fn ranks_correlate() {
        let measured = [1.0, 5.0, 7.0, 100.0];
        assert_eq!(rank_correlation(&[2.0, 3.0, 4.0, 5.0], &measured), Some(1.0));
        assert_eq!(rank_correlation(&[5.0, 4.0, 3.0, 2.0], &measured), Some(-1.0));
        assert_eq!(rank_correlation(&[2.0; 4], &measured), None);
        assert_eq!(rank_correlation(&[], &[]), None);
        // The formula with squared rank differences: 1 - 6 * (1 + 1) / (4 * 15).
        let swapped = rank_correlation(&[3.0, 2.0, 4.0, 5.0], &measured).expect("they differ");
        assert!((swapped - 0.8).abs() < 1e-12);
        // With a tie: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
        let tied = rank_correlation(&[1.0, 2.0, 2.0, 3.0], &measured).expect("they differ");
        assert!((tied - 4.5 / (4.5f64 * 5.0).sqrt()).abs() < 1e-12);
    }
}
