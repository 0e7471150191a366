//! Replays a plan and reports the first step that breaks a rule. The checker only uses the task graph and the plan; it
//! does not know how the plan was made.

mod joint;

use std::collections::HashSet;
use std::sync::Arc;

pub use joint::{Exchange, Fetch, check_joint};

use crate::memory::{Boundary, Epoch, Objective, Plan, Policy};
use crate::tasks::{TaskGraph, TensorId, TensorKind};

/// A place in a plan, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the first step: the plan's statement of what the epoch starts with.
    Start,
    /// A step, counted from 0, with the name of its op.
    Step(usize, Arc<str>),
    /// After the last step.
    Finish,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Start => write!(f, "the start"),
            Place::Step(step, op) => write!(f, "step {step} (op `{op}`)"),
            Place::Finish => write!(f, "the end"),
        }
    }
}

/// The rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The plan uses an id that the graph does not have.
    #[error("{place} names {what} number {id}, which the graph does not have")]
    Unknown {
        /// The place in the plan.
        place: Place,
        /// `tensor` or `op`.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// The plan does something to a tensor that is not allowed at this place.
    #[error("{place} {action} tensor `{tensor}`, {why}")]
    Tensor {
        /// The place in the plan.
        place: Place,
        /// The forbidden action.
        action: &'static str,
        /// The tensor.
        tensor: String,
        /// The reason why it is forbidden.
        why: &'static str,
    },
    /// An op does not run exactly once.
    #[error("op `{op}` runs {times} times in the plan; each runs once")]
    Times {
        /// The op.
        op: String,
        /// Number of times that it runs.
        times: usize,
    },
    /// The tensors on the device exceed the capacity.
    #[error("{place} holds {held_bytes} bytes, but the capacity is {capacity_bytes}")]
    Capacity {
        /// The place in the plan.
        place: Place,
        /// Bytes on the device.
        held_bytes: u64,
        /// Bytes allowed.
        capacity_bytes: u64,
    },
    /// A number in the plan does not match its steps.
    #[error("the plan claims {what} of {claimed}, but its steps amount to {found}")]
    Claim {
        /// The name of the number.
        what: &'static str,
        /// The value in the plan.
        claimed: u64,
        /// The value that the steps result in.
        found: u64,
    },
    /// The lower bound is above the plan's own cost, or an exact optimum differs from its bound.
    #[error("the plan costs {cost_bytes} bytes, which does not agree with its lower bound of {lower_bound_bytes}")]
    Bound {
        /// Cost of the plan in bytes.
        cost_bytes: u64,
        /// Lower bound in bytes.
        lower_bound_bytes: u64,
    },
    /// The plan has actions after its last step, which only an epoch with a given boundary may have.
    #[error("the plan does something after its last step, which only an epoch with a given boundary may")]
    Finish,
    /// Plans wait for each other in a cycle.
    #[error("these steps wait for each other: {}", .steps.join(" -> "))]
    Deadlock {
        /// The steps of one cycle. Each waits for the one before it, and the first for the last.
        steps: Vec<String>,
    },
    /// An exchange or fetch is invalid.
    #[error("an exchange names device {device} and tensor number {tensor}, {why}")]
    Exchange {
        /// The device.
        device: usize,
        /// The tensor.
        tensor: u32,
        /// The reason.
        why: &'static str,
    },
}

/// Replays a plan from its start.
///
/// # Errors
/// The [`CheckError`] of the first rule that is broken: a tensor that cannot be stored, evicted or loaded at that
/// place, a value that is lost, an op without its inputs, more bytes than the capacity, an end that differs from the
/// next start, or a wrong number.
/// # Cost
/// O(sum of the lists' lengths x readers of a tensor).
pub fn check(
    graph: &TaskGraph,
    plan: &Plan,
    objective: Objective,
    epoch: &Epoch,
    capacity_bytes: u64,
) -> Result<(), CheckError> {
    let mut replay = Replay::new(graph, objective, epoch, capacity_bytes);
    replay.start(plan)?;
    for (i, step) in plan.steps.iter().enumerate() {
        let op = graph.ops().get(step.op.index());
        let op = op.ok_or(CheckError::Unknown { place: Place::Start, what: "op", id: step.op.0 })?;
        replay.place = Place::Step(i, op.name.clone());
        step.store.iter().try_for_each(|t| replay.store(*t))?;
        step.evict.iter().try_for_each(|t| replay.evict(*t))?;
        step.load.iter().try_for_each(|t| replay.load(*t))?;
        replay.run(step.op.index())?;
    }
    for (op, times) in graph.ops().iter().zip(&replay.ran) {
        if *times != 1 {
            return Err(CheckError::Times { op: op.name.to_string(), times: *times });
        }
    }
    replay.place = Place::Finish;
    replay.end(plan)?;
    replay.claims(plan)
}

/// The state of the device and the host during a replay.
struct Replay<'a> {
    graph: &'a TaskGraph,
    epoch: &'a Epoch,
    objective: Objective,
    capacity_bytes: u64,
    on_device: Vec<bool>,
    on_host: Vec<bool>,
    ran: Vec<usize>,
    held_bytes: u64,
    peak_bytes: u64,
    to_device: u64,
    to_host: u64,
    place: Place,
}

impl<'a> Replay<'a> {
    fn new(graph: &'a TaskGraph, objective: Objective, epoch: &'a Epoch, capacity_bytes: u64) -> Self {
        Self {
            graph,
            epoch,
            objective,
            capacity_bytes,
            on_device: vec![false; graph.tensors().len()],
            on_host: graph.tensors().iter().map(|t| t.kind != TensorKind::Local).collect(),
            ran: vec![0; graph.ops().len()],
            held_bytes: 0,
            peak_bytes: 0,
            to_device: 0,
            to_host: 0,
            place: Place::Start,
        }
    }

    fn wrong(&self, action: &'static str, t: TensorId, why: &'static str) -> Result<(), CheckError> {
        let tensor = self.graph.tensor(t).name.to_string();
        Err(CheckError::Tensor { place: self.place.clone(), action, tensor, why })
    }

    fn known(&self, t: TensorId) -> Result<usize, CheckError> {
        match self.graph.tensors().get(t.index()) {
            Some(_) => Ok(t.index()),
            None => Err(CheckError::Unknown { place: self.place.clone(), what: "tensor", id: t.0 }),
        }
    }

    fn bytes(&self, t: TensorId) -> u64 {
        self.graph.tensor(t).bytes
    }

    fn start(&mut self, plan: &Plan) -> Result<(), CheckError> {
        for t in &plan.start.resident {
            let i = self.known(*t)?;
            if self.graph.tensor(*t).kind != TensorKind::Constant {
                return self.wrong("inherits", *t, "which is no constant");
            }
            if *self.epoch == Epoch::Cold {
                return self.wrong("inherits", *t, "but the epoch starts cold");
            }
            if self.on_device[i] {
                return self.wrong("inherits", *t, "which it names before");
            }
            self.arrive(*t)?;
        }
        for t in &plan.start.dirty {
            let i = self.known(*t)?;
            if !self.on_device[i] {
                return self.wrong("calls dirty", *t, "which is not resident");
            }
            if self.objective == Objective::Loads {
                return self.wrong("calls dirty", *t, "but every value has a host copy under this objective");
            }
            self.on_host[i] = false;
        }
        if let Epoch::Boundary(given) = self.epoch {
            let (given_resident, given_dirty) = sets(given);
            for t in graph_tensors(self.graph) {
                if given_resident.contains(&t) != self.on_device[t.index()] {
                    return self.wrong(
                        "does not have as given",
                        t,
                        "which is to be resident or not as the boundary says",
                    );
                }
                let dirty = self.objective == Objective::Both && given_dirty.contains(&t);
                if dirty != (self.on_device[t.index()] && !self.on_host[t.index()]) {
                    return self.wrong("does not have as given", t, "which is to be dirty or not as the boundary says");
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, t: TensorId) -> Result<(), CheckError> {
        self.on_device[t.index()] = true;
        self.held_bytes += self.bytes(t);
        self.peak_bytes = self.peak_bytes.max(self.held_bytes);
        if self.held_bytes > self.capacity_bytes {
            let (held_bytes, capacity_bytes) = (self.held_bytes, self.capacity_bytes);
            return Err(CheckError::Capacity { place: self.place.clone(), held_bytes, capacity_bytes });
        }
        Ok(())
    }

    fn store(&mut self, t: TensorId) -> Result<(), CheckError> {
        let i = self.known(t)?;
        if !self.on_device[i] {
            return self.wrong("stores", t, "which is not on the device");
        }
        if self.on_host[i] {
            return self.wrong("stores", t, "which has a host copy");
        }
        self.on_host[i] = true;
        self.to_host = self.to_host.saturating_add(self.bytes(t));
        Ok(())
    }

    fn evict(&mut self, t: TensorId) -> Result<(), CheckError> {
        let i = self.known(t)?;
        if !self.on_device[i] {
            return self.wrong("evicts", t, "which is not on the device");
        }
        if !self.on_host[i] && self.is_awaited(t) {
            return self.wrong("evicts", t, "which is needed again and has no host copy");
        }
        self.on_device[i] = false;
        self.held_bytes -= self.bytes(t);
        Ok(())
    }

    /// Whether an op that has not run reads the value, or the next epoch inherits it.
    fn is_awaited(&self, t: TensorId) -> bool {
        let read = self.graph.consumers(t).iter().any(|op| self.ran[op.index()] == 0);
        let inherited = match self.graph.tensor(t).kind {
            TensorKind::Constant => self.graph.next_value(t).is_none(),
            TensorKind::Local => self.graph.becomes(t).is_some(),
            TensorKind::Fresh => false,
        };
        read || (inherited && *self.epoch != Epoch::Cold)
    }

    fn load(&mut self, t: TensorId) -> Result<(), CheckError> {
        let i = self.known(t)?;
        if self.on_device[i] {
            return self.wrong("loads", t, "which is on the device");
        }
        if !self.on_host[i] {
            return self.wrong("loads", t, "which has no host copy");
        }
        self.to_device = self.to_device.saturating_add(self.bytes(t));
        self.arrive(t)
    }

    fn run(&mut self, op: usize) -> Result<(), CheckError> {
        let graph = self.graph;
        self.ran[op] += 1;
        if self.ran[op] > 1 {
            return Err(CheckError::Times { op: graph.ops()[op].name.to_string(), times: self.ran[op] });
        }
        for t in &graph.ops()[op].inputs {
            if !self.on_device[t.index()] {
                return self.wrong("reads", *t, "which is not on the device");
            }
        }
        for t in &graph.ops()[op].outputs {
            self.arrive(*t)?;
            if self.objective == Objective::Loads {
                self.on_host[t.index()] = true;
            } else if graph.tensor(*t).publish {
                self.on_host[t.index()] = true;
                self.to_host = self.to_host.saturating_add(self.bytes(*t));
            }
        }
        Ok(())
    }

    fn end(&mut self, plan: &Plan) -> Result<(), CheckError> {
        let finish = &plan.finish;
        let nothing = finish.store.is_empty() && finish.evict.is_empty() && finish.load.is_empty();
        if !nothing && !matches!(self.epoch, Epoch::Boundary(_)) {
            return Err(CheckError::Finish);
        }
        finish.store.iter().try_for_each(|t| self.store(*t))?;
        finish.evict.iter().try_for_each(|t| self.evict(*t))?;
        finish.load.iter().try_for_each(|t| self.load(*t))?;
        match self.epoch {
            Epoch::Cold => Ok(()),
            Epoch::Steady => self.meets(&plan.start, true),
            Epoch::Boundary(given) => self.meets(given, false),
        }
    }

    /// Checks that the next epoch finds what `start` states: exactly that, or at least that.
    fn meets(&self, start: &Boundary, exactly: bool) -> Result<(), CheckError> {
        let (starts_resident, starts_dirty) = sets(start);
        for constant in graph_tensors(self.graph).filter(|t| self.graph.tensor(*t).kind == TensorKind::Constant) {
            let value = self.graph.next_value(constant).unwrap_or(constant);
            let (resident, dirty) = (self.on_device[value.index()], !self.on_host[value.index()]);
            if dirty && !resident {
                return self.wrong("has lost", value, "which the next epoch starts with");
            }
            let (wants, allows) = (starts_resident.contains(&constant), starts_dirty.contains(&constant));
            if wants && !resident || exactly && resident && !wants {
                return self.wrong("leaves", value, "on the device or not, other than the next epoch starts with");
            }
            if dirty && !allows && (wants || !exactly) || exactly && allows && !dirty {
                return self.wrong("leaves", value, "with a host copy or not, other than the next epoch starts with");
            }
        }
        Ok(())
    }

    fn claims(&self, plan: &Plan) -> Result<(), CheckError> {
        for (what, claimed, found) in [
            ("bytes to the device", plan.bytes_to_device, self.to_device),
            ("bytes to the host", plan.bytes_to_host, self.to_host),
            ("peak bytes", plan.peak_bytes, self.peak_bytes),
        ] {
            // Under `Loads`, storing outputs is free, and the plan counts no bytes for it.
            if claimed != found {
                return Err(CheckError::Claim { what, claimed, found });
            }
        }
        let (cost_bytes, lower_bound_bytes) = (plan.cost_bytes(self.objective), plan.lower_bound_bytes);
        let proven = plan.policy == Policy::Optimal && plan.exact;
        if lower_bound_bytes > cost_bytes || proven && lower_bound_bytes != cost_bytes {
            return Err(CheckError::Bound { cost_bytes, lower_bound_bytes });
        }
        Ok(())
    }
}

/// Returns the resident and the dirty tensors of a boundary as sets: a deep model has many.
fn sets(boundary: &Boundary) -> (HashSet<TensorId>, HashSet<TensorId>) {
    (boundary.resident.iter().copied().collect(), boundary.dirty.iter().copied().collect())
}

fn graph_tensors(graph: &TaskGraph) -> impl Iterator<Item = TensorId> + use<> {
    (0..graph.tensors().len() as u32).map(TensorId)
}
