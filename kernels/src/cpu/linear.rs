//! Dense products: a linear layer, and its gradients for input and weight.
//!
//! The products themselves are in `product.rs`, one thread each; the cut into tasks is made here, by sizes alone, so that
//! the bits do not depend on the threads.

use super::parallel::{for_chunks, for_each};
use super::product::{Packed, add_transposed_times, rows_times};
use super::rows::{RowWork, Steps};
use crate::error::{Result, check_shape};
use crate::view::{MatMut, MatView};

/// Rows of one task; fewer where reading them is most of the work, so that no thread waits long for the last.
const ROWS: usize = 1536;
const ROWS_OF_NARROW: usize = 720;

/// Columns of a narrow result.
const NARROW: usize = 64;

/// Most parts of the sum over rows in a weight gradient.
const MOST_PARTS: usize = 16;

/// Fewest rows of such a part.
const LEAST_ROWS: usize = 2048;

/// Floating-point operations of one linear layer or of one of its two gradients.
pub fn linear_flops(n: u64, d_in: u64, d_out: u64) -> u64 {
    2 * n * d_in * d_out
}

/// Bytes of workspace that [`linear_weight_grad`] needs beside its operands: at most 16 gradients. What no memory could
/// hold saturates.
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

/// [`linear`], with `steps` done to the rows of each task.
///
/// # Shapes
/// As of [`linear`]; the steps' rows are those of `out`.
/// # Errors
/// As of [`linear`], and [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Per cell what the kernels one after the other compute, bit for bit.
pub fn linear_then(x: MatView<'_>, weight: MatView<'_>, steps: &[RowWork<'_>], out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "linear";
    check_shape(CALL, "weight", [weight.rows(), x.cols()], [weight.rows(), weight.cols()])?;
    check_shape(CALL, "out", [x.rows(), weight.rows()], [out.rows(), out.cols()])?;
    let steps = Steps::new(CALL, steps, out.rows(), out.cols())?;
    let packed = Packed::new(weight.data(), [weight.cols(), weight.rows()], [1, weight.cols()])?;
    times(x, &packed, &steps, out);
    Ok(())
}

/// `out = grad * weight`: the gradient of [`linear`] for its input.
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

/// [`linear_input_grad`], with `steps` done to the rows of each task.
///
/// # Shapes
/// As of [`linear_input_grad`]; the steps' rows are those of `out`.
/// # Errors
/// As of [`linear_input_grad`], and [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Per cell what the kernels one after the other compute, bit for bit.
pub fn linear_input_grad_then(
    grad: MatView<'_>,
    weight: MatView<'_>,
    steps: &[RowWork<'_>],
    out: MatMut<'_>,
) -> Result<()> {
    const CALL: &str = "linear_input_grad";
    check_shape(CALL, "weight", [grad.cols(), weight.cols()], [weight.rows(), weight.cols()])?;
    check_shape(CALL, "out", [grad.rows(), weight.cols()], [out.rows(), out.cols()])?;
    let steps = Steps::new(CALL, steps, out.rows(), out.cols())?;
    let packed = Packed::new(weight.data(), [weight.rows(), weight.cols()], [weight.cols(), 1])?;
    times(grad, &packed, &steps, out);
    Ok(())
}

/// `out = grad^T * x`: the gradient of [`linear`] for its weight.
///
/// # Shapes
/// `grad`: `[n, d_out]`; `x`: `[n, d_in]`; `out`: `[d_out, d_in]`, overwritten; `workspace`:
/// [`linear_weight_grad_workspace_bytes`], overwritten.
/// # Cost
/// [`linear_flops`].
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
/// # Order
/// The rows are cut into at most 16 parts by their number alone, and the parts' products are added in order: the
/// same bits on any number of threads.
pub fn linear_weight_grad(grad: MatView<'_>, x: MatView<'_>, mut out: MatMut<'_>, workspace: &mut [f32]) -> Result<()> {
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
        add_transposed_times(grad, x, [d_out, d_in], out);
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
    n.div_ceil(MOST_PARTS).max(LEAST_ROWS)
}

/// `out = x * packed`, the rows of `x` cut into tasks, whose rows take the steps while they are in a cache.
fn times(x: MatView<'_>, packed: &Packed, steps: &Steps<'_>, mut out: MatMut<'_>) {
    let (k, width) = (x.cols(), out.cols());
    let rows = if width <= NARROW { ROWS_OF_NARROW } else { ROWS };
    for_chunks(out.data(), rows * width, |first, out| {
        let first = first / width;
        let x = &x.data()[first * k..][..out.len() / width * k];
        rows_times(x, packed, out, |row, out| steps.apply(first + row, out));
    });
}
