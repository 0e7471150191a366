//! The dry run: what a training run will need, move and take, said before anything runs.

use std::collections::BTreeSet;
use std::ops::Range;

use bytesize::ByteSize;
use lapidary_cost_model::Profile;
use lapidary_planner::memory::{Epoch, Limit, Objective, Policy};

use super::predict::{call_seconds, script_seconds};
use super::{Method, Planned, PlannedDevice, Room, Script, Sequence, Shape, both, fit, plan_sequence};
use crate::bind::{bind, feature_kind, label_kind};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::lower::{Inputs, Kind, Lowered, Sizes, Supply, Tiling, lower};
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
    /// Into how many tiles each part is cut, so that its largest operation fits.
    pub tiles: usize,
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
    /// Into how many tiles each part is cut.
    pub tiles: usize,
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

    /// The same for `copies` devices like each of these.
    fn times(self, copies: usize) -> Self {
        let devices = self.devices.into_iter().flat_map(|device| std::iter::repeat_n(device, copies)).collect();
        Self { tiles: self.tiles, devices, host_bytes: self.host_bytes.saturating_mul(copies as u64) }
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
        let inputs = match self.subject {
            Subject::Data(data) => Some(bind(data, data.default_feature_norm())?),
            Subject::Shape(_) => None,
        };
        let mut subject = self.subjected(inputs.as_ref())?;
        let device_memory = self.device_memory.map_or(profile.capacity_bytes, |memory| memory.as_u64());
        let mut policies = Vec::new();
        for &policy in &self.policies {
            let outcome = self.plan(&mut subject, &profile, policy, device_memory, Method::default().limit)?;
            policies.push(PolicyForecast { policy, outcome });
        }
        let curve = if self.curve { self.plan_curve(&mut subject, &profile)? } else { Vec::new() };
        let parts = subject.forecasts(&profile, self.phases());
        let assumption = matches!(self.subject, Subject::Shape(_)).then_some(Shape::ASSUMPTION);
        Ok(Forecast { profile, assumption, parts, policies, curve, device_memory })
    }

    fn phases(&self) -> &'static [usize] {
        if self.evaluates { &[0, 1] } else { &[0] }
    }

    /// The programs, and the parts that they will be lowered for.
    fn subjected<'i>(&self, inputs: Option<&'i Inputs>) -> Result<Subjected<'i>> {
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
        let (parts, ranges) = match (self.subject, inputs) {
            (Subject::Shape(shape), _) => {
                let sizes = shape.sizes(self.devices);
                let end = |s: &Sizes| (s.first_vertex + s.vertices).min(shape.vertices);
                let ranges = sizes.iter().map(|s| s.first_vertex..end(s)).collect();
                (Parts::Even(sizes[0], sizes.len()), ranges)
            }
            (Subject::Data(_), inputs) => {
                let inputs = inputs.expect("data is bound before it is cut");
                let parts = split_parts(&self.partition, inputs, &training, self.devices, None)?;
                let ranges = parts.iter().map(|part| part.start as u64..part.end as u64).collect();
                (Parts::Known(Supply::of_parts(inputs, parts)), ranges)
            }
        };
        Ok(Subjected { programs: [("train", training), ("evaluate", evaluation)], parts, ranges })
    }

    /// A plan, or what would be enough.
    fn plan(
        &self,
        subject: &mut Subjected<'_>,
        profile: &Profile,
        policy: Policy,
        device_memory: u64,
        limit: Limit,
    ) -> Result<std::result::Result<PlanForecast, u64>> {
        let room = |i: usize| Room { name: format!("device {i}"), capacity_bytes: device_memory, in_place: false };
        let copies = subject.copies();
        let rooms: Vec<Room> = (0..self.devices / copies).map(room).collect();
        let method = Method { policy, objective: self.objective, limit };
        let epoch = if self.steady { Epoch::Steady } else { Epoch::Cold };
        let keep = BTreeSet::new();
        let fitted = fit(
            &rooms,
            |tiles| subject.lower(tiles),
            |lowered| {
                let setup = plan_sequence(lowered, &rooms, Sequence::Setup, &Epoch::Cold, &keep, &method);
                let main = plan_sequence(lowered, &rooms, Sequence::Phases(self.phases()), &epoch, &keep, &method);
                both(setup, main)
            },
            method.weighs(&epoch),
        );
        match fitted {
            Ok((lowered, planned, tiles)) => Ok(Ok(forecast(&lowered, profile, &planned, tiles).times(copies))),
            Err(Error::DoesNotFit { need_bytes, .. }) => Ok(Err(need_bytes)),
            Err(other) => Err(other),
        }
    }

    /// From the least that works to all that helps, in equal ratios.
    fn plan_curve(&self, subject: &mut Subjected<'_>, profile: &Profile) -> Result<Vec<CurvePoint>> {
        let policy = self.policies.last().copied().unwrap_or(Policy::Optimal);
        let limit = Limit { states: CURVE_STATES, ..Limit::default() };
        let Err(least) = self.plan(subject, profile, policy, 0, limit)? else { return Ok(Vec::new()) };
        let mut plan = |memory: u64| self.plan(subject, profile, policy, memory, limit);
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
            let point =
                CurvePoint { device_memory: memory, tiles: plan.tiles, bytes_to_device, bytes_to_host, epoch_seconds };
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

/// What is planned.
struct Subjected<'i> {
    programs: [(&'static str, Program); 2],
    parts: Parts<'i>,
    ranges: Vec<Range<u64>>,
}

/// The parts that programs are lowered for.
enum Parts<'i> {
    /// Of a graph at hand.
    Known(Supply<'i>),
    /// Of one of which only the size is known: so many, all like this one.
    Even(Sizes, usize),
}

impl Subjected<'_> {
    /// By part that is unlike the others.
    fn lower(&mut self, tiles: usize) -> Vec<Lowered> {
        let tilings = match &mut self.parts {
            Parts::Known(supply) => supply.tile(tiles),
            Parts::Even(sizes, _) => Tiling::evenly(&[*sizes], tiles),
        };
        let programs = self.programs.each_ref().map(|(name, program)| (*name, program));
        tilings.iter().map(|tiling| lower(&programs, tiling, 0)).collect()
    }

    /// How many parts are like each that was lowered.
    fn copies(&self) -> usize {
        match self.parts {
            Parts::Known(_) => 1,
            Parts::Even(_, parts) => parts,
        }
    }

    fn forecasts(&mut self, profile: &Profile, phases: &[usize]) -> Vec<PartForecast> {
        let sizes = match &mut self.parts {
            Parts::Known(supply) => supply.sizes(),
            Parts::Even(sizes, _) => vec![*sizes],
        };
        let parts = self.lower(1);
        let seconds = parts.iter().map(|lowered| {
            let steps = lowered.sequence(phases);
            steps.iter().map(|step| call_seconds(profile, lowered, &step.call)).sum()
        });
        let parts: Vec<(Sizes, f64)> = sizes.into_iter().zip(seconds).collect();
        let parts = parts.iter().flat_map(|part| std::iter::repeat_n(part, self.copies())).zip(&self.ranges);
        let part = |((sizes, compute_seconds), range): (&(Sizes, f64), &Range<u64>)| PartForecast {
            vertices: range.clone(),
            edges: sizes.forward.edges,
            halo: sizes.forward.halo,
            compute_seconds: *compute_seconds,
        };
        parts.map(part).collect()
    }
}

fn forecast(lowered: &[Lowered], profile: &Profile, (setup, main): &(Planned, Planned), tiles: usize) -> PlanForecast {
    let devices = lowered.iter().zip(setup.devices.iter().zip(&main.devices));
    let mut host_bytes = 0u64;
    let device = |(lowered, (setup, main)): (&Lowered, (&PlannedDevice, &PlannedDevice))| {
        let script = main.script();
        host_bytes = host_bytes.saturating_add(bytes_on_host(lowered, &script));
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
    let devices = devices.map(device).collect();
    PlanForecast { tiles, devices, host_bytes }
}

/// What the host holds for one device: what lasts, and every buffer that is stored to or received.
fn bytes_on_host(lowered: &Lowered, script: &Script) -> u64 {
    let copied = script.actions.iter().flat_map(|a| a.store.iter().chain(&a.publish)).chain(&script.finish[0]);
    let stored: BTreeSet<_> = copied.collect();
    let on_host = lowered.tensors.iter().enumerate().filter(|(i, tensor)| match tensor.kind {
        Kind::Constant | Kind::State | Kind::Received => true,
        Kind::Local => stored.contains(&lapidary_kernels::Slot(*i as u32)),
    });
    on_host.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.bytes))
}
