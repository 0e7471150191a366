//! Dispatch from a [`Call`] over slots to a kernel over slices. Each family of operations has its own file.

use bytemuck::Pod;

use super::rows::OpenStep;
use super::slots::Open;
use super::{attention, edges, gather, linear, loss, moves, norm, optimizer, rows};
use crate::error::Result;
use crate::matmul::Matmul;
use crate::op::call::{Call, Mat};
use crate::op::{DType, Op};

/// Runs one call to completion. All operands are opened, and so their sizes checked, before anything is written.
pub(super) fn launch(slots: &Open<'_>, call: &Call, matmul: Matmul) -> Result<()> {
    call.check()?;
    match call.sum.filter(|_| !call.op.gathers()) {
        Some(sum) if sum.dtype == DType::U64 => add_to::<u64>(slots, call, sum, matmul),
        Some(sum) => add_to::<f32>(slots, call, sum, matmul),
        None => run(slots, call, matmul),
    }
}

/// Runs a call and adds the result over other rows.
fn add_to<T: Pod + std::ops::AddAssign>(slots: &Open<'_>, call: &Call, sum: Mat, matmul: Matmul) -> Result<()> {
    let sum = slots.numbers::<T>(sum)?;
    run(slots, call, matmul)?;
    slots.numbers_mut::<T>(call.out())?.view().iter_mut().zip(sum.view()).for_each(|(out, sum)| *out += *sum);
    Ok(())
}

fn run(slots: &Open<'_>, call: &Call, matmul: Matmul) -> Result<()> {
    let steps = OpenStep::behind(slots, call)?;
    let steps: Vec<_> = steps.iter().map(OpenStep::work).collect();
    match call.op.head() {
        Op::Gather(_) => gather::launch(slots, call, &steps),
        Op::Linear(op) => linear::launch(slots, *op, call, &steps, matmul),
        Op::Row(op) => rows::launch(slots, *op, call, &steps),
        Op::Norm(op) => norm::launch(slots, *op, call),
        Op::Edge(op) => edges::launch(slots, *op, call),
        Op::Attention(op) => attention::launch(slots, op, call, &steps),
        Op::AttentionRows(op) => attention::launch_rows(slots, *op, call),
        Op::Loss(op) => loss::launch(slots, *op, call),
        Op::Optimizer(op) => optimizer::launch(slots, *op, call),
        Op::Move(op) => moves::launch(slots, *op, call),
        Op::Fused { .. } => unreachable!("a head has no steps"),
    }
}
