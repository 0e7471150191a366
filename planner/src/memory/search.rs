//! Search over states (ops done, tensors on the device, host copies), ordered by the least cost of the whole epoch.
//!
//! The *estimate* of a state is what it has paid plus the bound of its [`Ledger`] on the remaining cost. Decisions that
//! are the same in some optimal plan are not tried: tensors are loaded when an op reads them, stored when they leave,
//! leave only to make room, and no more of them than necessary. In the steady state, the search first decides what the
//! epoch inherits, one constant after the other. A difference at the end of the epoch is paid for there.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use fixedbitset::FixedBitSet;
use rustc_hash::FxBuildHasher;

use super::Limit;
use super::evictions::{Candidate, evictions};
use super::lives::{Carried, End, Lives};
use super::prices::{Ledger, Prices, SHIFT, cost, least};
use super::problem::Problem;
use super::schedule::{Schedule, Turn};
use crate::tasks::{TaskId, TensorId};

/// The result of a search.
pub(super) struct Found {
    /// A schedule that costs less than the limit, if one was found.
    pub schedule: Option<Schedule>,
    /// The cost of the schedule, as computed by the search.
    pub cost: Option<i128>,
    /// Lower bound on the cost of any plan below the limit; `None` if there is no such plan.
    pub lower: Option<i128>,
    /// Number of states created.
    pub states: usize,
}

/// A set of ops that are done, with everything that depends on it alone.
struct Stage {
    done: Vec<bool>,
    /// Number of ops that are done.
    count: usize,
    /// The ops that can run next, in the order of the graph.
    ready: Vec<usize>,
    /// Ops that ran next so far, and the stages after them.
    next: Vec<(usize, u32)>,
    ledger: Ledger,
    /// [`Lives::later`], computed when the first tensor has to leave.
    later: Option<Vec<Vec<u32>>>,
}

/// The key of a state. Two states with the same key have the same future.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    stage: u32,
    /// Number of constants that are decided.
    decided: u32,
    /// The place of its [`Ends`] in [`Search::ends`].
    ends: u32,
    resident: FixedBitSet,
    dirty: FixedBitSet,
}

/// Inherited values that must be on the device at the end, and those of them without a host copy. They are the same in all
/// states that follow from the same decisions.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ends {
    stays: FixedBitSet,
    dirty: FixedBitSet,
}

impl Ends {
    fn of(&self, t: usize) -> End {
        match (self.stays.contains(t), self.dirty.contains(t)) {
            (false, _) => End::Away,
            (true, false) => End::Clean,
            (true, true) => End::Dirty,
        }
    }
}

#[derive(Clone)]
struct Node {
    key: Rc<Key>,
    depth: u32,
    paid: i128,
    estimate: i128,
    parent: u32,
    op: Option<u32>,
}

/// One search. Nodes that cannot cost less than `limit` are dropped.
pub(super) struct Search<'a, 'p, 'g> {
    problem: &'p Problem<'g>,
    lives: &'p Lives,
    prices: &'a Prices<'p, 'g>,
    limit: i128,
    /// Common divisor of all costs.
    grain: i128,
    stages: Vec<Stage>,
    stage_of: HashMap<Vec<bool>, u32, FxBuildHasher>,
    ends: Vec<Ends>,
    place_of: HashMap<Ends, u32, FxBuildHasher>,
    nodes: Vec<Node>,
    /// For each number of decided constants, the least cost that the undecided ones add.
    undecided: Vec<i128>,
    made: usize,
    /// Number of the first stage that still has its ledger.
    forgotten: usize,
    /// For each op, its place in the order of the graph.
    place: Vec<u32>,
    /// Whether a stage hands its ledger over to the next one. Then no state of a stage may be made after one of the next.
    hands_over: bool,
}

/// Most eviction sets per state and op, even in an exhaustive search; the result then says that it is incomplete.
const MOST_EVICTIONS: usize = 1 << 16;

/// Steps of a search for evictions that count as one state.
const STEPS_A_STATE: usize = 16;

/// Most bytes of ledgers that a search may hold.
const LEDGER_BYTES: usize = 1 << 30;

impl<'a, 'p, 'g> Search<'a, 'p, 'g> {
    /// Creates a search for plans that cost less than `upper_bytes`, the cost of a known plan.
    pub fn new(problem: &'p Problem<'g>, lives: &'p Lives, prices: &'a Prices<'p, 'g>, upper_bytes: u64) -> Self {
        let grain = cost((0..problem.tensors()).fold(0, |divisor, t| gcd(divisor, problem.bytes(t))));
        let ledger = prices.ledger();
        let mut place = vec![0; problem.ops()];
        (0..).zip(problem.graph.order()).for_each(|(i, op)| place[op.index()] = i);
        let mut undecided = vec![0; lives.open.len() + 1];
        for (i, carried) in lives.open.iter().enumerate().rev() {
            undecided[i] = undecided[i + 1] + least(&ledger, carried);
        }
        let mut search = Self {
            problem,
            lives,
            prices,
            // A better plan is better by at least one grain.
            limit: cost(upper_bytes) - grain + 1,
            grain,
            stages: Vec::new(),
            stage_of: HashMap::default(),
            ends: Vec::new(),
            place_of: HashMap::default(),
            nodes: Vec::new(),
            undecided,
            made: 0,
            forgotten: 0,
            place,
            hands_over: false,
        };
        let done = vec![false; problem.ops()];
        let is_first = |op: &TaskId| problem.graph.op(*op).inputs.iter().all(|t| problem.graph.producer(*t).is_none());
        let ready = match &problem.order {
            Some(order) => order.first().map(|op| op.index()).into_iter().collect(),
            None => problem.graph.order().iter().filter(|op| is_first(op)).map(|op| op.index()).collect(),
        };
        search.add_stage(done, 0, ready, ledger);
        let root = search.root();
        search.nodes.push(root);
        search
    }

    /// Rounds a bound up to a multiple of the grain, since all costs are multiples of it.
    fn rounded(&self, bound: i128) -> i128 {
        match self.grain {
            0 => bound,
            grain => (bound + grain - 1).div_euclid(grain) * grain,
        }
    }

    fn root(&mut self) -> Node {
        let none = self.problem.empty();
        let mut ends = Ends { stays: none.clone(), dirty: none.clone() };
        let mut key = Key { stage: 0, decided: 0, ends: 0, resident: none.clone(), dirty: none };
        for carried in &self.lives.fixed {
            self.decide(&mut key, &mut ends, carried, carried.options[0]);
        }
        key.ends = self.place_of_ends(ends);
        let estimate = self.estimate(&key, 0);
        Node { key: Rc::new(key), depth: 0, paid: 0, estimate, parent: u32::MAX, op: None }
    }

    fn decide(&self, key: &mut Key, ends: &mut Ends, carried: &Carried, end: End) {
        let Carried { before, after, .. } = *carried;
        if end == End::Away {
            return;
        }
        ends.stays.insert(after);
        ends.dirty.set(after, end == End::Dirty);
        // A constant that nothing reads is useless on the device, unless the next epoch inherits it unchanged.
        if before == after || !self.problem.graph.consumers(TensorId(before as u32)).is_empty() {
            key.resident.insert(before);
            key.dirty.set(before, end == End::Dirty);
        }
    }

    fn place_of_ends(&mut self, ends: Ends) -> u32 {
        *self.place_of.entry(ends).or_insert_with_key(|ends| {
            self.ends.push(ends.clone());
            self.ends.len() as u32 - 1
        })
    }

    fn ends(&self, key: &Key) -> &Ends {
        &self.ends[key.ends as usize]
    }

    fn estimate(&self, key: &Key, paid: i128) -> i128 {
        let (ledger, ends) = (&self.stages[key.stage as usize].ledger, self.ends(key));
        let mut sum = paid + ledger.base + self.undecided[key.decided as usize];
        for t in key.resident.ones() {
            sum += ledger.beyond_base(t, ends.of(t), 1 + usize::from(key.dirty.contains(t)));
        }
        for t in ends.stays.difference(&key.resident) {
            sum += ledger.beyond_base(t, ends.of(t), 0);
        }
        sum
    }

    fn add_stage(&mut self, done: Vec<bool>, count: usize, ready: Vec<usize>, ledger: Ledger) -> u32 {
        self.stages.push(Stage { done: done.clone(), count, ready, next: Vec::new(), ledger, later: None });
        let index = self.stages.len() as u32 - 1;
        self.stage_of.insert(done, index);
        index
    }

    /// Returns the ops that can run after a stage and this op, which `done` includes.
    fn ready_after(&self, stage: &Stage, op: usize, done: &[bool]) -> Vec<usize> {
        if let Some(order) = &self.problem.order {
            return order.get(stage.count + 1).map(|op| op.index()).into_iter().collect();
        }
        let graph = self.problem.graph;
        let is_ready =
            |op: &TaskId| graph.op(*op).inputs.iter().filter_map(|t| graph.producer(*t)).all(|op| done[op.index()]);
        let freed = graph.ops()[op].outputs.iter().flat_map(|t| graph.consumers(*t));
        let freed = freed.filter(|op| is_ready(op)).map(|op| op.index());
        let mut ready: Vec<usize> = stage.ready.iter().copied().filter(|other| *other != op).chain(freed).collect();
        ready.sort_unstable_by_key(|op| self.place[*op]);
        ready.dedup();
        ready
    }

    fn stage_after(&mut self, stage: u32, op: usize) -> u32 {
        let from = &self.stages[stage as usize];
        if let Some(&(_, next)) = from.next.iter().find(|(run, _)| *run == op) {
            return next;
        }
        let mut done = from.done.clone();
        done[op] = true;
        let next = match self.stage_of.get(&done) {
            Some(index) => *index,
            None => {
                let (count, ready) = (from.count + 1, self.ready_after(from, op, &done));
                let ledger = &mut self.stages[stage as usize].ledger;
                let ledger = if self.hands_over { std::mem::take(ledger) } else { ledger.clone() };
                let ledger = self.prices.after(ledger, op, &done);
                self.add_stage(done, count, ready, ledger)
            }
        };
        self.stages[stage as usize].next.push((op, next));
        next
    }

    /// Returns the depth of a complete epoch.
    fn end_depth(&self) -> u32 {
        (self.lives.open.len() + self.problem.ops()) as u32
    }

    /// Appends all states that follow node `index`, with at most `most` eviction sets per op. Returns the least
    /// estimate of those left out.
    fn expand(&mut self, index: usize, most: usize, children: &mut Vec<Node>) -> Option<i128> {
        let node = self.nodes[index].clone();
        if let Some(carried) = self.lives.open.get(node.key.decided as usize) {
            for end in &carried.options {
                let (mut key, mut ends) = ((*node.key).clone(), self.ends(&node.key).clone());
                key.decided += 1;
                self.decide(&mut key, &mut ends, carried, *end);
                key.ends = self.place_of_ends(ends);
                if self.problem.room_of(&key.resident) <= self.problem.capacity_bytes {
                    self.offer(index, key, node.depth + 1, 0, None, children);
                }
            }
            return None;
        }
        let mut left_out: Option<i128> = None;
        let ready = self.stages[node.key.stage as usize].ready.clone();
        if let Some(op) = ready.iter().find(|op| self.is_free(**op, &node.key)) {
            return self.run(index, &node, *op, most, children);
        }
        for op in ready {
            if let Some(bound) = self.run(index, &node, op, most, children) {
                left_out = Some(left_out.map_or(bound, |least| least.min(bound)));
            }
        }
        left_out
    }

    /// Whether running the op now is as good as running it at any later time. That is so if all its inputs are on the
    /// device, nothing has to leave, and each output that takes room can replace an input that only this op still
    /// reads. Then whatever happens in between can happen with the output in the input's place. The output must not be
    /// larger, and must not need a store that the input does not need.
    fn is_free(&self, op: usize, key: &Key) -> bool {
        let (problem, graph) = (self.problem, self.problem.graph);
        let takes_room = |t: &&TensorId| problem.room[t.index()] > 0;
        let (inputs, outputs) = (&graph.ops()[op].inputs, &graph.ops()[op].outputs);
        if !inputs.iter().filter(takes_room).all(|t| key.resident.contains(t.index())) {
            return false;
        }
        let made: u64 = outputs.iter().map(|t| problem.room[t.index()]).sum();
        if problem.room_of(&key.resident) + made + problem.extra[op] > problem.capacity_bytes {
            return false;
        }
        let done = &self.stages[key.stage as usize].done;
        let mut dying: Vec<TensorId> = Vec::new();
        for t in inputs.iter().filter(takes_room) {
            let is_last = graph.consumers(*t).iter().all(|reader| reader.index() == op || done[reader.index()]);
            if is_last && !problem.lasts(t.index()) && !graph.consumers(*t).is_empty() {
                dying.push(*t);
            }
        }
        outputs.iter().filter(takes_room).all(|y| {
            let is_clean = graph.tensor(*y).publish || !problem.stores_count;
            let fits = |t: &TensorId| {
                problem.bytes(t.index()) >= problem.bytes(y.index()) && (is_clean || key.dirty.contains(t.index()))
            };
            dying.iter().position(fits).map(|at| dying.swap_remove(at)).is_some()
        })
    }

    fn offer(&mut self, parent: usize, key: Key, depth: u32, paid: i128, op: Option<u32>, children: &mut Vec<Node>) {
        let estimate = self.estimate(&key, paid);
        self.keep(Node { key: Rc::new(key), depth, paid, estimate, parent: parent as u32, op }, children);
    }

    /// Keeps a node whose estimate is below the limit.
    fn keep(&mut self, child: Node, children: &mut Vec<Node>) {
        if child.estimate < self.limit {
            self.made += 1;
            children.push(child);
        }
    }

    fn run(&mut self, index: usize, node: &Node, op: usize, most: usize, children: &mut Vec<Node>) -> Option<i128> {
        let (problem, graph) = (self.problem, self.problem.graph);
        let stage = self.stage_after(node.key.stage, op);
        let need = &problem.need[op];
        let mut paid = node.paid;
        let mut key = (*node.key).clone();
        key.stage = stage;
        for input in &graph.ops()[op].inputs {
            if !key.resident.put(input.index()) {
                paid += cost(graph.tensor(*input).bytes);
            }
        }
        for output in &graph.ops()[op].outputs {
            key.resident.insert(output.index());
            if problem.stores_count && graph.tensor(*output).publish {
                paid += cost(graph.tensor(*output).bytes);
            } else if problem.stores_count {
                key.dirty.insert(output.index());
            }
        }
        let depth = node.depth + 1;
        let child = |key: Key, paid, estimate| Node {
            key: Rc::new(key),
            depth,
            paid,
            estimate,
            parent: index as u32,
            op: Some(op as u32),
        };
        let held = problem.room_of(&key.resident) + problem.extra[op];
        let excess = held.saturating_sub(problem.capacity_bytes);
        self.drop_dead(&mut key, need, &mut paid);
        let estimate = self.estimate(&key, paid);
        if excess == 0 {
            self.keep(child(key, paid, estimate), children);
            return None;
        }
        let (ledger, ends) = (&self.stages[stage as usize].ledger, self.ends(&key));
        let mut candidates: Vec<Candidate> = key
            .resident
            .ones()
            .filter(|t| !problem.needs(op, *t))
            .map(|tensor| {
                let end = ends.of(tensor);
                let dirty = key.dirty.contains(tensor);
                let store = if dirty { cost(problem.bytes(tensor)) } else { 0 };
                let stays = ledger.beyond_base(tensor, end, 1 + usize::from(dirty));
                let penalty = store + ledger.beyond_base(tensor, end, 0) - stays;
                Candidate { tensor, bytes: problem.room[tensor], penalty, requires: Vec::new() }
            })
            .collect();
        self.require(&mut candidates, &key);
        let found = evictions(&mut candidates, excess, self.limit - estimate, most);
        self.made += found.steps / STEPS_A_STATE;
        for set in &found.sets {
            let mut key = key.clone();
            let (mut paid, mut estimate) = (paid, estimate);
            for candidate in set.iter().map(|i| &candidates[*i]) {
                key.resident.remove(candidate.tensor);
                estimate += candidate.penalty;
                if key.dirty.contains(candidate.tensor) {
                    key.dirty.remove(candidate.tensor);
                    paid += cost(problem.bytes(candidate.tensor));
                }
            }
            debug_assert_eq!(estimate, self.estimate(&key, paid));
            self.keep(child(key, paid, estimate), children);
        }
        (!found.complete).then_some(estimate + found.least_penalty)
    }

    /// Adds requirements between two tensors of the same size that the next epoch does not inherit. The one that is
    /// read sooner must not leave while the other stays, unless only the other would have to be stored. Whatever
    /// happens to the first could happen to the second instead, with no more copies (Belady's argument).
    fn require(&mut self, candidates: &mut [Candidate], key: &Key) {
        // This compares every pair of tensors.
        if self.problem.ops() > Limit::LARGE_OPS {
            return;
        }
        let stage = &mut self.stages[key.stage as usize];
        let later = stage.later.get_or_insert_with(|| self.lives.later(self.problem, &stage.done));
        let mut leaves = self.problem.empty();
        leaves.extend(candidates.iter().map(|candidate| candidate.tensor));
        for sooner in candidates {
            let t = sooner.tensor;
            let stored = |other: &u32| key.dirty.contains(t) || !key.dirty.contains(*other as usize);
            // If the two are exchangeable, the lower number leaves.
            let alone = |other: &u32| {
                t > *other as usize
                    || key.dirty.contains(t) != key.dirty.contains(*other as usize)
                    || !later[*other as usize].contains(&(t as u32))
            };
            let others =
                later[t].iter().filter(|other| leaves.contains(**other as usize) && stored(other) && alone(other));
            sooner.requires = others.map(|other| *other as usize).collect();
        }
    }

    /// Removes the tensors that this op was the last to read. A next value that is not to stay is stored.
    fn drop_dead(&self, key: &mut Key, need: &[usize], paid: &mut i128) {
        let (done, ends) = (&self.stages[key.stage as usize].done, self.ends(key));
        for &t in need {
            let read = self.problem.graph.consumers(TensorId(t as u32)).iter().any(|op| !done[op.index()]);
            if read || ends.stays.contains(t) {
                continue;
            }
            key.resident.remove(t);
            if key.dirty.contains(t) && self.problem.lasts(t) {
                *paid += cost(self.problem.bytes(t));
            }
            key.dirty.remove(t);
        }
    }

    /// Goes through the epoch level by level, and keeps the `width` states with the least estimates on each.
    pub fn beam(mut self, width: usize, most: usize, states: usize) -> Found {
        // Then a level is a stage.
        self.hands_over = self.problem.order.is_some();
        let mut layer = vec![0usize];
        let mut left_out: Option<i128> = None;
        let mut leave_out = |bound: i128| left_out = Some(left_out.map_or(bound, |least: i128| least.min(bound)));
        if self.nodes[0].estimate >= self.limit {
            return Found { schedule: None, cost: None, lower: None, states: 1 };
        }
        for _ in 0..self.end_depth() {
            let mut children = Vec::new();
            for index in layer {
                if self.made > states {
                    leave_out(self.nodes[index].estimate);
                } else if let Some(bound) = self.expand(index, most, &mut children) {
                    leave_out(bound);
                }
            }
            let mut place: HashMap<Rc<Key>, usize, FxBuildHasher> = HashMap::default();
            let mut next: Vec<Node> = Vec::new();
            for child in children {
                match place.get(&child.key) {
                    Some(at) if next[*at].paid <= child.paid => {}
                    Some(at) => next[*at] = child,
                    None => {
                        place.insert(child.key.clone(), next.len());
                        next.push(child);
                    }
                }
            }
            // The sort is stable, so of equals the one that was made first stays.
            next.sort_by_key(|node| node.estimate);
            next.drain(width.min(next.len())..).for_each(|node| leave_out(node.estimate));
            layer = (self.nodes.len()..self.nodes.len() + next.len()).collect();
            self.nodes.extend(next);
            self.forget_stages(&layer);
        }
        let best = layer.first().copied();
        let cost = best.map(|index| self.nodes[index].estimate);
        let lower = [cost, left_out].into_iter().flatten().min().map(|bound| self.rounded(bound));
        Found { schedule: best.map(|index| self.path(index)), cost, lower, states: self.made }
    }

    /// Frees the ledgers of stages that a beam has passed.
    fn forget_stages(&mut self, layer: &[usize]) {
        let at: BTreeSet<u32> = layer.iter().map(|index| self.nodes[*index].key.stage).collect();
        let first = at.first().copied().unwrap_or(0) as usize;
        for stage in &mut self.stages[self.forgotten.min(first)..first] {
            (stage.ledger, stage.later) = (Ledger::default(), None);
        }
        self.forgotten = first;
    }

    /// Best-first search: always expands the state with the least estimate. The first complete epoch that it reaches is
    /// optimal.
    pub fn best_first(mut self, states: usize) -> Found {
        let mut open: BTreeSet<(i128, std::cmp::Reverse<u32>, usize)> = BTreeSet::new();
        let mut known: HashMap<Rc<Key>, i128, FxBuildHasher> = HashMap::default();
        let mut left_out: Option<i128> = None;
        let mut children = Vec::new();
        if self.nodes[0].estimate < self.limit {
            open.insert((self.rounded(self.nodes[0].estimate), std::cmp::Reverse(0), 0));
        }
        let ledger_bytes = self.problem.tensors() * size_of::<[super::prices::Future; 3]>();
        while let Some((estimate, std::cmp::Reverse(depth), index)) = open.pop_first() {
            let lower = Some(left_out.map_or(estimate, |bound: i128| bound.min(estimate)));
            if depth == self.end_depth() {
                let cost = Some(self.nodes[index].estimate);
                return Found { schedule: Some(self.path(index)), cost, lower, states: self.made };
            }
            if self.made > states || self.stages.len() * ledger_bytes > LEDGER_BYTES {
                return Found { schedule: None, cost: None, lower, states: self.made };
            }
            let node = &self.nodes[index];
            if known.get(&node.key).is_some_and(|paid| *paid < node.paid) {
                continue;
            }
            if let Some(bound) = self.expand(index, MOST_EVICTIONS.min(states), &mut children) {
                left_out = Some(left_out.map_or(bound, |least| least.min(bound)));
            }
            for child in children.drain(..) {
                let paid = known.entry(child.key.clone()).or_insert(i128::MAX);
                if child.paid < *paid {
                    *paid = child.paid;
                    let rank = self.rounded(child.estimate);
                    open.insert((rank, std::cmp::Reverse(child.depth), self.nodes.len()));
                    self.nodes.push(child);
                }
            }
        }
        Found { schedule: None, cost: None, lower: left_out.map(|bound| self.rounded(bound)), states: self.made }
    }

    fn path(&self, mut index: usize) -> Schedule {
        let mut turns = Schedule::new();
        while let Some(op) = self.nodes[index].op {
            let mut during = self.nodes[index].key.resident.clone();
            during.extend(self.problem.need[op as usize].iter().copied());
            turns.push(Turn { op: TaskId(op), survives: during.clone(), during });
            index = self.nodes[index].parent as usize;
        }
        turns.reverse();
        turns
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Rounds a bound up to whole bytes.
pub(super) fn bytes_of(bound: i128) -> u64 {
    u64::try_from((bound + (1 << SHIFT) - 1) >> SHIFT).unwrap_or(if bound < 0 { 0 } else { u64::MAX })
}
