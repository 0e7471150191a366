//! ROC's dynamic program over the order of the ops and the set of cached tensors.
//!
//! A state is (S, T): S has the ops that are done, T the cached tensors. T is a subset of the active tensors A(S):
//! those that an op of S made or read and that an op outside S reads. Before op o the cache shrinks to some T'. The
//! tensors of IN(o) that are not in T' are loaded. After the op, the cache is at most (T' ∪ OUT(o)) ∩ A(S ∪ {o}), plus
//! the tensors of IN(o) that were not active before. So an input that is loaded for the first time may stay, but a
//! tensor that is loaded again is never kept. That is a weakness of the recursion, and it is reproduced here.
//!
//! A tensor that left must be loaded for each op that still reads it. So its eviction costs that much at once, and no
//! other cost depends on a choice. A best-first search by these costs (then by the stores that evictions need) finds
//! the optimum without visiting states that cost more.
//!
//! # Source
//! ROC (Jia et al., MLSys 2020), Algorithm 1. As printed, T' = (T \ OUT(o)) ∩ A(S') never caches anything, since it
//! starts from the empty set; the text describes T' = (T \ OUT(o)) ∩ A(S') ∪ X for the best X ⊆ IN(o) ∩ A(S').

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use fixedbitset::FixedBitSet;
use rustc_hash::FxBuildHasher;

use super::Limit;
use super::evictions::{Candidate, evictions};
use super::problem::Problem;
use super::schedule::{Schedule, Turn};
use crate::tasks::{TaskId, TensorId, TensorKind};

/// Most bytes of the states of a search.
const MOST_BYTES: usize = 1 << 30;

/// Returns the schedule, and whether it is the optimum over all orders that the request allows.
///
/// Beyond `states` states, or a gigabyte of them, and with more than [`Limit::LARGE_OPS`] ops, it returns the best schedule in
/// program order. If that takes as many states again, it returns the schedule with the eviction set that is tried first at each
/// op.
pub(super) fn schedule(problem: &Problem, states: usize) -> (Schedule, bool) {
    // The ops and the tensors that are cached, and those that the op before left.
    let state_bytes = (problem.ops() + 2 * problem.tensors()).div_ceil(8);
    let states = states.min(MOST_BYTES / state_bytes.max(1));
    let is_large = problem.order.is_none() && problem.ops() > Limit::LARGE_OPS;
    let found = if is_large { None } else { Search::new(problem, problem.order.clone()).best(states, states) };
    if let Some(found) = found {
        return (found, true);
    }
    let order = Some(problem.program_order());
    let found = Search::new(problem, order.clone())
        .best(states, states)
        .or_else(|| Search::new(problem, order).best(usize::MAX, 1));
    (found.expect("one eviction a state leads to the end"), false)
}

/// Loads, then stores, that the choices so far cost.
type Cost = (u128, u128);

/// The order of expansion: the cheapest first; of equals the one with most ops done, then the one found first.
type Rank = (Cost, Reverse<usize>, usize);

/// The ops that are done, and the cached tensors.
#[derive(PartialEq, Eq, Hash)]
struct State {
    done: FixedBitSet,
    cached: FixedBitSet,
}

struct Node {
    state: Rc<State>,
    cost: Cost,
    /// The previous node, the op in between, and T'.
    from: Option<(usize, TaskId, FixedBitSet)>,
}

struct Search<'p, 'g> {
    problem: &'p Problem<'g>,
    order: Option<Vec<TaskId>>,
    nodes: Vec<Node>,
    open: BTreeSet<Rank>,
    best: HashMap<Rc<State>, Cost, FxBuildHasher>,
}

impl<'p, 'g> Search<'p, 'g> {
    fn new(problem: &'p Problem<'g>, order: Option<Vec<TaskId>>) -> Self {
        Self { problem, order, nodes: Vec::new(), open: BTreeSet::new(), best: HashMap::default() }
    }

    fn best(mut self, states: usize, evictions_a_state: usize) -> Option<Schedule> {
        let done = FixedBitSet::with_capacity(self.problem.ops());
        self.push(State { done, cached: self.problem.empty() }, (0, 0), None);
        while let Some((cost, Reverse(depth), index)) = self.open.pop_first() {
            if depth == self.problem.ops() {
                return Some(self.path(index));
            }
            if self.best[&self.nodes[index].state] < cost {
                continue;
            }
            for op in self.ready(depth, index) {
                if !self.run(index, op, evictions_a_state) || self.nodes.len() > states {
                    return None;
                }
            }
        }
        None
    }

    fn push(&mut self, state: State, cost: Cost, from: Option<(usize, TaskId, FixedBitSet)>) {
        let state = Rc::new(state);
        let known = self.best.entry(state.clone()).or_insert((u128::MAX, u128::MAX));
        if cost < *known {
            *known = cost;
            self.open.insert((cost, Reverse(state.done.count_ones(..)), self.nodes.len()));
            self.nodes.push(Node { state, cost, from });
        }
    }

    fn ready(&self, depth: usize, index: usize) -> Vec<TaskId> {
        if let Some(order) = &self.order {
            return vec![order[depth]];
        }
        let (graph, done) = (self.problem.graph, &self.nodes[index].state.done);
        let is_ready = |op: &TaskId| {
            let mut before = graph.op(*op).inputs.iter().filter_map(|t| graph.producer(*t));
            !done.contains(op.index()) && before.all(|op| done.contains(op.index()))
        };
        graph.order().iter().copied().filter(is_ready).collect()
    }

    /// Runs `op` after node `index` with every useful T'. Returns whether all were tried.
    fn run(&mut self, index: usize, op: TaskId, most: usize) -> bool {
        let problem = self.problem;
        let node = &self.nodes[index];
        let need = &problem.need[op.index()];
        let (state, cost) = (node.state.clone(), node.cost);
        let State { done, cached } = &*state;
        let mut after = done.clone();
        after.insert(op.index());
        let absent = need.iter().filter(|t| !cached.contains(**t));
        let held = problem.bytes_of(cached) + absent.map(|t| problem.bytes(*t)).sum::<u64>();
        let excess = held.saturating_sub(problem.capacity_bytes);
        let mut candidates: Vec<Candidate> = cached
            .ones()
            .filter(|t| !problem.needs(op.index(), *t))
            .map(|tensor| {
                let reads = problem.graph.consumers(TensorId(tensor as u32)).iter();
                let reads = reads.filter(|op| !done.contains(op.index())).count();
                let penalty = reads as i128 * i128::from(problem.bytes(tensor));
                Candidate { tensor, bytes: problem.bytes(tensor), penalty, requires: Vec::new() }
            })
            .collect();
        let (sets, complete) = if excess == 0 {
            (vec![Vec::new()], true)
        } else {
            let found = evictions(&mut candidates, excess, i128::MAX, most);
            (found.sets, found.complete || most == 1)
        };
        for set in sets {
            let mut kept = cached.clone();
            let mut cost = cost;
            for candidate in set.into_iter().map(|i| &candidates[i]) {
                kept.remove(candidate.tensor);
                cost.0 += candidate.penalty as u128;
                let tensor = &problem.graph.tensors()[candidate.tensor];
                // A value that the next epoch inherits is stored in any case when it leaves.
                if tensor.kind == TensorKind::Local && !tensor.publish && !problem.lasts(candidate.tensor) {
                    cost.1 += u128::from(candidate.bytes);
                }
            }
            let graph = problem.graph;
            let made = graph.op(op).outputs.iter();
            let is_new = |t: &&TensorId| {
                let untouched = graph.consumers(**t).iter().all(|reader| !done.contains(reader.index()));
                graph.producer(**t).is_none() && untouched
            };
            let touched = made.chain(graph.op(op).inputs.iter().filter(is_new)).map(|t| t.index());
            let mut next = problem.empty();
            next.extend(kept.ones().chain(touched).filter(|t| problem.is_read(*t, &after)));
            self.push(State { done: after.clone(), cached: next }, cost, Some((index, op, kept)));
        }
        complete
    }

    fn path(&self, mut index: usize) -> Schedule {
        let mut turns = Schedule::new();
        while let Some((before, op, kept)) = &self.nodes[index].from {
            let mut during = kept.clone();
            during.extend(self.problem.need[op.index()].iter().copied());
            turns.push(Turn { op: *op, survives: kept.clone(), during });
            index = *before;
        }
        turns.reverse();
        turns
    }
}
