//! The flags of the model, shared by `train` and `plan`.

use clap::{Args, ValueEnum};
use lapidary_kernels::StorageType;
use serde_json::{Value, json};

use crate::dataset::{Dataset, MadeFeatures};
use crate::error::{Error, Result};
use crate::model::{Activation, AttentionConfig, Model, ModelConfig, Norm, WeightedMean};
use crate::train::{PLAIN_HIDDEN, Suggested};

/// The most layers: more than anyone trains. With far more, memory would not suffice even for their names.
const MOST_LAYERS: usize = 10_000;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelArgs {
    /// Model: gcn, gin, commnet, resgcn, sage, graphconv, gat or gatv2
    #[arg(long, default_value = "gcn")]
    pub(super) model: String,
    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 2)]
    layers: usize,
    /// Width of the hidden layers [default: chosen for the dataset, 64 or 256; plain: 16]
    #[arg(long, value_name = "D")]
    hidden: Option<usize>,
    /// Dropout rate on hidden layers
    #[arg(long, value_name = "F", default_value_t = 0.5)]
    dropout: f32,
    /// Dropout rate on the features [default: that of hidden layers for sparse features, else 0]
    #[arg(long, value_name = "F")]
    input_dropout: Option<f32>,
    /// Weights of neighbours: sym, mean or sum [default: sym for gcn and resgcn, mean for sage and commnet, sum for gin
    /// and graphconv]
    #[arg(long)]
    norm: Option<String>,
    /// Layer norm on hidden layers, before the activation: true or false [default: true for models that sum over
    /// neighbours; plain: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    #[arg(hide_possible_values = true)]
    layer_norm: Option<bool>,
    /// Function between layers: relu or elu
    #[arg(long, value_name = "F", default_value = "relu", hide_possible_values = true)]
    activation: ActivationArg,
    /// Heads of gat and gatv2; hidden layers concatenate them, the last layer averages them
    #[arg(long, value_name = "K", default_value_t = 1)]
    heads: usize,
    /// Dropout rate on attention weights [default: that of hidden layers]
    #[arg(long, value_name = "F")]
    attention_dropout: Option<f32>,
    /// Slope of the leaky ReLU of attention scores below 0
    #[arg(long, value_name = "F", default_value_t = 0.2)]
    negative_slope: f32,
    /// Add a linear layer of the vertex itself to each attention layer
    #[arg(long)]
    residual: bool,
    /// Make the weights of edges part of the attention scores
    #[arg(long)]
    edge_attention: bool,
    /// Weights of edges: use them if the dataset has them, or ignore them
    #[arg(long, value_name = "WHAT", default_value = "use", hide_possible_values = true)]
    pub(super) edge_weights: EdgeWeightsArg,
    /// With edge weights, divide a mean by the sum of the weights or by the count of edges
    #[arg(long, value_name = "BY", default_value = "sum", hide_possible_values = true)]
    weighted_mean: WeightedMeanArg,
    /// Storage of vertex matrices: f32, or bf16 with half the memory and 8 bits of precision
    #[arg(long, value_name = "DTYPE", default_value = "f32", hide_possible_values = true)]
    pub(super) dtype: DtypeArg,
    /// Features made from the graph, in place of the dataset's: degree, constant, onehot, random or spectral
    #[arg(long, value_name = "KIND")]
    make_features: Option<String>,
    /// Values of flags that are not given: data (chosen for the dataset, and printed) or plain (the same for every
    /// dataset). Built-in graphs have plain ones
    #[arg(long, value_name = "WHICH", default_value = "data", hide_possible_values = true)]
    pub(super) defaults: DefaultsArg,
}

/// Where the values of flags come from that are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DefaultsArg {
    Data,
    Plain,
}

/// A storage type on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DtypeArg {
    F32,
    Bf16,
}

/// An activation on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ActivationArg {
    Relu,
    Elu,
}

/// What to do with the weights of edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum EdgeWeightsArg {
    Use,
    Ignore,
}

impl EdgeWeightsArg {
    /// Returns whether weights are used; `None` if the data decides.
    pub(super) fn choice(self) -> Option<bool> {
        match self {
            Self::Use => None,
            Self::Ignore => Some(false),
        }
    }
}

/// What a weighted mean divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WeightedMeanArg {
    Sum,
    Count,
}

impl DtypeArg {
    pub(super) fn float(self) -> StorageType {
        match self {
            Self::F32 => StorageType::F32,
            Self::Bf16 => StorageType::Bf16,
        }
    }

    /// Returns the text that follows a model's name: empty for f32, the default.
    pub(super) fn said(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::Bf16 => " in bf16",
        }
    }
}

impl ModelArgs {
    /// Returns the name of `model` and its widths, as in `gcn 64-16-7`.
    pub(super) fn named(&self, model: &Model) -> String {
        let widths: Vec<String> = model.config().widths.iter().map(usize::to_string).collect();
        format!("{} {}", self.model, widths.join("-"))
    }

    /// Returns the width of the hidden layers.
    pub(super) fn hidden(&self) -> usize {
        self.hidden.unwrap_or(PLAIN_HIDDEN)
    }

    /// Gives the flags that were not given the suggested values. Returns those that were filled in.
    pub(super) fn fill(&mut self, suggested: &Suggested) -> Vec<(&'static str, Value)> {
        let mut filled = Vec::new();
        if self.hidden.is_none() && self.layers > 1 {
            self.hidden = Some(suggested.hidden);
            filled.push(("hidden", json!(suggested.hidden)));
        }
        if self.layer_norm.is_none() && suggested.layer_norm && self.layers > 1 {
            self.layer_norm = Some(true);
            filled.push(("layer-norm", json!(true)));
        }
        filled
    }

    /// Returns the model for `features` input columns and `classes` output columns.
    ///
    /// # Errors
    /// [`Error::Value`] for a number of layers or a width out of range, and the errors of the model.
    pub(super) fn model(&self, features: usize, classes: usize) -> Result<Model> {
        self.check_sizes()?;
        let config = ModelConfig {
            name: self.model.clone(),
            widths: ModelConfig::equal_widths(features, self.hidden(), classes, self.layers),
            dropout: self.dropout,
            input_dropout: self.input_dropout,
            layer_norm: self.layer_norm.unwrap_or(false),
            norm: self.norm.as_deref().map(str::parse::<Norm>).transpose()?,
            activation: match self.activation {
                ActivationArg::Relu => Activation::Relu,
                ActivationArg::Elu => Activation::Elu,
            },
            attention: AttentionConfig {
                heads: self.heads,
                negative_slope: self.negative_slope,
                dropout: self.attention_dropout,
                residual: self.residual,
                edge_weights: self.edge_attention,
            },
            edge_weights: self.edge_weights.choice(),
            weighted_mean: match self.weighted_mean {
                WeightedMeanArg::Sum => WeightedMean::Sum,
                WeightedMeanArg::Count => WeightedMean::Count,
            },
        };
        let model = Model::from_config(config)?;
        match model.config().unused_setting() {
            Some((option, models)) => Err(Error::NotForModel { option, model: self.model.clone(), models }),
            None => Ok(model),
        }
    }

    /// Reads a dataset, and makes its features if that is asked for.
    ///
    /// # Errors
    /// Those of [`Dataset::load`], and of a kind of features that is unknown.
    pub(super) fn load(&self, name: &str) -> Result<Dataset> {
        let kind = self.made_features()?;
        let data = Dataset::load(name)?;
        Ok(match kind {
            Some(kind) => data.with_made_features(kind),
            None => data,
        })
    }

    fn made_features(&self) -> Result<Option<MadeFeatures>> {
        Ok(self.make_features.as_deref().map(str::parse).transpose()?)
    }

    /// Checks the values that clap accepts but that are invalid for any data.
    pub(super) fn check(&self) -> Result<()> {
        self.made_features()?;
        self.model(1, 1).map(drop)
    }

    fn check_sizes(&self) -> Result<()> {
        let wrong = |option, value: usize, expected: &str| {
            Err(Error::Value { option, value: value.to_string(), expected: expected.into() })
        };
        if self.layers == 0 || self.layers > MOST_LAYERS {
            return wrong("layers", self.layers, "a model has from 1 to 10000 layers");
        }
        if self.hidden() == 0 {
            return wrong("hidden", 0, "a layer has a width of at least 1");
        }
        Ok(())
    }
}
