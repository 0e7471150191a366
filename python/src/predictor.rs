//! Predictors.

use std::path::PathBuf;

use lapidary::model::LabelKind;
use lapidary::{Accuracy, Predictor, Result};
use numpy::{PyArray2, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::NativeDataset;
use crate::error::raised;
use crate::settings::DeviceSettings;
use crate::trainer::arrays_of;

/// A predictor of the library.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativePredictor(pub(crate) Predictor);

/// The accuracy on the splits train, val and test.
pub(crate) type Scores = (Option<f64>, Option<f64>, Option<f64>);

pub(crate) fn scores(accuracy: Accuracy) -> Scores {
    (accuracy.train, accuracy.val, accuracy.test)
}

#[pymethods]
impl NativePredictor {
    /// Opens a checkpoint.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, settings: DeviceSettings) -> PyResult<Self> {
        let opened = py.detach(|| -> Result<Predictor> { Ok(Predictor::open(path)?.options(settings.options()?)) });
        opened.map(Self).map_err(|error| raised(py, &error))
    }

    /// Returns the logits of every vertex, or the output of the network that `output` names, and the accuracy.
    fn run<'py>(
        &self,
        py: Python<'py>,
        data: &NativeDataset,
        output: Option<&str>,
    ) -> PyResult<(Bound<'py, PyArray2<f32>>, Scores)> {
        let prediction = py.detach(|| match output {
            None => self.0.run(&data.0),
            Some(name) => self.0.clone().outputs(&[name]).run(&data.0),
        });
        let mut prediction = prediction.map_err(|error| raised(py, &error))?;
        let rows = output.and_then(|name| prediction.outputs.remove(name)).unwrap_or(prediction.logits);
        Ok((PyArray2::from_owned_array(py, rows), scores(prediction.accuracy)))
    }

    /// Whether the model predicts several classes per vertex, for `data`.
    fn has_several_labels(&self, data: &NativeDataset) -> bool {
        self.0.classes_for(&data.0).labels == LabelKind::Multi
    }

    /// Returns the probability of each class from the logits for `data`.
    fn probabilities<'py>(
        &self,
        py: Python<'py>,
        data: &NativeDataset,
        logits: PyReadonlyArray2<'py, f32>,
    ) -> Bound<'py, PyArray2<f32>> {
        let (classes, logits) = (self.0.classes_for(&data.0), logits.as_array());
        PyArray2::from_owned_array(py, py.detach(|| classes.probabilities(logits)))
    }

    /// The names of the classes for `data`; `None` if they have none.
    fn class_names(&self, data: &NativeDataset) -> Option<Vec<String>> {
        self.0.classes_for(&data.0).names
    }

    /// The name of the model, and its widths.
    #[getter]
    fn model(&self) -> (String, Vec<usize>) {
        let config = self.0.model().config();
        (config.name.clone(), config.widths.clone())
    }

    /// The weights, by name.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        arrays_of(py, self.0.weights())
    }
}
