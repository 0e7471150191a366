//! Prune: no operation whose results nobody reads.
//!
//! Backward gives every operand a gradient; that of the features, for one, is never looked at. Its operations, and
//! whatever only they read, go.

use std::collections::BTreeSet;

use crate::program::dataflow::{Program, TensorId};

/// Removes what does not lead to an output or to the next epoch's value of an input.
///
/// # Cost
/// O(operations + tensors).
pub fn prune(program: &mut Program) {
    let mut needed: BTreeSet<TensorId> = program.outputs().values().chain(program.next().keys()).copied().collect();
    for op in program.ops().into_iter().rev() {
        if program.op_outputs(op).iter().any(|t| needed.contains(t)) {
            needed.extend(program.inputs(op));
        } else {
            program.remove_op(op);
        }
    }
    for tensor in program.tensors() {
        if !needed.contains(&tensor) && program.producer(tensor).is_none() {
            program.remove_input(tensor);
        }
    }
}
