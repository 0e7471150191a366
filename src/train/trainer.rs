//! The trainer: data, model and optimizer, one epoch at a time.

use std::path::Path;

use lapidary_cost_model::CostModel;
use lapidary_kernels::{HostSlot, Shared, Slot, StorageType};

use super::epoch::gradient_name;
use super::splits::{Learning, Setup, larger};
use super::{Best, Move, RunRecord, TrainerBuilder};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::infer::checkpoint::{self, BEST_FILE, COST_MODEL_FILE, MODEL_FILE, OPTIMIZER_FILE, RUN_FILE};
use crate::infer::digests::Checkpoint;
use crate::infer::{Accuracy, ModelRecord, Predictor};
use crate::model::{LabelKind, Model, Parameter, Weight, Weights};
use crate::program::Origin;
use crate::runtime::{Partition, Session, SplitRecord, StartUp, Trace, check_ranges, ranges_of};

/// The phases of the lowered program.
pub(super) const TRAIN_PHASE: usize = 0;
const EVALUATE_PHASE: usize = 1;

/// The phases of an epoch that evaluates, of one that does not, and of an evaluation by itself.
pub(super) const EVALUATED_EPOCH: &[usize] = &[TRAIN_PHASE, EVALUATE_PHASE];
pub(super) const PLAIN_EPOCH: &[usize] = &[TRAIN_PHASE];
pub(super) const EVALUATION: &[usize] = &[EVALUATE_PHASE];

/// What one epoch did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// From 1.
    pub epoch: u64,
    /// The loss, before the epoch's update: the mean cross-entropy over the training split, or that of [`Model::loss`].
    pub loss: f64,
    /// What the updated parameters get right, in epochs that evaluate.
    pub accuracy: Option<Accuracy>,
    /// Seconds of training alone.
    pub seconds: f64,
    /// Seconds of evaluation.
    pub eval_seconds: f64,
    /// Bytes that were copied to devices, evaluation included.
    pub bytes_to_device: u64,
    /// Bytes that were copied to the host, evaluation included.
    pub bytes_to_host: u64,
    /// The same as planned: to devices and to the host.
    pub planned_bytes: [u64; 2],
    /// Bytes that were copied from device to device, evaluation included.
    pub bytes_between_devices: u64,
    /// The same as planned.
    pub planned_bytes_between_devices: u64,
}

/// Trains a model on a data set, one full-graph epoch at a time.
///
/// ```
/// use lapidary::{Adam, Dataset, Model, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let mut trainer = Trainer::builder(&model, &data).optimizer(Adam::new(0.05)).build()?;
/// for _ in 0..50 {
///     trainer.step()?;
/// }
/// let best = trainer.best().expect("it was evaluated after each epoch");
/// assert!(best.test_accuracy.unwrap() > 0.8);
/// # Ok::<(), lapidary::Error>(())
/// ```
pub struct Trainer {
    pub(super) session: Session,
    pub(super) parameters: Vec<Parameter>,
    pub(super) epoch: u64,
    pub(super) best: Option<Best>,
    pub(super) best_weights: Weights,
    pub(super) eval_every: u64,
    pub(super) model: Model,
    /// For its fingerprint, which is made when it is first needed; it shares its arrays with `setup`.
    pub(super) data: Dataset,
    pub(super) setup: Setup,
    /// With several devices whose split is learned.
    pub(super) learning: Option<Learning>,
    pub(super) start_up: StartUp,
    pub(super) part_seconds: Vec<f64>,
    pub(super) last_move: Option<Move>,
    /// Held by the devices and planned, at most, with earlier splits.
    pub(super) earlier_peaks: [Vec<u64>; 2],
    pub(super) keeps_gradients: bool,
    pub(super) labels: LabelKind,
    /// By term of the loss: its output of the training phase, and its weight.
    pub(super) losses: Vec<(String, f64)>,
    pub(super) trace: Option<Trace>,
    pub(super) record: RunRecord,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer").field("epoch", &self.epoch).field("record", &self.record).finish_non_exhaustive()
    }
}

impl Trainer {
    /// Sets up training of `model` on `data`.
    pub fn builder<'a>(model: &'a Model, data: &'a Dataset) -> TrainerBuilder<'a> {
        TrainerBuilder::new(model, data)
    }

    /// Runs the next epoch: forward, backward, update, and an evaluation if it is due.
    ///
    /// # Errors
    /// [`Error::Diverged`] or [`Error::NotFiniteAtStart`] if the loss is no finite number; [`Error::Device`].
    pub fn step(&mut self) -> Result<Epoch> {
        let epoch = self.epoch + 1;
        self.move_if_due(epoch)?;
        let is_due = self.eval_every > 0 && epoch.is_multiple_of(self.eval_every);
        let phases = if is_due { EVALUATED_EPOCH } else { PLAIN_EPOCH };
        let mut metrics: Vec<_> = self.losses.iter().map(|(name, _)| (TRAIN_PHASE, name.as_str())).collect();
        metrics.extend(is_due.then(|| Accuracy::metrics(EVALUATE_PHASE)).into_iter().flatten());
        let is_timed = self.trace.is_some() || self.record.parts.len() > 1;
        let clock = HostSlot::constant(&Shared::from(vec![epoch, epoch]));
        let mut done = self.session.run(phases, &metrics, &[(Origin::Clock, clock)], is_timed)?;
        if is_timed {
            self.part_seconds = done.kernel_seconds();
        }
        if let Some(learning) = self.learning.as_mut().filter(|l| is_timed && l.learner.wants(epoch)) {
            learning.learner.observe(&done.spans);
        }
        if let Some(trace) = &mut self.trace {
            trace.set(epoch, std::mem::take(&mut done.spans));
        }
        let term = |(number, (_, weight)): (usize, &(String, f64))| {
            let parts = done.metric::<f32>(number);
            weight * parts.iter().map(|part| f64::from(part[0])).sum::<f64>()
        };
        let loss: f64 = self.losses.iter().enumerate().map(term).sum();
        if !loss.is_finite() {
            return Err(if epoch == 1 { Error::NotFiniteAtStart { loss } } else { Error::Diverged { epoch, loss } });
        }
        self.epoch = epoch;
        let accuracy = is_due.then(|| Accuracy::sum(&done, self.losses.len()));
        if let Some(accuracy) = accuracy {
            self.keep_if_best(accuracy)?;
        }
        let [seconds, eval_seconds] = done.seconds;
        let [bytes_to_device, bytes_to_host] = done.bytes;
        let [bytes_between_devices, planned_bytes_between_devices] = done.bytes_between;
        Ok(Epoch {
            epoch,
            loss,
            accuracy,
            seconds,
            eval_seconds,
            bytes_to_device,
            bytes_to_host,
            planned_bytes: done.planned_bytes,
            bytes_between_devices,
            planned_bytes_between_devices,
        })
    }

    /// Measures the parameters as they are on all splits, and keeps them if their validation accuracy is the best so
    /// far (without a validation split, or if no epoch evaluates by itself, the newest are the best).
    ///
    /// # Errors
    /// [`Error::Weights`] if they are no finite numbers any more; [`Error::Device`].
    pub fn evaluate(&mut self) -> Result<Accuracy> {
        let done = self.session.run(EVALUATION, &Accuracy::metrics(EVALUATE_PHASE), &[], false)?;
        let accuracy = Accuracy::sum(&done, 0);
        self.keep_if_best(accuracy)?;
        Ok(accuracy)
    }

    fn keep_if_best(&mut self, accuracy: Accuracy) -> Result<()> {
        let improves = match (&self.best, accuracy.val) {
            (Some(best), Some(val)) if self.eval_every > 0 => best.val_accuracy.is_none_or(|had| val > had),
            _ => true,
        };
        if improves {
            let weights = self.weights()?;
            weights.check_finite()?;
            self.best = Some(Best { epoch: self.epoch, val_accuracy: accuracy.val, test_accuracy: accuracy.test });
            self.best_weights = weights;
        }
        Ok(())
    }

    /// Notes from now on when every kernel and copy of an epoch runs; see [`Trainer::trace`].
    pub fn start_trace(&mut self) {
        self.trace = Some(Trace::new(self.session.device_names()));
    }

    /// Notes nothing any more. Epochs of GPUs are faster then.
    pub fn stop_trace(&mut self) {
        self.trace = None;
    }

    /// When everything of the last epoch ran, one whose loss was no finite number included; `None` without
    /// [`Trainer::start_trace`]. A [`TraceFile`](crate::TraceFile) keeps many epochs.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The plan of an epoch in words: for each device a line a step, with what is stored, evicted, loaded and
    /// published.
    pub fn explain(&self) -> String {
        self.session.explain()
    }

    /// How many epochs were run, those before a resumption included.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The epoch with the best validation accuracy so far; the earliest on a tie.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// The parameters as they are.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn weights(&self) -> Result<Weights> {
        let mut weights = self.read_parameters(|name| self.session.origin(&Origin::Parameter(name.into())))?;
        for parameter in self.parameters.iter().filter(|p| !p.trained) {
            let data = vec![0.0; parameter.shape.iter().product()];
            weights.insert(&parameter.name, Weight { shape: parameter.shape.clone(), data });
        }
        Ok(weights)
    }

    /// The gradients of the last step, by parameter.
    ///
    /// # Errors
    /// [`Error::NoGradients`] before the first step, and without [`TrainerBuilder::keep_gradients`]; [`Error::Device`].
    pub fn gradients(&self) -> Result<Weights> {
        if !self.keeps_gradients || self.epoch == 0 {
            return Err(Error::NoGradients);
        }
        self.read_parameters(|name| self.session.output(TRAIN_PHASE, &gradient_name(name)))
    }

    /// Replaces the parameters.
    ///
    /// # Errors
    /// [`Error::Weights`] if they are not this model's.
    pub fn set_weights(&self, weights: &Weights) -> Result<()> {
        weights.check(&self.record.model.model.name, &self.parameters)?;
        for (name, weight) in weights.iter() {
            if let Some(slots) = self.session.origin(&Origin::Parameter(name.into())) {
                self.session.write(slots, &weight.data)?;
            }
        }
        Ok(())
    }

    /// Sets the learning rate of the epochs to come.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        self.record.learning_rate = lr;
        match self.session.origin(&Origin::LearningRate) {
            Some(slots) => self.session.write(slots, &[lr as f32]),
            None => Ok(()),
        }
    }

    /// What it took until the first epoch could run.
    pub fn start_up(&self) -> StartUp {
        self.start_up
    }

    /// Into how many tiles each device's vertices are cut, so that an operation's matrices fit; 1 if they do as they
    /// are.
    pub fn tiles(&self) -> usize {
        self.session.tiles()
    }

    /// What the devices have held at most, in bytes.
    pub fn peak_device_bytes(&self) -> Vec<u64> {
        larger(self.session.peak_bytes(), &self.earlier_peaks[0])
    }

    /// What the plan says that the devices hold at most, in bytes.
    pub fn planned_peak_device_bytes(&self) -> Vec<u64> {
        larger(self.session.planned_peak_bytes(), &self.earlier_peaks[1])
    }

    /// What is predicted of each vertex: it says what [`Accuracy`] means.
    pub fn label_kind(&self) -> LabelKind {
        self.labels
    }

    /// How matrices with a row a vertex are stored.
    pub fn dtype(&self) -> StorageType {
        self.record.model.dtype
    }

    /// The vertex range of each device.
    pub fn parts(&self) -> &[[usize; 2]] {
        &self.record.parts
    }

    /// A predictor with the best parameters so far, or the newest if none were evaluated.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn predictor(&self) -> Result<Predictor> {
        let weights = if self.best.is_some() { self.best_weights.clone() } else { self.weights()? };
        let mut options = self.setup.options.clone();
        if options.partition.learns() {
            options.partition = Partition::default();
        }
        let ModelRecord { feature_norm, dtype, .. } = self.record.model;
        let predictor = Predictor::new(&self.model, weights, Some(feature_norm))?.dtype(dtype);
        Ok(predictor.options(options).cost_model(self.learned()))
    }

    /// Writes `dir/epoch-<N>/` and `dir/best/`.
    ///
    /// Two runs that save into one folder overwrite each other. A program of which two may run takes a
    /// [`RunLock`](crate::RunLock) first, as the command does; this method does not.
    ///
    /// # Cost
    /// The first time, that of [`Dataset::fingerprint`], unless it was asked for before.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Weights`] for weights that are no finite numbers; checkpoints that were there are
    /// untouched.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        let weights = self.weights()?;
        weights.check_finite()?;
        let fingerprint = Some(self.data.fingerprint().clone());
        let record = RunRecord { epoch: self.epoch, best: self.best.clone(), fingerprint, ..self.record.clone() };
        let mut files = vec![
            (MODEL_FILE, weights.to_safetensors()?),
            (OPTIMIZER_FILE, self.moments()?.to_safetensors()?),
            (RUN_FILE, checkpoint::record_bytes(&record)),
        ];
        if self.best.is_some() {
            files.push((BEST_FILE, self.best_weights.to_safetensors()?));
        }
        let cost_model = self.learned().map(|model| (COST_MODEL_FILE, model.to_json().into_bytes()));
        files.extend(cost_model.clone());
        checkpoint::write_folder(dir, &checkpoint::epoch_folder(self.epoch), &files)?;
        if let Some(best) = &self.best {
            let record = RunRecord { epoch: best.epoch, ..record };
            let mut files =
                vec![(MODEL_FILE, self.best_weights.to_safetensors()?), (RUN_FILE, checkpoint::record_bytes(&record))];
            files.extend(cost_model);
            checkpoint::write_folder(dir, "best", &files)?;
        }
        Ok(())
    }

    /// What the cost model has learned, the newest measurements included.
    fn learned(&self) -> Option<CostModel> {
        let mut model = self.learning.as_ref()?.learner.model().clone();
        model.refit();
        Some(model)
    }

    /// Goes on from the newest checkpoint in `dir`: the epochs to come are those that the run would have had without
    /// the interruption, bit for bit while the split is the same. A split that is learned goes on from that of the
    /// checkpoint and from what was learned, if there are as many devices. Returns its epoch, or `None`, having changed
    /// nothing, if there is none yet.
    ///
    /// Every file of the checkpoint is checked against the digest that was written with it, and the data against that
    /// of the run.
    ///
    /// # Errors
    /// [`Error::OtherRun`] if it was made with another model, data set, seed or optimizer; [`Error::DataChanged`] if
    /// the graph, features, labels or splits are others; [`Error::Damaged`]; [`Error::Io`], [`Error::RunRecord`],
    /// [`Error::Parts`], [`Error::Weights`], [`Error::CostModel`].
    pub fn resume(&mut self, dir: impl AsRef<Path>) -> Result<Option<u64>> {
        let Some((_, folder)) = checkpoint::newest_epoch(dir.as_ref()) else { return Ok(None) };
        let files = [RUN_FILE, MODEL_FILE, OPTIMIZER_FILE, BEST_FILE, COST_MODEL_FILE];
        let mut checkpoint = Checkpoint::read(&folder, &files)?;
        let saved: RunRecord = checkpoint.record()?;
        self.check_same_run(&folder, &saved)?;
        check_ranges(&ranges_of(&saved.parts), saved.parts.len(), self.record.vertices)?;
        let weights = checkpoint.weights(MODEL_FILE)?;
        let moments = checkpoint.weights(OPTIMIZER_FILE)?;
        self.check_moments(&moments)?;
        let cost_model = checkpoint.cost_model()?;
        let best_weights = match &saved.best {
            Some(_) => checkpoint.weights(BEST_FILE)?,
            None => Weights::default(),
        };
        self.set_weights(&weights)?;
        self.set_moments(&moments)?;
        self.set_learning_rate(saved.learning_rate)?;
        self.epoch = saved.epoch;
        self.best = saved.best;
        self.best_weights = best_weights;
        self.resume_split(saved.parts, saved.splits, cost_model)?;
        Ok(Some(self.epoch))
    }

    /// Goes on with the splits of a checkpoint of epoch [`Trainer::epoch`].
    fn resume_split(
        &mut self,
        parts: Vec<[usize; 2]>,
        mut splits: Vec<SplitRecord>,
        cost_model: Option<CostModel>,
    ) -> Result<()> {
        if splits.is_empty() {
            splits.push(SplitRecord { epoch: 1, parts: parts.clone() });
        }
        if let (Some(learning), Some(model)) = (&mut self.learning, cost_model) {
            learning.learner.set_model(model, &self.setup.inputs);
        }
        let same_count = parts.len() == self.record.parts.len();
        let target = match (self.setup.options.partition.replayed(self.epoch + 1), &self.learning) {
            (Some(replayed), _) => replayed.to_vec(),
            (None, Some(_)) if same_count => ranges_of(&parts),
            _ => ranges_of(&self.record.parts),
        };
        self.record.splits = splits;
        self.move_to(self.epoch + 1, target, None)?;
        self.record_split(self.epoch + 1, self.record.parts.clone());
        Ok(())
    }

    /// That the optimizer's memory is this model's.
    fn check_moments(&self, moments: &Weights) -> Result<()> {
        for (name, parameter, _) in self.moment_slots() {
            let single: Weights = moments.iter().filter(|(n, _)| *n == name).collect();
            single.check(&self.record.model.model.name, &[Parameter { name, ..parameter.clone() }])?;
        }
        Ok(())
    }

    /// Replaces the optimizer's memory with what [`Trainer::check_moments`] has seen.
    pub(super) fn set_moments(&self, moments: &Weights) -> Result<()> {
        for (name, _, slots) in self.moment_slots() {
            if let Some(moment) = moments.get(&name) {
                self.session.write(slots, &moment.data)?;
            }
        }
        Ok(())
    }

    fn check_same_run(&self, folder: &Path, saved: &RunRecord) -> Result<()> {
        let asked = &self.record;
        let path = folder.join(RUN_FILE);
        let kinds = [
            ("the model", format!("{:?}", saved.model.model), format!("{:?}", asked.model.model)),
            ("the data set", saved.dataset.clone(), asked.dataset.clone()),
        ];
        let differ = |(_, saved, asked): &(&str, String, String)| saved != asked;
        if let Some((what, saved, asked)) = kinds.into_iter().find(differ) {
            return Err(Error::OtherRun { path, what, saved, asked });
        }
        self.check_same_data(&path, saved)?;
        let differs = [
            ("edges", saved.edges.to_string(), asked.edges.to_string()),
            ("passes", format!("{:?}", saved.passes), format!("{:?}", asked.passes)),
            ("vertices", saved.vertices.to_string(), asked.vertices.to_string()),
            ("feature norm", saved.model.feature_norm.to_string(), asked.model.feature_norm.to_string()),
            ("dtype", saved.model.dtype.to_string(), asked.model.dtype.to_string()),
            ("seed", saved.seed.to_string(), asked.seed.to_string()),
            ("the optimizer", format!("{:?}", saved.optimizer), format!("{:?}", asked.optimizer)),
            ("decay of layers", format!("{:?}", saved.decay_layers), format!("{:?}", asked.decay_layers)),
        ];
        match differs.into_iter().find(differ) {
            Some((what, saved, asked)) => Err(Error::OtherRun { path, what, saved, asked }),
            None => Ok(()),
        }
    }

    /// That the data has not changed since the run was saved.
    fn check_same_data(&self, path: &Path, saved: &RunRecord) -> Result<()> {
        let Some(fingerprint) = &saved.fingerprint else {
            // Records without digests of their files have said so already.
            if saved.model.format > checkpoint::UNVERIFIED_FORMAT {
                tracing::warn!(
                    "{} does not say what the data was: whether it changed cannot be found out",
                    path.display()
                );
            }
            return Ok(());
        };
        let changed = fingerprint.differences(self.data.fingerprint());
        if changed.is_empty() {
            return Ok(());
        }
        let (dataset, what) = (saved.dataset.clone(), changed.join(", "));
        Err(Error::DataChanged { path: path.into(), dataset, what })
    }

    /// The optimizer's memory: name in the file, the parameter that it belongs to, and where it lies.
    fn moment_slots(&self) -> Vec<(String, &Parameter, &[Slot])> {
        let count = self.record.optimizer.moment_count();
        let every = self.parameters.iter().flat_map(|p| (1..=count).map(move |which| (p, which)));
        every
            .filter_map(|(parameter, which)| {
                let origin = Origin::Moment { parameter: parameter.name.clone(), which };
                Some((format!("{}.moment{which}", parameter.name), parameter, self.session.origin(&origin)?))
            })
            .collect()
    }

    pub(super) fn moments(&self) -> Result<Weights> {
        let mut moments = Weights::default();
        for (name, parameter, slots) in self.moment_slots() {
            moments.insert(&name, Weight { shape: parameter.shape.clone(), data: self.session.read(slots)? });
        }
        Ok(moments)
    }

    fn read_parameters<'a>(&self, slots: impl Fn(&str) -> Option<&'a [Slot]>) -> Result<Weights> {
        let mut weights = Weights::default();
        for parameter in &self.parameters {
            if let Some(slots) = slots(&parameter.name) {
                let data = self.session.read(slots)?;
                weights.insert(&parameter.name, Weight { shape: parameter.shape.clone(), data });
            }
        }
        Ok(weights)
    }
}
