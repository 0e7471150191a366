//! Fuse: what works row by row rides on the operation before it.
//!
//! A row scale, a bias, a sum with another matrix, a ReLU or its gradient, and a dropout read a matrix, do little to each cell,
//! and write a matrix. Behind a gather, a product or one of their own kind they are done while the row is in a cache, and the
//! matrix between is never there. Each cell sees the same roundings in the same order: not a bit changes.

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::{RowSpace, RowStep};

/// Merges each row step into the operation before it, where nothing else reads what lies between them.
///
/// What is computed once, from constants, stays apart from what is not. A fused operation stands where its last step stood.
///
/// # Cost
/// O(operations log operations).
pub fn fuse(program: &mut Program) {
    let order = program.ops();
    for &op in &order {
        let Some(step) = program.op(op).as_row_step() else { continue };
        // A sum rides on either of its operands, the later one if it can: the other is there already.
        let places = if step == RowStep::Add { 0..2 } else { 0..1 };
        let operands = program.inputs(op);
        let makers = places.filter(|&place| rides(program, operands[place], op));
        let makers = makers.filter_map(|place| program.producer(operands[place]).map(|maker| (maker, place)));
        if let Some((maker, place)) = makers.max_by_key(|&(maker, _)| order.iter().position(|&o| o == maker)) {
            program.absorb(maker, op, place);
        }
    }
}

/// Whether what makes `tensor`, which `reader` reads, can do the reader's work as well.
fn rides(program: &Program, tensor: TensorId, reader: OpId) -> bool {
    let takes = |op: OpId| program.op(op).takes_steps();
    let described = program.tensor(tensor);
    program.producer(tensor).is_some_and(takes)
        && !described.constant
        && described.ty.rows == RowSpace::Vertices
        && program.consumers(tensor) == [reader]
        && !program.outputs().values().any(|&output| output == tensor)
        && !program.next().contains_key(&tensor)
}
