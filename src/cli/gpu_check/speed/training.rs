//! Epochs, training with less memory than needed, and learned splits.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use lapidary_kernels::{Lane, StorageType};
use serde_json::{Value, json};

use super::super::Scope;
use super::super::budget::Budget;
use super::super::section::{Finished, Row, Section, joined, spread};
use super::super::shapes::{Graphs, Numbering, PRODUCTS, REDDIT, SHAPES};
use super::NEXT;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::runtime::{Devices, MemoryPolicy, Partition};
use crate::train::{Adam, Trainer, TrainerBuilder};

/// Returns a builder for MG-GCN's measurements: a GCN is trained on all labels, without dropout or evaluation.
fn builder<'a>(model: &'a Model, data: &'a Dataset, devices: &str) -> Result<TrainerBuilder<'a>> {
    let builder = Trainer::builder(model, data).devices(Devices::parse(devices)?);
    Ok(builder.optimizer(Adam::new(0.01)).eval_every(0))
}

/// The seconds of some epochs, and their last loss.
struct Timed {
    seconds: [f64; 3],
    loss: f64,
}

impl Timed {
    /// Measures up to `most` epochs while there is time, after two warm-up epochs: the median, minimum and maximum.
    fn measure(trainer: &mut Trainer, most: usize, budget: Budget) -> Result<Self> {
        trainer.step()?;
        trainer.step()?;
        let mut last = trainer.step()?;
        let mut seconds = vec![last.seconds];
        while seconds.len() < most && !budget.is_spent() {
            last = trainer.step()?;
            seconds.push(last.seconds);
        }
        Ok(Self { seconds: spread(seconds), loss: last.loss })
    }

    /// Returns a row that is wrong unless the loss is finite.
    fn row(&self, facts: Value) -> Row {
        Row::new(facts).expect(self.loss.is_finite(), || format!("the loss is {}", self.loss))
    }
}

/// Runs one traced epoch. Returns the seconds of the 40 longest operations and the overlap of copies with kernels.
fn noted(trainer: &mut Trainer) -> Result<Value> {
    trainer.start_trace();
    let seconds = trainer.step()?.seconds;
    let trace = trainer.trace().expect("it was started");
    let mut operations: BTreeMap<&str, f64> = BTreeMap::new();
    let kernels = trace.spans()[0].iter().filter(|span| span.lane == Lane::Compute);
    let mut calls = 0;
    for span in kernels {
        calls += 1;
        *operations.entry(&span.name).or_default() += span.end.saturating_duration_since(span.start).as_secs_f64();
    }
    let mut operations: Vec<(&str, f64)> = operations.into_iter().collect();
    operations.sort_by(|a, b| b.1.total_cmp(&a.1));
    let busy = trace.busy()[0];
    Ok(json!({
        "noted_epoch": {
            "seconds": seconds, "calls": calls, "kernel_seconds": busy.kernels_s,
            "copy_seconds": busy.copies_s, "hidden_copy_seconds": busy.both_s,
            "copies_hidden_share": if busy.copies_s > 0.0 { json!(busy.both_s / busy.copies_s) } else { Value::Null },
            "operations": operations.into_iter().take(40).map(|(name, s)| json!([name, s])).collect::<Vec<_>>(),
        },
    }))
}

/// Measures epochs of published shapes.
pub(in super::super) fn epochs(scope: &Scope, graphs: &Graphs, budget: Budget) -> Finished {
    let count = SHAPES.iter().map(|shape| shape.networks.len()).sum();
    let mut section = Section::new(scope, "epochs", count, NEXT, Some(budget));
    for shape in SHAPES {
        for network in shape.networks {
            section.row(&format!("{} {network:?}", shape.name), || {
                let (data, model) = (shape.data(graphs.of(shape), network)?, Model::gcn(network));
                let mut made = builder(&model, &data, &scope.device())?.build()?;
                let timed = Timed::measure(&mut made, scope.size.epochs(), budget.share(0.25))?;
                let ([seconds, least, most], start_up) = (timed.seconds, made.start_up());
                let row = json!({
                    "shape": shape.name, "network": network, "epoch_seconds": seconds, "loss": timed.loss,
                    "epoch_seconds_range": [least, most], "plan_seconds": start_up.plan_seconds,
                    "setup_seconds": start_up.setup_seconds, "peak_bytes": made.peak_device_bytes()[0],
                });
                Ok(timed.row(joined(row, noted(&mut made)?)))
            });
        }
    }
    section.finish()
}

/// Measures epochs with rows stored in bf16 and in f32.
pub(in super::super) fn bf16(scope: &Scope, graphs: &Graphs, budget: Budget) -> Finished {
    let mut section = Section::new(scope, "bf16", 2, NEXT, Some(budget));
    for (shape, network) in [(&REDDIT, REDDIT.networks[1]), (&PRODUCTS, PRODUCTS.networks[0])] {
        section.row(&format!("{} {network:?}", shape.name), || {
            let (data, model) = (shape.data(graphs.of(shape), network)?, Model::gcn(network));
            // An epoch after all timed ones, so that both losses are of the same epoch.
            let last = 2 * scope.size.epochs() as u64 + 2;
            let run = |dtype| {
                let mut made = builder(&model, &data, &scope.device())?.dtype(dtype).build()?;
                let timed = Timed::measure(&mut made, scope.size.epochs(), budget.share(0.2))?;
                let loss = loss_of(&mut made, last)?;
                Ok::<_, Error>((made.peak_device_bytes()[0], timed.seconds[0], loss))
            };
            let (f32_peak_bytes, f32_seconds, f32_loss) = run(StorageType::F32)?;
            let (peak_bytes, seconds, loss) = run(StorageType::Bf16)?;
            let difference = (loss - f32_loss).abs() / f32_loss.abs().max(1.0);
            let row = Row::new(json!({
                "shape": shape.name, "network": network, "epoch_seconds": seconds, "f32_epoch_seconds": f32_seconds,
                "peak_bytes": peak_bytes, "f32_peak_bytes": f32_peak_bytes,
                "loss": loss, "f32_loss": f32_loss, "loss_difference": difference,
            }));
            Ok(row.expect(difference <= MOST_DIFFERENCE, || format!("the losses {loss} and {f32_loss} differ")))
        });
    }
    section.finish()
}

/// Maximum difference of the losses of training in bf16 and in f32, absolute, or relative if the loss is above 1.
const MOST_DIFFERENCE: f64 = 0.02;

/// Trains up to an epoch and returns its loss.
fn loss_of(trainer: &mut Trainer, epoch: u64) -> Result<f64> {
    loop {
        let done = trainer.step()?;
        if done.epoch >= epoch {
            return Ok(done.loss);
        }
    }
}

/// Trains on Reddit's shape with a share of the memory that it needs, by policy: ROC's figure 10.
pub(in super::super) fn capacity(scope: &Scope, graphs: &Graphs, budget: Budget) -> Finished {
    const POLICIES: [(&str, MemoryPolicy); 4] = [
        ("optimal", MemoryPolicy::Optimal),
        ("lru", MemoryPolicy::Lru),
        ("roc", MemoryPolicy::Roc),
        ("none", MemoryPolicy::None),
    ];
    const PERCENTS: [u64; 3] = [10, 25, 50];
    let mut section = Section::new(scope, "capacity", PERCENTS.len() * POLICIES.len(), NEXT, Some(budget));
    let network = REDDIT.networks[1];
    let model = Model::gcn(network);
    // The data and the memory of a run that copies nothing, made when the first row needs them.
    let mut made_once: Option<(Dataset, u64)> = None;
    for percent in PERCENTS {
        for (name, policy) in POLICIES {
            section.row(&format!("{percent} % {name}"), || {
                if made_once.is_none() {
                    let data = REDDIT.data(graphs.of(&REDDIT), network)?;
                    let whole = builder(&model, &data, &scope.device())?.build()?.planned_peak_device_bytes()[0];
                    made_once = Some((data, whole));
                }
                let (data, whole) = made_once.as_ref().expect("it was made above");
                let memory = whole * percent / 100;
                let all = json!({ "percent": percent, "policy": name, "device_memory": memory });
                let builder = builder(&model, data, &scope.device())?.device_memory(ByteSize::b(memory)).memory(policy);
                let mut made = match builder.build() {
                    Err(Error::DoesNotFit { need_bytes, .. }) => {
                        return Ok(Row::new(joined(all, json!({ "needed_bytes": need_bytes }))));
                    }
                    made => made?,
                };
                let timed = Timed::measure(&mut made, scope.size.epochs().min(5), budget.share(0.2))?;
                let last = made.step()?;
                let (moved, peak) = ([last.bytes_to_device, last.bytes_to_host], made.peak_device_bytes()[0]);
                let row = json!({
                    "tiles": made.tiles(), "epoch_seconds": timed.seconds[0],
                    "plan_seconds": made.start_up().plan_seconds, "loss": timed.loss,
                    "bytes_to_device": moved[0], "bytes_to_host": moved[1], "planned_bytes": last.planned_bytes,
                    "peak_bytes": peak,
                });
                let row = timed.row(joined(joined(all, row), noted(&mut made)?));
                Ok(row
                    .expect(moved == last.planned_bytes, || format!("{moved:?} bytes, not {:?}", last.planned_bytes))
                    .expect(peak <= memory, || format!("the peak is {peak} bytes, of {memory}")))
            });
        }
    }
    section.finish()
}

/// Measures splits over two workers that share the GPU, on graphs whose vertices are numbered by degree.
pub(in super::super) fn splits(scope: &Scope, budget: Budget) -> Finished {
    const PARTITIONS: [&str; 3] = ["learned", "vertices", "edges"];
    let mut section = Section::new(scope, "splits", 2 * PARTITIONS.len(), NEXT, Some(budget));
    for (shape, network) in [(&REDDIT, REDDIT.networks[0]), (&PRODUCTS, PRODUCTS.networks[0])] {
        let mut made_once: Option<Dataset> = None;
        let model = Model::gcn(network);
        for partition in PARTITIONS {
            section.row(&format!("{} {partition}", shape.name), || {
                if made_once.is_none() {
                    made_once = Some(shape.data(shape.graph(scope.size, Numbering::ByDegree), network)?);
                }
                let data = made_once.as_ref().expect("it was made above");
                let epochs = scope.size.epochs().max(8);
                let builder = builder(&model, data, &format!("{},{}", scope.device(), scope.gpu))?;
                let mut made = builder.partition(Partition::parse(partition)?).epochs(100).build()?;
                let row = split_row(&mut made, epochs, budget.share(0.4))?;
                Ok(Row::new(joined(json!({ "shape": shape.name, "network": network, "partition": partition }), row)))
            });
        }
    }
    section.finish()
}

/// Trains, and returns the seconds of the parts of each epoch and the errors of their predictions.
fn split_row(trainer: &mut Trainer, epochs: usize, budget: Budget) -> Result<Value> {
    let (mut parts, mut moves, mut seconds, mut first) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut between = 0;
    while seconds.len() < epochs && (seconds.len() < 4 || !budget.is_spent()) {
        let epoch = trainer.step()?;
        if let Some(moved) = trainer.last_move().filter(|moved| moved.epoch == epoch.epoch) {
            moves.push(json!({
                "epoch": moved.epoch, "seconds": moved.seconds,
                "slowest_before_and_predicted": moved.slowest_s,
            }));
        }
        let (slowest, mean) = slowest_and_mean(trainer.part_seconds());
        parts.push(json!({ "seconds": trainer.part_seconds(), "slowest_over_mean": slowest / mean }));
        seconds.push(epoch.seconds);
        between = epoch.bytes_between_devices;
        if first.is_empty() {
            first = errors(&trainer.part_predictions());
        }
    }
    let predictions = trainer.part_predictions();
    let (slowest, mean) = slowest_and_mean(trainer.part_seconds());
    let [median, ..] = spread(seconds.split_off(seconds.len() / 2));
    Ok(json!({
        "parts": trainer.parts(), "epoch_seconds": median, "bytes_between_devices": between, "slowest_over_mean": slowest / mean,
        "epochs": parts, "moves": moves,
        "part_seconds_measured_by_profile_and_learned": predictions,
        "errors_of_profile_and_learned_at_first": first,
        "errors_of_profile_and_learned": errors(&predictions),
    }))
}

fn slowest_and_mean(seconds: &[f64]) -> (f64, f64) {
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    (slowest, seconds.iter().sum::<f64>() / seconds.len().max(1) as f64)
}

/// Returns the largest error over the parts of the profile and of the learned model, as a share of the measured time.
fn errors(predictions: &[[f64; 3]]) -> Vec<f64> {
    let known: Vec<&[f64; 3]> = predictions.iter().filter(|[measured, ..]| *measured > 0.0).collect();
    if known.is_empty() {
        return Vec::new();
    }
    let worst = |i: usize| known.iter().map(|part| (part[i] / part[0] - 1.0).abs()).fold(0.0, f64::max);
    vec![worst(1), worst(2)]
}
