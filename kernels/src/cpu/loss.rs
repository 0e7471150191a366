//! Softmax cross-entropy on a selection of rows, its gradient, and the count of right answers.

use pulp::{Arch, Simd, WithSimd};

use super::parallel::{CHUNK, for_rows, map_chunks};
use crate::error::{Result, check_shape};
use crate::view::{MatMut, MatView, Targets};

/// `loss = 1 / count * sum over selected v of -log softmax(logits[v])[labels[v]]`; 0 if `count` is 0.
///
/// # Shapes
/// `logits`: `[n, classes]`; labels and split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`].
/// # Order
/// Each row's largest logit is subtracted first. Rows are added in `f64`, in parts that depend on the shape alone:
/// the same bits on any number of threads.
pub fn softmax_cross_entropy(logits: MatView<'_>, targets: Targets<'_>, count: u64) -> Result<f32> {
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, "softmax_cross_entropy", n)?;
    if count == 0 || classes == 0 {
        return Ok(0.0);
    }
    let sums = map_chunks(n, rows_of_part(classes), |rows| {
        let mut exps = vec![0.0; classes];
        let mut sum = 0.0;
        for r in rows {
            if let Some(label) = targets.label(r, classes) {
                let (largest, total) = exponentials(logits.row(r), &mut exps);
                sum += total.ln() - (f64::from(logits.row(r)[label]) - f64::from(largest));
            }
        }
        sum
    });
    Ok((sums.iter().sum::<f64>() / count as f64) as f32)
}

/// The gradient of [`softmax_cross_entropy`] for the logits: `(softmax - onehot) / count` in selected rows, 0 in the
/// others, and everywhere if `count` is 0.
///
/// # Shapes
/// `logits`, `out`: `[n, classes]`; `out` is overwritten; labels and split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
pub fn softmax_cross_entropy_grad(
    logits: MatView<'_>,
    targets: Targets<'_>,
    count: u64,
    mut out: MatMut<'_>,
) -> Result<()> {
    const CALL: &str = "softmax_cross_entropy_grad";
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, CALL, n)?;
    check_shape(CALL, "out", [n, classes], [out.rows(), out.cols()])?;
    for_rows(out.data(), classes, |first, out| {
        for (i, out) in out.chunks_exact_mut(classes).enumerate() {
            let selected = if count == 0 { None } else { targets.label(first + i, classes) };
            let Some(label) = selected else {
                out.fill(0.0);
                continue;
            };
            let (_, total) = exponentials(logits.row(first + i), out);
            let factor = (1.0 / (total * count as f64)) as f32;
            let others = total - f64::from(out[label]);
            for out in out.iter_mut() {
                *out *= factor;
            }
            // exp / total - 1, without the cancellation.
            out[label] = (-others / (total * count as f64)) as f32;
        }
    });
    Ok(())
}

/// How many selected rows have their largest logit (the first on a tie) at the label, and how many are selected.
/// NaN is never the largest.
///
/// # Shapes
/// `logits`: `[n, classes]`; labels and split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`].
pub fn count_correct(logits: MatView<'_>, targets: Targets<'_>) -> Result<[u64; 2]> {
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, "count_correct", n)?;
    let counts = map_chunks(n, rows_of_part(classes), |rows| {
        let mut counts = [0, 0];
        for r in rows {
            if let Some(label) = targets.label(r, classes) {
                counts[0] += u64::from(first_largest(logits.row(r)) == Some(label));
                counts[1] += 1;
            }
        }
        counts
    });
    Ok(counts.iter().fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]]))
}

fn check_targets(targets: Targets<'_>, call: &'static str, n: usize) -> Result<()> {
    check_shape(call, "labels", [n, 1], [targets.labels.len(), 1])?;
    check_shape(call, "split", [n, 1], [targets.split.len(), 1])
}

fn rows_of_part(classes: usize) -> usize {
    (CHUNK / classes.max(1)).max(16)
}

fn first_largest(row: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (column, &x) in row.iter().enumerate() {
        if !x.is_nan() && best.is_none_or(|best| x > row[best]) {
            best = Some(column);
        }
    }
    best
}

/// Writes `exp(x - largest)` and returns the largest and the sum.
fn exponentials(row: &[f32], out: &mut [f32]) -> (f32, f64) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    Arch::new().dispatch(ExpBelow { largest, row, out });
    (largest, out.iter().copied().map(f64::from).sum())
}

/// `out = exp(row - largest)`.
struct ExpBelow<'a> {
    largest: f32,
    row: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for ExpBelow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        for (out, &x) in self.out.iter_mut().zip(self.row) {
            *out = exp(x - self.largest);
        }
    }
}

/// `e^x` for `x <= 0` with a relative error of about 2e-7, in operations that vectorise: `2^k * e^r` with
/// `|r| <= ln 2 / 2` and Taylor's polynomial for `e^r`. Below -87 it is `e^-87`, which is 0 beside the largest
/// term's 1. NaN stays NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    /// Adding it leaves the nearest integer in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the product of the first with a small integer is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < LOWEST { LOWEST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = x - k * LN_2[0] - k * LN_2[1];
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    series * power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_is_exp() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 3e-7 * want, "exp({x}) = {}, not {want}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert_eq!(exp(0.0), 1.0);
    }
}
