//! Row steps: what is done to rows while they are still in a cache, behind the kernel that made them.
//!
//! A step computes what the kernel of its own computes, cell by cell, with the same roundings in the same order; so a chain
//! of kernels and one kernel with steps give the same bits.

use pulp::{Arch, Simd, WithSimd};

use super::dropout::{Mask, drop_in_place};
use super::elementwise::{masked, rectified};
use super::parallel::for_rows;
use crate::call::DropoutKey;
use crate::error::{Result, check_shape};
use crate::view::{MatMut, MatView};

/// Elements that the steps take in turn: with as many of an operand, they fit the nearest cache.
const GROUP: usize = 1 << 11;

/// What is done to every row of a matrix `[n, d]`; see [`crate::call::RowStep`].
#[derive(Clone, Copy, Debug)]
pub enum RowWork<'a> {
    /// Times the row's factor, `[n]`: [`super::row_scale`].
    Scale(&'a [f32]),
    /// Plus the bias, `[d]`: [`super::add_bias`].
    AddBias(&'a [f32]),
    /// Plus the same row of a matrix, `[n, d]`: [`super::add`].
    Add(MatView<'a>),
    /// [`super::relu`].
    Relu,
    /// Where the same cell of a matrix, `[n, d]`, is above 0: [`super::relu_grad`].
    ReluGrad(MatView<'a>),
    /// [`super::dropout()`] in this epoch.
    Dropout(DropoutKey, u64),
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
        let check = |step: &RowWork<'a>| {
            match step {
                RowWork::Scale(scale) => check_shape(call, "scale", [n, 1], [scale.len(), 1])?,
                RowWork::AddBias(bias) => check_shape(call, "bias", [d, 1], [bias.len(), 1])?,
                RowWork::Add(b) => check_shape(call, "b", [n, d], [b.rows(), b.cols()])?,
                RowWork::ReluGrad(y) => check_shape(call, "y", [n, d], [y.rows(), y.cols()])?,
                RowWork::Relu => {}
                RowWork::Dropout(key, epoch) => return Ok((*step, Some(Mask::new(call, *key, *epoch)?))),
            }
            Ok((*step, None))
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
                Arch::new().dispatch(Apply { step: *step, mask: *mask, first: first + i * group, d: self.d, rows });
            }
        }
    }
}

/// One step on a few rows.
struct Apply<'a, 'b> {
    step: RowWork<'a>,
    mask: Option<Mask>,
    first: usize,
    d: usize,
    rows: &'b mut [f32],
}

impl WithSimd for Apply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { step, mask, first, d, rows } = self;
        match step {
            RowWork::Scale(scale) => {
                for (row, &scale) in rows.chunks_exact_mut(d).zip(&scale[first..]) {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
            RowWork::AddBias(bias) => {
                for row in rows.chunks_exact_mut(d) {
                    row.iter_mut().zip(bias).for_each(|(x, &bias)| *x += bias);
                }
            }
            RowWork::Add(b) => rows.iter_mut().zip(&b.data()[first * d..]).for_each(|(x, &b)| *x += b),
            RowWork::Relu => rows.iter_mut().for_each(|x| *x = rectified(*x)),
            RowWork::ReluGrad(y) => {
                rows.iter_mut().zip(&y.data()[first * d..]).for_each(|(x, &y)| *x = masked(*x, y));
            }
            RowWork::Dropout(..) => {
                let mask = mask.expect("a dropout's mask is made with its steps");
                drop_in_place(mask, first, d, rows);
            }
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
