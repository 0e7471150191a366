//! The dry run: predicts the memory, transfers and time of a training run without running it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lapidary_cost_model::Profile;
use lapidary_kernels::{Slot, StorageType};
use lapidary_planner::memory::{Epoch, Limit, Objective, Plan, Policy};

use super::predict::vertex_seconds;
use super::traffic::Job;
use super::{
    CurvePoint, DeviceForecast, Forecast, Network, PartForecast, PlanForecast, PolicyForecast, Shape, StepForecast,
    Traffic,
};
use crate::bind::{bind, bind_with, feature_kind, label_kind, model_for};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::lower::{
    Crossing, Exchange, ExchangePath, FeatureData, Inputs, Layout, Lifetime, Lowered, Sizes, Supply, Tiling, lower,
    lower_in_order,
};
use crate::model::{FeatureKind, LabelKind, Model};
use crate::plan::{
    Action, Choice, DeviceBudget, Fitted, Known, Method, Planned, PlannedDevice, Script, Sequence, Variant,
    WorkByDevice, both, call_seconds, epoch_bytes, grid_down, plan_work, planned_seconds, script_seconds, work, works,
};
use crate::profile;
use crate::program::{LevelSizes, Program};
use crate::runtime::{Devices, RunOptions, Runs, prior, run_option_setters, split_parts};
use crate::train::{
    Adam, Batches, DecayLayers, EpochSpec, Instead, Optimizer, TrainingProgram, check_embedding, training_program,
};

/// The data of a dry run.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A dataset.
    Data(&'a Dataset),
    /// A graph of which only the size is known.
    Shape(Shape),
}

/// A dry run of training: see [`DryRun::new`].
///
/// ```
/// use lapidary::forecast::{DryRun, Shape, Subject};
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
    options: RunOptions,
    policies: Option<Vec<Policy>>,
    objective: Objective,
    steady: bool,
    evaluates: bool,
    dtype: StorageType,
    profile: Option<String>,
    curve: bool,
    /// Number of ranks, each with the devices of the options.
    rank_count: usize,
    network: Network,
    /// The width of learned rows, if the model reads these.
    embedding: Option<usize>,
}

/// Most points of the what-if curve.
const CURVE_POINTS: usize = 12;

impl<'a> DryRun<'a> {
    /// Creates a dry run of `model` on a dataset or a shape. The defaults are one device with its own memory, the
    /// optimal policy, the epoch that repeats, with an evaluation, and this machine's profile.
    pub fn new(model: &'a Model, subject: Subject<'a>) -> Self {
        Self {
            model,
            subject,
            optimizer: Adam::new(0.01).into(),
            options: RunOptions::new().devices(Devices::sim(1)),
            policies: None,
            objective: Objective::Both,
            steady: true,
            evaluates: true,
            dtype: StorageType::F32,
            profile: None,
            curve: false,
            rank_count: 1,
            network: Network::default(),
            embedding: None,
        }
    }

    /// Sets the optimizer, which decides the number of moments per parameter; Adam by default.
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Self {
        self.optimizer = optimizer.into();
        self
    }

    /// Sets all run options at once: devices, memory, partition and passes. If no device memory is set, it is that of
    /// the profile.
    pub fn options(mut self, options: RunOptions) -> Self {
        self.options = options;
        self
    }

    run_option_setters!(self => self.options);

    /// Sets several policies to plan with, instead of the one in the options.
    pub fn policies(mut self, policies: &[Policy]) -> Self {
        self.policies = Some(policies.to_vec());
        self
    }

    /// Sets the objective of plans: which copied bytes count. [`Objective::Both`] by default.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.objective = objective;
        self
    }

    /// Sets whether to plan the epoch that repeats (the default) or an epoch that starts from an empty device.
    pub fn steady(mut self, steady: bool) -> Self {
        self.steady = steady;
        self
    }

    /// Sets whether the epoch includes an evaluation; it does by default.
    pub fn evaluates(mut self, evaluates: bool) -> Self {
        self.evaluates = evaluates;
        self
    }

    /// Sets the storage type of matrices with one row per vertex; f32 by default.
    pub fn dtype(mut self, dtype: StorageType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the device profile: `cpu` (this machine, measured), `h200`, `a100`, `p100` or a JSON file. By default it is
    /// the profile of the devices.
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Sets whether to also plan with less and more memory, for the what-if curve; off by default.
    pub fn curve(mut self, curve: bool) -> Self {
        self.curve = curve;
        self
    }

    /// Sets the number of ranks, each with the devices of the options, and the network between them; one rank by
    /// default. The parts are those of all devices of all ranks.
    pub fn on_ranks(mut self, count: usize, network: Network) -> Self {
        (self.rank_count, self.network) = (count, network);
        self
    }

    /// Makes the model read a learned row of `width` numbers for each vertex instead of features: see
    /// [`TrainerBuilder::embedding`](crate::TrainerBuilder::embedding). It is for [`DryRun::run_batches`].
    pub fn embedding(mut self, width: usize) -> Self {
        self.embedding = Some(width);
        self
    }

    /// Sets the data, instead of those of [`DryRun::new`].
    pub fn subject<'b>(self, subject: Subject<'b>) -> DryRun<'b>
    where
        'a: 'b,
    {
        DryRun { subject, ..self }
    }

    /// Returns the number of parts: one per device of every rank.
    pub fn part_count(&self) -> usize {
        self.rank_count * self.options.devices.count()
    }

    /// Plans the run and returns the forecast.
    ///
    /// # Errors
    /// [`Error::DataLacks`], [`Error::Model`], [`Error::Value`] and [`Error::Profile`] for invalid input. Too little
    /// device memory is not an error; it is reported as an outcome.
    /// # Cost
    /// For a shape, only that of the planner, independent of the size of the graph. For data on several devices, O(e)
    /// more.
    pub fn run(&self) -> Result<Forecast> {
        if self.part_count() == 0 {
            self.options.devices.check()?;
            let expected = "there is at least one rank".into();
            return Err(Error::Value { option: "ranks", value: "0".into(), expected });
        }
        self.check_embedding(None)?;
        let profile = profile::load(&self.profile_name())?;
        let (model, inputs) = self.bound(false)?;
        let subject = self.forecast_input(&model, inputs.as_ref())?;
        let device_memory = self.device_bytes(&profile);
        let mut policies = Vec::new();
        // That of the last policy that fits; if none does, the first one that was tried.
        let mut chosen = (0, subject.layouts[0]);
        // What is known of the last policy is kept for the curve.
        let mut known = Known::default();
        let variants = subject.variants();
        for &policy in self.tried() {
            known = Known::default();
            let outcome = self.plan(&subject, policy, device_memory, (Method::default().limit, &variants, &known))?;
            let outcome = outcome.map(|planned| {
                chosen = (planned.variant, planned.layout);
                planned.forecast(&profile).times(subject.copies)
            });
            policies.push(PolicyForecast { policy, outcome });
        }
        let curve = match self.curve {
            true => {
                // It would take long to choose a variant for each point.
                let chosen = variants.iter().filter(|variant| [0, chosen.0].contains(&variant.number));
                self.plan_curve(&subject, &profile, &chosen.copied().collect::<Vec<_>>(), &known)?
            }
            false => Vec::new(),
        };
        let parts = subject.forecasts(&profile);
        let assumption = matches!(self.subject, Subject::Shape(_)).then_some(Shape::ASSUMPTION);
        let traffic = (self.rank_count > 1).then(|| {
            let (devices, vertices) = (self.options.devices.count(), subject.ranges.last().map_or(0, |part| part.end));
            let job = Job { ranks: self.rank_count, devices, network: self.network, vertices };
            subject.traffic(chosen, job)
        });
        Ok(Forecast { profile, assumption, parts, policies, curve, device_memory, traffic })
    }

    /// Returns the range of each part, as [`DryRun::run`] plans it.
    ///
    /// # Errors
    /// Those of [`DryRun::run`].
    /// # Cost
    /// O(e) for data.
    pub fn parts(&self) -> Result<Vec<Range<usize>>> {
        let (model, inputs) = self.bound(false)?;
        let ranges = self.forecast_input(&model, inputs.as_ref())?.ranges;
        Ok(ranges.iter().map(|part| part.start as usize..part.end as usize).collect())
    }

    /// Returns the predicted seconds of each vertex in the kernels of an epoch, by the device profile. Constants per call
    /// are left out, and so is what parts do for each other.
    ///
    /// # Shapes
    /// `[n]`
    /// # Errors
    /// Those of [`DryRun::run`]; [`Error::Value`] for a shape, since the time of a vertex depends on its edges.
    /// # Cost
    /// O(e).
    pub fn vertex_seconds(&self) -> Result<Vec<f64>> {
        let (model, inputs) = self.bound(false)?;
        let Some(inputs) = inputs else {
            let expected = "the time of a vertex depends on its edges, so name a dataset".into();
            return Err(Error::Value { option: "shape", value: "a size alone".into(), expected });
        };
        let TrainingProgram { program: training, .. } = self.programs(&model, Some(&inputs), None)?;
        let lowered = lower(&[("train", &training)], &Sizes::of(&inputs).into(), 0);
        Ok(vertex_seconds(&inputs.graph, &works(&lowered.sequence(&[0])), &prior(&self.profile_name())?))
    }

    /// Returns the model as it is applied to the data, and the arrays of the data. For a shape, there are none.
    pub(super) fn bound(&self, in_batches: bool) -> Result<(Model, Option<Inputs>)> {
        let Subject::Data(data) = self.subject else { return Ok((self.model.clone(), None)) };
        let features = match self.embedding {
            Some(width) => FeatureKind::Learned { width },
            None => feature_kind(data, in_batches)?,
        };
        let model = model_for(self.model, data, features)?;
        let inputs = match self.embedding {
            Some(_) => bind_with(data, FeatureData::none(), model.config().weighted()),
            None => bind(data, data.default_feature_norm(), model.config().weighted(), in_batches)?,
        };
        Ok((model, Some(inputs)))
    }

    /// Checks that learned rows, if there are any, go with the other options.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub(super) fn check_embedding(&self, batches: Option<&Batches>) -> Result<()> {
        self.embedding.map_or(Ok(()), |width| check_embedding(width, self.model, batches, (self.dtype, None)))
    }

    /// Returns the width of learned rows and the optimizer, if the model reads learned rows.
    pub(super) fn learned(&self) -> Option<(usize, &Optimizer)> {
        self.embedding.map(|width| (width, &self.optimizer))
    }

    /// Returns the dataset, if it is not a shape.
    pub(super) fn data(&self) -> Option<&'a Dataset> {
        match self.subject {
            Subject::Data(data) => Some(data),
            Subject::Shape(_) => None,
        }
    }

    /// Returns the storage type of rows of vertices.
    pub(super) fn storage(&self) -> StorageType {
        self.dtype
    }

    /// Returns the number of ranks.
    pub(super) fn rank_count(&self) -> usize {
        self.rank_count
    }

    /// Returns the memory of each device, in bytes.
    pub(super) fn device_bytes(&self, profile: &Profile) -> u64 {
        let sharing = self.options.devices.sharing();
        self.options.device_memory.map_or(profile.capacity_bytes / sharing, |memory| memory.as_u64())
    }

    /// Returns the policies to plan with.
    fn tried(&self) -> &[Policy] {
        self.policies.as_deref().unwrap_or(std::slice::from_ref(&self.options.memory))
    }

    pub(super) fn profile_name(&self) -> String {
        self.profile.clone().unwrap_or_else(|| self.options.devices.profile())
    }

    fn phases(&self) -> &'static [usize] {
        if self.evaluates { &[0, 1] } else { &[0] }
    }

    /// Writes the programs of training and of an evaluation.
    pub(super) fn programs(
        &self,
        model: &Model,
        inputs: Option<&Inputs>,
        batches: Option<(usize, LevelSizes)>,
    ) -> Result<TrainingProgram> {
        let (labels, vertices, edges) = match self.subject {
            Subject::Data(data) => {
                (label_kind(data), data.graph().vertex_count() as u64, data.graph().edge_count() as u64)
            }
            Subject::Shape(shape) => (LabelKind::Class, shape.vertices, shape.edges),
        };
        let features = match (self.embedding, self.subject, inputs.map(|inputs| &inputs.features)) {
            (Some(width), ..) => FeatureKind::Learned { width },
            (None, Subject::Shape(shape), _) => FeatureKind::Dense { width: shape.features },
            (None, _, Some(FeatureData::Dense { width, .. })) => FeatureKind::Dense { width: *width },
            (None, _, Some(FeatureData::Sparse { width, .. })) => FeatureKind::Sparse { width: *width },
            (None, Subject::Data(data), None) => feature_kind(data, batches.is_some())?,
        };
        let spec = EpochSpec {
            model,
            features,
            labels,
            vertices,
            edges,
            optimizer: &self.optimizer,
            decay: DecayLayers::All,
            passes: self.options.passes,
            recompute: self.options.recompute,
            strips: self.options.strips,
            parts: self.part_count(),
            dtype: self.dtype,
            keeps_gradients: false,
            batches,
        };
        Ok(training_program(&spec)?)
    }

    /// Returns the range of each part of a run on mini-batches.
    pub(super) fn batch_parts(&self, model: &Model, inputs: &Inputs) -> Result<Vec<Range<usize>>> {
        let TrainingProgram { evaluation, .. } = self.programs(model, Some(inputs), None)?;
        let profile = self.profile_name();
        split_parts(&self.options.partition, inputs, &evaluation, self.part_count(), (&profile, None), Runs::Many)
    }

    /// Writes the programs, and determines the parts that they will be lowered for.
    fn forecast_input<'i>(&self, model: &Model, inputs: Option<&'i Inputs>) -> Result<ForecastInput<'i>> {
        let TrainingProgram { program: training, evaluation, instead, .. } = self.programs(model, inputs, None)?;
        let (partition, devices) = (&self.options.partition, self.part_count());
        let (parts, ranges) = match (self.subject, inputs) {
            (Subject::Shape(shape), _) => {
                let sizes = shape.sizes(devices);
                let end = |s: &Sizes| (s.first_vertex + s.vertices).min(shape.vertices);
                let ranges = sizes.iter().map(|s| s.first_vertex..end(s)).collect();
                (Parts::Even(sizes[0].into(), sizes.len()), ranges)
            }
            (Subject::Data(_), inputs) => {
                let inputs = inputs.expect("data is bound before it is cut");
                let parts =
                    split_parts(partition, inputs, &training, devices, (&self.profile_name(), None), Runs::Many)?;
                let ranges = parts.iter().map(|part| part.start as u64..part.end as u64).collect();
                (Parts::Known(Supply::of_parts(inputs, parts).into()), ranges)
            }
        };
        let copies = if let Parts::Even(_, parts) = parts { parts } else { 1 };
        let programs = [("train", training), ("evaluate", evaluation)];
        let cuts = Mutex::new((parts, Cuts::new()));
        Ok(ForecastInput {
            layouts: self.options.whole_layouts(match self.rank_count {
                1 => self.options.devices.planned_paths(),
                _ => vec![ExchangePath::Host],
            }),
            programs,
            instead,
            phases: self.phases(),
            copies,
            ranges,
            cuts,
        })
    }

    /// Plans one of the first `variants` variants for this device memory. The inner error is the number of bytes that would be enough.
    fn plan(
        &self,
        subject: &ForecastInput<'_>,
        policy: Policy,
        device_memory: u64,
        (limit, variants, known): (Limit, &[Variant], &Known),
    ) -> Result<std::result::Result<PlannedCut, u64>> {
        let in_place = self.options.devices.in_place();
        let budget = |i: usize| DeviceBudget { name: format!("device {i}"), capacity_bytes: device_memory, in_place };
        let budgets: Vec<DeviceBudget> = (0..self.part_count() / subject.copies).map(budget).collect();
        let method = Method { policy, objective: self.objective, limit };
        let epoch = if self.steady { Epoch::Steady } else { Epoch::Cold };
        let choice = Choice {
            variants,
            known,
            budgets: &budgets,
            layouts: &subject.layouts,
            method: &method,
            weighs: method.weighs(&epoch),
        };
        // As in a run.
        let nominal = profile::nominal(&self.profile_name());
        let fitted = choice.fit_best(
            |variant, layout| Ok(subject.cut(variant, layout)),
            |cut, budgets, method| {
                let [setup, main] = cut.0.work(subject.phases);
                let setup = plan_work(&cut.0.lowered, budgets, setup, &Epoch::Cold, method);
                let main = plan_work(&cut.0.lowered, budgets, main, &epoch, method);
                both(setup, main)
            },
            epoch_bytes,
            |cut, (_, main)| Ok(planned_seconds(&nominal, &cut.0.lowered, main)),
        );
        match fitted {
            Ok(Fitted { variant, lowered: cut, planned, layout }) => {
                Ok(Ok(PlannedCut { cut, planned, variant, layout }))
            }
            Err(Error::DoesNotFit { need_bytes, .. }) => Ok(Err(need_bytes)),
            Err(other) => Err(other),
        }
    }

    /// Plans these variants at capacities from the smallest feasible one to the largest useful one, in about equal ratios.
    fn plan_curve(
        &self,
        subject: &ForecastInput<'_>,
        profile: &Profile,
        variants: &[Variant],
        known: &Known,
    ) -> Result<Vec<CurvePoint>> {
        let policy = self.tried().last().copied().unwrap_or(Policy::Optimal);
        // Layouts are chosen as in a run. The plans themselves are quick: a run may copy a little less.
        let limit = Method::default().quick().limit;
        let plan = |memory: u64| self.plan(subject, policy, memory, (limit, variants, known));
        let Err(least) = plan(0)? else { return Ok(Vec::new()) };
        let most = match plan(u64::MAX)? {
            Ok(planned) => planned.peak_bytes().max(least),
            Err(_) => return Ok(Vec::new()),
        };
        let memories = curve_memories(least, most, self.device_bytes(profile));
        let points = on_all_cores(&memories, |&memory| -> Result<Option<(usize, CurvePoint)>> {
            let planned = plan(memory)?.ok();
            Ok(planned.map(|planned| (planned.variant, planned.point(profile, memory, subject.copies))))
        });
        let mut curve: Vec<CurvePoint> = Vec::new();
        let mut last = None;
        for point in points {
            let Some((variant, point)) = point? else { continue };
            // A plan for less memory is also valid with more memory, so it replaces a plan that is worse. Tiles of different
            // variants are of different sizes.
            let is_worse = |&(other, less): &(usize, CurvePoint)| {
                variant == other && point.tiles > less.tiles || !point.is_no_worse_than(&less)
            };
            let (variant, point) = match last.filter(is_worse) {
                Some((other, less)) => (other, CurvePoint { device_memory: point.device_memory, ..less }),
                None => (variant, point),
            };
            last = Some((variant, point));
            curve.push(point);
        }
        Ok(curve)
    }
}

/// Returns the capacities of the curve: the least, the most, and between them capacities at which layouts are compared, from
/// an eighth of the memory at hand on. Plans for little memory have many steps and take long.
fn curve_memories(least: u64, most: u64, at_hand: u64) -> Vec<u64> {
    let from = least.max(at_hand.min(most) / 8);
    let mut between: Vec<u64> = grid_down(most.saturating_sub(1)).take_while(|memory| *memory > from).collect();
    between.reverse();
    let step = between.len().div_ceil(CURVE_POINTS - 2).max(1);
    // The largest of them are where most is to be gained.
    let kept = between.iter().rev().step_by(step).copied();
    let mut memories: Vec<u64> = kept.chain([least, most]).collect();
    memories.sort_unstable();
    memories.dedup();
    memories
}

/// Returns `make(item)` for each item, in order. The first items start first.
///
/// It uses threads of its own, not the shared pool: an item may wait for another one that works in the pool.
fn on_all_cores<I: Sync, T: Send>(items: &[I], make: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            match items.get(i) {
                Some(item) => made.push((i, make(item))),
                None => break made,
            }
        }
    };
    let mut made: Vec<(usize, T)> = std::thread::scope(|scope| {
        // If the system starts no more threads, those that run do all the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..threads).filter_map(start).collect();
        let mut made = work();
        for thread in threads {
            made.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        made
    });
    made.sort_by_key(|(i, _)| *i);
    made.into_iter().map(|(_, made)| made).collect()
}

/// Inputs of planning: programs and parts.
struct ForecastInput<'i> {
    /// The layouts of whole parts that are possible, the best one first.
    layouts: Vec<Layout>,
    programs: [(&'static str, Program); 2],
    /// Programs with the same results, one pair of which may take their place.
    instead: Vec<Instead>,
    phases: &'static [usize],
    /// Number of equal parts that each lowered part stands for.
    copies: usize,
    ranges: Vec<Range<u64>>,
    /// The parts, and a cache of the lowered programs by variant and layout. Lowering does not depend on the capacity.
    cuts: Mutex<(Parts<'i>, Cuts)>,
}

/// The lowered programs by variant and layout.
type Cuts = BTreeMap<(usize, Layout), Cut>;

/// The parts that programs are lowered for.
enum Parts<'i> {
    /// The parts of a dataset.
    Known(Box<Supply<'i>>),
    /// Equal parts of a graph of which only the size is known: the sizes of one part, and the number of parts.
    Even(Box<Sizes>, usize),
}

/// The lowered programs for some number of tiles.
#[derive(Clone)]
struct Cut(Arc<CutWork>);

struct CutWork {
    /// The lowered programs of each distinct part.
    lowered: Vec<Lowered>,
    /// The work of the setup and of an epoch, once a plan asks for it: what does not fit needs none.
    work: OnceLock<[WorkByDevice; 2]>,
}

impl CutWork {
    /// Returns the work of the setup and of an epoch of these phases, which are always the same.
    fn work(&self, phases: &[usize]) -> &[WorkByDevice; 2] {
        let sequences = [Sequence::Setup, Sequence::Phases(phases)];
        self.work.get_or_init(|| sequences.map(|sequence| work(&self.lowered, sequence, &BTreeSet::new())))
    }
}

impl AsRef<[Lowered]> for Cut {
    fn as_ref(&self) -> &[Lowered] {
        &self.0.lowered
    }
}

impl ForecastInput<'_> {
    /// Returns all variants of the programs.
    fn variants(&self) -> Vec<Variant> {
        Variant::all(self.instead.iter().map(|instead| instead.strips))
    }

    /// Lowers the programs in the variant of this number.
    fn cut(&self, variant: usize, layout: Layout) -> Cut {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, cuts) = &mut *cuts;
        let make = || {
            let tilings = match parts {
                Parts::Known(supply) => supply.tile(layout),
                Parts::Even(sizes, _) => Tiling::evenly(&[**sizes], layout),
            };
            let mut programs = self.programs.each_ref().map(|(name, program)| (*name, program));
            if let Some(instead) = variant.checked_sub(1) {
                let Instead { training, evaluation, .. } = &self.instead[instead];
                (programs[0].1, programs[1].1) = (training, evaluation);
            }
            let lowered = tilings.iter().map(|tiling| lower_in_order(&programs, tiling, layout.order, 0)).collect();
            Cut(Arc::new(CutWork { lowered, work: OnceLock::new() }))
        };
        cuts.entry((variant, layout)).or_insert_with(make).clone()
    }

    /// Returns what the ranks send each other, with this layout.
    fn traffic(&self, (variant, layout): (usize, Layout), job: Job) -> Traffic {
        let cut = self.cut(variant, layout);
        let lowered = &cut.0.lowered[0];
        match &mut self.cuts.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => Traffic::of_data(supply, lowered, self.phases, job),
            Parts::Even(sizes, _) => Traffic::of_shape(sizes, lowered, self.phases, job),
        }
    }

    fn forecasts(&self, profile: &Profile) -> Vec<PartForecast> {
        let cut = self.cut(0, self.layouts[0]);
        let sizes = match &mut self.cuts.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => supply.sizes(),
            Parts::Even(sizes, _) => vec![**sizes],
        };
        let seconds = cut.0.lowered.iter().map(|lowered| {
            let steps = lowered.sequence(self.phases);
            steps.iter().map(|step| call_seconds(profile, lowered, &step.call)).sum()
        });
        let parts: Vec<(Sizes, f64)> = sizes.into_iter().zip(seconds).collect();
        let parts = parts.iter().flat_map(|part| std::iter::repeat_n(part, self.copies)).zip(&self.ranges);
        let part = |((sizes, compute_seconds), range): (&(Sizes, f64), &Range<u64>)| PartForecast {
            vertices: range.clone(),
            edges: sizes.forward.edges,
            halo: sizes.forward.halo,
            compute_seconds: *compute_seconds,
        };
        parts.map(part).collect()
    }
}

/// The lowered programs with a number of tiles that fits, and the plans of the setup and the epoch.
struct PlannedCut {
    cut: Cut,
    planned: (Planned, Planned),
    variant: usize,
    layout: Layout,
}

impl PlannedCut {
    fn devices(&self) -> impl Iterator<Item = (&Lowered, &PlannedDevice, &PlannedDevice)> {
        let (setup, main) = &self.planned;
        let devices = self.cut.0.lowered.iter().zip(&setup.devices).zip(&main.devices);
        devices.map(|((lowered, setup), main)| (lowered, setup, main))
    }

    /// Returns the largest peak of a device in bytes, including the setup.
    fn peak_bytes(&self) -> u64 {
        let plans = self.devices().flat_map(|(_, setup, main)| [&setup.plan, &main.plan]).flatten();
        plans.map(|(_, plan)| plan.peak_bytes).max().unwrap_or(0)
    }

    /// Whether sums move in place of rows.
    fn folds(&self) -> bool {
        let is_fold = |exchange: &Exchange| match exchange {
            Exchange::Halo { crossing, .. } | Exchange::Fetch { crossing, .. } => matches!(crossing, Crossing::Fold(_)),
            Exchange::Sum { .. } => false,
        };
        self.cut.0.lowered[0].exchanges.iter().any(is_fold)
    }

    /// Returns the plan as a point of the curve, for `copies` equal devices per planned device.
    fn point(&self, profile: &Profile, device_memory: u64, copies: usize) -> CurvePoint {
        let (tiles, copies) = (self.layout.tiles, copies as u64);
        let none = CurvePoint {
            device_memory,
            tiles,
            bytes_to_device: 0,
            bytes_to_host: 0,
            bytes_between_devices: 0,
            epoch_seconds: 0.0,
        };
        self.devices().fold(none, |sum, (lowered, _, main)| {
            let script = main.script();
            CurvePoint {
                bytes_to_device: sum.bytes_to_device + copies * script.bytes_to_device,
                bytes_to_host: sum.bytes_to_host + copies * script.bytes_to_host,
                bytes_between_devices: sum.bytes_between_devices + copies * script.bytes_between_devices,
                epoch_seconds: sum.epoch_seconds.max(script_seconds(profile, lowered, &script)),
                ..sum
            }
        })
    }

    fn forecast(&self, profile: &Profile) -> PlanForecast {
        let mut host_bytes = 0u64;
        let device = |(lowered, setup, main): (&Lowered, &PlannedDevice, &PlannedDevice)| {
            let script = main.script();
            host_bytes = host_bytes.saturating_add(bytes_on_host(lowered, &script));
            let setup_peak = setup.plan.as_ref().map_or(0, |(_, plan)| plan.peak_bytes);
            let plan = main.plan.as_ref().map(|(_, plan)| plan);
            let names = |slots: &[Slot]| slots.iter().map(|s| lowered.tensor(*s).name.clone()).collect();
            let step = |action: &Action| StepForecast {
                op: action.name.clone(),
                store: names(&action.store),
                evict: names(&action.evict),
                load: names(&[&action.load[..], &action.ahead].concat()),
            };
            DeviceForecast {
                exact: plan.is_none_or(|plan| plan.exact),
                bytes_to_device: script.bytes_to_device,
                bytes_to_host: script.bytes_to_host,
                bytes_between_devices: script.bytes_between_devices,
                peak_bytes: script.peak_bytes.max(setup_peak),
                lower_bound_bytes: plan.map_or(0, |plan| plan.lower_bound_bytes),
                bound_to_order: plan.is_some_and(Plan::is_bound_to_order),
                epoch_seconds: script_seconds(profile, lowered, &script),
                steps: script.actions.iter().map(step).collect(),
            }
        };
        let devices = self.devices().map(device).collect();
        PlanForecast { tiles: self.layout.tiles, exchange: self.layout.path, folds: self.folds(), devices, host_bytes }
    }
}

/// Returns the bytes that the host holds for one device: lasting tensors, received tensors, and tensors that are copied
/// to the host.
fn bytes_on_host(lowered: &Lowered, script: &Script) -> u64 {
    let copied = script.actions.iter().flat_map(|a| a.store.iter().chain(&a.publish)).chain(&script.finish[0]);
    let stored: BTreeSet<_> = copied.collect();
    let steps = lowered.phases.iter().flat_map(|phase| &phase.steps);
    let read: BTreeSet<Slot> = steps.flat_map(|step| step.call.reads()).collect();
    let on_host = lowered.tensors.iter().enumerate().filter(|(i, tensor)| match tensor.kind {
        // What the setup makes only for itself stays on the device.
        Lifetime::Constant => tensor.contents.is_some() || read.contains(&Slot(*i as u32)),
        Lifetime::State | Lifetime::Received | Lifetime::Batch => true,
        Lifetime::Local => stored.contains(&Slot(*i as u32)),
    });
    on_host.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.bytes))
}
