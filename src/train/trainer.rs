//! The trainer: trains a model on a dataset, one epoch at a time.

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

/// Indices of the phases of the lowered programs.
pub(super) const TRAIN_PHASE: usize = 0;
const EVALUATE_PHASE: usize = 1;

/// The phases of an epoch with an evaluation, of an epoch without one, and of an evaluation alone.
pub(super) const EVALUATED_EPOCH: &[usize] = &[TRAIN_PHASE, EVALUATE_PHASE];
pub(super) const PLAIN_EPOCH: &[usize] = &[TRAIN_PHASE];
pub(super) const EVALUATION: &[usize] = &[EVALUATE_PHASE];

/// Results of one epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Number of the epoch, from 1.
    pub epoch: u64,
    /// The loss before the epoch's update: the mean cross-entropy over the training split, or the loss of
    /// [`Model::loss`].
    pub loss: f64,
    /// Accuracy of the updated parameters; `None` in epochs without evaluation.
    pub accuracy: Option<Accuracy>,
    /// Seconds of training, without evaluation.
    pub seconds: f64,
    /// Seconds of evaluation.
    pub eval_seconds: f64,
    /// Bytes copied to devices, including evaluation.
    pub bytes_to_device: u64,
    /// Bytes copied to the host, including evaluation.
    pub bytes_to_host: u64,
    /// Bytes that the plan copies to devices and to the host, including evaluation.
    pub planned_bytes: [u64; 2],
    /// Bytes copied from device to device, including evaluation.
    pub bytes_between_devices: u64,
    /// Bytes that the plan copies from device to device, including evaluation.
    pub planned_bytes_between_devices: u64,
}

/// Trains a model on a dataset, one full-graph epoch at a time.
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
    /// Kept for its fingerprint, which is computed when it is first needed. Shares its arrays with `setup`.
    pub(super) data: Dataset,
    pub(super) setup: Setup,
    /// `None` unless there are several devices and the split is learned.
    pub(super) learning: Option<Learning>,
    pub(super) start_up: StartUp,
    pub(super) part_seconds: Vec<f64>,
    pub(super) last_move: Option<Move>,
    /// Peak bytes of the devices with earlier splits: measured and planned.
    pub(super) earlier_peaks: [Vec<u64>; 2],
    pub(super) keeps_gradients: bool,
    pub(super) labels: LabelKind,
    /// For each term of the loss, the name of its output in the training phase and its weight in the sum.
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
    /// Returns a builder of a trainer of `model` on `data`.
    pub fn builder<'a>(model: &'a Model, data: &'a Dataset) -> TrainerBuilder<'a> {
        TrainerBuilder::new(model, data)
    }

    /// Runs the next epoch: forward, backward, update, and an evaluation if one is due.
    ///
    /// # Errors
    /// [`Error::Diverged`] or [`Error::NotFiniteAtStart`] if the loss is not finite; [`Error::Device`].
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

    /// Evaluates the current parameters on all splits, and keeps them as the best if their validation accuracy is the
    /// best so far. Without a validation split, or with [`TrainerBuilder::eval_every`] 0, the newest parameters count
    /// as the best.
    ///
    /// # Errors
    /// [`Error::Weights`] if parameters that would be kept are not finite; [`Error::Device`].
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

    /// Starts recording when every kernel and copy of an epoch runs; see [`Trainer::trace`].
    pub fn start_trace(&mut self) {
        self.trace = Some(Trace::new(self.session.device_names()));
    }

    /// Stops recording. Epochs on GPUs are faster without a trace.
    pub fn stop_trace(&mut self) {
        self.trace = None;
    }

    /// Returns the trace of the last epoch, also if its loss was not finite; `None` without [`Trainer::start_trace`]. A
    /// [`TraceFile`](crate::TraceFile) keeps many epochs.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Returns the plan of an epoch as text: for each device one line per step, with what is stored, evicted, loaded
    /// and published.
    pub fn explain(&self) -> String {
        self.session.explain()
    }

    /// Returns the number of epochs run, including those before a resumption.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the epoch with the best validation accuracy so far; the earliest on a tie. Without a validation split,
    /// or with [`TrainerBuilder::eval_every`] 0, this is the newest evaluated epoch.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// Returns the current parameters.
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

    /// Returns the gradients of the last step, by parameter.
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
    /// [`Error::Weights`] if their names or shapes are not those of this model.
    pub fn set_weights(&self, weights: &Weights) -> Result<()> {
        weights.check(&self.record.model.model.name, &self.parameters)?;
        for (name, weight) in weights.iter() {
            if let Some(slots) = self.session.origin(&Origin::Parameter(name.into())) {
                self.session.write(slots, &weight.data)?;
            }
        }
        Ok(())
    }

    /// Sets the learning rate of the next epochs.
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

    /// Returns the time that was needed before the first epoch could run.
    pub fn start_up(&self) -> StartUp {
        self.start_up
    }

    /// Returns the number of tiles that each device's part is split into so that every operation fits; 1 without
    /// tiling.
    pub fn tiles(&self) -> usize {
        self.session.tiles()
    }

    /// Returns the peak of each device's memory so far, in bytes.
    pub fn peak_device_bytes(&self) -> Vec<u64> {
        larger(self.session.peak_bytes(), &self.earlier_peaks[0])
    }

    /// Returns the planned peak of each device's memory, in bytes.
    pub fn planned_peak_device_bytes(&self) -> Vec<u64> {
        larger(self.session.planned_peak_bytes(), &self.earlier_peaks[1])
    }

    /// Returns the kind of label, which decides the metric of [`Accuracy`].
    pub fn label_kind(&self) -> LabelKind {
        self.labels
    }

    /// Returns the storage type of matrices with one row per vertex.
    pub fn dtype(&self) -> StorageType {
        self.record.model.dtype
    }

    /// Returns the vertex range of each device.
    pub fn parts(&self) -> &[[usize; 2]] {
        &self.record.parts
    }

    /// Returns a predictor with the best parameters so far, or the current parameters if none were evaluated.
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
    /// Two runs that save into one folder overwrite each other. This method takes no lock; a program that may run twice
    /// takes a [`RunLock`](crate::RunLock) first, as the command does.
    ///
    /// # Cost
    /// The first call also computes [`Dataset::fingerprint`], unless that was done before.
    ///
    /// # Errors
    /// [`Error::Weights`] if the weights are not finite, and then no file is touched. [`Error::Io`]; the folder then
    /// still has a complete checkpoint if it had one before.
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

    /// Returns the learned cost model, refitted to the newest measurements.
    fn learned(&self) -> Option<CostModel> {
        let mut model = self.learning.as_ref()?.learner.model().clone();
        model.refit();
        Some(model)
    }

    /// Continues from the newest checkpoint in `dir`. Returns its epoch; if there is no checkpoint, returns `None` and
    /// changes nothing.
    ///
    /// The next epochs are those of the run without the interruption, bit for bit as long as the split is the same. A
    /// learned split continues from the split and the cost model of the checkpoint, if there are as many devices.
    ///
    /// Every file of the checkpoint is verified with its digest, and the data with the digests in the run record.
    ///
    /// # Errors
    /// [`Error::OtherRun`] if the run had another model, dataset, feature norm, storage type, seed, optimizer, decay or
    /// passes; [`Error::DataChanged`] if the graph, features, labels or splits have changed; [`Error::Damaged`];
    /// [`Error::Io`], [`Error::RunRecord`], [`Error::Parts`], [`Error::Weights`], [`Error::CostModel`].
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

    /// Restores the splits of a checkpoint whose epoch is [`Trainer::epoch`].
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

    /// Checks that all moments of the optimizer are present, with the shapes of this model's parameters.
    fn check_moments(&self, moments: &Weights) -> Result<()> {
        for (name, parameter, _) in self.moment_slots() {
            let single: Weights = moments.iter().filter(|(n, _)| *n == name).collect();
            single.check(&self.record.model.model.name, &[Parameter { name, ..parameter.clone() }])?;
        }
        Ok(())
    }

    /// Replaces the optimizer's moments with ones that [`Trainer::check_moments`] has checked.
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
            ("the dataset", saved.dataset.clone(), asked.dataset.clone()),
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

    /// Checks that the data has not changed since the run was saved.
    fn check_same_data(&self, path: &Path, saved: &RunRecord) -> Result<()> {
        let Some(fingerprint) = &saved.fingerprint else {
            // For records of the unverified format, the reader has already printed a warning.
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

    /// Returns the optimizer's moments: the name in the file, the parameter, and the slots.
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
