//! From a [`Call::Fused`] over slots to one kernel with row steps.

use super::gather::{Window, gather_then, gather_window};
use super::linear::{linear_input_grad_then, linear_then};
use super::rows::{RowWork, rows_then};
use super::slots::{Matrix, Open, Vector};
use crate::call::{Call, DropoutKey, Mat, RowStep};
use crate::error::{Error, Result};
use crate::memory::Slot;

/// A step whose operand is locked for reading.
enum Opened {
    Scale(Vector<f32>),
    AddBias(Vector<f32>),
    Add(Matrix),
    Relu,
    ReluGrad(Matrix),
    Dropout(DropoutKey, u64),
}

impl Opened {
    fn new(slots: &Open<'_>, step: &RowStep, out: Mat) -> Result<Self> {
        Ok(match *step {
            RowStep::Scale(scale) => Self::Scale(slots.vec(scale, out.rows)?),
            RowStep::AddBias(bias) => Self::AddBias(slots.vec(bias, out.cols)?),
            RowStep::Add(slot) => Self::Add(slots.mat(Mat { slot, ..out })?),
            RowStep::Relu => Self::Relu,
            RowStep::ReluGrad(slot) => Self::ReluGrad(slots.mat(Mat { slot, ..out })?),
            RowStep::Dropout { key, clock } => Self::Dropout(key, read_clock(slots, clock)?[0]),
        })
    }

    fn work(&self) -> RowWork<'_> {
        match self {
            Self::Scale(scale) => RowWork::Scale(scale.view()),
            Self::AddBias(bias) => RowWork::AddBias(bias.view()),
            Self::Add(b) => RowWork::Add(b.view()),
            Self::Relu => RowWork::Relu,
            Self::ReluGrad(y) => RowWork::ReluGrad(y.view()),
            Self::Dropout(key, epoch) => RowWork::Dropout(*key, *epoch),
        }
    }
}

/// Runs a fused call to its end.
pub(super) fn launch_fused(slots: &Open<'_>, head: &Call, steps: &[RowStep]) -> Result<()> {
    let Some(out) = head.rows_out() else { return Err(Error::NotFusable { call: head.name() }) };
    let opened = open_all(slots, steps, out)?;
    let work: Vec<RowWork<'_>> = opened.iter().map(Opened::work).collect();
    match *head {
        Call::Gather { block, weights, own, halo, out } => {
            let edges = block.edges;
            let block = slots.block(block)?;
            let weights = weights.map(|weights| slots.vec(weights, edges)).transpose()?;
            let own = slots.mat(own)?;
            let halo = halo.map(|halo| slots.mat(halo)).transpose()?;
            let mut out = slots.mat_mut(out)?;
            let (weights, halo) = (weights.as_ref().map(Vector::view), halo.as_ref().map(Matrix::view));
            gather_then(block.view(), weights, own.view(), halo, &work, out.view())
        }
        Call::GatherWindow { block, weights, first, own, sum, out } => {
            let edges = block.edges;
            let block = slots.block(block)?;
            let weights = weights.map(|weights| slots.vec(weights, edges)).transpose()?;
            let own = slots.mat(own)?;
            let sum = sum.map(|sum| slots.mat(sum)).transpose()?;
            let window = Window { first, sum: sum.as_ref().map(Matrix::view) };
            let weights = weights.as_ref().map(Vector::view);
            gather_window(block.view(), weights, window, own.view(), &work, slots.mat_mut(out)?.view())
        }
        Call::Linear { x, weight, out } => {
            let (x, weight) = (slots.mat(x)?, slots.mat(weight)?);
            linear_then(x.view(), weight.view(), &work, slots.mat_mut(out)?.view())
        }
        Call::LinearInputGrad { grad, weight, out } => {
            let (grad, weight) = (slots.mat(grad)?, slots.mat(weight)?);
            linear_input_grad_then(grad.view(), weight.view(), &work, slots.mat_mut(out)?.view())
        }
        _ => launch_rows(slots, head, &work),
    }
}

/// A chain of calls that work cell by cell: the first is a step too.
fn launch_rows(slots: &Open<'_>, head: &Call, steps: &[RowWork<'_>]) -> Result<()> {
    let (x, first, out) = head.as_row_step().expect("the others have kernels of their own");
    let first = Opened::new(slots, &first, out)?;
    let work = [&[first.work()], steps].concat();
    rows_then(slots.mat(x)?.view(), &work, slots.mat_mut(out)?.view())
}

fn open_all(slots: &Open<'_>, steps: &[RowStep], out: Mat) -> Result<Vec<Opened>> {
    steps.iter().map(|step| Opened::new(slots, step, out)).collect()
}

/// Epoch and step.
pub(super) fn read_clock(slots: &Open<'_>, clock: Slot) -> Result<[u64; 2]> {
    let clock = slots.vec(clock, 2)?;
    Ok([clock.view()[0], clock.view()[1]])
}
