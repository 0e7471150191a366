//! `lapidary plan`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Plan, Policy, Request};
use lapidary_planner::tasks::{TaskGraph, TensorId};
use lapidary_planner::{check, memory};
use serde_json::{Value, json};

use super::model::ModelArgs;
use super::output::{align, count, json_line, percent, print, say, table};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::forecast::{DryRun, Shape, Subject};
use crate::graph::MAX_VERTICES;
use crate::model::Model;
use crate::runtime::{Devices, Partition};
use crate::tasks_file;
use crate::train::{Adam, AdamW, Optimizer, Sgd};

/// More devices than anyone has.
const MOST_DEVICES: usize = 4096;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["tasks", "data", "shape"]))]
pub(super) struct PlanArgs {
    /// A task graph as JSON: {"tensors":[{"name","bytes","kind","publish"}],"ops":[{"name","inputs","outputs","next"}]}.
    /// `kind` is constant, fresh or local, `next` maps outputs to the constants whose next value they are; these and `publish`
    /// may be left out
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// A dataset directory, or builtin:planted or builtin:karate: plan training on it
    #[arg(long, value_name = "DATA")]
    data: Option<String>,
    /// The size of a graph, to plan training on: vertices, edges (without added self-loops), features, classes
    #[arg(long, value_name = "V,E,F,C")]
    shape: Option<String>,
    /// The edges of the shape go one way, so that backward runs over other blocks than forward
    #[arg(long, requires = "shape")]
    directed: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// The optimizer: adam, adamw or sgd
    #[arg(long, default_value = "adam")]
    optimizer: String,
    /// Plan an epoch with an evaluation (1) or without (0)
    #[arg(long, value_name = "N", default_value_t = 1)]
    eval_every: u64,
    /// On how many devices
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    devices: NonZeroUsize,
    /// How rows go from device to device: host (through its memory; the default) or peer (straight from one to the other, where parts are
    /// not cut into tiles)
    #[arg(long, value_name = "WAY", default_value = "auto")]
    exchange: String,
    /// How vertices are split over devices: learned, edges, vertices, or a file of ranges
    #[arg(long, value_name = "SPLIT", default_value = "learned")]
    partition: String,
    /// Which passes rewrite the program: all, none, or names separated by commas [order, prune, reuse, fuse]
    #[arg(long, value_name = "PASSES", default_value = "all")]
    passes: String,
    /// What the devices can do: cpu or cuda:0 (this machine's, measured once), h200, a100, p100 or a JSON file
    #[arg(long, value_name = "PROFILE", default_value = "cpu")]
    profile: String,
    /// How it is decided what stays on the device
    #[arg(long, value_name = "POLICY", default_value = "optimal")]
    memory: MemoryArg,
    /// What counts: bytes in both directions, or loads alone (then every output has a host copy for nothing)
    #[arg(long, default_value = "both")]
    objective: ObjectiveArg,
    /// One epoch from an empty device, or the one that repeats [cold with --tasks, else steady]
    #[arg(long)]
    epoch: Option<EpochArg>,
    /// Each device's memory: bytes, or a number with kB, MB, GB, KiB, MiB, GiB [with --tasks enough for everything at once,
    /// else the profile's]
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

pub(super) fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::None => "none",
        Policy::Lru => "lru",
        Policy::Roc => "roc",
        Policy::Optimal => "optimal",
    }
}

impl ObjectiveArg {
    fn objective(self) -> Objective {
        match self {
            Self::Both => Objective::Both,
            Self::Loads => Objective::Loads,
        }
    }
}

/// Plans and reports.
pub(super) fn run(args: &PlanArgs) -> Result<()> {
    match (&args.tasks, &args.data, &args.shape) {
        (Some(path), _, _) => plan_tasks(args, &tasks_file::read(path)?),
        (_, Some(data), _) => {
            let data = Dataset::load(data)?;
            let model = args.model.model(data.feature_width(), data.class_count())?;
            plan_training(args, &model, Subject::Data(&data))
        }
        (_, _, Some(shape)) => {
            let shape = parse_shape(shape, args.directed)?;
            let model = args.model.model(shape.features, shape.classes)?;
            plan_training(args, &model, Subject::Shape(shape))
        }
        _ => unreachable!("clap asks for one of the three"),
    }
}

fn parse_shape(text: &str, directed: bool) -> Result<Shape> {
    let wrong = |expected: String| Error::Value { option: "--shape", value: text.into(), expected };
    let form = "write vertices,edges,features,classes: four whole numbers, as in 232965,114615892,602,41";
    let numbers: Vec<u64> =
        text.split(',').map(|n| n.trim().parse().map_err(|_| wrong(form.into()))).collect::<Result<_>>()?;
    let [vertices, edges, features, classes] = numbers[..] else { return Err(wrong(form.into())) };
    for (what, number, most) in [
        ("vertices", vertices, MAX_VERTICES as u64),
        ("features", features, u64::from(u32::MAX)),
        ("classes", classes, u64::from(u32::MAX)),
    ] {
        if number == 0 || number > most {
            return Err(wrong(format!("{what} are from 1 to {most}")));
        }
    }
    if edges > i64::MAX as u64 {
        return Err(wrong("edges are at most 2^63 - 1".into()));
    }
    Ok(Shape { vertices, edges, features: features as usize, classes: classes as usize, directed })
}

fn plan_training(args: &PlanArgs, model: &Model, subject: Subject<'_>) -> Result<()> {
    let optimizer: Optimizer = match args.optimizer.as_str() {
        "adam" => Adam::new(0.01).into(),
        "adamw" => AdamW::new(0.01).into(),
        "sgd" => Sgd::new(0.01).into(),
        other => {
            let expected = "there are adam, adamw and sgd".into();
            return Err(Error::Value { option: "--optimizer", value: other.into(), expected });
        }
    };
    if args.devices.get() > MOST_DEVICES {
        let expected = format!("at most {MOST_DEVICES} are planned");
        return Err(Error::Value { option: "--devices", value: args.devices.to_string(), expected });
    }
    let mut dry_run = DryRun::new(model, subject)
        .optimizer(optimizer)
        .devices(Devices::sim(args.devices.get()).exchange(args.exchange.parse()?))
        .policies(&args.memory.policies())
        .objective(args.objective.objective())
        .steady(!matches!(args.epoch, Some(EpochArg::Cold)))
        .evaluates(args.eval_every > 0)
        .passes(args.passes.parse()?)
        .dtype(args.model.dtype.float())
        .partition(Partition::parse(&args.partition)?)
        .profile(&args.profile)
        .curve(true);
    if let Some(memory) = super::device::memory_size(args.device_memory.as_deref())? {
        dry_run = dry_run.device_memory(memory);
    }
    let forecast = dry_run.run()?;
    super::forecast::show(&forecast, args.objective.objective(), args.explain, args.json)
}

fn plan_tasks(args: &PlanArgs, graph: &TaskGraph) -> Result<()> {
    let objective = args.objective.objective();
    let epoch = match args.epoch {
        Some(EpochArg::Steady) => Epoch::Steady,
        Some(EpochArg::Cold) | None => Epoch::Cold,
    };
    let capacity_bytes = match super::device::memory_size(args.device_memory.as_deref())? {
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
        print(&policies_table(&outcomes, objective))?;
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
fn policies_table(outcomes: &[(Policy, Outcome)], objective: Objective) -> String {
    let mut table = table(["policy", "to device", "to host", "peak", "lower bound", "gap", "exact"]);
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
    align(table)
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
