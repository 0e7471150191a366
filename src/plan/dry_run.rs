//! The dry run: what a training run will need, move and take, said before anything runs.

use std::collections::BTreeSet;
use std::ops::Range;

use bytesize::ByteSize;
use lapidary_cost_model::Profile;
use lapidary_planner::memory::{Epoch, Limit, Objective, Policy};

use super::predict::{call_seconds, script_seconds};
use super::{Method, Planned, PlannedDevice, Room, Sequence, Shape, plan_sequence};
use crate::bind::{bind, feature_kind, label_kind};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::lower::{Inputs, Kind, Lowered, Sizes, Supply, lower};
use crate::model::{FeatureKind, LabelKind, Model};
use crate::profile;
use crate::program::{Passes, Program};
use crate::runtime::{Partition, split_parts};
use crate::train::{Adam, DecayLayers, EpochSpec, Optimizer, evaluation_program, training_program};

/// What is to be trained on.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A data set at hand.
    Data(&'a Dataset),
    /// A graph of which only the size is known.
    Shape(Shape),
}

/// A dry run of training: see [`DryRun::new`].
///
/// ```
/// use lapidary::plan::{DryRun, Shape, Subject};
/// use lapidary::{ByteSize, Model};
///
/// let shape = Shape { vertices: 232_965, edges: 114_615_892, features: 602, classes: 41, directed: false };
/// let model = Model::gcn(&[602, 256, 41]).dropout(0.5);
/// let forecast = DryRun::new(&model, Subject::Shape(shape)).profile("h200").device_memory(ByteSize::gib(4)).run()?;
/// let plan = forecast.policies[0].outcome.as_ref().expect("it fits into 4 GiB");
/// assert!(plan.devices[0].peak_bytes <= 4 << 30);
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DryRun<'a> {
    model: &'a Model,
    subject: Subject<'a>,
    optimizer: Optimizer,
    devices: usize,
    device_memory: Option<ByteSize>,
    policies: Vec<Policy>,
    objective: Objective,
    steady: bool,
    evaluates: bool,
    passes: Passes,
    partition: Partition,
    profile: String,
    curve: bool,
}

/// What a dry run found.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Of which device.
    pub profile: Profile,
    /// What was assumed of data that is not at hand.
    pub assumption: Option<&'static str>,
    /// One part a device.
    pub parts: Vec<PartForecast>,
    /// In the order in which they were asked for.
    pub policies: Vec<PolicyForecast>,
    /// From the least device memory that works to all that helps, with the last policy; empty if that was not asked for.
    pub curve: Vec<CurvePoint>,
    /// What each device may hold.
    pub device_memory: u64,
}

/// One device's part of the graph.
#[derive(Clone, Debug)]
pub struct PartForecast {
    /// Its vertices.
    pub vertices: Range<u64>,
    /// Its in-edges.
    pub edges: u64,
    /// Rows of other parts that it reads.
    pub halo: u64,
    /// Seconds of its kernels in an epoch.
    pub compute_seconds: f64,
}

/// One policy's plan.
#[derive(Clone, Debug)]
pub struct PolicyForecast {
    /// Which.
    pub policy: Policy,
    /// The plan, or, if no device memory of this size does, the bytes that would.
    pub outcome: std::result::Result<PlanForecast, u64>,
}

/// A plan of all devices.
#[derive(Clone, Debug)]
pub struct PlanForecast {
    /// By device.
    pub devices: Vec<DeviceForecast>,
    /// What the host holds: the data as the devices load it, and what is stored.
    pub host_bytes: u64,
}

/// One device's epoch.
#[derive(Clone, Debug)]
pub struct DeviceForecast {
    /// Whether nothing better exists.
    pub exact: bool,
    /// Copied to the device.
    pub bytes_to_device: u64,
    /// Copied to the host.
    pub bytes_to_host: u64,
    /// The most that it holds at once, setup included.
    pub peak_bytes: u64,
    /// No plan moves less.
    pub lower_bound_bytes: u64,
    /// Predicted.
    pub epoch_seconds: f64,
    /// What happens, by name.
    pub steps: Vec<StepForecast>,
}

/// One step, by name.
#[derive(Clone, Debug)]
pub struct StepForecast {
    /// The operation.
    pub op: String,
    /// Copied to the host before it.
    pub store: Vec<String>,
    /// Given up before it.
    pub evict: Vec<String>,
    /// Copied to the device before it.
    pub load: Vec<String>,
}

/// A point of the what-if curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// What each device may hold.
    pub device_memory: u64,
    /// Copied to all devices.
    pub bytes_to_device: u64,
    /// Copied to the host.
    pub bytes_to_host: u64,
    /// Of the slowest device.
    pub epoch_seconds: f64,
}

impl PlanForecast {
    /// To the devices and to the host, all devices together.
    pub fn bytes(&self) -> [u64; 2] {
        self.devices.iter().fold([0, 0], |sum, d| [sum[0] + d.bytes_to_device, sum[1] + d.bytes_to_host])
    }

    /// Of the slowest device.
    pub fn epoch_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.epoch_seconds).fold(0.0, f64::max)
    }
}

/// Points of the what-if curve.
const CURVE_POINTS: usize = 12;

/// States that each point of the curve may search.
const CURVE_STATES: usize = 2_000;

impl<'a> DryRun<'a> {
    /// Of `model` on a data set or a shape: one device, all policies' default (`optimal`), the epoch that repeats, with an
    /// evaluation, and this machine's profile.
    pub fn new(model: &'a Model, subject: Subject<'a>) -> Self {
        Self {
            model,
            subject,
            optimizer: Adam::new(0.01).into(),
            devices: 1,
            device_memory: None,
            policies: vec![Policy::Optimal],
            objective: Objective::Both,
            steady: true,
            evaluates: true,
            passes: Passes::ALL,
            partition: Partition::default(),
            profile: "cpu".into(),
            curve: false,
        }
    }

    /// The optimizer; it decides what is remembered of each parameter.
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Self {
        self.optimizer = optimizer.into();
        self
    }

    /// On how many devices.
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// What each may hold; all of the profile's memory by default.
    pub fn device_memory(mut self, memory: ByteSize) -> Self {
        self.device_memory = Some(memory);
        self
    }

    /// Which policies to plan with.
    pub fn policies(mut self, policies: &[Policy]) -> Self {
        self.policies = policies.to_vec();
        self
    }

    /// What counts.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = objective;
        self
    }

    /// Whether to plan the epoch that repeats, or one from an empty device.
    pub fn steady(mut self, steady: bool) -> Self {
        self.steady = steady;
        self
    }

    /// Whether the epoch has an evaluation.
    pub fn evaluates(mut self, evaluates: bool) -> Self {
        self.evaluates = evaluates;
        self
    }

    /// Which passes rewrite the program.
    pub fn passes(mut self, passes: Passes) -> Self {
        self.passes = passes;
        self
    }

    /// How vertices are split over devices.
    pub fn partition(mut self, partition: Partition) -> Self {
        self.partition = partition;
        self
    }

    /// What the devices can do: `cpu` (this machine, measured), `h200`, `a100`, `p100` or a JSON file.
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.profile = profile.into();
        self
    }

    /// Whether to plan with less and more memory as well.
    pub fn curve(mut self, curve: bool) -> Self {
        self.curve = curve;
        self
    }

    /// Plans.
    ///
    /// # Errors
    /// [`Error::DataLacks`], [`Error::Model`], [`Error::Value`] and [`Error::Profile`] for what makes no sense; that the
    /// device memory is too small is an outcome, no error.
    /// # Cost
    /// For a shape, that of the planner alone, whatever the graph's size; for data on several devices O(e) more.
    pub fn run(&self) -> Result<Forecast> {
        let profile = profile::load(&self.profile)?;
        let subject = self.lowered()?;
        let device_memory = self.device_memory.map_or(profile.capacity_bytes, |memory| memory.as_u64());
        let policies = self.policies.iter().map(|&policy| {
            let outcome = self.plan(&subject, &profile, policy, device_memory, Method::default().limit);
            Ok(PolicyForecast { policy, outcome: outcome? })
        });
        let policies: Vec<PolicyForecast> = policies.collect::<Result<_>>()?;
        let curve = if self.curve { self.plan_curve(&subject, &profile)? } else { Vec::new() };
        let parts = subject.parts(&profile, self.phases());
        let assumption = matches!(self.subject, Subject::Shape(_)).then_some(Shape::ASSUMPTION);
        Ok(Forecast { profile, assumption, parts, policies, curve, device_memory })
    }

    fn phases(&self) -> &'static [usize] {
        if self.evaluates { &[0, 1] } else { &[0] }
    }

    /// The programs, lowered for each part.
    fn lowered(&self) -> Result<Subjected> {
        let (features, labels, vertices, edges) = match self.subject {
            Subject::Data(data) => {
                let (vertices, edges) = (data.graph().vertex_count() as u64, data.graph().edge_count() as u64);
                (feature_kind(data)?, label_kind(data), vertices, edges)
            }
            Subject::Shape(shape) => {
                (FeatureKind::Dense { width: shape.features }, LabelKind::Class, shape.vertices, shape.edges)
            }
        };
        let spec = EpochSpec {
            model: self.model,
            features,
            labels,
            vertices,
            edges,
            optimizer: &self.optimizer,
            decay: DecayLayers::All,
            passes: self.passes,
        };
        let (training, _) = training_program(&spec)?;
        let evaluation = evaluation_program(&spec)?;
        let (sizes, ranges) = match self.subject {
            Subject::Shape(shape) => {
                let sizes = shape.sizes(self.devices);
                let end = |s: &Sizes| (s.first_vertex + s.vertices).min(shape.vertices);
                let ranges = sizes.iter().map(|s| s.first_vertex..end(s)).collect();
                (sizes, ranges)
            }
            Subject::Data(data) => self.cut(&bind(data, data.default_feature_norm())?, &training)?,
        };
        let programs = [("train", &training), ("evaluate", &evaluation)];
        let lowered = sizes.iter().map(|sizes| lower(&programs, sizes, 0)).collect();
        Ok(Subjected { lowered, sizes, ranges })
    }

    fn cut(&self, inputs: &Inputs, training: &Program) -> Result<(Vec<Sizes>, Vec<Range<u64>>)> {
        let parts = split_parts(&self.partition, inputs, training, self.devices, None)?;
        let ranges = parts.iter().map(|part| part.start as u64..part.end as u64).collect();
        Ok((Supply::of_parts(inputs, parts).sizes(), ranges))
    }

    /// A plan, or what would be enough.
    fn plan(
        &self,
        subject: &Subjected,
        profile: &Profile,
        policy: Policy,
        device_memory: u64,
        limit: Limit,
    ) -> Result<std::result::Result<PlanForecast, u64>> {
        let room = |i: usize| Room { name: format!("device {i}"), capacity_bytes: device_memory, in_place: false };
        let rooms: Vec<Room> = (0..self.devices).map(room).collect();
        let method = Method { policy, objective: self.objective, limit };
        let epoch = if self.steady { Epoch::Steady } else { Epoch::Cold };
        let lowered = &subject.lowered;
        let keep = BTreeSet::new();
        let setup = plan_sequence(lowered, &rooms, Sequence::Setup, &Epoch::Cold, &keep, &method);
        let main = plan_sequence(lowered, &rooms, Sequence::Phases(self.phases()), &epoch, &keep, &method);
        match (needed(setup)?, needed(main)?) {
            (Ok(setup), Ok(main)) => Ok(Ok(forecast(subject, profile, &setup, &main))),
            (a, b) => Ok(Err(a.err().unwrap_or(0).max(b.err().unwrap_or(0)))),
        }
    }

    /// From the least that works to all that helps, in equal ratios.
    fn plan_curve(&self, subject: &Subjected, profile: &Profile) -> Result<Vec<CurvePoint>> {
        let policy = self.policies.last().copied().unwrap_or(Policy::Optimal);
        let limit = Limit { states: CURVE_STATES, ..Limit::default() };
        let Err(least) = self.plan(subject, profile, policy, 0, limit)? else { return Ok(Vec::new()) };
        let plan = |memory: u64| self.plan(subject, profile, policy, memory, limit);
        let most = match plan(u64::MAX)? {
            Ok(plan) => plan.devices.iter().map(|device| device.peak_bytes).max().unwrap_or(least).max(least),
            Err(_) => return Ok(Vec::new()),
        };
        let mut curve: Vec<CurvePoint> = Vec::new();
        for i in 0..CURVE_POINTS {
            let ratio = (most as f64 / least.max(1) as f64).powf(i as f64 / (CURVE_POINTS - 1) as f64);
            let memory = if i + 1 == CURVE_POINTS { most } else { (least as f64 * ratio) as u64 };
            let Ok(plan) = plan(memory.max(least))? else { continue };
            let [bytes_to_device, bytes_to_host] = plan.bytes();
            let epoch_seconds = plan.epoch_seconds();
            let point = CurvePoint { device_memory: memory, bytes_to_device, bytes_to_host, epoch_seconds };
            // A plan for less memory is one for more memory, too.
            let better = curve.last().filter(|last| last.bytes() < point.bytes()).copied();
            curve.push(better.map_or(point, |better| CurvePoint { device_memory: memory, ..better }));
        }
        curve.dedup_by_key(|point| point.device_memory);
        Ok(curve)
    }
}

impl CurvePoint {
    /// Both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_to_device + self.bytes_to_host
    }
}

/// What is planned: by part.
struct Subjected {
    lowered: Vec<Lowered>,
    sizes: Vec<Sizes>,
    ranges: Vec<Range<u64>>,
}

impl Subjected {
    fn parts(&self, profile: &Profile, phases: &[usize]) -> Vec<PartForecast> {
        let parts = self.lowered.iter().zip(&self.sizes).zip(&self.ranges);
        let part = |((lowered, sizes), range): ((&Lowered, &Sizes), &Range<u64>)| PartForecast {
            vertices: range.clone(),
            edges: sizes.forward.edges,
            halo: sizes.forward.halo,
            compute_seconds: lowered
                .sequence(phases)
                .iter()
                .map(|step| call_seconds(profile, lowered, &step.call))
                .sum(),
        };
        parts.map(part).collect()
    }
}

/// That the memory is too small is what a dry run wants to know.
fn needed(planned: Result<Planned>) -> Result<std::result::Result<Planned, u64>> {
    match planned {
        Ok(planned) => Ok(Ok(planned)),
        Err(Error::DoesNotFit { need_bytes, .. }) => Ok(Err(need_bytes)),
        Err(other) => Err(other),
    }
}

fn forecast(subject: &Subjected, profile: &Profile, setup: &Planned, main: &Planned) -> PlanForecast {
    let devices = subject.lowered.iter().zip(setup.devices.iter().zip(&main.devices));
    let host_bytes = devices.clone().map(|(lowered, (_, main))| host_bytes(lowered, main)).sum();
    let device = |(lowered, (setup, main)): (&Lowered, (&PlannedDevice, &PlannedDevice))| {
        let script = main.script();
        let setup_peak = setup.plan.as_ref().map_or(0, |(_, plan)| plan.peak_bytes);
        let plan = main.plan.as_ref().map(|(_, plan)| plan);
        let names = |slots: &[lapidary_kernels::Slot]| slots.iter().map(|s| lowered.tensor(*s).name.clone()).collect();
        DeviceForecast {
            exact: plan.is_none_or(|plan| plan.exact),
            bytes_to_device: script.bytes_to_device,
            bytes_to_host: script.bytes_to_host,
            peak_bytes: script.peak_bytes.max(setup_peak),
            lower_bound_bytes: plan.map_or(0, |plan| plan.lower_bound_bytes),
            epoch_seconds: script_seconds(profile, lowered, &script),
            steps: script
                .actions
                .iter()
                .map(|action| StepForecast {
                    op: action.name.clone(),
                    store: names(&action.store),
                    evict: names(&action.evict),
                    load: names(&action.load),
                })
                .collect(),
        }
    };
    PlanForecast { devices: devices.map(device).collect(), host_bytes }
}

/// What the host holds for one device: what lasts, and every buffer that is stored to or received.
fn host_bytes(lowered: &Lowered, main: &PlannedDevice) -> u64 {
    let script = main.script();
    let copied = script.actions.iter().flat_map(|a| a.store.iter().chain(&a.publish)).chain(&script.finish[0]);
    let stored: BTreeSet<_> = copied.collect();
    let on_host = lowered.tensors.iter().enumerate().filter(|(i, tensor)| match tensor.kind {
        Kind::Constant | Kind::State | Kind::Received => true,
        Kind::Local => stored.contains(&lapidary_kernels::Slot(*i as u32)),
    });
    on_host.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.bytes))
}
