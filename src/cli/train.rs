//! `lapidary train`.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::DeviceArgs;
use super::model::ModelArgs;
use super::output::{self, align, facts, json_line, percent, say, seconds, table};
use super::run_trace::RunTrace;
use crate::dataset::{Dataset, FeatureNorm, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::infer::checkpoint::newest_epoch;
use crate::model::{LabelKind, Model};
use crate::runtime::TraceFile;
use crate::train::{Adam, AdamW, DecayLayers, Epoch, Move, Optimizer, RunLock, Sgd, Trainer};

/// How many lines tell of progress where there is no terminal to draw a bar on.
const PROGRESS_LINES: u64 = 10;

/// The built-in graph that `lapidary train` alone trains on.
const DEFAULT_DATA: &str = "builtin:planted";

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)] // so that a negative rate gets our own error
pub(super) struct TrainArgs {
    /// A dataset directory, builtin:planted or builtin:karate
    #[arg(long, value_name = "DATA", default_value = DEFAULT_DATA)]
    data: String,
    #[command(flatten)]
    model: ModelArgs,
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
    #[arg(long, value_name = "N", default_value_t = 50, requires = "checkpoint")]
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
    fn optimizer(&self) -> Result<Optimizer> {
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
            .options(self.device.options()?)
            .optimizer(self.optimizer()?)
            .decay_layers(self.decay_layers()?)
            .dtype(self.model.dtype.float())
            .seed(self.seed)
            .epochs(self.epochs)
            .eval_every(self.eval_every);
        if let Some(norm) = &self.feature_norm {
            builder = builder.feature_norm(norm.parse::<FeatureNorm>()?);
        }
        builder.build()
    }

    /// Goes on from a checkpoint if asked to; an earlier run's are never written over.
    fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let Some(dir) = &self.checkpoint else { return Ok(()) };
        if self.resume {
            match trainer.resume(dir)? {
                Some(epoch) if epoch >= self.epochs => {
                    say(format_args!("{} has reached epoch {epoch} already: nothing to train", dir.display()));
                }
                Some(epoch) => say(format_args!("resumed from epoch {epoch} in {}", dir.display())),
                None => say(format_args!("no checkpoint in {} yet: starting from the beginning", dir.display())),
            }
            return Ok(());
        }
        match newest_epoch(dir) {
            Some((epoch, _)) => Err(Error::CheckpointInTheWay { path: dir.clone(), epoch }),
            None => Ok(()),
        }
    }

    /// Refuses values that clap takes but that mean nothing here.
    fn check(&self, data: &Dataset) -> Result<()> {
        let wrong =
            |option, value: String, expected: &str| Err(Error::Value { option, value, expected: expected.into() });
        if self.momentum != 0.0 && self.optimizer != "sgd" {
            return wrong("--momentum", self.momentum.to_string(), "only --optimizer sgd has a momentum");
        }
        if let Some(patience) = self.early_stop {
            if patience == 0 {
                return wrong("--early-stop", "0".into(), "it is a number of epochs, at least 1");
            }
            if self.eval_every == 0 || data.labelled_split_size(VAL) == 0 {
                let expected = "stopping early needs a validation split and --eval-every of at least 1";
                return wrong("--early-stop", patience.to_string(), expected);
            }
        }
        Ok(())
    }
}

/// Trains, saves, and reports.
pub(super) fn run(args: &TrainArgs) -> Result<()> {
    args.device.options()?;
    args.model.check()?;
    let _lock = args.checkpoint.as_deref().map(take_folder).transpose()?;
    let mut trace = RunTrace::open(args.device.trace.as_deref(), TraceFile::LIMIT_BYTES)?;
    let start = Instant::now();
    let data = Dataset::load(&args.data)?;
    if args.checkpoint.is_some() {
        // Checkpoints have it, and now its bytes have just been read.
        data.fingerprint();
    }
    let read_seconds = start.elapsed().as_secs_f64();
    args.check(&data)?;
    let model = args.model.model(data.feature_width(), data.class_count())?;
    if !args.json {
        introduce(args, &data, &model);
    }
    let mut trainer = args.trainer(&data, &model)?;
    args.resume(&mut trainer)?;
    if let Some(dir) = &args.checkpoint {
        try_to_write(dir)?;
    }
    let tiles = trainer.tiles();
    if tiles > 1 && !args.json {
        say(format_args!("tiles: {tiles} a device, for want of memory"));
    }
    if args.device.explain {
        say(trainer.explain().trim_end());
    }
    trace.start(&mut trainer);
    let started_at = trainer.epoch();
    let trained = epochs(args, &mut trainer, &mut trace);
    // Of a run that failed there is a trace as well.
    let traced = trace.finish();
    let ended = trained.and_then(|done| end(args, &data, &mut trainer, started_at, &Done { read_seconds, ..done }));
    match (ended, traced) {
        (Err(error), Err(also)) => {
            super::report(&also);
            Err(error)
        }
        (ended, traced) => ended.and(traced),
    }
}

/// What comes after the last epoch: an evaluation if none was yet, a checkpoint, the report.
fn end(args: &TrainArgs, data: &Dataset, trainer: &mut Trainer, started_at: u64, done: &Done) -> Result<()> {
    if trainer.best().is_none() || args.eval_every == 0 {
        trainer.evaluate()?;
    }
    if let Some(dir) = args.checkpoint.as_ref().filter(|_| trainer.epoch() > started_at || started_at == 0) {
        trainer.save(dir)?;
    }
    summarise(args, data, trainer, done)
}

/// Takes the checkpoint folder for this run.
fn take_folder(dir: &Path) -> Result<RunLock> {
    let lock = RunLock::take(dir)?;
    if let Some(dead) = lock.taken_from() {
        say(format_args!("{} was in use by {dead}, which has ended: taken over", dir.display()));
    }
    Ok(lock)
}

/// A folder that cannot be written is an error now, not after hours of training.
fn try_to_write(dir: &Path) -> Result<()> {
    let failed = |source| Error::Io { action: "write into the checkpoint folder", path: dir.into(), source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    tempfile::Builder::new().prefix(".probe-").tempfile_in(dir).map(drop).map_err(failed)
}

/// What the epochs took and moved.
#[derive(Default)]
struct Done {
    /// Of the data, before all else.
    read_seconds: f64,
    seconds: Vec<f64>,
    /// Of the last epoch with an evaluation, or if there was none the last: measured and planned, to devices and to host.
    bytes: [[u64; 2]; 2],
    /// Of the same epoch: measured and planned, from device to device.
    between: [u64; 2],
}

/// Runs the epochs, until there are enough, or no better ones, or the person wants no more.
fn epochs(args: &TrainArgs, trainer: &mut Trainer, trace: &mut RunTrace) -> Result<Done> {
    let bar = output::bar(args.epochs, args.json);
    bar.set_prefix("training");
    bar.set_position(trainer.epoch());
    let lines_every = args.epochs.div_ceil(PROGRESS_LINES).max(1);
    let mut done = Done::default();
    let interrupted = interrupted();
    let mut val = None;
    let mut stale = stale_epochs(args, trainer);
    while trainer.epoch() < args.epochs && stale.is_none() && !interrupted.load(Ordering::Relaxed) {
        let stepped = trainer.step();
        if let Some(note) = trace.add(trainer).filter(|_| !args.json) {
            bar.suspend(|| say(note));
        }
        let epoch = stepped?;
        if let Some(moved) = trainer.last_move().filter(|moved| moved.epoch == epoch.epoch && !args.json) {
            bar.suspend(|| say(move_line(moved)));
        }
        if epoch.accuracy.is_some() || args.eval_every == 0 || epoch.epoch < args.eval_every {
            done.bytes = [[epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes];
            done.between = [epoch.bytes_between_devices, epoch.planned_bytes_between_devices];
        }
        done.seconds.push(epoch.seconds);
        val = epoch.accuracy.map_or(val, |a| a.val);
        let progress = format!("loss {:.4}  val {}", epoch.loss, percent(val));
        if args.json {
            json_line(&epoch_line(&epoch, trainer.label_kind()))?;
        } else if bar.is_hidden() && (epoch.epoch % lines_every == 0 || epoch.epoch == args.epochs) {
            say(format_args!("epoch {}/{}  {progress}", epoch.epoch, args.epochs));
        }
        bar.set_message(progress);
        bar.set_position(epoch.epoch);
        let is_due = args.checkpoint_every > 0 && epoch.epoch % args.checkpoint_every == 0;
        if let Some(dir) = args.checkpoint.as_ref().filter(|_| is_due && epoch.epoch < args.epochs) {
            trainer.save(dir)?;
        }
        if epoch.accuracy.is_some() {
            stale = stale_epochs(args, trainer);
        }
    }
    bar.finish_and_clear();
    if let Some(stale) = stale {
        say(format_args!("stopped early: no better validation accuracy for {stale} epochs"));
    }
    if interrupted.load(Ordering::Relaxed) {
        say(format_args!("interrupted after epoch {}", trainer.epoch()));
    }
    Ok(done)
}

/// Set by the first Ctrl-C, after which the epoch at hand is the last; a second one ends the program at once.
fn interrupted() -> &'static AtomicBool {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        let installed = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            say("interrupted: this epoch is the last (once more to stop at once)");
        });
        if let Err(error) = installed {
            tracing::debug!("Ctrl-C ends the program at once: {error}");
        }
    });
    &INTERRUPTED
}

/// How many epochs have passed since the best one, if they are enough to stop.
fn stale_epochs(args: &TrainArgs, trainer: &Trainer) -> Option<u64> {
    let stale = trainer.epoch() - trainer.best()?.epoch;
    args.early_stop.filter(|&patience| stale >= patience).map(|_| stale)
}

/// Why vertices moved between devices, and what it took.
fn move_line(moved: &Move) -> String {
    let Move { epoch, slowest_s, seconds: took } = moved;
    let why = match slowest_s {
        Some([now, then]) => {
            format!("the slowest part is predicted to take {} instead of {}", seconds(*then), seconds(*now))
        }
        None => "as a recorded split says".into(),
    };
    format!("epoch {epoch}: vertices moved between devices in {}; {why}", seconds(*took))
}

/// A score under the name that it has for this kind of labels.
fn score_name(prefix: &str, labels: LabelKind) -> String {
    match labels {
        LabelKind::Class => format!("{prefix}_accuracy"),
        LabelKind::Multi => format!("{prefix}_micro_f1"),
    }
}

fn epoch_line(epoch: &Epoch, labels: LabelKind) -> serde_json::Value {
    let mut line = json!({
        "event": "epoch",
        "epoch": epoch.epoch,
        "loss": epoch.loss,
        score_name("val", labels): epoch.accuracy.and_then(|a| a.val),
        "seconds": epoch.seconds,
        "eval_seconds": epoch.eval_seconds,
        "bytes_to_device": epoch.bytes_to_device,
        "bytes_to_host": epoch.bytes_to_host,
    });
    if epoch.planned_bytes_between_devices > 0 {
        line["bytes_between_devices"] = epoch.bytes_between_devices.into();
    }
    line
}

fn introduce(args: &TrainArgs, data: &Dataset, model: &Model) {
    let widths: Vec<String> = model.config().widths.iter().map(usize::to_string).collect();
    say(format_args!(
        "{} on {}: {} vertices, {} edges, {} train / {} val / {} test, {} epochs",
        format_args!("{} {}{}", args.model.model, widths.join("-"), args.model.dtype.said()),
        data.name(),
        output::count(data.graph().vertex_count() as u64),
        output::count(data.graph().edge_count() as u64),
        output::count(data.split_size(TRAIN) as u64),
        output::count(data.split_size(VAL) as u64),
        output::count(data.split_size(TEST) as u64),
        args.epochs,
    ));
}

fn summarise(args: &TrainArgs, data: &Dataset, trainer: &Trainer, done: &Done) -> Result<()> {
    let epoch_seconds = &done.seconds;
    let [[to_device, to_host], [planned_to_device, planned_to_host]] = done.bytes;
    let [between, planned_between] = done.between;
    let labels = trainer.label_kind();
    let best = trainer.best();
    let test = best.and_then(|b| b.test_accuracy);
    let val = best.and_then(|b| b.val_accuracy);
    let median = median(epoch_seconds.get(1..).unwrap_or_default()).or_else(|| median(epoch_seconds));
    let start_up = trainer.start_up();
    if args.json {
        let mut line = json!({
            "event": "summary",
            "dataset": data.name(),
            score_name("test", labels): test,
            score_name("best_val", labels): val,
            "dtype": trainer.dtype().name(),
            "best_epoch": best.map(|b| b.epoch),
            "epochs": trainer.epoch(),
            "epoch_seconds_median": median,
            "read_seconds": done.read_seconds,
            "plan_seconds": start_up.plan_seconds,
            "setup_seconds": start_up.setup_seconds,
            "tiles": trainer.tiles(),
            "peak_device_bytes": trainer.peak_device_bytes(),
            "planned_peak_device_bytes": trainer.planned_peak_device_bytes(),
            "parts": trainer.parts(),
            "part_seconds": trainer.part_seconds(),
            "splits": trainer.splits().len(),
            "planned_bytes_to_device": planned_to_device,
            "measured_bytes_to_device": to_device,
            "planned_bytes_to_host": planned_to_host,
            "measured_bytes_to_host": to_host,
        });
        if planned_between > 0 {
            line["planned_bytes_between_devices"] = planned_between.into();
            line["measured_bytes_between_devices"] = between.into();
        }
        return json_line(&line);
    }
    let peak: u64 = trainer.peak_device_bytes().iter().sum();
    let (test_name, val_name) = match labels {
        LabelKind::Class => ("test accuracy", "validation accuracy"),
        LabelKind::Multi => ("test micro-F1", "validation micro-F1"),
    };
    let [read, plan, setup] = [done.read_seconds, start_up.plan_seconds, start_up.setup_seconds].map(seconds);
    let began = format!("reading {read}, planning {plan}, setup {setup}");
    let mut rows = vec![
        (test_name, percent(test)),
        (val_name, percent(val)),
        ("best epoch", best.map_or_else(|| "-".into(), |b| format!("{} of {}", b.epoch, trainer.epoch()))),
        ("median epoch", median.map_or_else(|| "-".into(), seconds)),
        ("peak memory", bytesize::ByteSize(peak).to_string()),
        ("start-up", began),
    ];
    if let Some(dir) = &args.checkpoint {
        rows.push(("checkpoint", dir.display().to_string()));
    }
    say(facts(&rows));
    if trainer.parts().len() > 1 || to_device + to_host > 0 {
        say(format_args!("\n{}", devices_table(trainer)));
        let size = |bytes: u64| bytesize::ByteSize(bytes).to_string();
        let [planned, measured] = [planned_to_device, to_device].map(size);
        say(format_args!("to devices, an epoch: {measured} ({planned} planned)"));
        let [planned, measured] = [planned_to_host, to_host].map(size);
        say(format_args!("to the host, an epoch: {measured} ({planned} planned)"));
        if planned_between > 0 {
            let [planned, measured] = [planned_between, between].map(size);
            say(format_args!("between devices, an epoch: {measured} ({planned} planned)"));
        }
    }
    Ok(())
}

/// A row a device: its vertices, what it held, and how long its kernels took in the last epoch.
fn devices_table(trainer: &Trainer) -> String {
    let size = |bytes: u64| bytesize::ByteSize(bytes).to_string();
    let peaks = trainer.peak_device_bytes().into_iter().zip(trainer.planned_peak_device_bytes());
    let mut table = table(["device", "vertices", "peak", "planned peak", "kernels"]);
    for (i, ([start, end], (peak, planned))) in trainer.parts().iter().zip(peaks).enumerate() {
        let kernels = trainer.part_seconds().get(i).map_or_else(|| "-".into(), |&s| seconds(s));
        table.add_row([i.to_string(), format!("{start}..{end}"), size(peak), size(planned), kernels]);
    }
    align(table)
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
