//! Converts a dataset to the inputs of programs. This is the only link between `dataset` and `lower`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::dataset::{Dataset, FeatureNorm, Features, Labels, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::graph::VertexOrder;
use crate::lower::{FeatureData, Inputs, LabelData};
use crate::model::{FeatureKind, LabelKind, Mode, Model};
use crate::program::{Degree, Origin};
use lapidary_kernels::call::NO_LABEL;
use lapidary_kernels::{Shared, StorageType};
use rayon::prelude::*;

/// Mini-batches use sparse features as dense ones if at least this share of their cells is stored. Each batch has other rows,
/// whose transpose it would need; and a quarter of the cells takes half of the memory of all, since each has its column.
const DENSE_IN_BATCHES: f64 = 0.25;

/// Returns the arrays of `data`, with features normalised as requested, for runs on the whole graph or on mini-batches.
/// Without `edge_weights`, all weights are 1.
///
/// # Errors
/// [`Error::DataLacks`] if the dataset has no features.
/// # Cost
/// O(n + e); the features are copied if they are normalised, or become dense.
pub(crate) fn bind(data: &Dataset, norm: FeatureNorm, edge_weights: bool, in_batches: bool) -> Result<Inputs> {
    let stored = features(data)?;
    let mut features = match norm {
        FeatureNorm::Row => stored.row_normalised(),
        FeatureNorm::None => stored.clone(),
    };
    if let Features::Sparse(sparse) = &features
        && is_dense(stored, in_batches)
    {
        features = Features::Dense(sparse.to_dense());
    }
    if !std::ptr::eq(features.values().as_ptr(), stored.values().as_ptr()) {
        stored.values().release();
    }
    Ok(bind_with(data, feature_data(features), edge_weights))
}

/// Returns whether a run uses these features as dense ones.
fn is_dense(features: &Features, in_batches: bool) -> bool {
    let cells = features.rows() as f64 * features.width() as f64;
    matches!(features, Features::Dense(_)) || in_batches && features.stored() as f64 >= DENSE_IN_BATCHES * cells
}

/// Returns the arrays of `data` with other features.
///
/// # Cost
/// As [`bind`].
pub(crate) fn bind_with(data: &Dataset, features: FeatureData, edge_weights: bool) -> Inputs {
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
    Inputs {
        graph: data.graph().clone(),
        symmetric: !data.directed(),
        edge_weights: data.edge_weights().filter(|_| edge_weights).cloned(),
        features,
        labels,
        split: data.split().clone(),
        labelled,
        class_weights: None,
        kept: None,
    }
}

/// Returns `model` as it is applied to `data`, with `features` as its input: with the choice of edge weights made.
///
/// # Errors
/// [`Error::FeatureWidth`]; those of [`uses_edge_weights`]; [`Error::EdgeWeights`] if a sum of weights that the model
/// divides by, or takes a root of, is not above 0.
/// # Cost
/// O(n + e) if the weights are used.
pub(crate) fn model_for(model: &Model, data: &Dataset, features: FeatureKind) -> Result<Model> {
    if let Some(&width) = model.config().widths.first().filter(|&&width| width != features.width()) {
        return Err(Error::FeatureWidth { dataset: data.name().into(), data: features.width(), model: width });
    }
    let model = model.clone().edge_weights(uses_edge_weights(model, data, features)?);
    if let Some(weights) = data.edge_weights().filter(|_| model.config().edge_weights == Some(true)) {
        for degree in origins(&model, features)?.iter().filter_map(weighted_degree) {
            check_sums(degree, data, weights)?;
        }
    }
    Ok(model)
}

/// Whether a model uses the weights of the edges of `data`: they are there, it reads them, and it was not told to ignore
/// them.
///
/// # Errors
/// [`Error::DataLacks`] if the model was told to use them, or was trained with them, and the dataset has none;
/// [`Error::Model`].
pub(crate) fn uses_edge_weights(model: &Model, data: &Dataset, features: FeatureKind) -> Result<bool> {
    let config = model.config();
    let asked = config.edge_weights.or(config.attention.edge_weights.then_some(true));
    let weighted = data.edge_weights().is_some();
    if asked == Some(false) || (asked.is_none() && !weighted) {
        return Ok(false);
    }
    let reads = |origin: &Origin| matches!(origin, Origin::EdgeWeights(..)) || weighted_degree(origin).is_some();
    let needed = origins(&model.clone().edge_weights(true), features)?.iter().any(reads);
    if needed && !weighted {
        return Err(Error::DataLacks {
            dataset: data.name().into(),
            what: "edge weights",
            needed_by: "the model uses them: add edge_weights.npy, or set option `edge_weights` to ignore",
        });
    }
    Ok(needed)
}

/// Returns what the network of a model reads.
fn origins(model: &Model, features: FeatureKind) -> Result<Vec<Origin>> {
    let (network, _) = model.network(features, Mode::Evaluate, StorageType::F32)?;
    Ok(network.program().origins().keys().cloned().collect())
}

fn weighted_degree(origin: &Origin) -> Option<Degree> {
    match *origin {
        Origin::Scale(degree @ (Degree::InverseRoot { weighted, .. } | Degree::Inverse { weighted, .. })) => {
            weighted.then_some(degree)
        }
        _ => None,
    }
}

/// Checks that a model can divide by the sums of the weights, or take their roots.
fn check_sums(degree: Degree, data: &Dataset, weights: &[f32]) -> Result<()> {
    let (Degree::InverseRoot { self_loops, .. } | Degree::Inverse { self_loops, .. }) = degree;
    let graph = data.graph();
    let bad = (0..graph.vertex_count()).into_par_iter().find_map_first(|v| {
        let edges = graph.edges(v);
        let looped = graph.sources(v).binary_search(&(v as u32)).is_ok();
        let own = if self_loops && !looped { 1.0 } else { 0.0 };
        let sum = own + weights[edges.clone()].iter().map(|&weight| f64::from(weight)).sum::<f64>();
        let isolated = edges.is_empty() && !self_loops;
        (!isolated && (sum <= 0.0 || sum.is_nan())).then_some((v, sum))
    });
    match bad {
        Some((vertex, sum)) => {
            // The user knows the vertex by its number in the file.
            let moved = data.permutation().filter(|_| data.order() != VertexOrder::Own);
            let vertex = moved.map_or(vertex, |order| order.old_of_new()[vertex] as usize);
            Err(Error::EdgeWeights { dataset: data.name().into(), vertex, sum })
        }
        None => Ok(()),
    }
}

/// Returns the kind of labels of `data`; classes if it has none.
pub(crate) fn label_kind(data: &Dataset) -> LabelKind {
    match data.labels() {
        Some(Labels::Multi { .. }) => LabelKind::Multi,
        Some(Labels::Class(_)) | None => LabelKind::Class,
    }
}

/// Returns how runs on the whole graph or on mini-batches use the features of `data`.
///
/// # Errors
/// [`Error::DataLacks`] if the dataset has no features.
pub(crate) fn feature_kind(data: &Dataset, in_batches: bool) -> Result<FeatureKind> {
    let features = features(data)?;
    let width = features.width();
    Ok(if is_dense(features, in_batches) { FeatureKind::Dense { width } } else { FeatureKind::Sparse { width } })
}

fn features(data: &Dataset) -> Result<&Features> {
    data.features().ok_or_else(|| Error::DataLacks {
        dataset: data.name().into(),
        what: "features",
        needed_by: "models read them: add features.npy, or features_indptr.npy, features_indices.npy and features_values.npy; or \
                    let `lapidary train` make them with option `make_features`",
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
