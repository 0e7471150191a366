//! `lapidary data partition`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lapidary_cost_model::RangeCost;
use lapidary_planner::partition::{Speeds, Strategy, split};
use serde_json::json;

use super::working;
use crate::cli::output::{align, count, facts, json_line, print, say, seconds, table};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::partition::metis::{self, Objective};
use crate::partition::{self, Assignment, VertexWeight, Volume};

/// Text below the flags: the ways to choose the parts.
const WAYS: &str = "\
Ways to choose the parts:
  vertices   consecutive ranges with equal numbers of vertices
  edges      consecutive ranges with equal numbers of in-edges
  random     at random, with equal numbers of vertices
  metis      METIS: few edges between parts
  metis-vol  METIS: few rows sent between parts
  FILE       text with the part of each vertex, one number per line, or a .npy vector of integers

DST holds the vertices part by part, their original ids in permutation.npy, and the ranges of the
parts in parts.json. `infer --out` writes rows in the order of DATA.

Example: train on four devices, each with one part:
  lapidary data partition cora cora-4 --parts 4 --by metis
  lapidary train --data cora-4 --devices cpu:4 --partition cora-4/parts.json";

/// The names of the ways, for messages.
const NAMES: &str = "vertices, edges, random, metis, metis-vol or the name of a file";

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
    /// Way to choose the parts: vertices, edges, random, metis, metis-vol or FILE (see below)
    #[arg(long, value_name = "HOW")]
    by: String,
    /// Weight of a vertex, of which METIS gives all parts the same, and which `imbalance` compares: rows (1) or edges (its
    /// in-edges)
    #[arg(long, value_name = "WHAT", default_value_t)]
    weights: VertexWeight,
    /// Seed of random, metis and metis-vol; the same seed gives the same parts
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON line instead of tables
    #[arg(long)]
    json: bool,
}

/// A way to choose the parts.
enum By {
    Ranges(Strategy),
    Random,
    Metis(Objective),
    File(PathBuf),
}

/// Writes a dataset whose parts are consecutive, and reports what they send to each other.
pub(super) fn run(args: &PartitionArgs) -> Result<()> {
    let by = args.by()?;
    Dataset::check_destination(&args.dst)?;
    let data = working("reading", &args.data, args.json, || Ok(Dataset::load(&args.data)?))?;
    let start = Instant::now();
    let assignment = working("partitioning", &args.data, args.json, || args.assign(&by, &data))?;
    let partition_seconds = start.elapsed().as_secs_f64();
    let volume = working("counting rows of", &args.data, args.json, || Ok(Volume::of(data.graph(), &assignment)))?;
    let start = Instant::now();
    let names_from = (!args.data.starts_with("builtin:")).then(|| Path::new(&args.data));
    working("writing", &args.dst.display().to_string(), args.json, || {
        Ok(partition::write(&data, &assignment, names_from, &args.dst)?)
    })?;
    if !args.json {
        say(format_args!("wrote {} in {}", args.dst.display(), seconds(start.elapsed().as_secs_f64())));
    }
    report(args, &data, &volume, partition_seconds)
}

impl PartitionArgs {
    /// Parses `--by`. A file has to exist.
    fn by(&self) -> Result<By> {
        let wrong = |expected: String| Error::Value { option: "by", value: self.by.clone(), expected };
        Ok(match self.by.as_str() {
            "vertices" => By::Ranges(Strategy::Vertices),
            "edges" => By::Ranges(Strategy::Edges),
            "learned" => {
                let why = "learned ranges depend on the model, so `train --partition learned` makes them";
                return Err(wrong(format!("{why}; write {NAMES}")));
            }
            "hypergraph" => {
                let why = "there is no hypergraph partitioner in this build; write the parts of one to a file";
                return Err(wrong(format!("{why}, and give its name: {NAMES}")));
            }
            "random" => By::Random,
            "metis" => By::Metis(Objective::Cut),
            "metis-vol" => By::Metis(Objective::Volume),
            file if matches!(Path::new(file).try_exists(), Ok(false)) => {
                return Err(wrong(format!("write {NAMES}")));
            }
            file => By::File(file.into()),
        })
    }

    /// Returns the part of each vertex.
    fn assign(&self, by: &By, data: &Dataset) -> Result<Assignment> {
        let (graph, vertices) = (data.graph(), data.graph().vertex_count());
        let parts = NonZeroU32::new(self.parts).expect("clap asks for at least one part");
        let ranges = |cost: RangeCost<'_>| {
            let devices = NonZeroUsize::try_from(parts).expect("a usize has 32 bits or more");
            Assignment::of_ranges(&split(&cost, &Speeds::equal(devices)))
        };
        Ok(match by {
            By::Ranges(Strategy::Vertices) => ranges(RangeCost::vertices(vertices)),
            By::Ranges(_) => ranges(RangeCost::edges(graph.indptr())),
            By::Random => Assignment::random(vertices, parts, self.seed),
            By::Metis(objective) => metis::assign(graph, parts, *objective, self.weights, self.seed)?,
            By::File(path) => Assignment::read(path, vertices, parts)?,
        })
    }
}

fn report(args: &PartitionArgs, data: &Dataset, volume: &Volume, partition_seconds: f64) -> Result<()> {
    let (largest, imbalance) = (volume.largest(), volume.imbalance(args.weights));
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
