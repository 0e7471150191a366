//! `lapidary data partition`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ndarray::Array2;
use serde_json::{Value, json};

use super::working;
use crate::cli::defaults::chosen_model;
use crate::cli::failure::options_as_flags;
use crate::cli::model::ModelArgs;
use crate::cli::output::{align, count, facts, json_line, print, say, seconds, table};
use crate::cli::partitioner::{Partitioner, Weighings, training_vertices};
use crate::cli::train::DrawArgs;
use crate::dataset::{self, Arrays, Dataset};
use crate::error::{Error, Result};
use crate::forecast::{DryRun, Subject};
use crate::partition::hypergraph::{self, Source, Stochastic, Trial};
use crate::partition::{self, Assignment, BatchDraws, Estimate, Volume, fresh_run};
use crate::runtime::Devices;
use crate::train::Batches;

/// Text below the flags: the ways to choose the parts.
const WAYS: &str = "\
Ways to choose the parts:
  vertices         consecutive ranges with equal numbers of vertices
  edges            consecutive ranges with equal numbers of in-edges
  learned          consecutive ranges with equal predicted time of the model
  random           at random, with equal numbers of vertices
  metis            METIS: few edges between parts
  metis-vol        METIS: few rows sent between parts, if all edges had both directions
  hypergraph       Mt-KaHyPar: few rows sent forward
  hypergraph-both  Mt-KaHyPar: few rows sent forward and backward, on directed graphs
  stochastic       Mt-KaHyPar: few rows fetched for mini-batches, which it draws; needs --batch and
                   --fanout
  FILE             text with the part of each vertex, one number per line, or a .npy vector of
                   integers

With --batch and --fanout, the report has the rows that parts fetch for a mini-batch, if each part
has the seeds that it owns.

The flags of the model and --profile only matter with --by learned or --weights learned. The time is
then predicted for training this model. A dataset without features counts as one with one column.

DST holds the vertices part by part, their original ids in permutation.npy, and the ranges of the
parts in parts.json. `infer --out` writes rows in the order of DATA.

Example: train on four devices, each with one part:
  lapidary data partition cora cora-4 --parts 4 --by metis
  lapidary train --data cora-4 --devices cpu:4 --partition cora-4/parts.json";

#[derive(Debug, Args)]
#[command(after_help = WAYS)]
pub(crate) struct PartitionArgs {
    /// Dataset directory, builtin:planted or builtin:karate
    data: String,
    /// Dataset directory to write; must be new or empty
    dst: PathBuf,
    /// Number of parts
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    parts: u32,
    /// Way to choose the parts: vertices, edges, learned, random, metis, metis-vol, hypergraph, hypergraph-both,
    /// stochastic or FILE (see below)
    #[arg(long, value_name = "HOW")]
    by: String,
    /// Weight of a vertex: edges (its in-edges), rows (1), learned (its predicted time) or train (1 if it is labelled and
    /// of the training split). METIS and Mt-KaHyPar give all parts about the same weight; `imbalance` is the heaviest
    /// part's weight over the mean. METIS balances several, as in edges,rows,train
    #[arg(long, value_name = "WHAT", default_value_t)]
    weights: Weighings,
    /// Seed of the random numbers; the same seed gives the same parts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Speed of a device, for the predicted time: cpu or cuda:N (measured once), h200, h100, a100, l40s,
    /// rtx4090, p100 or a JSON file
    #[arg(long, value_name = "PROFILE", default_value = "cpu")]
    profile: String,
    /// Print one JSON line instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Number of seeds of a mini-batch of all parts, as in `train`
    #[arg(long, value_name = "N", requires = "fanout", help_heading = "Mini-batches")]
    batch: Option<usize>,
    #[command(flatten)]
    draws: DrawArgs,
    /// With --by stochastic: most pins of the hypergraph. A batch has one for each drawn edge, and for each vertex and
    /// layer
    #[arg(long, value_name = "N", default_value_t = 1 << 24, help_heading = "Mini-batches")]
    most_pins: u64,
}

/// The mini-batches of which the report counts the rows.
const FRESH_BATCHES: usize = 100;

/// The mini-batches of the flags.
struct Drawn {
    batches: Batches,
    size: NonZeroUsize,
    seeds: Vec<u32>,
}

impl PartitionArgs {
    /// Checks the flags, as far as that is possible without the data.
    fn check(&self) -> Result<Partitioner> {
        let by = Partitioner::parse("by", &self.by)?;
        if matches!(by, Partitioner::Stochastic) && self.batch.is_none() {
            return Err(by.needs_batches());
        }
        by.check_weights(&self.weights)?;
        self.draws.check()?;
        self.batch.map(batch_size).transpose()?;
        self.model.check()?;
        Dataset::check_destination(&self.dst)?;
        Ok(by)
    }

    /// Returns the mini-batches of the flags, if there are any.
    fn drawn(&self, data: &Dataset) -> Result<Option<Drawn>> {
        let Some(size) = self.batch.map(batch_size).transpose()? else { return Ok(None) };
        let Some(batches) = self.draws.batches(size.get(), data)? else { return Ok(None) };
        let seeds = training_vertices(data, "mini-batches are drawn around them")?;
        Ok(Some(Drawn { batches, size, seeds }))
    }
}

impl Drawn {
    fn draws<'a>(&'a self, data: &'a Dataset) -> BatchDraws<'a> {
        BatchDraws { graph: data.graph(), sampler: self.batches.sampler(), seeds: &self.seeds, size: self.size }
    }
}

fn batch_size(size: usize) -> Result<NonZeroUsize> {
    let wrong =
        || Error::Value { option: "batch", value: "0".into(), expected: "a batch has at least one seed".into() };
    NonZeroUsize::new(size).ok_or_else(wrong)
}

/// What is reported of a partition.
struct Report<'a> {
    args: &'a PartitionArgs,
    data: &'a Dataset,
    volume: Volume,
    /// One for each weight.
    imbalances: Vec<f64>,
    partition_seconds: f64,
    search: Option<Search>,
    fetched: Option<Fetched>,
}

/// What parts do for mini-batches.
struct Fetched {
    /// The rows that parts fetch for each of the fresh batches.
    rows: Vec<u64>,
    /// The seeds of an epoch that each part owns.
    part_seeds: Vec<u64>,
}

/// How the hypergraph of mini-batches was chosen.
struct Search {
    trials: Vec<Trial>,
    best: usize,
    is_limited: bool,
}

/// Writes a dataset whose parts are consecutive, and reports what they send to each other.
pub(super) fn run(args: &PartitionArgs) -> Result<()> {
    let by = args.check()?;
    let data = working("reading", &args.data, args.json, || args.model.load(&args.data))?;
    let drawn = args.drawn(&data)?;
    let draws = drawn.as_ref().map(|drawn| drawn.draws(&data));
    let start = Instant::now();
    let learns = by.is_learned() || args.weights.is_learned();
    let trained = if learns { with_features(&data)? } else { Cow::Borrowed(&data) };
    let width = trained.feature_width().max(1);
    let model = match learns {
        true => chosen_model(&args.model, (&args.data, width), &trained)?.0,
        false => args.model.clone(),
    };
    let model = model.model(width, trained.class_count().max(1))?;
    let dry_run = DryRun::new(&model, Subject::Data(&trained))
        .devices(Devices::sim(args.parts as usize))
        .dtype(args.model.dtype.float())
        .profile(&args.profile);
    let weights = args.weights.weights(&data, &dry_run)?;
    let (assignment, search) = working("partitioning", &args.data, args.json, || match (&by, &draws) {
        (Partitioner::Stochastic, Some(draws)) => {
            let parts = NonZeroU32::new(args.parts).expect("clap takes 1 and more");
            let found = hypergraph::stochastic(draws, parts, weights[0].each(), args.seed, args.most_pins)?;
            let Stochastic { assignment, trials, best, is_limited } = found;
            Ok((assignment, Some(Search { trials, best, is_limited })))
        }
        _ => Ok((by.assign(&data, &dry_run, &weights, args.seed)?, None)),
    })?;
    let partition_seconds = start.elapsed().as_secs_f64();
    let imbalances = weights.iter().map(|weight| assignment.imbalance(data.graph(), weight.each())).collect();
    let (volume, fetched) = working("counting rows of", &args.data, args.json, || {
        let fetched = draws.as_ref().map(|draws| Fetched::count(draws, &assignment, args.seed)).transpose()?;
        Ok((Volume::of(data.graph(), &assignment), fetched))
    })?;
    let start = Instant::now();
    let names_from = (!Dataset::is_builtin(&args.data)).then(|| Path::new(&args.data));
    working("writing", &args.dst.display().to_string(), args.json, || {
        Ok(partition::write(&data, &assignment, names_from, &args.dst)?)
    })?;
    if !args.json {
        say(format_args!("wrote {} in {}", args.dst.display(), seconds(start.elapsed().as_secs_f64())));
    }
    let report = Report { args, data: &data, volume, imbalances, partition_seconds, search, fetched };
    if args.json { json_line(&report.line()) } else { report.print() }
}

/// Returns the dataset, with a column of zeros if it has no features.
fn with_features(data: &Dataset) -> Result<Cow<'_, Dataset>> {
    if data.features().is_some() {
        return Ok(Cow::Borrowed(data));
    }
    let arrays = Arrays::new(data.graph().clone()).features(Array2::zeros((data.graph().vertex_count(), 1)));
    Ok(Cow::Owned(Dataset::from_arrays(arrays)?))
}

impl Fetched {
    fn count(draws: &BatchDraws<'_>, assignment: &Assignment, seed: u64) -> Result<Self> {
        let rows = draws.fetched_rows(assignment, fresh_run(seed), FRESH_BATCHES).map_err(dataset::Error::Batch)?;
        let mut part_seeds = vec![0; assignment.count().get() as usize];
        draws.seeds.iter().for_each(|&seed| part_seeds[assignment.part_of()[seed as usize] as usize] += 1);
        Ok(Self { rows, part_seeds })
    }
}

impl Report<'_> {
    /// Returns the largest of the imbalances.
    fn imbalance(&self) -> f64 {
        self.imbalances.iter().copied().fold(1.0, f64::max)
    }

    fn direction(&self) -> &'static str {
        if self.volume.largest().sends { "sends" } else { "receives" }
    }

    fn line(&self) -> Value {
        let Self { args, volume, .. } = self;
        let column = |of: fn(&partition::PartVolume) -> u64| volume.parts.iter().map(of).collect::<Vec<_>>();
        let largest = volume.largest();
        let imbalances: BTreeMap<&str, f64> = args.weights.names().zip(self.imbalances.iter().copied()).collect();
        let mut line = json!({
            "event": "partition",
            "dataset": self.data.name(),
            "written": args.dst,
            "parts": args.parts,
            "by": args.by,
            "weights": args.weights.to_string(),
            "seed": args.seed,
            "halo_rows": volume.halo_rows,
            "backward_rows": volume.backward_rows,
            "fold_rows": volume.fold_rows,
            "largest": largest.rows,
            "largest_part": largest.part,
            "largest_direction": self.direction(),
            "messages": volume.messages,
            "imbalance": self.imbalance(),
            "imbalances": imbalances,
            "seconds": self.partition_seconds,
            "part_vertices": column(|part| part.vertices),
            "part_edges": column(|part| part.edges),
            "part_sends": column(|part| part.sends),
            "part_receives": column(|part| part.receives),
        });
        if let Some(Fetched { rows, part_seeds }) = &self.fetched {
            let Estimate { mean, error } = Estimate::of(rows);
            line["part_seeds"] = json!(part_seeds);
            line["batch"] = args.batch.into();
            line["fanout"] = args.draws.fanout.clone().into();
            line["sampler"] = args.draws.sampler.clone().into();
            line["fetched_rows"] = json!({ "mean": mean, "error": error, "batches": rows });
        }
        if let Some(Search { trials, best, is_limited }) = &self.search {
            let estimate = |estimate: Estimate| json!({ "mean": estimate.mean, "error": estimate.error });
            let trial = |trial: &Trial| {
                json!({
                    "by": by(trial.source),
                    "batches": match trial.source { Source::Batches(batches) => batches, _ => 0 },
                    "pins": trial.pins,
                    "own": trial.own.map(estimate),
                    "held_out": estimate(trial.held_out),
                })
            };
            line["trials"] = trials.iter().map(trial).collect();
            line["best_trial"] = (*best).into();
            line["ended_at_most_pins"] = (*is_limited).into();
        }
        line
    }

    fn print(&self) -> Result<()> {
        let Self { args, volume, .. } = self;
        let largest = volume.largest();
        let imbalances = args.weights.names().zip(&self.imbalances);
        let imbalances: Vec<String> = imbalances.map(|(name, imbalance)| format!("{imbalance:.3} ({name})")).collect();
        let mut rows = vec![
            ("data", self.data.name().to_string()),
            ("parts", format!("{} by {}", count(args.parts.into()), args.by)),
            ("halo rows", format!("{} forward", count(volume.halo_rows))),
            ("", format!("{} backward, or {} by fold", count(volume.backward_rows), count(volume.fold_rows))),
            ("largest", format!("{}, which part {} {}", count(largest.rows), largest.part, self.direction())),
            ("messages", count(volume.messages)),
            ("imbalance", imbalances.join(", ")),
            ("partition", seconds(self.partition_seconds)),
        ];
        if let Some(fetched) = &self.fetched {
            let of = format!("rows per batch ({} fresh batches)", fetched.rows.len());
            rows.push(("fetched", format!("{} {of}", rounded(Estimate::of(&fetched.rows)))));
            let (most, sum) = (fetched.part_seeds.iter().max(), fetched.part_seeds.iter().sum::<u64>());
            let mean = sum as f64 / fetched.part_seeds.len() as f64;
            rows.push(("seeds", format!("{:.3} times the mean, at most", *most.unwrap_or(&0) as f64 / mean)));
        }
        print(&facts(&rows))?;
        if let Some(search) = &self.search {
            search.print()?;
        }
        let mut table = table(["part", "vertices", "edges", "rows sent", "rows received"]);
        for (i, part) in volume.parts.iter().enumerate() {
            let numbers = [part.vertices, part.edges, part.sends, part.receives].map(count);
            table.add_row([i.to_string()].into_iter().chain(numbers));
        }
        print(&format!("\n{}", align(table)))
    }
}

impl Search {
    /// Prints the hypergraphs that were compared.
    fn print(&self) -> Result<()> {
        let mut table = table(["parts of", "pins", "fetched for these", "for batches held out"]);
        for (i, trial) in self.trials.iter().enumerate() {
            let name = match trial.source {
                Source::Batches(batches) => format!("graph and {} batches", count(batches as u64)),
                source => by(source).into(),
            };
            let name = if i == self.best { format!("{name} (kept)") } else { name };
            let pins = if trial.pins == 0 { "-".into() } else { count(trial.pins) };
            let own = trial.own.map_or_else(|| "-".into(), rounded);
            table.add_row([name, pins, own, rounded(trial.held_out)]);
        }
        print(&format!("\n{}", align(table)))?;
        if !matches!(self.trials[self.best].source, Source::Batches(_)) {
            print("parts that do not depend on drawn batches fetch fewest rows for batches held out")?;
        }
        if self.is_limited {
            print(&options_as_flags(
                "more batches have more pins than option `most_pins`; a larger number may find better parts",
            ))?;
        }
        Ok(())
    }
}

/// Returns the name of the way that makes parts from this.
fn by(source: Source) -> &'static str {
    match source {
        Source::Graph => "hypergraph",
        Source::Metis => "metis",
        Source::Batches(_) => "stochastic",
    }
}

/// Returns a mean with its interval.
fn rounded(Estimate { mean, error }: Estimate) -> String {
    // Small numbers differ after the point.
    let text = |number: f64| if mean < 100.0 { format!("{number:.1}") } else { count(number.round() as u64) };
    if error.is_nan() { text(mean) } else { format!("{} ± {}", text(mean), text(error)) }
}
