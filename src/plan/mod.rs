//! Plans: what every device holds and copies. Plans are made and checked before anything runs.
//!
//! A run consists of a *setup*, which runs once, and *sequences* of lowered phases (an epoch with its evaluation, an
//! epoch without). Each sequence is planned for all devices together. All devices run the same order of steps, that of
//! the device with the least memory for its tensors, so that devices which wait for each other's rows cannot deadlock.

mod cost;
mod count;
mod fit;
mod lowered_parts;
mod on_gpu;
mod order;
mod script;
mod seconds;
mod tasks;
mod timeline;
mod variants;
mod work;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lapidary_kernels::Slot;
use lapidary_planner::check::{self, check, check_joint};
use lapidary_planner::memory::{Boundary, Epoch, Limit, Objective, Outcome, Plan, Policy, Request, advance, plan};
use lapidary_planner::tasks::{TaskError, TaskId};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use crate::lower::{ExchangePath, Layout};
pub use cost::works;
pub(crate) use count::{Known, grid_down};
pub(crate) use fit::{Fit, epoch_bytes};
use fit::{both, excess};
pub(crate) use lowered_parts::{EpochWork, LoweredParts};
pub use order::{ChosenOrder, KeptByNumber, Reorder, RunGathers};
pub use script::{Action, Script};
pub use seconds::Rates;
pub(crate) use seconds::{BETWEEN_CALLS_AND_COPIES, COPY_IN, COPY_OUT, between_name, planned_seconds};
pub use tasks::Tasks;
pub use timeline::Timeline;
pub(crate) use variants::{Choice, Fitted, Variant};
pub use work::Locality;
pub(crate) use work::{between_work, copy_work, kernel_work};

use crate::error::{Error, Result};
use crate::lower::{Exchange, Lifetime, Lowered, LoweredStep, SlotSet};

/// A device and its memory, as input of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBudget {
    /// Name of the device.
    pub name: String,
    /// Memory that it may use, in bytes.
    pub capacity_bytes: u64,
    /// Whether its memory is the host's. Then nothing is copied, and a program that does not fit is refused.
    pub in_place: bool,
}

/// Settings of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// Memory policy: which tensors stay on the device.
    pub policy: Policy,
    /// Objective: which copied bytes count.
    pub objective: Objective,
    /// Search effort.
    pub limit: Limit,
    /// Whether plans are checked. Those that are only compared need not be.
    pub checks: bool,
}

impl Default for Method {
    fn default() -> Self {
        // A run waits for its plan, so it gets a fifth of the states of `plan --tasks`.
        let limit = Limit { states: Limit::default().states / 5, ..Limit::default() };
        Self { policy: Policy::Optimal, objective: Objective::Both, limit, checks: true }
    }
}

impl Method {
    /// Whether layouts that all fit are compared by the bytes of an epoch: if the policy minimises them and the epoch
    /// repeats.
    pub(crate) fn weighs(&self, epoch: &Epoch) -> bool {
        self.policy == Policy::Optimal && *epoch == Epoch::Steady
    }

    /// Returns the settings for plans of which nobody asks how far they are from the least bytes.
    pub(crate) fn without_bounds(self) -> Self {
        Self { limit: Limit { bounds: false, ..self.limit }, ..self }
    }

    /// Returns the settings for plans by which layouts are compared.
    pub(crate) fn quick(self) -> Self {
        Self { checks: false, ..self.quick_and_checked() }.without_bounds()
    }

    /// Returns the settings for a plan as [`Method::quick`] makes it, but checked, so that it can run.
    pub(crate) fn quick_and_checked(self) -> Self {
        let limit = Limit { states: self.limit.states.min(QUICK_STATES), ..self.limit };
        Self { limit, checks: true, ..self }
    }
}

/// Approximate number of planner states for a plan to compare layouts by.
const QUICK_STATES: usize = 2_000;

/// The lowered steps to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence<'a> {
    /// The setup, which runs once. Its results that a phase reads are kept on the host.
    Setup,
    /// These phases, one after the other.
    Phases(&'a [usize]),
}

/// One sequence, planned on every device.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan of each device.
    pub devices: Vec<PlannedDevice>,
}

/// The plan of one device.
#[derive(Clone, Debug)]
pub struct PlannedDevice {
    /// The lowered steps.
    pub steps: Arc<[LoweredStep]>,
    /// The steps as a task graph of the planner, and the plan. `None` if there are no steps.
    pub plan: Option<(Arc<Tasks>, Plan)>,
}

impl Planned {
    /// Returns the same plan for programs that were lowered for other data, if steps and sizes are equal; `None`
    /// otherwise.
    ///
    /// # Cost
    /// O(steps log steps): nothing is planned.
    pub(crate) fn reused<L: Borrow<Lowered> + Sync>(
        &self,
        lowered: &[L],
        sequence: Sequence<'_>,
        keep: &BTreeSet<Slot>,
    ) -> Option<Self> {
        let work = work(lowered, sequence, keep).ok().filter(|work| work.len() == self.devices.len())?;
        let device = |((steps, tasks), old): (DeviceWork, &PlannedDevice)| match (tasks, &old.plan) {
            (None, None) => Some(PlannedDevice { steps, plan: None }),
            (Some(tasks), Some((same, plan))) if *tasks == **same => {
                Some(PlannedDevice { steps, plan: Some((tasks, plan.clone())) })
            }
            _ => None,
        };
        let devices = work.into_iter().zip(&self.devices).map(device).collect::<Option<_>>()?;
        Some(Self { devices })
    }
}

impl PlannedDevice {
    /// Returns the script for the worker.
    pub fn script(&self) -> Script {
        self.plan.as_ref().map_or_else(Script::default, |(tasks, plan)| Script::new(&self.steps, tasks, plan))
    }

    fn carried(&self) -> Carried {
        self.plan.as_ref().map_or_else(Carried::default, |(tasks, plan)| Carried {
            resident: tasks.slots_of(&plan.start.resident),
            dirty: tasks.slots_of(&plan.start.dirty),
        })
    }
}

/// Plans a sequence on every device: `lowered` and `budgets` by device, `epoch` the same for all.
///
/// `keep` are the tensors that must be on the host afterwards, in addition to what the devices exchange.
///
/// # Errors
/// [`Error::DoesNotFit`], with the capacity that would be enough.
/// # Cost
/// That of the policy: see [`lapidary_planner::memory`].
pub fn plan_sequence<L: Borrow<Lowered> + Sync>(
    lowered: &[L],
    budgets: &[DeviceBudget],
    sequence: Sequence<'_>,
    epoch: &Epoch,
    keep: &BTreeSet<Slot>,
    method: &Method,
) -> Result<Planned> {
    plan_work(lowered, budgets, &work(lowered, sequence, keep), epoch, method)
}

/// Plans like [`plan_sequence`], for work that [`work`] has prepared.
fn plan_work<L: Borrow<Lowered> + Sync>(
    lowered: &[L],
    budgets: &[DeviceBudget],
    work: &WorkByDevice,
    epoch: &Epoch,
    method: &Method,
) -> Result<Planned> {
    let devices = work.clone().map_err(|i| does_not_fit(&budgets[i], u64::MAX))?;
    plan_tasks(lowered, budgets, devices, |_| epoch.clone(), method)
}

/// Plans phases that run between two runs of `main`. Tensors that `main` leaves on the devices are there again
/// afterwards.
///
/// # Errors
/// [`Error::DoesNotFit`].
pub fn plan_between<L: Borrow<Lowered> + Sync>(
    lowered: &[L],
    budgets: &[DeviceBudget],
    phases: &[usize],
    main: &Planned,
    keep: &BTreeSet<Slot>,
    method: &Method,
) -> Result<Planned> {
    let carried: Vec<Carried> = main.devices.iter().map(PlannedDevice::carried).collect();
    let devices = tasks_of(lowered, Sequence::Phases(phases), &carried, keep);
    let devices = devices.map_err(|i| does_not_fit(&budgets[i], u64::MAX))?;
    let boundaries: Vec<Epoch> = devices
        .iter()
        .zip(&carried)
        .map(|((_, tasks), carried)| {
            let ids = |slots: &[Slot]| {
                let mut ids: Vec<_> = slots.iter().filter_map(|&slot| tasks.as_ref()?.tensor_of(slot)).collect();
                ids.sort_unstable();
                ids
            };
            Epoch::Boundary(Boundary { resident: ids(&carried.resident), dirty: ids(&carried.dirty) })
        })
        .collect();
    plan_tasks(lowered, budgets, devices, |i| boundaries[i].clone(), method)
}

/// Tensors that a device holds between two epochs.
#[derive(Clone, Debug, Default)]
struct Carried {
    resident: Vec<Slot>,
    dirty: Vec<Slot>,
}

/// The steps of one device, and their task graph; `None` if there are no steps.
type DeviceWork = (Arc<[LoweredStep]>, Option<Arc<Tasks>>);

/// The work of each device, independent of capacities. The error is the device whose tensor sizes overflow 64 bits.
type WorkByDevice = std::result::Result<Vec<DeviceWork>, usize>;

/// Returns the work of a sequence that starts with empty devices, or with what the sequence itself leaves there.
fn work<L: Borrow<Lowered> + Sync>(lowered: &[L], sequence: Sequence<'_>, keep: &BTreeSet<Slot>) -> WorkByDevice {
    tasks_of(lowered, sequence, &vec![Carried::default(); lowered.len()], keep)
}

fn tasks_of<L: Borrow<Lowered> + Sync>(
    lowered: &[L],
    sequence: Sequence<'_>,
    carried: &[Carried],
    keep: &BTreeSet<Slot>,
) -> WorkByDevice {
    let device = |(i, (lowered, carried)): (usize, (&L, &Carried))| {
        let lowered = lowered.borrow();
        let steps = match sequence {
            Sequence::Setup => lowered.setup.clone(),
            Sequence::Phases(phases) => lowered.sequence(phases),
        };
        let tasks = match Tasks::new(lowered, &steps, &published(lowered, sequence, keep), &carried.resident) {
            Ok(tasks) => Some(Arc::new(tasks)),
            Err(TaskError::NoOps) => None,
            Err(TaskError::TooManyBytes) => return Err(i),
            Err(error) => unreachable!("lowered steps are a task graph: {error}"),
        };
        Ok((steps.into(), tasks))
    };
    let devices: Vec<_> = lowered.par_iter().zip(carried).enumerate().map(device).collect();
    // Of several errors, that of the first device.
    devices.into_iter().collect()
}

fn plan_tasks<L: Borrow<Lowered> + Sync>(
    lowered: &[L],
    budgets: &[DeviceBudget],
    devices: Vec<DeviceWork>,
    epoch: impl Fn(usize) -> Epoch + Sync,
    method: &Method,
) -> Result<Planned> {
    // The device with the least memory relative to its tensors decides the order of all.
    let pressure = |i: usize| {
        let wanted = devices[i].1.as_ref().map_or(0, |tasks| tasks.graph.total_bytes());
        wanted as f64 / budgets[i].capacity_bytes.max(1) as f64
    };
    let is_twin = |i: usize, j: usize| {
        let tensors = |i: usize| devices[i].1.as_ref().map(|tasks| tasks.graph.tensors());
        budgets[i].capacity_bytes == budgets[j].capacity_bytes && epoch(i) == epoch(j) && tensors(i) == tensors(j)
    };
    let mut by_pressure: Vec<usize> = (0..devices.len()).filter(|&i| devices[i].1.is_some()).collect();
    by_pressure.sort_by(|&a, &b| pressure(b).total_cmp(&pressure(a)));
    // Equal devices get equal plans.
    let twin_of = |i: usize| by_pressure.iter().copied().find(|&j| j == i || is_twin(i, j)).unwrap_or(i);
    let twins: BTreeMap<usize, usize> = by_pressure.iter().map(|&i| (i, twin_of(i))).collect();
    let distinct: Vec<usize> = by_pressure.into_iter().filter(|i| twins[i] == *i).collect();
    let make = |i: usize, order: Option<Vec<TaskId>>| {
        let tasks = devices[i].1.as_ref().expect("only devices with steps are planned");
        (i, plan_device(tasks, &budgets[i], epoch(i), order, method))
    };
    let first = distinct.first().map(|&i| make(i, None));
    let order = first.as_ref().and_then(|(_, made)| made.as_ref().ok()).map(Plan::order);
    let others: Vec<_> = distinct.par_iter().skip(1).map(|&i| make(i, order.clone())).collect();
    let mut plans = BTreeMap::new();
    let mut lacking: Option<Error> = None;
    for (i, made) in first.into_iter().chain(others) {
        match made {
            Ok(plan) => drop(plans.insert(i, plan)),
            // Report the device that lacks most relative to its capacity: with equal capacities, its need is enough for
            // all.
            Err(error) => lacking = lacking.filter(|most| excess(most) >= excess(&error)).or(Some(error)),
        }
    }
    if let Some(error) = lacking {
        return Err(error);
    }
    let plan_of = |i: usize| twins.get(&i).and_then(|twin| plans.get(twin)).cloned();
    let plans: Vec<Option<Plan>> = (0..devices.len()).map(plan_of).collect();
    let devices = devices.into_iter().zip(plans);
    let devices = devices.map(|((steps, tasks), plan)| PlannedDevice { steps, plan: tasks.zip(plan) });
    let planned = Planned { devices: devices.collect() };
    if method.checks {
        check_together(lowered.first().map(Borrow::borrow), &planned);
    }
    Ok(planned)
}

/// Returns the tensors that a sequence leaves on the host.
fn published(lowered: &Lowered, sequence: Sequence<'_>, keep: &BTreeSet<Slot>) -> SlotSet {
    let exchanged = lowered.exchanges.iter().flat_map(|exchange| exchange.published());
    let mut published: SlotSet = keep.iter().chain(exchanged).copied().collect();
    if sequence == Sequence::Setup {
        let steps = lowered.phases.iter().flat_map(|phase| &phase.steps);
        published.extend(steps.flat_map(|step| step.call.reads()));
        published.extend(lowered.phases.iter().flat_map(|phase| phase.outputs.values().flatten().copied()));
    }
    published
}

fn plan_device(
    tasks: &Tasks,
    budget: &DeviceBudget,
    epoch: Epoch,
    order: Option<Vec<TaskId>>,
    method: &Method,
) -> Result<Plan> {
    // On an in-place device everything stays; its peak is compared with the capacity below.
    let capacity_bytes = if budget.in_place { tasks.graph.total_bytes() } else { budget.capacity_bytes };
    let Method { policy, objective, limit, checks } = *method;
    let policy = if budget.in_place { Policy::Optimal } else { policy };
    // On an in-place device, another order than the program's gains nothing.
    let order = if budget.in_place { Some(tasks.graph.order().to_vec()) } else { order };
    let request = Request { policy, objective, epoch: epoch.clone(), capacity_bytes, order, limit };
    let made = match plan(&tasks.graph, &request).expect("the request is made of the graph's own ids") {
        Outcome::Feasible(plan) if budget.in_place => plan,
        Outcome::Feasible(plan) => advance(&tasks.graph, &plan, capacity_bytes),
        Outcome::Infeasible { needed_bytes } => return Err(does_not_fit(budget, needed_bytes)),
    };
    if made.peak_bytes > budget.capacity_bytes {
        return Err(does_not_fit(budget, made.peak_bytes));
    }
    if checks {
        let checked = check(&tasks.graph, &made, objective, &epoch, capacity_bytes);
        checked.unwrap_or_else(|broken| panic!("the planner broke a rule of its own: {broken}"));
    }
    Ok(made)
}

/// Checks that devices that wait for each other's rows cannot deadlock.
fn check_together(lowered: Option<&Lowered>, planned: &Planned) {
    let Some(lowered) = lowered else { return };
    let Some(made) = planned.devices.iter().map(|d| d.plan.as_ref()).collect::<Option<Vec<_>>>() else { return };
    let exchanges = lowered.exchanges.iter().flat_map(|exchange| {
        let writers = made.iter().enumerate().flat_map(|(i, (tasks, _))| {
            exchange.published().iter().filter_map(move |&slot| Some((i, tasks.tensor_of(slot)?)))
        });
        let writers: Vec<_> = writers.collect();
        let received = made.iter().enumerate().flat_map(|(i, (tasks, _))| {
            exchange.received().iter().filter_map(move |&slot| Some((i, tasks.tensor_of(slot)?)))
        });
        received.map(move |reader| check::Exchange { reader, writers: writers.clone() })
    });
    let exchanges: Vec<_> = exchanges.filter(|exchange| !exchange.writers.is_empty()).collect();
    let fetches = lowered.exchanges.iter().filter_map(|exchange| {
        // A sum of devices waits for all terms.
        let (lent, fetched) = match exchange {
            Exchange::Fetch { packed, halo, .. } => (*packed, *halo),
            Exchange::Reduce { term, sum } => (*term, *sum),
            Exchange::Halo { .. } | Exchange::Sum { .. } => return None,
        };
        let all = |slot| {
            let of_device = |(i, (tasks, _)): (usize, &&(Arc<Tasks>, Plan))| Some((i, tasks.tensor_of(slot)?));
            made.iter().enumerate().map(of_device).collect::<Option<Vec<_>>>()
        };
        Some(check::Fetch { readers: all(fetched)?, lenders: all(lent)? })
    });
    let fetches: Vec<_> = fetches.collect();
    let devices: Vec<_> = made.iter().map(|(tasks, plan)| (&tasks.graph, plan)).collect();
    check_joint(&devices, &exchanges, &fetches)
        .unwrap_or_else(|broken| panic!("the plans do not go together: {broken}"));
}

fn does_not_fit(budget: &DeviceBudget, need_bytes: u64) -> Error {
    Error::DoesNotFit { device: budget.name.clone(), need_bytes, have_bytes: budget.capacity_bytes }
}

/// Returns whether a slot's contents outlive an epoch.
pub(crate) fn lasts(kind: Lifetime) -> bool {
    matches!(kind, Lifetime::Constant | Lifetime::State)
}
