//! What `lapidary train` prints.

use bytesize::ByteSize;
use lapidary_kernels::Matmul;
use serde_json::json;

use super::args::TrainArgs;
use super::majority::Majority;
use crate::bind::uses_edge_weights;
use crate::cli::compared_times::Compared;
use crate::cli::defaults::Chosen;
use crate::cli::device::NOTHING_CUT;
use crate::cli::output::{self, align, facts, json_line, percent, print, say, seconds, table};
use crate::cli::reorder;
use crate::dataset::{Dataset, TEST, TRAIN, VAL};
use crate::error::Result;
use crate::model::{FeatureKind, LabelKind, Model};
use crate::program::Strips;
use crate::ranks::{Ranks, Sent};
use crate::train::{EmbeddingSize, Epoch, Move, StageSeconds, Trainer};

/// The columns of [`device_rows`].
pub(super) const DEVICE_COLUMNS: [&str; 5] = ["device", "vertices", "peak", "planned peak", "kernels"];

/// The columns of [`Done::copies`].
pub(super) const COPY_COLUMNS: [&str; 3] = ["copies per epoch", "measured", "planned"];

/// The measurements of a run.
#[derive(Default)]
pub(super) struct Done {
    /// Seconds for reading the data.
    pub read_seconds: f64,
    /// The largest class of the test vertices, if they have one class each.
    pub majority: Option<Majority>,
    /// The flags that were chosen for the dataset.
    pub chosen: Chosen,
    /// The loss of each epoch and the score of the validation vertices, if it was evaluated.
    pub history: Vec<Progress>,
    /// Seconds of each epoch.
    pub seconds: Vec<f64>,
    /// Seconds of the evaluation of each epoch that had one.
    pub eval_seconds: Vec<f64>,
    /// Bytes copied in one epoch: measured and planned, each to devices and to the host. The epoch is the last one with
    /// an evaluation, or the last one if none had an evaluation.
    pub bytes: [[u64; 2]; 2],
    /// Bytes copied from device to device in the same epoch: measured and planned.
    pub between: [u64; 2],
    /// Seconds of the stages of mini-batches, in the last epoch.
    pub stages: Option<StageSeconds>,
    /// The times of the kernels, if they were measured.
    pub compared: Option<Compared>,
}

impl Done {
    /// Returns the median seconds of an epoch, without the first one if there are more.
    fn epoch_median(&self) -> Option<f64> {
        median(self.seconds.get(1..).unwrap_or_default()).or_else(|| median(&self.seconds))
    }

    /// Returns the bytes that an epoch copies, measured and planned.
    pub(super) fn copies(&self) -> Vec<[String; 3]> {
        let [[to_device, to_host], [planned_to_device, planned_to_host]] = self.bytes;
        let [between, planned_between] = self.between;
        let rows = [
            ("to devices", to_device, planned_to_device),
            ("to the host", to_host, planned_to_host),
            ("between devices", between, planned_between),
        ];
        let kept = rows.into_iter().filter(|(what, _, planned)| *what != "between devices" || *planned > 0);
        kept.map(|(what, measured, planned)| {
            [what.into(), ByteSize(measured).to_string(), ByteSize(planned).to_string()]
        })
        .collect()
    }
}

/// How far an epoch has come.
pub(super) struct Progress {
    pub epoch: u64,
    pub loss: f64,
    pub val: Option<f64>,
}

/// Describes a move of vertices between devices: its epoch, its seconds and its reason.
pub(super) fn move_line(moved: &Move) -> String {
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

pub(super) fn epoch_line(epoch: &Epoch, labels: LabelKind) -> serde_json::Value {
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
    if let Some(stages) = epoch.stages {
        let StageSeconds {
            batches,
            vertices,
            edges,
            found,
            rows_read,
            bytes_read,
            sample,
            gather,
            compute,
            waiting,
            ..
        } = stages;
        line["batches"] = batches.into();
        line["input_rows"] = vertices.into();
        line["sampled_edges"] = edges.into();
        line["feature_rows_found"] = found.into();
        line["feature_rows_read"] = rows_read.into();
        line["feature_bytes_read"] = bytes_read.into();
        if stages.rounds > 0 {
            line["rounds"] = stages.rounds.into();
            line["fetched_rows"] = stages.fetched_rows.into();
            line["fetched_bytes"] = stages.fetched_bytes.into();
            line["fetched_edges"] = stages.fetched_edges.into();
            line["fetched_edge_bytes"] = stages.fetched_edge_bytes.into();
        }
        line["stage_seconds"] = json!({
            "sampling": sample, "gathering": gather, "computing": compute, "waiting": waiting,
        });
    }
    if epoch.planned_bytes_between_devices > 0 {
        line["bytes_between_devices"] = epoch.bytes_between_devices.into();
    }
    line
}

pub(super) fn introduce(args: &TrainArgs, data: &Dataset, model: &Model) -> Result<()> {
    let heads = match model.config().attention.heads {
        1 => String::new(),
        heads => format!(" with {heads} heads"),
    };
    // Whether a model reads weights of edges does not depend on how its features are stored.
    let features = FeatureKind::Dense { width: args.batches.input_width(data) };
    let weights = match (uses_edge_weights(model, data, features)?, data.edge_weights()) {
        (true, _) => " with weights",
        (false, Some(_)) => " (weights not used)",
        (false, None) => "",
    };
    let batches = match (args.batches.batch, &args.batches.draws.fanout) {
        (Some(size), Some(fanout)) => {
            let evaluated = args.training.eval_fanout.as_ref().map(|list| format!("; evaluated with {list}"));
            let size = output::count(size as u64);
            format!(" of batches of {size} ({} {fanout}{})", args.batches.draws.sampler, evaluated.unwrap_or_default())
        }
        _ => String::new(),
    };
    say(format_args!(
        "{} on {}: {} vertices, {} edges{}, {} train / {} val / {} test, {} epoch{}{batches}",
        format_args!("{}{heads}{}", args.model.named(model), args.model.dtype.said()),
        output::one_line(data.name()),
        output::count(data.graph().vertex_count() as u64),
        output::count(data.graph().edge_count() as u64),
        weights,
        output::count(data.split_size(TRAIN) as u64),
        output::count(data.split_size(VAL) as u64),
        output::count(data.split_size(TEST) as u64),
        args.training.epochs(),
        if args.training.epochs() == 1 { "" } else { "s" },
    ));
    Ok(())
}

/// Says how matrices are cut, if they are, or why they are not cut as `asked`.
pub(super) fn say_what_is_cut(trainer: &Trainer, asked: Strips) {
    let what = match (trainer.tiles(), trainer.strips()) {
        (1, 1) => None,
        (1, strips) => Some(format!("{strips} strips of columns")),
        (tiles, 1) => Some(format!("{tiles} tiles per device")),
        (tiles, strips) => Some(format!("{tiles} tiles per device and {strips} strips of columns")),
    };
    match (what, asked) {
        (Some(what), Strips::Auto) => say(format_args!("{what}, because the memory is small")),
        (None, Strips::Exactly(2..)) => say(NOTHING_CUT),
        (Some(what), _) => say(what),
        (None, _) => {}
    }
}

/// Prints the summary. All ranks have to call it.
pub(super) fn summarise(args: &TrainArgs, data: &Dataset, trainer: &Trainer, done: &Done, ranks: &Ranks) -> Result<()> {
    let sent = ranks.gather(ranks.sent())?;
    let [[to_device, to_host], [planned_to_device, planned_to_host]] = done.bytes;
    let [between, planned_between] = done.between;
    let labels = trainer.label_kind();
    let best = trainer.best();
    let test = best.and_then(|b| b.test_accuracy);
    let val = best.and_then(|b| b.val_accuracy);
    let eval_median = median(done.eval_seconds.get(1..).unwrap_or_default());
    let start_up = trainer.start_up();
    if args.output.json {
        let mut line = json!({
            "event": "summary",
            "dataset": data.name(),
            score_name("test", labels): test,
            score_name("best_val", labels): val,
            "test_largest_class": done.majority.as_ref().map(|majority| majority.share),
            "defaults": done.chosen.json(),
            "dtype": trainer.dtype().name(),
            "matmul": trainer.matmul().map(Matmul::name),
            "sum": trainer.sums().name(),
            "best_epoch": best.map(|b| b.epoch),
            "epochs": trainer.epoch(),
            "epoch_seconds_median": done.epoch_median(),
            "eval_seconds_median": eval_median,
            "reorder": data.order(),
            "read_seconds": done.read_seconds,
            "plan_seconds": start_up.plan_seconds,
            "setup_seconds": start_up.setup_seconds,
            "tiles": trainer.tiles(),
            "strips": trainer.strips(),
            "peak_device_bytes": trainer.peak_device_bytes(),
            "planned_peak_device_bytes": trainer.planned_peak_device_bytes(),
            "parts": trainer.parts(),
            "part_seconds": trainer.part_seconds(),
            "splits": trainer.splits().len(),
            "batches": done.stages.map(|stages| stages.batches),
            "planned_bytes_to_device": planned_to_device,
            "measured_bytes_to_device": to_device,
            "planned_bytes_to_host": planned_to_host,
            "measured_bytes_to_host": to_host,
        });
        if let Some(size) = trainer.embedding() {
            line["embedding"] = embedding_line(&size);
        }
        if planned_between > 0 {
            line["planned_bytes_between_devices"] = planned_between.into();
            line["measured_bytes_between_devices"] = between.into();
        }
        if ranks.count() > 1 {
            line["sent"] = json!(pairs(&sent));
        }
        return json_line(&line);
    }
    print(&facts(&result_rows(args, data, trainer, done)))?;
    if let Some((majority, accuracy)) = done.majority.as_ref().zip(test)
        && let Some(advice) = majority.advice(accuracy, args, data)?
    {
        say(advice);
    } else if done.eval_seconds.len() > 1
        && best.is_some_and(|best| best.epoch == trainer.epoch() && best.val_accuracy.is_some())
    {
        say("note: the last epoch was the best, so more may be better (--epochs)");
    }
    if trainer.parts().len() > 1 || to_device + to_host > 0 {
        print(&format!("\n{}", devices_table(trainer)))?;
        let mut table = table(COPY_COLUMNS);
        table.add_rows(done.copies());
        print(&format!("\n{}", align(table)))?;
    }
    if ranks.count() > 1 {
        let mut table = table(["sent, since the start", "messages", "bytes"]);
        let (rows, all) = sent.iter().flatten().fold(([0, 0], [0, 0]), |(rows, all), sent| {
            let add = |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a + c, b + d];
            (add(rows, [sent.row_messages, sent.row_bytes]), add(all, [sent.messages, sent.bytes]))
        });
        for (what, [messages, bytes]) in [("rows", rows), ("everything", all)] {
            table.add_row([what.into(), output::count(messages), ByteSize(bytes).to_string()]);
        }
        print(&format!("\n{}", align(table)))?;
    }
    Ok(())
}

/// Returns what came of a run, as names and values.
pub(super) fn result_rows(
    args: &TrainArgs,
    data: &Dataset,
    trainer: &Trainer,
    done: &Done,
) -> Vec<(&'static str, String)> {
    let best = trainer.best();
    let (test, val) = (best.and_then(|b| b.test_accuracy), best.and_then(|b| b.val_accuracy));
    let (start_up, epoch_median) = (trainer.start_up(), done.epoch_median());
    let peak: u64 = trainer.peak_device_bytes().iter().sum();
    let (test_name, val_name) = match trainer.label_kind() {
        LabelKind::Class => ("test accuracy", "validation accuracy"),
        LabelKind::Multi => ("test micro-F1", "validation micro-F1"),
    };
    let [read, plan, setup] = [done.read_seconds, start_up.plan_seconds, start_up.setup_seconds].map(seconds);
    let began = format!("reading {read}, planning {plan}, setup {setup}");
    let mut rows = vec![(test_name, percent(test)), (val_name, percent(val))];
    if let Some(Majority { class, share }) = &done.majority {
        rows.insert(1, ("  largest class", format!("{} ({class})", percent(Some(*share)))));
    }
    rows.extend([
        ("best epoch", best.map_or_else(|| "-".into(), |b| format!("{} of {}", b.epoch, trainer.epoch()))),
        ("median epoch", epoch_median.map_or_else(|| "-".into(), seconds)),
        ("peak memory", ByteSize(peak).to_string()),
        ("start-up", began),
    ]);
    rows.extend(reorder::row(data));
    if let Some(stages) = done.stages {
        rows.push(("batches", format!("{} per epoch; {}", stages.batches, stages_line(&stages))));
        let StageSeconds { vertices, found, rows_read, bytes_read, .. } = stages;
        let what = if trainer.embedding().is_some() { "embedding" } else { "features" };
        let mut features = format!("{} rows per epoch", output::count(vertices));
        if args.batches.device_cache.is_some() {
            features += &format!("; {:.1} % of them are on the devices already", percentage(found, vertices));
        }
        if args.batches.feature_cache.is_some() {
            features += &format!("; {}", reads_line([rows_read, bytes_read]));
        }
        if let Some(size) = trainer.embedding() {
            features += &format!("; {}", learned_line(&size));
        }
        rows.push((what, features));
        if stages.rounds > 0 {
            let (count, bytes) = (output::count(stages.fetched_rows), ByteSize(stages.fetched_bytes));
            let mut fetched = format!("{count} rows, {bytes}, in {} rounds per epoch by rank 0", stages.rounds);
            if args.training.topology != "whole" {
                let (edges, bytes) = (output::count(stages.fetched_edges), ByteSize(stages.fetched_edge_bytes));
                fetched = format!("{edges} edges, {bytes}, and {fetched}");
            }
            rows.push(("fetched", fetched));
        }
    }
    if let Some(dir) = &args.checkpoints.checkpoint {
        rows.push(("checkpoint", dir.display().to_string()));
    }
    rows
}

fn percentage(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Describes the last epoch of mini-batches: the time of its stages, which work at the same time, and the slowest.
fn stages_line(stages: &StageSeconds) -> String {
    let [sample, gather, compute, waiting] =
        [stages.sample, stages.gather, stages.compute, stages.waiting].map(seconds);
    format!(
        "sampling {sample}, gathering {gather}, computing {compute}, waiting for batches {waiting}; slowest: {}",
        stages.slowest()
    )
}

/// Describes how many rows of features an epoch reads from the dataset's file.
pub(in crate::cli) fn reads_line([rows, bytes]: [u64; 2]) -> String {
    format!("{} rows are read from the dataset's file: {} in whole pages", output::count(rows), ByteSize(bytes))
}

/// Describes a learned embedding, and the memory of the host that it takes.
pub(in crate::cli) fn learned_line(size: &EmbeddingSize) -> String {
    let EmbeddingSize { rows, width, bytes, moment_bytes } = *size;
    let [bytes, moments] = [bytes, moment_bytes].map(ByteSize);
    format!("{} rows of {width} are learned: {bytes} on the host, moments {moments}", output::count(rows))
}

pub(in crate::cli) fn embedding_line(size: &EmbeddingSize) -> serde_json::Value {
    let EmbeddingSize { rows, width, bytes, moment_bytes } = *size;
    json!({"rows": rows, "width": width, "bytes": bytes, "moment_bytes": moment_bytes})
}

/// Returns what each rank has sent to each other one: `[from, to, messages with rows, bytes of rows, messages, bytes]`.
fn pairs(sent: &[Vec<Sent>]) -> Vec<[u64; 6]> {
    let of_rank = |(from, sent): (usize, &Vec<Sent>)| {
        let pair = move |(to, sent): (usize, &Sent)| {
            [from as u64, to as u64, sent.row_messages, sent.row_bytes, sent.messages, sent.bytes]
        };
        sent.iter().enumerate().filter(move |(to, _)| *to != from).map(pair).collect::<Vec<_>>()
    };
    sent.iter().enumerate().flat_map(of_rank).collect()
}

/// Returns a row for each device: its vertices, its peak memory, and the time of its kernels in the last epoch.
pub(super) fn device_rows(trainer: &Trainer) -> Vec<[String; 5]> {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let peaks = trainer.peak_device_bytes().into_iter().zip(trainer.planned_peak_device_bytes());
    let row = |(i, ([start, end], (peak, planned))): (usize, (&[usize; 2], (u64, u64)))| {
        let kernels = trainer.part_seconds().get(i).map_or_else(|| "-".into(), |&s| seconds(s));
        [i.to_string(), format!("{start}..{end}"), size(peak), size(planned), kernels]
    };
    trainer.parts().iter().zip(peaks).enumerate().map(row).collect()
}

fn devices_table(trainer: &Trainer) -> String {
    let mut table = table(DEVICE_COLUMNS);
    table.add_rows(device_rows(trainer));
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
