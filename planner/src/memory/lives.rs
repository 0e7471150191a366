//! The uses of each tensor, as far as they are the same in every order of the ops. The bounds and the search are based
//! on them.
//!
//! An op *precedes* another if it runs first in every order that the request allows. For each tensor, a longest chain
//! of readers is chosen in which each precedes the next. Let `u` and `v` be consecutive in the chain. Between them, the
//! tensor either stays on the device, also during every op that runs after `u` and before `v` in every order, or it is
//! loaded. Loads of different intervals are different loads. If the request gives the order, the chain has all readers.

use super::Epoch;
use super::precedence::{Precedence, Span};
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
    pub spans: Vec<Span>,
    /// The ops that always run after the last use.
    pub tail: Span,
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
    pub order: Precedence,
}

impl Lives {
    /// # Cost
    /// O(uses log uses) if the request gives the order; else O(uses x ops), in steps of 64 ops.
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
        let precedes = |first: &usize, last: &usize| first == last || self.order.precedes(*first, *last);
        // What precedes is also earlier in program order. Comparing places first rules out most pairs.
        let place = |op: &usize| self.order.place[*op];
        let ends: Vec<[usize; 2]> = left
            .iter()
            .map(|ops| [ops.iter().map(place).min().unwrap_or(0), ops.iter().map(place).max().unwrap_or(0)])
            .collect();
        let mut later = vec![Vec::new(); problem.tensors()];
        for &t in &all {
            let same_size = |other: &&usize| **other != t && problem.bytes(**other) == problem.bytes(t);
            let starts_later = |other: &&usize| ends[t][1] <= ends[**other][0];
            let is_later =
                |other: &&usize| left[**other].iter().all(|last| left[t].iter().all(|first| precedes(first, last)));
            later[t] =
                all.iter().filter(starts_later).filter(same_size).filter(is_later).map(|other| *other as u32).collect();
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

fn life(problem: &Problem, order: &Precedence, tensor: usize) -> Life {
    let id = TensorId(tensor as u32);
    let graph = problem.graph;
    let producer = graph.producer(id).map(TaskId::index);
    let chain = order.chain(graph.consumers(id).iter().map(|op| op.index()).collect());
    let mut since = producer;
    let mut spans = Vec::with_capacity(chain.len());
    for &reader in &chain {
        spans.push(order.between(since, Some(reader)));
        since = Some(reader);
    }
    let tail = order.between(since, None);
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
