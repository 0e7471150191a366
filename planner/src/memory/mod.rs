//! Memory plans: what is loaded, kept, evicted and stored at each op of an epoch, so that a device of a given capacity runs it.
//!
//! Every policy decides one thing, which tensors stay on the device from op to op; the loads, the stores and the
//! start of the steady state follow from it in one place (`schedule.rs`).
//!
//! | policy | file | what it does |
//! | --- | --- | --- |
//! | none | `none.rs` | nothing stays |
//! | lru | `cache.rs` | the least recently used leaves |
//! | roc | `roc.rs` | ROC's dynamic program, as its text describes it |
//! | optimal | `optimal.rs` | best-first search (`search.rs`) under prices of memory (`prices.rs`) |

mod cache;
mod evictions;
mod lives;
mod none;
mod optimal;
mod prices;
mod problem;
mod repair;
mod roc;
mod schedule;
mod search;

use std::fmt;
use std::str::FromStr;

use crate::tasks::{TaskGraph, TaskId, TensorId};
use problem::Problem;

/// Memory policy: which tensors stay on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Before each op everything leaves, then all its inputs are loaded.
    None,
    /// Dead tensors leave, then, for room, the least recently used.
    Lru,
    /// ROC's Algorithm 1, corrected: the fewest loads when only tensors that never left can be kept.
    Roc,
    /// The fewest bytes.
    #[default]
    Optimal,
}

impl Policy {
    /// Every policy, from the simplest to the best.
    pub const ALL: [Self; 4] = [Self::None, Self::Lru, Self::Roc, Self::Optimal];

    /// The policy's name: `none`, `lru`, `roc` or `optimal`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lru => "lru",
            Self::Roc => "roc",
            Self::Optimal => "optimal",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let unknown = || UnknownName { what: "memory policy", found: name.into(), known: "none, lru, roc or optimal" };
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(unknown)
    }
}

/// A name that is none of those that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no {what}; expected {known}")]
pub struct UnknownName {
    /// What was to be named.
    pub what: &'static str,
    /// The name.
    pub found: String,
    /// The names that there are.
    pub known: &'static str,
}

/// What a plan is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Objective {
    /// Bytes to the device and bytes to the host.
    #[default]
    Both,
    /// Bytes to the device; every output has a host copy at once, for nothing (ROC's accounting).
    Loads,
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Both => "both",
            Self::Loads => "loads",
        })
    }
}

impl FromStr for Objective {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "both" => Ok(Self::Both),
            "loads" => Ok(Self::Loads),
            _ => Err(UnknownName { what: "objective", found: name.into(), known: "both or loads" }),
        }
    }
}

/// What is on the device when an epoch begins, and must be when the next one does. Constants only, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Boundary {
    /// What is on the device.
    pub resident: Vec<TensorId>,
    /// Of these, what has no copy on the host: a constant that was updated on the device and not stored.
    pub dirty: Vec<TensorId>,
}

/// What an epoch inherits and leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Epoch {
    /// It starts from an empty device, and nothing is required at its end.
    Cold,
    /// It starts with what the one before left, which is what itself leaves.
    Steady,
    /// It starts with exactly this and ends with at least this: the same tensors resident, and host copies of all that is not
    /// dirty. What else is left is dropped.
    Boundary(Boundary),
}

/// How far `optimal` and `roc` search. A number of states and not of seconds, so that the same request has the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// About how many states are made for a graph of more than [`Limit::SMALL_OPS`] ops, over all that is tried.
    pub states: usize,
    /// The same for smaller graphs, which are to be planned exactly. More than can be waited for with patience: a state takes
    /// some hundred bytes.
    pub small_states: usize,
}

impl Limit {
    /// Graphs of up to this many ops are searched without regard for time.
    pub const SMALL_OPS: usize = 12;
    /// Of graphs of more ops than this only program order is searched: they are the same few ops over many tiles, and in a
    /// good order as they come.
    pub const LARGE_OPS: usize = 256;
}

impl Default for Limit {
    fn default() -> Self {
        Self { states: 1_000_000, small_states: 10_000_000 }
    }
}

/// What to plan.
#[derive(Clone, Debug)]
pub struct Request {
    /// How.
    pub policy: Policy,
    /// What counts.
    pub objective: Objective,
    /// From where.
    pub epoch: Epoch,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// The order of the ops, if it is given; else `none` and `lru` run in program order, `roc` and `optimal` in the best they find.
    pub order: Option<Vec<TaskId>>,
    /// How far to search.
    pub limit: Limit,
}

/// What happens around one op: stores, then evictions, then loads, then the op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The op.
    pub op: TaskId,
    /// What is copied to the host.
    pub store: Vec<TensorId>,
    /// What leaves the device.
    pub evict: Vec<TensorId>,
    /// What is copied to the device.
    pub load: Vec<TensorId>,
}

/// What happens after the last op. Empty unless the request gave a [`Boundary`] that the epoch would not reach by itself.
/// Tensors go by their name in this epoch: a constant's next value, not the constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// What is copied to the host.
    pub store: Vec<TensorId>,
    /// What leaves the device.
    pub evict: Vec<TensorId>,
    /// What is copied to the device.
    pub load: Vec<TensorId>,
}

/// One epoch on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How it was made.
    pub policy: Policy,
    /// Whether it is the policy's true answer: for `optimal`, that nothing is cheaper; for `roc`, that all orders were searched.
    pub exact: bool,
    /// Bytes copied to the device in the epoch.
    pub bytes_to_device: u64,
    /// Bytes copied to the host in the epoch, published outputs included; 0 under [`Objective::Loads`].
    pub bytes_to_host: u64,
    /// The most that is on the device at once.
    pub peak_bytes: u64,
    /// No plan, of any policy and in any order that the request allows, costs less than this, in the objective's measure.
    pub lower_bound_bytes: u64,
    /// The ops in the order in which they run.
    pub steps: Vec<Step>,
    /// What is on the device when the epoch begins: nothing when it is cold.
    pub start: Boundary,
    /// What happens after the last op.
    pub finish: Finish,
}

impl Plan {
    /// What the plan costs in the measure of an objective.
    pub fn cost_bytes(&self, objective: Objective) -> u64 {
        match objective {
            Objective::Both => self.bytes_to_device.saturating_add(self.bytes_to_host),
            Objective::Loads => self.bytes_to_device,
        }
    }

    /// The order of its ops.
    pub fn order(&self) -> Vec<TaskId> {
        self.steps.iter().map(|step| step.op).collect()
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fits, so.
    Feasible(Plan),
    /// It does not.
    Infeasible {
        /// The least capacity that would do: the largest op's inputs and outputs (or the given boundary, if that is more).
        needed_bytes: u64,
    },
}

/// Why a request means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The order is no order of these ops.
    #[error("the given order of ops does not have each of the {ops} ops once, after those that it depends on")]
    Order {
        /// How many ops there are.
        ops: usize,
    },
    /// The boundary holds what no epoch can inherit.
    #[error("the given boundary names tensor number {tensor}, {why}")]
    Boundary {
        /// The tensor.
        tensor: u32,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Of the states that a request allows, `roc` takes one in so many, so that `optimal` can begin with what `roc` finds.
const ROC_SHARE: usize = 8;

/// Plans one epoch on one device.
///
/// # Errors
/// [`PlanError`] if the request names what the graph does not have.
/// # Complexity
/// `none` and `lru` are O(ops x tensors) an epoch; `roc` and `optimal` look at as many states as [`Request::limit`] says.
pub fn plan(graph: &TaskGraph, request: &Request) -> Result<Outcome, PlanError> {
    let problem = Problem::new(graph, request)?;
    let needed_bytes = problem.needed_bytes();
    if needed_bytes > problem.capacity_bytes {
        return Ok(Outcome::Infeasible { needed_bytes });
    }
    let states = if graph.ops().len() <= Limit::SMALL_OPS { request.limit.small_states } else { request.limit.states };
    let baseline = |plan: Plan, exact| {
        let lower_bound_bytes = optimal::lower_bound_bytes(&problem, plan.cost_bytes(request.objective));
        Plan { exact, lower_bound_bytes, ..plan }
    };
    let plan = match request.policy {
        Policy::None => baseline(schedule::plan_changes(&problem, Policy::None, &none::changes(&problem)), true),
        Policy::Lru => baseline(cache::plan(&problem, cache::Rule::LeastRecent), true),
        Policy::Roc => {
            let (schedule, exact) = roc::schedule(&problem, states / ROC_SHARE);
            baseline(schedule::plan(&problem, Policy::Roc, &schedule), exact)
        }
        Policy::Optimal => optimal::plan(&problem, request.objective, states),
    };
    Ok(Outcome::Feasible(plan))
}
