//! Row steps: what is done to rows while they are still in a cache, behind the kernel that made them.
//!
//! A step computes what the kernel of its own computes, cell by cell, with the same roundings in the same order; so a chain
//! of kernels and one kernel with steps give the same bits.

use pulp::{Arch, Simd, WithSimd};

use super::dropout::{Mask, drop_in_place, dropout};
use super::parallel::{CHUNK, for_chunks, for_rows};
use super::slots::{Matrix, Open, Vector};
use crate::call::{Call, DropoutKey, Mat};
use crate::error::{Result, check_shape};
use crate::op::{Dim, RowStep};
use crate::view::{MatMut, MatView};

/// Elements that the steps take in turn: with as many of an operand, they fit the nearest cache.
const GROUP: usize = 1 << 11;

/// What is done to every row of a matrix `[n, d]`: a step, and what it reads beside the row.
#[derive(Clone, Copy, Debug)]
pub struct RowWork<'a> {
    /// The step.
    pub step: RowStep,
    /// What it reads, as its record says.
    pub beside: Beside<'a>,
}

/// What a row step reads beside the row.
#[derive(Clone, Copy, Debug)]
pub enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// A number for each row, `[n]`.
    Rows(&'a [f32]),
    /// A number for each column, `[d]`.
    Columns(&'a [f32]),
    /// The same row of a matrix, `[n, d]`.
    Cells(MatView<'a>),
    /// The draws of a dropout in this epoch.
    Draws(DropoutKey, u64),
}

/// Steps whose operands fit.
#[derive(Clone, Debug)]
pub(super) struct Steps<'a> {
    // Invariant: every operand has the shape that its step needs for rows of `d`.
    steps: Vec<(RowWork<'a>, Option<Mask>)>,
    n: usize,
    d: usize,
}

impl<'a> Steps<'a> {
    /// The steps that `call` does to `n` rows of `d`.
    pub(super) fn new(call: &'static str, steps: &[RowWork<'a>], n: usize, d: usize) -> Result<Self> {
        let check = |work: &RowWork<'a>| {
            let operand = work.step.record().inputs.get(1);
            let [want, got] = match (operand.map(|operand| [operand.rows, operand.cols]), work.beside) {
                (None, Beside::Nothing) => return Ok((*work, None)),
                (Some([Dim::Scalar, _]), Beside::Draws(key, epoch)) => {
                    return Ok((*work, Some(Mask::new(call, key, epoch)?)));
                }
                (Some([Dim::N, Dim::Just(1)]), Beside::Rows(rows)) => [[n, 1], [rows.len(), 1]],
                (Some([Dim::Just(1), Dim::D]), Beside::Columns(columns)) => [[1, d], [1, columns.len()]],
                (Some([Dim::N, Dim::D]), Beside::Cells(cells)) => [[n, d], [cells.rows(), cells.cols()]],
                _ => [[n, d], [0, 0]],
            };
            check_shape(call, operand.map_or("operand", |operand| operand.name), want, got)?;
            Ok((*work, None))
        };
        Ok(Self { steps: steps.iter().map(check).collect::<Result<_>>()?, n, d })
    }

    /// Rows that are worth doing together: all, if there is nothing to do.
    pub(super) fn group(&self) -> usize {
        if self.steps.is_empty() { self.n.max(1) } else { (GROUP / self.d.max(1)).max(1) }
    }

    /// Does all steps, one after the other, to rows of which the first is `first`.
    pub(super) fn apply(&self, first: usize, rows: &mut [f32]) {
        if self.steps.is_empty() || self.d == 0 {
            return;
        }
        let group = self.group();
        for (i, rows) in rows.chunks_mut(group * self.d).enumerate() {
            for (step, mask) in &self.steps {
                Arch::new().dispatch(Apply { work: *step, mask: *mask, first: first + i * group, d: self.d, rows });
            }
        }
    }
}

/// One step on a few rows.
struct Apply<'a, 'b> {
    work: RowWork<'a>,
    mask: Option<Mask>,
    first: usize,
    d: usize,
    rows: &'b mut [f32],
}

impl WithSimd for Apply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { work, mask, first, d, rows } = self;
        match (work.step, work.beside) {
            (RowStep::Scale, Beside::Rows(scale)) => {
                for (row, &scale) in rows.chunks_exact_mut(d).zip(&scale[first..]) {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
            (RowStep::AddBias, Beside::Columns(bias)) => {
                for row in rows.chunks_exact_mut(d) {
                    row.iter_mut().zip(bias).for_each(|(x, &bias)| *x += bias);
                }
            }
            (RowStep::Add, Beside::Cells(b)) => {
                rows.iter_mut().zip(&b.data()[first * d..]).for_each(|(x, &b)| *x += b);
            }
            (RowStep::Relu, _) => rows.iter_mut().for_each(|x| *x = rectified(*x)),
            (RowStep::ReluGrad, Beside::Cells(y)) => {
                rows.iter_mut().zip(&y.data()[first * d..]).for_each(|(x, &y)| *x = masked(*x, y));
            }
            (RowStep::Dropout { .. }, _) => {
                let mask = mask.expect("a dropout's mask is made with its steps");
                drop_in_place(mask, first, d, rows);
            }
            _ => unreachable!("what a step reads was checked"),
        }
    }
}

/// `out = x`, after all steps, in one pass over both: a chain of elementwise kernels without what lies between them.
///
/// # Shapes
/// `x`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`crate::Error::Shape`], [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Per cell what the kernels one after the other compute, bit for bit.
pub fn rows_then(x: MatView<'_>, steps: &[RowWork<'_>], mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "rows";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "out", [n, d], [out.rows(), out.cols()])?;
    let steps = Steps::new(CALL, steps, n, d)?;
    let group = steps.group() * d.max(1);
    for_rows(out.data(), d, |first, out| {
        for (i, out) in out.chunks_mut(group).enumerate() {
            let start = first * d + i * group;
            out.copy_from_slice(&x.data()[start..start + out.len()]);
            steps.apply(first + i * steps.group(), out);
        }
    });
    Ok(())
}

/// A step whose operand is locked for reading.
pub(super) struct OpenStep {
    step: RowStep,
    beside: OpenBeside,
}

enum OpenBeside {
    Nothing,
    Rows(Vector<f32>),
    Columns(Vector<f32>),
    Cells(Matrix),
    Draws(DropoutKey, u64),
}

impl OpenStep {
    fn new(slots: &Open<'_>, call: &Call, step: RowStep, beside: Option<&Mat>) -> Result<Self> {
        let shape = step.record().inputs.get(1).map(|operand| [operand.rows, operand.cols]);
        let beside = match (beside, shape, step) {
            (Some(clock), _, RowStep::Dropout { rate, salt }) => {
                OpenBeside::Draws(call.dropout_key(rate, salt), slots.clock(*clock)?[0])
            }
            (Some(mat), Some([_, Dim::Just(1)]), _) => OpenBeside::Rows(slots.numbers(*mat)?),
            (Some(mat), Some([Dim::Just(1), _]), _) => OpenBeside::Columns(slots.numbers(*mat)?),
            (Some(mat), _, _) => OpenBeside::Cells(slots.mat(*mat)?),
            (None, ..) => OpenBeside::Nothing,
        };
        Ok(Self { step, beside })
    }

    /// The steps behind the call's head.
    pub(super) fn behind(slots: &Open<'_>, call: &Call) -> Result<Vec<Self>> {
        let mut operands = call.inputs[call.head_inputs().len()..].iter();
        let open = |step: &RowStep| {
            let beside = step.record().inputs.get(1).and_then(|_| operands.next());
            Self::new(slots, call, *step, beside)
        };
        call.op.steps().iter().map(open).collect()
    }

    pub(super) fn work(&self) -> RowWork<'_> {
        let beside = match &self.beside {
            OpenBeside::Nothing => Beside::Nothing,
            OpenBeside::Rows(rows) => Beside::Rows(rows.view()),
            OpenBeside::Columns(columns) => Beside::Columns(columns.view()),
            OpenBeside::Cells(cells) => Beside::Cells(cells.view()),
            OpenBeside::Draws(key, epoch) => Beside::Draws(*key, *epoch),
        };
        RowWork { step: self.step, beside }
    }
}

/// A step by itself, or a chain of them.
pub(super) fn launch(slots: &Open<'_>, first: RowStep, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let (x, out) = (slots.mat(call.inputs[0])?, call.out());
    let first = OpenStep::new(slots, call, first, call.head_inputs().get(1))?;
    let (x, first) = (x.view(), first.work());
    let mut out = slots.mat_mut(out)?;
    let out = out.view();
    match (first.step, first.beside) {
        _ if !steps.is_empty() => rows_then(x, &[&[first], steps].concat(), out),
        (RowStep::Scale, Beside::Rows(scale)) => row_scale(x, scale, out),
        (RowStep::AddBias, Beside::Columns(bias)) => add_bias(x, bias, out),
        (RowStep::Add, Beside::Cells(b)) => add(x, b, out),
        (RowStep::Relu, _) => relu(x, out),
        (RowStep::ReluGrad, Beside::Cells(y)) => relu_grad(x, y, out),
        (_, Beside::Draws(key, epoch)) => dropout(x, key, epoch, out),
        _ => rows_then(x, &[first], out),
    }
}

/// Bytes that an elementwise kernel with `inputs` matrices of `n` rows and `d` columns reads and writes.
pub fn elementwise_bytes(inputs: u64, n: u64, d: u64) -> u64 {
    4 * (inputs + 1) * n * d
}

/// `out[v] = scale[v] * x[v]`.
///
/// # Shapes
/// `x`: `[n, d]`; `scale`: `[n]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
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

/// `out[v] = x[v] + bias`.
///
/// # Shapes
/// `x`: `[n, d]`; `bias`: `[d]`; `out`: `[n, d]`, overwritten.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
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

/// `out = a + b`.
///
/// # Shapes
/// `a`, `b`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
pub fn add(a: MatView<'_>, b: MatView<'_>, out: MatMut<'_>) -> Result<()> {
    binary("add", ["a", "b"], a, b, out, |a, b| a + b)
}

/// `out = max(x, 0)`; NaN stays NaN.
///
/// # Shapes
/// `x`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
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
/// [`crate::Error::Shape`]; `out` is then untouched.
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
