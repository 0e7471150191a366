//! The builder of a trainer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use lapidary_cost_model::CostModel;
use lapidary_kernels::StorageType;

use super::batches::{BatchedEpoch, Batches, Drawing, Feeder};
use super::embedding::{Embedding, check_embedding, wrong};
use super::epoch::{
    EXPECTED_EPOCHS, EpochSpec, TrainingProgram, evaluation_over, evaluation_program, gradient_name, training_program,
};
use super::running::{PLAIN_EPOCH, TRAIN_PHASE};
use super::splits::{Learning, Setup};
use super::{Adam, ClassWeights, DecayLayers, Optimizer, RunRecord, Trainer};
use crate::bind::{bind, bind_with, feature_kind, label_kind, model_for, watched};
use crate::dataset::{Dataset, FeatureNorm, TRAIN};
use crate::error::{Error, Result};
use crate::infer::checkpoint::{Classes, ModelRecord};
use crate::infer::digests::digest;
use crate::lower::{FeatureData, Inputs, SumMode};
use crate::model::{FeatureKind, Model, Weights, initial_weights};
use crate::program::{EMBEDDING, Program};
use crate::runtime::{Learner, Note, Partition, RunOptions, Runs, SplitRecord, StartUp, prior, run_option_setters};
use crate::versions::RECORD_FORMAT;

/// Settings of a [`Trainer`] before it is built: see [`Trainer::builder`].
#[derive(Clone, Debug)]
pub struct TrainerBuilder<'a> {
    model: &'a Model,
    data: &'a Dataset,
    options: RunOptions,
    optimizer: Optimizer,
    decay_layers: DecayLayers,
    class_weights: ClassWeights,
    feature_norm: Option<FeatureNorm>,
    dtype: StorageType,
    seed: u64,
    eval_every: u64,
    keep_gradients: bool,
    weights: Option<Weights>,
    epochs: Option<u64>,
    batches: Option<Batches>,
    embedding: Option<usize>,
}

impl<'a> TrainerBuilder<'a> {
    /// Returns a builder with the defaults; each setter documents its own.
    pub(super) fn new(model: &'a Model, data: &'a Dataset) -> Self {
        Self {
            model,
            data,
            options: RunOptions::default(),
            optimizer: Adam::new(0.01).into(),
            decay_layers: DecayLayers::All,
            class_weights: ClassWeights::Equal,
            feature_norm: None,
            dtype: StorageType::F32,
            seed: 0,
            eval_every: 1,
            keep_gradients: false,
            weights: None,
            epochs: None,
            batches: None,
            embedding: None,
        }
    }

    /// Sets all run options at once: devices, memory, partition and passes.
    pub fn options(mut self, options: RunOptions) -> Self {
        self.options = options;
        self
    }

    run_option_setters!(self => self.options);

    /// Sets whether each step's gradients are kept on the host, for [`Trainer::gradients`]. Off by default.
    pub fn keep_gradients(mut self, keep: bool) -> Self {
        self.keep_gradients = keep;
        self
    }

    /// Sets the optimizer; Adam with a learning rate of 0.01 by default.
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Self {
        self.optimizer = optimizer.into();
        self
    }

    /// Sets the layers to which weight decay applies; all by default.
    pub fn decay_layers(mut self, layers: DecayLayers) -> Self {
        self.decay_layers = layers;
        self
    }

    /// Sets how much the classes count in the loss; all vertices count alike by default. This is for data with one class per
    /// vertex, where some classes have few vertices.
    pub fn class_weights(mut self, weights: ClassWeights) -> Self {
        self.class_weights = weights;
        self
    }

    /// Sets the normalisation of features; by default [`Dataset::default_feature_norm`].
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.feature_norm = Some(norm);
        self
    }

    /// Sets the storage type of matrices with one row per vertex: dense features, activations and their gradients. f32
    /// by default.
    ///
    /// [`StorageType::Bf16`] halves their memory and the bytes that they move. Each number is rounded once, when it is
    /// stored. Each weight is rounded when it is multiplied with such rows. Kernels compute and sum in f32. Parameters,
    /// their gradients, the optimizer's moments and losses are f32 in any case.
    pub fn dtype(mut self, dtype: StorageType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets the seed of initial weights and dropout; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of epochs from one evaluation to the next; 1 by default, 0 for never.
    pub fn eval_every(mut self, epochs: u64) -> Self {
        self.eval_every = epochs;
        self
    }

    /// Sets the weights to start from, instead of random ones.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Sets the number of epochs that will run, including those before a resumption. Vertices move to other devices
    /// only if that pays within these epochs. Without it, 100 epochs are assumed; [`Trainer::step`] can be called any
    /// number of times in either case.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Trains on mini-batches: [`Trainer::step`] then runs an epoch of them. Evaluations are over the whole graph, and
    /// exact, unless [`Batches::evaluation`] says otherwise. Without it, an epoch is one step on the whole graph.
    ///
    /// The model gathers as often, one gather behind the other, as the sampler has layers. Sums over in-neighbours are
    /// estimated without bias: an edge that was drawn counts as often as the edges that it stands for.
    pub fn batches(mut self, batches: Batches) -> Self {
        self.batches = Some(batches);
        self
    }

    /// Learns a row of `width` numbers for each vertex, which the model reads in place of features; the dataset needs none.
    /// It needs [`TrainerBuilder::batches`]. Without it, the model reads the features of the dataset.
    ///
    /// Initial rows are drawn from the standard normal distribution, as in `torch.nn.Embedding`. A batch updates the rows
    /// that it read, as `torch.optim.SparseAdam` with the learning rate, betas and eps of the optimizer, or as SGD.
    /// Weight decay does not apply to them. The rows are of the vertices of this graph: there are none for another one.
    ///
    /// ```
    /// use lapidary::sample::NeighborSampler;
    /// use lapidary::{Batches, Dataset, Model, Trainer};
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::sage(&[16, 8, data.class_count()]);
    /// let batches = Batches::new(2, NeighborSampler::new("5,5".parse()?));
    /// let mut trainer = Trainer::builder(&model, &data).batches(batches).embedding(16).build()?;
    /// trainer.step()?;
    /// assert_eq!(trainer.weights()?.get("embedding.weight").unwrap().shape, [34, 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn embedding(mut self, width: usize) -> Self {
        self.embedding = Some(width);
        self
    }

    /// Writes the programs, binds them to the data, and opens the devices with everything in place.
    ///
    /// # Errors
    /// [`Error::Value`], [`Error::DataLacks`], [`Error::FeatureWidth`], [`Error::ClassCount`], [`Error::Model`],
    /// [`Error::Weights`], [`Error::DoesNotFit`], [`Error::Device`]. Settings that cannot work are reported here, not
    /// by a later step.
    pub fn build(self) -> Result<Trainer> {
        let (data, ranks) = (self.data, self.options.ranks.clone());
        ranks.telling(watched(data, || self.build_now()))
    }

    fn build_now(self) -> Result<Trainer> {
        let data = self.data;
        self.optimizer.check()?;
        // Before anything is shared, so that each rank says the same.
        self.batches.as_ref().map_or(Ok(()), |batches| batches.check_ranks(&self.options.ranks))?;
        check_data(data, self.model)?;
        if let Some(width) = self.embedding {
            check_embedding(width, self.model, self.batches.as_ref(), (self.dtype, self.feature_norm))?;
            // Rows and moments have 12 bytes for each number, at most.
            if data.graph().vertex_count().checked_mul(width).is_none_or(|count| count > isize::MAX as usize / 12) {
                return Err(wrong(width, "there is no memory for the rows; use fewer numbers".into()));
            }
        }
        let features = match self.embedding {
            Some(width) => FeatureKind::Learned { width },
            None => feature_kind(data, self.batches.is_some())?,
        };
        let model = model_for(self.model, data, features)?;
        let (feature_norm, inputs) = match self.embedding {
            Some(_) => (FeatureNorm::None, bind_with(data, FeatureData::none(), model.config().weighted())),
            None => {
                let norm = self.feature_norm.unwrap_or_else(|| data.default_feature_norm());
                (norm, bind(data, norm, model.config().weighted(), self.batches.is_some())?)
            }
        };
        let class_weights = self.class_weights.scaled(data)?;
        let inputs = Inputs { class_weights: class_weights.clone().map(Into::into), ..inputs };
        let spec = EpochSpec {
            model: &model,
            features,
            labels: label_kind(data),
            vertices: data.graph().vertex_count() as u64,
            edges: data.graph().edge_count() as u64,
            optimizer: &self.optimizer,
            decay: self.decay_layers,
            weighted_classes: class_weights.is_some(),
            passes: self.options.passes,
            recompute: self.options.recompute,
            strips: self.options.strips,
            parts: self.options.part_count(),
            dtype: self.dtype,
            keeps_gradients: self.keep_gradients,
            batches: None,
        };
        let start = Instant::now();
        let fixed = || fixed_parts(&self.options, &inputs, &evaluation_program(&spec)?);
        let shared = self.batches.is_some().then(fixed).transpose()?;
        let shared_s = start.elapsed().as_secs_f64();
        let drawing = shared.as_ref().and_then(|parts| self.drawing(&inputs, parts).transpose()).transpose()?;
        let inputs = drawing.as_ref().map_or(inputs, |drawing| drawing.inputs().clone());
        let sampled = drawing.as_ref().and_then(|drawing| drawing.evaluation(data));
        let levels = |drawing: &Drawing| Ok::<_, Error>((drawing.layers(), drawing.expected_sizes()?));
        let batches = drawing.as_ref().map(levels).transpose()?;
        let evaluated = sampled.as_ref().map(levels).transpose()?;
        let spec = EpochSpec { batches, ..spec };
        let TrainingProgram { program: training, evaluation: whole, strips, instead, mut parameters, losses } =
            training_program(&spec)?;
        if let Some(width) = self.embedding.filter(|_| parameters.iter().any(|p| p.name == EMBEDDING)) {
            return Err(wrong(width, format!("the model has a parameter `{EMBEDDING}` already; give it another name")));
        }
        let evaluation = match evaluated {
            Some(_) => evaluation_over(&EpochSpec { batches: evaluated, ..spec })?,
            None => whole,
        };
        let gradients = parameters.iter().filter(|p| p.trained).map(|p| (TRAIN_PHASE, gradient_name(&p.name)));
        let mut keep: Vec<_> = if self.keep_gradients { gradients.collect() } else { Vec::new() };
        keep.extend(self.embedding.map(|_| (TRAIN_PHASE, gradient_name(EMBEDDING))));
        let mut setup = Setup {
            options: self.options.clone(),
            training,
            strips,
            instead,
            evaluation,
            inputs,
            eval_every: self.eval_every,
            seed: self.seed,
            keep,
            epochs: self.epochs.unwrap_or(EXPECTED_EPOCHS),
            batches: None,
            evaluator: None,
        };
        if let (Some(drawing), Some((_, sizes))) = (drawing, batches) {
            let supply = Arc::new(drawing.supply(setup.programs().map(|(_, program)| program)));
            setup.evaluator = sampled.map(|drawing| Feeder { drawing, supply: supply.clone(), store: None });
            // Training and evaluation share their slots, so one size bounds both.
            let sizes = evaluated.map_or(sizes, |(_, others)| sizes.or(&others));
            setup.batches = Some((Feeder { drawing, supply, store: None }, sizes));
        }
        let start = Instant::now();
        let (parts, learner) = match shared {
            Some(parts) => (parts, None),
            None => first_split(&setup)?,
        };
        setup.spread_batches(&parts)?;
        let size = self.embedding.map(|width| [data.graph().vertex_count(), width]);
        let made = size.map(|size| Embedding::new(size, self.optimizer, &self.options.ranks, &parts));
        let mut embedding = made.transpose()?;
        let split = Instant::now();
        let session = setup.open(parts, None)?;
        let learning = learner.map(|learner| Learning { learner, move_s: split.elapsed().as_secs_f64() });
        let opened = session.start_up();
        let plan_seconds = opened.plan_seconds + shared_s + (split - start).as_secs_f64();
        let start_up = StartUp { plan_seconds, ..opened };
        let splits = vec![SplitRecord { epoch: 1, parts: session.part_pairs() }];
        let initial = self.weights.as_ref().map(|weights| Ok::<_, Error>(digest(&weights.to_safetensors()?)));
        let initial_digest = initial.transpose()?;
        let mut weights = self.weights.unwrap_or_else(|| initial_weights(&parameters, self.seed));
        if let Some(table) = &mut embedding {
            // Weights that were given may lack it.
            if weights.get(EMBEDDING).is_none() {
                table.draw(self.seed);
                table.add_rows(&mut weights)?;
            }
            parameters.push(table.parameter());
        }
        let mut trainer = Trainer {
            parameters,
            epoch: 0,
            progress: BatchedEpoch::default(),
            best: None,
            best_weights: Arc::default(),
            last_good: None,
            new_rates: Vec::new(),
            snapshot_s: 0.0,
            since_snapshot_s: 0.0,
            eval_every: self.eval_every,
            model: model.clone(),
            data: data.clone(),
            labels: label_kind(data),
            embedding,
            losses,
            keeps_gradients: self.keep_gradients,
            has_gradients: false,
            trace: None,
            on_batch: None,
            learning,
            start_up,
            part_seconds: Vec::new(),
            last_move: None,
            earlier_peaks: [Vec::new(), Vec::new()],
            record: RunRecord {
                model: ModelRecord {
                    format: RECORD_FORMAT,
                    model: model.config().clone(),
                    feature_norm,
                    dtype: self.dtype,
                    embedding: self.embedding,
                    made_features: data.made_features(),
                    classes: Some(Classes::of(data)),
                },
                dataset: data.name().into(),
                vertices: data.graph().vertex_count(),
                fingerprint: None,
                reorder: data.order(),
                seed: self.seed,
                optimizer: self.optimizer,
                decay_layers: self.decay_layers,
                class_weights,
                epoch: 0,
                partial: None,
                best: None,
                edges: data.graph().edge_count(),
                learning_rate: self.optimizer.lr(),
                batches: self.batches.as_ref().map(Batches::record),
                epochs: self.epochs,
                initial_weights: initial_digest,
                matmul: self.options.matmul(self.dtype).map(|matmul| matmul.name().into()),
                sum: (self.options.devices.chosen_sums() == SumMode::Nccl).then(|| SumMode::Nccl.name().into()),
                changes: Vec::new(),
                passes: self.options.passes,
                parts: session.part_pairs(),
                splits,
            },
            setup,
            session,
            signal: Arc::default(),
            said: Note::default(),
        };
        trainer.set_weights(&weights)?;
        trainer.write_learning_rate(self.optimizer.lr())?;
        Ok(trainer)
    }
}

impl TrainerBuilder<'_> {
    /// Returns the mini-batches of the data, if epochs consist of them.
    fn drawing(&self, inputs: &Inputs, parts: &[Range<usize>]) -> Result<Option<Drawing>> {
        let Some(batches) = self.batches.clone() else { return Ok(None) };
        // Which rows stay on the devices follows from the shares of all ranks.
        let drawing = Drawing::new(batches, self.data, inputs, self.dtype, self.seed, parts.to_vec())?;
        Ok(Some(drawing.on_ranks(&self.options.ranks)))
    }
}

/// Returns the parts of the first epoch, and a learner if there are several devices and the partition is learned.
fn first_split(setup: &Setup) -> Result<(Vec<Range<usize>>, Option<Learner>)> {
    let Setup { options, inputs, .. } = setup;
    let devices = options.part_count();
    // Evaluations are measured too, but parts are balanced by the time of training.
    let mut learner = match options.partition.learns() && devices > 1 {
        true => {
            let prior = options.ranks.first(|| Ok(prior(&options.devices.profile())?.profile().clone()))?;
            let prior = CostModel::new(prior).expect("a measured profile is a good one");
            Some(Learner::new(prior, inputs, &setup.programs(), PLAIN_EPOCH))
        }
        false => None,
    };
    let parts = match (&options.partition, &learner) {
        (Partition::Strategy(_), Some(learner)) => options.ranks.first(|| Ok(learner.split(inputs, devices)))?,
        _ => fixed_parts(options, inputs, &setup.training)?,
    };
    if let Some(learner) = &mut learner {
        learner.settle(inputs, parts.clone());
    }
    Ok((parts, learner))
}

/// Returns the parts of the first epoch, which do not follow measurements of epochs. For mini-batches, `program` is an
/// evaluation over the whole graph.
fn fixed_parts(options: &RunOptions, inputs: &Inputs, program: &Program) -> Result<Vec<Range<usize>>> {
    let checked = options.parts(inputs, program, None, Runs::Many)?;
    Ok(options.partition.replayed(1).map_or(checked, <[_]>::to_vec))
}

/// Checks that the training split has labels, and that the model has at least as many outputs as there are classes.
fn check_data(data: &Dataset, model: &Model) -> Result<()> {
    let lacks = |what, needed_by| Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
    if data.labels().is_none() {
        return lacks("labels", "training needs labels.npy, or option `labels` when the dataset is made");
    }
    if data.split_size(TRAIN) == 0 {
        return lacks(
            "training split",
            "training needs train.npy, or option `train` when the dataset is made; `lapidary data import` draws one with \
             option `split`, as in 0.6,0.2,0.2",
        );
    }
    if data.class_count() == 0 || data.labelled_split_size(TRAIN) == 0 {
        return lacks("labelled vertex to train on", "training needs labels (not -1) on the vertices of train.npy");
    }
    let outputs = model.config().widths.last().copied().unwrap_or_default();
    if data.class_count() > outputs {
        return Err(Error::ClassCount { dataset: data.name().into(), data: data.class_count(), model: outputs });
    }
    Ok(())
}
