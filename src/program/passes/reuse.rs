//! Reuse: what dropout leaves of a ReLU's output serves as the ReLU's mask.
//!
//! `relu_grad(dropout(g), relu(x))` asks where `relu(x)` is above 0. Where the dropout kept a cell, `dropout(relu(x))` is above 0
//! exactly where `relu(x)` is; where it did not, the gradient is 0 anyway. So the backward pass needs only the dropped matrix,
//! which the next layer's weight gradient keeps as well, and the one before it can go: of L layers the activations that wait
//! for backward are L matrices and not 2 L.

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::{Op, RowStep};

/// Lets gradients of ReLUs under a dropout read what the dropout made. The same bits.
///
/// # Cost
/// O(operations).
pub fn reuse(program: &mut Program) {
    for op in program.ops() {
        if let Some(dropped) = dropped_mask(program, op) {
            program.set_operand(op, 1, dropped);
        }
    }
}

/// For the gradient of a ReLU whose gradient comes through a dropout: what that dropout made of the ReLU's output.
fn dropped_mask(program: &Program, op: OpId) -> Option<TensorId> {
    let (Op::Row(RowStep::ReluGrad), &[grad, y]) = (program.op(op), &program.inputs(op)[..]) else { return None };
    let dropout = program.op(program.producer(grad)?);
    if !matches!(dropout, Op::Row(RowStep::Dropout { .. })) {
        return None;
    }
    // The same cells: rate and salt are those of one dropout of the model.
    let forward = program.consumers(y).into_iter().find(|&reader| program.op(reader) == dropout)?;
    program.op_outputs(forward).first().copied()
}
