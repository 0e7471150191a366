//! The record of a run beside its weights: `run.json`.

use serde::{Deserialize, Serialize};

use super::{BatchRecord, DecayLayers, Optimizer};
use crate::dataset::Fingerprint;
use crate::graph::VertexOrder;
use crate::infer::checkpoint::ModelRecord;
use crate::program::Passes;
use crate::runtime::SplitRecord;

/// The best epoch so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Number of the epoch, from 1.
    pub epoch: u64,
    /// Accuracy (or micro-F1) on the training split, from 0 to 1; `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_accuracy: Option<f64>,
    /// Accuracy (or micro-F1) on the validation split, from 0 to 1; `None` without a validation split.
    pub val_accuracy: Option<f64>,
    /// Accuracy (or micro-F1) on the test split, from 0 to 1; `None` without a test split.
    pub test_accuracy: Option<f64>,
}

/// A setting that changed during a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The first epoch that it applies to.
    pub epoch: u64,
    /// The setting: `learning_rate` or `epochs`.
    pub what: String,
    /// Its value before.
    pub from: f64,
    /// Its new value.
    pub to: f64,
    /// `resume` if a resumed run asked for it, `rollback` if numbers were not finite.
    pub why: String,
}

/// How far an epoch of mini-batches has come, if a checkpoint was written within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialEpoch {
    /// Number of batches that were run.
    pub batches: u64,
    /// Number of their seeds.
    pub seeds: u64,
    /// Sum of the losses of these seeds.
    pub loss_sum: f64,
}

/// Settings and progress of a run: the contents of `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The model, and how its features were prepared and stored.
    #[serde(flatten)]
    pub model: ModelRecord,
    /// Name of the dataset.
    pub dataset: String,
    /// Number of vertices of the dataset.
    pub vertices: usize,
    /// Number of edges of the dataset.
    pub edges: usize,
    /// Digests of the dataset's arrays; `None` in records of older versions.
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
    /// The order to which the vertices were brought in memory. The digests and the ranges are those in this order.
    #[serde(default, skip_serializing_if = "is_own")]
    pub reorder: VertexOrder,
    /// The run's seed.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Learning rate of the next epochs.
    pub learning_rate: f64,
    /// The passes that rewrote the program. They are recorded because they change the rounding.
    pub passes: Passes,
    /// The layers to which weight decay applies.
    pub decay_layers: DecayLayers,
    /// How much each class counts in the loss, scaled as in [`ClassWeights`](super::ClassWeights); `None` if all count alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<Vec<f32>>,
    /// The epoch of the weights; within an epoch, the one before it.
    pub epoch: u64,
    /// The progress of the next epoch; `None` between epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialEpoch>,
    /// The best epoch so far.
    pub best: Option<Best>,
    /// The mini-batches that an epoch consists of; `None` for full-graph epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchRecord>,
    /// Number of epochs that the run was asked for; `None` if it was not asked for any, or in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// BLAKE3 digest of the safetensors file of the weights that the run started from; `None` for random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<String>,
    /// How matrices were multiplied, by the name of a [`Matmul`](crate::Matmul), which changes the rounding. `None` if the
    /// devices have one way only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul: Option<String>,
    /// How gradients are added, by the name of a [`SumMode`](crate::SumMode), if not in the order of the parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<String>,
    /// Settings that changed during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// The vertex ranges of the devices.
    pub parts: Vec<[usize; 2]>,
    /// All splits so far, each with its first epoch; empty in records of older versions.
    #[serde(default)]
    pub splits: Vec<SplitRecord>,
}

fn is_own(order: &VertexOrder) -> bool {
    *order == VertexOrder::Own
}

impl RunRecord {
    /// Returns the learning rate that the run was last asked for: by the last resumption that changed it, otherwise at
    /// the start.
    pub fn asked_learning_rate(&self) -> f64 {
        let asked = self.changes.iter().rev().find(|change| change.what == "learning_rate" && change.why == "resume");
        asked.map_or(self.optimizer.lr(), |change| change.to)
    }
}
