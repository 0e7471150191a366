//! `lapidary infer` for several datasets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use comfy_table::Table;
use serde_json::{Value, json};

use super::predictions::{Format, Names, Predicted, Table as PredictionTable, unwritten, write_logits};
use super::{InferArgs, score_name};
use crate::bind::label_kind;
use crate::cli::output::{align, bar, count, facts, json_line, percent, print, seconds, table};
use crate::error::{Error, Result};
use crate::infer::{Accuracy, GraphPrediction, Predictor};
use crate::output::OutputFile;
use crate::ranks::Ranks;

/// The most datasets that a table shows.
const MOST_ROWS: usize = 50;

/// What was predicted so far.
#[derive(Default)]
struct Total {
    graphs: usize,
    vertices: u64,
    edges: u64,
    classes: usize,
    scores: Vec<(&'static str, Accuracy)>,
    passes: u64,
    pass_seconds: f64,
}

/// Where predictions go.
enum Out {
    Nowhere,
    /// A file of logits for each dataset.
    Files(Vec<PathBuf>),
    Table(PredictionTable),
}

impl Out {
    /// Makes the folder or opens the table, on the first rank.
    fn create(args: &InferArgs, format: Option<Format>, ranks: &Ranks) -> Result<Self> {
        let Some((path, format)) = args.out.as_deref().zip(format) else { return Ok(Self::Nowhere) };
        match format {
            Format::Npy => {
                let files = files_in(path, &args.data)?;
                if !ranks.is_first() {
                    return Ok(Self::Nowhere);
                }
                std::fs::create_dir_all(path).map_err(unwritten(path))?;
                Ok(Self::Files(files))
            }
            Format::Table(_) if !ranks.is_first() => Ok(Self::Nowhere),
            Format::Table(format) => PredictionTable::create(path, format, args.scores, true).map(Self::Table),
        }
    }

    /// Writes the predictions for the dataset number `i`.
    fn write(&mut self, i: usize, spec: &str, predictor: &Predictor, prediction: &GraphPrediction) -> Result<()> {
        let (data, logits) = (&prediction.data, prediction.logits.view());
        match self {
            Self::Nowhere => Ok(()),
            Self::Files(files) => {
                let path = &files[i];
                let file = OutputFile::create(path).map_err(unwritten(path))?;
                write_logits(file, logits, data.permutation()).map_err(unwritten(path))
            }
            Self::Table(table) => {
                let names = Names::open(spec, data)?;
                table.write(predictor, &Predicted { spec, data, names: &names, logits })
            }
        }
    }
}

/// Predicts for the datasets one after the other, writes the predictions for each if requested, and prints a report.
pub(super) fn run(args: &InferArgs, format: Option<Format>, predictor: &Predictor, ranks: &Ranks) -> Result<()> {
    let mut out = Out::create(args, format, ranks)?;
    let (start, bar) = (Instant::now(), bar(args.data.len() as u64, args.json));
    bar.set_prefix("predicting");
    let load = |spec: &String| {
        let data = args.load(predictor, spec)?;
        ranks.agree_on(&data)?;
        Ok(data)
    };
    let mut predictions = predictor.predictions(args.data.iter().map(load));
    let mut total = Total::default();
    let mut rows = table(["data", "vertices", "edges", "test", "validation", "training"]);
    let mut found = args.data.iter().zip(predictions.by_ref()).enumerate();
    let ended = found.try_for_each(|(i, (spec, prediction))| {
        let prediction = prediction?;
        out.write(i, spec, predictor, &prediction)?;
        total.add(&prediction);
        bar.inc(1);
        if args.json {
            return json_line(&line(spec, &prediction));
        }
        if i < MOST_ROWS {
            let graph = prediction.data.graph();
            let [vertices, edges] = [graph.vertex_count(), graph.edge_count()].map(|n| count(n as u64));
            let accuracy = prediction.accuracy;
            let [test, val, train] = [accuracy.test, accuracy.val, accuracy.train].map(percent);
            rows.add_row([spec.clone(), vertices, edges, test, val, train]);
        }
        Ok(())
    });
    bar.finish_and_clear();
    // What was predicted before an error is shown, too.
    print_rows(args, rows, total.graphs)?;
    ended?;
    if let Out::Table(table) = out {
        table.finish()?;
    }
    total.scores = predictions.accuracies().map(|(kind, accuracy)| (score_name(kind), accuracy)).collect();
    (total.passes, total.pass_seconds) = (predictions.batches(), predictions.seconds());
    summarise(args, &total, start.elapsed().as_secs_f64())
}

/// Prints the table of the datasets that were predicted, unless there are none or JSON is asked for.
fn print_rows(args: &InferArgs, rows: Table, predicted: usize) -> Result<()> {
    if args.json || predicted == 0 {
        return Ok(());
    }
    print(&align(rows))?;
    match predicted.saturating_sub(MOST_ROWS) {
        0 => Ok(()),
        more => print(&format!("... and {} more, which --json shows", count(more as u64))),
    }
}

impl Total {
    fn add(&mut self, prediction: &GraphPrediction) {
        let graph = prediction.data.graph();
        self.graphs += 1;
        self.vertices += graph.vertex_count() as u64;
        self.edges += graph.edge_count() as u64;
        self.classes = prediction.logits.ncols();
    }
}

/// Returns the file of each dataset's logits, which has the last part of the dataset's name.
///
/// # Errors
/// [`Error::Value`] if two datasets have the same file.
fn files_in(folder: &Path, data: &[String]) -> Result<Vec<PathBuf>> {
    let mut owners = BTreeMap::new();
    let file = |spec: &String| {
        let last = Path::new(spec.strip_prefix("builtin:").unwrap_or(spec)).file_name().unwrap_or(spec.as_ref());
        let path = folder.join(last).with_added_extension("npy");
        match owners.insert(path.clone(), spec.clone()) {
            None => Ok(path),
            Some(earlier) => Err(Error::Value {
                option: "out",
                value: folder.display().to_string(),
                expected: format!(
                    "both `{earlier}` and `{spec}` would write {}; predict one of them in a run of its own",
                    path.display()
                ),
            }),
        }
    };
    data.iter().map(file).collect()
}

fn line(spec: &str, prediction: &GraphPrediction) -> Value {
    let (graph, score) = (prediction.data.graph(), score_name(label_kind(&prediction.data)));
    json!({
        "event": "graph",
        "data": spec,
        "dataset": prediction.data.name(),
        "vertices": graph.vertex_count(),
        "edges": graph.edge_count(),
        format!("test_{score}"): prediction.accuracy.test,
        format!("val_{score}"): prediction.accuracy.val,
        format!("train_{score}"): prediction.accuracy.train,
    })
}

/// Prints the totals. `took` has the seconds of everything.
fn summarise(args: &InferArgs, total: &Total, took: f64) -> Result<()> {
    let (datasets, scores) = (total.graphs, total.scores.iter());
    if args.json {
        let mut summary = json!({
            "event": "summary",
            "datasets": datasets,
            "vertices": total.vertices,
            "edges": total.edges,
            "passes": total.passes,
            "seconds": total.pass_seconds,
            "total_seconds": took,
        });
        for (name, Accuracy { train, val, test }) in scores {
            for (split, score) in [("test", test), ("val", val), ("train", train)] {
                summary[format!("{split}_{name}")] = json!(score);
            }
        }
        return json_line(&summary);
    }
    let mut rows = vec![
        ("datasets", count(datasets as u64)),
        ("vertices", count(total.vertices)),
        ("edges", count(total.edges)),
        ("classes", count(total.classes as u64)),
    ];
    for (name, accuracy) in scores {
        rows.push(("scores", name.replace('_', "-").replace("f1", "F1")));
        rows.push(("  test", percent(accuracy.test)));
        rows.push(("  validation", percent(accuracy.val)));
        rows.push(("  training", percent(accuracy.train)));
    }
    let (passes, took_passes) = (count(total.passes), seconds(total.pass_seconds));
    let word = if total.passes == 1 { "pass" } else { "passes" };
    let each = seconds(total.pass_seconds / datasets as f64);
    rows.push(("computing", format!("{took_passes} in {passes} {word}, {each} a dataset")));
    rows.push(("with reading", seconds(took)));
    if let Some(out) = &args.out {
        let files = if Format::of(out)? == Format::Npy { &out.join("*.npy") } else { out };
        rows.push(("predictions", files.display().to_string()));
    }
    print(&format!("\n{}", facts(&rows)))
}
