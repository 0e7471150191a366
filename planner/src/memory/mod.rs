//! Memory plans: what is loaded, kept, evicted and stored at each op of an epoch, so that the epoch runs on a device of
//! a given capacity.
//!
//! Every policy decides only which tensors stay on the device from op to op. The loads, the stores and the start of the
//! steady state are derived from that in one place (`schedule.rs`).
//!
//! | policy | file | what it does |
//! | --- | --- | --- |
//! | none | `none.rs` | nothing stays |
//! | lru | `cache.rs` | the least recently used leaves |
//! | roc | `roc.rs` | ROC's dynamic program, as described in the text of the paper |
//! | optimal | `optimal.rs` | best-first search (`search.rs`) under prices of memory (`prices.rs`) |
//!
//! `advance.rs` then moves the copies of any plan to earlier steps, so that they run beside kernels. `stays.rs` reads off a
//! plan what is on the device when.

mod advance;
mod cache;
mod evictions;
mod lives;
mod none;
mod optimal;
mod precedence;
mod prices;
mod problem;
mod recompute;
mod relaxation;
mod repair;
mod roc;
mod rooms;
mod schedule;
mod search;
mod stays;

use std::fmt;
use std::str::FromStr;

use crate::tasks::{TaskGraph, TaskId, TensorId};
pub use advance::advance;
use problem::Problem;
pub use recompute::{Recomputed, plan_with_recompute};
pub use stays::{Arrival, Stay, stays};

/// Memory policy: which tensors stay on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Before each op all tensors leave, then the inputs of the op are loaded.
    None,
    /// Dead tensors leave; then, to make room, the least recently used ones.
    Lru,
    /// ROC's Algorithm 1, corrected: the fewest loads, if only tensors that never left can be kept.
    Roc,
    /// The fewest bytes.
    #[default]
    Optimal,
}

impl Policy {
    /// Every policy, from the simplest to the best.
    pub const ALL: [Self; 4] = [Self::None, Self::Lru, Self::Roc, Self::Optimal];

    /// Returns the policy's name: `none`, `lru`, `roc` or `optimal`.
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
        let unknown =
            || UnknownName { what: "a memory policy", found: name.into(), known: "none, lru, roc or optimal" };
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(unknown)
    }
}

/// A name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not {what}; expected {known}")]
pub struct UnknownName {
    /// The kind of thing that was named.
    pub what: &'static str,
    /// The unknown name.
    pub found: String,
    /// The known names.
    pub known: &'static str,
}

/// The cost measure of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Objective {
    /// Bytes to the device and bytes to the host.
    #[default]
    Both,
    /// Bytes to the device. Every output gets a host copy for free (ROC's accounting).
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
            _ => Err(UnknownName { what: "an objective", found: name.into(), known: "both or loads" }),
        }
    }
}

/// The device contents at the start of an epoch, which must be restored for the next one. Constants only, in ascending
/// order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Boundary {
    /// The constants on the device.
    pub resident: Vec<TensorId>,
    /// Those of them without a copy on the host: updated on the device and not stored.
    pub dirty: Vec<TensorId>,
}

/// What an epoch inherits and leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Epoch {
    /// It starts from an empty device, and nothing is required at its end.
    Cold,
    /// It starts with what the epoch before left, and leaves the same.
    Steady,
    /// It starts with exactly this boundary and ends with at least this: the same tensors resident, and host copies of
    /// all that are not dirty. Other tensors are dropped.
    Boundary(Boundary),
}

/// The effort of planning. That of `optimal` and `roc` is a number of states, not of seconds, so that the same request has
/// the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Approximate number of states for a graph of more than [`Limit::SMALL_OPS`] ops, over all searches together.
    pub states: usize,
    /// The same for smaller graphs, which are meant to be planned exactly. The default is so large that reaching it
    /// takes patience. A state takes some hundred bytes.
    pub small_states: usize,
    /// Whether plans of `none`, `lru` and `roc` get a lower bound, which takes longer than the plans of the first two.
    /// Without it, [`Plan::lower_bound_bytes`] is 0.
    pub bounds: bool,
}

impl Limit {
    /// Largest number of ops of a graph that is searched without regard for time.
    pub const SMALL_OPS: usize = 12;
    /// Largest number of ops for which other orders than program order are searched. Larger graphs are the same few ops
    /// over many tiles, and their program order is good.
    pub const LARGE_OPS: usize = 256;
}

impl Default for Limit {
    fn default() -> Self {
        Self { states: 1_000_000, small_states: 10_000_000, bounds: true }
    }
}

/// A planning request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The policy.
    pub policy: Policy,
    /// The cost measure.
    pub objective: Objective,
    /// What the epoch inherits and leaves.
    pub epoch: Epoch,
    /// Capacity of the device in bytes.
    pub capacity_bytes: u64,
    /// The order of the ops, if it is fixed. If not, `none` and `lru` use program order; `roc` and `optimal` use the
    /// best order that they find.
    pub order: Option<Vec<TaskId>>,
    /// The search effort.
    pub limit: Limit,
}

/// One op with the copies before it: first the stores, then the evictions, then the loads, then the op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The op.
    pub op: TaskId,
    /// Tensors that are copied to the host.
    pub store: Vec<TensorId>,
    /// Tensors that leave the device.
    pub evict: Vec<TensorId>,
    /// Tensors that are copied to the device.
    pub load: Vec<TensorId>,
}

/// The copies after the last op. Empty unless the request gave a [`Boundary`] that the epoch would not reach by itself.
/// Tensors have their names in this epoch: a constant's next value, not the constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finish {
    /// Tensors that are copied to the host.
    pub store: Vec<TensorId>,
    /// Tensors that leave the device.
    pub evict: Vec<TensorId>,
    /// Tensors that are copied to the device.
    pub load: Vec<TensorId>,
}

/// The plan of one epoch on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The policy that made it.
    pub policy: Policy,
    /// Whether this is the true answer of the policy: for `optimal`, that no plan is cheaper, among those for which
    /// `lower_bound_bytes` holds; for `roc`, that all orders were searched.
    pub exact: bool,
    /// Bytes copied to the device in the epoch.
    pub bytes_to_device: u64,
    /// Bytes copied to the host in the epoch, including published outputs; 0 under [`Objective::Loads`].
    pub bytes_to_host: u64,
    /// Most bytes on the device at once.
    pub peak_bytes: u64,
    /// Lower bound on the cost of any plan, of any policy and in any order that the request allows, in the objective's
    /// measure. With more than [`Limit::LARGE_OPS`] ops, it is a bound on plans in program order alone, if the request
    /// does not give another: see [`Plan::is_bound_to_order`]. It is 0 without [`Limit::bounds`], except for `optimal`.
    pub lower_bound_bytes: u64,
    /// The ops in the order in which they run.
    pub steps: Vec<Step>,
    /// The device contents when the epoch begins; empty for a cold epoch.
    pub start: Boundary,
    /// The copies after the last op.
    pub finish: Finish,
}

impl Plan {
    /// Returns the cost of the plan in the measure of an objective.
    pub fn cost_bytes(&self, objective: Objective) -> u64 {
        match objective {
            Objective::Both => self.bytes_to_device.saturating_add(self.bytes_to_host),
            Objective::Loads => self.bytes_to_device,
        }
    }

    /// Whether [`Plan::lower_bound_bytes`] holds for the order of this plan alone. In another order, less may move.
    pub fn is_bound_to_order(&self) -> bool {
        self.steps.len() > Limit::LARGE_OPS
    }

    /// Returns the order of the ops.
    pub fn order(&self) -> Vec<TaskId> {
        self.steps.iter().map(|step| step.op).collect()
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The plan fits.
    Feasible(Plan),
    /// No plan fits.
    Infeasible {
        /// Least capacity that is enough: the inputs and outputs of the largest op, or the given boundary if that is
        /// more.
        needed_bytes: u64,
    },
}

/// Why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The order does not have each op once, after the ops that it depends on.
    #[error("the given order of ops does not have each of the {ops} ops once, after those that it depends on")]
    Order {
        /// Number of ops.
        ops: usize,
    },
    /// The boundary names a tensor that an epoch cannot inherit.
    #[error("the given boundary names tensor number {tensor}, {why}")]
    Boundary {
        /// The tensor.
        tensor: u32,
        /// The reason.
        why: &'static str,
    },
}

/// `roc` gets one state in this many of those that a request allows, so that `optimal` can begin with its result.
const ROC_SHARE: usize = 8;

/// Plans one epoch on one device.
///
/// # Errors
/// [`PlanError`] if the order or the boundary does not fit the graph.
/// # Complexity
/// `none` and `lru` are O(ops x tensors) per epoch; `roc` and `optimal` visit as many states as [`Request::limit`]
/// allows.
pub fn plan(graph: &TaskGraph, request: &Request) -> Result<Outcome, PlanError> {
    let problem = Problem::new(graph, request)?;
    let needed_bytes = problem.needed_bytes();
    if needed_bytes > problem.capacity_bytes {
        return Ok(Outcome::Infeasible { needed_bytes });
    }
    let states = if graph.ops().len() <= Limit::SMALL_OPS { request.limit.small_states } else { request.limit.states };
    let baseline = |plan: Plan, exact| {
        let bound = || optimal::lower_bound_bytes(&problem, plan.cost_bytes(request.objective));
        let lower_bound_bytes = if request.limit.bounds { bound() } else { 0 };
        Plan { exact, lower_bound_bytes, ..plan }
    };
    let plan = match request.policy {
        Policy::None => baseline(schedule::plan_changes(&problem, Policy::None, &none::changes(&problem)), true),
        Policy::Lru => baseline(cache::plan(&problem, cache::Rule::LeastRecent, &cache::Clock::of_ops(&problem)), true),
        Policy::Roc => {
            let (schedule, exact) = roc::schedule(&problem, states / ROC_SHARE);
            baseline(schedule::plan(&problem, Policy::Roc, &schedule), exact)
        }
        Policy::Optimal => optimal::plan(&problem, request.objective, states),
    };
    Ok(Outcome::Feasible(plan))
}
