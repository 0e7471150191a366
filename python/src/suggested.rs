//! Settings to begin with on a dataset.

use lapidary::Suggested;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::NativeDataset;
use crate::error::raised;
use crate::settings::ModelSettings;

/// Returns the settings that suit a dataset, by name.
#[pyfunction]
pub(crate) fn suggest<'py>(
    py: Python<'py>,
    data: &NativeDataset,
    model: ModelSettings,
) -> PyResult<Bound<'py, PyDict>> {
    let model = model.model_for(&data.0).map_err(|error| raised(py, &error))?;
    let suggested = py.detach(|| Suggested::of(model.config(), &data.0));
    let made = PyDict::new(py);
    made.set_item("hidden", suggested.hidden)?;
    made.set_item("layer_norm", suggested.layer_norm)?;
    made.set_item("lr", suggested.learning_rate)?;
    made.set_item("feature_norm", suggested.feature_norm.to_string())?;
    made.set_item("epochs", suggested.epochs)?;
    made.set_item("patience", suggested.early_stop)?;
    Ok(made)
}
