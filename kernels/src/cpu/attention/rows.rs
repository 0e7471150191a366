//! Operations on single rows and on parameters that belong to attention.

use super::math::head_sums;
use crate::cpu::parallel::for_rows;
use crate::cpu::slots::Open;
use crate::error::{Error, Result};
use crate::op::call::Call;
use crate::op::{AttentionRows, Score, alternating_columns};

pub(super) fn launch(slots: &Open<'_>, op: AttentionRows, call: &Call) -> Result<()> {
    let cols = call.out().cols;
    let first = slots.mat(call.inputs[0])?;
    let x = first.view();
    let heads_of = |d: usize, heads: usize| match heads > 0 && d.is_multiple_of(heads) {
        true => Ok(d / heads),
        false => Err(Error::Argument {
            call: call.name_of_head(),
            operand: "heads",
            want: "a divisor of the columns",
            got: heads as f64,
        }),
    };
    match op {
        AttentionRows::Grads { heads, score } => {
            let (y, log_sum, rows) =
                (slots.mat(call.inputs[1])?, slots.mat(call.inputs[2])?, slots.mat(call.inputs[3])?);
            let (y, log_sum, rows) = (y.view(), log_sum.view(), rows.view());
            let d = x.cols();
            let width = heads_of(d, heads)?;
            let own = match score {
                Score::Gat => d + heads..d + 2 * heads,
                Score::Gatv2 => 0..d,
            };
            let places = alternating_columns(heads, width);
            let mut out = slots.mat_mut(call.out())?;
            for_rows(out.view().data(), cols, |first, out| {
                for (i, out) in out.chunks_exact_mut(cols).enumerate() {
                    let v = first + i;
                    let (grad, y) = (x.row(v), y.row(v));
                    let (values, rest) = out.split_at_mut(d);
                    let (of_row, rest) = rest.split_at_mut(own.len());
                    let (log_sums, dots) = rest.split_at_mut(heads);
                    places.iter().zip(grad).for_each(|(&place, &grad)| values[place] = grad);
                    of_row.copy_from_slice(&rows.row(v)[own.clone()]);
                    log_sums.copy_from_slice(log_sum.row(v));
                    for (head, sum) in dots.iter_mut().enumerate() {
                        let columns = head * width..(head + 1) * width;
                        *sum = dot(&grad[columns.clone()], &y[columns]);
                    }
                }
            });
        }
        AttentionRows::Columns { part, .. } => {
            let mut out = slots.mat_mut(call.out())?;
            for_rows(out.view().data(), cols, |first, out| {
                for (i, out) in out.chunks_exact_mut(cols).enumerate() {
                    out.copy_from_slice(&x.row(first + i)[part * cols..(part + 1) * cols]);
                }
            });
        }
        AttentionRows::Alternate { heads, inverse: back } => {
            let places = alternating_columns(heads, heads_of(x.rows(), heads)?);
            let rows = if back { places } else { inverse(&places) };
            let mut out = slots.mat_mut(call.out())?;
            for (out, &row) in out.view().data().chunks_exact_mut(cols.max(1)).zip(&rows) {
                out.copy_from_slice(x.row(row));
            }
        }
        AttentionRows::HeadDots { heads } => {
            let a = slots.numbers::<f32>(call.inputs[1])?;
            let (x, a, width) = (x.data(), a.view(), heads_of(x.cols(), heads)?);
            for (head, out) in slots.mat_mut(call.out())?.view().data().iter_mut().enumerate() {
                let columns = head * width..(head + 1) * width;
                *out = dot(&x[columns.clone()], &a[columns]);
            }
        }
        AttentionRows::HeadScale { heads } => {
            let a = slots.numbers::<f32>(call.inputs[1])?;
            let (grad, a, width) = (x.data(), a.view(), heads_of(cols, heads)?);
            for (c, out) in slots.mat_mut(call.out())?.view().data().iter_mut().enumerate() {
                *out = grad[c / width] * a[c];
            }
        }
        AttentionRows::ScoreWeight { heads } => {
            let (a, b) = (slots.numbers::<f32>(call.inputs[1])?, slots.numbers::<f32>(call.inputs[2])?);
            let (a, b, d) = (a.view(), b.view(), x.rows());
            let width = heads_of(d, heads)?;
            let rows = inverse(&alternating_columns(heads, width));
            let mut out = slots.mat_mut(call.out())?;
            for_rows(out.view().data(), cols, |first, out| {
                for (i, out) in out.chunks_exact_mut(cols.max(1)).enumerate() {
                    let Some(head) = (first + i).checked_sub(d) else {
                        out.copy_from_slice(x.row(rows[first + i]));
                        continue;
                    };
                    let (vector, head) = if head < heads { (a, head) } else { (b, head - heads) };
                    out.fill(0.0);
                    for (c, factor) in (head * width..).zip(&vector[head * width..(head + 1) * width]) {
                        out.iter_mut().zip(x.row(c)).for_each(|(out, x)| *out += factor * x);
                    }
                }
            });
        }
        AttentionRows::ScoreWeightGrad { heads } => {
            let (a, b) = (slots.numbers::<f32>(call.inputs[1])?, slots.numbers::<f32>(call.inputs[2])?);
            let (a, b, d) = (a.view(), b.view(), call.out().rows);
            let width = heads_of(d, heads)?;
            let places = alternating_columns(heads, width);
            let mut out = slots.mat_mut(call.out())?;
            for_rows(out.view().data(), cols, |first, out| {
                for (i, out) in out.chunks_exact_mut(cols.max(1)).enumerate() {
                    let (c, head) = (first + i, (first + i) / width);
                    let (own, of_a, of_b) = (x.row(places[c]), x.row(d + head), x.row(d + heads + head));
                    for (k, out) in out.iter_mut().enumerate() {
                        *out = own[k] + a[c] * of_a[k] + b[c] * of_b[k];
                    }
                }
            });
        }
        AttentionRows::ScoreVectorGrad { heads, second } => {
            let w = slots.mat(call.inputs[1])?;
            let (w, d) = (w.view(), cols);
            let width = heads_of(d, heads)?;
            let mut out = slots.mat_mut(call.out())?;
            for (c, out) in out.view().data().iter_mut().enumerate() {
                let row = d + if second { heads } else { 0 } + c / width;
                *out = dot(w.row(c), x.row(row));
            }
        }
    }
    Ok(())
}

/// Returns the inverse of a permutation.
fn inverse(places: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; places.len()];
    places.iter().enumerate().for_each(|(from, &to)| inverse[to] = from);
    inverse
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    head_sums::<1, 2>([a, b], |[a, b]| a * b)[0]
}
