//! The dry run: predicts the memory, transfers and time of a training run without running it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

use lapidary_cost_model::Profile;
use lapidary_kernels::StorageType;
use lapidary_planner::memory::{Epoch, Objective, Policy};

use super::curve::plan_curve;
use super::inputs::{ForecastInput, Parts, Recent};
use super::planned::PlannedParts;
use super::predict::vertex_seconds;
use super::traffic::Job;
use super::{Forecast, Network, PlanForecast, PolicyForecast, Shape};
use crate::bind::{bind, bind_with, feature_kind, label_kind, model_for};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::lower::{ExchangePath, FeatureData, Inputs, Sizes, Supply, lower};
use crate::model::{FeatureKind, LabelKind, Model};
use crate::plan::{
    Choice, DeviceBudget, EpochWork, Fit, Fitted, Known, Locality, Method, Rates, Variant, epoch_bytes,
    planned_seconds, works,
};
use crate::profile;
use crate::program::LevelSizes;
use crate::runtime::{Devices, RunOptions, Runs, prior, run_option_setters, split_parts};
use crate::train::{
    Adam, Batches, DecayLayers, EpochSpec, Optimizer, TrainingProgram, check_embedding, training_program,
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
    residency: bool,
    /// Number of ranks, each with the devices of the options.
    rank_count: usize,
    network: Network,
    /// The width of learned rows, if the model reads these.
    embedding: Option<usize>,
}

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
            residency: false,
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

    /// Sets the device profile: `cpu` (this machine, measured), one of [`Profile::NAMES`] or a JSON file. By default it is
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

    /// Sets whether to also record what is on a device at each kernel call ([`PlanForecast::residency`]); off by default.
    ///
    /// [`PlanForecast::residency`]: super::PlanForecast::residency
    pub fn residency(mut self, residency: bool) -> Self {
        self.residency = residency;
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
    /// [`Error::DataLacks`], [`Error::FeatureWidth`], [`Error::Model`], [`Error::Value`] and [`Error::Profile`] for invalid
    /// input. Too little device memory is not an error; it is reported as an outcome.
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
        let rates = self.rates(&profile, inputs.as_ref());
        let subject = self.forecast_input(&model, inputs.as_ref())?;
        let device_memory = self.device_bytes(&profile);
        let mut policies = Vec::new();
        // Those of the last policy that fits; if none does, the first ones that were tried.
        let mut chosen = (0, subject.layouts[0]);
        // What the last policy plans, if it fits.
        let mut at_hand = None;
        let variants = subject.variants();
        // What is known of the last policy is kept for the curve.
        let mut known = Known::default();
        for &policy in self.tried() {
            known = Known::default();
            let method = Method { policy, objective: self.objective, ..Method::default() };
            let outcome = self.plan(&subject, device_memory, (method, &variants, &known, 1))?;
            at_hand = None;
            let outcome = outcome.map(|planned| {
                chosen = (planned.variant.number, planned.layout);
                at_hand = Some(planned.point(&rates, device_memory, subject.copies));
                let residency = self.residency.then(|| planned.residency()).flatten();
                let forecast = planned.forecast(&rates).times(subject.copies);
                PlanForecast { residency, ..forecast }
            });
            policies.push(PolicyForecast { policy, outcome });
        }
        let curve = match self.curve {
            true => {
                // It would take long to choose a variant for each point.
                let chosen = variants.iter().filter(|variant| [0, chosen.0].contains(&variant.number));
                let chosen: Vec<Variant> = chosen.copied().collect();
                let policy = self.tried().last().copied().unwrap_or(Policy::Optimal);
                // Layouts are chosen as in a run. The plans themselves are quick: a run may copy a little less.
                let method = Method { policy, objective: self.objective, ..Method::default() }.quick();
                let plan = |memory, tiles| self.plan(&subject, memory, (method, &chosen, &known, tiles));
                let point = |planned: &PlannedParts, memory| planned.point(&rates, memory, subject.copies);
                plan_curve(plan, point, (device_memory, at_hand))?
            }
            false => Vec::new(),
        };
        let parts = subject.forecasts(&rates);
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

    /// Returns what predicts times: this hardware's measured kernels and caches, and the profile for the rest.
    pub(super) fn rates(&self, profile: &Profile, inputs: Option<&Inputs>) -> Rates {
        let word = self.profile_name();
        let locality = Locality::new(&word, profile).with_place(self.options.devices.in_place());
        let locality = match inputs {
            Some(inputs) => locality.of_graph(&inputs.graph),
            None => locality,
        };
        let rates = Rates::measured(profile.clone(), profile::kernel_times(&word, profile), locality);
        match profile::nominal(&word).shares_cores {
            true => rates.on_shared_cores(self.options.devices.count()),
            false => rates,
        }
    }

    /// Returns the policies to plan with.
    fn tried(&self) -> &[Policy] {
        self.policies.as_deref().unwrap_or(std::slice::from_ref(&self.options.memory))
    }

    /// Returns the name of the profile that predicts times.
    pub(crate) fn profile_name(&self) -> String {
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
            weighted_classes: false,
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
        let TrainingProgram { program: training, evaluation, strips, instead, .. } =
            self.programs(model, inputs, None)?;
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
        let recent = Mutex::new((parts, Recent::default()));
        Ok(ForecastInput {
            layouts: self.options.whole_layouts(match self.rank_count {
                1 => self.options.devices.planned_paths(),
                _ => vec![ExchangePath::Host],
            }),
            sums: self.options.devices.planned_sums(self.rank_count)?,
            programs,
            strips,
            instead,
            phases: self.phases(),
            copies,
            ranges,
            recent,
        })
    }

    /// Plans one of the variants for this device memory, with at least so many tiles. The inner error is the number of bytes
    /// that would be enough.
    fn plan(
        &self,
        subject: &ForecastInput<'_>,
        device_memory: u64,
        (method, variants, known, least_tiles): (Method, &[Variant], &Known, usize),
    ) -> Result<std::result::Result<PlannedParts, u64>> {
        let in_place = self.options.devices.in_place();
        let budget = |i: usize| DeviceBudget { name: format!("device {i}"), capacity_bytes: device_memory, in_place };
        let budgets: Vec<DeviceBudget> = (0..self.part_count() / subject.copies).map(budget).collect();
        let epoch = if self.steady { Epoch::Steady } else { Epoch::Cold };
        let to = Fit {
            budgets: &budgets,
            whole_layouts: &subject.layouts,
            method: &method,
            weighs: method.weighs(&epoch),
            known: Some(known),
            least_tiles,
        };
        let choice = Choice { variants, to };
        let work = EpochWork { phases: subject.phases, epoch: &epoch, keep: &|_| BTreeSet::new() };
        // As in a run.
        let nominal = profile::nominal(&self.profile_name());
        let fitted = choice.fit_best(
            |variant, layout| Ok(subject.lowered(variant, layout)),
            |lowered, budgets, method| lowered.plan(&work, budgets, method),
            epoch_bytes,
            |lowered, (_, main)| Ok(planned_seconds(&nominal, lowered.parts(), main)),
        );
        match fitted {
            Ok(Fitted { variant, lowered, planned, layout }) => {
                Ok(Ok(PlannedParts { lowered, planned, variant, layout }))
            }
            Err(Error::DoesNotFit { need_bytes, .. }) => Ok(Err(need_bytes)),
            Err(other) => Err(other),
        }
    }
}
