//! Least squares with values that are not negative.
//!
//! The best of all non-negative values is the least-squares fit to a subset of the columns. An active-set method finds it.
//!
//! # Source
//! Lawson & Hanson, "Solving least squares problems" (1974), chapter 23.

use linfa_linalg::qr::LeastSquaresQrInto;
use ndarray::{Array1, Array2, ArrayView1, Axis};

/// Returns the least-squares fit to some columns; the other values are 0. `None` if it cannot be computed.
fn least_squares(rows: &Array2<f64>, target: &Array1<f64>, columns: &[usize]) -> Option<Vec<f64>> {
    let mut full = vec![0.0; rows.ncols()];
    if columns.is_empty() {
        return Some(full);
    }
    let target = target.clone().insert_axis(Axis(1));
    let fitted = rows.select(Axis(1), columns).least_squares_into(target).ok()?;
    for (&column, &value) in columns.iter().zip(&fitted) {
        full[column] = value;
    }
    full.iter().all(|value| value.is_finite()).then_some(full)
}

/// Returns the best non-negative fit. It moves one column at a time away from the bound at 0, and moves columns back
/// that hit the bound.
pub(crate) fn active_set(rows: &Array2<f64>, target: &Array1<f64>) -> Vec<f64> {
    let k = rows.ncols();
    let mut values = vec![0.0; k];
    let mut free = vec![false; k];
    // Each round lowers the loss; the limit prevents endless cycles through rounding errors.
    for _ in 0..3 * k {
        let gradient = rows.t().dot(&(target - &rows.dot(&ArrayView1::from(&values))));
        let steepest = (0..k).filter(|&j| !free[j]).max_by(|&a, &b| gradient[a].total_cmp(&gradient[b]));
        let Some(next) = steepest.filter(|&j| gradient[j] > 1e-12) else { break };
        free[next] = true;
        loop {
            let columns: Vec<usize> = (0..k).filter(|&j| free[j]).collect();
            let Some(wanted) = least_squares(rows, target, &columns) else { return values };
            // The largest step until a column is back at 0, and that column.
            let blocked = columns.iter().filter(|&&j| wanted[j] <= 0.0);
            let nearest = blocked.map(|&j| (values[j] / (values[j] - wanted[j]).max(f64::MIN_POSITIVE), j));
            let nearest = nearest.min_by(|a, b| a.0.total_cmp(&b.0));
            let step = nearest.map_or(1.0, |(step, _)| step);
            for &j in &columns {
                values[j] += step * (wanted[j] - values[j]);
            }
            let Some((_, bound)) = nearest else { break };
            (values[bound], free[bound]) = (0.0, false);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the sum of squared residuals.
    fn loss(rows: &Array2<f64>, target: &Array1<f64>, values: &[f64]) -> f64 {
        let residual = rows.dot(&ArrayView1::from(values)) - target;
        residual.dot(&residual)
    }

    /// Returns the best non-negative fit, by trying all subsets of the columns.
    fn best_subset(rows: &Array2<f64>, target: &Array1<f64>) -> Vec<f64> {
        let k = rows.ncols();
        let mut best = (f64::INFINITY, vec![0.0; k]);
        for subset in (0..1usize << k).rev() {
            let columns: Vec<usize> = (0..k).filter(|column| subset >> column & 1 == 1).collect();
            let Some(values) = least_squares(rows, target, &columns) else { continue };
            if values.iter().any(|&value| value < 0.0) {
                continue;
            }
            let loss = loss(rows, target, &values);
            if loss < best.0 {
                best = (loss, values);
            }
            if columns.len() == k {
                break; // nothing is better than the unconstrained fit
            }
        }
        best.1
    }

    proptest! {
        #[test]
        fn it_is_the_best_of_all_subsets(
            cells in proptest::collection::vec(-1.0f64..1.0, 15 * 5),
            noise in proptest::collection::vec(-1.0f64..1.0, 15),
        ) {
            let rows = Array2::from_shape_vec((15, 5), cells).expect("the size is right");
            let target = Array1::from(noise);
            let (subset, active) = (best_subset(&rows, &target), active_set(&rows, &target));
            let (a, b) = (loss(&rows, &target, &subset), loss(&rows, &target, &active));
            prop_assert!((a - b).abs() < 1e-9 * (1.0 + a), "{} {}: {:?} {:?}", a, b, subset, active);
            prop_assert!(active.iter().all(|&value| value >= 0.0));
        }
    }
}
