//! The least recently used tensor leaves.

use std::collections::HashMap;

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::{self, Residency, Schedule, Turn};
use super::{Epoch, Policy};
use crate::tasks::TensorId;

/// More epochs than a cache takes to settle; what has not settled by then is taken as it is.
const EPOCHS: usize = 64;

/// Before each op dead tensors leave, then, until it fits, those that were used longest ago as input or output (ties: the
/// least index), never the op's own.
///
/// In the steady state epochs follow each other until one begins as an earlier one did. If that is the last one, it is the
/// answer. If several alternate, no single epoch repeats: each is closed on itself, which costs what its first step must then
/// load or store, and the cheapest (the earliest of equals) is the answer.
pub(super) fn schedule(problem: &Problem) -> Schedule {
    match &problem.epoch {
        Epoch::Cold => Cache::new(problem, Residency::empty(problem)).epoch(),
        Epoch::Boundary(start) => Cache::new(problem, Residency::from_boundary(problem, start)).epoch(),
        Epoch::Steady => steady(problem),
    }
}

fn steady(problem: &Problem) -> Schedule {
    let mut cache = Cache::new(problem, Residency::empty(problem));
    let mut seen = HashMap::new();
    let mut epochs: Vec<Schedule> = Vec::new();
    let first = loop {
        if let Some(first) = seen.insert(cache.fingerprint(), epochs.len()) {
            break first;
        }
        if epochs.len() == EPOCHS {
            break EPOCHS - 1;
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
    resident: FixedBitSet,
    /// When each tensor was used last, by a clock of ops.
    used: Vec<u64>,
    now: u64,
}

impl<'p, 'g> Cache<'p, 'g> {
    fn new(problem: &'p Problem<'g>, start: Residency) -> Self {
        Self { problem, resident: start.resident, used: vec![0; problem.tensors()], now: 0 }
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

    fn epoch(&mut self) -> Schedule {
        let mut done = FixedBitSet::with_capacity(self.problem.ops());
        let mut turns = Schedule::new();
        for op in self.problem.program_order() {
            let need = &self.problem.need[op.index()];
            let wanted = |t: &usize| need.contains(*t) || self.problem.is_wanted(*t, &done);
            self.resident = self.resident.ones().filter(wanted).collect();
            self.resident.grow(self.problem.tensors());
            self.resident.union_with(need);
            let mut bytes = self.problem.bytes_of(&self.resident);
            for t in self.by_last_use(self.resident.difference(need)) {
                if bytes <= self.problem.capacity_bytes {
                    break;
                }
                bytes -= self.problem.bytes(t);
                self.resident.remove(t);
            }
            self.now += 1;
            need.ones().for_each(|t| self.used[t] = self.now);
            done.insert(op.index());
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
    }
}
