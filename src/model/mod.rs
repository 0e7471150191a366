//! Models: networks of layers, built in or the user's own.
//!
//! A model is a function that writes a network into a [`Network`], once for training and once for evaluation. The
//! built-in models use the same layer functions that a user's own network does.

mod gcn;
mod init;
mod network;
mod weights;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use gcn::gcn_conv;
pub use init::{Init, initial_weights};
pub use network::{FeatureKind, Mode, Network, Parameter, Value};
pub use weights::{Weight, Weights, WeightsError};

use crate::program::ProgramError;

/// How neighbours are weighed when they are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// `D^-1/2 A D^-1/2`, with in-degrees on both sides.
    Sym,
    /// `D^-1 A`: the mean over in-neighbours.
    Mean,
    /// `A`: the sum.
    Sum,
}

impl FromStr for Norm {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "sym" => Ok(Self::Sym),
            "mean" => Ok(Self::Mean),
            "sum" => Ok(Self::Sum),
            _ => Err(ModelError::UnknownNorm { name: text.into() }),
        }
    }
}

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No model has this name.
    #[error("there is no model `{name}`; there is gcn")]
    Unknown {
        /// The name.
        name: String,
    },
    /// A model of the design that this version does not have.
    #[error("the model `{name}` is not built yet; built is gcn")]
    NotBuilt {
        /// The name.
        name: String,
    },
    /// No normalisation has this name.
    #[error("there is no normalisation `{name}`; there are sym, mean and sum")]
    UnknownNorm {
        /// The name.
        name: String,
    },
    /// Widths that make no network.
    #[error("a model needs at least an input and an output width, each at least 1, but was given {widths:?}")]
    Widths {
        /// What was given.
        widths: Vec<usize>,
    },
    /// A dropout rate outside `[0, 1)`.
    #[error("a dropout rate of {rate} is not in [0, 1)")]
    DropoutRate {
        /// The rate.
        rate: f32,
    },
    /// Features of another width than the model reads.
    #[error("the model reads {model} features a vertex, but the data has {data}")]
    FeatureWidth {
        /// What the model reads.
        model: usize,
        /// What the data has.
        data: usize,
    },
    /// Logits of another width than the model says.
    #[error("the network ends with {got} columns, but the model says {want}")]
    OutputWidth {
        /// What the model says.
        want: usize,
        /// What the network makes.
        got: usize,
    },
    /// An operation that sparse features do not have.
    #[error("{op} needs dense rows, but was given sparse features; put a linear layer or a convolution first")]
    SparseInput {
        /// The operation.
        op: &'static str,
    },
    /// Two layers that use one name for different parameters.
    #[error("the parameter `{name}` is declared twice, as {first:?} and as {second:?}")]
    ParameterTwice {
        /// Its name.
        name: String,
        /// Its shape at first.
        first: Vec<usize>,
        /// Its other shape.
        second: Vec<usize>,
    },
    /// Operands that do not fit together.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// What a model is, in plain values: it is saved with a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Which model.
    pub name: String,
    /// Width of the features, of each hidden layer, and of the logits.
    pub widths: Vec<usize>,
    /// Dropout on hidden layers.
    pub dropout: f32,
    /// Dropout on the features; by default that of the hidden layers for sparse features, else 0.
    pub input_dropout: Option<f32>,
    /// How neighbours are weighed; the model's own way by default.
    pub norm: Option<Norm>,
}

type Forward = dyn Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync;

/// A network that can be trained and applied: see the [module](self).
#[derive(Clone)]
pub struct Model {
    config: ModelConfig,
    forward: Arc<Forward>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.config).finish()
    }
}

impl Model {
    /// A graph convolutional network. `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Kipf & Welling, ICLR 2017.
    ///
    /// ```
    /// let model = lapidary::Model::gcn(&[1433, 16, 7]).dropout(0.5);
    /// assert_eq!(model.config().widths, [1433, 16, 7]);
    /// ```
    pub fn gcn(widths: &[usize]) -> Self {
        Self::with("gcn", widths, gcn::forward)
    }

    /// A network of the user's own. `forward` writes the layers and returns the logits; it runs once for training and
    /// once for evaluation, and must declare the same parameters both times.
    ///
    /// ```
    /// use lapidary::model::{Model, Norm, gcn_conv};
    ///
    /// let wide_and_deep = Model::custom("wide-and-deep", &[64, 7], |net, x, _config| {
    ///     let h = gcn_conv(net, x, "convs.0", 32, Norm::Sym)?;
    ///     let h = net.relu(h)?;
    ///     let deep = gcn_conv(net, h, "convs.1", 7, Norm::Sym)?;
    ///     let wide = net.linear(x, "wide", 7, false)?;
    ///     net.add(deep, wide)
    /// });
    /// assert_eq!(wide_and_deep.config().name, "wide-and-deep");
    /// ```
    pub fn custom<F>(name: &str, widths: &[usize], forward: F) -> Self
    where
        F: Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync + 'static,
    {
        Self::with(name, widths, forward)
    }

    /// The built-in model that `config` names.
    ///
    /// # Errors
    /// [`ModelError::Unknown`], [`ModelError::NotBuilt`].
    pub fn from_config(config: ModelConfig) -> Result<Self, ModelError> {
        match config.name.as_str() {
            "gcn" => Ok(Self { forward: Arc::new(gcn::forward), config }),
            "gin" | "commnet" | "resgcn" | "sage" => Err(ModelError::NotBuilt { name: config.name }),
            _ => Err(ModelError::Unknown { name: config.name }),
        }
    }

    fn with<F>(name: &str, widths: &[usize], forward: F) -> Self
    where
        F: Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync + 'static,
    {
        let config =
            ModelConfig { name: name.into(), widths: widths.to_vec(), dropout: 0.0, input_dropout: None, norm: None };
        Self { config, forward: Arc::new(forward) }
    }

    /// The model with the widths that its weights have: layer `i` is the weight `convs.{i}.lin.weight`.
    ///
    /// # Errors
    /// [`WeightsError::Missing`] if there is no such layer.
    pub(crate) fn with_widths_of(mut self, weights: &Weights) -> Result<Self, WeightsError> {
        let layer = |index: usize| weights.get(&gcn::weight_name(index)).map(|weight| &weight.shape[..]);
        let mut widths = Vec::new();
        while let Some(&[out, input]) = layer(widths.len().saturating_sub(1)) {
            if widths.is_empty() {
                widths.push(input);
            }
            widths.push(out);
        }
        if widths.is_empty() {
            return Err(weights.missing(&gcn::weight_name(0), &[]));
        }
        self.config.widths = widths;
        Ok(self)
    }

    /// Sets the dropout on hidden layers, in `[0, 1)`. 0 by default.
    pub fn dropout(mut self, rate: f32) -> Self {
        self.config.dropout = rate;
        self
    }

    /// Sets the dropout on the features. By default that of the hidden layers for sparse features, else 0.
    pub fn input_dropout(mut self, rate: f32) -> Self {
        self.config.input_dropout = Some(rate);
        self
    }

    /// Sets how neighbours are weighed.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.config.norm = Some(norm);
        self
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The forward program, which ends in the logits, and the parameters that it reads.
    ///
    /// # Errors
    /// [`ModelError`]: widths or rates that make no network, features of another width, or layers that do not fit.
    pub fn network(&self, features: FeatureKind, mode: Mode) -> Result<(Network, Value), ModelError> {
        let config = &self.config;
        let (Some(&input), Some(&output)) = (config.widths.first(), config.widths.last()) else {
            return Err(ModelError::Widths { widths: Vec::new() });
        };
        if config.widths.len() < 2 || config.widths.contains(&0) {
            return Err(ModelError::Widths { widths: config.widths.clone() });
        }
        if features.width() != input {
            return Err(ModelError::FeatureWidth { model: input, data: features.width() });
        }
        for rate in [Some(config.dropout), config.input_dropout].into_iter().flatten() {
            if !(0.0..1.0).contains(&rate) {
                return Err(ModelError::DropoutRate { rate });
            }
        }
        let (mut network, x) = Network::new(features, mode)?;
        let logits = (self.forward)(&mut network, x, config)?;
        let got = network.width(logits);
        if got != output {
            return Err(ModelError::OutputWidth { want: output, got });
        }
        Ok((network, logits))
    }
}

impl ModelConfig {
    /// The dropout on the features `x`: see [`ModelConfig::input_dropout`].
    pub fn input_dropout_for(&self, x: Value) -> f32 {
        match (self.input_dropout, x) {
            (Some(rate), _) => rate,
            (None, Value::Sparse { .. }) => self.dropout,
            (None, Value::Dense(_)) => 0.0,
        }
    }
}
