//! How a trainer is set up.

use bytesize::ByteSize;

use super::epoch::{EpochSpec, evaluation_program, training_program};
use super::{Adam, DecayLayers, Optimizer, RunRecord, Trainer};
use crate::bind::{bind, feature_kind, label_kind};
use crate::dataset::{Dataset, FeatureNorm, TRAIN};
use crate::error::{Error, Result};
use crate::infer::checkpoint::{ModelRecord, RECORD_FORMAT};
use crate::lower::{Sizes, lower};
use crate::model::{Model, Weights, initial_weights};
use crate::program::Passes;
use crate::runtime::{Devices, Session};

/// How a [`Trainer`] is set up: see [`Trainer::builder`].
#[derive(Clone, Debug)]
pub struct TrainerBuilder<'a> {
    model: &'a Model,
    data: &'a Dataset,
    devices: Devices,
    device_memory: Option<ByteSize>,
    optimizer: Optimizer,
    decay_layers: DecayLayers,
    feature_norm: Option<FeatureNorm>,
    seed: u64,
    eval_every: u64,
    passes: Passes,
    weights: Option<Weights>,
}

impl<'a> TrainerBuilder<'a> {
    /// The defaults, which the setters name.
    pub(super) fn new(model: &'a Model, data: &'a Dataset) -> Self {
        Self {
            model,
            data,
            devices: Devices::default(),
            device_memory: None,
            optimizer: Adam::new(0.01).into(),
            decay_layers: DecayLayers::All,
            feature_norm: None,
            seed: 0,
            eval_every: 1,
            passes: Passes::ALL,
            weights: None,
        }
    }

    /// Which devices compute; the CPU by default.
    pub fn devices(mut self, devices: Devices) -> Self {
        self.devices = devices;
        self
    }

    /// How much memory each device may use; all of the host's by default.
    pub fn device_memory(mut self, memory: ByteSize) -> Self {
        self.device_memory = Some(memory);
        self
    }

    /// The optimizer; Adam with a learning rate of 0.01 by default.
    pub fn optimizer(mut self, optimizer: impl Into<Optimizer>) -> Self {
        self.optimizer = optimizer.into();
        self
    }

    /// Which layers' parameters decay; all by default.
    pub fn decay_layers(mut self, layers: DecayLayers) -> Self {
        self.decay_layers = layers;
        self
    }

    /// Whether features are normalised; by default as [`Dataset::default_feature_norm`] says.
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.feature_norm = Some(norm);
        self
    }

    /// The seed of initial weights and dropout; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Evaluates every so many epochs; 1 by default, 0 for never.
    pub fn eval_every(mut self, epochs: u64) -> Self {
        self.eval_every = epochs;
        self
    }

    /// Which passes rewrite the program; all by default.
    pub fn passes(mut self, passes: Passes) -> Self {
        self.passes = passes;
        self
    }

    /// The weights to start from, instead of random ones.
    pub fn weights(mut self, weights: Weights) -> Self {
        self.weights = Some(weights);
        self
    }

    /// Writes the program, binds it to the data, and places everything on the device.
    ///
    /// # Errors
    /// [`Error::DataLacks`], [`Error::ClassCount`], [`Error::Model`], [`Error::Weights`], [`Error::DoesNotFit`]: what
    /// cannot work is an error here, not later.
    pub fn build(self) -> Result<Trainer> {
        let data = self.data;
        self.optimizer.check()?;
        check_data(data, self.model)?;
        let feature_norm = self.feature_norm.unwrap_or_else(|| data.default_feature_norm());
        let spec = EpochSpec {
            model: self.model,
            features: feature_kind(data)?,
            labels: label_kind(data),
            vertices: data.graph().vertex_count() as u64,
            edges: data.graph().edge_count() as u64,
            optimizer: &self.optimizer,
            decay: self.decay_layers,
            passes: self.passes,
        };
        let (training, parameters) = training_program(&spec)?;
        let evaluation = evaluation_program(&spec)?;
        let inputs = bind(data, feature_norm)?;
        let lowered = lower(&[("train", &training), ("evaluate", &evaluation)], &Sizes::of(&inputs), self.seed);
        let session = Session::open(self.devices.open(self.device_memory)?, lowered, &inputs)?;
        let weights = self.weights.unwrap_or_else(|| initial_weights(&parameters, self.seed));
        let mut trainer = Trainer {
            session,
            parameters,
            epoch: 0,
            best: None,
            best_weights: Weights::default(),
            eval_every: self.eval_every,
            model: self.model.clone(),
            devices: self.devices,
            labels: label_kind(data),
            record: RunRecord {
                model: ModelRecord { format: RECORD_FORMAT, model: self.model.config().clone(), feature_norm },
                dataset: data.name().into(),
                vertices: data.graph().vertex_count(),
                seed: self.seed,
                optimizer: self.optimizer,
                decay_layers: self.decay_layers,
                epoch: 0,
                best: None,
                edges: data.graph().edge_count(),
                learning_rate: self.optimizer.lr(),
                passes: self.passes,
                parts: vec![[0, data.graph().vertex_count()]],
            },
        };
        trainer.set_weights(&weights)?;
        trainer.set_learning_rate(self.optimizer.lr())?;
        Ok(trainer)
    }
}

/// Training needs labels on the training split, of classes that the model can tell apart.
fn check_data(data: &Dataset, model: &Model) -> Result<()> {
    let lacks = |what, needed_by| Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
    if data.labels().is_none() {
        return lacks("labels", "training needs labels.npy");
    }
    if data.split_size(TRAIN) == 0 {
        return lacks("training split", "training needs train.npy");
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
