//! Reuse: a ReLU's output after dropout serves as the mask of the ReLU.
//!
//! `relu_grad(dropout(g), relu(x))` needs to know where `relu(x)` is above 0. Where the dropout kept a cell,
//! `dropout(relu(x))` is above 0 exactly if `relu(x)` is. Where it dropped the cell, the gradient is 0 anyway. So the
//! backward pass needs only the dropped-out matrix, which the next layer's weight gradient keeps as well, and the
//! matrix before dropout can be freed. For L layers, L matrices of activations are kept for the backward pass instead
//! of 2 L.

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::{Op, RowStep};

/// Makes gradients of ReLUs under a dropout read the output of the dropout. The results have the same bits.
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

/// If `op` is the gradient of a ReLU whose incoming gradient passed a dropout, returns the output of that dropout in
/// the forward pass.
fn dropped_mask(program: &Program, op: OpId) -> Option<TensorId> {
    let (Op::Row(RowStep::ReluGrad), &[grad, y]) = (program.op(op), &program.inputs(op)[..]) else { return None };
    let dropout = program.op(program.producer(grad)?);
    if !matches!(dropout, Op::Row(RowStep::Dropout { .. })) {
        return None;
    }
    // The dropouts drop the same cells: equal rate and salt mean that they are one dropout of the model.
    let forward = program.consumers(y).into_iter().find(|&reader| program.op(reader) == dropout)?;
    program.op_outputs(forward).first().copied()
}
