//! `lapidary data`: inspect, import, partition and generate datasets.

mod info;
mod partition;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use serde_json::json;

use super::failure::options_as_flags;
use super::output::{byte_bar, count, facts, json_line, print, say, seconds, spinner};
use crate::dataset::generate::{
    BterOptions, DegreeProfile, PlantedOptions, RmatOptions, SplitSizes, bter, planted, rmat,
};
use crate::dataset::import::{
    self, EdgeWeights, Fate, Format, Ids, Join, Missing, Options, Progress, Report, TableColumns,
};
use crate::dataset::{Dataset, Info, RandomSplit};
use crate::error::Result;
use info::{histogram, info_rows};
use partition::PartitionArgs;

/// Text below the flags of `data import`: the kinds of files.
const KINDS: &str = "\
Kinds, and the default treatment of their edges (as in PyTorch Geometric, if it reads the same
files):
  planetoid      FOLDER/ind.NAME: undirected, repeated edges dropped
  npz            FILE with indptr, indices (of in-edges) or edge_index; x, y, train or train_mask:
                 as it is; or one of the next 2
  gnn-benchmark  FILE with adj_data, attr_data, labels: undirected, repeated edges and loops dropped
  heterophilous  FILE with edges, node_features, train_masks: undirected, repeated edges dropped
  reddit         FOLDER with DGL's reddit_graph.npz and reddit_data.npz: repeated edges dropped
  graphsaint     FOLDER with adj_full.npz, feats.npy, class_map.json, role.json: as it is
  ppi            FOLDER with train_graph.json, train_feats.npy, ...: undirected unless the file says
                 otherwise, repeated edges and loops dropped
  ogb            FOLDER with raw/edge.csv.gz, ..., split/: directed as it is; reverses are added for
                 products and proteins
  edges          FILE of edges u v, one per line, or CSV, .gz or not, any ids or names: directed,
                 repeated edges dropped; Parquet or Arrow if built with the feature parquet
  mtx            Matrix Market FILE: undirected if its header says symmetric, repeated edges dropped
  lux            PREFIX or PREFIX.lux, with PREFIX.feats.bin or .csv, .label, .mask: as it is

Ids other than 0, 1, ... go to vertex_ids.npy, names to vertex_names.txt, in the dataset directory.

Example: from names to a trained model (v.csv has the titles name, features and label):
  lapidary data import edges graph.csv DST --vertices v.csv --split 0.6,0.2,0.2
  lapidary train --data DST";

#[derive(Debug, Subcommand)]
pub(super) enum DataVerb {
    /// Print the contents of a dataset
    Info {
        /// Dataset directory, builtin:planted or builtin:karate
        data: String,
        /// Print one JSON line instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Convert files of other programs to a dataset directory
    Import(Box<ImportArgs>),
    /// Relabel the vertices so that parts are consecutive, and count the rows that parts exchange
    Partition(Box<PartitionArgs>),
    /// Generate a random dataset
    #[command(subcommand)]
    Generate(GenerateVerb),
}

#[derive(Debug, Args)]
#[command(after_help = KINDS)]
pub(super) struct ImportArgs {
    /// Kind of the files (see below)
    kind: String,
    /// File, folder or prefix to read
    src: PathBuf,
    /// Dataset directory to write; must be new or empty
    dst: PathBuf,
    /// Repeated edges: keep or drop [default: see below]
    #[arg(long, value_name = "WHAT")]
    duplicates: Option<Fate>,
    /// Edges from a vertex to itself: keep or drop [default: see below]
    #[arg(long, value_name = "WHAT")]
    self_loops: Option<Fate>,
    /// Isolated vertices (no edge to or from another vertex): keep, or drop and renumber [default: keep]
    #[arg(long, value_name = "WHAT")]
    isolated: Option<Fate>,
    /// Add the reverse of every edge, true or false; repeated edges are then dropped by default [default: see below]
    #[arg(long, alias = "symmetrize", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    symmetrise: Option<bool>,
    /// Edge weights: keep, drop, or the title or number (from 1) of a column, or the name of an array [default: keep
    /// values that are plainly weights]
    #[arg(long, value_name = "keep|drop|COLUMN")]
    edge_weights: Option<String>,
    /// Weight of a repeated edge, reverses included: sum, mean or max of its weights [default: sum for one direction, then
    /// the mean of both directions if both are listed]
    #[arg(long, value_name = "HOW")]
    join: Option<Join>,
    /// planetoid: name of the dataset, if the folder holds several
    #[arg(long)]
    name: Option<String>,
    /// Shares of train, val and test to draw, as in 0.6,0.2,0.2; heterophilous, npz: or the number N of a split in the
    /// file [default: 0]
    #[arg(long, value_name = "SHARES|N")]
    split: Option<String>,
    /// With shares: split each class separately
    #[arg(long, requires = "split")]
    stratified: bool,
    /// With shares: seed [default: 0]
    #[arg(long, value_name = "N", requires = "split")]
    split_seed: Option<u64>,
    /// edges: whether the first line after comments holds column titles [default: guessed, and printed]
    #[arg(long, value_name = "yes|no", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    header: Option<bool>,
    /// edges: table with one row per vertex: features, class, split (CSV or TSV with titles, .gz or not; Parquet
    /// or Arrow as for edges)
    #[arg(long, value_name = "FILE")]
    vertices: Option<PathBuf>,
    /// With --vertices: column of the vertex names [default: the first]
    #[arg(long, value_name = "TITLE")]
    key: Option<String>,
    /// With --vertices: column of the classes, names or numbers [default: label, if there is one]
    #[arg(long, value_name = "TITLE")]
    label_column: Option<String>,
    /// With --vertices: columns of the features [default: all others that hold numbers]
    #[arg(long, value_name = "TITLE,..", value_delimiter = ',')]
    feature_columns: Option<Vec<String>>,
    /// Vertices without a row, and rows without an edge: error, drop (both), or keep (such rows, as vertices without
    /// edges)
    #[arg(long, value_name = "WHAT", default_value = "error")]
    missing: Missing,
    /// edges: text with one vertex name per line, in the order of the rows of --features, --labels and masks
    #[arg(long, value_name = "FILE")]
    vertex_order: Option<PathBuf>,
    /// edges, mtx: features, [vertices, width]
    #[arg(long, value_name = "FILE.npy")]
    features: Option<PathBuf>,
    /// edges, mtx: labels, [vertices] or [vertices, classes]
    #[arg(long, value_name = "FILE.npy")]
    labels: Option<PathBuf>,
    /// edges, mtx: training vertices, as ids or a mask
    #[arg(long, value_name = "FILE.npy")]
    train: Option<PathBuf>,
    /// edges, mtx: validation vertices
    #[arg(long, value_name = "FILE.npy")]
    val: Option<PathBuf>,
    /// edges, mtx: test vertices
    #[arg(long, value_name = "FILE.npy")]
    test: Option<PathBuf>,
    /// Print one JSON line instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum GenerateVerb {
    /// Planted partition: edges mostly within classes, skewed degrees, features around class centres
    Planted(PlantedArgs),
    /// R-MAT: recursively skewed, with shuffled ids; without features and labels by default
    Rmat(RmatArgs),
    /// Block two-level Erdős–Rényi: degrees and clustering of another graph, at any size
    Bter(BterArgs),
}

#[derive(Debug, Args)]
pub(super) struct PlantedArgs {
    #[command(flatten)]
    common: GenerateArgs,
    /// Number of vertices
    #[arg(long, value_name = "N", default_value_t = PlantedOptions::default().vertices)]
    vertices: usize,
    /// Number of classes
    #[arg(long, value_name = "N", default_value_t = PlantedOptions::default().classes)]
    classes: usize,
    /// Mean number of neighbours
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().mean_degree)]
    degree: f64,
    /// Exponent F of the degree distribution d^-F
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().exponent)]
    exponent: f64,
    /// Greatest expected degree
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().max_degree)]
    max_degree: f64,
    /// Share of edges that stay inside a class
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().inside)]
    inside: f64,
    /// Number of features
    #[arg(long, value_name = "N", default_value_t = PlantedOptions::default().feature_width)]
    features: usize,
    /// Standard deviation of the class centres; that of the noise is 1
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().signal)]
    signal: f64,
    /// Training vertices of each class
    #[arg(long, value_name = "N", default_value_t = 20)]
    train_per_class: usize,
    /// Validation vertices
    #[arg(long, value_name = "N", default_value_t = 500)]
    val: usize,
    /// Test vertices
    #[arg(long, value_name = "N", default_value_t = 1000)]
    test: usize,
}

#[derive(Debug, Args)]
pub(super) struct RmatArgs {
    #[command(flatten)]
    common: GenerateArgs,
    /// Number of vertices
    #[arg(long, value_name = "N", default_value_t = RmatOptions::default().vertices)]
    vertices: usize,
    /// Edges drawn per vertex, before loops and repeated ones are dropped
    #[arg(long, value_name = "F", default_value_t = RmatOptions::default().edge_factor)]
    edge_factor: f64,
    /// Keep the direction of edges
    #[arg(long)]
    directed: bool,
    /// Number of features
    #[arg(long, value_name = "N", default_value_t = 0)]
    features: usize,
    /// Number of classes, drawn independently of the edges
    #[arg(long, value_name = "N", default_value_t = 0)]
    classes: usize,
}

#[derive(Debug, Args)]
pub(super) struct BterArgs {
    #[command(flatten)]
    common: GenerateArgs,
    /// Undirected dataset to imitate: a directory, builtin:karate or builtin:planted
    #[arg(long, value_name = "DATA", required_unless_present = "degrees", conflicts_with = "degrees")]
    like: Option<String>,
    /// Text with one degree per line, the number of vertices with it, and their clustering
    #[arg(long, value_name = "FILE")]
    degrees: Option<PathBuf>,
    /// Factor for the number of vertices of each degree
    #[arg(long, value_name = "F", default_value_t = 1.0)]
    scale: f64,
    /// Number of features
    #[arg(long, value_name = "N", default_value_t = 0)]
    features: usize,
    /// Number of classes, drawn independently of the edges
    #[arg(long, value_name = "N", default_value_t = 0)]
    classes: usize,
}

#[derive(Debug, Args)]
struct GenerateArgs {
    /// Dataset directory to write; must be new or empty
    dst: PathBuf,
    /// Seed; the same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON line instead of a table
    #[arg(long)]
    json: bool,
}

/// Inspects, imports, partitions or generates a dataset.
pub(super) fn run(verb: &DataVerb) -> Result<()> {
    match verb {
        DataVerb::Info { data, json } => {
            let info = working("looking at", data, *json, || Ok(Info::of(&Dataset::load(data)?)))?;
            if *json {
                return print_json(&info, None, None);
            }
            print(&facts(&info_rows(&info)))?;
            print(&histogram(&info))
        }
        DataVerb::Import(args) => import_from(args),
        DataVerb::Partition(args) => partition::run(args),
        DataVerb::Generate(GenerateVerb::Planted(args)) => {
            let common = &args.common;
            let data = working("generating", "a planted partition", common.json, || Ok(planted(&args.options())?))?;
            write(&data, &common.dst, common.json)
        }
        DataVerb::Generate(GenerateVerb::Rmat(args)) => {
            let common = &args.common;
            let data = working("generating", "an R-MAT graph", common.json, || Ok(rmat(&args.options())?))?;
            write(&data, &common.dst, common.json)
        }
        DataVerb::Generate(GenerateVerb::Bter(args)) => {
            let common = &args.common;
            let data = working("generating", "a BTER graph", common.json, || Ok(bter(&args.options()?)?))?;
            write(&data, &common.dst, common.json)
        }
    }
}

fn import_from(args: &ImportArgs) -> Result<()> {
    let kind: Format = args.kind.parse()?;
    // An import can take minutes, so an invalid destination is reported before it.
    Dataset::check_destination(&args.dst)?;
    let bar = byte_bar(format!("importing {}", args.src.display()), args.json);
    let watch = |progress: Progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    };
    let beside = args.dst.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let (split, random_split) = args.split()?;
    let options = Options {
        name: args.name.as_deref(),
        duplicates: args.duplicates,
        self_loops: args.self_loops,
        isolated: args.isolated,
        symmetrise: args.symmetrise,
        edge_weights: args.edge_weights.as_deref().map_or(EdgeWeights::Guess, EdgeWeights::parse),
        join: args.join,
        split,
        random_split,
        header: args.header,
        vertices: args.vertices.as_deref(),
        columns: TableColumns {
            key: args.key.as_deref(),
            label: args.label_column.as_deref(),
            features: args.feature_columns.as_deref(),
        },
        vertex_order: args.vertex_order.as_deref(),
        missing: args.missing,
        features: args.features.as_deref(),
        labels: args.labels.as_deref(),
        splits: [args.train.as_deref(), args.val.as_deref(), args.test.as_deref()],
        scratch: beside.filter(|parent| parent.is_dir()),
        watch: Some(&watch),
    };
    let start = Instant::now();
    let imported = import::import(kind, &args.src, &options);
    bar.finish_and_clear();
    let imported = imported?;
    let import_seconds = start.elapsed().as_secs_f64();
    working("writing", &args.dst.display().to_string(), args.json, || Ok(imported.write(&args.dst)?))?;
    let total_seconds = start.elapsed().as_secs_f64();
    let info = Info::of(&imported.dataset);
    let report = &imported.report;
    let megabytes_per_second = report.bytes_read as f64 / 1e6 / import_seconds.max(1e-9);
    if args.json {
        let mut import = json!(report);
        import["notes"] = report.notes.iter().map(|note| options_as_flags(note)).collect();
        import["seconds"] = json!(total_seconds);
        import["megabytes_per_second"] = json!(megabytes_per_second);
        return print_json(&info, Some(&args.dst), Some(("import", import)));
    }
    say(format_args!(
        "read {:.1} MB in {} ({megabytes_per_second:.0} MB/s), wrote {} in {}",
        report.bytes_read as f64 / 1e6,
        seconds(import_seconds),
        args.dst.display(),
        seconds(total_seconds - import_seconds),
    ));
    let blank = ("", String::new());
    print(&facts(&[report_rows(report, imported.ids.as_ref()), vec![blank], info_rows(&info)].concat()))
}

impl ImportArgs {
    /// Parses `--split`: the number of a split in the file, or shares to draw.
    fn split(&self) -> Result<(usize, Option<RandomSplit>)> {
        let index = self.split.as_ref().map(|split| split.parse::<usize>());
        let random = match (&self.split, index) {
            (None, _) => return Ok((0, None)),
            (_, Some(Ok(index))) if !self.stratified && self.split_seed.is_none() => return Ok((index, None)),
            (Some(split), _) => RandomSplit::parse(split)?,
        };
        Ok((0, Some(RandomSplit { stratified: self.stratified, seed: self.split_seed.unwrap_or(0), ..random })))
    }
}

/// Returns the rows of the table that reports an import.
fn report_rows(report: &Report, ids: Option<&Ids>) -> Vec<(&'static str, String)> {
    let fate = |n: u64, dropped: bool| match (n, dropped) {
        (0, _) => "none".into(),
        (n, true) => format!("{} dropped", count(n)),
        (n, false) => format!("{} kept", count(n)),
    };
    let repeated = match report.duplicates {
        repeats @ 1.. if report.edge_weights.is_some() && report.duplicates_dropped => {
            format!("{} joined", count(repeats))
        }
        repeats => fate(repeats, report.duplicates_dropped),
    };
    let mut rows = vec![
        ("kind", report.kind.to_string()),
        ("edges listed", count(report.edges_listed)),
        ("  reverses", if report.symmetrised { "added" } else { "not added" }.into()),
        ("  repeated", repeated),
        ("  self-loops", fate(report.self_loops, report.self_loops_dropped)),
        ("  isolated", fate(report.isolated, report.isolated_dropped)),
    ];
    rows.extend(report.edge_weights.iter().map(|from| ("  weights", format!("kept: {from}"))));
    if report.values_dropped > 0 {
        rows.push(("  values", format!("dropped from {} edges", count(report.values_dropped))));
    }
    rows.extend(ids.map(|ids| {
        let file = match ids {
            Ids::Numbers(_) => "in vertex_ids.npy",
            Ids::Names(_) => "in vertex_names.txt",
        };
        ("original ids", file.to_string())
    }));
    if report.comment_lines > 0 {
        rows.push((
            "  comments",
            format!("{} lines passed over, which start with #, % or //", count(report.comment_lines)),
        ));
    }
    rows.extend(report.notes.iter().map(|note| ("note", options_as_flags(note))));
    rows
}

impl PlantedArgs {
    fn options(&self) -> PlantedOptions {
        PlantedOptions {
            name: name_of(&self.common.dst),
            vertices: self.vertices,
            classes: self.classes,
            mean_degree: self.degree,
            exponent: self.exponent,
            max_degree: self.max_degree,
            inside: self.inside,
            feature_width: self.features,
            signal: self.signal,
            split: SplitSizes::PerClass { train: self.train_per_class, val: self.val, test: self.test },
            seed: self.common.seed,
        }
    }
}

impl RmatArgs {
    fn options(&self) -> RmatOptions {
        RmatOptions {
            name: name_of(&self.common.dst),
            vertices: self.vertices,
            edge_factor: self.edge_factor,
            directed: self.directed,
            feature_width: self.features,
            classes: self.classes,
            seed: self.common.seed,
            ..RmatOptions::default()
        }
    }
}

impl BterArgs {
    fn options(&self) -> Result<BterOptions> {
        let profile = match (&self.like, &self.degrees) {
            (Some(like), _) => DegreeProfile::of(Dataset::load(like)?.graph())?,
            (None, degrees) => DegreeProfile::read(degrees.as_deref().unwrap_or(Path::new("")))?,
        };
        Ok(BterOptions {
            name: name_of(&self.common.dst),
            feature_width: self.features,
            classes: self.classes,
            seed: self.common.seed,
            ..BterOptions::new(profile.scaled(self.scale)?)
        })
    }
}

fn name_of(dst: &Path) -> String {
    dst.file_name().map_or_else(|| "generated".into(), |name| name.to_string_lossy().into_owned())
}

/// Shows a spinner while `work` runs.
fn working<T>(doing: &str, what: &str, hidden: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let spinner = spinner(format!("{doing} {what}"), hidden);
    let done = work();
    spinner.finish_and_clear();
    done
}

fn write(data: &Dataset, dst: &Path, json: bool) -> Result<()> {
    working("writing", &dst.display().to_string(), json, || Ok(data.write(dst)?))?;
    let info = Info::of(data);
    if json {
        return print_json(&info, Some(dst), None);
    }
    say(format_args!("wrote {}", dst.display()));
    print(&facts(&info_rows(&info)))
}

fn print_json(info: &Info, written: Option<&Path>, more: Option<(&str, serde_json::Value)>) -> Result<()> {
    let mut line = json!({ "event": "dataset" });
    if let Some(path) = written {
        line["written"] = json!(path);
    }
    if let Some((key, value)) = more {
        line[key] = value;
    }
    if let (Some(line), serde_json::Value::Object(info)) = (line.as_object_mut(), json!(info)) {
        line.extend(info);
    }
    json_line(&line)
}
