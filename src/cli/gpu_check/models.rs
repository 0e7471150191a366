//! Every model on the GPU against the CPU device, and what moved against the plan.

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

/// What a loss may differ by, relative to 1 or itself: rounding, and what ten steps make of it.
const ALLOWED: f64 = 1e-3;

/// The same where rows are stored in bf16, whose roundings sums in another order turn round.
const ALLOWED_IN_BF16: f64 = 0.02;

/// One row a model, devices and memory.
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

/// Some epochs, and the peak of each device, which was the planned one.
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
        // A small graph cannot be cut into tiles that are much smaller: what is enough will do.
        Err(Error::DoesNotFit { need_bytes, .. }) if memory.is_some_and(|memory| memory < need_bytes) => {
            return train(model, data, dtype, devices, Some(need_bytes));
        }
        built => built?,
    };
    let epochs = (0..EPOCHS).map(|_| trainer.step()).collect::<Result<_>>()?;
    Ok((epochs, trainer.peak_device_bytes()))
}

/// The largest difference of a loss.
fn difference(got: &[Epoch], want: &[Epoch]) -> f64 {
    let each = got.iter().zip(want).map(|(got, want)| (got.loss - want.loss).abs() / want.loss.abs().max(1.0));
    each.fold(0.0, f64::max)
}
