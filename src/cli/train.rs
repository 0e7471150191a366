//! `lapidary train`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::DeviceArgs;
use super::output::{self, facts, json_line, percent, seconds};
use crate::dataset::{Dataset, FeatureNorm, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::infer::checkpoint::newest_epoch;
use crate::model::{Model, ModelConfig, Norm};
use crate::train::{Adam, AdamW, DecayLayers, Epoch, Optimizer, Sgd, Trainer};

/// The built-in graph that `lapidary train` alone trains on.
const DEFAULT_DATA: &str = "builtin:planted";

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)] // so that a negative rate gets our own error
pub(super) struct TrainArgs {
    /// A dataset directory, builtin:planted or builtin:karate
    #[arg(long, value_name = "DATA", default_value = DEFAULT_DATA)]
    data: String,
    /// Which model: gcn, gin, commnet, resgcn or sage
    #[arg(long, default_value = "gcn")]
    model: String,
    /// How many layers
    #[arg(long, value_name = "N", default_value_t = 2)]
    layers: usize,
    /// Width of the hidden layers
    #[arg(long, value_name = "D", default_value_t = 16)]
    hidden: usize,
    /// How many epochs, those before a resumption included
    #[arg(long, value_name = "N", default_value_t = 200)]
    epochs: u64,
    /// The optimizer: adam, adamw or sgd
    #[arg(long, default_value = "adam")]
    optimizer: String,
    /// Learning rate
    #[arg(long, value_name = "F", default_value_t = 0.01)]
    lr: f64,
    /// Momentum of sgd
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    momentum: f64,
    /// Decay of the parameters: added to the gradient, or with adamw decoupled [0.01 for adamw, else 0]
    #[arg(long, value_name = "F")]
    weight_decay: Option<f64>,
    /// Which layers decay: all or first
    #[arg(long, value_name = "LAYERS", default_value = "all")]
    decay_layers: String,
    /// Dropout on hidden layers
    #[arg(long, value_name = "F", default_value_t = 0.5)]
    dropout: f32,
    /// Dropout on the features [that of the hidden layers for sparse features, else 0]
    #[arg(long, value_name = "F")]
    input_dropout: Option<f32>,
    /// How neighbours are weighed: sym, mean or sum [gcn, resgcn: sym; sage, commnet: mean; gin: sum]
    #[arg(long)]
    norm: Option<String>,
    /// Put a layer norm on hidden layers, before the ReLU
    #[arg(long)]
    layer_norm: bool,
    /// Divide each row of the features by its sum: row or none [what dataset.json says, else row for sparse non-negative features, else none]
    #[arg(long, value_name = "NORM")]
    feature_norm: Option<String>,
    /// Seed of initial weights and dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Evaluate every N epochs; 0 only at the end
    #[arg(long, value_name = "N", default_value_t = 1)]
    eval_every: u64,
    /// Stop after N epochs without a better validation accuracy
    #[arg(long, value_name = "N")]
    early_stop: Option<u64>,
    /// Write checkpoints into DIR
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Write one every N epochs, as well as at the end
    #[arg(long, value_name = "N", default_value_t = 50)]
    checkpoint_every: u64,
    /// Go on from the newest checkpoint in DIR
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// Print JSON lines on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl TrainArgs {
    fn model(&self, data: &Dataset) -> Result<Model> {
        if self.layers == 0 {
            let expected = "a model has at least one layer".into();
            return Err(Error::Value { option: "--layers", value: "0".into(), expected });
        }
        let mut widths = vec![self.hidden; self.layers + 1];
        widths[0] = data.feature_width();
        widths[self.layers] = data.class_count();
        Ok(Model::from_config(ModelConfig {
            name: self.model.clone(),
            widths,
            dropout: self.dropout,
            input_dropout: self.input_dropout,
            layer_norm: self.layer_norm,
            norm: self.norm.as_deref().map(str::parse::<Norm>).transpose()?,
        })?)
    }

    fn optimizer(&self) -> Result<Optimizer> {
        for (option, value) in [("--lr", self.lr), ("--weight-decay", self.weight_decay.unwrap_or(0.0))] {
            if !value.is_finite() || value < 0.0 {
                let expected = "it is a finite number, 0 or more".into();
                return Err(Error::Value { option, value: value.to_string(), expected });
            }
        }
        if !(0.0..1.0).contains(&self.momentum) {
            let expected = "it lies in [0, 1)".into();
            return Err(Error::Value { option: "--momentum", value: self.momentum.to_string(), expected });
        }
        let decay = self.weight_decay;
        Ok(match self.optimizer.as_str() {
            "adam" => Adam::new(self.lr).weight_decay(decay.unwrap_or(0.0)).into(),
            "adamw" => AdamW::new(self.lr).weight_decay(decay.unwrap_or(0.01)).into(),
            "sgd" => Sgd::new(self.lr).momentum(self.momentum).weight_decay(decay.unwrap_or(0.0)).into(),
            other => {
                let expected = "there are adam, adamw and sgd".into();
                return Err(Error::Value { option: "--optimizer", value: other.into(), expected });
            }
        })
    }

    fn decay_layers(&self) -> Result<DecayLayers> {
        match self.decay_layers.as_str() {
            "all" => Ok(DecayLayers::All),
            "first" => Ok(DecayLayers::First),
            other => {
                let expected = "write all or first".into();
                Err(Error::Value { option: "--decay-layers", value: other.into(), expected })
            }
        }
    }

    fn trainer(&self, data: &Dataset, model: &Model) -> Result<Trainer> {
        let mut builder = Trainer::builder(model, data)
            .devices(self.device.devices()?)
            .optimizer(self.optimizer()?)
            .decay_layers(self.decay_layers()?)
            .seed(self.seed)
            .eval_every(self.eval_every)
            .passes(self.device.passes.parse()?);
        if let Some(norm) = &self.feature_norm {
            builder = builder.feature_norm(norm.parse::<FeatureNorm>()?);
        }
        if let Some(memory) = self.device.memory()? {
            builder = builder.device_memory(memory);
        }
        builder.build()
    }

    /// Goes on from a checkpoint if asked to; an earlier run's are never written over.
    fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let Some(dir) = &self.checkpoint else { return Ok(()) };
        if self.resume {
            match trainer.resume(dir)? {
                Some(epoch) => eprintln!("resumed from epoch {epoch} in {}", dir.display()),
                None => eprintln!("no checkpoint in {} yet: starting from the beginning", dir.display()),
            }
            return Ok(());
        }
        match newest_epoch(dir) {
            Some((epoch, _)) => Err(Error::CheckpointInTheWay { path: dir.clone(), epoch }),
            None => Ok(()),
        }
    }
}

/// Trains, saves, and reports.
pub(super) fn run(args: &TrainArgs) -> Result<()> {
    args.device.devices()?;
    let data = Dataset::load(&args.data)?;
    let model = args.model(&data)?;
    let mut trainer = args.trainer(&data, &model)?;
    args.resume(&mut trainer)?;
    if let Some(dir) = &args.checkpoint {
        // A folder that cannot be written is an error now, not after hours of training.
        std::fs::create_dir_all(dir).map_err(|source| Error::Io {
            action: "create the checkpoint folder",
            path: dir.clone(),
            source,
        })?;
    }
    if !args.json {
        introduce(args, &data, &model);
    }
    let epoch_seconds = epochs(args, &mut trainer)?;
    if trainer.best().is_none() {
        trainer.evaluate()?;
    }
    if let Some(dir) = &args.checkpoint {
        trainer.save(dir)?;
    }
    summarise(args, &trainer, &epoch_seconds)
}

/// Runs the epochs; returns the seconds of each.
fn epochs(args: &TrainArgs, trainer: &mut Trainer) -> Result<Vec<f64>> {
    let bar = output::bar(args.epochs, args.json);
    bar.set_prefix("training");
    bar.set_position(trainer.epoch());
    let mut all_seconds = Vec::new();
    let mut val = None;
    while trainer.epoch() < args.epochs {
        let epoch = trainer.step()?;
        all_seconds.push(epoch.seconds);
        val = epoch.accuracy.map_or(val, |a| a.val);
        if args.json {
            json_line(&epoch_line(&epoch))?;
        }
        bar.set_message(format!("loss {:.4}  val {}", epoch.loss, percent(val)));
        bar.set_position(epoch.epoch);
        let is_due = args.checkpoint_every > 0 && epoch.epoch % args.checkpoint_every == 0;
        if let Some(dir) = args.checkpoint.as_ref().filter(|_| is_due && epoch.epoch < args.epochs) {
            trainer.save(dir)?;
        }
        let stale = trainer.best().map_or(0, |best| epoch.epoch - best.epoch);
        if args.early_stop.is_some_and(|patience| stale >= patience) {
            bar.println(format!("stopped early: no better validation accuracy for {stale} epochs"));
            break;
        }
    }
    bar.finish_and_clear();
    Ok(all_seconds)
}

fn epoch_line(epoch: &Epoch) -> serde_json::Value {
    json!({
        "event": "epoch",
        "epoch": epoch.epoch,
        "loss": epoch.loss,
        "val_accuracy": epoch.accuracy.and_then(|a| a.val),
        "seconds": epoch.seconds,
        "eval_seconds": epoch.eval_seconds,
        // One device in the host's memory computes in place: nothing is copied.
        "bytes_to_device": 0,
        "bytes_to_host": 0,
    })
}

fn introduce(args: &TrainArgs, data: &Dataset, model: &Model) {
    let widths: Vec<String> = model.config().widths.iter().map(usize::to_string).collect();
    eprintln!(
        "{} on {}: {} vertices, {} edges, {} train / {} val / {} test, {} epochs",
        format_args!("{} {}", args.model, widths.join("-")),
        data.name(),
        output::count(data.graph().vertex_count() as u64),
        output::count(data.graph().edge_count() as u64),
        output::count(data.split_size(TRAIN) as u64),
        output::count(data.split_size(VAL) as u64),
        output::count(data.split_size(TEST) as u64),
        args.epochs,
    );
}

fn summarise(args: &TrainArgs, trainer: &Trainer, epoch_seconds: &[f64]) -> Result<()> {
    let best = trainer.best();
    let test = best.and_then(|b| b.test_accuracy);
    let val = best.and_then(|b| b.val_accuracy);
    let median = median(epoch_seconds.get(1..).unwrap_or_default()).or_else(|| median(epoch_seconds));
    if args.json {
        return json_line(&json!({
            "event": "summary",
            "test_accuracy": test,
            "best_val_accuracy": val,
            "best_epoch": best.map(|b| b.epoch),
            "epochs": trainer.epoch(),
            "epoch_seconds_median": median,
            "peak_device_bytes": trainer.peak_device_bytes(),
            "planned_peak_device_bytes": trainer.planned_peak_device_bytes(),
            "parts": trainer.parts(),
            "planned_bytes_to_device": 0,
            "measured_bytes_to_device": 0,
            "planned_bytes_to_host": 0,
            "measured_bytes_to_host": 0,
        }));
    }
    let peak: u64 = trainer.peak_device_bytes().iter().sum();
    let mut rows = vec![
        ("test accuracy", percent(test)),
        ("validation accuracy", percent(val)),
        ("best epoch", best.map_or_else(|| "-".into(), |b| format!("{} of {}", b.epoch, trainer.epoch()))),
        ("median epoch", median.map_or_else(|| "-".into(), seconds)),
        ("peak memory", bytesize::ByteSize(peak).to_string()),
    ];
    if let Some(dir) = &args.checkpoint {
        rows.push(("checkpoint", dir.display().to_string()));
    }
    eprintln!("{}", facts(&rows));
    Ok(())
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}
