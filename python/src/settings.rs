//! The settings of a run, which the Python half collects from its keyword arguments.

use std::num::NonZeroUsize;

use lapidary::model::{Activation, AttentionConfig, ModelConfig, Norm, WeightedMean};
use lapidary::{
    Adam, AdamW, ByteSize, ClassWeights, Dataset, DecayLayers, Devices, Error, Matmul, MemoryPolicy, Model, Optimizer,
    Partition, Recompute, Result, RunOptions, Sgd, StorageType, Strips, Trainer, TrainerBuilder,
};
use pyo3::prelude::*;

/// Where and how a program runs.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct DeviceSettings {
    devices: String,
    device_memory: Option<String>,
    threads: Option<NonZeroUsize>,
    memory: String,
    matmul: String,
    partition: String,
    passes: String,
}

/// A model, without the widths of features and classes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ModelSettings {
    model: String,
    hidden: usize,
    layers: usize,
    dropout: f32,
    input_dropout: Option<f32>,
    norm: Option<String>,
    layer_norm: bool,
    activation: String,
    heads: usize,
    attention_dropout: Option<f32>,
    negative_slope: f32,
    residual: bool,
    edge_attention: bool,
    edge_weights: String,
    weighted_mean: String,
    dtype: String,
}

/// How a model is trained.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TrainingSettings {
    optimizer: String,
    lr: f64,
    momentum: f64,
    weight_decay: Option<f64>,
    decay_layers: String,
    class_weights: String,
    feature_norm: Option<String>,
    pub(crate) reorder: String,
    seed: u64,
    pub(crate) epochs: u64,
    eval_every: u64,
    recompute: String,
    strips: Option<usize>,
}

/// Returns the value that `name` stands for.
fn chosen<T: Copy>(option: &'static str, name: &str, values: &[(&str, T)]) -> Result<T> {
    let found = values.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
    found.ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|&(known, _)| known).collect();
        Error::Value { option, value: name.into(), expected: format!("there are {}", names.join(", ")) }
    })
}

impl DeviceSettings {
    /// Returns the devices.
    ///
    /// # Errors
    /// [`Error::Value`] for a word that is unknown.
    pub(crate) fn devices(&self) -> Result<Devices> {
        let mut devices = Devices::parse(&self.devices)?;
        if let Some(threads) = self.threads {
            devices = devices.threads(threads);
        }
        let matmul = [
            ("auto", None),
            ("f32", Some(Matmul::F32)),
            ("bf16", Some(Matmul::Bf16)),
            ("tf32", Some(Matmul::Tf32)),
            ("3xtf32", Some(Matmul::Tf32x3)),
        ];
        if let Some(matmul) = chosen("matmul", &self.matmul, &matmul)? {
            devices = devices.matmul(matmul);
        }
        Ok(devices)
    }

    /// Returns the partition.
    ///
    /// # Errors
    /// Those of [`Partition::parse`].
    pub(crate) fn partition(&self) -> Result<Partition> {
        Partition::parse(&self.partition)
    }

    /// Returns the options of a run.
    ///
    /// # Errors
    /// As [`DeviceSettings::devices`] and [`DeviceSettings::partition`].
    pub(crate) fn options(&self) -> Result<RunOptions> {
        let policies = [
            ("optimal", MemoryPolicy::Optimal),
            ("roc", MemoryPolicy::Roc),
            ("lru", MemoryPolicy::Lru),
            ("none", MemoryPolicy::None),
        ];
        let options = RunOptions::new()
            .devices(self.devices()?)
            .memory(chosen("memory", &self.memory, &policies)?)
            .partition(self.partition()?)
            .passes(self.passes.parse()?);
        Ok(match self.device_memory.as_deref() {
            Some(text) => options.device_memory(size("device_memory", text)?),
            None => options,
        })
    }
}

/// Parses a number of bytes, with or without a unit.
fn size(option: &'static str, text: &str) -> Result<ByteSize> {
    let expected = "give bytes, or a text with kB, MB, GB, KiB, MiB or GiB";
    text.parse().map_err(|_| Error::Value { option, value: text.into(), expected: expected.into() })
}

impl ModelSettings {
    /// Returns the model for `features` input columns and `classes` output columns.
    ///
    /// # Errors
    /// [`Error::Value`], [`Error::NotForModel`], [`Error::Model`].
    pub(crate) fn model(&self, features: usize, classes: usize) -> Result<Model> {
        let means = [("sum", WeightedMean::Sum), ("count", WeightedMean::Count)];
        let config = ModelConfig {
            name: self.model.clone(),
            widths: ModelConfig::equal_widths(features, self.hidden, classes, self.layers),
            dropout: self.dropout,
            input_dropout: self.input_dropout,
            layer_norm: self.layer_norm,
            norm: self.norm.as_deref().map(str::parse::<Norm>).transpose()?,
            activation: chosen(
                "activation",
                &self.activation,
                &[("relu", Activation::Relu), ("elu", Activation::Elu)],
            )?,
            attention: AttentionConfig {
                heads: self.heads,
                negative_slope: self.negative_slope,
                dropout: self.attention_dropout,
                residual: self.residual,
                edge_weights: self.edge_attention,
            },
            edge_weights: chosen("edge_weights", &self.edge_weights, &[("use", None), ("ignore", Some(false))])?,
            weighted_mean: chosen("weighted_mean", &self.weighted_mean, &means)?,
        };
        let model = Model::from_config(config)?;
        match model.config().unused_setting() {
            Some((option, models)) => Err(Error::NotForModel { option, model: self.model.clone(), models }),
            None => Ok(model),
        }
    }

    /// Returns the model for a dataset.
    ///
    /// # Errors
    /// As [`ModelSettings::model`].
    pub(crate) fn model_for(&self, data: &Dataset) -> Result<Model> {
        self.model(data.feature_width(), data.class_count())
    }

    /// Returns the storage type of matrices with one row per vertex.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub(crate) fn dtype(&self) -> Result<StorageType> {
        chosen("dtype", &self.dtype, &[("f32", StorageType::F32), ("bf16", StorageType::Bf16)])
    }
}

impl TrainingSettings {
    /// Returns the optimizer.
    ///
    /// # Errors
    /// [`Error::Value`] for one that is unknown.
    pub(crate) fn optimizer(&self) -> Result<Optimizer> {
        let (lr, decay) = (self.lr, self.weight_decay);
        let optimizers: [(&str, Optimizer); 3] = [
            ("adam", Adam::new(lr).weight_decay(decay.unwrap_or(0.0)).into()),
            ("adamw", AdamW::new(lr).weight_decay(decay.unwrap_or(0.01)).into()),
            ("sgd", Sgd::new(lr).momentum(self.momentum).weight_decay(decay.unwrap_or(0.0)).into()),
        ];
        chosen("optimizer", &self.optimizer, &optimizers)
    }

    pub(crate) fn recompute(&self) -> Result<Recompute> {
        let extents = [("auto", Recompute::Auto), ("never", Recompute::Never), ("always", Recompute::Always)];
        chosen("recompute", &self.recompute, &extents)
    }

    fn class_weights(&self) -> Result<ClassWeights> {
        let value = &self.class_weights;
        let expected = "give None, \"balanced\" or one number for each class";
        let wrong = |_| Error::Value { option: "class_weights", value: value.clone(), expected: expected.into() };
        value.parse().map_err(wrong)
    }

    pub(crate) fn strips(&self) -> Strips {
        self.strips.map_or(Strips::Auto, Strips::Exactly)
    }

    pub(crate) fn evaluates(&self) -> bool {
        self.eval_every > 0
    }

    /// Returns the builder of a trainer on all these settings.
    ///
    /// # Errors
    /// [`Error::Value`], and those of a normalisation that is unknown.
    pub(crate) fn builder<'a>(
        &self,
        (model, data): (&'a Model, &'a Dataset),
        (options, dtype): (RunOptions, StorageType),
    ) -> Result<TrainerBuilder<'a>> {
        let decay_layers = [("all", DecayLayers::All), ("first", DecayLayers::First)];
        let builder = Trainer::builder(model, data)
            .options(options)
            .recompute(self.recompute()?)
            .strips(self.strips())
            .optimizer(self.optimizer()?)
            .decay_layers(chosen("decay_layers", &self.decay_layers, &decay_layers)?)
            .class_weights(self.class_weights()?)
            .dtype(dtype)
            .seed(self.seed)
            .epochs(self.epochs)
            .eval_every(self.eval_every);
        Ok(match &self.feature_norm {
            Some(norm) => builder.feature_norm(norm.parse()?),
            None => builder,
        })
    }
}
