//! Turns a schedule into a plan: derives the loads, stores and evictions, the start of the steady state, and the cost.

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::{Boundary, Epoch, Finish, Plan, Policy, Step};
use crate::tasks::{TaskId, TensorId};

/// The decision of a policy about one op.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub op: TaskId,
    /// Tensors on the device that stay. The others are evicted, and stored first if that is necessary.
    pub survives: FixedBitSet,
    /// Tensors on the device while the op runs. They are loaded if they did not survive, unless the op makes them.
    pub during: FixedBitSet,
}

/// The decisions of a policy about an epoch.
pub(super) type Schedule = Vec<Turn>;

/// The same decisions in a compact form, for epochs whose sets would take too much memory: the first op's turn, and
/// then the changes at each op.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    pub first: Turn,
    pub rest: Vec<Change>,
}

/// What changes on the device before an op. Both lists are in ascending order.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub op: TaskId,
    pub leave: Vec<usize>,
    /// Tensors that are loaded, or made by the op.
    pub come: Vec<usize>,
}

/// The tensors on the device, and those of them without a host copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Residency {
    pub resident: FixedBitSet,
    pub dirty: FixedBitSet,
}

impl Residency {
    pub fn empty(problem: &Problem) -> Self {
        Self { resident: problem.empty(), dirty: problem.empty() }
    }

    /// Returns the state at the start of an epoch.
    pub fn from_boundary(problem: &Problem, boundary: &Boundary) -> Self {
        let mut state = Self::empty(problem);
        state.resident.extend(boundary.resident.iter().map(|t| t.index()));
        state.dirty.extend(boundary.dirty.iter().map(|t| t.index()));
        state
    }

    /// Returns the start of the next epoch if this one ends in this state: constants stay, next values become
    /// constants, everything else is dropped.
    pub fn project(&self, problem: &Problem) -> Boundary {
        let after = |set: &FixedBitSet| {
            let mut names: Vec<TensorId> = set.ones().filter_map(|t| problem.name_after(t)).collect();
            names.sort_unstable();
            names
        };
        let resident = after(&self.resident);
        let dirty = after(&self.dirty);
        Boundary { resident, dirty }
    }
}

/// Returns the plan of a schedule. In the steady state, what the last turn leaves is what the first turn finds.
///
/// # Cost
/// O(ops x tensors).
pub(super) fn plan(problem: &Problem, policy: Policy, schedule: &Schedule) -> Plan {
    let ops = |epoch: &mut Run<'_, '_>| schedule.iter().for_each(|turn| epoch.turn(turn));
    let end = || {
        let mut epoch = Run::new(problem, policy, Boundary::default());
        ops(&mut epoch);
        epoch.state.project(problem)
    };
    play(problem, policy, end, ops)
}

/// Does the same for changes.
///
/// # Cost
/// O(tensors + changes x readers of a tensor).
pub(super) fn plan_changes(problem: &Problem, policy: Policy, changes: &Changes) -> Plan {
    play(
        problem,
        policy,
        || changes.end(problem),
        |epoch| {
            epoch.turn(&changes.first);
            changes.rest.iter().for_each(|change| epoch.change(change.op, change.leave.clone(), &change.come));
        },
    )
}

/// Runs the ops of an epoch. `end` returns what an epoch that starts empty leaves for the next.
fn play(problem: &Problem, policy: Policy, end: impl FnOnce() -> Boundary, ops: impl Fn(&mut Run<'_, '_>)) -> Plan {
    let start = match &problem.epoch {
        Epoch::Cold => Boundary::default(),
        Epoch::Boundary(boundary) => boundary.clone(),
        // What is on the device at the end depends on the last turn only, and whether next values were stored depends on
        // this epoch only. So an epoch that starts empty has the same end as one that starts with that end.
        Epoch::Steady => end(),
    };
    let mut epoch = Run::new(problem, policy, start);
    ops(&mut epoch);
    if let Epoch::Boundary(boundary) = &problem.epoch {
        epoch.finish(boundary);
    }
    epoch.plan
}

impl Changes {
    /// Returns what is left for the next epoch.
    fn end(&self, problem: &Problem) -> Boundary {
        let mut state = Residency { resident: self.first.during.clone(), dirty: problem.empty() };
        let made = |state: &mut Residency, op: TaskId| {
            let outputs = problem.graph.op(op).outputs.iter();
            let kept = outputs.filter(|t| problem.stores_count && !problem.graph.tensor(**t).publish);
            state.dirty.extend(kept.map(|t| t.index()));
        };
        made(&mut state, self.first.op);
        for change in &self.rest {
            for &t in &change.leave {
                state.resident.remove(t);
                state.dirty.remove(t);
            }
            state.resident.extend(change.come.iter().copied());
            made(&mut state, change.op);
        }
        state.project(problem)
    }
}

/// A running epoch.
struct Run<'p, 'g> {
    problem: &'p Problem<'g>,
    done: FixedBitSet,
    state: Residency,
    held_bytes: u64,
    plan: Plan,
}

impl<'p, 'g> Run<'p, 'g> {
    fn new(problem: &'p Problem<'g>, policy: Policy, start: Boundary) -> Self {
        let state = Residency::from_boundary(problem, &start);
        let held_bytes = problem.bytes_of(&state.resident);
        let plan = Plan {
            policy,
            exact: true,
            bytes_to_device: 0,
            bytes_to_host: 0,
            peak_bytes: held_bytes,
            lower_bound_bytes: 0,
            steps: Vec::with_capacity(problem.ops()),
            start,
            finish: Finish::default(),
        };
        Self { problem, done: FixedBitSet::with_capacity(problem.ops()), state, held_bytes, plan }
    }

    fn turn(&mut self, turn: &Turn) {
        let resident = &self.state.resident;
        let leave: Vec<usize> = resident.difference(&turn.survives).collect();
        let stays = |t: &usize| resident.contains(*t) && turn.survives.contains(*t);
        let come: Vec<usize> = turn.during.ones().filter(|t| !stays(t)).collect();
        self.change(turn.op, leave, &come);
    }

    /// Applies one op; both lists are in ascending order.
    fn change(&mut self, op: TaskId, leave: Vec<usize>, come: &[usize]) {
        let (problem, made) = (self.problem, &self.problem.graph.op(op).outputs);
        let loses = |t: &usize| self.state.dirty.contains(*t) && problem.is_needed(*t, &self.done);
        let store: Vec<usize> = leave.iter().copied().filter(loses).collect();
        for &t in &leave {
            self.state.resident.remove(t);
            self.state.dirty.remove(t);
            self.held_bytes -= problem.bytes(t);
        }
        for &t in come {
            self.state.resident.insert(t);
            self.held_bytes += problem.bytes(t);
        }
        let load: Vec<usize> = come.iter().copied().filter(|t| !made.contains(&TensorId(*t as u32))).collect();
        self.plan.bytes_to_host = store.iter().fold(self.plan.bytes_to_host, |sum, t| self.add(sum, *t));
        self.plan.bytes_to_device = load.iter().fold(self.plan.bytes_to_device, |sum, t| self.add(sum, *t));
        for output in made {
            let t = output.index();
            if problem.stores_count && problem.graph.tensor(*output).publish {
                self.plan.bytes_to_host = self.add(self.plan.bytes_to_host, t);
            } else if problem.stores_count {
                self.state.dirty.insert(t);
            }
        }
        self.plan.peak_bytes = self.plan.peak_bytes.max(self.held_bytes);
        self.done.insert(op.index());
        self.plan.steps.push(Step { op, store: ids(store), evict: ids(leave), load: ids(load) });
    }

    /// Stores and loads what the boundary requires and the last op did not leave.
    fn finish(&mut self, boundary: &Boundary) {
        let problem = self.problem;
        let mut kept = problem.empty();
        kept.extend(boundary.resident.iter().map(|x| problem.name_before(*x).index()));
        let mut may_be_dirty = problem.empty();
        may_be_dirty.extend(boundary.dirty.iter().map(|x| problem.name_before(*x).index()));
        let store: Vec<usize> =
            self.state.dirty.ones().filter(|t| problem.lasts(*t) && !may_be_dirty.contains(*t)).collect();
        let load: Vec<usize> = kept.difference(&self.state.resident).collect();
        let evict: Vec<usize> =
            if load.is_empty() { Vec::new() } else { self.state.resident.difference(&kept).collect() };
        self.plan.bytes_to_host = store.iter().fold(self.plan.bytes_to_host, |sum, t| self.add(sum, *t));
        self.plan.bytes_to_device = load.iter().fold(self.plan.bytes_to_device, |sum, t| self.add(sum, *t));
        if !load.is_empty() {
            self.plan.peak_bytes = self.plan.peak_bytes.max(problem.bytes_of(&kept));
        }
        self.plan.finish = Finish { store: ids(store), evict: ids(evict), load: ids(load) };
    }

    /// Adds the size of a tensor. Absurd sizes (2^63 bytes, read often) saturate instead of wrapping.
    fn add(&self, sum: u64, tensor: usize) -> u64 {
        sum.saturating_add(self.problem.bytes(tensor))
    }
}

fn ids(tensors: Vec<usize>) -> Vec<TensorId> {
    tensors.into_iter().map(|t| TensorId(t as u32)).collect()
}
