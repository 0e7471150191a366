//! Models: networks of layers, built in or custom.
//!
//! A model is a function that writes a network into a [`Network`], once for training and once for evaluation. The
//! built-in models use the same public layer functions as custom ones.

mod builtin;
mod error;
mod gat;
mod gcn;
mod gin;
mod init;
mod mean;
mod network;
mod resgcn;
mod training_loss;
mod weights;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use lapidary_kernels::StorageType;
use serde::{Deserialize, Serialize};

pub use error::ModelError;
pub use gat::{AttentionConfig, Heads, gat_conv, gatv2_conv};
pub use gcn::gcn_conv;
pub use gin::gin_conv;
pub use init::{Init, initial_weights};
pub use mean::{comm_conv, graph_conv, sage_conv};
pub use network::{FeatureKind, LabelKind, Mode, Network, Parameter, Value};
pub use resgcn::shortcut;
pub use training_loss::TrainingLoss;
pub(crate) use training_loss::{LossKind, LossTerm};
pub use weights::{Weight, Weights, WeightsError};

use builtin::Builtin;

/// Weights of the in-neighbours in a sum over them.
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

impl fmt::Display for Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sym => "sym",
            Self::Mean => "mean",
            Self::Sum => "sum",
        })
    }
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

/// The function between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// `x` where `x > 0`, otherwise `e^x - 1`.
    Elu,
}

/// What a mean over in-neighbours divides by, if edges have weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightedMean {
    /// The sum of the weights.
    #[default]
    Sum,
    /// The number of edges, as in DGL.
    Count,
}

/// Configuration of a model in plain values; it is saved with a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Name of the model.
    pub name: String,
    /// Widths of the features, of each hidden layer, and of the logits.
    pub widths: Vec<usize>,
    /// Dropout rate on hidden layers.
    pub dropout: f32,
    /// Dropout rate on the features; by default that of the hidden layers for sparse features, otherwise 0.
    pub input_dropout: Option<f32>,
    /// Normalisation of the sum over neighbours; the model's own by default.
    pub norm: Option<Norm>,
    /// Whether hidden layers have a layer norm before the ReLU.
    #[serde(default)]
    pub layer_norm: bool,
    /// The function between layers.
    #[serde(default)]
    pub activation: Activation,
    /// Settings of attention layers.
    #[serde(default)]
    pub attention: AttentionConfig,
    /// Whether the weights of edges are used; by default if the data has them. Checkpoints of versions that had no
    /// weights did not use them.
    #[serde(default = "unused")]
    pub edge_weights: Option<bool>,
    /// What a mean over in-neighbours divides by, if edges have weights.
    #[serde(default)]
    pub weighted_mean: WeightedMean,
}

fn unused() -> Option<bool> {
    Some(false)
}

type Forward = dyn Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync;

type WriteLoss = dyn Fn(&mut Network, Value) -> Result<TrainingLoss, ModelError> + Send + Sync;

/// A network that can be trained and applied: see the [module](self).
#[derive(Clone)]
pub struct Model {
    config: ModelConfig,
    forward: Arc<Forward>,
    /// The custom loss; `None` for the cross-entropy of the logits.
    loss: Option<Arc<WriteLoss>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.config).finish()
    }
}

impl Model {
    /// Returns a graph convolutional network. `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Kipf & Welling, ICLR 2017.
    ///
    /// ```
    /// let model = lapidary::Model::gcn(&[1433, 16, 7]).dropout(0.5);
    /// assert_eq!(model.config().widths, [1433, 16, 7]);
    /// ```
    pub fn gcn(widths: &[usize]) -> Self {
        Self::builtin("gcn", widths)
    }

    /// Returns a graph isomorphism network with eps 0. `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Xu et al., ICLR 2019.
    pub fn gin(widths: &[usize]) -> Self {
        Self::builtin("gin", widths)
    }

    /// Returns GraphSAGE with the mean over in-neighbours. `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Hamilton et al., NeurIPS 2017.
    pub fn sage(widths: &[usize]) -> Self {
        Self::builtin("sage", widths)
    }

    /// Returns GraphConv: a linear layer of the sum over in-neighbours plus a linear layer of the vertex itself.
    /// `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Morris et al., AAAI 2019.
    pub fn graphconv(widths: &[usize]) -> Self {
        Self::builtin("graphconv", widths)
    }

    /// Returns CommNet. `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// Sukhbaatar et al., NeurIPS 2016, as ROC trains it (section 7).
    pub fn commnet(widths: &[usize]) -> Self {
        Self::builtin("commnet", widths)
    }

    /// Returns a GCN with shortcuts around its layers: the identity if the widths match, otherwise a linear layer.
    /// `widths`: of the features, each hidden layer, the logits.
    ///
    /// # Source
    /// ROC (Jia et al., MLSys 2020), section 7.5.
    pub fn resgcn(widths: &[usize]) -> Self {
        Self::builtin("resgcn", widths)
    }

    /// Returns a graph attention network with one head: see [`Model::heads`]. `widths`: of the features, of all heads of
    /// each hidden layer together, and of the logits.
    ///
    /// # Source
    /// Veličković et al., ICLR 2018.
    pub fn gat(widths: &[usize]) -> Self {
        Self::builtin("gat", widths)
    }

    /// Returns a graph attention network whose scores depend on source and destination together. `widths`: as in
    /// [`Model::gat`].
    ///
    /// # Source
    /// Brody, Alon & Yahav, ICLR 2022.
    pub fn gatv2(widths: &[usize]) -> Self {
        Self::builtin("gatv2", widths)
    }

    /// Returns a custom model. `forward` writes the layers and returns the logits. It runs once for training, once for
    /// evaluation, and once more to see whether it reads weights of edges. It must always declare the same parameters.
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

    /// Returns the built-in model that `config` names.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn from_config(config: ModelConfig) -> Result<Self, ModelError> {
        let builtin = Builtin::find(&config.name).ok_or_else(|| ModelError::Unknown { name: config.name.clone() })?;
        Ok(Self { forward: Arc::new(|net, x, config| builtin.forward(net, x, config)), config, loss: None })
    }

    fn builtin(name: &str, widths: &[usize]) -> Self {
        Self::from_config(ModelConfig::new(name, widths)).expect("the model is built in")
    }

    fn with<F>(name: &str, widths: &[usize], forward: F) -> Self
    where
        F: Fn(&mut Network, Value, &ModelConfig) -> Result<Value, ModelError> + Send + Sync + 'static,
    {
        Self { config: ModelConfig::new(name, widths), forward: Arc::new(forward), loss: None }
    }

    /// Returns the built-in model `name`, with widths and layer norms taken from the weights.
    ///
    /// # Errors
    /// Outer: [`ModelError::Unknown`]. Inner: [`WeightsError::Missing`] if the weight of the first layer is missing,
    /// [`WeightsError::NoMatrix`] if it is not a matrix.
    pub(crate) fn of_weights(
        name: &str,
        norm: Option<Norm>,
        weights: &Weights,
    ) -> Result<Result<Self, WeightsError>, ModelError> {
        let builtin = Builtin::find(name).ok_or_else(|| ModelError::Unknown { name: name.into() })?;
        let layer = |index: usize| weights.get(&builtin.weight_name(index)).map(|weight| &weight.shape[..]);
        let mut widths = Vec::new();
        while let Some(&[out, input]) = layer(widths.len().saturating_sub(1)) {
            if widths.is_empty() {
                widths.push(input);
            }
            widths.push(out);
        }
        if widths.is_empty() {
            let name = builtin.weight_name(0);
            return Ok(Err(match weights.get(&name) {
                Some(weight) => WeightsError::NoMatrix { name, got: weight.shape.clone() },
                None => weights.missing(&name),
            }));
        }
        let layer_norm = weights.get("norms.0.weight").is_some();
        let mut attention = AttentionConfig::default();
        let vector = ["att_src", "att"].iter().find_map(|vector| weights.get(&format!("convs.0.{vector}")));
        if let Some(&[1, heads, _]) = vector.map(|weight| &weight.shape[..]) {
            attention.heads = heads;
            attention.residual = weights.get("convs.0.res.weight").is_some();
            attention.edge_weights = weights.get("convs.0.lin_edge.weight").is_some();
            // The last layer averages its heads.
            let last = widths.last_mut().expect("there are two widths");
            *last /= heads.max(1);
        }
        let config = ModelConfig { norm, layer_norm, attention, ..ModelConfig::new(name, &widths) };
        Self::from_config(config).map(Ok)
    }

    /// Sets the dropout rate on hidden layers, in `[0, 1)`. 0 by default.
    pub fn dropout(mut self, rate: f32) -> Self {
        self.config.dropout = rate;
        self
    }

    /// Sets the dropout rate on the features, in `[0, 1)`. By default that of the hidden layers for sparse features,
    /// otherwise 0.
    pub fn input_dropout(mut self, rate: f32) -> Self {
        self.config.input_dropout = Some(rate);
        self
    }

    /// Sets the settings of attention layers.
    pub fn attention(mut self, config: AttentionConfig) -> Self {
        self.config.attention = config;
        self
    }

    /// Sets the number of heads of attention layers. Hidden layers concatenate them, the last layer averages them. 1 by
    /// default.
    pub fn heads(mut self, heads: usize) -> Self {
        self.config.attention.heads = heads;
        self
    }

    /// Sets the dropout rate of attention weights, in `[0, 1)`. By default that of the hidden layers.
    pub fn attention_dropout(mut self, rate: f32) -> Self {
        self.config.attention.dropout = Some(rate);
        self
    }

    /// Sets the function between layers.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.config.activation = activation;
        self
    }

    /// Sets whether the weights of edges are used. By default they are if the data has them. Attention uses them only
    /// with [`AttentionConfig::edge_weights`].
    pub fn edge_weights(mut self, on: bool) -> Self {
        self.config.edge_weights = Some(on);
        self
    }

    /// Sets what a mean over in-neighbours divides by, if edges have weights.
    pub fn weighted_mean(mut self, by: WeightedMean) -> Self {
        self.config.weighted_mean = by;
        self
    }

    /// Sets the normalisation of the sum over neighbours.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.config.norm = Some(norm);
        self
    }

    /// Sets whether hidden layers have a layer norm before the ReLU, with parameters `norms.<layer>.weight` and
    /// `.bias`.
    pub fn layer_norm(mut self, on: bool) -> Self {
        self.config.layer_norm = on;
        self
    }

    /// Sets the training loss, instead of the cross-entropy of the logits. `write` receives the network and its logits,
    /// and may use the network's [named outputs](Network::output). It runs once, for training, and must not declare
    /// parameters.
    ///
    /// The accuracy is always that of the logits. A checkpoint does not contain the loss:
    /// [`Trainer::resume`](crate::Trainer::resume) continues with the loss of the trainer's model.
    ///
    /// ```
    /// use lapidary::model::{Model, Norm, TrainingLoss, gcn_conv};
    /// use lapidary::{Dataset, Trainer};
    ///
    /// // A second head helps the hidden layer, whose activations are kept small.
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::custom("two-heads", &[data.feature_width(), data.class_count()], |net, x, config| {
    ///     let classes = config.widths[1];
    ///     let hidden = gcn_conv(net, x, "convs.0", 16, Norm::Sym)?;
    ///     let hidden = net.relu(hidden)?;
    ///     let helper = net.linear(hidden, "helper", classes, true)?;
    ///     net.output("hidden", hidden)?;
    ///     net.output("helper", helper)?;
    ///     gcn_conv(net, hidden, "convs.1", classes, Norm::Sym)
    /// })
    /// .loss(|net, logits| {
    ///     let helper = TrainingLoss::softmax_cross_entropy(net.named("helper")?)?;
    ///     let size = TrainingLoss::mean_square(net.named("hidden")?)?;
    ///     Ok(TrainingLoss::softmax_cross_entropy(logits)? + 0.3 * helper + 1e-3 * size)
    /// });
    /// let mut trainer = Trainer::builder(&model, &data).build()?;
    /// assert!(trainer.step()?.loss.is_finite());
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    pub fn loss<F>(mut self, write: F) -> Self
    where
        F: Fn(&mut Network, Value) -> Result<TrainingLoss, ModelError> + Send + Sync + 'static,
    {
        self.loss = Some(Arc::new(write));
        self
    }

    /// Returns the terms of the loss; by default the cross-entropy for the kind of labels.
    ///
    /// # Errors
    /// [`ModelError`] if the loss does not match the labels, declares a parameter, has no terms, or has a weight that
    /// is not finite; errors of the custom function.
    pub(crate) fn loss_terms(
        &self,
        network: &mut Network,
        logits: Value,
        labels: LabelKind,
    ) -> Result<Vec<LossTerm>, ModelError> {
        let Some(write) = &self.loss else {
            return Ok(match labels {
                LabelKind::Class => TrainingLoss::softmax_cross_entropy(logits)?,
                LabelKind::Multi => TrainingLoss::sigmoid_cross_entropy(logits)?,
            }
            .terms);
        };
        let declared = network.parameters().len();
        let TrainingLoss { terms } = write(network, logits)?;
        if let Some(parameter) = network.parameters().get(declared) {
            return Err(ModelError::LossParameter { name: parameter.name.clone() });
        }
        if terms.is_empty() || terms.iter().any(|term| !term.weight.is_finite()) {
            return Err(ModelError::LossTerms);
        }
        let needs = |kind| terms.iter().any(|term| term.kind == kind);
        match labels {
            LabelKind::Class if needs(LossKind::SigmoidCrossEntropy) => {
                Err(ModelError::LossLabels { loss: "sigmoid", labels: "one class per vertex" })
            }
            LabelKind::Multi if needs(LossKind::SoftmaxCrossEntropy) => {
                Err(ModelError::LossLabels { loss: "softmax", labels: "several classes per vertex" })
            }
            _ => Ok(terms),
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Writes the forward program, and returns it with its parameters and the logits. Matrices with one row per vertex
    /// are stored as `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] if widths or dropout rates are invalid, if the features have another width, or if layers do not
    /// fit.
    pub fn network(
        &self,
        features: FeatureKind,
        mode: Mode,
        dtype: StorageType,
    ) -> Result<(Network, Value), ModelError> {
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
        if config.attention.heads == 0 {
            return Err(ModelError::NoHeads);
        }
        let slope = config.attention.negative_slope;
        if !(0.0..=1.0).contains(&slope) {
            return Err(ModelError::Slope { slope });
        }
        for rate in [Some(config.dropout), config.input_dropout, config.attention.dropout].into_iter().flatten() {
            if !(0.0..1.0).contains(&rate) {
                return Err(ModelError::DropoutRate { rate });
            }
        }
        let (mut network, x) = Network::new(features, mode, dtype)?;
        network.use_edge_weights(config.weighted(), config.weighted_mean);
        let logits = (self.forward)(&mut network, x, config)?;
        let got = network.width(logits);
        if got != output {
            return Err(ModelError::OutputWidth { want: output, got });
        }
        Ok((network, logits))
    }
}

impl ModelConfig {
    /// Returns a configuration without dropout or layer norm, with the model's own normalisation.
    pub fn new(name: &str, widths: &[usize]) -> Self {
        let (name, widths) = (name.into(), widths.to_vec());
        Self {
            name,
            widths,
            dropout: 0.0,
            input_dropout: None,
            norm: None,
            layer_norm: false,
            activation: Activation::default(),
            attention: AttentionConfig::default(),
            edge_weights: None,
            weighted_mean: WeightedMean::default(),
        }
    }

    /// Returns the widths of so many layers, of which all but the last are `hidden` wide.
    ///
    /// ```
    /// assert_eq!(lapidary::model::ModelConfig::equal_widths(64, 16, 7, 3), [64, 16, 16, 7]);
    /// ```
    ///
    /// # Panics
    /// Without layers.
    pub fn equal_widths(features: usize, hidden: usize, classes: usize, layers: usize) -> Vec<usize> {
        assert!(layers > 0, "a model has layers");
        let mut widths = vec![hidden; layers + 1];
        (widths[0], widths[layers]) = (features, classes);
        widths
    }

    /// Returns a setting that the model does not have, if one is set: the name of its field, and the models that have it.
    ///
    /// ```
    /// use lapidary::model::{AttentionConfig, ModelConfig, WeightedMean};
    ///
    /// let attention = AttentionConfig { heads: 4, ..Default::default() };
    /// let config = |name| ModelConfig { attention, ..ModelConfig::new(name, &[64, 7]) };
    /// assert_eq!(config("gcn").unused_setting(), Some(("heads", "gat and gatv2")));
    /// assert_eq!(config("gat").unused_setting(), None);
    /// let config = ModelConfig { weighted_mean: WeightedMean::Count, ..ModelConfig::new("gin", &[64, 7]) };
    /// assert_eq!(config.unused_setting(), Some(("weighted_mean", "models that average over neighbours")));
    /// ```
    pub fn unused_setting(&self) -> Option<(&'static str, &'static str)> {
        let AttentionConfig { heads, dropout, residual, edge_weights, negative_slope } = self.attention;
        let of_attention = [
            ("heads", heads != 1),
            ("attention_dropout", dropout.is_some()),
            ("negative_slope", negative_slope != AttentionConfig::default().negative_slope),
            ("residual", residual),
            ("edge_attention", edge_weights),
        ];
        let unused = of_attention.into_iter().find(|(_, set)| *set && !self.has_attention());
        if let Some((setting, _)) = unused {
            return Some((setting, "gat and gatv2"));
        }
        let counts = self.weighted_mean == WeightedMean::Count;
        (counts && !self.aggregates_by(Norm::Mean)).then_some(("weighted_mean", "models that average over neighbours"))
    }

    /// Whether the model adds up the rows of the in-neighbours, so that its rows grow with the in-degrees.
    pub fn sums_neighbours(&self) -> bool {
        self.aggregates_by(Norm::Sum)
    }

    /// Whether the rows of the in-neighbours are added up and weighted in this way.
    fn aggregates_by(&self, norm: Norm) -> bool {
        let of = |model: &Builtin| self.norm.unwrap_or(model.default_norm());
        Builtin::find(&self.name).is_some_and(|model| !model.attention && of(model) == norm)
    }

    /// Whether the weights of edges are used, once that was decided for a dataset.
    pub(crate) fn weighted(&self) -> bool {
        self.edge_weights == Some(true)
    }

    /// Whether the model has attention layers, which its settings are for.
    pub fn has_attention(&self) -> bool {
        Builtin::find(&self.name).is_some_and(|builtin| builtin.attention)
    }

    /// Returns the dropout rate on the features `x`: see [`ModelConfig::input_dropout`].
    pub fn input_dropout_for(&self, x: Value) -> f32 {
        match (self.input_dropout, x) {
            (Some(rate), _) => rate,
            (None, Value::Sparse { .. }) => self.dropout,
            (None, Value::Dense(_)) => 0.0,
        }
    }
}
