//! Compares every model on the GPU with the CPU device, and the bytes moved with the plan.

use bytesize::ByteSize;
use lapidary_kernels::StorageType;
use serde_json::{Value, json};

use super::budget::Budget;
use super::rows::Rows;
use super::{DEVICE, ORDINAL};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::runtime::Devices;
use crate::train::{Adam, Epoch, Trainer};

const EPOCHS: usize = 10;

/// Maximum difference of a loss, absolute, or relative if the loss is above 1. It allows for rounding and its growth
/// over ten steps.
const ALLOWED: f64 = 1e-3;

/// The same for rows stored in bf16, where another order of a sum can change the rounding of a stored number.
const ALLOWED_IN_BF16: f64 = 0.02;

/// Returns one row for each model and each set of devices, exchange, memory and storage type.
pub(super) fn against_the_cpu(budget: Budget) -> Result<Value> {
    let mut rows = Rows::default();
    for name in ["karate", "planted"] {
        let data = Dataset::builtin(name)?;
        let widths = [data.feature_width(), 16, data.class_count()];
        let models = [
            ("gcn", Model::gcn(&widths)),
            ("gin", Model::gin(&widths)),
            ("commnet", Model::commnet(&widths)),
            ("resgcn", Model::resgcn(&widths)),
            ("sage", Model::sage(&widths)),
            ("graphconv", Model::graphconv(&widths)),
        ];
        for (model_name, model) in models {
            let model = model.dropout(0.5);
            let two = format!("{DEVICE},{ORDINAL}");
            let cases = [
                (DEVICE, "auto", None, StorageType::F32),
                (&two, "peer", None, StorageType::F32),
                (&two, "host", None, StorageType::F32),
                (DEVICE, "auto", Some(60), StorageType::F32),
                (DEVICE, "auto", None, StorageType::Bf16),
            ];
            for (devices, exchange, percent, dtype) in cases {
                rows.measure(budget, &format!("{name} {model_name} {devices} {exchange} {percent:?} {dtype}"), || {
                    let on = |text: &str| Ok::<_, Error>(Devices::parse(text)?.exchange(exchange.parse()?));
                    let train = |devices, memory| train(&model, &data, dtype, devices, memory);
                    let (want, _) = train(Devices::cpu(), None)?;
                    let peak = || Ok::<u64, Error>(train(on(DEVICE)?, None)?.1[0]);
                    let memory = percent.map(|percent| Ok::<u64, Error>(peak()? * percent / 100)).transpose()?;
                    let (got, peaks) = train(on(devices)?, memory)?;
                    let difference = difference(&got, &want);
                    let as_planned = |epoch: &Epoch| {
                        [epoch.bytes_to_device, epoch.bytes_to_host] == epoch.planned_bytes
                            && epoch.bytes_between_devices == epoch.planned_bytes_between_devices
                            && (epoch.bytes_between_devices > 0) == (exchange == "peer")
                    };
                    let as_planned = got.iter().all(as_planned);
                    Ok(json!({
                        "data": name, "model": model_name, "dtype": dtype.name(), "devices": devices, "exchange": exchange,
                        "device_memory": memory, "peaks": peaks, "loss_difference": difference,
                        "bytes_as_planned": as_planned,
                        "ok": difference <= if dtype == StorageType::F32 { ALLOWED } else { ALLOWED_IN_BF16 } && as_planned,
                    }))
                });
            }
        }
    }
    Ok(rows.into_json())
}

/// Trains for [`EPOCHS`] epochs. Returns them, and the measured peak of each device in bytes.
fn train(
    model: &Model,
    data: &Dataset,
    dtype: StorageType,
    devices: Devices,
    memory: Option<u64>,
) -> Result<(Vec<Epoch>, Vec<u64>)> {
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
    Ok((epochs, trainer.peak_device_bytes()))
}

/// Returns the largest difference of a loss, absolute, or relative if the loss is above 1.
fn difference(got: &[Epoch], want: &[Epoch]) -> f64 {
    let each = got.iter().zip(want).map(|(got, want)| (got.loss - want.loss).abs() / want.loss.abs().max(1.0));
    each.fold(0.0, f64::max)
}
