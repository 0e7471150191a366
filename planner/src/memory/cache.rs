//! Cache policies in program order: dead tensors leave first; then, to make room, the tensors that a rule selects.
//!
//! A tensor's rank under a rule changes only when the tensor is used, so the tensors that may leave are kept in heaps.
//! The time of an epoch depends on the number of uses, not on the number of tensors.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::{self, Change, Changes, Residency, Turn};
use super::{Epoch, Objective, Plan, Policy};
use crate::tasks::{TaskId, TensorId};

/// The rule that selects the next tensor to leave. Ties go to the least index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Least recently used, as input or output.
    LeastRecent,
    /// Farthest next use (Belady). The use can be in the next epoch, if that inherits the tensor.
    FarthestNext,
    /// Farthest next use, but the distance counts half for a tensor that would have to be stored.
    FarthestNextClean,
}

/// The distances by which a rule that knows the future ranks tensors: for each place in the order, and for those of the
/// next epoch after them, a time that grows from place to place.
#[derive(Clone)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// Returns the clock that counts ops.
    pub fn of_ops(problem: &Problem) -> Self {
        Self((0..=2 * problem.ops() as u64).collect())
    }

    /// Returns the clock on which an op takes as long as its memory is dear: `sums` are the sums of the prices before
    /// each place. Memory that nobody competes for is held for free. Of ops that cost the same, the number decides.
    pub fn of_prices(sums: &[i128]) -> Self {
        let all = sums.last().copied().unwrap_or(0);
        let both = sums.iter().copied().chain(sums[1..].iter().map(|sum| all + sum));
        let time = |(place, sum): (usize, i128)| {
            u64::try_from(sum << TICKS).unwrap_or(u64::MAX / 4).min(u64::MAX / 4) + place as u64
        };
        Self(both.enumerate().map(time).collect())
    }
}

/// A unit of cost has this many bits of a [`Clock`], so that places only decide between equals.
const TICKS: u32 = 10;

/// Most epochs that are simulated to reach a steady state. If none is reached by then, the last epoch is used.
const EPOCHS: usize = 64;

/// The same limit for the rules that know the future. They settle at once or not at all.
const FEW_EPOCHS: usize = 4;

/// Plans with a cache: before each op dead tensors leave; then tensors that the rule selects leave until the op fits.
/// Tensors of the op itself never leave.
///
/// In the steady state, epochs are simulated until one begins as an earlier one did. If that is the one just before, it
/// is the answer. If several alternate, none of them repeats by itself. Then each is closed into a cycle, at the cost
/// of what its first step must load or store, and the cheapest one (the earliest of equals) is the answer.
///
/// # Cost
/// O(tensors log tensors + uses log uses) per epoch.
pub(super) fn plan(problem: &Problem, rule: Rule, clock: &Clock) -> Plan {
    let once = |start| schedule::plan_changes(problem, Policy::Lru, &Cache::new(problem, rule, clock, start).epoch());
    match &problem.epoch {
        Epoch::Cold => once(Residency::empty(problem)),
        Epoch::Boundary(start) => once(Residency::from_boundary(problem, start)),
        Epoch::Steady => steady(problem, rule, clock),
    }
}

fn steady(problem: &Problem, rule: Rule, clock: &Clock) -> Plan {
    let mut cache = Cache::new(problem, rule, clock, Residency::empty(problem));
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

/// A tensor that may leave, with its rank. The greatest rank leaves first.
type Waiting = (u64, Reverse<usize>);

struct Cache<'p, 'g> {
    problem: &'p Problem<'g>,
    rule: Rule,
    clock: &'p Clock,
    order: Vec<TaskId>,
    resident: FixedBitSet,
    held_bytes: u64,
    /// Time of the last use of each tensor, on a clock that counts ops.
    used: Vec<u64>,
    now: u64,
    /// Tensors made in this epoch that have no host copy.
    dirty: FixedBitSet,
    /// For each tensor, the places in the order of the ops that read it, and how many of these reads are done.
    reads: Vec<Vec<usize>>,
    read: Vec<usize>,
    /// Tensors that still have a use when all ops are done.
    outlasts: FixedBitSet,
    /// The tensors that may leave, by rank: the clean ones, and those that the rule treats differently. Both heaps also
    /// have outdated entries, of tensors that have left or been used since.
    waiting: [BinaryHeap<Waiting>; 2],
}

impl<'p, 'g> Cache<'p, 'g> {
    fn new(problem: &'p Problem<'g>, rule: Rule, clock: &'p Clock, start: Residency) -> Self {
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
            clock,
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

    /// Returns everything that the following epochs depend on: the resident tensors, in the order of their last use.
    fn fingerprint(&self) -> Vec<usize> {
        let mut order: Vec<usize> = self.resident.ones().collect();
        order.sort_by_key(|t| (self.used[*t], *t));
        order
    }

    /// Whether a tensor has a use from now on.
    fn is_alive(&self, tensor: usize) -> bool {
        self.read[tensor] < self.reads[tensor].len() || self.outlasts.contains(tensor)
    }

    /// Returns the rank of a tensor; the greatest leaves first. It is the time of the next op that reads the tensor,
    /// possibly in the next epoch, or the time since its last use.
    fn rank(&self, tensor: usize) -> u64 {
        if self.rule == Rule::LeastRecent {
            return u64::MAX - self.used[tensor];
        }
        let next = self.reads[tensor].get(self.read[tensor]).copied();
        let place = next.unwrap_or_else(|| {
            let ops = self.order.len();
            let again = self.problem.name_after(tensor).and_then(|x| self.reads[x.index()].first());
            ops + again.copied().unwrap_or(ops)
        });
        self.clock.0[place]
    }

    /// Returns 1 for a tensor that the rule treats differently from clean tensors, else 0.
    fn class(&self, tensor: usize) -> usize {
        usize::from(self.rule == Rule::FarthestNextClean && self.dirty.contains(tensor))
    }

    fn wait(&mut self, tensor: usize) {
        let (class, rank) = (self.class(tensor), self.rank(tensor));
        self.waiting[class].push((rank, Reverse(tensor)));
    }

    /// Returns the tensor that leaves next. It is not one that the op at `place` needs.
    fn first_to_leave(&mut self, place: usize) -> Option<usize> {
        for class in [0, 1] {
            while let Some(&(rank, Reverse(t))) = self.waiting[class].peek() {
                // Tensors that the op needs are pushed again after it.
                let counts = self.resident.contains(t) && (self.class(t), self.rank(t)) == (class, rank);
                if counts && !self.problem.needs(self.order[place].index(), t) {
                    break;
                }
                self.waiting[class].pop();
            }
        }
        let [clean, dirty] = &self.waiting;
        let class = match (clean.peek(), dirty.peek()) {
            // A store costs as much as a load, so the distance of a tensor that needs a store counts half.
            (Some(clean), Some(dirty)) => {
                let now = self.clock.0[place];
                usize::from((dirty.0 - now, dirty.1) > (2 * (clean.0 - now), clean.1))
            }
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
        // Tensors that can be dead before an op: those on the device before the epoch, and those of the op before.
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

    /// Returns what changes on the device before the op at `place`. The dead ones of `stale` leave.
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

    /// Renames next values to their constants, and keeps the time of their last use.
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
