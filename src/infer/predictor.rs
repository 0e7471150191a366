//! The predictor: weights, and the model that they belong to.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lapidary_cost_model::CostModel;
use lapidary_kernels::StorageType;
use ndarray::Array2;

use super::checkpoint::{COST_MODEL_FILE, ModelRecord, RUN_FILE, weights_to_use};
use super::digests::Checkpoint;
use super::pass::Pass;
use super::{Accuracy, PreparedPredictor};
use crate::dataset::{Dataset, FeatureNorm};
use crate::error::{Error, Result};
use crate::model::{FeatureKind, LabelKind, Mode, Model, ModelError, Norm, Weights};
use crate::runtime::{RunOptions, Runs, run_option_setters};

/// What a model says of a data set.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// `[n, classes]`: unnormalised log-probabilities.
    pub logits: Array2<f32>,
    /// The outputs that [`Predictor::outputs`] asked for, by name: `[n, width]`.
    pub outputs: BTreeMap<String, Array2<f32>>,
    /// What the logits get right of the labels that the dataset has.
    pub accuracy: Accuracy,
    /// What is predicted of each vertex: it says what the accuracy means.
    pub labels: LabelKind,
    /// Seconds of the forward pass, and of planning and setting up where this call did so.
    pub seconds: f64,
    /// The vertex range of each device.
    pub parts: Vec<[usize; 2]>,
    /// Seconds that each device's kernels took.
    pub part_seconds: Vec<f64>,
}

/// Applies trained weights to data sets.
///
/// ```no_run
/// use lapidary::{Dataset, Predictor};
///
/// let unseen = Dataset::open("unseen/")?;
/// let logits = Predictor::open("run/")?.predict(&unseen)?;
/// println!("{} vertices, {} classes", logits.nrows(), logits.ncols());
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Predictor {
    pub(super) model: Model,
    pub(super) weights: Weights,
    pub(super) feature_norm: Option<FeatureNorm>,
    pub(super) dtype: StorageType,
    pub(super) options: RunOptions,
    /// By which graphs are split over several devices.
    pub(super) cost_model: Option<Arc<CostModel>>,
    /// The outputs to hand out beside the logits.
    pub(super) outputs: Vec<String>,
}

impl Predictor {
    /// From weights at hand. Without a `feature_norm` each data set's own is used.
    ///
    /// # Errors
    /// [`Error::Weights`] if they are not the model's; [`Error::Model`].
    pub fn new(model: &Model, weights: Weights, feature_norm: Option<FeatureNorm>) -> Result<Self> {
        let width = model.config().widths.first().copied().unwrap_or_default();
        let (network, _) = model.network(FeatureKind::Dense { width }, Mode::Evaluate, StorageType::F32).or_else(
            |error| match error {
                ModelError::SparseInput { .. } => {
                    model.network(FeatureKind::Sparse { width }, Mode::Evaluate, StorageType::F32)
                }
                other => Err(other),
            },
        )?;
        weights.check(&model.config().name, network.parameters())?;
        let options = RunOptions::default();
        let (model, dtype, cost_model, outputs) = (model.clone(), StorageType::F32, None, Vec::new());
        Ok(Self { model, weights, feature_norm, dtype, options, cost_model, outputs })
    }

    /// From a folder that [`crate::Trainer::save`] wrote: its best epoch, else the newest; or one of those folders itself.
    /// What the run has learned of its devices decides how a graph is split over several, with no measurement on it.
    ///
    /// Every file of the checkpoint is checked against the digest that was written with it.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Damaged`], [`Error::CustomModel`], [`Error::RunRecord`], [`Error::Weights`], [`Error::CostModel`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (record, weights, cost_model) = read_checkpoint(path.as_ref())?;
        let name = record.model.name.clone();
        let model = Model::from_config(record.model).map_err(|error| match error {
            ModelError::Unknown { .. } => Error::CustomModel { name },
            other => other.into(),
        })?;
        Ok(Self::new(&model, weights, Some(record.feature_norm))?.dtype(record.dtype).cost_model(cost_model))
    }

    /// As [`Predictor::open`], for a model that is the user's own.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Damaged`], [`Error::RunRecord`], [`Error::Weights`], [`Error::CostModel`].
    pub fn open_with(path: impl AsRef<Path>, model: &Model) -> Result<Self> {
        let (record, weights, cost_model) = read_checkpoint(path.as_ref())?;
        Ok(Self::new(model, weights, Some(record.feature_norm))?.dtype(record.dtype).cost_model(cost_model))
    }

    /// From a safetensors file with PyG's names and the name of the built-in model that it belongs to. Layers and widths
    /// are read off the weights.
    ///
    /// # Errors
    /// [`Error::Weights`], [`Error::Model`].
    pub fn from_weights(file: impl AsRef<Path>, model: &str, norm: Option<Norm>) -> Result<Self> {
        let weights = Weights::load(file.as_ref())?;
        let model = Model::of_weights(model, norm, &weights)??;
        Self::new(&model, weights, None)
    }

    /// How matrices with a row a vertex are stored; by default as in training, and f32 for weights from elsewhere. Logits are
    /// handed out as f32 either way.
    pub fn dtype(mut self, dtype: StorageType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sets where and how the model runs, all at once.
    pub fn options(mut self, options: RunOptions) -> Self {
        self.options = options;
        self
    }

    run_option_setters!(self => self.options);

    /// Whether features are normalised, whatever the checkpoint or the data set says.
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.feature_norm = Some(norm);
        self
    }

    /// By what a run has learned of its devices.
    pub(crate) fn cost_model(mut self, model: Option<CostModel>) -> Self {
        self.cost_model = model.map(Arc::new);
        self
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Asks for outputs of the network beside the logits, by the names that [`Network::output`](crate::model::Network::output) gave
    /// them; [`Prediction::outputs`] holds them. The built-in models name the rows that the last layer reads `hidden`: embeddings.
    ///
    /// ```
    /// use lapidary::{Dataset, Model, Trainer};
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    /// let trainer = Trainer::builder(&model, &data).build()?;
    /// let prediction = trainer.predictor()?.outputs(&["hidden"]).run(&data)?;
    /// assert_eq!(prediction.outputs["hidden"].dim(), (34, 8));
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    pub fn outputs(mut self, names: &[&str]) -> Self {
        self.outputs = names.iter().map(|&name| name.into()).collect();
        self
    }

    /// The logits of every vertex, `[n, classes]`.
    ///
    /// # Errors
    /// [`Error::Model`] if the data has another feature width, or an output was asked for that the network does not name;
    /// [`Error::DataLacks`], [`Error::DoesNotFit`].
    pub fn predict(&self, data: &Dataset) -> Result<Array2<f32>> {
        Ok(self.run(data)?.logits)
    }

    /// The logits of every vertex, the outputs that were asked for, and what the logits get right.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn run(&self, data: &Dataset) -> Result<Prediction> {
        let pass = Pass::new(self, data, Runs::Once)?;
        let start = Instant::now();
        let mut session = pass.open(self, None)?;
        let mut prediction = pass.run(self, &mut session, start)?;
        // What is made once a graph is part of this one pass.
        let made = prediction.part_seconds.iter_mut().zip(session.setup_seconds());
        made.for_each(|(seconds, setup)| *seconds += setup);
        Ok(prediction)
    }

    /// A predictor that keeps the devices, the plan and the graph between calls.
    pub fn prepared(self) -> PreparedPredictor {
        PreparedPredictor::new(self)
    }
}

/// What a checkpoint says of its model, its weights and its cost model.
fn read_checkpoint(path: &Path) -> Result<(ModelRecord, Weights, Option<CostModel>)> {
    let (folder, file) = weights_to_use(path).ok_or_else(|| Error::NoCheckpoint { path: path.into() })?;
    let mut checkpoint = Checkpoint::read(&folder, &[RUN_FILE, file, COST_MODEL_FILE])?;
    Ok((checkpoint.record()?, checkpoint.weights(file)?, checkpoint.cost_model()?))
}
