//! Recompute: what the backward part reads of the forward part is made again, instead of being kept or moved.
//!
//! Training stores a matrix or more per layer, from the forward part to the backward part. This pass stores only some of
//! them. The others are made a second time, right before the backward part reads them, from those that are stored. Of
//! two matrices in a row, at least one is stored, so what has to be made at once is never longer than a layer; only what
//! row steps alone make is also made from what is made again.
//!
//! Kernels are deterministic, and dropout draws from numbers that are part of the operation, so the results have the
//! same bits.

use std::collections::{HashMap, HashSet};

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::{BlockSpec, Linear, Op};

/// Whether tensors are made again in the backward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recompute {
    /// What is predicted to take least time. A plan that copies nothing stays as it is.
    #[default]
    Auto,
    /// They are kept or moved.
    Never,
    /// They are made again wherever the pass can.
    Always,
}

/// Which operations may run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Row steps and normalisations.
    Rows,
    /// Those, and products.
    Products,
    /// Those, and gathers over the graph, which exchange rows if there are several parts.
    Gathers,
}

/// Least number of operations between the last forward reader of a tensor and its first backward reader, if no gather
/// over the graph is among them. What is read again sooner is kept.
const LEAST_GAP: usize = 4;

/// Most operations that are run again for one tensor.
const MOST_OPS: usize = 8;

/// Makes tensors again where the backward part of a training program reads them, by operations of `extent`. `losses` are
/// the ends of the forward part. Returns the operations that were added. Each stands right before the first operation that
/// reads its results, so that both go through their tiles together.
///
/// Outputs and constants are not made again.
///
/// # Cost
/// O(operations log operations).
/// # Source
/// Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 3, with segments of two stored tensors.
pub fn recompute(program: &mut Program, losses: &[TensorId], extent: Extent) -> Vec<OpId> {
    let order = program.ops();
    let place_of: HashMap<OpId, usize> = order.iter().enumerate().map(|(place, &op)| (op, place)).collect();
    let forward = ancestors(program, losses);
    let pinned: HashSet<TensorId> = program.outputs().values().chain(program.next().keys()).copied().collect();
    let mut kept = Kept { program, forward: &forward, extent, again: HashMap::new(), stored: HashSet::new() };
    let mut chosen = Vec::new();
    for &op in order.iter().filter(|op| forward.contains(op)) {
        let outputs = program.op_outputs(op);
        let readers: Vec<OpId> = outputs.iter().flat_map(|&output| program.consumers(output)).collect();
        let places = |is_forward: bool| {
            let of_part = readers.iter().filter(|reader| forward.contains(reader) == is_forward);
            of_part.map(|reader| place_of[reader]).collect::<Vec<usize>>()
        };
        let Some(&first) = places(false).iter().min() else { continue };
        let last = places(true).into_iter().max().unwrap_or(place_of[&op]);
        let meanwhile = order.get(last + 1..first).unwrap_or_default();
        let is_far = meanwhile.len() >= LEAST_GAP || meanwhile.iter().any(|&op| is_gather(kept.program.op(op)));
        let is_free = is_far && outputs.iter().all(|output| !pinned.contains(output));
        match is_free.then(|| kept.chain(op)).flatten() {
            Some(chain) => {
                let rows_only = chain.iter().all(|&op| is_row_work(program.op(op)));
                kept.again.insert(op, rows_only);
                chosen.push((first, chain));
            }
            None => kept.stored.extend(outputs),
        }
    }
    // What is read first is added first.
    chosen.sort_by_key(|(first, _)| *first);
    let mut copies: HashMap<TensorId, TensorId> = HashMap::new();
    let mut added = Vec::new();
    for (first, chain) in chosen {
        for op in chain {
            let outputs = program.op_outputs(op);
            if outputs.iter().any(|output| copies.contains_key(output)) {
                continue;
            }
            let inputs = program.inputs(op).into_iter().map(|input| copies.get(&input).copied().unwrap_or(input));
            let inputs: Vec<TensorId> = inputs.collect();
            let made = program.push(program.op(op).clone(), &inputs);
            let made = made.expect("the operation has had these operands before");
            let again = program.producer(made[0]).expect("it was added");
            program.move_before(again, order[first]);
            added.push(again);
            copies.extend(outputs.into_iter().zip(made));
        }
    }
    let readers = order.iter().filter(|op| !forward.contains(op));
    for &reader in readers {
        for (place, input) in program.inputs(reader).into_iter().enumerate() {
            if let Some(&copy) = copies.get(&input) {
                program.set_operand(reader, place as u32, copy);
            }
        }
    }
    added
}

/// What is known of the forward operations so far.
struct Kept<'a> {
    program: &'a Program,
    forward: &'a HashSet<OpId>,
    extent: Extent,
    /// The operations whose outputs are made again, and whether row work alone makes them from stored tensors.
    again: HashMap<OpId, bool>,
    /// Tensors that are stored because the backward part reads them.
    stored: HashSet<TensorId>,
}

impl Kept<'_> {
    /// Returns the operations that make the outputs of `op` from stored tensors, in order; `None` if they are stored.
    fn chain(&self, op: OpId) -> Option<Vec<OpId>> {
        let mut chain = Vec::new();
        self.extend(op, &mut chain).then_some(chain)
    }

    /// Appends what makes the outputs of `op`, and `op`. Returns whether it may run again.
    fn extend(&self, op: OpId, chain: &mut Vec<OpId>) -> bool {
        if chain.contains(&op) {
            return true;
        }
        if !self.may_run_again(op) || chain.len() == MOST_OPS {
            return false;
        }
        for input in self.program.inputs(op) {
            let is_at_hand = self.program.tensor(input).constant || self.stored.contains(&input);
            let Some(producer) = self.program.producer(input).filter(|_| !is_at_hand) else { continue };
            if self.again.get(&producer) == Some(&false) || !self.extend(producer, chain) {
                return false;
            }
        }
        chain.push(op);
        chain.len() <= MOST_OPS
    }

    fn may_run_again(&self, op: OpId) -> bool {
        let kind = self.program.op(op);
        let is_constant = self.program.op_outputs(op).iter().any(|&output| self.program.tensor(output).constant);
        let may = match kind.head() {
            Op::Gather(_) | Op::Attention(_) => match kind.block() {
                Some(BlockSpec::Graph { .. }) => self.extent >= Extent::Gathers,
                Some(BlockSpec::Features { .. }) => self.extent >= Extent::Products,
                _ => false,
            },
            kind if is_row_work(kind) => true,
            Op::Linear(_) | Op::AttentionRows(_) => self.extent >= Extent::Products,
            _ => false,
        };
        may && !is_constant && self.forward.contains(&op)
    }
}

/// Whether an operation gathers over the graph.
fn is_gather(op: &Op) -> bool {
    op.gathers() && matches!(op.block(), Some(BlockSpec::Graph { .. }))
}

/// Whether an operation works on single rows, or on a parameter, and does little for each number.
fn is_row_work(op: &Op) -> bool {
    matches!(op.head(), Op::Row(_) | Op::Norm(_) | Op::Linear(Linear::Round | Linear::Transpose))
}

/// Returns the operations that lead to these tensors.
fn ancestors(program: &Program, ends: &[TensorId]) -> HashSet<OpId> {
    let mut found = HashSet::new();
    let mut open: Vec<OpId> = ends.iter().filter_map(|&end| program.producer(end)).collect();
    while let Some(op) = open.pop() {
        if found.insert(op) {
            open.extend(program.inputs(op).into_iter().filter_map(|input| program.producer(input)));
        }
    }
    found
}
