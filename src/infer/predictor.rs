//! The predictor: a model and its weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lapidary_cost_model::CostModel;
use lapidary_kernels::{Matmul, StorageType};
use ndarray::Array2;
use serde::Deserialize;

use super::checkpoint::{COST_MODEL_FILE, Classes, ModelRecord, RUN_FILE, weights_to_use};
use super::digests::Checkpoint;
use super::pass::Pass;
use super::spare_devices::SpareDevices;
use super::{Accuracy, PreparedPredictor};
use crate::bind::{feature_kind, uses_edge_weights, watched};
use crate::dataset::{Dataset, FeatureNorm, Fingerprint, MadeFeatures};
use crate::error::{Error, Result};
use crate::model::{FeatureKind, Init, LabelKind, Mode, Model, ModelError, Norm, Parameter, Weight, Weights};
use crate::program::EMBEDDING;
use crate::runtime::{RunOptions, Runs, run_option_setters};

/// The predictions of a model for one dataset.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// `[n, classes]`: unnormalised log-probabilities. Rows are in the order of the dataset, as in all outputs. If its vertices
    /// were relabelled, [`Dataset::permutation`] leads to their original order.
    pub logits: Array2<f32>,
    /// The outputs that [`Predictor::outputs`] requested, by name: `[n, width]`.
    pub outputs: BTreeMap<String, Array2<f32>>,
    /// Accuracy of the logits on the labels of the dataset.
    pub accuracy: Accuracy,
    /// The kind of label, which decides the accuracy metric.
    pub labels: LabelKind,
    /// Seconds of the forward pass, including planning and setup if this call did them.
    pub seconds: f64,
    /// The vertex range of each device.
    pub parts: Vec<[usize; 2]>,
    /// Seconds of each device's kernels.
    pub part_seconds: Vec<f64>,
}

/// Applies trained weights to datasets.
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
    /// Cost model for the split of a graph over several devices.
    pub(super) cost_model: Option<Arc<CostModel>>,
    /// Outputs to return beside the logits.
    pub(super) outputs: Vec<String>,
    /// Whether the model reads a learned embedding, which is among the weights, instead of features.
    is_embedded: bool,
    /// The data that a learned embedding has rows for, if it is known.
    pub(super) trained_on: Option<TrainedOn>,
    /// What the columns of the logits are, if a checkpoint tells.
    classes: Option<Classes>,
    /// How the features of graphs without any are made, as in training.
    made_features: Option<MadeFeatures>,
    /// The devices of the last small graph, with their memory. Clones share them.
    spare: Arc<Mutex<SpareDevices>>,
}

impl Predictor {
    /// Creates a predictor from weights in memory. Without a `feature_norm`, each dataset's own default is used.
    ///
    /// If the weights have a learned embedding, `embedding.weight`, it takes the place of features. It has rows for the
    /// vertices of one graph, and datasets with another number of vertices are refused.
    ///
    /// # Errors
    /// [`Error::Weights`] if their names or shapes are not those of the model; [`Error::Model`].
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
        let mut parameters = network.parameters().to_vec();
        let table = weights.get(EMBEDDING).filter(|_| parameters.iter().all(|p| p.name != EMBEDDING));
        let is_embedded = table.is_some();
        if let Some(table) = table {
            let shape = vec![table.shape.first().copied().unwrap_or_default(), width];
            parameters.push(Parameter { name: EMBEDDING.into(), shape, init: Init::Zeros, trained: true });
        }
        weights.check(&model.config().name, &parameters)?;
        let options = RunOptions::default();
        let (model, dtype, cost_model, outputs) = (model.clone(), StorageType::F32, None, Vec::new());
        Ok(Self {
            model,
            weights,
            feature_norm,
            dtype,
            options,
            cost_model,
            outputs,
            is_embedded,
            trained_on: None,
            classes: None,
            made_features: None,
            spare: Arc::default(),
        })
    }

    /// Opens a checkpoint: a folder that [`crate::Trainer::save`] wrote, of which the best epoch is used, otherwise the
    /// newest; or the folder of one epoch. A graph is split over several devices by the cost model that the run
    /// learned, without new measurements.
    ///
    /// Every file of the checkpoint is verified with its digest.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Damaged`], [`Error::CustomModel`], [`Error::RunRecord`], [`Error::Weights`],
    /// [`Error::CostModel`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (record, trained_on, weights, cost_model) = read_checkpoint(path.as_ref())?;
        let name = record.model.name.clone();
        let model = Model::from_config(record.model).map_err(|error| match error {
            ModelError::Unknown { .. } => Error::CustomModel { name },
            other => other.into(),
        })?;
        let made = Self::new(&model, weights, Some(record.feature_norm))?;
        let made = made.dtype(record.dtype).cost_model(cost_model).made_features(record.made_features);
        Ok(made.trained_on(trained_on).classes(record.classes))
    }

    /// Opens a checkpoint like [`Predictor::open`], for a custom model.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::Damaged`], [`Error::RunRecord`], [`Error::Weights`], [`Error::CostModel`].
    pub fn open_with(path: impl AsRef<Path>, model: &Model) -> Result<Self> {
        let (record, trained_on, weights, cost_model) = read_checkpoint(path.as_ref())?;
        // A model that was trained with weights of edges asks for them.
        let model = match (model.config().edge_weights, record.model.edge_weights) {
            (None, Some(uses)) => &model.clone().edge_weights(uses),
            _ => model,
        };
        let made = Self::new(model, weights, Some(record.feature_norm))?;
        let made = made.dtype(record.dtype).cost_model(cost_model).made_features(record.made_features);
        Ok(made.trained_on(trained_on).classes(record.classes))
    }

    /// Loads a safetensors file with PyG's names, for the built-in model `model`. The number of layers and the widths
    /// are taken from the weights.
    ///
    /// # Errors
    /// [`Error::Weights`], [`Error::Model`].
    pub fn from_weights(file: impl AsRef<Path>, model: &str, norm: Option<Norm>) -> Result<Self> {
        let weights = Weights::load(file.as_ref())?;
        let model = Model::of_weights(model, norm, &weights)??;
        Self::new(&model, weights, None)
    }

    /// Sets the storage type of matrices with one row per vertex. The default is that of the training run, and f32 for
    /// other weights. Logits are returned as f32 in any case.
    pub fn dtype(mut self, dtype: StorageType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Returns how matrices are multiplied; `None` if the devices have one way only.
    pub fn matmul(&self) -> Option<Matmul> {
        self.options.matmul(self.dtype)
    }

    /// Sets all run options at once: devices, memory, partition and passes.
    pub fn options(mut self, options: RunOptions) -> Self {
        self.options = options;
        self
    }

    run_option_setters!(self => self.options);

    /// Sets the normalisation of features, instead of that of the checkpoint or the dataset.
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.feature_norm = Some(norm);
        self
    }

    /// Whether the model uses the weights of the edges of `data`.
    ///
    /// # Errors
    /// As [`Predictor::predict`], about edge weights.
    pub fn uses_edge_weights(&self, data: &Dataset) -> Result<bool> {
        uses_edge_weights(&self.model, data, self.features_for(data)?)
    }

    /// Sets whether the weights of edges are used, instead of as in training.
    pub fn edge_weights(mut self, on: bool) -> Self {
        self.model = self.model.edge_weights(on);
        self
    }

    /// Sets what the columns of the logits are.
    pub(crate) fn classes(mut self, classes: Option<Classes>) -> Self {
        self.classes = classes;
        self
    }

    /// Returns the classes that the columns of the logits for `data` stand for: those of the training run, if a checkpoint
    /// tells, otherwise those of `data`.
    pub fn classes_for(&self, data: &Dataset) -> Classes {
        self.classes.clone().unwrap_or_else(|| Classes::of(data))
    }

    /// Sets how features are made for graphs without any.
    pub fn made_features(mut self, kind: Option<MadeFeatures>) -> Self {
        self.made_features = kind;
        self
    }

    /// Returns the dataset as it is; or with features made from its graph as in training, if the model was trained with such
    /// ones and the dataset has none.
    ///
    /// # Cost
    /// That of [`Dataset::with_made_features`].
    pub fn with_features(&self, data: Dataset) -> Dataset {
        match self.made_features.filter(|_| data.features().is_none()) {
            Some(kind) => data.with_made_features(kind),
            None => data,
        }
    }

    /// Sets the data that a learned embedding has rows for.
    pub(crate) fn trained_on(mut self, data: TrainedOn) -> Self {
        self.trained_on = Some(data);
        self
    }

    /// Returns the learned embedding, if the model reads one instead of features.
    pub(super) fn embedding(&self) -> Option<&Weight> {
        self.weights.get(EMBEDDING).filter(|_| self.is_embedded)
    }

    /// Returns what the model reads as features of `data`.
    ///
    /// # Errors
    /// [`Error::DataLacks`]; [`Error::OtherGraph`] if there is a learned embedding for other vertices.
    pub(super) fn features_for(&self, data: &Dataset) -> Result<FeatureKind> {
        let Some(table) = self.embedding() else {
            if self.made_features.is_some() && data.features().is_none() {
                let needed_by = "the model was trained on features made from the graph: call Predictor::with_features";
                return Err(Error::DataLacks { dataset: data.name().into(), what: "features", needed_by });
            }
            return feature_kind(data, false);
        };
        self.check_graph(data, table.shape[0])?;
        Ok(FeatureKind::Dense { width: table.shape[1] })
    }

    /// Checks that the learned rows, which are `rows`, are those of the vertices of `data`.
    fn check_graph(&self, data: &Dataset, rows: usize) -> Result<()> {
        let vertices = data.graph().vertex_count();
        let graph = self.trained_on.as_ref().and_then(|trained| trained.graph.as_ref());
        let why = if vertices != rows {
            format!("it has {vertices} vertices, and the model has learned rows for {rows}")
        } else if graph.is_some_and(|graph| *graph != data.fingerprint().graph) {
            "its edges, or the order of its vertices, are others".into()
        } else {
            return Ok(());
        };
        let trained = self.trained_on.as_ref().map_or_else(|| "another graph".into(), |t| format!("`{}`", t.dataset));
        Err(Error::OtherGraph { dataset: data.name().into(), trained, why })
    }

    /// Sets the cost model for the split over several devices.
    pub(crate) fn cost_model(mut self, model: Option<CostModel>) -> Self {
        self.cost_model = model.map(Arc::new);
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Requests outputs of the network beside the logits, by the names that
    /// [`Network::output`](crate::model::Network::output) gave them. They are returned in [`Prediction::outputs`]. In
    /// the built-in models, `hidden` is the input of the last layer: the embeddings.
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

    /// Returns the logits of every vertex, `[n, classes]`, in the order of `data`; see [`Dataset::permutation`].
    ///
    /// # Errors
    /// [`Error::FeatureWidth`] if the data has another number of features; [`Error::Model`] if a requested output does
    /// not exist; [`Error::ClassCount`] if the data has more classes than the model, or fewer and several labels per
    /// vertex; [`Error::Dataset`] if its files have changed; [`Error::DataLacks`], [`Error::DoesNotFit`],
    /// [`Error::Device`]; [`Error::OtherGraph`] if the model has a learned embedding, for the vertices of another graph.
    pub fn predict(&self, data: &Dataset) -> Result<Array2<f32>> {
        Ok(self.run(data)?.logits)
    }

    /// Returns the logits of every vertex, the requested outputs, and the accuracy.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    /// # Cost
    /// Planning and a pass. On the CPU, the memory of a graph of up to 262,144 vertices and edges is kept for the next one.
    pub fn run(&self, data: &Dataset) -> Result<Prediction> {
        self.options.ranks.telling(watched(data, || {
            let pass = Pass::new(self, data, Runs::Once)?;
            let start = Instant::now();
            let idle = self.spare().take(self);
            let mut session = pass.open_on(self, None, idle)?;
            let mut prediction = pass.run(self, &mut session, start)?;
            // The work that is done once per graph belongs to this single pass.
            let made = prediction.part_seconds.iter_mut().zip(session.setup_seconds());
            made.for_each(|(seconds, setup)| *seconds += setup);
            let (_, idle) = session.into_plans_and_devices();
            self.spare().keep(self, data, idle);
            Ok(prediction)
        }))
    }

    /// Returns the devices of the last small graph.
    pub(super) fn spare(&self) -> MutexGuard<'_, SpareDevices> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a predictor that keeps its devices, plan and graph between calls.
    pub fn prepared(self) -> PreparedPredictor {
        PreparedPredictor::new(self)
    }
}

/// The data that a learned embedding has rows for.
#[derive(Clone, Debug)]
pub(crate) struct TrainedOn {
    pub dataset: String,
    /// The digest of the graph.
    pub graph: Option<String>,
}

/// Where a record says what the data was.
#[derive(Deserialize)]
struct DataRecord {
    dataset: String,
    #[serde(default)]
    fingerprint: Option<Fingerprint>,
}

/// What a checkpoint says of the model and of the data that it was trained on, its weights, and its cost model.
type Opened = (ModelRecord, TrainedOn, Weights, Option<CostModel>);

/// Reads a checkpoint.
fn read_checkpoint(path: &Path) -> Result<Opened> {
    let (folder, file) = weights_to_use(path).ok_or_else(|| Error::NoCheckpoint { path: path.into() })?;
    let mut checkpoint = Checkpoint::read(&folder, &[RUN_FILE, file, COST_MODEL_FILE])?;
    let DataRecord { dataset, fingerprint } = checkpoint.record()?;
    let trained_on = TrainedOn { dataset, graph: fingerprint.map(|fingerprint| fingerprint.graph) };
    Ok((checkpoint.record()?, trained_on, checkpoint.weights(file)?, checkpoint.cost_model()?))
}
