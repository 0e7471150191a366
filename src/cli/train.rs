//! `lapidary train`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::DeviceArgs;
use super::failure;
use super::model::ModelArgs;
use super::output::{self, align, facts, json_line, percent, print, say, seconds, table};
use super::run_trace::RunTrace;
use crate::dataset::{Dataset, FeatureNorm, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::infer::checkpoint::newest_epoch;
use crate::model::{LabelKind, Model};
use crate::runtime::TraceFile;
use crate::train::{Adam, AdamW, DecayLayers, Epoch, Move, Optimizer, RunLock, Sgd, Trainer};

/// Number of progress lines, if standard error is not a terminal and shows no bar.
const PROGRESS_LINES: u64 = 10;

/// The built-in dataset that `lapidary train` uses without `--data`.
const DEFAULT_DATA: &str = "builtin:planted";

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)] // our own error reports a negative rate
pub(super) struct TrainArgs {
    /// Dataset directory, builtin:planted or builtin:karate
    #[arg(long, value_name = "DATA", default_value = DEFAULT_DATA)]
    data: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    checkpoints: CheckpointArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
struct TrainingArgs {
    /// Number of epochs, including those before --resume
    #[arg(long, value_name = "N", default_value_t = 200)]
    epochs: u64,
    /// Optimizer: adam, adamw or sgd
    #[arg(long, value_name = "NAME", default_value = "adam")]
    optimizer: String,
    /// Learning rate
    #[arg(long, value_name = "F", default_value_t = 0.01)]
    lr: f64,
    /// Momentum of sgd
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    momentum: f64,
    /// Weight decay, decoupled with adamw [default: 0.01 with adamw, else 0]
    #[arg(long, value_name = "F")]
    weight_decay: Option<f64>,
    /// Layers whose parameters decay: all or first
    #[arg(long, value_name = "LAYERS", default_value = "all")]
    decay_layers: String,
    /// Feature normalisation: row (divide each row by its sum) or none [default: the dataset's, else row for sparse
    /// non-negative features]
    #[arg(long, value_name = "NORM")]
    feature_norm: Option<String>,
    /// Seed of the initial weights and of dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Evaluate every N epochs; 0: only at the end
    #[arg(long, value_name = "N", default_value_t = 1)]
    eval_every: u64,
    /// Stop after N epochs without a better validation accuracy [default: off]
    #[arg(long, value_name = "N")]
    early_stop: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Checkpoints")]
struct CheckpointArgs {
    /// Write checkpoints to DIR
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Write one every N epochs, as well as at the end; 0: only at the end
    #[arg(long, value_name = "N", default_value_t = 50, requires = "checkpoint")]
    checkpoint_every: u64,
    /// Continue from the newest checkpoint in DIR
    #[arg(long, requires = "checkpoint")]
    resume: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Print the memory plan before training
    #[arg(long)]
    explain: bool,
    /// Write a trace of the run to FILE, in the Chrome trace format, of at most 256 MiB
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON lines instead of tables
    #[arg(long)]
    json: bool,
}

impl TrainArgs {
    fn optimizer(&self) -> Result<Optimizer> {
        let decay = self.training.weight_decay;
        Ok(match self.training.optimizer.as_str() {
            "adam" => Adam::new(self.training.lr).weight_decay(decay.unwrap_or(0.0)).into(),
            "adamw" => AdamW::new(self.training.lr).weight_decay(decay.unwrap_or(0.01)).into(),
            "sgd" => {
                Sgd::new(self.training.lr).momentum(self.training.momentum).weight_decay(decay.unwrap_or(0.0)).into()
            }
            other => {
                let expected = "there are adam, adamw and sgd".into();
                return Err(Error::Value { option: "optimizer", value: other.into(), expected });
            }
        })
    }

    fn decay_layers(&self) -> Result<DecayLayers> {
        match self.training.decay_layers.as_str() {
            "all" => Ok(DecayLayers::All),
            "first" => Ok(DecayLayers::First),
            other => {
                let expected = "write all or first".into();
                Err(Error::Value { option: "decay_layers", value: other.into(), expected })
            }
        }
    }

    fn trainer(&self, data: &Dataset, model: &Model) -> Result<Trainer> {
        let mut builder = Trainer::builder(model, data)
            .options(self.device.options()?)
            .optimizer(self.optimizer()?)
            .decay_layers(self.decay_layers()?)
            .dtype(self.model.dtype.float())
            .seed(self.training.seed)
            .epochs(self.training.epochs)
            .eval_every(self.training.eval_every);
        if let Some(norm) = self.feature_norm()? {
            builder = builder.feature_norm(norm);
        }
        builder.build()
    }

    fn feature_norm(&self) -> Result<Option<FeatureNorm>> {
        Ok(self.training.feature_norm.as_deref().map(str::parse).transpose()?)
    }

    /// Continues from a checkpoint with `--resume`. Otherwise, fails if the folder has checkpoints of an earlier run,
    /// which are never overwritten.
    fn resume(&self, trainer: &mut Trainer) -> Result<()> {
        let Some(dir) = &self.checkpoints.checkpoint else { return Ok(()) };
        if self.checkpoints.resume {
            match trainer.resume(dir)? {
                Some(epoch) if epoch >= self.training.epochs => {
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

    /// Checks the values that clap accepts but that are invalid for any data.
    fn check(&self) -> Result<()> {
        let wrong =
            |option, value: String, expected: &str| Err(Error::Value { option, value, expected: expected.into() });
        self.device.options()?;
        self.model.check()?;
        self.optimizer()?;
        self.decay_layers()?;
        self.feature_norm()?;
        let TrainingArgs { momentum, early_stop, eval_every, .. } = self.training;
        if momentum != 0.0 && self.training.optimizer != "sgd" {
            return wrong("momentum", momentum.to_string(), "only option `optimizer` sgd has a momentum");
        }
        match early_stop {
            Some(0) => wrong("early_stop", "0".into(), "it is a number of epochs, at least 1"),
            Some(patience) if eval_every == 0 => {
                let expected = "it compares validation accuracies, of which option `eval_every` 0 makes none";
                wrong("early_stop", patience.to_string(), expected)
            }
            _ => Ok(()),
        }
    }

    /// Checks the flags that depend on the data.
    fn check_data(&self, data: &Dataset) -> Result<()> {
        if self.training.early_stop.is_some() && data.labelled_split_size(VAL) == 0 {
            let (what, needed_by) = ("labelled vertex in its validation split", "option `early_stop` needs one");
            return Err(Error::DataLacks { dataset: data.name().into(), what, needed_by });
        }
        Ok(())
    }
}

/// Trains, saves checkpoints, and prints a report.
///
/// # Returns
/// The exit code: [`failure::INTERRUPTED`] if Ctrl-C ended the run before its last epoch, otherwise 0.
pub(super) fn run(args: &TrainArgs) -> Result<ExitCode> {
    args.check()?;
    let _lock = args.checkpoints.checkpoint.as_deref().map(take_folder).transpose()?;
    let mut trace = RunTrace::open(args.output.trace.as_deref(), TraceFile::LIMIT_BYTES)?;
    let start = Instant::now();
    let data = Dataset::load(&args.data)?;
    if args.checkpoints.checkpoint.is_some() {
        // Checkpoints need it, and the bytes of the data are still cached.
        data.fingerprint();
    }
    let read_seconds = start.elapsed().as_secs_f64();
    args.check_data(&data)?;
    let model = args.model.model(data.feature_width(), data.class_count())?;
    if !args.output.json {
        introduce(args, &data, &model);
    }
    let mut trainer = args.trainer(&data, &model)?;
    args.resume(&mut trainer)?;
    if let Some(dir) = &args.checkpoints.checkpoint {
        try_to_write(dir)?;
    }
    let tiles = trainer.tiles();
    if tiles > 1 && !args.output.json {
        say(format_args!("{tiles} tiles per device, because the memory is small"));
    }
    if args.output.explain {
        let plan = trainer.explain();
        match args.output.json {
            true => say(plan.trim_end()),
            false => print(&format!("{}\n", plan.trim_end()))?,
        }
    }
    trace.start(&mut trainer);
    let started_at = trainer.epoch();
    let trained = epochs(args, &mut trainer, &mut trace);
    // A run that failed has a trace as well.
    let traced = trace.finish();
    let ended = trained.and_then(|done| end(args, &data, &mut trainer, started_at, &Done { read_seconds, ..done }));
    match (ended, traced) {
        (Err(error), Err(also)) => {
            failure::report(&also);
            return Err(error);
        }
        (ended, traced) => ended.and(traced)?,
    }
    let is_cut_short = interrupted().load(Ordering::Relaxed) && trainer.epoch() < args.training.epochs;
    Ok(if is_cut_short { ExitCode::from(failure::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Ends a run after its last epoch: evaluates if nothing was evaluated yet, writes a checkpoint, and prints the report.
fn end(args: &TrainArgs, data: &Dataset, trainer: &mut Trainer, started_at: u64, done: &Done) -> Result<()> {
    if trainer.best().is_none() || args.training.eval_every == 0 {
        trainer.evaluate()?;
    }
    if let Some(dir) = args.checkpoints.checkpoint.as_ref().filter(|_| trainer.epoch() > started_at || started_at == 0)
    {
        trainer.save(dir)?;
    }
    summarise(args, data, trainer, done)
}

/// Locks the checkpoint folder for this run.
fn take_folder(dir: &Path) -> Result<RunLock> {
    let lock = RunLock::take(dir)?;
    if let Some(dead) = lock.taken_from() {
        say(format_args!("{} was in use by {dead}, which has ended: taken over", dir.display()));
    }
    Ok(lock)
}

/// Creates the checkpoint folder and a temporary file in it, so that a folder that cannot be written is an error before
/// hours of training.
fn try_to_write(dir: &Path) -> Result<()> {
    let failed = |source| Error::Io { action: "write into the checkpoint folder", path: dir.into(), source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    tempfile::Builder::new().prefix(".probe-").tempfile_in(dir).map(drop).map_err(failed)
}

/// The measurements of a run.
#[derive(Default)]
struct Done {
    /// Seconds for reading the data.
    read_seconds: f64,
    /// Seconds of each epoch.
    seconds: Vec<f64>,
    /// Bytes copied in one epoch: measured and planned, each to devices and to the host. The epoch is the last one with
    /// an evaluation, or the last one if none had an evaluation.
    bytes: [[u64; 2]; 2],
    /// Bytes copied from device to device in the same epoch: measured and planned.
    between: [u64; 2],
}

/// Runs epochs until all are done, `--early-stop` applies, or Ctrl-C is pressed.
fn epochs(args: &TrainArgs, trainer: &mut Trainer, trace: &mut RunTrace) -> Result<Done> {
    let bar = output::bar(args.training.epochs, args.output.json);
    bar.set_prefix("training");
    bar.set_position(trainer.epoch());
    let lines_every = args.training.epochs.div_ceil(PROGRESS_LINES).max(1);
    let mut done = Done::default();
    let interrupted = interrupted();
    let (mut val, mut evaluated) = (None, false);
    let mut stale = stale_epochs(args, trainer);
    while trainer.epoch() < args.training.epochs && stale.is_none() && !interrupted.load(Ordering::Relaxed) {
        let stepped = trainer.step();
        if let Some(note) = trace.add(trainer).filter(|_| !args.output.json) {
            bar.suspend(|| say(note));
        }
        let epoch = stepped?;
        if let Some(moved) = trainer.last_move().filter(|moved| moved.epoch == epoch.epoch && !args.output.json) {
            bar.suspend(|| say(move_line(moved)));
        }
        evaluated |= epoch.accuracy.is_some();
        if epoch.accuracy.is_some() || !evaluated {
            done.bytes = [[epoch.bytes_to_device, epoch.bytes_to_host], epoch.planned_bytes];
            done.between = [epoch.bytes_between_devices, epoch.planned_bytes_between_devices];
        }
        done.seconds.push(epoch.seconds);
        val = epoch.accuracy.map_or(val, |a| a.val);
        let progress = format!("loss {:.4}  val {}", epoch.loss, percent(val));
        if args.output.json {
            let printed = json_line(&epoch_line(&epoch, trainer.label_kind()));
            // With a checkpoint, somebody wants the model: the run goes on without a reader.
            if args.checkpoints.checkpoint.is_some() { output::or_closed(printed)? } else { printed? }
        } else if bar.is_hidden() && (epoch.epoch % lines_every == 0 || epoch.epoch == args.training.epochs) {
            say(format_args!("epoch {}/{}  {progress}", epoch.epoch, args.training.epochs));
        }
        bar.set_message(progress);
        bar.set_position(epoch.epoch);
        let is_due = args.checkpoints.checkpoint_every > 0 && epoch.epoch % args.checkpoints.checkpoint_every == 0;
        if let Some(dir) = args.checkpoints.checkpoint.as_ref().filter(|_| is_due && epoch.epoch < args.training.epochs)
        {
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

/// Returns a flag that the first Ctrl-C sets: the current epoch is then the last. A second Ctrl-C ends the program at
/// once. The first call installs the handler.
fn interrupted() -> &'static AtomicBool {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        let installed = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(failure::INTERRUPTED.into());
            }
            say("interrupted: this epoch is the last (once more to stop at once)");
        });
        if let Err(error) = installed {
            tracing::debug!("Ctrl-C ends the program at once: {error}");
        }
    });
    &INTERRUPTED
}

/// Returns the number of epochs since the best one, if they are enough for `--early-stop`.
fn stale_epochs(args: &TrainArgs, trainer: &Trainer) -> Option<u64> {
    let stale = trainer.epoch() - trainer.best()?.epoch;
    args.training.early_stop.filter(|&patience| stale >= patience).map(|_| stale)
}

/// Describes a move of vertices between devices: its epoch, its seconds and its reason.
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

/// Returns the JSON key of a score, which depends on the kind of labels.
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
        output::one_line(data.name()),
        output::count(data.graph().vertex_count() as u64),
        output::count(data.graph().edge_count() as u64),
        output::count(data.split_size(TRAIN) as u64),
        output::count(data.split_size(VAL) as u64),
        output::count(data.split_size(TEST) as u64),
        args.training.epochs,
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
    if args.output.json {
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
    if let Some(dir) = &args.checkpoints.checkpoint {
        rows.push(("checkpoint", dir.display().to_string()));
    }
    print(&facts(&rows))?;
    if trainer.parts().len() > 1 || to_device + to_host > 0 {
        print(&format!("\n{}", devices_table(trainer)))?;
        let mut table = table(["copies per epoch", "measured", "planned"]);
        for (what, measured, planned) in [
            ("to devices", to_device, planned_to_device),
            ("to the host", to_host, planned_to_host),
            ("between devices", between, planned_between),
        ] {
            if what != "between devices" || planned > 0 {
                let [measured, planned] = [measured, planned].map(|bytes| bytesize::ByteSize(bytes).to_string());
                table.add_row([what.to_owned(), measured, planned]);
            }
        }
        print(&format!("\n{}", align(table)))?;
    }
    Ok(())
}

/// Formats a table with one row per device: its vertices, its peak memory, and the time of its kernels in the last
/// epoch.
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
