//! A cache in program order: dead tensors leave, then, for room, those that a rule names first.

use std::cmp::Reverse;
use std::collections::HashMap;

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::{self, Residency, Schedule, Turn};
use super::{Epoch, Policy};
use crate::tasks::TensorId;

/// What leaves first. Ties: the least index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// What was used longest ago, as input or output.
    LeastRecent,
    /// What is used last from now on, over the epoch's end if the next one has it too (Belady).
    FarthestNext,
    /// The same, but what would have to be stored counts as used twice as soon.
    FarthestNextClean,
}

/// More epochs than a cache takes to settle; what has not settled by then is taken as it is.
const EPOCHS: usize = 64;

/// The same for the rules that know the future, which settle at once or not at all.
const FEW_EPOCHS: usize = 4;

/// Before each op dead tensors leave, then, until it fits, those that the rule names, never the op's own.
///
/// In the steady state epochs follow each other until one begins as an earlier one did. If that is the last one, it is the
/// answer. If several alternate, no single epoch repeats: each is closed on itself, which costs what its first step must then
/// load or store, and the cheapest (the earliest of equals) is the answer.
///
/// # Cost
/// O(ops x tensors log tensors) an epoch.
pub(super) fn schedule(problem: &Problem, rule: Rule) -> Schedule {
    match &problem.epoch {
        Epoch::Cold => Cache::new(problem, rule, Residency::empty(problem)).epoch(),
        Epoch::Boundary(start) => Cache::new(problem, rule, Residency::from_boundary(problem, start)).epoch(),
        Epoch::Steady => steady(problem, rule),
    }
}

fn steady(problem: &Problem, rule: Rule) -> Schedule {
    let mut cache = Cache::new(problem, rule, Residency::empty(problem));
    let most = if rule == Rule::LeastRecent { EPOCHS } else { FEW_EPOCHS };
    let mut seen = HashMap::new();
    let mut epochs: Vec<Schedule> = Vec::new();
    let first = loop {
        if let Some(first) = seen.insert(cache.fingerprint(), epochs.len()) {
            break first;
        }
        if epochs.len() == most {
            break most - 1;
        }
        epochs.push(cache.epoch());
        cache.wrap();
    };
    let cost = |epoch: &Schedule| {
        let plan = schedule::plan(problem, Policy::Lru, epoch);
        plan.bytes_to_device.saturating_add(plan.bytes_to_host)
    };
    epochs.drain(first..).min_by_key(cost).expect("a cycle has at least one epoch")
}

struct Cache<'p, 'g> {
    problem: &'p Problem<'g>,
    rule: Rule,
    resident: FixedBitSet,
    /// When each tensor was used last, by a clock of ops.
    used: Vec<u64>,
    now: u64,
    /// What was made in this epoch and has no host copy.
    dirty: FixedBitSet,
    /// For each tensor the places in the order of the ops that read it.
    reads: Vec<Vec<usize>>,
    /// What there is a use for when all ops are done.
    outlasts: FixedBitSet,
}

impl<'p, 'g> Cache<'p, 'g> {
    fn new(problem: &'p Problem<'g>, rule: Rule, start: Residency) -> Self {
        let mut reads = vec![Vec::new(); problem.tensors()];
        for (place, op) in problem.program_order().into_iter().enumerate() {
            problem.graph.op(op).inputs.iter().for_each(|t| reads[t.index()].push(place));
        }
        let mut all = FixedBitSet::with_capacity(problem.ops());
        all.insert_range(..);
        let mut outlasts = problem.empty();
        outlasts.extend((0..problem.tensors()).filter(|t| problem.is_wanted(*t, &all)));
        let used = vec![0; problem.tensors()];
        Self { problem, rule, resident: start.resident, used, now: 0, dirty: start.dirty, reads, outlasts }
    }

    /// What decides all that follows: what is resident, in the order of its last use.
    fn fingerprint(&self) -> Vec<usize> {
        self.by_last_use(self.resident.ones())
    }

    fn by_last_use(&self, tensors: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut order: Vec<usize> = tensors.collect();
        order.sort_by_key(|t| (self.used[*t], *t));
        order
    }

    /// What may leave before the op at `place`, in the order in which it does.
    fn leaving(&self, need: &FixedBitSet, place: usize) -> Vec<usize> {
        let others = self.resident.difference(need);
        if self.rule == Rule::LeastRecent {
            return self.by_last_use(others);
        }
        let ops = self.problem.ops();
        let distance = |t: usize| {
            let next = self.reads[t].get(self.reads[t].partition_point(|at| *at < place));
            let after_end = || {
                let again = self.problem.name_after(t).and_then(|x| self.reads[x.index()].first());
                ops + again.copied().unwrap_or(ops)
            };
            let away = next.copied().unwrap_or_else(after_end) - place;
            let twice = self.rule == Rule::FarthestNextClean && self.dirty.contains(t);
            if twice { away } else { 2 * away }
        };
        let mut order: Vec<(Reverse<usize>, usize)> = others.map(|t| (Reverse(distance(t)), t)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, t)| t).collect()
    }

    fn epoch(&mut self) -> Schedule {
        let mut turns = Schedule::new();
        for (place, op) in self.problem.program_order().into_iter().enumerate() {
            let need = &self.problem.need[op.index()];
            let wanted = |t: &usize| {
                let is_read = self.reads[*t].last().is_some_and(|last| *last >= place);
                need.contains(*t) || is_read || self.outlasts.contains(*t)
            };
            self.resident = self.resident.ones().filter(wanted).collect();
            self.resident.grow(self.problem.tensors());
            self.resident.union_with(need);
            let mut bytes = self.problem.bytes_of(&self.resident);
            if bytes > self.problem.capacity_bytes {
                for t in self.leaving(need, place) {
                    if bytes <= self.problem.capacity_bytes {
                        break;
                    }
                    bytes -= self.problem.bytes(t);
                    self.resident.remove(t);
                    self.dirty.remove(t);
                }
            }
            self.now += 1;
            need.ones().for_each(|t| self.used[t] = self.now);
            let made = self.problem.graph.op(op).outputs.iter();
            self.dirty.extend(made.filter(|t| !self.problem.graph.tensor(**t).publish).map(|t| t.index()));
            turns.push(Turn { op, survives: self.resident.clone(), during: self.resident.clone() });
        }
        turns
    }

    /// Next values take the place of their constants, with their last use.
    fn wrap(&mut self) {
        let end = std::mem::replace(&mut self.resident, self.problem.empty());
        let mut used = self.used.clone();
        for t in end.ones() {
            if let Some(TensorId(after)) = self.problem.name_after(t) {
                self.resident.insert(after as usize);
                used[after as usize] = self.used[t];
            }
        }
        self.used = used;
        self.dirty.clear();
    }
}
