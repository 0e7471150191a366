//! The uses of each tensor, as far as they are the same in every order of the ops. The bounds and the search are based
//! on them.
//!
//! An op *precedes* another if it runs first in every order that the request allows. For each tensor, a longest chain
//! of readers is chosen in which each precedes the next. Let `u` and `v` be consecutive in the chain. Between them, the
//! tensor either stays on the device, also during every op that runs after `u` and before `v` in every order, or it is
//! loaded. Loads of different intervals are different loads. If the request gives the order, the chain has all readers.

use fixedbitset::FixedBitSet;

use super::Epoch;
use super::problem::Problem;
use crate::tasks::{TaskId, TensorId, TensorKind};

/// The uses of a tensor.
pub(super) struct Life {
    /// Cost of one copy, in bytes.
    pub bytes: u64,
    /// Bytes of the capacity that it takes.
    pub room: u64,
    pub producer: Option<usize>,
    /// Readers; each precedes the next.
    pub chain: Vec<usize>,
    /// For each reader of the chain, the ops that always run between the use before it (for an input, the start) and
    /// the reader.
    pub spans: Vec<Vec<u32>>,
    /// The ops that always run after the last use.
    pub tail: Vec<u32>,
    /// Whether the next epoch inherits the value.
    pub lasts: bool,
    /// Whether it is stored when it is made, and the store has a cost.
    pub publish: bool,
}

/// The required state of a value at the end of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Not on the device, and with a host copy. Also used for values that the next epoch does not inherit.
    Away = 0,
    /// On the device and on the host.
    Clean = 1,
    /// On the device; a host copy is not required.
    Dirty = 2,
}

/// The states in which an epoch can inherit a constant. The state at the start must equal the state of its value at the
/// end.
pub(super) struct Carried {
    /// The constant, and the tensor with its value at the end of the epoch.
    pub before: usize,
    pub after: usize,
    pub options: Vec<End>,
}

/// The uses of all tensors, and the possible states of inherited constants.
pub(super) struct Lives {
    pub lives: Vec<Life>,
    /// Constants with more than one option, the largest first.
    pub open: Vec<Carried>,
    /// Constants with a single option other than `Away`.
    pub fixed: Vec<Carried>,
    order: Precedence,
}

impl Lives {
    /// # Cost
    /// O(ops^2 + tensors x readers^2 + length of all spans).
    pub fn new(problem: &Problem) -> Self {
        let order = Precedence::new(problem);
        let lives = (0..problem.tensors()).map(|t| life(problem, &order, t)).collect();
        let mut open = Vec::new();
        let mut fixed = Vec::new();
        for before in (0..problem.tensors()).filter(|t| problem.graph.tensors()[*t].kind == TensorKind::Constant) {
            let options = options(problem, TensorId(before as u32));
            let after = problem.name_before(TensorId(before as u32)).index();
            let carried = Carried { before, after, options };
            match carried.options[..] {
                [End::Away] => {}
                [_] => fixed.push(carried),
                _ => open.push(carried),
            }
        }
        open.sort_by_key(|c| (std::cmp::Reverse(problem.bytes(c.before)), c.before));
        Self { lives, open, fixed, order }
    }

    /// Returns, for each tensor, the others of the same size that are read later: each remaining reader of theirs is,
    /// or comes after, each remaining reader of the tensor. Covers only tensors that will be read and that the next
    /// epoch does not inherit.
    pub fn later(&self, problem: &Problem, done: &[bool]) -> Vec<Vec<u32>> {
        let left: Vec<Vec<usize>> = (0..problem.tensors())
            .map(|t| {
                let readers = problem.graph.consumers(TensorId(t as u32)).iter().map(|op| op.index());
                readers.filter(|op| !done[*op]).collect()
            })
            .collect();
        let is_made = |t: usize| self.lives[t].producer.is_none_or(|op| done[op]);
        let counts =
            |t: &usize| self.lives[*t].room > 0 && !self.lives[*t].lasts && is_made(*t) && !left[*t].is_empty();
        let all: Vec<usize> = (0..problem.tensors()).filter(counts).collect();
        let precedes = |first: &usize, last: &usize| first == last || self.order.before[*last].contains(*first);
        let mut later = vec![Vec::new(); problem.tensors()];
        for &t in &all {
            let same_size = |other: &&usize| **other != t && problem.bytes(**other) == problem.bytes(t);
            let is_later =
                |other: &&usize| left[**other].iter().all(|last| left[t].iter().all(|first| precedes(first, last)));
            later[t] = all.iter().filter(same_size).filter(is_later).map(|other| *other as u32).collect();
        }
        later
    }
}

fn options(problem: &Problem, constant: TensorId) -> Vec<End> {
    let graph = problem.graph;
    match &problem.epoch {
        Epoch::Cold => vec![End::Away],
        Epoch::Boundary(boundary) if boundary.dirty.contains(&constant) => vec![End::Dirty],
        Epoch::Boundary(boundary) if boundary.resident.contains(&constant) => vec![End::Clean],
        Epoch::Boundary(_) => vec![End::Away],
        Epoch::Steady => {
            let mut options = vec![End::Away];
            if !graph.consumers(constant).is_empty() {
                options.push(End::Clean);
            }
            if graph.next_value(constant).is_some_and(|y| problem.stores_count && !graph.tensor(y).publish) {
                options.push(End::Dirty);
            }
            if problem.room[constant.index()] == 0 {
                // It takes no room, so it stays, and without a store if that is possible.
                options.drain(..options.len() - 1);
            }
            options
        }
    }
}

/// Which ops run before which others in every order.
struct Precedence {
    after: Vec<FixedBitSet>,
    before: Vec<FixedBitSet>,
}

impl Precedence {
    fn new(problem: &Problem) -> Self {
        let n = problem.ops();
        let graph = problem.graph;
        let mut before = vec![FixedBitSet::with_capacity(n); n];
        let mut last: Option<TaskId> = None;
        for op in problem.program_order() {
            let mut set = FixedBitSet::with_capacity(n);
            let direct = graph.op(op).inputs.iter().filter_map(|t| graph.producer(*t));
            for earlier in direct.chain(last.filter(|_| problem.order.is_some())) {
                set.insert(earlier.index());
                set.union_with(&before[earlier.index()]);
            }
            before[op.index()] = set;
            last = Some(op);
        }
        let mut after = vec![FixedBitSet::with_capacity(n); n];
        for (op, set) in before.iter().enumerate() {
            set.ones().for_each(|earlier| after[earlier].insert(op));
        }
        Self { after, before }
    }
}

fn life(problem: &Problem, order: &Precedence, tensor: usize) -> Life {
    let id = TensorId(tensor as u32);
    let graph = problem.graph;
    let producer = graph.producer(id).map(TaskId::index);
    let chain = longest_chain(order, graph.consumers(id).iter().map(|op| op.index()).collect());
    let mut since = producer;
    let mut spans = Vec::with_capacity(chain.len());
    let list = |set: FixedBitSet| set.ones().map(|op| op as u32).collect::<Vec<u32>>();
    for &reader in &chain {
        let mut span = order.before[reader].clone();
        if let Some(use_before) = since {
            span.intersect_with(&order.after[use_before]);
        }
        spans.push(list(span));
        since = Some(reader);
    }
    let tail = match since {
        Some(last) => list(order.after[last].clone()),
        None => (0..problem.ops() as u32).collect(),
    };
    let publish = problem.stores_count && graph.tensor(id).publish;
    Life {
        bytes: problem.bytes(tensor),
        room: problem.room[tensor],
        producer,
        chain,
        spans,
        tail,
        lasts: problem.lasts(tensor),
        publish,
    }
}

/// Returns the longest chain; of several, the one that a scan in topological order finds first.
fn longest_chain(order: &Precedence, mut readers: Vec<usize>) -> Vec<usize> {
    // Sorting by the number of preceding ops gives a topological order.
    readers.sort_by_key(|op| (order.before[*op].count_ones(..), *op));
    let mut best: Vec<(usize, Option<usize>)> = Vec::with_capacity(readers.len());
    for (i, op) in readers.iter().enumerate() {
        let link = (0..i)
            .filter(|j| order.before[*op].contains(readers[*j]))
            .max_by_key(|j| (best[*j].0, std::cmp::Reverse(*j)));
        best.push((link.map_or(1, |j| best[j].0 + 1), link));
    }
    let mut at = (0..readers.len()).max_by_key(|i| (best[*i].0, std::cmp::Reverse(*i)));
    let mut chain = Vec::new();
    while let Some(i) = at {
        chain.push(readers[i]);
        at = best[i].1;
    }
    chain.reverse();
    chain
}
