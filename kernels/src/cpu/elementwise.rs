//! Kernels that treat every cell, row or column by itself, and sums over rows. All are bound by memory.

use std::sync::atomic::{AtomicU64, Ordering};

use pulp::Arch;

use super::parallel::{CHUNK, for_chunks, for_rows, map_chunks};
use crate::error::{Error, Result, check_shape};
use crate::view::{MatMut, MatView};

/// Bytes that an elementwise kernel with `inputs` matrices of `n` rows and `d` columns reads and writes.
pub fn elementwise_bytes(inputs: u64, n: u64, d: u64) -> u64 {
    4 * (inputs + 1) * n * d
}

/// `out[v] = scale[v] * x[v]`.
///
/// # Shapes
/// `x`: `[n, d]`; `scale`: `[n]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn row_scale(x: MatView<'_>, scale: &[f32], mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "row_scale";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "scale", [n, 1], [scale.len(), 1])?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    for_rows(out.data(), d, |first, out| {
        Arch::new().dispatch(|| {
            let x = x.data()[first * d..].chunks_exact(d);
            for ((out, x), &scale) in out.chunks_exact_mut(d).zip(x).zip(&scale[first..]) {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = scale * x;
                }
            }
        });
    });
    Ok(())
}

/// `out[i] = x[rows[i]]`: the rows that other parts read, one after the other.
///
/// # Shapes
/// `x`: `[n, d]`; `rows`: `[m]`, each below `n`; `out`: `[m, d]`, overwritten.
/// # Errors
/// [`Error::Shape`], and `out` is untouched; [`Error::Index`] when `rows` points outside, and `out` must not be read.
pub fn pack(x: MatView<'_>, rows: &[u32], mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "pack";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "rows", [out.rows(), 1], [rows.len(), 1])?;
    check_shape(CALL, "out", [rows.len(), d], [out.rows(), out.cols()])?;
    pack_cells(CALL, (x.data(), n), rows, d, out.data())
}

/// Of `n` rows of `d` cells, whatever a cell is.
pub(super) fn pack_cells<T: Copy + Send + Sync>(
    call: &'static str,
    (x, n): (&[T], usize),
    rows: &[u32],
    d: usize,
    out: &mut [T],
) -> Result<()> {
    if let Some(&index) = rows.iter().find(|&&row| row as usize >= n) {
        return Err(Error::Index { call, operand: "rows", index: u64::from(index), limit: n as u64 });
    }
    for_rows(out, d, |first, out| {
        for (out, &row) in out.chunks_exact_mut(d).zip(&rows[first..]) {
            out.copy_from_slice(&x[row as usize * d..][..d]);
        }
    });
    Ok(())
}

/// `out[v] = x[v] + bias`.
///
/// # Shapes
/// `x`: `[n, d]`; `bias`: `[d]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn add_bias(x: MatView<'_>, bias: &[f32], mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "add_bias";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "bias", [d, 1], [bias.len(), 1])?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    for_rows(out.data(), d, |first, out| {
        Arch::new().dispatch(|| {
            let x = x.data()[first * d..].chunks_exact(d);
            for (out, x) in out.chunks_exact_mut(d).zip(x) {
                for ((out, &x), &bias) in out.iter_mut().zip(x).zip(bias) {
                    *out = x + bias;
                }
            }
        });
    });
    Ok(())
}

/// Sum over rows: the gradient of [`add_bias`] for its bias.
///
/// # Shapes
/// `x`: `[n, d]`; `out`: `[d]`, overwritten.
/// # Cost
/// At most 64 rows of `f64` are allocated.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
/// # Order
/// Rows are added in `f32` in blocks of 64 and the blocks in `f64`, in parts that depend on `n` alone: the same bits
/// on any number of threads.
pub fn column_sum(x: MatView<'_>, out: &mut [f32]) -> Result<()> {
    const BLOCK: usize = 64;
    const MOST_PARTS: usize = 64;
    const LEAST_ROWS: usize = 1024;
    let (n, d) = (x.rows(), x.cols());
    check_shape("column_sum", "out", [1, d], [1, out.len()])?;
    if d == 0 {
        return Ok(());
    }
    let sums = map_chunks(n, n.div_ceil(MOST_PARTS).max(LEAST_ROWS), |rows| {
        let mut sum = vec![0.0f64; d];
        let mut block_sum = vec![0.0f32; d];
        Arch::new().dispatch(|| {
            for block in x.data()[rows.start * d..rows.end * d].chunks(BLOCK * d) {
                block_sum.fill(0.0);
                for row in block.chunks_exact(d) {
                    for (sum, &x) in block_sum.iter_mut().zip(row) {
                        *sum += x;
                    }
                }
                for (sum, &block) in sum.iter_mut().zip(&block_sum) {
                    *sum += f64::from(block);
                }
            }
        });
        sum
    });
    for (column, out) in out.iter_mut().enumerate() {
        *out = sums.iter().map(|sum| sum[column]).sum::<f64>() as f32;
    }
    Ok(())
}

/// `out = a + b`.
///
/// # Shapes
/// `a`, `b`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn add(a: MatView<'_>, b: MatView<'_>, out: MatMut<'_>) -> Result<()> {
    binary("add", ["a", "b"], a, b, out, |a, b| a + b)
}

/// `out = max(x, 0)`; NaN stays NaN.
///
/// # Shapes
/// `x`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn relu(x: MatView<'_>, mut out: MatMut<'_>) -> Result<()> {
    check_shape("relu", "out", [x.rows(), x.cols()], [out.rows(), out.cols()])?;
    for_chunks(out.data(), CHUNK, |first, out| {
        Arch::new().dispatch(|| {
            for (out, &x) in out.iter_mut().zip(&x.data()[first..]) {
                *out = rectified(x);
            }
        });
    });
    Ok(())
}

/// [`relu`] of one cell.
#[inline(always)]
pub(super) fn rectified(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// [`relu_grad`] of one cell.
#[inline(always)]
pub(super) fn masked(grad: f32, y: f32) -> f32 {
    if y > 0.0 { grad } else { 0.0 }
}

/// `out = grad where y > 0, else 0`: the gradient of [`relu`], from its output `y`.
///
/// # Shapes
/// `grad`, `y`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn relu_grad(grad: MatView<'_>, y: MatView<'_>, out: MatMut<'_>) -> Result<()> {
    binary("relu_grad", ["grad", "y"], grad, y, out, masked)
}

fn binary(
    call: &'static str,
    operands: [&'static str; 2],
    a: MatView<'_>,
    b: MatView<'_>,
    mut out: MatMut<'_>,
    f: impl Fn(f32, f32) -> f32 + Copy + Sync,
) -> Result<()> {
    let want = [out.rows(), out.cols()];
    check_shape(call, operands[0], want, [a.rows(), a.cols()])?;
    check_shape(call, operands[1], want, [b.rows(), b.cols()])?;
    for_chunks(out.data(), CHUNK, |first, out| {
        Arch::new().dispatch(|| {
            for ((out, &a), &b) in out.iter_mut().zip(&a.data()[first..]).zip(&b.data()[first..]) {
                *out = f(a, b);
            }
        });
    });
    Ok(())
}

/// `out = x^T`.
///
/// # Shapes
/// `x`: `[n, d]`; `out`: `[d, n]`, overwritten.
/// # Errors
/// [`Error::Shape`]; `out` is then untouched.
pub fn transpose(x: MatView<'_>, mut out: MatMut<'_>) -> Result<()> {
    /// Rows and columns of a tile: one cache line of each row.
    const TILE: usize = 16;
    let (n, d) = (x.rows(), x.cols());
    check_shape("transpose", "out", [d, n], [out.rows(), out.cols()])?;
    if n == 0 {
        return Ok(());
    }
    for_chunks(out.data(), TILE * n, |first, out| {
        let first_column = first / n;
        for low in (0..n).step_by(TILE) {
            let high = (low + TILE).min(n);
            for (i, out) in out.chunks_exact_mut(n).enumerate() {
                for (r, out) in (low..high).zip(&mut out[low..high]) {
                    *out = x.data()[r * d + first_column + i];
                }
            }
        }
    });
    Ok(())
}

/// `out[i] = values[permutation[i]]`: edge values in the order of the transposed block.
///
/// # Shapes
/// `values`, `permutation`, `out`: `[e]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`], and `out` is untouched; [`Error::Index`] when the permutation points outside, and `out` must not
/// be read.
pub fn permute_edges(values: &[f32], permutation: &[u64], out: &mut [f32]) -> Result<()> {
    const CALL: &str = "permute_edges";
    let e = out.len();
    check_shape(CALL, "values", [e, 1], [values.len(), 1])?;
    check_shape(CALL, "permutation", [e, 1], [permutation.len(), 1])?;
    // A bad index + 1; 0 while there is none.
    let bad = AtomicU64::new(0);
    for_chunks(out, CHUNK, |first, out| {
        for (out, &index) in out.iter_mut().zip(&permutation[first..]) {
            match usize::try_from(index).ok().and_then(|index| values.get(index)) {
                Some(&value) => *out = value,
                None => bad.store(index.saturating_add(1), Ordering::Relaxed),
            }
        }
    });
    match bad.into_inner().checked_sub(1) {
        None => Ok(()),
        Some(index) => Err(Error::Index { call: CALL, operand: "permutation", index, limit: e as u64 }),
    }
}
