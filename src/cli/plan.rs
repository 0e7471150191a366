//! `lapidary plan`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Plan, Policy, Request};
use lapidary_planner::tasks::{TaskGraph, TensorId};
use lapidary_planner::{check, memory};
use serde_json::{Value, json};

use super::not_built;
use super::output::{count, json_line, percent, print, say};
use crate::error::{Error, Result};
use crate::tasks_file;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["tasks", "data", "shape"]))]
pub(super) struct PlanArgs {
    /// A task graph as JSON: {"tensors":[{"name","bytes","kind","publish"}],"ops":[{"name","inputs","outputs","next"}]}.
    /// `kind` is constant, fresh or local, `next` maps outputs to the constants whose next value they are; these and `publish`
    /// may be left out
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// A dataset directory [not built yet]
    #[arg(long, value_name = "DATA")]
    data: Option<String>,
    /// The size of a graph: vertices, edges, features, classes [not built yet]
    #[arg(long, value_name = "V,E,F,C")]
    shape: Option<String>,
    /// Which model trains [not built yet]
    #[arg(long, conflicts_with = "tasks")]
    model: Option<String>,
    /// On how many devices [not built yet]
    #[arg(long, value_name = "N", conflicts_with = "tasks")]
    devices: Option<String>,
    /// Which passes rewrite the program [not built yet]
    #[arg(long, value_name = "PASSES", conflicts_with = "tasks")]
    passes: Option<String>,
    /// What the devices can do: cpu, h200, a100 or a file [not built yet]
    #[arg(long, value_name = "PROFILE", conflicts_with = "tasks")]
    profile: Option<String>,
    /// How it is decided what stays on the device
    #[arg(long, value_name = "POLICY", default_value = "optimal")]
    memory: MemoryArg,
    /// What counts: bytes in both directions, or loads alone (then every output has a host copy for nothing)
    #[arg(long, default_value = "both")]
    objective: ObjectiveArg,
    /// One epoch from an empty device, or the one that repeats [cold with --tasks]
    #[arg(long)]
    epoch: Option<EpochArg>,
    /// The device's memory: bytes, or a number with kB, MB, GB, KiB, MiB, GiB [enough for everything at once]
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<String>,
    /// Print the steps of each plan; with --json on standard error
    #[arg(long)]
    explain: bool,
    /// Print one JSON line a policy on standard output. With --tasks, `epoch_seconds` and `host_bytes` are null: ops are opaque;
    /// with --epoch steady, `start` is what is resident (and of it dirty: without a host copy) when the epoch begins
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MemoryArg {
    Optimal,
    Roc,
    Lru,
    None,
    All,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ObjectiveArg {
    Both,
    Loads,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EpochArg {
    Cold,
    Steady,
}

impl MemoryArg {
    fn policies(self) -> Vec<Policy> {
        match self {
            Self::Optimal => vec![Policy::Optimal],
            Self::Roc => vec![Policy::Roc],
            Self::Lru => vec![Policy::Lru],
            Self::None => vec![Policy::None],
            Self::All => vec![Policy::None, Policy::Lru, Policy::Roc, Policy::Optimal],
        }
    }
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::None => "none",
        Policy::Lru => "lru",
        Policy::Roc => "roc",
        Policy::Optimal => "optimal",
    }
}

/// Plans and reports.
pub(super) fn run(args: &PlanArgs) -> Result<()> {
    match &args.tasks {
        Some(path) => plan_tasks(args, &tasks_file::read(path)?),
        None => Err(not_built("`plan` from --data or --shape", "this version plans a task graph: --tasks FILE")),
    }
}

fn plan_tasks(args: &PlanArgs, graph: &TaskGraph) -> Result<()> {
    let objective = match args.objective {
        ObjectiveArg::Both => Objective::Both,
        ObjectiveArg::Loads => Objective::Loads,
    };
    let epoch = match args.epoch {
        Some(EpochArg::Steady) => Epoch::Steady,
        Some(EpochArg::Cold) | None => Epoch::Cold,
    };
    let capacity_bytes = match super::memory_size(args.device_memory.as_ref())? {
        Some(size) => size.as_u64(),
        None => {
            let all = graph.total_bytes();
            say(format_args!("no --device-memory is given: planning for {} bytes, where everything fits", count(all)));
            all
        }
    };
    let mut outcomes = Vec::new();
    for policy in args.memory.policies() {
        let limit = Limit::default();
        let request = Request { policy, objective, epoch: epoch.clone(), capacity_bytes, order: None, limit };
        let outcome = memory::plan(graph, &request).expect("the request names no order and no boundary");
        if let Outcome::Feasible(plan) = &outcome {
            let checked = check::check(graph, plan, objective, &epoch, capacity_bytes);
            checked.map_err(|broken| Error::PlanBroken { policy: name(policy), reason: broken.to_string() })?;
        }
        if args.json {
            json_line(&line(graph, policy, &outcome, &epoch))?;
        }
        outcomes.push((policy, outcome));
    }
    if !args.json {
        print(&table(&outcomes, objective))?;
    }
    if args.explain {
        for (policy, outcome) in &outcomes {
            match outcome {
                Outcome::Feasible(plan) if args.json => say(steps(graph, *policy, plan)),
                Outcome::Feasible(plan) => print(&steps(graph, *policy, plan))?,
                Outcome::Infeasible { .. } => {}
            }
        }
    }
    Ok(())
}

fn line(graph: &TaskGraph, policy: Policy, outcome: &Outcome, epoch: &Epoch) -> Value {
    let plan = match outcome {
        Outcome::Infeasible { needed_bytes } => {
            return json!({"event": "plan", "policy": name(policy), "feasible": false, "needed_bytes": needed_bytes});
        }
        Outcome::Feasible(plan) => plan,
    };
    let names = |ids: &[TensorId]| ids.iter().map(|t| graph.tensor(*t).name.as_str()).collect::<Vec<_>>();
    let steps: Vec<Value> = plan
        .steps
        .iter()
        .map(|step| {
            json!({
                "op": graph.op(step.op).name,
                "store": names(&step.store),
                "evict": names(&step.evict),
                "load": names(&step.load),
            })
        })
        .collect();
    let mut line = json!({
        "event": "plan",
        "policy": name(policy),
        "feasible": true,
        "exact": plan.exact,
        "bytes_to_device": plan.bytes_to_device,
        "bytes_to_host": plan.bytes_to_host,
        "peak_bytes": plan.peak_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "epoch_seconds": null,
        "host_bytes": null,
    });
    if *epoch != Epoch::Cold {
        line["start"] = json!({"resident": names(&plan.start.resident), "dirty": names(&plan.start.dirty)});
    }
    line["steps"] = steps.into();
    line
}

/// One row a policy.
fn table(outcomes: &[(Policy, Outcome)], objective: Objective) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["policy", "to device", "to host", "peak", "lower bound", "gap", "exact"]);
    for (policy, outcome) in outcomes {
        match outcome {
            Outcome::Infeasible { needed_bytes } => {
                table.add_row([name(*policy).to_string(), format!("needs {} bytes", count(*needed_bytes))]);
            }
            Outcome::Feasible(plan) => {
                let cost = plan.cost_bytes(objective);
                let gap = (cost > 0).then(|| (cost - plan.lower_bound_bytes) as f64 / cost as f64);
                let numbers =
                    [plan.bytes_to_device, plan.bytes_to_host, plan.peak_bytes, plan.lower_bound_bytes].map(count);
                let exact = if plan.exact { "yes" } else { "no" }.to_string();
                let row = [name(*policy).to_string()].into_iter().chain(numbers).chain([percent(gap), exact]);
                table.add_row(row);
            }
        }
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// The steps of a plan, one line each.
fn steps(graph: &TaskGraph, policy: Policy, plan: &Plan) -> String {
    let names = |ids: &[TensorId]| ids.iter().map(|t| graph.tensor(*t).name.as_str()).collect::<Vec<_>>().join(" ");
    let mut text = format!("\n{}", name(policy));
    if !plan.start.resident.is_empty() {
        text += &format!(": starts with {}", names(&plan.start.resident));
        if !plan.start.dirty.is_empty() {
            text += &format!("; not on the host: {}", names(&plan.start.dirty));
        }
    }
    for step in &plan.steps {
        text += &format!("\n  {}", graph.op(step.op).name);
        for (what, ids) in [("store", &step.store), ("evict", &step.evict), ("load", &step.load)] {
            if !ids.is_empty() {
                text += &format!("  {what} {}", names(ids));
            }
        }
    }
    text
}
