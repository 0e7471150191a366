//! Layer normalisation and its gradients. Everything is computed in `f64` and rounded once. The statistics of a row are
//! recomputed, which is cheaper than storing them.

use pulp::{Arch, Simd, WithSimd};

use super::linear::rows_of_parts;
use super::parallel::{for_rows, map_chunks};
use super::slots::Open;
use super::sum::sums;
use crate::error::{Error, Result, check_shape};
use crate::op::Norm;
use crate::op::call::Call;
use crate::view::{MatMut, MatView};

pub(super) fn launch(slots: &Open<'_>, op: Norm, call: &Call) -> Result<()> {
    let (first, second, out) = (slots.mat(call.inputs[0])?, call.inputs[1], call.out());
    match op {
        Norm::Layer { eps } => {
            let (gain, bias) = (slots.numbers(second)?, slots.numbers(call.inputs[2])?);
            layer_norm(first.view(), gain.view(), bias.view(), eps, slots.mat_mut(out)?.view())
        }
        Norm::InputGrad { eps } => {
            let (x, gain) = (slots.mat(second)?, slots.numbers(call.inputs[2])?);
            layer_norm_input_grad(first.view(), x.view(), gain.view(), eps, slots.mat_mut(out)?.view())
        }
        Norm::GainGrad { eps } => {
            let x = slots.mat(second)?;
            layer_norm_gain_grad(first.view(), x.view(), eps, slots.numbers_mut(out)?.view())
        }
    }
}

/// Computes `out = (x - mean) / sqrt(variance + eps) * gain + bias` for each row, with the biased variance.
///
/// # Shapes
/// `x`: `[n, d]`; `gain`, `bias`: `[d]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`Error::Shape`], [`Error::Argument`]; `out` is then untouched.
/// # Order
/// The order of the sums in a row depends on `d` alone: the same bits on any number of threads.
/// # Source
/// `torch.nn.LayerNorm` over the last dimension; Ba, Kiros & Hinton 2016.
pub fn layer_norm(x: MatView<'_>, gain: &[f32], bias: &[f32], eps: f32, mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "layer_norm";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "gain", [d, 1], [gain.len(), 1])?;
    check_shape(CALL, "bias", [d, 1], [bias.len(), 1])?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    let eps = check_eps(CALL, eps)?;
    for_rows(out.data(), d, |first, out| {
        Arch::new().dispatch(Normalise { d, eps, x: &x.data()[first * d..], gain, bias, out });
    });
    Ok(())
}

struct Normalise<'a> {
    d: usize,
    eps: f64,
    x: &'a [f32],
    gain: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { d, eps, x, gain, bias, out } = self;
        for (x, out) in x.chunks(GROUP * d).zip(out.chunks_mut(GROUP * d)) {
            let rows = Rows::of(x, d, eps);
            for (i, (x, out)) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
                let (mean, factor) = (rows.mean[i], rows.factor[i]);
                for (((out, &x), &gain), &bias) in out.iter_mut().zip(x).zip(gain).zip(bias) {
                    *out = ((f64::from(x) - mean) * factor * f64::from(gain) + f64::from(bias)) as f32;
                }
            }
        }
    }
}

/// Computes the gradient of [`layer_norm`] with respect to its input. With `y = (x - mean) / sqrt(variance + eps)` and
/// `g = grad * gain`, each row is `out = (g - mean(g) - y * mean(g * y)) / sqrt(variance + eps)`.
///
/// # Shapes
/// `grad`, `x`: `[n, d]`; `gain`: `[d]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`Error::Shape`], [`Error::Argument`]; `out` is then untouched.
/// # Order
/// As in [`layer_norm`].
pub fn layer_norm_input_grad(
    grad: MatView<'_>,
    x: MatView<'_>,
    gain: &[f32],
    eps: f32,
    mut out: MatMut<'_>,
) -> Result<()> {
    const CALL: &str = "layer_norm_input_grad";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "grad", [n, d], [grad.rows(), grad.cols()])?;
    check_shape(CALL, "gain", [d, 1], [gain.len(), 1])?;
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    let eps = check_eps(CALL, eps)?;
    for_rows(out.data(), d, |first, out| {
        let (grad, x) = (&grad.data()[first * d..], &x.data()[first * d..]);
        Arch::new().dispatch(InputGrad { d, eps, grad, x, gain, out });
    });
    Ok(())
}

struct InputGrad<'a> {
    d: usize,
    eps: f64,
    grad: &'a [f32],
    x: &'a [f32],
    gain: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for InputGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { d, eps, grad, x, gain, out } = self;
        let each = 1.0 / d as f64;
        let groups = grad.chunks(GROUP * d).zip(x.chunks(GROUP * d)).zip(out.chunks_mut(GROUP * d));
        for ((grad, x), out) in groups {
            let (mut rows, mut g_mean, mut slope) = (Rows::default(), [0.0; GROUP], [0.0; GROUP]);
            for (i, (grad, x)) in grad.chunks_exact(d).zip(x.chunks_exact(d)).enumerate() {
                let shift = f64::from(x[0]);
                let [sum, squares, g_sum, g_sum_of_x] = sums([grad, x, gain], |[grad, x, gain]| {
                    let (g, x) = (f64::from(grad) * f64::from(gain), f64::from(x) - shift);
                    [x, x * x, g, g * x]
                });
                rows.set(i, shift, sum * each, squares * each);
                g_mean[i] = g_sum * each;
                slope[i] = (g_sum_of_x - g_sum * (sum * each)) * each;
            }
            rows.finish(eps);
            for (slope, factor) in slope.iter_mut().zip(rows.factor) {
                *slope *= factor * factor;
            }
            for (i, ((grad, x), out)) in
                grad.chunks_exact(d).zip(x.chunks_exact(d)).zip(out.chunks_exact_mut(d)).enumerate()
            {
                let (mean, factor, g_mean, slope) = (rows.mean[i], rows.factor[i], g_mean[i], slope[i]);
                map([grad, x, gain], out, |[grad, x, gain]| {
                    let g = f64::from(grad) * f64::from(gain);
                    ((g - g_mean - (f64::from(x) - mean) * slope) * factor) as f32
                });
            }
        }
    }
}

/// Computes the gradient of [`layer_norm`] with respect to its gain: the sum over rows of `grad * (x - mean) /
/// sqrt(variance + eps)`. The gradient of the bias is [`super::column_sum`].
///
/// # Shapes
/// `grad`, `x`: `[n, d]`; `out`: `[d]`, overwritten.
/// # Cost
/// Allocates at most 64 rows of `f64`.
/// # Errors
/// [`Error::Shape`], [`Error::Argument`]; `out` is then untouched.
/// # Order
/// Rows are added in `f64`, in parts that depend on `n` alone: the same bits on any number of threads.
pub fn layer_norm_gain_grad(grad: MatView<'_>, x: MatView<'_>, eps: f32, out: &mut [f32]) -> Result<()> {
    const CALL: &str = "layer_norm_gain_grad";
    const MOST_PARTS: usize = 64;
    const PART_ROWS: usize = 1024;
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "grad", [n, d], [grad.rows(), grad.cols()])?;
    check_shape(CALL, "out", [1, d], [1, out.len()])?;
    let eps = check_eps(CALL, eps)?;
    if d == 0 {
        return Ok(());
    }
    let parts = map_chunks(n, rows_of_parts(n, PART_ROWS, MOST_PARTS), |rows| {
        let mut sum = vec![0.0f64; d];
        let cells = rows.start * d..rows.end * d;
        let (grad, x) = (&grad.data()[cells.clone()], &x.data()[cells]);
        Arch::new().dispatch(GainGrad { eps, grad, x, sum: &mut sum });
        sum
    });
    for (column, out) in out.iter_mut().enumerate() {
        *out = parts.iter().map(|sum| sum[column]).sum::<f64>() as f32;
    }
    Ok(())
}

struct GainGrad<'a> {
    eps: f64,
    grad: &'a [f32],
    x: &'a [f32],
    sum: &'a mut [f64],
}

impl WithSimd for GainGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { eps, grad, x, sum } = self;
        let d = sum.len();
        for (grad, x) in grad.chunks(GROUP * d).zip(x.chunks(GROUP * d)) {
            let rows = Rows::of(x, d, eps);
            for (i, (grad, x)) in grad.chunks_exact(d).zip(x.chunks_exact(d)).enumerate() {
                let (mean, factor) = (rows.mean[i], rows.factor[i]);
                for ((sum, &grad), &x) in sum.iter_mut().zip(grad).zip(x) {
                    *sum += f64::from(grad) * ((f64::from(x) - mean) * factor);
                }
            }
        }
    }
}

fn check_eps(call: &'static str, eps: f32) -> Result<f64> {
    let got = f64::from(eps);
    if got >= 0.0 { Ok(got) } else { Err(Error::Argument { call, operand: "eps", want: "at least 0", got }) }
}

/// Rows whose square roots and quotients are computed together, as vectors.
const GROUP: usize = 16;

/// The statistics of at most [`GROUP`] rows.
#[derive(Default)]
struct Rows {
    mean: [f64; GROUP],
    /// `1 / sqrt(variance + eps)`; before [`Rows::finish`] the variance.
    factor: [f64; GROUP],
}

impl Rows {
    /// Reads each row once. Sums are over the differences to a row's first number. This number is at most `sqrt(d)`
    /// standard deviations from the mean, so that little is lost when the mean's square is subtracted.
    #[inline(always)]
    fn of(x: &[f32], d: usize, eps: f64) -> Self {
        let (mut rows, each) = (Self::default(), 1.0 / d as f64);
        for (i, x) in x.chunks_exact(d).enumerate() {
            let shift = f64::from(x[0]);
            let [sum, squares] = sums([x], |[x]| {
                let x = f64::from(x) - shift;
                [x, x * x]
            });
            rows.set(i, shift, sum * each, squares * each);
        }
        rows.finish(eps);
        rows
    }

    /// Sets the mean and the variance of row `i` from the means of the differences to `shift` and of their squares.
    #[inline(always)]
    fn set(&mut self, i: usize, shift: f64, difference: f64, squares: f64) {
        self.mean[i] = shift + difference;
        let variance = squares - difference * difference;
        self.factor[i] = if variance < 0.0 { 0.0 } else { variance };
    }

    #[inline(always)]
    fn finish(&mut self, eps: f64) {
        for factor in &mut self.factor {
            *factor = 1.0 / (*factor + eps).sqrt();
        }
    }
}

/// Cells of a row that are computed together.
const LANES: usize = 16;

/// Computes each cell of a row from the same cells of `K` others.
#[inline(always)]
fn map<const K: usize>(rows: [&[f32]; K], out: &mut [f32], f: impl Fn([f32; K]) -> f32) {
    let chunks = rows.map(|row| row.as_chunks::<LANES>().0);
    for (i, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        map_chunk(std::array::from_fn(|k| &chunks[k][i]), out, &f);
    }
    if out.len().is_multiple_of(LANES) {
        return;
    }
    if let Some(out) = out.last_chunk_mut::<LANES>() {
        // Some of the last cells are computed twice, so that they fill vectors.
        return map_chunk(rows.map(|row| row.last_chunk::<LANES>().expect("the rows have one length")), out, &f);
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(std::array::from_fn(|k| rows[k][i]));
    }
}

// With an iterator, the gradient of the input takes 1.5 times as long.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn map_chunk<const K: usize>(cells: [&[f32; LANES]; K], out: &mut [f32; LANES], f: &impl Fn([f32; K]) -> f32) {
    for lane in 0..LANES {
        out[lane] = f(std::array::from_fn(|k| cells[k][lane]));
    }
}
