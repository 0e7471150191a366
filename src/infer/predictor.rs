//! The predictor: weights, and the model that they belong to.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bytesize::ByteSize;
use half::bf16;
use lapidary_cost_model::CostModel;
use lapidary_kernels::StorageType;
use ndarray::Array2;

use super::checkpoint::{COST_MODEL_FILE, ModelRecord, RUN_FILE, weights_to_use};
use super::digests::Checkpoint;
use super::{Accuracy, evaluation_program};
use crate::bind::{bind, feature_kind, label_kind};
use crate::dataset::{Dataset, FeatureNorm};
use crate::error::{Error, Result};
use crate::model::{FeatureKind, LabelKind, Mode, Model, ModelError, Norm, Weights};
use crate::program::passes::order::Workload;
use crate::program::{Origin, Passes};
use crate::runtime::{Devices, MemoryPolicy, Partition, RunOptions, Runs, Session, SessionSpec};

/// What a model says of a data set.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// `[n, classes]`: unnormalised log-probabilities.
    pub logits: Array2<f32>,
    /// What they get right of the labels that the data set has.
    pub accuracy: Accuracy,
    /// What is predicted of each vertex: it says what the accuracy means.
    pub labels: LabelKind,
    /// Seconds of the forward pass and what it needs once a graph.
    pub seconds: f64,
    /// The vertex range of each device.
    pub parts: Vec<[usize; 2]>,
    /// Seconds that each device's kernels took, what is needed once a graph included.
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
    model: Model,
    weights: Weights,
    feature_norm: Option<FeatureNorm>,
    dtype: StorageType,
    options: RunOptions,
    /// By which graphs are split over several devices.
    cost_model: Option<Arc<CostModel>>,
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
        Ok(Self { model: model.clone(), weights, feature_norm, dtype: StorageType::F32, options, cost_model: None })
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

    /// Which devices compute; the CPU by default.
    pub fn devices(mut self, devices: Devices) -> Self {
        self.options.devices = devices;
        self
    }

    /// How much memory each device may use; all of the host's by default.
    pub fn device_memory(mut self, memory: ByteSize) -> Self {
        self.options.device_memory = Some(memory);
        self
    }

    /// How it is decided what stays on a device; [`MemoryPolicy::Optimal`] by default.
    pub fn memory(mut self, policy: MemoryPolicy) -> Self {
        self.options.memory = policy;
        self
    }

    /// How vertices are split over devices; learned by default.
    pub fn partition(mut self, partition: Partition) -> Self {
        self.options.partition = partition;
        self
    }

    /// Whether features are normalised, whatever the checkpoint or the data set says.
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.feature_norm = Some(norm);
        self
    }

    /// Which passes rewrite the program; all by default.
    pub fn passes(mut self, passes: Passes) -> Self {
        self.options.passes = passes;
        self
    }

    /// By what a run has learned of its devices.
    pub(crate) fn cost_model(mut self, model: Option<CostModel>) -> Self {
        self.cost_model = model.map(Arc::new);
        self
    }

    /// As a trainer was set up.
    pub(crate) fn options(mut self, options: RunOptions) -> Self {
        self.options = options;
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

    /// The logits of every vertex, `[n, classes]`.
    ///
    /// # Errors
    /// [`Error::Model`] if the data has another feature width; [`Error::DataLacks`], [`Error::DoesNotFit`].
    pub fn predict(&self, data: &Dataset) -> Result<Array2<f32>> {
        Ok(self.run(data)?.logits)
    }

    /// The logits of every vertex, and what they get right.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn run(&self, data: &Dataset) -> Result<Prediction> {
        let (vertices, classes) = (data.graph().vertex_count(), data.class_count());
        let outputs = self.model.config().widths.last().copied().unwrap_or_default();
        if classes > outputs {
            return Err(Error::ClassCount { dataset: data.name().into(), data: classes, model: outputs });
        }
        let (network, logits) = self.model.network(feature_kind(data)?, Mode::Evaluate, self.dtype)?;
        let edges = data.graph().edge_count() as u64;
        let workload = Workload { vertices: vertices as u64, edges, backward: false, runs: 1 };
        let program = evaluation_program(network, logits, label_kind(data), &workload, self.options.passes)?;
        let inputs = bind(data, self.feature_norm.unwrap_or_else(|| data.default_feature_norm()))?;

        let start = Instant::now();
        let job = SessionSpec {
            programs: &[("infer", &program)],
            inputs: &inputs,
            parts: self.options.parts(&inputs, &program, self.cost_model.as_deref(), Runs::Once)?,
            main: &[0],
            others: &[],
            repeats: false,
            seed: 0,
            keep: &[(0, "logits".into())],
        };
        let mut session = Session::open(&self.options, &job)?;
        for (name, weight) in self.weights.iter() {
            if let Some(slots) = session.origin(&Origin::Parameter(name.into())) {
                session.write(slots, &weight.data)?;
            }
        }
        let done = session.run(&[0], &Accuracy::metrics(0), &[], true)?;
        let logits: Vec<f32> = match self.dtype {
            StorageType::F32 => session.read_rows(0, "logits")?,
            StorageType::Bf16 => session.read_rows::<bf16>(0, "logits")?.into_iter().map(f32::from).collect(),
        };
        let seconds = start.elapsed().as_secs_f64();
        let accuracy = Accuracy::sum(&done, 0);
        let logits = Array2::from_shape_vec((vertices, outputs), logits).expect("a row a vertex");
        let (parts, mut part_seconds) = (session.part_pairs(), done.kernel_seconds());
        part_seconds.iter_mut().zip(session.setup_seconds()).for_each(|(seconds, setup)| *seconds += setup);
        Ok(Prediction { logits, accuracy, labels: label_kind(data), seconds, parts, part_seconds })
    }
}

/// What a checkpoint says of its model, its weights and its cost model.
fn read_checkpoint(path: &Path) -> Result<(ModelRecord, Weights, Option<CostModel>)> {
    let (folder, file) = weights_to_use(path).ok_or_else(|| Error::NoCheckpoint { path: path.into() })?;
    let mut checkpoint = Checkpoint::read(&folder, &[RUN_FILE, file, COST_MODEL_FILE])?;
    Ok((checkpoint.record()?, checkpoint.weights(file)?, checkpoint.cost_model()?))
}
