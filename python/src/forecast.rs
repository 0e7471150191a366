//! Forecasts of memory and time.

use lapidary::forecast::{BatchForecast, CacheForecast, DryRun, Forecast, Shape, Subject};
use lapidary::{Dataset, Model, Result, StageSeconds};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::batches::BatchSettings;
use crate::dataset::NativeDataset;
use crate::error::raised;
use crate::order;
use crate::settings::{DeviceSettings, ModelSettings, TrainingSettings};

/// A dataset, or the numbers of vertices, edges, features and classes, and whether edges have a direction.
#[derive(FromPyObject)]
pub(crate) enum Asked<'py> {
    Data(PyRef<'py, NativeDataset>),
    Shape((u64, u64, usize, usize, bool)),
}

/// The plan: memory of each device in bytes, tiles, strips, bytes on the host, and the devices. `Err`: what would fit.
type Plan = (u64, usize, usize, u64, Vec<Device>);

/// Of a device: peak bytes, bytes copied to it and to the host, seconds of an epoch and of its evaluation.
type Device = (u64, u64, u64, f64, f64);

/// The settings of a dry run.
struct Settings {
    model: ModelSettings,
    training: TrainingSettings,
    devices: DeviceSettings,
    batches: BatchSettings,
    profile: Option<String>,
}

impl Settings {
    /// Plans epochs on the whole graph.
    fn run(&self, asked: &Subject<'_>) -> Result<Forecast> {
        let (model, ordered);
        let subject = match *asked {
            Subject::Data(data) => {
                model = self.model.model_for(data)?;
                ordered = self.in_order(data, &model)?;
                Subject::Data(&ordered)
            }
            Subject::Shape(shape) => {
                order::none(&self.training)?;
                model = self.model.model(shape.features, shape.classes)?;
                Subject::Shape(shape)
            }
        };
        self.dry_run(&model, subject)?.run()
    }

    /// Plans epochs of mini-batches.
    fn run_batches(&self, data: &Dataset) -> Result<BatchForecast> {
        let model = self.model.model(self.batches.input_width(data), data.class_count())?;
        let data = self.in_order(data, &model)?;
        let batches = self.batches.batches(&data)?.expect("the Python half asks for mini-batches with a size");
        let dry_run = self.dry_run(&model, Subject::Data(&data))?;
        match self.batches.embedding {
            Some(width) => dry_run.embedding(width).run_batches(&batches),
            None => dry_run.run_batches(&batches),
        }
    }

    fn in_order(&self, data: &Dataset, model: &Model) -> Result<Dataset> {
        order::in_order(data, model, &self.training, &self.devices, &self.batches)
    }

    fn dry_run<'a>(&self, model: &'a Model, subject: Subject<'a>) -> Result<DryRun<'a>> {
        let mut dry_run = DryRun::new(model, subject)
            .options(self.devices.options()?)
            .optimizer(self.training.optimizer()?)
            .recompute(self.training.recompute()?)
            .strips(self.training.strips())
            .evaluates(self.training.evaluates())
            .dtype(self.model.dtype()?);
        if let Some(profile) = &self.profile {
            dry_run = dry_run.profile(profile);
        }
        Ok(dry_run)
    }
}

/// Plans a run, and returns the plan; or the bytes per device that it has, and those that it needs.
#[pyfunction]
pub(crate) fn forecast(
    py: Python<'_>,
    asked: Asked<'_>,
    model: ModelSettings,
    training: TrainingSettings,
    devices: DeviceSettings,
    batches: BatchSettings,
    profile: Option<String>,
) -> PyResult<(Option<Plan>, u64, u64)> {
    let settings = Settings { model, training, devices, batches, profile };
    let subject = match &asked {
        Asked::Data(data) => Subject::Data(&data.0),
        &Asked::Shape((vertices, edges, features, classes, directed)) => {
            Subject::Shape(Shape { vertices, edges, features, classes, directed })
        }
    };
    let made = py.detach(|| settings.run(&subject));
    let Forecast { policies, device_memory, .. } = made.map_err(|error| raised(py, &error))?;
    Ok(match policies.into_iter().next().expect("there is one policy").outcome {
        Err(need_bytes) => (None, device_memory, need_bytes),
        Ok(plan) => {
            let devices = plan.devices.iter().map(|device| {
                let copied = (device.bytes_to_device, device.bytes_to_host);
                (device.peak_bytes, copied.0, copied.1, device.epoch_seconds, device.eval_seconds)
            });
            let plan = (device_memory, plan.tiles, plan.strips, plan.host_bytes, devices.collect());
            (Some(plan), device_memory, device_memory)
        }
    })
}

/// Plans a run on mini-batches, and returns the figures by name; or `None`, and the bytes per device that it has, and those
/// that it needs.
#[pyfunction]
pub(crate) fn forecast_batches<'py>(
    py: Python<'py>,
    data: &NativeDataset,
    model: ModelSettings,
    training: TrainingSettings,
    devices: DeviceSettings,
    batches: BatchSettings,
    profile: Option<String>,
) -> PyResult<(Option<Bound<'py, PyDict>>, u64, u64)> {
    let settings = Settings { model, training, devices, batches, profile };
    let made = py.detach(|| settings.run_batches(&data.0)).map_err(|error| raised(py, &error))?;
    let memory = made.device_memory;
    Ok(match made.outcome {
        Err(need_bytes) => (None, memory, need_bytes),
        Ok([to_device, to_host]) => (Some(figures(py, &made, [to_device, to_host])?), memory, memory),
    })
}

/// Returns the figures of a forecast, under the names that they have in the JSON of the command.
fn figures<'py>(py: Python<'py>, made: &BatchForecast, bytes: [u64; 2]) -> PyResult<Bound<'py, PyDict>> {
    let [median, p90, most, planned] = made.peak_bytes;
    let peaks = PyDict::new(py);
    for (name, bytes) in [("median", median), ("p90", p90), ("most", most), ("planned", planned)] {
        peaks.set_item(name, bytes)?;
    }
    let stages = PyDict::new(py);
    let StageSeconds { sample, gather, compute, .. } = made.stages;
    for (name, seconds) in [("sampling", sample), ("gathering", gather), ("computing", compute)] {
        stages.set_item(name, seconds)?;
    }
    let caches = PyList::empty(py);
    for &CacheForecast { share, bytes, hits } in &made.caches {
        let cache = PyDict::new(py);
        cache.set_item("share", share)?;
        cache.set_item("bytes", bytes)?;
        cache.set_item("hits", hits)?;
        caches.append(cache)?;
    }
    let figures = PyDict::new(py);
    figures.set_item("device_memory", made.device_memory)?;
    figures.set_item("batches", made.stages.batches)?;
    figures.set_item("drawn", made.drawn)?;
    figures.set_item("vertices", &made.vertices)?;
    figures.set_item("edges", &made.edges)?;
    figures.set_item("feature_bytes", made.feature_bytes)?;
    figures.set_item("feature_rows_read", made.reads.map(|[rows, _]| rows))?;
    figures.set_item("feature_bytes_read", made.reads.map(|[_, bytes]| bytes))?;
    figures.set_item("found_on_device", made.found_on_device)?;
    figures.set_item("caches", caches)?;
    figures.set_item("peak_bytes", peaks)?;
    figures.set_item("batch_bytes_to_device", bytes[0])?;
    figures.set_item("batch_bytes_to_host", bytes[1])?;
    figures.set_item("stage_seconds", stages)?;
    Ok(figures)
}
