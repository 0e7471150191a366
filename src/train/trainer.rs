//! The trainer: trains a model on a dataset, one epoch at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use lapidary_cost_model::CostModel;
use lapidary_kernels::{Matmul, Slot, StorageType};

use super::batches::{BatchedEpoch, OnBatch};
use super::embedding::{Embedding, EmbeddingSize};
use super::epoch::gradient_name;
use super::optimizer::check_learning_rate;
use super::record::Change;
use super::running::TRAIN_PHASE;
use super::splits::{Learning, Setup, larger};
use super::{Best, Move, RunRecord, Snapshot, StageSeconds, TrainerBuilder};
use crate::bind::if_unchanged;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::graph::VertexOrder;
use crate::infer::{Accuracy, ModelRecord, Position, Predictor, TrainedOn};
use crate::lower::SumMode;
use crate::model::{LabelKind, Model, Parameter, Weight, Weights};
use crate::plan::Locality;
use crate::program::{EMBEDDING, Origin};
use crate::runtime::{MeasuredCall, Note, Partition, Session, StartUp, Trace};

/// A snapshot is taken when the epochs since the last one took this many times as long as a snapshot takes.
const SNAPSHOT_INTERVAL: f64 = 100.0;

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
    /// Seconds that the stages of mini-batches worked; `None` for a full-graph epoch.
    pub stages: Option<StageSeconds>,
    /// Seconds that the stages of an evaluation on mini-batches worked; `None` without one.
    pub eval_stages: Option<StageSeconds>,
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

/// Trains a model on a dataset, one epoch at a time: full-graph epochs, or epochs of mini-batches.
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
    /// What has been run of the next epoch.
    pub(super) progress: BatchedEpoch,
    pub(super) best: Option<Best>,
    pub(super) best_weights: Arc<Weights>,
    /// A recent state with finite numbers; `None` if the state was changed from outside since then.
    pub(super) last_good: Option<Arc<Snapshot>>,
    /// Learning rates that were set since the last snapshot, each with its first epoch.
    pub(super) new_rates: Vec<(u64, f64)>,
    /// Seconds that the last snapshot took.
    pub(super) snapshot_s: f64,
    /// Seconds of epochs since the last snapshot.
    pub(super) since_snapshot_s: f64,
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
    /// Whether the session has run a step since its state was set.
    pub(super) has_gradients: bool,
    pub(super) labels: LabelKind,
    /// What the model reads in place of features, if it is learned.
    pub(super) embedding: Option<Embedding>,
    /// For each term of the loss, the name of its output in the training phase and its weight in the sum.
    pub(super) losses: Vec<(String, f64)>,
    pub(super) trace: Option<Trace>,
    pub(super) on_batch: Option<OnBatch>,
    pub(super) record: RunRecord,
    /// The number of a signal that asks this rank to end.
    pub(super) signal: Arc<AtomicUsize>,
    /// What the ranks said in the last epoch, together.
    pub(super) said: Note,
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

    /// Runs the next epoch, or what is left of it: forward, backward, update, and an evaluation if one is due.
    ///
    /// If the loss, a parameter or a moment is not finite, the trainer returns to [`Trainer::last_good`] and runs the
    /// epochs since then again, one call after the other, to find where a number first was not finite.
    ///
    /// # Errors
    /// [`Error::Diverged`] or [`Error::NotFiniteAtStart`] if numbers are not finite. [`Error::Dataset`] if the files of
    /// the dataset have changed, after which the state is not to be trusted. [`Error::Device`].
    pub fn step(&mut self) -> Result<Epoch> {
        let done = self.step_now(u64::MAX, false);
        let epoch = self.setup.options.ranks.telling(done)?;
        Ok(epoch.expect("nothing ends an epoch before its last batch"))
    }

    /// Runs at most the next `batches` mini-batches of an epoch, at least one. Returns the epoch if that was the end of
    /// it, and `None` before. On the whole graph, it is [`Trainer::step`].
    ///
    /// Between two calls, a [`Trainer::snapshot`] has the state within the epoch, and a run that is resumed from it goes
    /// on with the next batch. How an epoch is divided changes no bit of the parameters, nor of the loss.
    ///
    /// ```
    /// use lapidary::sample::NeighborSampler;
    /// use lapidary::{Batches, CheckpointWriter, Dataset, Model, Position, Trainer};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let data = Dataset::builtin("planted")?;
    /// let model = Model::sage(&[data.feature_width(), 8, data.class_count()]);
    /// let batches = Batches::new(20, NeighborSampler::new("5,5".parse()?));
    /// let mut trainer = Trainer::builder(&model, &data).batches(batches).build()?;
    /// let mut writer = CheckpointWriter::open(folder.path(), 2)?;
    /// let epoch = loop {
    ///     match trainer.step_batches(3)? {
    ///         Some(epoch) => break epoch,
    ///         None => writer.write(trainer.snapshot()?)?,
    ///     }
    /// };
    /// writer.finish()?;
    /// assert_eq!(epoch.stages.unwrap().batches, 7);
    /// trainer.resume(folder.path())?;
    /// assert_eq!(trainer.position(), Position { epoch: 0, batch: 6 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Trainer::step`]. After [`Error::Batch`], the batches before that one have been run, and the next call tries it
    /// again, be it a batch of training or of the evaluation at the end.
    /// # Cost
    /// Batches are prepared ahead within a call only: each call waits for its first batch.
    pub fn step_batches(&mut self, batches: u64) -> Result<Option<Epoch>> {
        let done = self.step_now(batches.max(1), true);
        self.setup.options.ranks.telling(done)
    }

    /// Runs the next batches of an epoch. If `ends_on_signal`, they end after the batch in which a signal asks for it.
    fn step_now(&mut self, batches: u64, ends_on_signal: bool) -> Result<Option<Epoch>> {
        if self.last_good.is_none() {
            self.snapshot()?;
        }
        let start = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| self.run_epoch(batches, ends_on_signal)));
        let epoch = if_unchanged(&self.data, done)?;
        self.since_snapshot_s += start.elapsed().as_secs_f64();
        // After a divergence, all ranks return to the same snapshot, so one of several takes it when rank 0 has said so.
        let is_due = match self.setup.options.ranks.count() {
            1 => self.is_snapshot_due(),
            _ => self.said.snapshot,
        };
        if is_due {
            self.snapshot()?;
        }
        Ok(epoch)
    }

    pub(super) fn is_snapshot_due(&self) -> bool {
        self.since_snapshot_s >= SNAPSHOT_INTERVAL * self.snapshot_s
    }

    /// Returns the number of a signal that had asked any rank to end before the last epoch was over; 0 if there was none.
    /// It is the same on all ranks.
    #[cfg(feature = "command")]
    pub(crate) fn signalled(&self) -> usize {
        self.said.signal
    }

    /// Sets where this trainer finds the number of a signal, 0 for none. While there is one on any rank,
    /// [`Trainer::step_batches`] ends after the mini-batch that runs, before an evaluation.
    pub fn watch(&mut self, signal: Arc<AtomicUsize>) {
        self.signal = signal;
    }

    /// Evaluates the current parameters on all splits, and keeps them as the best if their validation accuracy is the
    /// best so far. Without a validation split, or with [`TrainerBuilder::eval_every`] 0, the newest parameters count
    /// as the best. Within an epoch, nothing is kept: the best parameters are those at the end of an epoch.
    ///
    /// # Errors
    /// [`Error::Diverged`] or [`Error::NotFiniteAtStart`] if parameters that would be kept are not finite;
    /// [`Error::Device`].
    pub fn evaluate(&mut self) -> Result<Accuracy> {
        let done = self.evaluate_now();
        self.setup.options.ranks.telling(done)
    }

    fn evaluate_now(&mut self) -> Result<Accuracy> {
        let (accuracy, ..) = self.run_evaluation(false)?;
        if self.position().batch == 0 {
            self.keep_if_best(accuracy)?;
        }
        Ok(accuracy)
    }

    pub(super) fn keep_if_best(&mut self, accuracy: Accuracy) -> Result<()> {
        let improves = match (&self.best, accuracy.val) {
            (Some(best), Some(val)) if self.eval_every > 0 => best.val_accuracy.is_none_or(|had| val > had),
            _ => true,
        };
        if improves {
            let weights = self.weights()?;
            self.check_finite(&weights)?;
            let Accuracy { train, val, test } = accuracy;
            self.best = Some(Best { epoch: self.epoch, train_accuracy: train, val_accuracy: val, test_accuracy: test });
            self.best_weights = Arc::new(weights);
        }
        Ok(())
    }

    /// Sets what is called after each mini-batch, with its number in the epoch, from 1, and the number of batches.
    pub fn on_batch(&mut self, call: impl FnMut(u64, u64) + Send + 'static) {
        self.on_batch = Some(Box::new(call));
    }

    /// Starts recording when every kernel and copy of an epoch runs, and every stage of mini-batches; see [`Trainer::trace`].
    pub fn start_trace(&mut self) {
        self.trace = Some(self.session.trace());
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

    /// Returns the kernel calls and copies of the last epoch, if it was traced; none on mini-batches.
    pub(crate) fn measured_calls(&self, locality: &Locality) -> Vec<MeasuredCall> {
        let (Some(trace), (_, phases)) = (&self.trace, self.phases(self.epoch)) else { return Vec::new() };
        let sharing = self.setup.options.devices.sharing_cores();
        let locality = locality.clone().with_place(self.setup.options.devices.in_place());
        self.session.measured_calls(phases, trace.spans(), (&locality, sharing))
    }

    /// Returns the name of the profile of the devices.
    #[cfg(feature = "command")]
    pub(crate) fn profile_name(&self) -> String {
        self.setup.options.devices.profile()
    }

    /// Returns the plan of an epoch as text: for each device one line per step, with what is stored, evicted, loaded
    /// and published.
    pub fn explain(&self) -> String {
        self.session.explain()
    }

    /// Returns the number of whole epochs run, including those before a resumption.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how far the run has come: its epochs, and the mini-batches of the next one. If all of them
    /// were run, only the evaluation of the epoch is left.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, batch: self.progress.partial.batches }
    }

    /// Returns the order to which the vertices of its dataset were brought in memory.
    pub fn vertex_order(&self) -> VertexOrder {
        self.data.order()
    }

    /// Returns the number of mini-batches of an epoch; `None` on the whole graph.
    pub fn batches_per_epoch(&self) -> Option<u64> {
        self.setup.batches.as_ref().map(|(feeder, _)| feeder.drawing.count() as u64)
    }

    /// Returns the epoch with the best validation accuracy so far; the earliest on a tie. Without a validation split,
    /// or with [`TrainerBuilder::eval_every`] 0, this is the newest evaluated epoch.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// Returns the current parameters. A learned embedding is among them, as `embedding.weight`; with several ranks, all of
    /// them have to call it then.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn weights(&self) -> Result<Weights> {
        let mut weights = self.read_parameters(|name| self.session.origin(&Origin::Parameter(name.into())))?;
        for parameter in self.parameters.iter().filter(|p| !p.trained) {
            let data = vec![0.0; parameter.shape.iter().product()];
            weights.insert(&parameter.name, Weight { shape: parameter.shape.clone(), data });
        }
        if let Some(table) = &self.embedding {
            table.add_rows(&mut weights)?;
        }
        Ok(weights)
    }

    /// Returns the size of the learned embedding, with [`TrainerBuilder::embedding`].
    pub fn embedding(&self) -> Option<EmbeddingSize> {
        self.embedding.as_ref().map(Embedding::size)
    }

    /// Returns the gradients of the last step, by parameter. Those of a learned embedding are not among them.
    ///
    /// # Errors
    /// [`Error::NoGradients`] before the first step, also after a [`Trainer::restore`] or [`Trainer::resume`], and without
    /// [`TrainerBuilder::keep_gradients`]; [`Error::Device`].
    pub fn gradients(&self) -> Result<Weights> {
        if !self.keeps_gradients || !self.has_gradients {
            return Err(Error::NoGradients);
        }
        let of_network = |name: &str| name != EMBEDDING;
        self.read_parameters(|name| self.session.output(TRAIN_PHASE, &gradient_name(name)).filter(|_| of_network(name)))
    }

    /// Replaces the parameters.
    ///
    /// # Errors
    /// [`Error::Weights`] if their names or shapes are not those of this model.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<()> {
        weights.check(&self.record.model.model.name, &self.parameters)?;
        self.last_good = None;
        self.write_weights(weights)
    }

    /// Replaces the parameters by ones that were checked.
    pub(super) fn write_weights(&mut self, weights: &Weights) -> Result<()> {
        if let Some(table) = &mut self.embedding {
            table.set_rows(weights);
        }
        for (name, weight) in weights.iter() {
            if let Some(slots) = self.session.origin(&Origin::Parameter(name.into())) {
                self.session.write(slots, &weight.data)?;
            }
        }
        Ok(())
    }

    /// Returns the learning rate of the next epoch.
    pub fn learning_rate(&self) -> f64 {
        self.record.learning_rate
    }

    /// Returns the learning rate that the run was last asked for by the builder or by
    /// [`Trainer::change_learning_rate`], also if a schedule has changed it since.
    pub fn asked_learning_rate(&self) -> f64 {
        self.record.asked_learning_rate()
    }

    /// Sets the learning rate of the next epochs.
    ///
    /// # Errors
    /// [`Error::Value`] if it is negative or not finite as an f32, and then nothing changes; [`Error::Device`].
    pub fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        check_learning_rate(lr)?;
        self.new_rates.push((self.epoch + 1, lr));
        self.write_learning_rate(lr)
    }

    pub(super) fn write_learning_rate(&mut self, lr: f64) -> Result<()> {
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

    /// Returns the number of strips of columns that wide matrices are cut into; 1 if none is.
    pub fn strips(&self) -> usize {
        self.session.strips()
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

    /// Returns how gradients are added over several devices.
    pub fn sums(&self) -> SumMode {
        self.setup.options.devices.chosen_sums()
    }

    /// Returns how matrices are multiplied; `None` if the devices have one way only.
    pub fn matmul(&self) -> Option<Matmul> {
        self.setup.options.matmul(self.dtype())
    }

    /// Returns the vertex range of each device.
    pub fn parts(&self) -> &[[usize; 2]] {
        &self.record.parts
    }

    /// Returns a predictor with the best parameters so far, or the current parameters if none were evaluated. With several
    /// ranks and an embedding, all of them have to call it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn predictor(&self) -> Result<Predictor> {
        let weights = if self.best.is_some() { (*self.best_weights).clone() } else { self.weights()? };
        let mut options = self.setup.options.clone();
        if options.partition.learns() {
            options.partition = Partition::default();
        }
        let ModelRecord { feature_norm, dtype, made_features, ref classes, .. } = self.record.model;
        let predictor = Predictor::new(&self.model, weights, Some(feature_norm))?.dtype(dtype);
        let predictor = predictor.made_features(made_features);
        let predictor = predictor.options(options).cost_model(self.learned()).classes(classes.clone());
        Ok(match self.embedding {
            Some(_) => {
                let (dataset, graph) = (self.record.dataset.clone(), Some(self.data.fingerprint().graph.clone()));
                predictor.trained_on(TrainedOn { dataset, graph })
            }
            None => predictor,
        })
    }

    /// Returns the learned cost model, refitted to the newest measurements.
    fn learned(&self) -> Option<CostModel> {
        let mut model = self.learning.as_ref()?.learner.model().clone();
        model.refit();
        Some(model)
    }

    /// Sets the learning rate as [`Trainer::set_learning_rate`] does, and records the change and its reason in the run
    /// record. The command does so if a resumed run is asked for another rate (`resume`), and when it returns to an
    /// earlier state because numbers were not finite (`rollback`).
    ///
    /// # Errors
    /// As [`Trainer::set_learning_rate`].
    pub fn change_learning_rate(&mut self, lr: f64, why: &str) -> Result<()> {
        let (epoch, from) = (self.epoch + 1, self.record.learning_rate);
        self.set_learning_rate(lr)?;
        let (what, why) = ("learning_rate".into(), why.into());
        self.record.changes.push(Change { epoch, what, from, to: lr, why });
        Ok(())
    }

    /// Replaces the optimizer's moments with ones that [`Trainer::check_moments`] has checked.
    pub(super) fn set_moments(&mut self, moments: &Weights) -> Result<()> {
        if let Some(table) = &mut self.embedding {
            table.set_moments(moments);
        }
        for (name, _, slots) in self.moment_slots() {
            if let Some(moment) = moments.get(&name) {
                self.session.write(slots, &moment.data)?;
            }
        }
        Ok(())
    }

    /// Returns the optimizer's moments: the name in the file, the parameter, and the slots.
    pub(super) fn moment_slots(&self) -> Vec<(String, &Parameter, &[Slot])> {
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
        if let Some(table) = &self.embedding {
            table.add_moments(&mut moments)?;
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
