//! `lapidary plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use bytesize::ByteSize;
use clap::{ArgGroup, Args, ValueEnum};
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Plan, Policy, Request};
use lapidary_planner::tasks::{TaskGraph, TensorId};
use lapidary_planner::{check, memory};
use serde_json::{Value, json};

use super::defaults::chosen_model;
use super::device::{LayoutArgs, NOTHING_CUT, RecomputeArg, strips};
use super::failure;
use super::model::ModelArgs;
use super::output::{align, count, json_line, one_line, percent, print, say, seconds, table};
use super::page::PageFile;
use super::partitioner::Weighings;
use super::reorder::{ReorderArgs, reordered};
use super::train::BatchArgs;
use crate::error::{Error, Result};
use crate::forecast::{DryRun, Network, Shape, Subject};
use crate::graph::MAX_VERTICES;
use crate::model::Model;
use crate::plan::Reorder;
use crate::profile::CPU;
use crate::program::Strips;
use crate::ranks::Ranks;
use crate::runtime::Devices;
use crate::tasks_file;
use crate::train::{Adam, AdamW, Optimizer, PLAIN_EPOCHS, Sgd};

/// Text below the flags: the format of `--tasks`.
const TASKS: &str = "\
A task file contains
  {\"tensors\": [{\"name\", \"bytes\", \"kind\", \"publish\"}, ..],
   \"ops\": [{\"name\", \"inputs\", \"outputs\", \"next\"}, ..]}
`kind` is constant, fresh or local; `next` maps an output to the constant whose next value it is.
`kind`, `publish` and `next` are optional. With --json, `epoch_seconds` and `host_bytes` are null.
With --epoch steady, `start` lists what is on the device when the epoch begins; `dirty` tensors have
no host copy.";

/// The flags of a training, which have no meaning for a task file. A group of flags would do, but its error lists all of them.
const OF_TRAINING: [&str; 47] = [
    "directed",
    "model",
    "layers",
    "hidden",
    "dropout",
    "input_dropout",
    "norm",
    "layer_norm",
    "activation",
    "heads",
    "attention_dropout",
    "negative_slope",
    "residual",
    "edge_attention",
    "edge_weights",
    "weighted_mean",
    "dtype",
    "make_features",
    "defaults",
    "optimizer",
    "eval_every",
    "recompute",
    "strips",
    "reorder",
    "devices",
    "ranks",
    "network",
    "profile",
    "partition",
    "exchange",
    "sum",
    "backward",
    "passes",
    "batch",
    "sampler",
    "fanout",
    "replace",
    "by_weight",
    "seeds",
    "look_ahead",
    "embedding",
    "feature_cache",
    "device_cache",
    "compare",
    "weights",
    "fit_on",
    "report",
];

/// The most devices that can be planned for.
const MOST_DEVICES: usize = 4096;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["data", "shape", "tasks"]), after_help = TASKS)]
pub(super) struct PlanArgs {
    /// Dataset to plan training on: a directory, builtin:planted or builtin:karate
    #[arg(long, value_name = "DATA")]
    data: Option<String>,
    /// Graph to plan training on: vertices, edges (without added self-loops), features, classes
    #[arg(long, value_name = "V,E,F,C")]
    shape: Option<String>,
    /// With --shape: the graph is directed
    #[arg(long, requires = "shape")]
    directed: bool,
    /// Task graph to plan, as JSON (see below)
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TRAINING)]
    tasks: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Optimizer: adam, adamw or sgd
    #[arg(long, value_name = "NAME", default_value = "adam", help_heading = "Training")]
    optimizer: String,
    /// Plan an epoch with an evaluation (1) or without (0)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    eval_every: u64,
    /// Tensors that the backward pass reads again: auto (whatever is predicted to take least time), never (keep or move
    /// them) or always (make again what row steps, products and gathers make, where no rows are exchanged for it); results
    /// have the same bits
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, help_heading = "Training")]
    #[arg(conflicts_with = "batch")]
    recompute: RecomputeArg,
    /// Strips of columns that wide matrices are cut into, so that gathers need less memory at a time: auto or a number;
    /// results have the same bits
    #[arg(long, value_name = "N", default_value = "auto", value_parser = strips, help_heading = "Training")]
    #[arg(conflicts_with = "batch")]
    strips: Strips,
    #[command(flatten)]
    reorder: ReorderArgs,
    #[command(flatten)]
    device: TargetArgs,
    #[command(flatten)]
    plan: MethodArgs,
    #[command(flatten)]
    batches: BatchArgs,
    /// Compare partitions instead: any of learned, edges, vertices, random, metis, metis-vol, hypergraph, hypergraph-both
    /// and files with the part of each vertex, separated by commas
    #[arg(long, value_name = "WAYS", conflicts_with_all = ["shape", "tasks", "explain", "batch", "partition"],
          help_heading = "Plan")]
    compare: Option<String>,
    /// With --compare: weight of a vertex for METIS and hypergraphs: edges, rows, learned or train, as in `data partition`
    #[arg(long, value_name = "WHAT", default_value_t, requires = "compare", help_heading = "Plan")]
    weights: Weighings,
    /// Plan for several kinds of devices instead, side by side: profiles and sizes (with the speed of --profile), such as
    /// rtx4090,h100,24GB
    #[arg(long, value_name = "KINDS", conflicts_with_all = ["tasks", "explain", "compare", "device_memory", "batch"],
          help_heading = "Plan")]
    fit_on: Option<String>,
    /// Write a page to look at to FILE (.html): copies and time over device memory, and all tables
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tasks", "compare", "fit_on", "batch"],
          help_heading = "Output")]
    report: Option<PathBuf>,
    /// Print the steps of each plan; with --json on standard error
    #[arg(long, help_heading = "Output", conflicts_with = "batch")]
    explain: bool,
    /// Print JSON lines instead of tables, one per policy
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The devices if no flag names any.
const ONE_DEVICE: &str = "1";

/// The flags that say for which devices to plan.
#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
struct TargetArgs {
    /// Devices: auto, cpu, cpu:N, cuda:0,1 or sim:N as in `train`, or a number of devices that have memory of
    /// their own
    #[arg(long, value_name = "DEVICES", default_value = ONE_DEVICE)]
    devices: String,
    /// Number of ranks (processes over MPI), each with these devices
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: usize,
    /// Network between ranks: a rate such as 100Gb or 1Gb (per second), or a JSON file with latency_s and bytes_per_s,
    /// as `profile --ranks` writes it
    #[arg(long, value_name = "NETWORK", default_value = "10Gb")]
    network: String,
    /// Speed and memory of a device: cpu or cuda:N (measured once), h200, h100, a100, l40s, rtx4090, p100
    /// or a JSON file [default: that of --devices, else cpu]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// Memory of each device, such as 8GiB or 500MB; a plain number is bytes [default: the profile's; with --tasks,
    /// enough]
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<String>,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// The flags that say how to plan.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan")]
struct MethodArgs {
    /// Memory policy: optimal, roc, lru, none, or all of them
    #[arg(long, value_name = "POLICY", default_value = "optimal", hide_possible_values = true)]
    memory: MemoryArg,
    /// Bytes to minimise: both (loads and stores) or loads (stores are free)
    #[arg(long, value_name = "BYTES", default_value = "both", hide_possible_values = true)]
    objective: ObjectiveArg,
    /// Epoch to plan: steady (the one that repeats) or cold (from an empty device) [default: cold with --tasks, else
    /// steady]
    #[arg(long, value_name = "EPOCH", hide_possible_values = true)]
    epoch: Option<EpochArg>,
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
            Self::All => Policy::ALL.to_vec(),
        }
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

impl PlanArgs {
    /// Returns the order of the vertices.
    fn reorder(&self) -> Result<Reorder> {
        let reorder = self.batches.reorder(&self.reorder, &self.device.layout.partition()?)?;
        match reorder == Reorder::default() {
            false if self.data.is_none() => {
                Err(self.reorder.wrong("option `data` is needed: only a dataset is ordered"))
            }
            false if self.compare.is_some() => Err(self.reorder.wrong("option `compare` orders the vertices by parts")),
            _ => Ok(reorder),
        }
    }

    fn optimizer(&self) -> Result<Optimizer> {
        Ok(match self.optimizer.as_str() {
            "adam" => Adam::new(0.01).into(),
            "adamw" => AdamW::new(0.01).into(),
            "sgd" => Sgd::new(0.01).into(),
            other => {
                let expected = "there are adam, adamw and sgd".into();
                return Err(Error::Value { option: "optimizer", value: other.into(), expected });
            }
        })
    }
}

/// Plans, and prints a report.
///
/// # Returns
/// The exit code. If nothing fits, this is 0 with `--tasks`, and [`failure::DOES_NOT_FIT`] otherwise.
pub(super) fn run(args: &PlanArgs) -> Result<ExitCode> {
    let reorder = args.reorder()?;
    match (&args.tasks, &args.data, &args.shape) {
        (Some(path), _, _) => plan_tasks(args, &tasks_file::read(path)?).map(|()| ExitCode::SUCCESS),
        (_, Some(name), _) => {
            // Checks the flags first, so that a wrong flag is an error before the data is read.
            args.model.check()?;
            args.optimizer()?;
            let target = Target::of(&args.device)?;
            args.batches.check()?;
            let data = args.model.load(name)?;
            let width = args.batches.input_width(&data);
            let (model, chosen) = chosen_model(&args.model, (name, width), &data)?;
            if let Some(line) = chosen.line().filter(|_| !args.json) {
                say(line);
            }
            let model = model.model(width, data.class_count())?;
            let profile = target.profile.unwrap_or_else(|| target.devices.profile());
            let gathers = args.batches.gathers(&model, &profile, PLAIN_EPOCHS);
            let data = reordered(reorder, data, &gathers, &Ranks::default(), args.json)?;
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
    let wrong = |expected: String| Error::Value { option: "shape", value: text.into(), expected };
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

fn plan_training(args: &PlanArgs, model: &Model, subject: Subject<'_>) -> Result<ExitCode> {
    let target = Target::of(&args.device)?;
    let report = args.report.as_deref().map(PageFile::create).transpose()?;
    let mut dry_run = DryRun::new(model, subject)
        .optimizer(args.optimizer()?)
        .devices(target.devices)
        .policies(&args.plan.memory.policies())
        .objective(args.plan.objective.objective())
        .steady(!matches!(args.plan.epoch, Some(EpochArg::Cold)))
        .evaluates(args.eval_every > 0)
        .passes(args.device.layout.passes()?)
        .recompute(args.recompute.recompute())
        .strips(args.strips)
        .backward(args.device.layout.backward()?)
        .dtype(args.model.dtype.float())
        .partition(args.device.layout.partition()?)
        .on_ranks(args.device.ranks, target.network)
        .residency(report.is_some())
        // With many parts, twelve more plans of each would take long.
        .curve(args.device.ranks == 1);
    if let Some(profile) = target.profile {
        dry_run = dry_run.profile(profile);
    }
    if let Some(memory) = target.memory {
        dry_run = dry_run.device_memory(memory);
    }
    if let Some(width) = args.batches.embedding {
        dry_run = dry_run.embedding(width);
    }
    if let Some(kinds) = &args.fit_on {
        return super::fit_on::run(kinds, &dry_run.curve(false), args.json).map(fits);
    }
    super::kernel_times::measure_if_needed(&dry_run.profile_name(), args.json)?;
    if let (Some(ways), Subject::Data(data)) = (&args.compare, subject) {
        let compared = super::compare::run(ways, &args.weights, &dry_run.curve(false), data, args.json);
        return compared.map(fits).map_err(|error| args.device.explained(error));
    }
    if let Subject::Data(data) = subject
        && let Some(batches) = args.batches.batches(data)?
    {
        let forecast = dry_run.run_batches(&batches).map_err(|error| args.device.explained(error))?;
        super::batch_forecast::show(&forecast, args.json)?;
        return Ok(fits(forecast.outcome.is_ok()));
    }
    if let Some(size) = args.batches.batch {
        let expected = "the sizes of batches depend on the edges, so name a dataset".into();
        return Err(Error::Value { option: "batch", value: size.to_string(), expected });
    }
    let forecast = dry_run.run().map_err(|error| args.device.explained(error))?;
    let objective = args.plan.objective.objective();
    super::forecast::show(&forecast, objective, args.explain, args.json)?;
    if let Some(report) = report {
        let (vertices, edges, name) = match subject {
            Subject::Data(data) => (data.graph().vertex_count() as u64, data.graph().edge_count() as u64, data.name()),
            Subject::Shape(shape) => (shape.vertices, shape.edges, "a graph"),
        };
        let graph = format!("{name} of {} vertices and {} edges", count(vertices), count(edges));
        let trained = format!("{} on {graph}", args.model.named(model));
        report.write(&super::plan_page::page(&trained, &forecast, objective))?;
    }
    if args.device.are_defaults()
        && !args.json
        && dry_run.profile_name() == CPU
        && let Subject::Data(_) = subject
        && let Some(last) = forecast.policies.last()
        && let Ok(cpu) = dry_run.devices(Devices::cpu()).policies(&[last.policy]).curve(false).residency(false).run()
        && let Some(Ok(plan)) = cpu.policies.last().map(|policy| &policy.outcome)
    {
        // Which `train` uses if there is no GPU.
        print(&format!("On the CPU itself (--devices cpu), an epoch takes about {}.", seconds(plan.epoch_seconds())))?;
    }
    let plans = || forecast.policies.iter().filter_map(|policy| policy.outcome.as_ref().ok());
    if matches!(args.strips, Strips::Exactly(2..)) && !args.json && plans().any(|plan| plan.strips == 1) {
        say(NOTHING_CUT);
    }
    Ok(fits(plans().next().is_some()))
}

/// Returns the exit code of a plan, which fits or not.
fn fits(fits: bool) -> ExitCode {
    if fits { ExitCode::SUCCESS } else { ExitCode::from(failure::DOES_NOT_FIT) }
}

/// The devices to plan for.
struct Target {
    devices: Devices,
    /// The profile. If `None`, the profile of the devices.
    profile: Option<String>,
    /// The memory of each device. If `None`, all memory of the profile.
    memory: Option<ByteSize>,
    /// The network between ranks.
    network: Network,
}

impl Target {
    fn of(args: &TargetArgs) -> Result<Self> {
        let memory = super::device::memory_size(args.device_memory.as_deref())?;
        let devices = match args.devices.parse::<usize>() {
            Ok(count) if (1..=MOST_DEVICES).contains(&count) => Devices::sim(count),
            Ok(_) => {
                let expected = format!("a number of devices is from 1 to {MOST_DEVICES}");
                return Err(Error::Value { option: "devices", value: args.devices.clone(), expected });
            }
            Err(_) => args.devices.parse()?,
        };
        let network = args.network.parse()?;
        let parts = args.ranks.saturating_mul(devices.count());
        if args.ranks == 0 || parts > MOST_DEVICES {
            let expected = format!("ranks times devices per rank is from 1 to {MOST_DEVICES}");
            return Err(Error::Value { option: "ranks", value: args.ranks.to_string(), expected });
        }
        let exchange = args.layout.exchange(&args.devices, devices.count())?;
        let devices = devices.exchange(exchange).sums(args.layout.sums()?);
        devices.planned_sums(args.ranks)?;
        Ok(Self { devices, profile: args.profile.clone(), memory, network })
    }
}

impl TargetArgs {
    /// Whether no flag says for which devices to plan.
    fn are_defaults(&self) -> bool {
        self.devices == ONE_DEVICE && self.ranks == 1 && self.profile.is_none() && self.device_memory.is_none()
    }

    /// Makes the error of a missing GPU name the flag that requested the GPU.
    fn explained(&self, error: Error) -> Error {
        match error {
            Error::NoGpus { value, source, .. } if self.profile.is_none() => {
                let instead = "name a profile with option `profile`".into();
                Error::NoGpus { option: "devices", value, instead, source }
            }
            error => error,
        }
    }
}

fn plan_tasks(args: &PlanArgs, graph: &TaskGraph) -> Result<()> {
    let objective = args.plan.objective.objective();
    let epoch = match args.plan.epoch {
        Some(EpochArg::Steady) => Epoch::Steady,
        Some(EpochArg::Cold) | None => Epoch::Cold,
    };
    let capacity_bytes = match super::device::memory_size(args.device.device_memory.as_deref())? {
        Some(size) => size.as_u64(),
        None => {
            let all = graph.total_bytes();
            say(format_args!("no --device-memory is given: planning for {} bytes, where everything fits", count(all)));
            all
        }
    };
    let mut outcomes = Vec::new();
    for policy in args.plan.memory.policies() {
        let limit = Limit::default();
        let request = Request { policy, objective, epoch: epoch.clone(), capacity_bytes, order: None, limit };
        let outcome = memory::plan(graph, &request).expect("the request names no order and no boundary");
        if let Outcome::Feasible(plan) = &outcome {
            let checked = check::check(graph, plan, objective, &epoch, capacity_bytes);
            checked.map_err(|broken| Error::PlanBroken { policy: policy.name(), reason: broken.to_string() })?;
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
            return json!({"event": "plan", "policy": policy.name(), "feasible": false, "needed_bytes": needed_bytes});
        }
        Outcome::Feasible(plan) => plan,
    };
    let names = |ids: &[TensorId]| ids.iter().map(|t| &*graph.tensor(*t).name).collect::<Vec<_>>();
    let steps: Vec<Value> = plan
        .steps
        .iter()
        .map(|step| {
            json!({
                "op": &*graph.op(step.op).name,
                "store": names(&step.store),
                "evict": names(&step.evict),
                "load": names(&step.load),
            })
        })
        .collect();
    let mut line = json!({
        "event": "plan",
        "policy": policy.name(),
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

/// Formats a table with one row per policy, and the memory needed by the policies that do not fit.
fn policies_table(outcomes: &[(Policy, Outcome)], objective: Objective) -> String {
    let mut table = table(["policy", "to device", "to host", "peak", "lower bound", "gap", "exact"]);
    let mut notes = String::new();
    for (policy, outcome) in outcomes {
        match outcome {
            Outcome::Infeasible { needed_bytes } => {
                table.add_row([policy.name().to_string()].into_iter().chain(["-"; 6].map(String::from)));
                notes += &format!("\n{} does not fit: it needs {} bytes", policy.name(), count(*needed_bytes));
            }
            Outcome::Feasible(plan) => {
                let cost = plan.cost_bytes(objective);
                let gap = (cost > 0).then(|| (cost - plan.lower_bound_bytes) as f64 / cost as f64);
                let numbers =
                    [plan.bytes_to_device, plan.bytes_to_host, plan.peak_bytes, plan.lower_bound_bytes].map(count);
                let exact = if plan.exact { "yes" } else { "no" }.to_string();
                let row = [policy.name().to_string()].into_iter().chain(numbers).chain([percent(gap), exact]);
                table.add_row(row);
                if plan.is_bound_to_order() {
                    notes +=
                        &format!("\n{} has so many ops that its bound is that of plans in this order", policy.name());
                }
            }
        }
    }
    align(table) + &notes
}

/// Formats the steps of a plan, one per line.
fn steps(graph: &TaskGraph, policy: Policy, plan: &Plan) -> String {
    let name = |t: &TensorId| one_line(&graph.tensor(*t).name);
    let names = |ids: &[TensorId]| ids.iter().map(name).collect::<Vec<_>>().join(" ");
    let mut text = format!("\n{}", policy.name());
    if !plan.start.resident.is_empty() {
        text += &format!(": starts with {}", names(&plan.start.resident));
        if !plan.start.dirty.is_empty() {
            text += &format!("; not on the host: {}", names(&plan.start.dirty));
        }
    }
    for step in &plan.steps {
        text += &format!("\n  {}", one_line(&graph.op(step.op).name));
        for (what, ids) in [("store", &step.store), ("evict", &step.evict), ("load", &step.load)] {
            if !ids.is_empty() {
                text += &format!("  {what} {}", names(ids));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Command;
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn flags_that_a_task_file_does_not_take_are_refused() {
        const TAKEN: [&str; 8] = ["tasks", "device_memory", "memory", "objective", "epoch", "explain", "json", "help"];
        let command = PlanArgs::augment_args(Command::new("plan"));
        for arg in command.get_arguments().filter(|arg| !TAKEN.contains(&arg.get_id().as_str())) {
            let flag = format!("--{}", arg.get_long().expect("plan has flags alone"));
            let mut words = vec!["plan", "--tasks", "tasks.json", &flag];
            let value = arg.get_default_values().first().and_then(|value| value.to_str()).unwrap_or("1");
            if arg.get_action().takes_values() && !arg.is_require_equals_set() {
                words.push(value);
            }
            let refused = command.clone().try_get_matches_from(&words).err().map(|error| error.kind());
            // A flag that requires another one is not refused for lacking it if that one is in conflict.
            assert_eq!(refused, Some(ErrorKind::ArgumentConflict), "{words:?}");
        }
    }
}
