//! Sigmoid cross-entropy over selected rows for multi-label data, its gradient, and the counts for micro-F1.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::exp::{exp, ln_1p};
use super::parallel::{CHUNK, for_rows, map_chunks, rows_of_part};
use super::sum::sums;
use crate::error::{Result, check_shape};
use crate::view::{MatMut, MatView, MultiTargets};

/// `loss = 1 / (count * classes) * sum over all cells z of the selected rows of max(z, 0) - z * t + ln(1 + exp(-|z|))`;
/// 0 if `count` is 0.
///
/// # Shapes
/// `logits`, targets: `[n, classes]`; split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`].
/// # Order
/// Cells are computed in `f32` and added in `f64`, in parts that depend on the shape alone: the same bits on any number
/// of threads.
/// # Source
/// `torch.nn.BCEWithLogitsLoss`.
pub fn sigmoid_cross_entropy(logits: MatView<'_>, targets: MultiTargets<'_>, count: u64) -> Result<f32> {
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, "sigmoid_cross_entropy", n, classes)?;
    if count == 0 || classes == 0 {
        return Ok(0.0);
    }
    let parts = map_chunks(n, rows_of_part(classes), |rows| Arch::new().dispatch(LossPart { rows, logits, targets }));
    Ok((parts.iter().sum::<f64>() / cells(count, classes)) as f32)
}

/// The loss over the selected rows of a range.
struct LossPart<'a> {
    rows: Range<usize>,
    logits: MatView<'a>,
    targets: MultiTargets<'a>,
}

impl WithSimd for LossPart<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f64 {
        let mut losses = vec![0.0f32; self.logits.cols()];
        let mut total = 0.0;
        for r in self.rows {
            if let Some(targets) = self.targets.row(r) {
                for ((loss, &z), &target) in losses.iter_mut().zip(self.logits.row(r)).zip(targets) {
                    let wrong = against(z, target);
                    *loss = if wrong > 0.0 { wrong } else { 0.0 } + ln_1p(exp(-wrong.abs()));
                }
                let [sum] = sums([&losses], |[loss]| [f64::from(loss)]);
                total += sum;
            }
        }
        total
    }
}

/// Computes the gradient of [`sigmoid_cross_entropy`] with respect to the logits: `(sigmoid(z) - t) / (count *
/// classes)` in selected rows, 0 in the others; 0 everywhere if `count` is 0.
///
/// # Shapes
/// `logits`, targets, `out`: `[n, classes]`; `out` is overwritten; split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
pub fn sigmoid_cross_entropy_grad(
    logits: MatView<'_>,
    targets: MultiTargets<'_>,
    count: u64,
    mut out: MatMut<'_>,
) -> Result<()> {
    const CALL: &str = "sigmoid_cross_entropy_grad";
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, CALL, n, classes)?;
    check_shape(CALL, "out", [n, classes], [out.rows(), out.cols()])?;
    if count == 0 {
        out.data().fill(0.0);
        return Ok(());
    }
    let factor = (1.0 / cells(count, classes)) as f32;
    for_rows(out.data(), classes, |first, out| {
        Arch::new().dispatch(GradRows { first, logits, targets, factor, out });
    });
    Ok(())
}

/// A task of consecutive rows; `first` is the index of the first one.
struct GradRows<'a> {
    first: usize,
    logits: MatView<'a>,
    targets: MultiTargets<'a>,
    factor: f32,
    out: &'a mut [f32],
}

impl WithSimd for GradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { first, logits, targets, factor, out } = self;
        for (i, out) in out.chunks_exact_mut(logits.cols()).enumerate() {
            let Some(targets) = targets.row(first + i) else {
                out.fill(0.0);
                continue;
            };
            for ((out, &z), &target) in out.iter_mut().zip(logits.row(first + i)).zip(targets) {
                // sigmoid(z) - 1 is -sigmoid(-z); this form avoids cancellation.
                let wrong = against(z, target);
                let e = exp(-wrong.abs());
                let p = if wrong >= 0.0 { 1.0 } else { e } / (1.0 + e);
                *out = against(p, target) * factor;
            }
        }
    }
}

/// Returns `[true positives, false positives, false negatives]` over all cells of the selected rows. A cell is
/// predicted positive if its logit is above 0, so NaN is negative.
///
/// # Shapes
/// `logits`, targets: `[n, classes]`; split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`].
pub fn count_micro(logits: MatView<'_>, targets: MultiTargets<'_>) -> Result<[u64; 3]> {
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, "count_micro", n, classes)?;
    let parts = map_chunks(n, rows_of_part(classes), |rows| Arch::new().dispatch(CountPart { rows, logits, targets }));
    Ok(parts.iter().fold([0; 3], |sum, part| std::array::from_fn(|i| sum[i] + part[i])))
}

/// The counts over the selected rows of a range.
struct CountPart<'a> {
    rows: Range<usize>,
    logits: MatView<'a>,
    targets: MultiTargets<'a>,
}

impl WithSimd for CountPart<'_> {
    type Output = [u64; 3];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> [u64; 3] {
        let mut counts = [0; 3];
        for r in self.rows {
            let Some(targets) = self.targets.row(r) else { continue };
            // The pieces are short enough that u32 cannot overflow.
            for (logits, targets) in self.logits.row(r).chunks(CHUNK).zip(targets.chunks(CHUNK)) {
                let (mut positive, mut wanted, mut both) = (0u32, 0u32, 0u32);
                for (&z, &target) in logits.iter().zip(targets) {
                    let (is_positive, is_wanted) = (u32::from(z > 0.0), u32::from(target != 0));
                    positive += is_positive;
                    wanted += is_wanted;
                    both += is_positive & is_wanted;
                }
                let piece = [both, positive - both, wanted - both];
                counts.iter_mut().zip(piece).for_each(|(count, piece)| *count += u64::from(piece));
            }
        }
        counts
    }
}

fn check_targets(targets: MultiTargets<'_>, call: &'static str, n: usize, classes: usize) -> Result<()> {
    check_shape(call, "classes", [classes, 1], [targets.classes, 1])?;
    check_shape(call, "targets", [n * classes, 1], [targets.targets.len(), 1])?;
    check_shape(call, "split", [n, 1], [targets.split.len(), 1])
}

/// Returns the divisor of the sum over cells.
fn cells(count: u64, classes: usize) -> f64 {
    count as f64 * classes as f64
}

/// Returns `x` if the target is 0, else `-x`: how far a logit is on the wrong side of 0.
#[inline(always)]
fn against(x: f32, target: u8) -> f32 {
    if target == 0 { x } else { -x }
}
