//! `lapidary data partition`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ndarray::Array2;
use serde_json::json;

use super::working;
use crate::cli::model::ModelArgs;
use crate::cli::output::{align, count, facts, json_line, print, say, seconds, table};
use crate::cli::partitioner::{Partitioner, Weighing};
use crate::dataset::{Arrays, Dataset};
use crate::error::Result;
use crate::forecast::{DryRun, Subject};
use crate::partition::{self, Volume};
use crate::runtime::Devices;

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
  FILE             text with the part of each vertex, one number per line, or a .npy vector of
                   integers

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
    /// Way to choose the parts: vertices, edges, learned, random, metis, metis-vol, hypergraph, hypergraph-both or FILE
    /// (see below)
    #[arg(long, value_name = "HOW")]
    by: String,
    /// Weight of a vertex: edges (its in-edges), rows (1) or learned (its predicted time). METIS and Mt-KaHyPar give
    /// all parts about the same weight; `imbalance` is the heaviest part's weight over the mean
    #[arg(long, value_name = "WHAT", default_value_t)]
    weights: Weighing,
    /// Seed of the random numbers; the same seed gives the same parts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Speed of a device, for the predicted time: cpu or cuda:N (measured once), h200, a100, p100 or a JSON file
    #[arg(long, value_name = "PROFILE", default_value = "cpu")]
    profile: String,
    /// Print one JSON line instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Writes a dataset whose parts are consecutive, and reports what they send to each other.
pub(super) fn run(args: &PartitionArgs) -> Result<()> {
    let by = Partitioner::parse("by", &args.by)?;
    args.model.check()?;
    Dataset::check_destination(&args.dst)?;
    let data = working("reading", &args.data, args.json, || Ok(Dataset::load(&args.data)?))?;
    let start = Instant::now();
    let learns = by.is_learned() || args.weights == Weighing::Learned;
    let trained = if learns { with_features(&data)? } else { Cow::Borrowed(&data) };
    let model = args.model.model(trained.feature_width().max(1), trained.class_count().max(1))?;
    let dry_run = DryRun::new(&model, Subject::Data(&trained))
        .devices(Devices::sim(args.parts as usize))
        .dtype(args.model.dtype.float())
        .profile(&args.profile);
    let weights = args.weights.weights(&dry_run)?;
    let assignment =
        working("partitioning", &args.data, args.json, || by.assign(&data, &dry_run, weights.each(), args.seed))?;
    let partition_seconds = start.elapsed().as_secs_f64();
    let imbalance = assignment.imbalance(data.graph(), weights.each());
    let volume = working("counting rows of", &args.data, args.json, || Ok(Volume::of(data.graph(), &assignment)))?;
    let start = Instant::now();
    let names_from = (!args.data.starts_with("builtin:")).then(|| Path::new(&args.data));
    working("writing", &args.dst.display().to_string(), args.json, || {
        Ok(partition::write(&data, &assignment, names_from, &args.dst)?)
    })?;
    if !args.json {
        say(format_args!("wrote {} in {}", args.dst.display(), seconds(start.elapsed().as_secs_f64())));
    }
    report(args, &data, &volume, imbalance, partition_seconds)
}

/// Returns the dataset, with a column of zeros if it has no features.
fn with_features(data: &Dataset) -> Result<Cow<'_, Dataset>> {
    if data.features().is_some() {
        return Ok(Cow::Borrowed(data));
    }
    let arrays = Arrays::new(data.graph().clone()).features(Array2::zeros((data.graph().vertex_count(), 1)));
    Ok(Cow::Owned(Dataset::from_arrays(arrays)?))
}

fn report(args: &PartitionArgs, data: &Dataset, volume: &Volume, imbalance: f64, partition_seconds: f64) -> Result<()> {
    let largest = volume.largest();
    let direction = if largest.sends { "sends" } else { "receives" };
    if args.json {
        let column = |of: fn(&partition::PartVolume) -> u64| volume.parts.iter().map(of).collect::<Vec<_>>();
        return json_line(&json!({
            "event": "partition",
            "dataset": data.name(),
            "written": args.dst,
            "parts": args.parts,
            "by": args.by,
            "weights": args.weights.name(),
            "seed": args.seed,
            "halo_rows": volume.halo_rows,
            "backward_rows": volume.backward_rows,
            "fold_rows": volume.fold_rows,
            "largest": largest.rows,
            "largest_part": largest.part,
            "largest_direction": direction,
            "messages": volume.messages,
            "imbalance": imbalance,
            "seconds": partition_seconds,
            "part_vertices": column(|part| part.vertices),
            "part_edges": column(|part| part.edges),
            "part_sends": column(|part| part.sends),
            "part_receives": column(|part| part.receives),
        }));
    }
    print(&facts(&[
        ("data", data.name().to_string()),
        ("parts", format!("{} by {}", count(args.parts.into()), args.by)),
        ("halo rows", format!("{} forward", count(volume.halo_rows))),
        ("", format!("{} backward, or {} by fold", count(volume.backward_rows), count(volume.fold_rows))),
        ("largest", format!("{}, which part {} {direction}", count(largest.rows), largest.part)),
        ("messages", count(volume.messages)),
        ("imbalance", format!("{imbalance:.3} ({})", args.weights)),
        ("partition", seconds(partition_seconds)),
    ]))?;
    let mut table = table(["part", "vertices", "edges", "rows sent", "rows received"]);
    for (i, part) in volume.parts.iter().enumerate() {
        let numbers = [part.vertices, part.edges, part.sends, part.receives].map(count);
        table.add_row([i.to_string()].into_iter().chain(numbers));
    }
    print(&format!("\n{}", align(table)))
}
