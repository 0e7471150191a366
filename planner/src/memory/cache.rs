//! A cache in program order: dead tensors leave, then, for room, those that a rule names first.
//!
//! What a rule goes by changes only when a tensor is used, so that what may leave waits in a heap: an epoch takes as long as it
//! has uses, however many tensors there are.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::{self, Change, Changes, Residency, Turn};
use super::{Epoch, Objective, Plan, Policy};
use crate::tasks::{TaskId, TensorId};

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

/// The plan of a cache: before each op dead tensors leave, then, until it fits, those that the rule names, never the op's own.
///
/// In the steady state epochs follow each other until one begins as an earlier one did. If that is the last one, it is the
/// answer. If several alternate, no single epoch repeats: each is closed on itself, which costs what its first step must then
/// load or store, and the cheapest (the earliest of equals) is the answer.
///
/// # Cost
/// O(tensors log tensors + uses log uses) an epoch.
pub(super) fn plan(problem: &Problem, rule: Rule) -> Plan {
    let once = |start| schedule::plan_changes(problem, Policy::Lru, &Cache::new(problem, rule, start).epoch());
    match &problem.epoch {
        Epoch::Cold => once(Residency::empty(problem)),
        Epoch::Boundary(start) => once(Residency::from_boundary(problem, start)),
        Epoch::Steady => steady(problem, rule),
    }
}

fn steady(problem: &Problem, rule: Rule) -> Plan {
    let mut cache = Cache::new(problem, rule, Residency::empty(problem));
    let most = if rule == Rule::LeastRecent { EPOCHS } else { FEW_EPOCHS };
    let mut seen = HashMap::new();
    let mut epochs: Vec<Changes> = Vec::new();
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
    let plans = epochs[first..].iter().map(|epoch| schedule::plan_changes(problem, Policy::Lru, epoch));
    plans.min_by_key(|plan| plan.cost_bytes(Objective::Both)).expect("a cycle has at least one epoch")
}

/// A tensor that may leave, by what its rule goes by: the greatest leaves first.
type Waiting = (usize, Reverse<usize>);

struct Cache<'p, 'g> {
    problem: &'p Problem<'g>,
    rule: Rule,
    order: Vec<TaskId>,
    resident: FixedBitSet,
    held_bytes: u64,
    /// When each tensor was used last, by a clock of ops.
    used: Vec<u64>,
    now: u64,
    /// What was made in this epoch and has no host copy.
    dirty: FixedBitSet,
    /// For each tensor the places in the order of the ops that read it, and how many of them are behind.
    reads: Vec<Vec<usize>>,
    read: Vec<usize>,
    /// What there is a use for when all ops are done.
    outlasts: FixedBitSet,
    /// What leaves first among clean tensors, and among those that the rule tells apart from them; with what has left or been
    /// used since then, which no longer counts.
    waiting: [BinaryHeap<Waiting>; 2],
}

impl<'p, 'g> Cache<'p, 'g> {
    fn new(problem: &'p Problem<'g>, rule: Rule, start: Residency) -> Self {
        let mut reads = vec![Vec::new(); problem.tensors()];
        let order = problem.program_order();
        for (place, op) in order.iter().enumerate() {
            problem.graph.op(*op).inputs.iter().for_each(|t| reads[t.index()].push(place));
        }
        let mut all = FixedBitSet::with_capacity(problem.ops());
        all.insert_range(..);
        let mut outlasts = problem.empty();
        outlasts.extend((0..problem.tensors()).filter(|t| problem.is_wanted(*t, &all)));
        Self {
            problem,
            rule,
            order,
            held_bytes: problem.bytes_of(&start.resident),
            resident: start.resident,
            used: vec![0; problem.tensors()],
            now: 0,
            dirty: start.dirty,
            reads,
            read: vec![0; problem.tensors()],
            outlasts,
            waiting: Default::default(),
        }
    }

    /// What decides all that follows: what is resident, in the order of its last use.
    fn fingerprint(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.resident.ones().collect();
        order.sort_by_key(|t| (self.used[*t], *t));
        order
    }

    /// Whether a tensor has a use from now on.
    fn is_alive(&self, tensor: usize) -> bool {
        self.read[tensor] < self.reads[tensor].len() || self.outlasts.contains(tensor)
    }

    /// The greater it is, the sooner the tensor leaves: the next place where it is read, over the epoch's end if need be, or
    /// how long ago it was used.
    fn rank(&self, tensor: usize) -> usize {
        if self.rule == Rule::LeastRecent {
            return usize::MAX - self.used[tensor] as usize;
        }
        let next = self.reads[tensor].get(self.read[tensor]).copied();
        next.unwrap_or_else(|| {
            let ops = self.order.len();
            let again = self.problem.name_after(tensor).and_then(|x| self.reads[x.index()].first());
            ops + again.copied().unwrap_or(ops)
        })
    }

    /// Whether the rule tells a tensor apart from clean ones.
    fn class(&self, tensor: usize) -> usize {
        usize::from(self.rule == Rule::FarthestNextClean && self.dirty.contains(tensor))
    }

    fn wait(&mut self, tensor: usize) {
        let (class, rank) = (self.class(tensor), self.rank(tensor));
        self.waiting[class].push((rank, Reverse(tensor)));
    }

    /// What leaves first of what the op at `place` does not need.
    fn first_to_leave(&mut self, place: usize) -> Option<usize> {
        for class in [0, 1] {
            while let Some(&(rank, Reverse(t))) = self.waiting[class].peek() {
                // What the op needs waits anew when it is done.
                let counts = self.resident.contains(t) && (self.class(t), self.rank(t)) == (class, rank);
                if counts && !self.problem.needs(self.order[place].index(), t) {
                    break;
                }
                self.waiting[class].pop();
            }
        }
        let [clean, dirty] = &self.waiting;
        let class = match (clean.peek(), dirty.peek()) {
            // A store is as dear as a load: what needs one counts as used twice as soon.
            (Some(clean), Some(dirty)) => usize::from((dirty.0 - place, dirty.1) > (2 * (clean.0 - place), clean.1)),
            (clean, _) => usize::from(clean.is_none()),
        };
        self.waiting[class].pop().map(|(_, Reverse(t))| t)
    }

    fn epoch(&mut self) -> Changes {
        let ops = self.order.len();
        self.read.fill(0);
        self.waiting = Default::default();
        let resident: Vec<usize> = self.resident.ones().collect();
        resident.iter().for_each(|t| self.wait(*t));
        // What may be dead before an op is what was there before the epoch, or what the op before was the last to use.
        let mut stale = resident;
        let mut first = None;
        let mut rest = Vec::with_capacity(ops);
        for place in 0..ops {
            let op = self.order[place];
            let change = self.op(place, &stale);
            if first.is_some() {
                rest.push(change)
            } else {
                first = Some(self.resident.clone())
            }
            stale.clone_from(&self.problem.need[op.index()]);
        }
        let during = first.expect("a graph has ops");
        Changes { first: Turn { op: self.order[0], survives: during.clone(), during }, rest }
    }

    /// What changes before the op at `place`; of `stale` those leave that have no use any more.
    fn op(&mut self, place: usize, stale: &[usize]) -> Change {
        let (problem, op) = (self.problem, self.order[place]);
        let need = &problem.need[op.index()];
        let mut leave: Vec<usize> = stale.iter().copied().filter(|t| !self.is_alive(*t)).collect();
        leave.retain(|t| self.resident.contains(*t));
        leave.iter().for_each(|t| self.give_up(*t));
        let come: Vec<usize> = need.iter().copied().filter(|t| !self.resident.put(*t)).collect();
        self.held_bytes += come.iter().map(|t| problem.bytes(*t)).sum::<u64>();
        while self.held_bytes > problem.capacity_bytes {
            let t = self.first_to_leave(place).expect("what the op needs fits by itself");
            self.give_up(t);
            self.dirty.remove(t);
            leave.push(t);
        }
        leave.sort_unstable();
        self.now += 1;
        let made = problem.graph.op(op).outputs.iter();
        self.dirty.extend(made.filter(|t| !problem.graph.tensor(**t).publish).map(|t| t.index()));
        problem.graph.op(op).inputs.iter().for_each(|t| self.read[t.index()] += 1);
        for &t in need {
            self.used[t] = self.now;
            self.wait(t);
        }
        Change { op, leave, come }
    }

    fn give_up(&mut self, tensor: usize) {
        self.resident.remove(tensor);
        self.held_bytes -= self.problem.bytes(tensor);
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
        self.held_bytes = self.problem.bytes_of(&self.resident);
        self.dirty.clear();
    }
}
