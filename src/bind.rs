//! What a data set gives to programs: the join of `dataset` and `lower`.

use crate::dataset::{Dataset, FeatureNorm, Features, Labels, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::lower::{FeatureData, Inputs};
use crate::model::FeatureKind;
use lapidary_kernels::Shared;
use lapidary_kernels::call::NO_LABEL;

/// The arrays of `data`, with its features normalised as asked.
///
/// # Errors
/// [`Error::DataLacks`] without features; [`Error::NotBuilt`] for multi-label sets.
/// # Cost
/// O(n + e); the features are copied if they are normalised.
pub(crate) fn bind(data: &Dataset, norm: FeatureNorm) -> Result<Inputs> {
    let features = features(data)?;
    let features = match norm {
        FeatureNorm::Row => features.row_normalised(),
        FeatureNorm::None => features.clone(),
    };
    let vertices = data.graph().vertex_count();
    let labels = match data.labels() {
        Some(Labels::Class(labels)) => labels.clone(),
        Some(Labels::Multi { .. }) => {
            let what = "training and inference on multi-label sets".into();
            return Err(Error::NotBuilt { what, instead: "this version has one class a vertex".into() });
        }
        None => Shared::from(vec![NO_LABEL; vertices]),
    };
    let mut labelled = [0; 4];
    for (&code, &label) in data.split().iter().zip(labels.iter()) {
        labelled[code as usize] += u64::from(label != NO_LABEL);
    }
    debug_assert_eq!([TRAIN, VAL, TEST], [1, 2, 3]);
    Ok(Inputs {
        graph: data.graph().clone(),
        symmetric: !data.directed(),
        features: feature_data(features),
        labels,
        split: data.split().clone(),
        labelled,
    })
}

/// How the features of `data` are stored.
///
/// # Errors
/// [`Error::DataLacks`].
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
