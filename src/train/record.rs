//! What a run was, beside its weights: `run.json`.

use serde::{Deserialize, Serialize};

use super::{DecayLayers, Optimizer};
use crate::dataset::Fingerprint;
use crate::infer::checkpoint::ModelRecord;
use crate::program::Passes;
use crate::runtime::SplitRecord;

/// The best epoch so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Which epoch, from 1.
    pub epoch: u64,
    /// Share of the validation split that was right; `None` without a validation split.
    pub val_accuracy: Option<f64>,
    /// Share of the test split that was right; `None` without a test split.
    pub test_accuracy: Option<f64>,
}

/// How a run was set up and how far it got: `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The model and how its features were prepared.
    #[serde(flatten)]
    pub model: ModelRecord,
    /// The data set's name.
    pub dataset: String,
    /// Its vertices.
    pub vertices: usize,
    /// Its edges.
    pub edges: usize,
    /// Digests of its arrays; nothing in the records of older versions.
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
    /// The run's seed.
    pub seed: u64,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate of the epochs to come.
    pub learning_rate: f64,
    /// Which passes rewrote the program: they change the rounding.
    pub passes: Passes,
    /// What it decays.
    pub decay_layers: DecayLayers,
    /// The epoch that the weights are of.
    pub epoch: u64,
    /// The best epoch so far.
    pub best: Option<Best>,
    /// The vertex ranges of the devices.
    pub parts: Vec<[usize; 2]>,
    /// All the splits that there were, and from which epoch on; nothing in the records of older versions.
    #[serde(default)]
    pub splits: Vec<SplitRecord>,
}
