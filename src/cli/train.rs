//! `lapidary train`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::DeviceArgs;
use super::failure;
use super::model::ModelArgs;
use super::output::{self, align, facts, json_line, percent, print, say, seconds, table};
use super::run_trace::RunTrace;
use super::signals::{self, RunState, Watch};
use crate::dataset::{Dataset, FeatureNorm, TEST, TRAIN, VAL};
use crate::error::{Error, Result};
use crate::infer::Predictor;
use crate::infer::checkpoint::{PROBE_PREFIX, newest_epoch};
use crate::model::{LabelKind, Model, Weights};
use crate::runtime::TraceFile;
use crate::train::{
    Adam, AdamW, CheckpointWriter, DecayLayers, Epoch, Move, Optimizer, RunLock, Sgd, Snapshot, Trainer,
};

/// Number of progress lines, if standard error is not a terminal and shows no bar.
const PROGRESS_LINES: u64 = 10;

/// Learning rate without `--lr`.
const DEFAULT_LR: f64 = 0.01;

/// Number of times that `--on-nan rollback` returns to a checkpoint before it gives up.
const MOST_ROLLBACKS: u32 = 10;

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
    /// Learning rate [default: 0.01; with --resume, that of the checkpoint]
    #[arg(long, value_name = "F")]
    lr: Option<f64>,
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
    /// Start from these weights: a safetensors file with PyG's parameter names, or a checkpoint folder
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// If a loss, parameter or moment is NaN or infinite: stop, or rollback (return to the last checkpoint and halve the
    /// learning rate)
    #[arg(long, value_name = "ACTION", default_value = "stop", hide_possible_values = true)]
    on_nan: OnNan,
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
    /// Write one every N epochs, or in this interval of time (such as 90s, 10m or 1h), as well as at the end; 0: only
    /// at the end
    #[arg(long, value_name = "N", default_value = "50", requires = "checkpoint")]
    checkpoint_every: Interval,
    /// Keep the newest N checkpoints, and the best; 0: keep all
    #[arg(long, value_name = "N", default_value_t = 5, requires = "checkpoint")]
    keep: usize,
    /// Continue from the newest checkpoint in DIR. --epochs and --lr may be new
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// After SIGTERM or Ctrl-C, seconds for the current epoch to end; then it is abandoned, and the state before it is
    /// saved
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    grace: f64,
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

/// When checkpoints are written, beside the one at the end.
#[derive(Clone, Copy, Debug)]
enum Interval {
    Epochs(u64),
    Time(Duration),
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Ok(epochs) = text.parse() {
            return Ok(Self::Epochs(epochs));
        }
        let units = [("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0)];
        let seconds = units.into_iter().find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            Duration::try_from_secs_f64(number * seconds).ok()
        });
        let is_some_time = |time: &Duration| !time.is_zero();
        seconds
            .filter(is_some_time)
            .map(Self::Time)
            .ok_or_else(|| "write a number of epochs, or a time with its unit, such as 90s, 10m or 1h".into())
    }
}

impl Interval {
    /// Returns whether a checkpoint is due after an epoch.
    fn is_due(self, epoch: u64, last: Instant) -> bool {
        match self {
            Self::Epochs(every) => every > 0 && epoch.is_multiple_of(every),
            Self::Time(time) => last.elapsed() >= time,
        }
    }
}

/// What to do if numbers are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnNan {
    Stop,
    Rollback,
}

impl TrainArgs {
    fn optimizer(&self) -> Result<Optimizer> {
        let decay = self.training.weight_decay;
        let lr = self.training.lr.unwrap_or(DEFAULT_LR);
        Ok(match self.training.optimizer.as_str() {
            "adam" => Adam::new(lr).weight_decay(decay.unwrap_or(0.0)).into(),
            "adamw" => AdamW::new(lr).weight_decay(decay.unwrap_or(0.01)).into(),
            "sgd" => Sgd::new(lr).momentum(self.training.momentum).weight_decay(decay.unwrap_or(0.0)).into(),
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
        if let Some(path) = &self.training.weights {
            builder = builder.weights(initial_weights(path)?);
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
                Some(epoch) => {
                    say(format_args!("resumed from epoch {epoch} in {}", dir.display()));
                    self.change_learning_rate(trainer)?;
                }
                None => say(format_args!("no checkpoint in {} yet: starting from the beginning", dir.display())),
            }
            return Ok(());
        }
        match newest_epoch(dir) {
            Some((epoch, _)) => Err(Error::CheckpointInTheWay { path: dir.clone(), epoch }),
            None => Ok(()),
        }
    }

    /// Applies `--lr` to a resumed run, if it is another rate than the run was last asked for.
    fn change_learning_rate(&self, trainer: &mut Trainer) -> Result<()> {
        let asked = trainer.asked_learning_rate();
        if let Some(lr) = self.training.lr.filter(|&lr| lr != asked) {
            say(format_args!("learning rate {lr} instead of {}", trainer.learning_rate()));
            trainer.change_learning_rate(lr, "resume")?;
        }
        Ok(())
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
        let CheckpointArgs { checkpoint, grace, .. } = &self.checkpoints;
        if Duration::try_from_secs_f64(*grace).is_err() {
            return wrong("grace", grace.to_string(), "it is a number of seconds, 0 or more");
        }
        if self.training.on_nan == OnNan::Rollback && checkpoint.is_none() {
            return wrong("on_nan", "rollback".into(), "it returns to a checkpoint, so option `checkpoint` is needed");
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
/// The exit code: 128 + the signal that ended the run before its last epoch, otherwise 0.
pub(super) fn run(args: &TrainArgs) -> Result<ExitCode> {
    args.check()?;
    let mut state = RunState::default();
    state.lock = args.checkpoints.checkpoint.as_deref().map(take_folder).transpose()?;
    let mut trace = RunTrace::open(args.output.trace.as_deref(), TraceFile::LIMIT_BYTES)?;
    let start = Instant::now();
    let data = Dataset::load(&args.data)?;
    let _hook = QuietPanics::start(&data);
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
    if let Some(dir) = &args.checkpoints.checkpoint {
        state.writer = Some(CheckpointWriter::open(dir, args.checkpoints.keep)?);
    }
    let watch = Watch::start(state, Duration::from_secs_f64(args.checkpoints.grace))?;
    let trained = epochs(args, &mut trainer, &mut trace, &watch);
    // A run that failed has a trace as well.
    let traced = trace.finish();
    let ended = trained.and_then(|done| {
        let done = Done { read_seconds, ..done };
        end(args, &mut trainer, started_at, &watch).and_then(|()| summarise(args, &data, &trainer, &done))
    });
    match (ended, traced) {
        (Err(error), Err(also)) => {
            failure::report(&also);
            return Err(error);
        }
        (ended, traced) => ended.and(traced)?,
    }
    Ok(if is_cut_short(args, &trainer, &watch) { watch.exit_code() } else { ExitCode::SUCCESS })
}

/// Returns whether a signal ended the run before its last epoch.
fn is_cut_short(args: &TrainArgs, trainer: &Trainer, watch: &Watch) -> bool {
    watch.is_interrupted() && trainer.epoch() < args.training.epochs
}

/// Ends a run after its last epoch: evaluates if nothing was evaluated yet, and writes a checkpoint. A run that was cut
/// short evaluates only if nothing is saved, since its time is short.
fn end(args: &TrainArgs, trainer: &mut Trainer, started_at: u64, watch: &Watch) -> Result<()> {
    let has_folder = args.checkpoints.checkpoint.is_some();
    let mut saves = has_folder && (trainer.epoch() > started_at || started_at == 0);
    if (trainer.best().is_none() || args.training.eval_every == 0) && !(saves && is_cut_short(args, trainer, watch)) {
        trainer.evaluate()?;
        saves = has_folder;
    }
    if saves {
        let snapshot = trainer.snapshot()?;
        let mut state = watch.state();
        if let Some(mut writer) = state.writer.take() {
            if let Err(earlier) = writer.write(snapshot) {
                signals::warn(&earlier);
            }
            writer.finish()?;
        }
    }
    watch.stand_down();
    Ok(())
}

/// Reads the weights that a run starts from.
fn initial_weights(path: &Path) -> Result<Weights> {
    match path.is_dir() {
        true => Ok(Predictor::open(path)?.weights().clone()),
        false => Ok(Weights::load(path)?),
    }
}

/// Prints no panic if a file of the dataset has changed, because the change is then reported as the error.
struct QuietPanics;

impl QuietPanics {
    fn start(data: &Dataset) -> Self {
        let (data, usual) = (data.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            if data.check_files().is_ok() {
                usual(panic);
            }
        }));
        Self
    }
}

impl Drop for QuietPanics {
    /// Restores the hook of the standard library.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(std::panic::take_hook());
        }
    }
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
    tempfile::Builder::new().prefix(PROBE_PREFIX).tempfile_in(dir).map(drop).map_err(failed)
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

/// Runs epochs until all are done, `--early-stop` applies, or a signal ends the run.
fn epochs(args: &TrainArgs, trainer: &mut Trainer, trace: &mut RunTrace, watch: &Watch) -> Result<Done> {
    let bar = output::bar(args.training.epochs, args.output.json);
    bar.set_prefix("training");
    bar.set_position(trainer.epoch());
    let lines_every = args.training.epochs.div_ceil(PROGRESS_LINES).max(1);
    let mut done = Done::default();
    let (mut val, mut evaluated) = (None, false);
    let mut stale = stale_epochs(args, trainer);
    let mut recovery = Recovery::new(args, trainer)?;
    while trainer.epoch() < args.training.epochs && stale.is_none() && !watch.is_interrupted() {
        let stepped = trainer.step().and_then(|epoch| recovery.keep(args, trainer, watch).map(|()| epoch));
        if let Some(note) = trace.add(trainer).filter(|_| !args.output.json) {
            bar.suspend(|| say(note));
        }
        let epoch = match stepped {
            Ok(epoch) => epoch,
            Err(error) => {
                let note = recovery.after(error, trainer, watch)?;
                bar.suspend(|| say(note));
                bar.set_position(trainer.epoch());
                continue;
            }
        };
        if watch.state().writer.is_some() {
            watch.state().newest = trainer.last_good().cloned();
        }
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
        if epoch.accuracy.is_some() {
            stale = stale_epochs(args, trainer);
        }
    }
    watch.state().is_ending = true;
    bar.finish_and_clear();
    if let Some(stale) = stale {
        say(format_args!("stopped early: no better validation accuracy for {stale} epochs"));
    }
    if watch.is_interrupted() {
        say(format_args!("interrupted after epoch {}", trainer.epoch()));
    }
    Ok(done)
}

/// What a run does when an epoch fails.
struct Recovery {
    on_nan: OnNan,
    /// The state of the last checkpoint, or of the start.
    checkpoint: Option<Arc<Snapshot>>,
    rollbacks: u32,
    /// When the last checkpoint was written.
    saved_at: Instant,
}

impl Recovery {
    fn new(args: &TrainArgs, trainer: &mut Trainer) -> Result<Self> {
        let on_nan = args.training.on_nan;
        let checkpoint = match on_nan {
            OnNan::Rollback => Some(trainer.snapshot()?),
            OnNan::Stop => None,
        };
        Ok(Self { on_nan, checkpoint, rollbacks: 0, saved_at: Instant::now() })
    }

    /// After an epoch, writes a checkpoint beside training if one is due. A run goes on if it cannot be written. The
    /// state after the last epoch is only checked here, since the end of the run writes it.
    ///
    /// # Errors
    /// Those of [`Trainer::snapshot`]: the epoch has failed.
    fn keep(&mut self, args: &TrainArgs, trainer: &mut Trainer, watch: &Watch) -> Result<()> {
        if trainer.epoch() >= args.training.epochs {
            return trainer.snapshot().map(drop);
        }
        if !args.checkpoints.checkpoint_every.is_due(trainer.epoch(), self.saved_at) {
            return Ok(());
        }
        if let Some(writer) = &mut watch.state().writer {
            let snapshot = trainer.snapshot()?;
            if self.on_nan == OnNan::Rollback {
                self.checkpoint = Some(snapshot.clone());
            }
            if let Err(error) = writer.write(snapshot) {
                signals::warn(&error);
            }
        }
        self.saved_at = Instant::now();
        Ok(())
    }

    /// Handles the error of an epoch: returns to the last checkpoint if the run may, and returns a note. Otherwise
    /// saves the state before the epoch, and returns the error.
    fn after(&mut self, error: Error, trainer: &mut Trainer, watch: &Watch) -> Result<String> {
        match (&error, &self.checkpoint) {
            (Error::Diverged { .. }, Some(checkpoint)) if self.rollbacks < MOST_ROLLBACKS => {
                self.rollbacks += 1;
                let lr = trainer.learning_rate() / 2.0;
                trainer.restore(checkpoint)?;
                trainer.change_learning_rate(lr, "rollback")?;
                let text = failure::in_flags(&error);
                Ok(format!("{text}: back to epoch {}, with learning rate {lr}", checkpoint.epoch()))
            }
            // The state before numbers went wrong is finite, but may be on its way there: it must not replace an older
            // checkpoint.
            (Error::Diverged { .. } | Error::NotFiniteAtStart { .. }, _) => Err(error),
            _ => {
                watch.state().save_newest();
                Err(error)
            }
        }
    }
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
