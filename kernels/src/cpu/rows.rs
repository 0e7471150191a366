//! Row steps: operations that run on rows while they are still in a cache, after the kernel that made them.
//!
//! A step computes the same as its own kernel, cell by cell, with the same roundings in the same order. So a chain of
//! kernels and one kernel with steps give the same bits.

use std::ops::Range;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::dropout::{Mask, drop_in_place, drop_rows};
use super::element::{Element, read, write};
use super::exp::exp;
use super::parallel::for_rows;
use super::slots::{Open, Vector};
use crate::error::{Result, check_shape};
use crate::op::call::{Call, Mat};
use crate::op::{Dim, RowStep};
use crate::random::DropoutKey;
use crate::storage_type::StorageType;
use crate::view::{MatMut, MatView};

/// Elements that all steps process before the next group. With as many elements of an operand, they fit the first-level
/// cache.
const GROUP: usize = 1 << 11;

/// One row step on a matrix `[n, d]`, with its operand.
#[derive(Clone, Copy, Debug)]
pub struct RowWork<'a> {
    /// The step.
    pub step: RowStep,
    /// The step's operand, row by row; empty for a dropout and for a step without an operand.
    pub beside: Numbers<'a>,
    /// The key and the epoch of a dropout.
    pub draws: Option<(DropoutKey, u64)>,
}

/// Numbers as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl<'a> Numbers<'a> {
    fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
        }
    }

    /// Returns some of the numbers as f32: themselves, or widened into `room`.
    fn read<'b>(self, range: Range<usize>, room: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        match self {
            Self::F32(numbers) => &numbers[range],
            Self::Bf16(numbers) => read(&numbers[range], room),
        }
    }
}

impl<'a> RowWork<'a> {
    /// Creates a step that is not a dropout.
    pub fn new(step: RowStep, beside: &'a [f32]) -> Self {
        Self { step, beside: Numbers::F32(beside), draws: None }
    }
}

/// Row steps whose operands were checked.
#[derive(Clone, Debug)]
pub(super) struct Steps<'a> {
    // Invariant: every operand has the shape that its step needs for rows of length `d`.
    steps: Vec<(RowWork<'a>, Option<Mask>)>,
    n: usize,
    d: usize,
}

impl<'a> Steps<'a> {
    /// Checks the steps of `call` on `n` rows of length `d`.
    pub(super) fn new(call: &'static str, steps: &[RowWork<'a>], n: usize, d: usize) -> Result<Self> {
        let check = |work: &RowWork<'a>| {
            let Some(operand) = work.step.record().inputs.get(1) else { return Ok((*work, None)) };
            if let Some((key, epoch)) = work.draws {
                return Ok((*work, Some(Mask::new(call, key, epoch)?)));
            }
            let size = |dim| if dim == Dim::N { n } else { d };
            let [rows, cols] = [operand.rows, operand.cols].map(|dim| if dim == Dim::Just(1) { 1 } else { size(dim) });
            check_shape(call, operand.name, [rows.saturating_mul(cols), 1], [work.beside.len(), 1])?;
            Ok((*work, None))
        };
        Ok(Self { steps: steps.iter().map(check).collect::<Result<_>>()?, n, d })
    }

    /// Returns how many rows to process together; all rows if nothing is done to them after they are made.
    pub(super) fn group<E: Element>(&self) -> usize {
        if self.steps.is_empty() && !E::ROUNDS { self.n.max(1) } else { (GROUP / self.d.max(1)).max(1) }
    }

    /// Applies all steps, one after the other, to rows of which the first is row `first`.
    pub(super) fn apply(&self, first: usize, rows: &mut [f32]) {
        self.apply_from(None, first, rows);
    }

    /// Applies all steps to rows of `x`, of which the first is row `first`, and stores the results.
    fn apply_to<E: Element>(&self, x: &[E], first: usize, rows: &mut [E]) {
        if let (Some(x), Some(rows)) = (E::as_f32(x), E::as_f32_mut(rows)) {
            return self.apply_from(Some(x), first, rows);
        }
        let (group, mut room) = (self.group::<E>(), Vec::new());
        let groups = rows.chunks_mut((group * self.d).max(1)).zip(x.chunks((group * self.d).max(1)));
        for (i, (rows, x)) in groups.enumerate() {
            write(rows, &mut room, |rows| {
                E::widen(x, rows);
                self.apply(first + i * group, rows);
            });
        }
    }

    /// Does the same as [`Steps::apply`], but the first step reads the rows of `x`, if given.
    fn apply_from(&self, x: Option<&[f32]>, first: usize, rows: &mut [f32]) {
        let d = self.d;
        if let (true, Some(x)) = (self.steps.is_empty(), x) {
            rows.copy_from_slice(x);
        }
        if self.steps.is_empty() || d == 0 {
            return;
        }
        // A single step reads each row only once, so groups are not needed.
        let widens = self.steps.iter().any(|(work, _)| matches!(work.beside, Numbers::Bf16(_)));
        let group = if self.steps.len() > 1 || widens { self.group::<f32>() } else { (rows.len() / d).max(1) };
        let mut room = Vec::new();
        for (i, rows) in rows.chunks_mut(group * d).enumerate() {
            let mut x = x.map(|x| &x[i * group * d..][..rows.len()]);
            for (work, mask) in &self.steps {
                let (x, first) = (x.take(), first + i * group);
                // The part of the operand that belongs to these rows.
                let part = match work.step.record().inputs.get(1).map(|operand| [operand.rows, operand.cols]) {
                    Some([Dim::N, Dim::Just(1)]) => first..first + rows.len() / d,
                    Some([Dim::N, _]) => first * d..first * d + rows.len(),
                    _ => 0..work.beside.len(),
                };
                let beside = work.beside.read(part, &mut room);
                Arch::new().dispatch(Apply { step: work.step, beside, mask: *mask, first, d, x, rows });
            }
        }
    }
}

/// One step on a few rows: from `x` to `rows`, or in place.
struct Apply<'b> {
    step: RowStep,
    /// The operand of these rows.
    beside: &'b [f32],
    mask: Option<Mask>,
    first: usize,
    d: usize,
    x: Option<&'b [f32]>,
    rows: &'b mut [f32],
}

impl WithSimd for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { step, beside, mask, first, d, x, rows } = self;
        match step {
            RowStep::Scale => {
                for ((x, row), &scale) in rows_of(x, rows, d).zip(beside) {
                    each(x, row, |x| scale * x);
                }
            }
            RowStep::AddBias => {
                for (x, row) in rows_of(x, rows, d) {
                    each_with(x, row, beside, |x, bias| x + bias);
                }
            }
            RowStep::Add => each_with(x, rows, beside, |x, b| x + b),
            RowStep::Relu => each(x, rows, |x| if x <= 0.0 { 0.0 } else { x }),
            RowStep::ReluGrad => {
                each_with(x, rows, beside, |grad, y| if y > 0.0 { grad } else { 0.0 });
            }
            RowStep::Elu { alpha } => each(x, rows, |x| elu(alpha, x)),
            RowStep::EluGrad { alpha } => {
                let dx = |grad, y| if y > 0.0 { grad } else { grad * (y + alpha) };
                each_with(x, rows, beside, dx);
            }
            RowStep::LeakyRelu { slope } => each(x, rows, |x| if x > 0.0 { x } else { slope * x }),
            RowStep::LeakyReluGrad { slope } => {
                let dx = |grad, y| if y > 0.0 { grad } else { slope * grad };
                each_with(x, rows, beside, dx);
            }
            RowStep::Multiply { by } => each(x, rows, |x| by * x),
            RowStep::Dropout { .. } => {
                let mask = mask.expect("a dropout's mask is made with its steps");
                match x {
                    Some(x) => drop_rows(mask, first, d, x, rows),
                    None => drop_in_place(mask, first, d, rows),
                }
            }
        }
    }
}

/// Computes one cell of an ELU. Near 0, where `e^x - 1` would cancel, it uses a Taylor polynomial.
#[inline(always)]
fn elu(alpha: f32, x: f32) -> f32 {
    let series = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0)));
    let near = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * series)));
    let far = exp(if x > 0.0 { 0.0 } else { x }) - 1.0;
    let below = if x > -0.35 { near } else { far };
    if x > 0.0 { x } else { alpha * below }
}

/// Splits into rows of length `d`. Each row comes with its input row, if the input is elsewhere.
#[inline(always)]
fn rows_of<'a>(
    x: Option<&'a [f32]>,
    rows: &'a mut [f32],
    d: usize,
) -> impl Iterator<Item = (Option<&'a [f32]>, &'a mut [f32])> {
    let x = move |r: usize| x.map(|x| &x[r * d..][..d]);
    rows.chunks_exact_mut(d).enumerate().map(move |(r, row)| (x(r), row))
}

/// Applies `f` to each cell, from `x` to `out` or in place.
#[inline(always)]
fn each(x: Option<&[f32]>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        Some(x) => out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x)),
        None => out.iter_mut().for_each(|out| *out = f(*out)),
    }
}

/// Does the same as [`each`], with the same cell of `beside` as second argument.
#[inline(always)]
fn each_with(x: Option<&[f32]>, out: &mut [f32], beside: &[f32], f: impl Fn(f32, f32) -> f32) {
    match x {
        Some(x) => out.iter_mut().zip(x).zip(beside).for_each(|((out, &x), &beside)| *out = f(x, beside)),
        None => out.iter_mut().zip(beside).for_each(|(out, &beside)| *out = f(*out, beside)),
    }
}

/// Applies all steps to `x` and writes `out`, in one pass: a chain of elementwise kernels without intermediate
/// matrices.
///
/// # Shapes
/// `x`, `out`: `[n, d]`; `out` is overwritten.
/// # Errors
/// [`crate::Error::Shape`], [`crate::Error::Argument`]; `out` is then untouched.
/// # Order
/// Each cell has the same bits as if the kernels ran one after the other.
pub fn rows_then(x: MatView<'_>, steps: &[RowWork<'_>], out: MatMut<'_>) -> Result<()> {
    chain("rows", x, steps, out)
}

fn chain<E: Element>(
    call: &'static str,
    x: MatView<'_, E>,
    steps: &[RowWork<'_>],
    mut out: MatMut<'_, E>,
) -> Result<()> {
    let (n, d) = (x.rows(), x.cols());
    check_shape(call, "out", [n, d], [out.rows(), out.cols()])?;
    let steps = Steps::new(call, steps, n, d)?;
    for_rows(out.data(), d, |first, out| steps.apply_to(&x.data()[first * d..][..out.len()], first, out));
    Ok(())
}

/// A step whose operand is locked for reading.
pub(super) struct OpenStep {
    step: RowStep,
    beside: Option<OpenNumbers>,
    draws: Option<(DropoutKey, u64)>,
}

enum OpenNumbers {
    F32(Vector<f32>),
    Bf16(Vector<bf16>),
}

impl OpenStep {
    fn new(slots: &Open<'_>, call: &Call, step: RowStep, beside: Option<Mat>) -> Result<Self> {
        match (step, beside) {
            (RowStep::Dropout { rate, salt, first_column }, Some(clock)) => {
                let draws = Some((call.dropout_key(rate, salt, first_column), slots.clock(clock)?[0]));
                Ok(Self { step, beside: None, draws })
            }
            _ => {
                let open = |mat: Mat| match mat.float() {
                    StorageType::F32 => slots.numbers(mat).map(OpenNumbers::F32),
                    StorageType::Bf16 => slots.numbers(mat).map(OpenNumbers::Bf16),
                };
                Ok(Self { step, beside: beside.map(open).transpose()?, draws: None })
            }
        }
    }

    /// Opens the steps that follow the call's head.
    pub(super) fn behind(slots: &Open<'_>, call: &Call) -> Result<Vec<Self>> {
        call.steps().map(|(step, beside)| Self::new(slots, call, step, beside)).collect()
    }

    pub(super) fn work(&self) -> RowWork<'_> {
        let beside = match &self.beside {
            Some(OpenNumbers::F32(numbers)) => Numbers::F32(numbers.view()),
            Some(OpenNumbers::Bf16(numbers)) => Numbers::Bf16(numbers.view()),
            None => Numbers::F32(&[]),
        };
        RowWork { step: self.step, beside, draws: self.draws }
    }
}

/// Runs a step, or a chain of steps.
pub(super) fn launch(slots: &Open<'_>, first: RowStep, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    match call.out().float() {
        StorageType::F32 => launch_as::<f32>(slots, first, call, steps),
        StorageType::Bf16 => launch_as::<bf16>(slots, first, call, steps),
    }
}

/// Does [`launch`] for rows of type `E`.
fn launch_as<E: Element>(slots: &Open<'_>, first: RowStep, call: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let (x_mat, out_mat) = (call.inputs[0], call.out());
    let x = slots.numbers::<E>(x_mat)?;
    let first = OpenStep::new(slots, call, first, call.head_inputs().get(1).copied())?;
    let mut out = slots.numbers_mut::<E>(out_mat)?;
    chain(call.name_of_head(), x.matrix(x_mat), &[&[first.work()], steps].concat(), out.matrix(out_mat))
}

/// Returns the bytes that an elementwise kernel with `inputs` matrices of `n` rows and `d` columns reads and writes.
pub fn elementwise_bytes(inputs: u64, n: u64, d: u64) -> u64 {
    4 * (inputs + 1) * n * d
}

/// Computes `out = x / (1 - rate)` in the cells that are kept, 0 in the others. It is its own gradient.
///
/// Cell `(r, c)` is kept if its draw is at least [`threshold`](crate::random::threshold)`(rate)`. Kept cells are
/// multiplied by `1 / (1 - rate)`, computed in `f32`.
///
/// # Shapes
/// `x`, `out`: `[n, d]`; `out` is overwritten; `epoch` is the clock's.
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::Argument`](crate::Error::Argument); `out` is then untouched.
pub fn dropout(x: MatView<'_>, key: DropoutKey, epoch: u64, out: MatMut<'_>) -> Result<()> {
    let step = RowStep::Dropout { rate: key.rate, salt: key.op, first_column: key.first_column };
    chain("dropout", x, &[RowWork { step, beside: Numbers::F32(&[]), draws: Some((key, epoch)) }], out)
}
