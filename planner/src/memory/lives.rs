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
    ///
    /// # Cost
    /// O(uses + pairs of tensors of one size); if the request does not give the order, times the readers of both.
    pub fn later(&self, problem: &Problem, done: &[bool]) -> Vec<Vec<u32>> {
        let left = |t: usize| {
            let readers = problem.graph.consumers(TensorId(t as u32)).iter().map(|op| op.index());
            readers.filter(|op| !done[*op])
        };
        let is_made = |t: usize| self.lives[t].producer.is_none_or(|op| done[op]);
        // The tensors, and the places of their first and their last reader.
        let mut all: Vec<(usize, [usize; 2])> = Vec::new();
        for t in (0..problem.tensors()).filter(|t| self.lives[*t].room > 0 && !self.lives[*t].lasts && is_made(*t)) {
            let places = || left(t).map(|op| self.order.place[op]);
            all.extend(places().min().zip(places().max()).map(|(first, last)| (t, [first, last])));
        }
        all.sort_by_key(|(t, _)| problem.bytes(*t));
        let precedes = |first: usize, last: usize| first == last || self.order.precedes(first, last);
        let mut later = vec![Vec::new(); problem.tensors()];
        for same_size in all.chunk_by(|(a, _), (b, _)| problem.bytes(*a) == problem.bytes(*b)) {
            for &(t, [_, end]) in same_size {
                // What precedes is also earlier in program order. Comparing places first rules out most pairs.
                let starts_later = |(other, [start, _]): &&(usize, [usize; 2])| *other != t && end <= *start;
                let is_later = |(other, _): &&(usize, [usize; 2])| {
                    self.order.is_total() || left(*other).all(|last| left(t).all(|first| precedes(first, last)))
                };
                later[t].extend(same_size.iter().filter(starts_later).filter(is_later).map(|(t, _)| *t as u32));
            }
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
