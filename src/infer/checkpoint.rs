//! Checkpoints: `DIR/epoch-00000060/` to resume training from, and `DIR/best/` to predict with. A run on mini-batches may
//! also write states within an epoch, as `DIR/batch-00000061-00000200/`: 200 batches of epoch 61. They are only resumed
//! from, and never count as an epoch.
//!
//! | file | in | contents |
//! | --- | --- | --- |
//! | `model.safetensors` | both | the parameters, under PyG's names |
//! | `run.json` | both | the record of the run: a [`ModelRecord`], and more for the trainer |
//! | `best.safetensors` | epoch | the parameters of the best epoch so far |
//! | `optimizer.safetensors` | epoch | the optimizer's moments |
//! | `cost_model.json` | both | the learned speed of the devices, if the run learned it |
//! | `B3SUMS` | both | the BLAKE3 digests of all other files, in the format of the program `b3sum` |
//!
//! A checkpoint is written under another name and then renamed, so an existing checkpoint is complete. Reading verifies
//! every file with its digest: see [`super::digests`].

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use lapidary_kernels::StorageType;
use ndarray::{Array2, ArrayView2};
use serde::{Deserialize, Serialize};

use super::digests::{DIGESTS_FILE, digests_text};
use super::metrics::probabilities;
use crate::bind::label_kind;
use crate::dataset::{Dataset, FeatureNorm, MadeFeatures};
use crate::error::{Error, Result};
use crate::model::{LabelKind, ModelConfig};
use crate::plain_file;

pub(crate) const MODEL_FILE: &str = "model.safetensors";
pub(crate) const BEST_FILE: &str = "best.safetensors";
pub(crate) const OPTIMIZER_FILE: &str = "optimizer.safetensors";
pub(crate) const RUN_FILE: &str = "run.json";
pub(crate) const COST_MODEL_FILE: &str = "cost_model.json";

/// Start of the name of the file that tests whether a folder can be written.
pub(crate) const PROBE_PREFIX: &str = ".probe-";

/// The part of `run.json` that is needed to apply the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Version of the record.
    pub format: u32,
    /// The model.
    pub model: ModelConfig,
    /// Normalisation of the features.
    pub feature_norm: FeatureNorm,
    /// Storage type of matrices with one row per vertex; f32 in records of older versions.
    #[serde(default, with = "dtype")]
    pub dtype: StorageType,
    /// Width of the learned row of each vertex, if the model reads these instead of features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<usize>,
    /// How features were made from the graph, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_features: Option<MadeFeatures>,
    /// The classes that the model predicts; `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
}

/// The classes that a model predicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    /// Whether a vertex has one class or several.
    pub labels: LabelKind,
    /// Their names, if the data that the model was trained on has names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
}

impl Classes {
    /// Returns the classes of a dataset.
    pub(crate) fn of(data: &Dataset) -> Self {
        Self { labels: label_kind(data), names: data.class_names().map(<[String]>::to_vec) }
    }

    /// Returns the names of `count` classes, or else their numbers.
    #[cfg(feature = "command")]
    pub(crate) fn named(&self, count: usize) -> Vec<String> {
        let names = self.names.clone().filter(|names| names.len() == count);
        names.unwrap_or_else(|| (0..count).map(|class| class.to_string()).collect())
    }

    /// Returns the probability of each class: the softmax of each row of logits; with several classes per vertex, the
    /// sigmoid of each logit.
    ///
    /// ```
    /// use lapidary::{Classes, model::LabelKind, ndarray::array};
    ///
    /// let one = Classes { labels: LabelKind::Class, names: None };
    /// assert_eq!(one.probabilities(array![[0.0, 0.0], [9.0, 9.0]].view()), array![[0.5, 0.5], [0.5, 0.5]]);
    /// ```
    ///
    /// # Shapes
    /// `logits` and the result: `[n, classes]`.
    /// # Cost
    /// O(n classes).
    pub fn probabilities(&self, logits: ArrayView2<'_, f32>) -> Array2<f32> {
        let cells = logits.rows().into_iter().flat_map(|row| probabilities(row, self.labels)).collect();
        Array2::from_shape_vec(logits.dim(), cells).expect("as many cells as logits")
    }
}

/// Serializes a [`StorageType`] as its name.
mod dtype {
    use lapidary_kernels::StorageType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &StorageType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StorageType, D::Error> {
        let name = String::deserialize(deserializer)?;
        StorageType::named(&name)
            .ok_or_else(|| D::Error::custom(format!("there is no dtype `{name}`, only f32 and bf16")))
    }
}

/// How far a run has come. Positions are ordered by that.
///
/// It is written as in "epoch 3", or as in "batch 20 of epoch 4".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of whole epochs that were run.
    pub epoch: u64,
    /// Number of mini-batches of the next epoch that were run; 0 between epochs.
    pub batch: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.batch {
            0 => write!(f, "epoch {}", self.epoch),
            batch => write!(f, "batch {batch} of epoch {}", self.epoch + 1),
        }
    }
}

impl Position {
    /// Returns the name of the checkpoint folder of this position.
    pub(crate) fn folder(self) -> String {
        match self.batch {
            0 => format!("epoch-{:08}", self.epoch),
            batch => format!("batch-{:08}-{batch:08}", self.epoch + 1),
        }
    }

    /// Returns the position whose folder has this name.
    fn of_folder(name: &str) -> Option<Self> {
        if let Some(epoch) = name.strip_prefix("epoch-") {
            return Some(Self { epoch: epoch.parse().ok()?, batch: 0 });
        }
        let (epoch, batch) = name.strip_prefix("batch-")?.split_once('-')?;
        let [epoch, batch] = [epoch, batch].map(|number| number.parse::<u64>().ok().filter(|&number| number > 0));
        Some(Self { epoch: epoch? - 1, batch: batch? })
    }
}

/// The files of one checkpoint folder: name and contents.
pub(crate) type Files = Vec<(&'static str, Vec<u8>)>;

/// Returns the bytes of `run.json`.
pub(crate) fn record_bytes(record: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(record).expect("a run record is plain data");
    bytes.push(b'\n');
    bytes
}

/// Writes `dir/name/` with these files and their digests, in place of an earlier folder. Does nothing if the folder has
/// these very files already.
///
/// Everything is on disk when this returns: each file, the folder's entries, and the rename. Where the system can swap
/// two folders in one step, `dir/name/` exists at every moment, so a process that dies leaves the old or the new one.
///
/// # Errors
/// [`Error::Io`]. A complete folder, earlier or new, is then in its place, or an earlier one under `.old-<name>`.
pub(crate) fn write_folder(dir: &Path, name: &str, files: &Files) -> Result<()> {
    let digests = digests_text(files);
    let place = dir.join(name);
    if plain_file::read(&place.join(DIGESTS_FILE), plain_file::TEXT_BYTES).is_ok_and(|found| found == digests)
        && has(&place, files)
    {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(Error::io("create the checkpoint folder", dir))?;
    let fresh = dir.join(format!(".new-{name}"));
    remove_folder(&fresh)?;
    let written = write_fresh(&fresh, files, digests).and_then(|()| put_in_place(dir, &fresh, &place, name));
    if written.is_err() {
        // An incomplete checkpoint is useless, so it is removed. The first error is the one to report.
        drop(remove_folder(&fresh));
    }
    written
}

/// Returns whether a folder has all files with these contents.
fn has(folder: &Path, files: &Files) -> bool {
    let same = |(name, bytes): &(&str, Vec<u8>)| {
        plain_file::read(&folder.join(name), bytes.len() as u64).is_ok_and(|found| found == *bytes)
    };
    files.iter().all(same)
}

fn write_fresh(fresh: &Path, files: &Files, digests: Vec<u8>) -> Result<()> {
    fs::create_dir(fresh).map_err(Error::io("create the checkpoint folder", fresh))?;
    for (file, bytes) in files.iter().chain([&(DIGESTS_FILE, digests)]) {
        let path = fresh.join(file);
        let written = File::create(&path).and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()));
        written.map_err(Error::io("write the checkpoint file", path))?;
    }
    sync_folder(fresh)
}

/// Renames `fresh` to `place`, and removes what was there.
fn put_in_place(dir: &Path, fresh: &Path, place: &Path, name: &str) -> Result<()> {
    let old = dir.join(format!(".old-{name}"));
    if place.symlink_metadata().is_ok() {
        remove_folder(&old)?;
        if swap(fresh, place).is_ok() {
            // What was in its place has the name of the new one now.
            sync_folder(dir)?;
            return remove_folder(fresh);
        }
        fs::rename(place, &old).map_err(Error::io("replace the checkpoint", place))?;
    }
    fs::rename(fresh, place).map_err(Error::io("put the checkpoint in place at", place))?;
    sync_folder(dir)?;
    remove_folder(&old)
}

/// Exchanges the names of two folders in one step, where the system supports that.
#[cfg(target_os = "linux")]
fn swap(a: &Path, b: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn swap(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Flushes the entries of a folder to the disk, where the system supports that.
fn sync_folder(dir: &Path) -> Result<()> {
    let synced = if cfg!(unix) { File::open(dir).and_then(|dir| dir.sync_all()) } else { Ok(()) };
    synced.map_err(Error::io("write the checkpoint folder", dir))
}

/// Removes all but the newest `keep` epochs from a checkpoint folder, and all but the newest `keep` states within an
/// epoch; 0 keeps all.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn prune(dir: &Path, keep: usize) -> Result<()> {
    if keep == 0 {
        return Ok(());
    }
    let (whole, partial): (Vec<_>, Vec<_>) = states(dir).into_iter().partition(|(position, _)| position.batch == 0);
    let mut old = whole.into_iter().skip(keep).chain(partial.into_iter().skip(keep));
    // The record goes first, so that a folder of which only a part was removed is no checkpoint.
    old.try_for_each(|(_, folder)| {
        for file in [RUN_FILE, DIGESTS_FILE] {
            drop(fs::remove_file(folder.join(file)));
        }
        remove_folder(&folder)
    })
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    }
}

/// Returns whether a folder is a checkpoint, even if some of its files were removed.
fn is_checkpoint(folder: &Path) -> bool {
    [RUN_FILE, DIGESTS_FILE].into_iter().any(|file| folder.join(file).exists())
}

/// Returns the states in `dir` that can be resumed from, and their folders, the newest first: epochs, and states within
/// an epoch. This includes a folder that was being replaced when the process died.
pub(crate) fn states(dir: &Path) -> Vec<(Position, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let states = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let position = Position::of_folder(name.strip_prefix(".old-").unwrap_or(name))?;
        // If one state has two folders, the one in its place is newer.
        is_checkpoint(&path).then_some((position, !name.starts_with('.'), path))
    });
    let mut states: Vec<_> = states.collect();
    states.sort();
    states.into_iter().rev().map(|(position, _, path)| (position, path)).collect()
}

/// Removes what a run that was killed left in a checkpoint folder: folders that were being written, replaced folders
/// whose new contents are in place, and empty files that tested whether the folder can be written. What cannot be
/// removed stays.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_replaced = name.strip_prefix(".old-").is_some_and(|name| is_checkpoint(&dir.join(name)));
        if name.starts_with(".new-") || is_replaced {
            drop(remove_folder(&path));
        } else if name.starts_with(PROBE_PREFIX) {
            drop(fs::remove_file(&path));
        }
    }
}

/// Gives a damaged checkpoint another name, so that it is no longer the newest. Returns the name if that worked. If a
/// checkpoint of this epoch was damaged before, the name gets a number.
pub(crate) fn set_aside(folder: &Path) -> Option<PathBuf> {
    let name = folder.file_name()?.to_str()?;
    let names = std::iter::once(format!("damaged-{name}")).chain((2..).map(|n| format!("damaged-{name}-{n}")));
    let aside = names.map(|name| folder.with_file_name(name)).find(|aside| !aside.exists())?;
    fs::rename(folder, &aside).ok().map(|()| aside)
}

/// Returns the folder and the file name of the weights to predict with: of `dir` itself if it is a checkpoint,
/// otherwise of its best epoch, otherwise of the newest. If the process died while it replaced `best/`, the best
/// weights are found in the folder of the newest epoch.
pub(crate) fn weights_to_use(dir: &Path) -> Option<(PathBuf, &'static str)> {
    if is_checkpoint(dir) {
        return Some((dir.to_path_buf(), MODEL_FILE));
    }
    let best = dir.join("best");
    if is_checkpoint(&best) {
        return Some((best, MODEL_FILE));
    }
    let (_, newest) = states(dir).into_iter().find(|(position, _)| position.batch == 0)?;
    let file = if newest.join(BEST_FILE).exists() { BEST_FILE } else { MODEL_FILE };
    Some((newest, file))
}
