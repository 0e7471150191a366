//! Fuse: merges row steps into the operation before them.
//!
//! A row scale, a bias, a sum with another matrix, a ReLU or its gradient, and a dropout read a matrix, do little work
//! per cell, and write a matrix. After a gather, a product or another row step they can run while the row is still in a
//! cache, and the matrix in between is never stored. Each cell sees the same roundings in the same order, so the bits
//! do not change.

use std::collections::{HashMap, HashSet};

use crate::program::RowStep;
use crate::program::dataflow::{OpId, Program, TensorId};

/// Merges each row step into the operation before it, if nothing else reads the result in between.
///
/// Operations on constants, which run only once, are not merged with others. A fused operation takes the position of
/// its last step.
///
/// # Cost
/// O(operations log operations).
pub fn fuse(program: &mut Program) {
    let order = program.ops();
    let place_of: HashMap<OpId, usize> = order.iter().enumerate().map(|(place, &op)| (op, place)).collect();
    let outputs: HashSet<TensorId> = program.outputs().values().copied().collect();
    for &op in &order {
        let Some(step) = program.op(op).as_row_step() else { continue };
        // A sum can be merged with the producer of either operand. The later producer is chosen, because the other
        // operand is computed by then.
        let places = if step == RowStep::Add { 0..2 } else { 0..1 };
        let operands = program.inputs(op);
        let makers = places.filter(|&place| rides(program, &outputs, operands[place], op));
        let makers = makers.filter_map(|place| program.producer(operands[place]).map(|maker| (maker, place)));
        if let Some((maker, place)) = makers.max_by_key(|(maker, _)| place_of.get(maker)) {
            program.absorb(maker, op, place);
        }
    }
}

/// Whether the producer of `tensor` can also do the work of `reader`, which reads `tensor`. `outputs` are those of the
/// program.
fn rides(program: &Program, outputs: &HashSet<TensorId>, tensor: TensorId, reader: OpId) -> bool {
    let unread = |output: &TensorId| *output == tensor || program.consumers(*output).is_empty();
    let takes = |op: OpId| program.op(op).takes_steps() && program.op_outputs(op).iter().all(unread);
    let described = program.tensor(tensor);
    program.producer(tensor).is_some_and(takes)
        && !described.constant
        && described.ty.rows.is_of_vertices()
        && program.consumers(tensor) == [reader]
        && !outputs.contains(&tensor)
        && !program.next().contains_key(&tensor)
}
