//! Softmax over narrow rows, with one row in each lane of a vector.
//!
//! A row of a few logits does not fill a vector, and its largest logit and its sum would be reductions across lanes. So
//! [`ROWS`] selected rows are copied at a time, column by column. Everything that follows then works on whole vectors,
//! without reductions.

// A step reads and writes the same lane of several arrays.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use super::exp::exp;
use crate::view::{MatView, Targets};

/// Most columns of a narrow row.
pub(super) const MOST: usize = 16;

/// Most columns for which [`CountPart`] pays.
pub(super) const MOST_COUNTED: usize = 4;

/// Rows that are processed together: four vectors of the widest kind. They are copied cell by cell, and a vector of
/// cells that were just written is slow to read, so the copy has to be much longer than one vector.
const ROWS: usize = 64;

/// Rows whose sums are multiplied before a logarithm is taken. Each sum is at most [`MOST`], so no product overflows.
const FACTORS: usize = 128;

/// One number of each of the [`ROWS`] rows.
type Lanes<T = f32> = [T; ROWS];

/// Some selected rows, column by column.
struct Batch<'a> {
    /// Numbers of the rows, at most [`ROWS`]. The lanes behind them have cells of earlier rows.
    rows: &'a [u32],
    columns: &'a mut [Lanes],
}

/// Calls `f` for the selected rows, [`ROWS`] of them at a time.
#[inline(always)]
fn for_batches(logits: MatView<'_>, targets: Targets<'_>, mut f: impl FnMut(Batch<'_>)) {
    let classes = logits.cols();
    let selected = selected(targets, classes);
    let mut columns = [[0.0; ROWS]; MOST];
    for rows in selected.chunks(ROWS) {
        for (lane, &row) in rows.iter().enumerate() {
            let row = logits.row(row as usize);
            for (column, &x) in columns.iter_mut().zip(row) {
                column[lane] = x;
            }
        }
        f(Batch { rows, columns: &mut columns[..classes] });
    }
}

/// Returns the numbers of the selected rows. Which rows are selected decides no branch.
#[inline(always)]
fn selected(targets: Targets<'_>, classes: usize) -> Vec<u32> {
    let mut selected = vec![0; targets.labels.len()];
    let mut count = 0;
    for (row, (&label, &split)) in targets.labels.iter().zip(targets.split).enumerate() {
        selected[count] = row as u32;
        count += usize::from((split == targets.select) & ((label as usize) < classes));
    }
    selected.truncate(count);
    selected
}

/// Returns the largest number of each row. NaN is never the largest.
#[inline(always)]
fn largest(columns: &[Lanes]) -> Lanes {
    let mut largest = [f32::NEG_INFINITY; ROWS];
    for column in columns {
        for lane in 0..ROWS {
            largest[lane] = if column[lane] > largest[lane] { column[lane] } else { largest[lane] };
        }
    }
    largest
}

/// Replaces each number by `exp(x - largest)`; returns the sum of each row. Columns are added one after the other.
#[inline(always)]
fn exponentials(columns: &mut [Lanes], largest: &Lanes) -> Lanes<f64> {
    let mut totals = [0.0; ROWS];
    for column in columns {
        for lane in 0..ROWS {
            column[lane] = exp(column[lane] - largest[lane]);
        }
        // A loop of its own, because its vectors have half as many lanes.
        for lane in 0..ROWS {
            totals[lane] += f64::from(column[lane]);
        }
    }
    totals
}

/// The sum over the selected rows of `-log softmax(row)[label]`.
pub(super) struct LossPart<'a> {
    pub(super) logits: MatView<'a>,
    pub(super) targets: Targets<'a>,
}

impl WithSimd for LossPart<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> f64 {
        let Self { logits, targets } = self;
        let labels = targets.labels;
        // The sum of logarithms is the logarithm of the product.
        let (mut products, mut factors, mut sum) = ([1.0f64; ROWS], 0, 0.0);
        let mut below = [0.0f64; ROWS];
        for_batches(logits, targets, |Batch { rows, columns }| {
            let mut wanted = [0.0f32; ROWS];
            for (lane, &row) in rows.iter().enumerate() {
                wanted[lane] = columns[labels[row as usize] as usize][lane];
            }
            let largest = largest(columns);
            let totals = exponentials(columns, &largest);
            for lane in 0..ROWS {
                let filled = lane < rows.len();
                products[lane] *= if filled { totals[lane] } else { 1.0 };
                below[lane] += if filled { f64::from(largest[lane]) - f64::from(wanted[lane]) } else { 0.0 };
            }
            factors += 1;
            if factors == FACTORS {
                sum += logarithms(&mut products);
                factors = 0;
            }
        });
        sum + logarithms(&mut products) + below.iter().sum::<f64>()
    }
}

/// Returns the sum of the logarithms, and sets all numbers to 1.
fn logarithms(products: &mut Lanes<f64>) -> f64 {
    std::mem::replace(products, [1.0; ROWS]).iter().map(|product| product.ln()).sum()
}

/// The gradient of the loss over `count` rows with respect to the logits of these rows.
pub(super) struct GradRows<'a> {
    pub(super) logits: MatView<'a>,
    pub(super) targets: Targets<'a>,
    pub(super) count: u64,
    pub(super) out: &'a mut [f32],
}

impl WithSimd for GradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { logits, targets, count, out } = self;
        let (classes, count) = (logits.cols(), count as f64);
        let labels = targets.labels;
        out.fill(0.0);
        for_batches(logits, targets, |Batch { rows, columns }| {
            let largest = largest(columns);
            let totals = exponentials(columns, &largest);
            let mut factors = [0.0f32; ROWS];
            for lane in 0..ROWS {
                factors[lane] = (1.0 / (totals[lane] * count)) as f32;
            }
            // This form of exp / total - 1 avoids cancellation.
            let mut others = [0.0f64; ROWS];
            for (lane, &row) in rows.iter().enumerate() {
                others[lane] = totals[lane] - f64::from(columns[labels[row as usize] as usize][lane]);
            }
            for column in columns.iter_mut() {
                for lane in 0..ROWS {
                    column[lane] *= factors[lane];
                }
            }
            let mut wanted = [0.0f32; ROWS];
            for lane in 0..ROWS {
                wanted[lane] = (-others[lane] / (totals[lane] * count)) as f32;
            }
            for ((lane, &row), wanted) in rows.iter().enumerate().zip(wanted) {
                let out = &mut out[row as usize * classes..][..classes];
                for (out, column) in out.iter_mut().zip(columns.iter()) {
                    *out = column[lane];
                }
                out[labels[row as usize] as usize] = wanted;
            }
        });
    }
}

/// The selected rows whose largest logit is at the label, and all selected rows.
pub(super) struct CountPart<'a> {
    pub(super) logits: MatView<'a>,
    pub(super) targets: Targets<'a>,
}

impl WithSimd for CountPart<'_> {
    type Output = [u64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> [u64; 2] {
        let Self { logits, targets } = self;
        let labels = targets.labels;
        let mut counts = [0, 0];
        for_batches(logits, targets, |Batch { rows, columns }| {
            let largest = largest(columns);
            // A row of NaN has no largest logit.
            let mut first = [u32::MAX; ROWS];
            for (number, column) in columns.iter().enumerate().rev() {
                for lane in 0..ROWS {
                    first[lane] = if column[lane] == largest[lane] { number as u32 } else { first[lane] };
                }
            }
            let correct = rows.iter().zip(first).map(|(&row, first)| u64::from(first == labels[row as usize]));
            counts[0] += correct.sum::<u64>();
            counts[1] += rows.len() as u64;
        });
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_of_the_sums_of_many_rows_does_not_overflow() {
        let (n, classes) = (ROWS * FACTORS * 3, MOST);
        let (logits, labels, split) = (vec![0.5; n * classes], vec![2; n], vec![0; n]);
        let logits = MatView::new(&logits, n, classes).expect("the size is right");
        let targets = Targets { labels: &labels, split: &split, select: 0 };
        let loss = pulp::Arch::new().dispatch(LossPart { logits, targets });
        let want = n as f64 * (classes as f64).ln();
        assert!((loss - want).abs() <= 1e-9 * want, "{loss}, not {want}");
    }
}
