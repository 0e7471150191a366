//! The flags of the model, shared by `train` and `plan`.

use clap::{Args, ValueEnum};
use lapidary_kernels::StorageType;

use crate::error::{Error, Result};
use crate::model::{Model, ModelConfig, Norm};

/// The most layers: more than anyone trains. With far more, memory would not suffice even for their names.
const MOST_LAYERS: usize = 10_000;

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(super) struct ModelArgs {
    /// Model: gcn, gin, commnet, resgcn, sage or graphconv
    #[arg(long, default_value = "gcn")]
    pub(super) model: String,
    /// Number of layers
    #[arg(long, value_name = "N", default_value_t = 2)]
    layers: usize,
    /// Width of the hidden layers
    #[arg(long, value_name = "D", default_value_t = 16)]
    hidden: usize,
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
    /// Layer norm on hidden layers, before the ReLU
    #[arg(long)]
    layer_norm: bool,
    /// Storage of vertex matrices: f32, or bf16 with half the memory and 8 bits of precision
    #[arg(long, value_name = "DTYPE", default_value = "f32", hide_possible_values = true)]
    pub(super) dtype: DtypeArg,
}

/// A storage type on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DtypeArg {
    F32,
    Bf16,
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
    /// Returns the model for `features` input columns and `classes` output columns.
    ///
    /// # Errors
    /// [`Error::Value`] for a number of layers or a width out of range, and the errors of the model.
    pub(super) fn model(&self, features: usize, classes: usize) -> Result<Model> {
        self.check_sizes()?;
        let mut widths = vec![self.hidden; self.layers + 1];
        widths[0] = features;
        widths[self.layers] = classes;
        Ok(Model::from_config(ModelConfig {
            name: self.model.clone(),
            widths,
            dropout: self.dropout,
            input_dropout: self.input_dropout,
            layer_norm: self.layer_norm,
            norm: self.norm.as_deref().map(str::parse::<Norm>).transpose()?,
        })?)
    }

    /// Checks the values that clap accepts but that are invalid for any data.
    pub(super) fn check(&self) -> Result<()> {
        self.model(1, 1).map(drop)
    }

    fn check_sizes(&self) -> Result<()> {
        let wrong = |option, value: usize, expected: &str| {
            Err(Error::Value { option, value: value.to_string(), expected: expected.into() })
        };
        if self.layers == 0 || self.layers > MOST_LAYERS {
            return wrong("layers", self.layers, "a model has from 1 to 10000 layers");
        }
        if self.hidden == 0 {
            return wrong("hidden", self.hidden, "a layer has a width of at least 1");
        }
        Ok(())
    }
}
