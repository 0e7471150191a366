//! `lapidary infer`.

#[cfg(feature = "parquet")]
mod columns_file;
mod many;
mod predictions;
mod table_file;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use self::predictions::{Format, Names, Predicted, Scores, TABLES, Table, unwritten, write_logits};
use super::DeviceArgs;
use super::metrics::{Measured, MetricArgs};
use super::model::{DtypeArg, EdgeWeightsArg};
use super::output::{align, count, facts, json_line, percent, print, seconds, table};
use super::reorder::{self, ReorderArgs, reordered};
use crate::dataset::{Dataset, FeatureNorm, MadeFeatures};
use crate::error::{Error, Result};
use crate::infer::{Prediction, Predictor};
use crate::model::{LabelKind, Norm};
use crate::output::OutputFile;
use crate::plan::{KeptByNumber, Reorder, RunGathers};
use crate::ranks::Ranks;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("from").required(true).args(["checkpoint", "weights"]))]
pub(super) struct InferArgs {
    /// Folder of `train --checkpoint` (uses the best epoch, otherwise the newest), or one checkpoint in it
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Weights: a safetensors file with PyG's parameter names
    #[arg(long, value_name = "FILE", requires = "model")]
    weights: Option<PathBuf>,
    /// Model of the weights: gcn, gin, commnet, resgcn, sage, graphconv, gat or gatv2
    #[arg(long, conflicts_with = "checkpoint")]
    model: Option<String>,
    /// With --weights: weights of neighbours, sym, mean or sum [default: the model's own]
    #[arg(long, conflicts_with = "checkpoint")]
    norm: Option<String>,
    /// Dataset directory, builtin:planted or builtin:karate; may be repeated (small graphs then run together)
    #[arg(long, value_name = "DATA", required = true)]
    data: Vec<String>,
    /// Feature normalisation: row (divide each row by its sum) or none [default: the checkpoint's; with --weights, the
    /// dataset's]
    #[arg(long, value_name = "NORM")]
    feature_norm: Option<String>,
    /// Features made from the graph, in place of the dataset's: degree, constant, onehot, random or spectral [default: as in
    /// training, for data without features]
    #[arg(long, value_name = "KIND")]
    make_features: Option<String>,
    /// Weights of edges: use them as in training, or ignore them
    #[arg(long, value_name = "WHAT", default_value = "use", hide_possible_values = true)]
    edge_weights: EdgeWeightsArg,
    /// Storage of vertex matrices: f32 or bf16 [default: as in training; with --weights, f32]
    #[arg(long, value_name = "DTYPE", hide_possible_values = true)]
    dtype: Option<DtypeArg>,
    /// Write the predictions to FILE: a table of vertex, prediction and probability (.csv or .tsv; .parquet, .arrow or
    /// .feather if built with the feature parquet), or the logits as f32 of shape [vertices, classes] (.npy). Vertices have
    /// their original names and order. With several --data: to one table FILE, or as .npy files named after DATA to a folder
    /// FILE
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// In a table, a column for each class: none, probabilities or logits
    #[arg(long, value_name = "WHAT", default_value = "none", hide_possible_values = true, requires = "out")]
    scores: Scores,
    #[command(flatten)]
    metrics: MetricArgs,
    /// Print JSON lines instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reorder: ReorderArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

impl InferArgs {
    /// Reads a dataset, and makes its features if they are to be made.
    fn load(&self, predictor: &Predictor, name: &str) -> Result<Dataset> {
        let data = Dataset::load(name)?;
        Ok(match self.made_features()? {
            Some(kind) => data.with_made_features(kind),
            None => predictor.with_features(data),
        })
    }

    fn made_features(&self) -> Result<Option<MadeFeatures>> {
        Ok(self.make_features.as_deref().map(str::parse).transpose()?)
    }
}

/// Predicts, writes the logits if requested, and prints a report.
pub(super) fn run(args: &InferArgs, ranks: &Ranks) -> Result<()> {
    let options = args.device.options()?.ranks(ranks.clone());
    let kept = KeptByNumber { ranges: options.partition.has_ranges(), ..KeptByNumber::default() };
    let (reorder, profile) = (args.reorder.check(kept)?, options.devices.profile());
    let mut predictor = match (&args.checkpoint, &args.weights, &args.model) {
        (Some(dir), _, _) => Predictor::open(dir)?,
        (None, Some(file), Some(model)) => {
            let norm = args.norm.as_deref().map(str::parse::<Norm>).transpose()?;
            Predictor::from_weights(file, model, norm)?
        }
        _ => unreachable!("clap asks for --checkpoint, or --weights with --model"),
    };
    predictor = predictor.options(options);
    if let Some(norm) = &args.feature_norm {
        predictor = predictor.feature_norm(norm.parse::<FeatureNorm>()?);
    }
    args.made_features()?;
    if args.edge_weights == EdgeWeightsArg::Ignore {
        predictor = predictor.edge_weights(false);
    }
    if let Some(dtype) = args.dtype {
        predictor = predictor.dtype(dtype.float());
    }
    if !args.json {
        args.device.say_how_matrices_are_multiplied(predictor.matmul());
        args.device.say_how_gradients_are_added(None)?;
    }
    let format = args.out.as_deref().map(Format::of).transpose()?;
    if args.scores != Scores::None && format == Some(Format::Npy) {
        return Err(Error::Value {
            option: "out",
            value: args.out.as_deref().unwrap_or_else(|| Path::new("")).display().to_string(),
            expected: format!("--scores adds columns to a table; end the name in {TABLES}"),
        });
    }
    let [spec] = &args.data[..] else {
        if reorder != Reorder::default() {
            return Err(args
                .reorder
                .wrong("small graphs fit into the caches in any order; with several --data, leave it out"));
        }
        if !args.metrics.metric.is_empty() {
            return Err(Error::Value {
                option: "data",
                value: args.data[1].clone(),
                expected: "--metric measures one dataset, so give --data once".into(),
            });
        }
        return many::run(args, format, &predictor, ranks);
    };
    // Opens the file first, so that a file that cannot be written is an error before the work.
    let out = args.out.as_deref().filter(|_| ranks.is_first());
    let out = out.zip(format).map(|(path, format)| Out::create(path, format, args.scores)).transpose()?;
    let data = args.load(&predictor, spec)?;
    let names = out.as_ref().map(|_| Names::open(spec, &data)).transpose()?;
    let gathers = RunGathers::of_inference(predictor.model(), &profile);
    let data = reordered(reorder, data, &gathers, ranks, args.json)?;
    ranks.agree_on(&data)?;
    let prediction = predictor.run(&data)?;
    if let Some((out, names)) = out.zip(names) {
        out.write(&predictor, &Predicted { spec, data: &data, names: &names, logits: prediction.logits.view() })?;
    }
    let weighted = predictor.uses_edge_weights(&data)?;
    let measured = Measured::of(&args.metrics.metric, &data, &predictor, prediction.logits.view());
    summarise(args, &data, &prediction, weighted, &measured)
}

/// The file of the predictions for one dataset.
enum Out<'a> {
    Logits(&'a Path, OutputFile),
    Table(Table),
}

impl<'a> Out<'a> {
    fn create(path: &'a Path, format: Format, scores: Scores) -> Result<Self> {
        Ok(match format {
            Format::Npy => Self::Logits(path, OutputFile::create(path).map_err(unwritten(path))?),
            Format::Table(format) => Self::Table(Table::create(path, format, scores, false)?),
        })
    }

    fn write(self, predictor: &Predictor, predicted: &Predicted<'_>) -> Result<()> {
        match self {
            Self::Logits(path, file) => {
                write_logits(file, predicted.logits, predicted.data.permutation()).map_err(unwritten(path))
            }
            Self::Table(mut table) => {
                table.write(predictor, predicted)?;
                table.finish()
            }
        }
    }
}

/// Returns the name of the score of a kind of labels, as in JSON.
fn score_name(labels: LabelKind) -> &'static str {
    match labels {
        LabelKind::Class => "accuracy",
        LabelKind::Multi => "micro_f1",
    }
}

fn summarise(
    args: &InferArgs,
    data: &Dataset,
    prediction: &Prediction,
    weighted: bool,
    measured: &Measured,
) -> Result<()> {
    let accuracy = prediction.accuracy;
    let score = score_name(prediction.labels);
    if args.json {
        let mut line = json!({
            "event": "summary",
            "dataset": data.name(),
            "edge_weights": weighted,
            "reorder": data.order(),
            format!("test_{score}"): accuracy.test,
            format!("val_{score}"): accuracy.val,
            format!("train_{score}"): accuracy.train,
            "seconds": prediction.seconds,
            "parts": prediction.parts,
            "part_seconds": prediction.part_seconds,
        });
        measured.add_to(&mut line);
        return json_line(&line);
    }
    let mut rows = vec![
        ("data", data.name().to_string()),
        ("vertices", count(prediction.logits.nrows() as u64)),
        ("classes", count(prediction.logits.ncols() as u64)),
        ("scores", score.replace('_', "-").replace("f1", "F1")),
        ("  test", percent(accuracy.test)),
        ("  validation", percent(accuracy.val)),
        ("  training", percent(accuracy.train)),
    ];
    rows.extend(measured.rows());
    rows.push(("forward pass", seconds(prediction.seconds)));
    if data.edge_weights().is_some() {
        rows.push(("edge weights", if weighted { "used" } else { "not used" }.to_string()));
    }
    rows.extend(reorder::row(data));
    if let Some(path) = &args.out {
        rows.push(("predictions", path.display().to_string()));
    }
    print(&facts(&rows))?;
    measured.print_confusion()?;
    if prediction.parts.len() > 1 {
        let mut table = table(["device", "vertices", "kernels"]);
        for (i, ([start, end], took)) in prediction.parts.iter().zip(&prediction.part_seconds).enumerate() {
            table.add_row([i.to_string(), format!("{start}..{end}"), seconds(*took)]);
        }
        print(&format!("\n{}", align(table)))?;
    }
    Ok(())
}
