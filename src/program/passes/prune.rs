//! Prune: removes operations whose results are not used.
//!
//! The backward pass computes a gradient for every operand, for example for the features, where nothing reads it. This
//! pass removes such operations, and whatever only they read.

use std::collections::BTreeSet;

use crate::program::dataflow::{Program, TensorId};

/// Removes everything that does not lead to an output or to the next epoch's value of an input.
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
