//! Continues a run from a checkpoint.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_cost_model::{CostModel, FileError};
use serde::Serialize;

use super::optimizer::check_learning_rate;
use super::record::Change;
use super::{RunRecord, Snapshot, Trainer};
use crate::error::{Error, Result};
use crate::graph::VertexOrder;
use crate::infer::Position;
use crate::infer::checkpoint::{self, BEST_FILE, COST_MODEL_FILE, MODEL_FILE, OPTIMIZER_FILE, RUN_FILE};
use crate::infer::digests::Checkpoint;
use crate::model::{Parameter, Weights};
use crate::runtime::{SplitRecord, check_ranges, ranges_of};
use crate::versions::UNVERIFIED_FORMAT;

impl Trainer {
    /// Continues from the newest checkpoint in `dir`, which may be one within an epoch: see [`Trainer::position`]. Returns
    /// the number of its whole epochs; if there is no checkpoint, returns `None` and changes nothing.
    ///
    /// The next epochs are those of the run without the interruption, bit for bit as long as the split is the same. A
    /// learned split continues from the split and the cost model of the checkpoint, if there are as many devices. The
    /// learning rate is that of the checkpoint; it and the number of epochs may be set anew.
    ///
    /// Every file of the checkpoint is verified with its digest, and the data with the digests in the run record. If the
    /// newest checkpoint is damaged, the one before is used; a warning says so, and the damaged one is renamed to
    /// `damaged-epoch-<N>` or `damaged-batch-<N>-<batches>`.
    ///
    /// # Errors
    /// [`Error::OtherRun`] if the run had another model, dataset, vertex order, feature norm, storage type, seed, optimizer, decay or
    /// passes; [`Error::DataChanged`] if the graph, features, labels or splits have changed; [`Error::NewerFile`] if a newer
    /// version wrote the checkpoint, which stays as it is. If no checkpoint can be read, the error of the newest: [`Error::Damaged`], [`Error::Io`], [`Error::RunRecord`], [`Error::Parts`],
    /// [`Error::Weights`], [`Error::CostModel`].
    pub fn resume(&mut self, dir: impl AsRef<Path>) -> Result<Option<u64>> {
        let mut unreadable: Vec<(PathBuf, Error)> = Vec::new();
        for (_, folder) in checkpoint::states(dir.as_ref()) {
            match self.read_checkpoint(&folder) {
                Ok(saved) => {
                    unreadable.into_iter().for_each(|(folder, error)| report_damage(&folder, &error, saved.position()));
                    self.continue_from(saved)?;
                    return Ok(Some(self.epoch));
                }
                Err(error) if is_damage(&error) => unreadable.push((folder, error)),
                Err(error) => return Err(error),
            }
        }
        unreadable.into_iter().next().map_or(Ok(None), |(_, error)| Err(error))
    }

    /// Reads a checkpoint of this run, and checks everything in it.
    fn read_checkpoint(&self, folder: &Path) -> Result<Snapshot> {
        let files = [RUN_FILE, MODEL_FILE, OPTIMIZER_FILE, BEST_FILE, COST_MODEL_FILE];
        let mut checkpoint = Checkpoint::read(folder, &files)?;
        let record: RunRecord = checkpoint.record()?;
        self.check_same_run(folder, &record)?;
        check_ranges(&ranges_of(&record.parts), record.parts.len(), self.record.vertices)?;
        check_learning_rate(record.learning_rate)?;
        self.check_partial(folder, &record)?;
        let weights = checkpoint.weights(MODEL_FILE)?;
        weights.check(&self.record.model.model.name, &self.parameters)?;
        let moments = checkpoint.weights(OPTIMIZER_FILE)?;
        self.check_moments(&moments)?;
        let best_weights = match &record.best {
            Some(_) => checkpoint.weights(BEST_FILE)?,
            None => Weights::default(),
        };
        let (cost_model, data) = (checkpoint.cost_model()?, self.data.clone());
        Ok(Snapshot { record, weights, moments, best_weights: Arc::new(best_weights), cost_model, data })
    }

    /// Checks that a record within an epoch is of the first batches of an epoch.
    fn check_partial(&self, folder: &Path, record: &RunRecord) -> Result<()> {
        let Some(partial) = record.partial else { return Ok(()) };
        let seeds = self.setup.batches.as_ref().and_then(|(feeder, _)| feeder.drawing.seeds_of(partial.batches));
        if seeds == Some(partial.seeds) && partial.loss_sum.is_finite() {
            return Ok(());
        }
        let source = serde::de::Error::custom("field `partial` is not of the first batches of an epoch");
        Err(Error::RunRecord { path: folder.join(RUN_FILE), source })
    }

    /// Takes over the state, the splits and the history of a checkpoint.
    fn continue_from(&mut self, saved: Snapshot) -> Result<()> {
        self.restore(&saved)?;
        let RunRecord { parts, splits, optimizer, epochs, initial_weights, mut changes, .. } = saved.record;
        let next = self.epoch + 1;
        if let (Some(from), Some(to)) = (epochs, self.record.epochs)
            && from != to
        {
            let (from, to) = (from as f64, to as f64);
            changes.push(Change { epoch: next, what: "epochs".into(), from, to, why: "resume".into() });
        }
        self.record.optimizer = optimizer;
        self.record.initial_weights = initial_weights;
        self.record.changes = changes;
        self.resume_split(parts, splits, saved.cost_model)
    }

    /// Restores the splits of a checkpoint whose epoch is [`Trainer::epoch`].
    fn resume_split(
        &mut self,
        parts: Vec<[usize; 2]>,
        mut splits: Vec<SplitRecord>,
        cost_model: Option<CostModel>,
    ) -> Result<()> {
        if splits.is_empty() {
            splits.push(SplitRecord { epoch: 1, parts: parts.clone() });
        }
        if let (Some(learning), Some(model)) = (&mut self.learning, cost_model) {
            learning.learner.set_model(model, &self.setup.inputs);
        }
        let same_count = parts.len() == self.record.parts.len();
        let partition = &self.setup.options.partition;
        let target = match partition.replayed(self.epoch + 1) {
            Some(replayed) => replayed.to_vec(),
            // They follow from a profile, which may be another one now. The shares of mini-batches follow from them.
            None if same_count && partition.learns() => ranges_of(&parts),
            None => ranges_of(&self.record.parts),
        };
        self.record.splits = splits;
        self.move_to(self.epoch + 1, target, None)?;
        self.record_split(self.epoch + 1, self.record.parts.clone());
        Ok(())
    }

    /// Checks that all moments of the optimizer are present, with the shapes of this model's parameters.
    pub(super) fn check_moments(&self, moments: &Weights) -> Result<()> {
        for (name, parameter, _) in self.moment_slots() {
            let single: Weights = moments.iter().filter(|(n, _)| *n == name).collect();
            single.check(&self.record.model.model.name, &[Parameter { name, ..parameter.clone() }])?;
        }
        if let Some(table) = &self.embedding {
            for name in table.moment_names() {
                let single: Weights = moments.iter().filter(|(n, _)| *n == name).collect();
                single.check(&self.record.model.model.name, &[Parameter { name, ..table.parameter() }])?;
            }
        }
        Ok(())
    }

    fn check_same_run(&self, folder: &Path, saved: &RunRecord) -> Result<()> {
        let asked = &self.record;
        let path = folder.join(RUN_FILE);
        let same = |what: &'static str, [saved, asked]: [String; 2]| match saved == asked {
            true => Ok(()),
            false => Err(Error::OtherRun { path: path.clone(), what, saved, asked }),
        };
        let texts = |saved: &dyn ToString, asked: &dyn ToString| [saved.to_string(), asked.to_string()];
        // First: the model's first width follows from it.
        same("embedding", differences(&saved.model.embedding, &asked.model.embedding, &[]))?;
        same("model", differences(&saved.model.model, &asked.model.model, &[]))?;
        same("dataset", texts(&saved.dataset, &asked.dataset))?;
        // Before the digests, which depend on these two.
        let kind = |record: &RunRecord| {
            record.model.made_features.map_or_else(|| "the dataset's own".into(), |kind| kind.to_string())
        };
        same("features (option `make_features`)", [kind(saved), kind(asked)])?;
        same("vertex order (option `reorder`)", texts(&saved.reorder, &asked.reorder))?;
        self.check_same_data(&path, saved)?;
        same("number of edges", texts(&saved.edges, &asked.edges))?;
        same("list of passes", differences(&saved.passes, &asked.passes, &[]))?;
        same("number of vertices", texts(&saved.vertices, &asked.vertices))?;
        same("feature norm", texts(&saved.model.feature_norm, &asked.model.feature_norm))?;
        same("dtype", texts(&saved.model.dtype, &asked.model.dtype))?;
        same("seed", texts(&saved.seed, &asked.seed))?;
        same("choice of mini-batches", differences(&saved.batches, &asked.batches, &[]))?;
        same("optimizer", differences(&saved.optimizer, &asked.optimizer, &["lr"]))?;
        same("choice of layers that decay", differences(&saved.decay_layers, &asked.decay_layers, &[]))?;
        same("weights of the classes", differences(&saved.class_weights, &asked.class_weights, &[]))
    }

    /// Checks that the data has not changed since the run was saved.
    fn check_same_data(&self, path: &Path, saved: &RunRecord) -> Result<()> {
        let Some(fingerprint) = &saved.fingerprint else {
            // For records of the unverified format, the reader has already printed a warning.
            if saved.model.format > UNVERIFIED_FORMAT {
                tracing::warn!(
                    "{} does not say what the data was: whether it changed cannot be found out",
                    path.display()
                );
            }
            return Ok(());
        };
        let changed = fingerprint.differences(self.data.fingerprint());
        if changed.is_empty() {
            return Ok(());
        }
        let (dataset, what) = (saved.dataset.clone(), changed.join(", "));
        Err(Error::DataChanged { path: path.into(), dataset, what })
    }
}

/// Returns the order of the vertices in the newest checkpoint of a folder that can be read; `None` if there is none. A run
/// that continues from it needs a dataset in this order: see [`Reorder::To`](crate::Reorder::To).
pub fn recorded_order(dir: impl AsRef<Path>) -> Option<VertexOrder> {
    let record = |folder: PathBuf| Checkpoint::read(&folder, &[RUN_FILE]).ok()?.record::<RunRecord>().ok();
    checkpoint::states(dir.as_ref()).into_iter().find_map(|(_, folder)| Some(record(folder)?.reorder))
}

/// Returns whether an error says that a checkpoint cannot be read, so that an earlier one should be tried. What another
/// version wrote is no damage.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::CostModel { source, .. } => !matches!(source, FileError::Newer { .. } | FileError::Version { .. }),
        Error::Damaged { .. }
        | Error::Io { .. }
        | Error::RunRecord { .. }
        | Error::Parts { .. }
        | Error::Weights(_) => true,
        _ => false,
    }
}

/// Warns that a checkpoint was skipped, and sets it aside unless it may be readable another time.
fn report_damage(folder: &Path, error: &Error, position: Position) {
    let aside = if matches!(error, Error::Io { .. }) { None } else { checkpoint::set_aside(folder) };
    let renamed = aside.map(|aside| format!(" It is now {}.", aside.display())).unwrap_or_default();
    tracing::warn!("{error}. Continuing from the checkpoint before it, of {position}.{renamed}");
}

/// Returns a value as text: a number that was an f32 with the digits of one.
fn shown(value: &serde_json::Value) -> String {
    let narrow = value.as_f64().filter(|wide| value.is_f64() && f64::from(*wide as f32) == *wide);
    narrow.map_or_else(|| value.to_string(), |wide| format!("{:?}", wide as f32))
}

/// Returns the values of two settings where they differ, as text: all of both, or for records only the fields that
/// differ. A setting that is absent is "none". Fields in `except` are ignored.
fn differences<T: Serialize>(saved: &T, asked: &T, except: &[&str]) -> [String; 2] {
    let [saved, asked] = [saved, asked].map(|value| serde_json::to_value(value).unwrap_or_default());
    let (Some(from), Some(to)) = (saved.as_object(), asked.as_object()) else {
        return [saved, asked].map(|value| if value.is_null() { "none".into() } else { shown(&value) });
    };
    let names: BTreeSet<&String> =
        from.keys().chain(to.keys()).filter(|name| !except.contains(&name.as_str())).collect();
    let changed: Vec<_> = names.into_iter().filter(|&name| from.get(name) != to.get(name)).collect();
    let texts = |fields: &serde_json::Map<String, serde_json::Value>, is_named: bool| {
        let text = |name: &&String| match fields.get(*name) {
            Some(value) if is_named => Some(format!("{name} {}", shown(value))),
            value => value.map(shown),
        };
        changed.iter().filter_map(text).collect::<Vec<_>>().join(", ")
    };
    // One name is enough for a single field.
    let [saved, asked] = [texts(from, true), texts(to, changed.len() > 1)];
    match (&changed[..], saved.is_empty(), asked.is_empty()) {
        ([name], true, _) => [format!("no {name}"), asked],
        ([_], _, true) => [saved, "none".into()],
        _ => [saved, asked],
    }
}
