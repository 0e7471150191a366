//! Forecasts of memory and time.

use lapidary::forecast::{DryRun, Forecast, Shape, Subject};
use lapidary::{Dataset, Result};
use pyo3::prelude::*;

use crate::dataset::NativeDataset;
use crate::error::raised;
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
    profile: Option<String>,
}

impl Settings {
    fn run(&self, subject: Subject<'_>) -> Result<Forecast> {
        let model = match subject {
            Subject::Data(data) => self.model.model_for(data)?,
            Subject::Shape(shape) => self.model.model(shape.features, shape.classes)?,
        };
        let mut dry_run = DryRun::new(&model, subject)
            .options(self.devices.options()?)
            .optimizer(self.training.optimizer()?)
            .recompute(self.training.recompute()?)
            .strips(self.training.strips())
            .evaluates(self.training.evaluates())
            .dtype(self.model.dtype()?);
        if let Some(profile) = &self.profile {
            dry_run = dry_run.profile(profile);
        }
        dry_run.run()
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
    profile: Option<String>,
) -> PyResult<(Option<Plan>, u64, u64)> {
    let settings = Settings { model, training, devices, profile };
    let made = match &asked {
        Asked::Data(data) => {
            let data: &Dataset = &data.0;
            py.detach(|| settings.run(Subject::Data(data)))
        }
        &Asked::Shape((vertices, edges, features, classes, directed)) => {
            let shape = Shape { vertices, edges, features, classes, directed };
            py.detach(|| settings.run(Subject::Shape(shape)))
        }
    };
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
