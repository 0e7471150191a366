//! Softmax cross-entropy over selected rows, its gradient, and the count of correct predictions.

use std::ops::Range;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::element::{Element, read, write};
use super::exp::exp;
use super::multi_label::{count_micro, sigmoid_cross_entropy, sigmoid_cross_entropy_grad};
use super::narrow;
use super::parallel::{for_rows, map_chunks, rows_of_part};
use super::slots::Open;
use crate::error::{Result, check_shape};
use crate::op::Loss;
use crate::op::call::{Call, Part};
use crate::storage_type::StorageType;
use crate::view::{MatMut, MatView, MultiTargets, Targets};

pub(super) fn launch(slots: &Open<'_>, op: Loss, call: &Call) -> Result<()> {
    let Part { select, count, .. } = call.part;
    let out = call.out();
    match op {
        Loss::HalfSquares => {
            slots.numbers_mut(out)?.view()[0] = half_squares(slots.mat(call.inputs[0])?.view());
        }
        Loss::SoftmaxCrossEntropy(_)
        | Loss::SoftmaxCrossEntropyGrad(_)
        | Loss::WeightedSoftmaxCrossEntropy(_)
        | Loss::WeightedSoftmaxCrossEntropyGrad(_)
        | Loss::CountCorrect(_) => match call.inputs[0].float() {
            StorageType::F32 => softmax::<f32>(slots, op, call)?,
            StorageType::Bf16 => softmax::<bf16>(slots, op, call)?,
        },
        Loss::SigmoidCrossEntropy(_) | Loss::SigmoidCrossEntropyGrad(_) | Loss::CountMicro(_) => {
            let (logits, split) = (slots.mat(call.inputs[0])?, slots.numbers(call.inputs[2])?);
            let (classes, cells) = (call.inputs[0].cols, slots.numbers(call.inputs[1])?);
            let targets = MultiTargets { targets: cells.view(), classes, split: split.view(), select };
            match op {
                Loss::SigmoidCrossEntropy(_) => {
                    slots.numbers_mut(out)?.view()[0] = sigmoid_cross_entropy(logits.view(), targets, count)?;
                }
                Loss::CountMicro(_) => {
                    slots.numbers_mut(out)?.view().copy_from_slice(&count_micro(logits.view(), targets)?);
                }
                _ => sigmoid_cross_entropy_grad(logits.view(), targets, count, slots.mat_mut(out)?.view())?,
            }
        }
    }
    Ok(())
}

/// Does [`launch`] for softmax over logits of type `E`.
fn softmax<E: Element>(slots: &Open<'_>, op: Loss, call: &Call) -> Result<()> {
    let (Part { select, count, .. }, out) = (call.part, call.out());
    let (logits, labels) = (slots.numbers::<E>(call.inputs[0])?, slots.numbers(call.inputs[1])?);
    let split = slots.numbers(call.inputs[2])?;
    let weights = call.inputs.get(3).map(|&weights| slots.numbers(weights)).transpose()?;
    let weights = weights.as_ref().map(|weights| weights.view());
    let targets = Targets { labels: labels.view(), split: split.view(), select };
    let logits = logits.matrix(call.inputs[0]);
    match op {
        Loss::SoftmaxCrossEntropy(_) | Loss::WeightedSoftmaxCrossEntropy(_) => {
            slots.numbers_mut(out)?.view()[0] = softmax_cross_entropy_as(logits, targets, weights, count)?;
        }
        Loss::CountCorrect(_) => {
            slots.numbers_mut(out)?.view().copy_from_slice(&count_correct_as(logits, targets)?);
        }
        _ => {
            let mut made = slots.numbers_mut::<E>(out)?;
            softmax_cross_entropy_grad_as(logits, targets, weights, count, made.matrix(out))?;
        }
    }
    Ok(())
}

/// Returns some rows of the logits as f32, and their targets.
fn part_of<'a, E: Element>(
    logits: MatView<'a, E>,
    Targets { labels, split, select }: Targets<'a>,
    rows: Range<usize>,
    room: &'a mut Vec<f32>,
) -> (MatView<'a>, Targets<'a>) {
    let classes = logits.cols();
    let cells = read(&logits.data()[rows.start * classes..rows.end * classes], room);
    let part = MatView::new(cells, rows.len(), classes).expect("all cells of the rows");
    (part, Targets { labels: &labels[rows.clone()], split: &split[rows], select })
}

/// Calls `f` for parts of consecutive rows, whose number depends on the classes alone. Returns one value per part, in order.
fn map_parts<E: Element, R: Send>(
    logits: MatView<'_, E>,
    targets: Targets<'_>,
    f: impl Fn(MatView<'_>, Targets<'_>) -> R + Sync,
) -> Vec<R> {
    map_chunks(logits.rows(), rows_of_part(logits.cols()), |rows| {
        let mut room = Vec::new();
        let (logits, targets) = part_of(logits, targets, rows, &mut room);
        f(logits, targets)
    })
}

/// Returns `1 / 2 * sum over all cells of x^2`.
///
/// # Shapes
/// `x`: `[n, d]`.
/// # Order
/// Cells are squared and added in `f64`, in parts that depend on the shape alone: the same bits on any number of
/// threads.
pub fn half_squares(x: MatView<'_>) -> f32 {
    let sums = map_chunks(x.rows(), rows_of_part(x.cols()), |rows| {
        let row = |r| x.row(r).iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        rows.map(row).sum::<f64>()
    });
    (sums.iter().sum::<f64>() / 2.0) as f32
}

/// `loss = 1 / count * sum over selected v of -weights[labels[v]] * log softmax(logits[v])[labels[v]]`; 0 if
/// `count` is 0. Without weights of the classes, all are 1.
///
/// # Shapes
/// `logits`: `[n, classes]`; labels and split: `[n]`; weights, if any: `[classes]`.
/// # Errors
/// [`crate::Error::Shape`].
/// # Order
/// The largest logit of each row is subtracted first. Rows are added in `f64`, in parts that depend on the shape alone,
/// and those of at most 16 classes in an order that depends on which rows are selected: the same bits on any number of
/// threads.
pub fn softmax_cross_entropy(
    logits: MatView<'_>,
    targets: Targets<'_>,
    weights: Option<&[f32]>,
    count: u64,
) -> Result<f32> {
    softmax_cross_entropy_as(logits, targets, weights, count)
}

/// Does [`softmax_cross_entropy`] for rows of any type.
fn softmax_cross_entropy_as<E: Element>(
    logits: MatView<'_, E>,
    targets: Targets<'_>,
    weights: Option<&[f32]>,
    count: u64,
) -> Result<f32> {
    const CALL: &str = "softmax_cross_entropy";
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, CALL, n)?;
    check_weights(weights, CALL, classes)?;
    if count == 0 || classes == 0 {
        return Ok(0.0);
    }
    let sums = map_parts(logits, targets, |logits, targets| {
        if classes <= narrow::MOST && weights.is_none() {
            return Arch::new().dispatch(narrow::LossPart { logits, targets });
        }
        let mut exps = vec![0.0; classes];
        let mut sum = 0.0;
        for r in 0..logits.rows() {
            if let Some(label) = targets.label(r, classes) {
                let (largest, total) = exponentials(logits.row(r), &mut exps);
                let loss = total.ln() - (f64::from(logits.row(r)[label]) - f64::from(largest));
                sum += weight_of(weights, label) * loss;
            }
        }
        sum
    });
    Ok((sums.iter().sum::<f64>() / count as f64) as f32)
}

/// Computes the gradient of [`softmax_cross_entropy`] with respect to the logits: `weights[labels[v]] * (softmax -
/// onehot) / count` in selected rows, 0 in the others; 0 everywhere if `count` is 0. Without weights, all are 1.
///
/// # Shapes
/// `logits`, `out`: `[n, classes]`; `out` is overwritten; labels and split: `[n]`; weights, if any: `[classes]`.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
pub fn softmax_cross_entropy_grad(
    logits: MatView<'_>,
    targets: Targets<'_>,
    weights: Option<&[f32]>,
    count: u64,
    out: MatMut<'_>,
) -> Result<()> {
    softmax_cross_entropy_grad_as(logits, targets, weights, count, out)
}

/// Does [`softmax_cross_entropy_grad`] for rows of any type.
fn softmax_cross_entropy_grad_as<E: Element>(
    logits: MatView<'_, E>,
    targets: Targets<'_>,
    weights: Option<&[f32]>,
    count: u64,
    mut out: MatMut<'_, E>,
) -> Result<()> {
    const CALL: &str = "softmax_cross_entropy_grad";
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, CALL, n)?;
    check_weights(weights, CALL, classes)?;
    check_shape(CALL, "out", [n, classes], [out.rows(), out.cols()])?;
    let grad_rows = |logits: MatView<'_>, targets: Targets<'_>, out: &mut [f32]| {
        if count == 0 {
            return out.fill(0.0);
        }
        if classes <= narrow::MOST && weights.is_none() {
            return Arch::new().dispatch(narrow::GradRows { logits, targets, count, out });
        }
        for (r, out) in out.chunks_exact_mut(classes).enumerate() {
            let Some(label) = targets.label(r, classes) else {
                out.fill(0.0);
                continue;
            };
            let (_, total) = exponentials(logits.row(r), out);
            let weight = weight_of(weights, label);
            let factor = (weight / (total * count as f64)) as f32;
            let others = total - f64::from(out[label]);
            for out in out.iter_mut() {
                *out *= factor;
            }
            // This form of exp / total - 1 avoids cancellation.
            out[label] = (-weight * others / (total * count as f64)) as f32;
        }
    };
    for_rows(out.data(), classes, |first, out| {
        let (mut wide, mut room) = (Vec::new(), Vec::new());
        let rows = first..first + out.len() / classes.max(1);
        let (logits, targets) = part_of(logits, targets, rows, &mut wide);
        write(out, &mut room, |out| grad_rows(logits, targets, out));
    });
    Ok(())
}

/// Counts the selected rows whose largest logit (the first on a tie) is at the label, and all selected rows. NaN is
/// never the largest.
///
/// # Shapes
/// `logits`: `[n, classes]`; labels and split: `[n]`.
/// # Errors
/// [`crate::Error::Shape`].
pub fn count_correct(logits: MatView<'_>, targets: Targets<'_>) -> Result<[u64; 2]> {
    count_correct_as(logits, targets)
}

/// Does [`count_correct`] for rows of any type.
fn count_correct_as<E: Element>(logits: MatView<'_, E>, targets: Targets<'_>) -> Result<[u64; 2]> {
    let (n, classes) = (logits.rows(), logits.cols());
    check_targets(targets, "count_correct", n)?;
    let counts = map_parts(logits, targets, |logits, targets| {
        if classes <= narrow::MOST_COUNTED {
            Arch::new().dispatch(narrow::CountPart { logits, targets })
        } else {
            Arch::new().dispatch(CountPart { logits, targets })
        }
    });
    Ok(counts.iter().fold([0, 0], |sum, part| [sum[0] + part[0], sum[1] + part[1]]))
}

fn check_targets(targets: Targets<'_>, call: &'static str, n: usize) -> Result<()> {
    check_shape(call, "labels", [n, 1], [targets.labels.len(), 1])?;
    check_shape(call, "split", [n, 1], [targets.split.len(), 1])
}

fn check_weights(weights: Option<&[f32]>, call: &'static str, classes: usize) -> Result<()> {
    weights.map_or(Ok(()), |weights| check_shape(call, "weights", [1, classes], [1, weights.len()]))
}

/// Returns how much a row of this class counts.
fn weight_of(weights: Option<&[f32]>, label: usize) -> f64 {
    weights.map_or(1.0, |weights| f64::from(weights[label]))
}

/// The selected rows whose largest logit is at the label, and all selected rows.
struct CountPart<'a> {
    logits: MatView<'a>,
    targets: Targets<'a>,
}

impl WithSimd for CountPart<'_> {
    type Output = [u64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [u64; 2] {
        let Self { logits, targets } = self;
        let mut counts = [0, 0];
        for r in 0..logits.rows() {
            if let Some(label) = targets.label(r, logits.cols()) {
                let row = logits.row(r);
                let largest = largest(simd, row);
                // An equal logit before the label would be the first. In a row of NaN the label is not the largest.
                let correct = row[label] == largest && !row[..label].contains(&largest);
                counts[0] += u64::from(correct);
                counts[1] += 1;
            }
        }
        counts
    }
}

/// Returns the largest number of a row. NaN is never the largest; a row of NaN has `-inf`.
#[inline(always)]
fn largest<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(row);
    let mut largest = simd.splat_f32s(f32::NEG_INFINITY);
    for &x in vectors {
        largest = simd.select_f32s(simd.greater_than_f32s(x, largest), x, largest);
    }
    let mut largest = simd.reduce_max_f32s(largest);
    for &x in rest {
        largest = if x > largest { x } else { largest };
    }
    largest
}

/// Writes `exp(x - largest)`; returns the largest logit and the sum.
fn exponentials(row: &[f32], out: &mut [f32]) -> (f32, f64) {
    Arch::new().dispatch(ExpBelowLargest { row, out })
}

/// Computes `out = exp(row - largest)`; returns the largest logit and the sum.
struct ExpBelowLargest<'a> {
    row: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for ExpBelowLargest<'_> {
    type Output = (f32, f64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> (f32, f64) {
        let Self { row, out } = self;
        let largest = largest(simd, row);
        // The last vector of a row may recompute cells of the vector before it.
        let lanes = 16;
        let last = row.len().saturating_sub(lanes);
        for first in (0..row.len()).step_by(lanes).map(|first| first.min(last)) {
            match (row[first..].first_chunk::<16>(), out[first..].first_chunk_mut::<16>()) {
                (Some(row), Some(out)) => (0..lanes).for_each(|i| out[i] = exp(row[i] - largest)),
                _ => out.iter_mut().zip(row).for_each(|(out, &x)| *out = exp(x - largest)),
            }
        }
        let (eights, rest) = out.as_chunks::<8>();
        let mut sums = [0.0; 8];
        for eight in eights {
            (0..8).for_each(|i| sums[i] += f64::from(eight[i]));
        }
        let halves: [f64; 4] = std::array::from_fn(|i| sums[i] + sums[i + 4]);
        let sum = (halves[0] + halves[2]) + (halves[1] + halves[3]);
        (largest, rest.iter().fold(sum, |sum, &x| sum + f64::from(x)))
    }
}
