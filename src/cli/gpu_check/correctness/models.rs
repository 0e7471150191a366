//! Every model on the GPU against the CPU device, and bytes and peaks against the plan.

use bytesize::ByteSize;
use lapidary_kernels::StorageType;
use serde_json::json;

use super::super::section::{Finished, Row, Section};
use super::super::{Scope, Size};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::runtime::Devices;
use crate::train::{Adam, Epoch, Trainer};

const NEXT: &str = "Train this model with `--devices cpu` until it is found; report it with results.json.";

const EPOCHS: usize = 10;

/// Maximum difference of a loss, absolute, or relative if the loss is above 1. It allows for rounding and its growth
/// over ten steps.
const ALLOWED: f64 = 1e-3;

/// The same for rows stored in bf16, where another order of a sum can change the rounding of a stored number.
const ALLOWED_IN_BF16: f64 = 0.02;

type MakeModel = fn(&[usize]) -> Model;

const MODELS: [(&str, MakeModel); 8] = [
    ("gcn", Model::gcn),
    ("gat", Model::gat),
    ("gatv2", Model::gatv2),
    ("gin", Model::gin),
    ("sage", Model::sage),
    ("graphconv", Model::graphconv),
    ("commnet", Model::commnet),
    ("resgcn", Model::resgcn),
];

/// Devices, the exchange between them, memory as a share of what is needed, and the storage type.
struct Case {
    devices: usize,
    exchange: &'static str,
    percent: Option<u64>,
    dtype: StorageType,
}

const CASES: [Case; 5] = [
    Case { devices: 1, exchange: "auto", percent: None, dtype: StorageType::F32 },
    Case { devices: 2, exchange: "peer", percent: None, dtype: StorageType::F32 },
    Case { devices: 2, exchange: "host", percent: None, dtype: StorageType::F32 },
    Case { devices: 1, exchange: "auto", percent: Some(60), dtype: StorageType::F32 },
    Case { devices: 1, exchange: "auto", percent: None, dtype: StorageType::Bf16 },
];

impl Case {
    fn name(&self, data: &str, model: &str) -> String {
        let devices =
            if self.devices == 1 { String::new() } else { format!(", two shares, {} exchange", self.exchange) };
        let memory = self.percent.map_or_else(String::new, |percent| format!(", {percent} % of the memory"));
        format!("{model} on {data} in {}{devices}{memory}", self.dtype.name())
    }
}

/// Trains each model in each case, on the GPU and on the CPU.
pub(in super::super) fn against_the_cpu(scope: &Scope) -> Result<Finished> {
    let graphs: &[&str] = match scope.size {
        Size::Published => &["karate", "planted"],
        Size::Tiny => &["karate"],
    };
    let mut section = Section::new(scope, "models", graphs.len() * MODELS.len() * CASES.len(), NEXT, None);
    for &name in graphs {
        let data = Dataset::builtin(name)?;
        for (model_name, make) in MODELS {
            let model = make(&[data.feature_width(), 16, data.class_count()]).dropout(0.5);
            for case in CASES {
                section.row(&case.name(name, model_name), || compare(scope.gpu, &model, &data, &case));
            }
        }
    }
    Ok(section.finish())
}

fn compare(gpu: u32, model: &Model, data: &Dataset, case: &Case) -> Result<Row> {
    let devices = |count: usize| {
        let numbers = vec![gpu.to_string(); count].join(",");
        Ok::<_, Error>(Devices::parse(&format!("cuda:{numbers}"))?.exchange(case.exchange.parse()?))
    };
    let want = train(model, data, case.dtype, Devices::cpu(), None)?;
    let memory = match case.percent {
        Some(percent) => Some(train(model, data, case.dtype, devices(1)?, None)?.peaks[0] * percent / 100),
        None => None,
    };
    let got = train(model, data, case.dtype, devices(case.devices)?, memory)?;
    let difference = difference(&got.epochs, &want.epochs);
    let allowed = if case.dtype == StorageType::F32 { ALLOWED } else { ALLOWED_IN_BF16 };
    let as_planned = got.epochs.iter().all(|epoch| is_as_planned(epoch, case.exchange));
    let peaks_as_planned = got.peaks.iter().zip(&got.planned_peaks).all(|(peak, planned)| peak <= planned);
    let facts = json!({
        "dtype": case.dtype.name(), "devices": case.devices, "exchange": case.exchange,
        "device_memory": memory, "peaks": got.peaks, "planned_peaks": got.planned_peaks,
        "loss_difference": difference, "bytes_as_planned": as_planned,
    });
    Ok(Row::new(facts)
        .expect(difference <= allowed, || format!("a loss differs by {difference:.2e}, more than {allowed:.0e}"))
        .expect(as_planned, || "other bytes were copied than were planned".into())
        .expect(peaks_as_planned, || format!("peaks {:?}, planned {:?}", got.peaks, got.planned_peaks)))
}

fn is_as_planned(epoch: &Epoch, exchange: &str) -> bool {
    [epoch.bytes_to_device, epoch.bytes_to_host] == epoch.planned_bytes
        && epoch.bytes_between_devices == epoch.planned_bytes_between_devices
        && (epoch.bytes_between_devices > 0) == (exchange == "peer")
}

/// A training.
struct Trained {
    epochs: Vec<Epoch>,
    /// The peak of each device in bytes, as measured and as planned.
    peaks: Vec<u64>,
    planned_peaks: Vec<u64>,
}

/// Trains for [`EPOCHS`] epochs.
fn train(model: &Model, data: &Dataset, dtype: StorageType, devices: Devices, memory: Option<u64>) -> Result<Trained> {
    let mut builder = Trainer::builder(model, data)
        .dtype(dtype)
        .devices(devices.clone())
        .optimizer(Adam::new(0.01).weight_decay(5e-4));
    if let Some(memory) = memory {
        builder = builder.device_memory(ByteSize::b(memory));
    }
    let mut trainer = match builder.build() {
        // A small graph cannot be split into much smaller tiles, so the run gets the memory that is enough.
        Err(Error::DoesNotFit { need_bytes, .. }) if memory.is_some_and(|memory| memory < need_bytes) => {
            return train(model, data, dtype, devices, Some(need_bytes));
        }
        built => built?,
    };
    let epochs = (0..EPOCHS).map(|_| trainer.step()).collect::<Result<_>>()?;
    let (peaks, planned_peaks) = (trainer.peak_device_bytes(), trainer.planned_peak_device_bytes());
    Ok(Trained { epochs, peaks, planned_peaks })
}

/// Returns the largest difference of a loss, absolute, or relative if the loss is above 1; infinity if a loss is no
/// number.
fn difference(got: &[Epoch], want: &[Epoch]) -> f64 {
    let each = got.iter().zip(want).map(|(got, want)| (got.loss - want.loss).abs() / want.loss.abs().max(1.0));
    each.fold(0.0, |most: f64, each| if each.is_nan() { f64::INFINITY } else { most.max(each) })
}
