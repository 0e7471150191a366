//! `lapidary train`.

mod args;
mod majority;
mod page;
mod recovery;
mod report;
mod tensorboard;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::defaults::{self, Chosen};
use super::failure;
use super::kernel_times::KernelWatch;
use super::metrics::Measured;
use super::output::{self, facts, json_line, percent, print, say};
use super::page::PageFile;
use super::reorder::reordered;
use super::run_trace::RunTrace;
use super::signals::{self, RunState, Watch};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::infer::Position;
use crate::infer::checkpoint::PROBE_PREFIX;
use crate::model::Model;
use crate::ranks::Ranks;
use crate::runtime::TraceFile;
use crate::train::{CheckpointWriter, RunLock, Trainer};

use args::OutputArgs;
pub(super) use args::{BatchArgs, DrawArgs, TrainArgs};
use majority::Majority;
use recovery::{QuietPanics, Recovery};
use report::{Done, Progress, epoch_line, introduce, move_line, say_what_is_cut, summarise};
pub(super) use report::{embedding_line, learned_line, reads_line};
use tensorboard::Events;

/// Number of progress lines, if standard error is not a terminal and shows no bar.
const PROGRESS_LINES: u64 = 10;

/// Trains, saves checkpoints, and prints a report.
///
/// # Returns
/// The exit code: 128 + the signal that ended the run before its last epoch, otherwise 0.
pub(super) fn run(args: &mut TrainArgs, ranks: &Ranks) -> Result<ExitCode> {
    args.check()?;
    let mut state = RunState::default();
    // Rank 0 writes all files.
    let folder = args.checkpoints.checkpoint.clone().filter(|_| ranks.is_first());
    let folder = folder.as_deref();
    state.lock = folder.map(take_folder).transpose()?;
    let mut trace = RunTrace::open(args.output.trace.as_deref().filter(|_| ranks.is_first()), TraceFile::LIMIT_BYTES)?;
    let report = args.output.report.as_deref().filter(|_| ranks.is_first()).map(PageFile::create).transpose()?;
    let mut events = args.output.tensorboard.as_deref().filter(|_| ranks.is_first()).map(Events::create).transpose()?;
    let start = Instant::now();
    let (data, model, chosen) = read(args, ranks)?;
    let args = &*args;
    let _hook = QuietPanics::start(&data);
    if args.checkpoints.checkpoint.is_some() {
        // Checkpoints need it, and the bytes of the data are still cached.
        data.fingerprint();
    }
    ranks.agree_on(&data)?;
    let read_seconds = start.elapsed().as_secs_f64();
    if !args.output.json {
        introduce(args, &data, &model)?;
        chosen.line().into_iter().for_each(say);
    }
    let mut trainer = args.trainer(&data, &model, ranks)?;
    args.resume(&mut trainer)?;
    ranks.agree("checkpoint", &format!("epoch {}", trainer.epoch()))?;
    if let Some(dir) = folder {
        try_to_write(dir)?;
    }
    if !args.output.json {
        say_what_is_cut(&trainer, args.training.strips);
        args.device.say_how_matrices_are_multiplied(trainer.matmul());
        args.device.say_how_gradients_are_added(Some(trainer.sums()))?;
    }
    if args.output.explain {
        let plan = trainer.explain();
        match args.output.json {
            true => say(plan.trim_end()),
            false => print(&format!("{}\n", plan.trim_end()))?,
        }
    }
    trace.start(&mut trainer);
    let started_at = trainer.position();
    if let Some(dir) = folder {
        state.writer = Some(CheckpointWriter::open(dir, args.checkpoints.keep)?);
    }
    state.is_rank = ranks.count() > 1;
    state.ends_at_batches = args.batches.batch.is_some();
    let watch = Watch::start(state, Duration::from_secs_f64(args.checkpoints.grace))?;
    trainer.watch(watch.signal());
    let mut kernels = (args.batches.batch.is_none() && ranks.count() == 1)
        .then(|| KernelWatch::new(data.graph(), args.output.explain, args.output.trace.is_some()));
    let recorders = Recorders { trace: &mut trace, kernels: kernels.as_mut(), events: events.as_mut() };
    let trained = epochs(args, &mut trainer, recorders, &watch, ranks);
    // A run that failed has a trace as well.
    let traced = trace.finish();
    let ended = trained.and_then(|done| {
        let done = Done { read_seconds, majority: Majority::of(&data), chosen, ..done };
        end(args, &mut trainer, started_at, &watch)?;
        let compared = kernels.map(|kernels| kernels.finish(&trainer, args.output.json)).transpose()?.flatten();
        let done = Done { compared, ..done };
        summarise(args, &data, &trainer, &done, ranks)?;
        let page = report.map(|file| (file, page::page(args, (&model, &data), &trainer, &done)));
        let (cut_short, asks) = (is_cut_short(args, &trainer, &watch), !args.output.metrics.metric.is_empty());
        let measured = (asks && !cut_short).then(|| measure(&args.output, &data, trainer)).transpose();
        // A page without metrics is better than none.
        let written = page.map_or(Ok(()), |(file, page)| {
            file.write(&page::finish(page, measured.as_ref().ok().and_then(Option::as_ref)))
        });
        both(written, measured)?;
        Ok(if cut_short { watch.exit_code() } else { ExitCode::SUCCESS })
    });
    both(traced, ended)
}

/// Returns the value if nothing failed. If both failed, reports the error of what came beside the run, and returns the other.
fn both<T>(beside: Result<()>, ended: Result<T>) -> Result<T> {
    match (beside, ended) {
        (Err(also), Err(error)) => {
            failure::report(&also);
            Err(error)
        }
        (beside, ended) => beside.and(ended),
    }
}

/// Prints what `--metric` asks for, and returns it, with the epoch whose weights it is of. The devices hold nothing of the
/// training then, so the pass has their whole memory.
fn measure(output: &OutputArgs, data: &Dataset, trainer: Trainer) -> Result<(Option<u64>, Measured)> {
    let epoch = trainer.best().map(|best| best.epoch);
    let predictor = trainer.predictor()?;
    drop(trainer);
    let prediction = predictor.run(data)?;
    let measured = Measured::of(&output.metrics.metric, data, &predictor, prediction.logits.view());
    if output.json {
        let mut line = json!({"event": "metrics", "dataset": data.name(), "epoch": epoch});
        measured.add_to(&mut line);
        json_line(&line)?;
        return Ok((epoch, measured));
    }
    let mut rows = vec![("metrics", epoch.map_or_else(|| "-".into(), |epoch| format!("of epoch {epoch}")))];
    rows.extend(measured.rows());
    print(&format!("\n{}", facts(&rows)))?;
    measured.print_confusion()?;
    Ok((epoch, measured))
}

/// Reads the data, and chooses the flags that were not given. Returns the data in the order of the run, the model, and what was
/// chosen.
fn read(args: &mut TrainArgs, ranks: &Ranks) -> Result<(Dataset, Model, Chosen)> {
    let data = args.model.load(&args.data)?;
    args.check_data(&data)?;
    let chosen = defaults::choose(args, &data)?;
    let model = args.model.model(args.batches.input_width(&data), data.class_count())?;
    let profile = args.device.options()?.devices.profile();
    let gathers = args.batches.gathers(&model, &profile, args.training.epochs());
    let _hook = QuietPanics::start(&data);
    let data = reordered(args.reorder()?, data, &gathers, ranks, args.output.json)?;
    Ok((data, model, chosen))
}

/// Returns whether a signal ended the run before its last epoch.
fn is_cut_short(args: &TrainArgs, trainer: &Trainer, watch: &Watch) -> bool {
    watch.is_interrupted() && trainer.epoch() < args.training.epochs()
}

/// Ends a run after its last epoch: evaluates if nothing was evaluated yet, and writes a checkpoint. A run that was cut
/// short evaluates only if nothing is saved, since its time is short, and not within an epoch.
fn end(args: &TrainArgs, trainer: &mut Trainer, started_at: Position, watch: &Watch) -> Result<()> {
    let (has_folder, position) = (args.checkpoints.checkpoint.is_some(), trainer.position());
    let mut saves = has_folder && (position > started_at || started_at == Position::default());
    let evaluates = trainer.best().is_none() || args.training.eval_every == 0;
    if evaluates && position.batch == 0 && !(saves && is_cut_short(args, trainer, watch)) {
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
    let failed = || Error::io("write into the checkpoint folder", dir);
    std::fs::create_dir_all(dir).map_err(failed())?;
    tempfile::Builder::new().prefix(PROBE_PREFIX).tempfile_in(dir).map(drop).map_err(failed())
}

/// What records the epochs of a run.
struct Recorders<'a, 'graph> {
    trace: &'a mut RunTrace,
    kernels: Option<&'a mut KernelWatch<'graph>>,
    events: Option<&'a mut Events>,
}

/// Runs epochs until all are done, `--early-stop` applies, or a signal ends the run.
fn epochs(
    args: &TrainArgs,
    trainer: &mut Trainer,
    mut recorders: Recorders<'_, '_>,
    watch: &Watch,
    ranks: &Ranks,
) -> Result<Done> {
    let bar = output::bar(args.training.epochs(), args.output.json);
    bar.set_prefix("training");
    let shown = bar.clone();
    trainer.on_batch(move |number, count| shown.set_prefix(format!("training, batch {number} of {count}")));
    bar.set_position(trainer.epoch());
    let lines_every = args.training.epochs().div_ceil(PROGRESS_LINES).max(1);
    let mut done = Done::default();
    let (mut val, mut evaluated) = (None, false);
    // A resumed run is judged where it would have been without the interruption.
    let mut stale = stale_epochs(args, trainer).filter(|_| trainer.epoch().is_multiple_of(args.training.eval_every));
    let mut recovery = Recovery::new(args, trainer)?;
    while trainer.epoch() < args.training.epochs() && stale.is_none() && !watch.is_over(trainer, ranks) {
        let stepped = trainer.step_batches(recovery.batches_to_run(trainer));
        let stepped = stepped.and_then(|epoch| recovery.keep(args, trainer, watch, ranks).map(|()| epoch));
        if let Some(note) = recorders.trace.add(trainer).filter(|_| !args.output.json) {
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
        let Some(epoch) = epoch else { continue };
        if let Some(kernels) = &mut recorders.kernels {
            kernels.after_epoch(trainer)?;
        }
        if let Some(events) = &mut recorders.events {
            bar.suspend(|| events.add(&epoch, trainer.label_kind()));
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
        let val_now = epoch.accuracy.and_then(|accuracy| accuracy.val);
        done.history.push(Progress { epoch: epoch.epoch, loss: epoch.loss, val: val_now });
        if epoch.accuracy.is_some() {
            done.eval_seconds.push(epoch.eval_seconds);
        }
        done.stages = epoch.stages;
        val = epoch.accuracy.map_or(val, |a| a.val);
        let progress = format!("loss {:.4}  val {}", epoch.loss, percent(val));
        if ranks.count() > 1 && watch.is_interrupted() && trainer.epoch() < args.training.epochs() {
            // `mpirun` may have stopped to read what ranks print.
            continue;
        }
        if args.output.json {
            let printed = json_line(&epoch_line(&epoch, trainer.label_kind()));
            // With a checkpoint, somebody wants the model: the run goes on without a reader.
            if args.checkpoints.checkpoint.is_some() { output::or_closed(printed)? } else { printed? }
        } else if bar.is_hidden() && (epoch.epoch % lines_every == 0 || epoch.epoch == args.training.epochs()) {
            say(format_args!("epoch {}/{}  {progress}", epoch.epoch, args.training.epochs()));
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
        say(format_args!("interrupted after {}", trainer.position()));
    }
    Ok(done)
}

/// Returns the number of epochs since the best one, if they are enough for `--early-stop`.
fn stale_epochs(args: &TrainArgs, trainer: &Trainer) -> Option<u64> {
    let stale = trainer.epoch() - trainer.best()?.epoch;
    args.training.early_stop.filter(|&patience| stale >= patience).map(|_| stale)
}
