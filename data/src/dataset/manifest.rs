//! The file `dataset.json`, which describes a dataset directory.

use std::num::NonZeroU64;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::features::FeatureNorm;
use crate::plain_file;

/// Name of the file.
pub(crate) const FILE: &str = "dataset.json";

/// The file with the original ids of vertices that were relabelled: the only one that the entry `permutation` may name.
pub(crate) const PERMUTATION: &str = "permutation.npy";

/// Newest version of dataset directories. The first one states no version; a later one states it as `format`.
const NEWEST: u32 = 1;

/// The entry with the version of the directory.
#[derive(Deserialize)]
struct Stated {
    format: Option<NonZeroU64>,
}

/// The entries, in the order in which they are written. Unknown entries are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub name: String,
    pub vertices: u64,
    pub edges: u64,
    pub directed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_width: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_norm: Option<FeatureNorm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permutation: Option<String>,
}

impl Manifest {
    /// Reads the description of the dataset in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let needed = "a dataset is a directory with that description and .npy files";
        let text = plain_file::read(&path, plain_file::TEXT_BYTES).map_err(Error::missing_or("read", &path, needed))?;
        let invalid = |source| Error::Manifest { path: path.clone(), source };
        // First: a newer version may have other entries.
        let stated: Stated = serde_json::from_slice(&text).map_err(invalid)?;
        match stated.format.map(NonZeroU64::get) {
            Some(found) if found > u64::from(NEWEST) => Err(Error::NewerDirectory { path, found, newest: NEWEST }),
            _ => serde_json::from_slice(&text).map_err(invalid),
        }
    }

    /// Returns the text of the file.
    pub(crate) fn to_text(&self) -> String {
        // Strings and numbers under string keys always serialise.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}
