//! Converts a dataset to the inputs of programs. This is the only link between `dataset` and `lower`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::dataset::{Dataset, FeatureNorm, Features, Labels, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::lower::{FeatureData, Inputs, LabelData};
use crate::model::{FeatureKind, LabelKind};
use lapidary_kernels::Shared;
use lapidary_kernels::call::NO_LABEL;

/// Returns the arrays of `data`, with features normalised as requested.
///
/// # Errors
/// [`Error::DataLacks`] if the dataset has no features.
/// # Cost
/// O(n + e); the features are copied if they are normalised.
pub(crate) fn bind(data: &Dataset, norm: FeatureNorm) -> Result<Inputs> {
    let features = features(data)?;
    let features = match norm {
        FeatureNorm::Row => {
            let normalised = features.row_normalised();
            features.values().release();
            normalised
        }
        FeatureNorm::None => features.clone(),
    };
    let vertices = data.graph().vertex_count();
    let labels = match data.labels() {
        Some(Labels::Class(labels)) => LabelData::Classes(labels.clone()),
        Some(Labels::Multi { data, .. }) => LabelData::Targets(data.clone()),
        None => LabelData::Classes(Shared::from(vec![NO_LABEL; vertices])),
    };
    let mut labelled = [0; 4];
    for split in [TRAIN, VAL, TEST] {
        labelled[split as usize] = data.labelled_split_size(split) as u64;
    }
    Ok(Inputs {
        graph: data.graph().clone(),
        symmetric: !data.directed(),
        features: feature_data(features),
        labels,
        split: data.split().clone(),
        labelled,
    })
}

/// Returns the kind of labels of `data`; classes if it has none.
pub(crate) fn label_kind(data: &Dataset) -> LabelKind {
    match data.labels() {
        Some(Labels::Multi { .. }) => LabelKind::Multi,
        Some(Labels::Class(_)) | None => LabelKind::Class,
    }
}

/// Returns how the features of `data` are stored.
///
/// # Errors
/// [`Error::DataLacks`] if the dataset has no features.
pub(crate) fn feature_kind(data: &Dataset) -> Result<FeatureKind> {
    let features = features(data)?;
    let width = features.width();
    Ok(match features {
        Features::Dense(_) => FeatureKind::Dense { width },
        Features::Sparse(_) => FeatureKind::Sparse { width },
    })
}

fn features(data: &Dataset) -> Result<&Features> {
    data.features().ok_or_else(|| Error::DataLacks {
        dataset: data.name().into(),
        what: "features",
        needed_by: "models read them: add features.npy, or features_indptr.npy, features_indices.npy and features_values.npy",
    })
}

fn feature_data(features: Features) -> FeatureData {
    let width = features.width();
    match features {
        Features::Dense(dense) => FeatureData::Dense { data: dense.data().clone(), width },
        Features::Sparse(sparse) => FeatureData::Sparse {
            indptr: sparse.indptr().clone(),
            indices: sparse.indices().clone(),
            values: sparse.values().clone(),
            width,
        },
    }
}

/// Does some work on a dataset, and checks that its files did not change meanwhile: see [`if_unchanged`].
///
/// # Errors
/// [`Error::Dataset`] if a file has changed, otherwise those of the work.
pub(crate) fn watched<T>(data: &Dataset, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if_unchanged(data, catch_unwind(AssertUnwindSafe(work)))
}

/// Returns the result of work on a dataset whose files did not change meanwhile. If one did, that is the error, whether
/// the work succeeded, failed or panicked: mapped arrays change with their files.
///
/// # Errors
/// [`Error::Dataset`] if a file has changed, otherwise those of the work.
pub(crate) fn if_unchanged<T>(data: &Dataset, done: std::thread::Result<Result<T>>) -> Result<T> {
    data.check_files()?;
    done.unwrap_or_else(|panic| resume_unwind(panic))
}
