//! The order of the vertices in memory.

use std::path::PathBuf;

use lapidary::plan::RunGathers;
use lapidary::{Dataset, Error, KeptByNumber, Model, Reorder, Result};
use pyo3::prelude::*;

use crate::batches::BatchSettings;
use crate::settings::{DeviceSettings, TrainingSettings};

/// Brings the vertices into the order that a training asks for. `data` stays as it is: if the order is another one, memory
/// holds both.
///
/// # Errors
/// [`Error::Value`] for an unknown order, or one that does not go with other settings, and those of [`Reorder::choose`].
pub(crate) fn in_order(
    data: &Dataset,
    model: &Model,
    training: &TrainingSettings,
    devices: &DeviceSettings,
    batches: &BatchSettings,
) -> Result<Dataset> {
    let reorder: Reorder = training.reorder.parse()?;
    if reorder == Reorder::default() {
        return Ok(data.clone());
    }
    reorder.check(KeptByNumber {
        ranges: devices.partition()?.has_ranges(),
        embedding: batches.embedding.is_some(),
        feature_rows: batches.feature_cache.is_some(),
    })?;
    let profile = devices.devices()?.profile();
    let gathers = match batches.batch {
        Some(_) => RunGathers::of_batches(&profile),
        None => RunGathers::of_training(model, &profile, training.epochs),
    };
    reorder.choose(data, &gathers)?.apply(data.clone())
}

/// Checks that a graph that does not exist yet is not to be ordered.
///
/// # Errors
/// [`Error::Value`] for an unknown order, and for any but that of the dataset.
pub(crate) fn none(training: &TrainingSettings) -> Result<()> {
    let reorder: Reorder = training.reorder.parse()?;
    match reorder == Reorder::default() {
        true => Ok(()),
        false => {
            let expected = "only a dataset is ordered; a shape has no vertices yet".into();
            Err(Error::Value { option: "reorder", value: reorder.to_string(), expected })
        }
    }
}

/// Returns the order of the newest checkpoint in a folder; `None` without one.
#[pyfunction]
pub(crate) fn recorded_order(py: Python<'_>, folder: PathBuf) -> Option<&'static str> {
    py.detach(|| lapidary::recorded_order(folder)).map(lapidary::VertexOrder::name)
}
