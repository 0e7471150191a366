//! Dense products: a linear layer, and its gradients with respect to input and weight.
//!
//! The products themselves are in `product.rs`, each on one thread. This module splits them into tasks. Each row of a product
//! is the same in every split. The rows of a weight gradient, which are added up, are split by sizes alone, so that the bits do
//! not depend on the number of threads.

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::bf16_product::{self, PackedPairs};
use super::element::Element;
use super::parallel::{for_chunks, for_each, for_rows, map_chunks};
use super::product::{Packed, add_transposed_times, rows_times};
use super::rows::{RowWork, Steps};
use super::slots::{Matrix, Open, VectorMut};
use super::transpose::transpose;
use crate::error::{Result, check_shape};
use crate::matmul::Matmul;
use crate::op::call::Call;
use crate::op::{Grid, Linear, Slice};
use crate::storage_type::StorageType;
use crate::team::threads;
use crate::view::{MatMut, MatView};

/// Most rows per task. Narrow results get fewer, because reading the rows is most of the work then, and no thread should
/// wait long for the last one.
const ROWS: usize = 1536;
const ROWS_OF_NARROW: usize = 720;

/// Tasks per thread of a product of few rows, and the fewest rows of such a task, a multiple of most tile heights.
const TASKS_PER_THREAD: usize = 4;
const LEAST_ROWS_OF_TASK: usize = 96;

/// Most columns of a narrow result.
const NARROW: usize = 64;

/// Most parts that the rows of a weight gradient are split into.
const MOST_PARTS: usize = 16;

/// Rows of such a part, unless there would be more parts.
const ROWS_OF_PART: usize = 2048;

pub(super) fn launch(slots: &Open<'_>, op: Linear, call: &Call, steps: &[RowWork<'_>], matmul: Matmul) -> Result<()> {
    match call.inputs[0].float() {
        StorageType::F32 => launch_as::<f32>(slots, op, call, steps),
        StorageType::Bf16 if matmul == Matmul::Bf16 && multiplies_bf16(op, call) => {
            multiply_bf16(slots, op, call, steps)
        }
        StorageType::Bf16 => launch_as::<bf16>(slots, op, call, steps),
    }
}

/// Returns whether a call is a product of two bf16 matrices.
fn multiplies_bf16(op: Linear, call: &Call) -> bool {
    let multiplies = matches!(
        op,
        Linear::Product | Linear::ProductOnto | Linear::InputGrad | Linear::InputGradOnto | Linear::WeightGrad
    );
    multiplies && call.inputs[1].float() == StorageType::Bf16
}

/// Does [`launch`] for a product of two bf16 matrices, by `bf16_product.rs`.
fn multiply_bf16(slots: &Open<'_>, op: Linear, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let ([first, second], out) = ([call.inputs[0], call.inputs[1]], call.out());
    let (x, small) = (slots.numbers::<bf16>(first)?, slots.numbers::<bf16>(second)?);
    if op == Linear::WeightGrad {
        let mut room = weight_grad_room(slots, call)?;
        let room = room.as_mut().map_or(&mut [][..], |room| room.view());
        let (grad, x) = (x.matrix(first), small.matrix(second));
        return weight_grad(grad, x, slots.mat_mut(out)?.view(), room, bf16_product::add_transposed_times);
    }
    let sum = call.head_inputs().get(2).map(|&sum| slots.mat(sum)).transpose()?;
    let mut made = slots.numbers_mut::<bf16>(out)?;
    let (name, sizes, strides) = match op {
        Linear::Product | Linear::ProductOnto => ("linear", [second.cols, second.rows], [1, second.cols]),
        _ => ("linear_input_grad", [second.rows, second.cols], [second.cols, 1]),
    };
    let steps = Steps::new(name, steps, out.rows, out.cols)?;
    let packed = PackedPairs::new(small.view(), sizes, strides)?;
    let multiply = |x: &[bf16], sum: Option<&[f32]>, out: &mut [bf16], first: usize| {
        bf16_product::rows_times(x, &packed, sum, out, |row, out| steps.apply(first + row, out));
    };
    times(x.matrix(first), sum.as_ref().map(Matrix::view), made.matrix(out), multiply);
    Ok(())
}

/// Does [`launch`] for rows of type `E`. The small operand of a product is widened as a whole.
fn launch_as<E: Element>(slots: &Open<'_>, op: Linear, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let (first, out) = (call.inputs[0], call.out());
    match op {
        Linear::Product | Linear::ProductOnto | Linear::InputGrad | Linear::InputGradOnto => {
            let (x, weight) = (slots.numbers::<E>(first)?, slots.mat(call.inputs[1])?);
            let sum = call.head_inputs().get(2).map(|&sum| slots.mat(sum)).transpose()?;
            let mut made = slots.numbers_mut::<E>(out)?;
            let (x, sum, made) = (x.matrix(first), sum.as_ref().map(Matrix::view), made.matrix(out));
            match op {
                Linear::Product | Linear::ProductOnto => linear_onto(x, weight.view(), sum, steps, made),
                _ => linear_input_grad_onto(x, weight.view(), sum, steps, made),
            }
        }
        Linear::WeightGrad => {
            let second = call.inputs[1];
            let (grad, x) = (slots.numbers::<E>(first)?, slots.numbers::<E>(second)?);
            let mut room = weight_grad_room(slots, call)?;
            let room = room.as_mut().map_or(&mut [][..], |room| room.view());
            let mut out = slots.mat_mut(out)?;
            weight_grad(grad.matrix(first), x.matrix(second), out.view(), room, add_transposed_times)
        }
        Linear::ColumnSum => column_sum_as(slots.numbers::<E>(first)?.matrix(first), slots.numbers_mut(out)?.view()),
        Linear::Round => {
            slots.mat_mut(out)?.view().data().copy_from_slice(slots.mat(first)?.view().data());
            Ok(())
        }
        Linear::Transpose => transpose(slots.mat(first)?.view(), slots.mat_mut(out)?.view()),
        Linear::Slice(_) | Linear::Columns { .. } => {
            let rectangle = op.rectangle(first.rows).expect("it copies one");
            slice(slots.mat(first)?.view(), rectangle, slots.mat_mut(out)?.view());
            Ok(())
        }
        Linear::Join(_) | Linear::Beside { .. } => {
            let parts = call.inputs.iter().map(|&part| slots.mat(part)).collect::<Result<Vec<_>>>()?;
            let parts: Vec<MatView<'_>> = parts.iter().map(|part| part.view()).collect();
            join(&parts, op.grid(out.rows).expect("it joins one"), slots.mat_mut(out)?.view());
            Ok(())
        }
    }
}

/// Opens the workspace of a weight gradient.
fn weight_grad_room(slots: &Open<'_>, call: &Call) -> Result<Option<VectorMut<f32>>> {
    let [grad, x] = [call.inputs[0], call.inputs[1]];
    let [n, d_in, d_out] = [grad.rows, x.cols, grad.cols].map(|size| size as u64);
    let need = linear_weight_grad_workspace_bytes(n, d_in, d_out) as usize / 4;
    call.workspace.map(|slot| slots.vec_mut(slot, need)).transpose()
}

/// Returns the floating-point operations of a linear layer or of one of its two gradients.
pub fn linear_flops(n: u64, d_in: u64, d_out: u64) -> u64 {
    2 * n * d_in * d_out
}

/// Returns the bytes of workspace that [`linear_weight_grad`] needs beside its operands: at most 16 gradients.
/// Saturates.
pub fn linear_weight_grad_workspace_bytes(n: u64, d_in: u64, d_out: u64) -> u64 {
    let parts = n.div_ceil(rows_of_part(n as usize) as u64);
    if parts <= 1 { 0 } else { [parts, d_in, d_out].into_iter().fold(4, u64::saturating_mul) }
}

/// `out = x * weight^T`.
///
/// # Shapes
/// `x`: `[n, d_in]`; `weight`: `[d_out, d_in]`; `out`: `[n, d_out]`, overwritten.
/// # Cost
/// [`linear_flops`].
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
/// # Order
/// The same bits on any number of threads.
pub fn linear(x: MatView<'_>, weight: MatView<'_>, out: MatMut<'_>) -> Result<()> {
    linear_then(x, weight, &[], out)
}

/// Does [`linear`], and applies `steps` to the rows of each task.
///
/// # Shapes
/// As in [`linear`]; the steps' rows are those of `out`.
/// # Errors
/// As in [`linear`], and [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Each cell has the same bits as if the kernels ran one after the other.
pub fn linear_then(x: MatView<'_>, weight: MatView<'_>, steps: &[RowWork<'_>], out: MatMut<'_>) -> Result<()> {
    linear_onto(x, weight, None, steps, out)
}

/// Does [`linear_then`] for `sum + x * weight^T`.
fn linear_onto<E: Element>(
    x: MatView<'_, E>,
    weight: MatView<'_>,
    sum: Option<MatView<'_>>,
    steps: &[RowWork<'_>],
    out: MatMut<'_, E>,
) -> Result<()> {
    const CALL: &str = "linear";
    check_shape(CALL, "weight", [weight.rows(), x.cols()], [weight.rows(), weight.cols()])?;
    check_shape(CALL, "out", [x.rows(), weight.rows()], [out.rows(), out.cols()])?;
    let steps = Steps::new(CALL, steps, out.rows(), out.cols())?;
    let packed = Packed::new(weight.data(), [weight.cols(), weight.rows()], [1, weight.cols()])?;
    times(x, sum, out, |x, sum, out, first| {
        rows_times(x, &packed, sum, out, |row, out| steps.apply(first + row, out));
    });
    Ok(())
}

/// Computes `out = grad * weight`: the gradient of [`linear`] with respect to its input.
///
/// # Shapes
/// `grad`: `[n, d_out]`; `weight`: `[d_out, d_in]`; `out`: `[n, d_in]`, overwritten.
/// # Cost
/// [`linear_flops`].
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
/// # Order
/// The same bits on any number of threads.
pub fn linear_input_grad(grad: MatView<'_>, weight: MatView<'_>, out: MatMut<'_>) -> Result<()> {
    linear_input_grad_then(grad, weight, &[], out)
}

/// Does [`linear_input_grad`], and applies `steps` to the rows of each task.
///
/// # Shapes
/// As in [`linear_input_grad`]; the steps' rows are those of `out`.
/// # Errors
/// As in [`linear_input_grad`], and [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Each cell has the same bits as if the kernels ran one after the other.
pub fn linear_input_grad_then(
    grad: MatView<'_>,
    weight: MatView<'_>,
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    linear_input_grad_onto(grad, weight, None, steps, out)
}

/// Does [`linear_input_grad_then`] for `sum + grad * weight`.
fn linear_input_grad_onto<E: Element>(
    grad: MatView<'_, E>,
    weight: MatView<'_>,
    sum: Option<MatView<'_>>,
    steps: &[RowWork<'_>],
    out: MatMut<'_, E>,
) -> Result<()> {
    const CALL: &str = "linear_input_grad";
    check_shape(CALL, "weight", [grad.cols(), weight.cols()], [weight.rows(), weight.cols()])?;
    check_shape(CALL, "out", [grad.rows(), weight.cols()], [out.rows(), out.cols()])?;
    let steps = Steps::new(CALL, steps, out.rows(), out.cols())?;
    let packed = Packed::new(weight.data(), [weight.rows(), weight.cols()], [weight.cols(), 1])?;
    times(grad, sum, out, |grad, sum, out, first| {
        rows_times(grad, &packed, sum, out, |row, out| steps.apply(first + row, out));
    });
    Ok(())
}

/// Computes `out = grad^T * x`: the gradient of [`linear`] with respect to its weight.
///
/// # Shapes
/// `grad`: `[n, d_out]`; `x`: `[n, d_in]`; `out`: `[d_out, d_in]`, overwritten; `workspace`:
/// [`linear_weight_grad_workspace_bytes`], overwritten.
/// # Cost
/// [`linear_flops`].
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
/// # Order
/// The rows are split into at most 16 parts by their number alone, and the products of the parts are added in order:
/// the same bits on any number of threads.
pub fn linear_weight_grad(grad: MatView<'_>, x: MatView<'_>, out: MatMut<'_>, workspace: &mut [f32]) -> Result<()> {
    weight_grad(grad, x, out, workspace, add_transposed_times)
}

/// Does [`linear_weight_grad`] for rows of any type. `add_product(left, x, shape, out)` adds `left^T * x`.
fn weight_grad<E: Element>(
    grad: MatView<'_, E>,
    x: MatView<'_, E>,
    mut out: MatMut<'_>,
    workspace: &mut [f32],
    add_product: impl Fn(&[E], &[E], [usize; 2], &mut [f32]) + Sync,
) -> Result<()> {
    const CALL: &str = "linear_weight_grad";
    let (n, d_in, d_out) = (x.rows(), x.cols(), grad.cols());
    check_shape(CALL, "grad", [n, d_out], [grad.rows(), grad.cols()])?;
    check_shape(CALL, "out", [d_out, d_in], [out.rows(), out.cols()])?;
    let need_bytes = linear_weight_grad_workspace_bytes(n as u64, d_in as u64, d_out as u64);
    check_shape(CALL, "workspace", [need_bytes as usize / 4, 1], [workspace.len(), 1])?;
    if d_in == 0 || d_out == 0 {
        return Ok(());
    }
    let part = |rows: std::ops::Range<usize>, out: &mut [f32]| {
        let grad = &grad.data()[rows.start * d_out..rows.end * d_out];
        let x = &x.data()[rows.start * d_in..rows.end * d_in];
        out.fill(0.0);
        add_product(grad, x, [d_out, d_in], out);
    };
    let rows = rows_of_part(n);
    if n <= rows {
        part(0..n, out.data());
        return Ok(());
    }
    let cells = d_in * d_out;
    for_each(workspace.chunks_mut(cells).enumerate(), |(i, partial)| {
        part(i * rows..((i + 1) * rows).min(n), partial);
    });
    for_chunks(out.data(), 1 << 12, |first, out| {
        out.copy_from_slice(&workspace[first..][..out.len()]);
        for partial in workspace[cells..].chunks(cells) {
            for (out, &term) in out.iter_mut().zip(&partial[first..]) {
                *out += term;
            }
        }
    });
    Ok(())
}

fn rows_of_part(n: usize) -> usize {
    rows_of_parts(n, ROWS_OF_PART, MOST_PARTS)
}

/// Returns how many rows each of the equal parts of `n` rows has: parts of at most `rows` rows, unless there would be more than
/// `most_parts`. Their number is a power of two, so that threads have equally many.
pub(super) fn rows_of_parts(n: usize, rows: usize, most_parts: usize) -> usize {
    n.div_ceil(n.div_ceil(rows).next_power_of_two().min(most_parts)).max(1)
}

/// Returns how many rows a task of a product of `n` rows has.
fn rows_of_task(n: usize, width: usize) -> usize {
    let most = if width <= NARROW { ROWS_OF_NARROW } else { ROWS };
    n.div_ceil(TASKS_PER_THREAD * threads()).next_multiple_of(LEAST_ROWS_OF_TASK).clamp(LEAST_ROWS_OF_TASK, most)
}

/// Splits the rows of a product into tasks. `multiply(x, sum, out, first row)` computes `out` from some rows of `x` and of
/// the sum that it adds to.
fn times<E: Element>(
    x: MatView<'_, E>,
    sum: Option<MatView<'_>>,
    mut out: MatMut<'_, E>,
    multiply: impl Fn(&[E], Option<&[f32]>, &mut [E], usize) + Sync,
) {
    let (k, width) = (x.cols(), out.cols());
    let rows = rows_of_task(x.rows(), width);
    for_chunks(out.data(), rows * width, |first, out| {
        let sum = sum.map(|sum| &sum.data()[first..][..out.len()]);
        let first = first / width;
        let x = &x.data()[first * k..][..out.len() / width * k];
        multiply(x, sum, out, first);
    });
}

/// Sums over rows: the gradient of a bias.
///
/// # Shapes
/// `x`: `[n, d]`; `out`: `[d]`, overwritten.
/// # Cost
/// Allocates at most 64 rows of `f64`.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
/// # Order
/// Rows are added in `f32` in blocks of 64, and the blocks in `f64`, in parts that depend on `n` alone: the same bits
/// on any number of threads.
pub fn column_sum(x: MatView<'_>, out: &mut [f32]) -> Result<()> {
    column_sum_as(x, out)
}

/// Does [`column_sum`] for rows of any type.
fn column_sum_as<E: Element>(x: MatView<'_, E>, out: &mut [f32]) -> Result<()> {
    const MOST_PARTS: usize = 64;
    const PART_ROWS: usize = 1024;
    let (n, d) = (x.rows(), x.cols());
    check_shape("column_sum", "out", [1, d], [1, out.len()])?;
    if d == 0 {
        return Ok(());
    }
    let sums = map_chunks(n, rows_of_parts(n, PART_ROWS, MOST_PARTS), |rows| {
        let mut sum = vec![0.0f64; d];
        let x = &x.data()[rows.start * d..rows.end * d];
        Arch::new().dispatch(SumRows { x, sum: &mut sum });
        sum
    });
    for (column, out) in out.iter_mut().enumerate() {
        *out = sums.iter().map(|sum| sum[column]).sum::<f64>() as f32;
    }
    Ok(())
}

/// Adds rows to `sum`.
struct SumRows<'a, E> {
    x: &'a [E],
    sum: &'a mut [f64],
}

impl<E: Element> WithSimd for SumRows<'_, E> {
    type Output = ();

    // The compiler makes vectors of the loops over columns.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        const BLOCK: usize = 64;
        let Self { x, sum } = self;
        let mut block_sum = vec![0.0f32; sum.len()];
        for block in x.chunks(BLOCK * sum.len()) {
            block_sum.fill(0.0);
            for row in block.chunks_exact(sum.len()) {
                for (sum, &x) in block_sum.iter_mut().zip(row) {
                    *sum += x.wide();
                }
            }
            for (sum, &block) in sum.iter_mut().zip(&block_sum) {
                *sum += f64::from(block);
            }
        }
    }
}

/// Copies a rectangle of `x`, whose size was checked.
fn slice(x: MatView<'_>, Slice { first, shape: [_, cols] }: Slice, mut out: MatMut<'_>) {
    for_rows(out.data(), cols, |row, out| {
        let rows = x.data().chunks_exact(x.cols().max(1)).skip(first[0] + row);
        out.chunks_exact_mut(cols.max(1))
            .zip(rows)
            .for_each(|(out, row)| out.copy_from_slice(&row[first[1]..][..cols]));
    });
}

/// Puts the parts of a grid together, whose sizes were checked.
fn join(parts: &[MatView<'_>], Grid { shape: [_, cols], parts: [_, across] }: Grid, mut out: MatMut<'_>) {
    let mut rest = out.data();
    for parts in parts.chunks(across.max(1)) {
        let (rows, after) = std::mem::take(&mut rest).split_at_mut(parts[0].rows() * cols);
        rest = after;
        for_rows(rows, cols, |first, rows| {
            for (r, row) in (first..).zip(rows.chunks_exact_mut(cols.max(1))) {
                let mut rest = row;
                for part in parts {
                    let (to, after) = rest.split_at_mut(part.cols());
                    to.copy_from_slice(&part.data()[r * part.cols()..][..part.cols()]);
                    rest = after;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_a_power_of_two() {
        let parts = |n: usize| (rows_of_parts(n, 2048, 16), n.div_ceil(rows_of_parts(n, 2048, 16)));
        assert_eq!(
            [0, 1, 2048, 2049, 5000, 40_000].map(parts),
            [(1, 0), (1, 1), (2048, 1), (1025, 2), (1250, 4), (2500, 16)]
        );
        // The workspace that is planned for the most rows is enough for fewer.
        let counts: Vec<usize> = (1..200_000).step_by(7).map(|n| parts(n).1).collect();
        assert!(counts.is_sorted() && counts.iter().all(|&count| count <= 16));
    }
}
