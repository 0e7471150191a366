//! `lapidary data`: look at, import and generate data sets.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::not_built;
use super::output::{count, facts, json_line, percent, say, spinner};
use crate::dataset::generate::{PlantedOptions, RmatOptions, SplitSizes, planted, rmat};
use crate::dataset::{Dataset, Info, import};
use crate::error::{Error, Result};

#[derive(Debug, Subcommand)]
pub(super) enum DataVerb {
    /// Say what a data set holds
    Info {
        /// A dataset directory, builtin:planted or builtin:karate
        data: String,
        /// Print one JSON line on standard output
        #[arg(long)]
        json: bool,
    },
    /// Turn files of other programs into a dataset directory
    Import(ImportArgs),
    /// Make a random data set
    #[command(subcommand)]
    Generate(GenerateVerb),
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// What the files are: planetoid (ind.NAME.x, .graph, ...) or npz (indptr, indices, x, y, train)
    kind: String,
    /// planetoid: the folder, or its prefix FOLDER/ind.NAME; npz: the file
    src: PathBuf,
    /// The dataset directory to write; it must not exist yet, or be empty
    dst: PathBuf,
    /// planetoid: which of several sets in the folder
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON line on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum GenerateVerb {
    /// Classes that keep to themselves, skewed degrees, features around a centre a class
    Planted(PlantedArgs),
    /// R-MAT: recursively skewed, ids shuffled; features and labels only if asked for
    Rmat(RmatArgs),
    /// Block two-level Erdős–Rényi (not built yet)
    Bter {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _rest: Vec<String>,
    },
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
    /// Degrees d have density d^-F
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().exponent)]
    exponent: f64,
    /// The greatest expected degree
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().max_degree)]
    max_degree: f64,
    /// Share of edges that stay inside a class
    #[arg(long, value_name = "F", default_value_t = PlantedOptions::default().inside)]
    inside: f64,
    /// Number of features
    #[arg(long, value_name = "N", default_value_t = PlantedOptions::default().feature_width)]
    features: usize,
    /// Spread of the class centres; the noise around them has 1
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
    /// Edges drawn a vertex, before loops and repeated ones are dropped
    #[arg(long, value_name = "F", default_value_t = RmatOptions::default().edge_factor)]
    edge_factor: f64,
    /// Keep the direction of edges
    #[arg(long)]
    directed: bool,
    /// Number of features
    #[arg(long, value_name = "N", default_value_t = 0)]
    features: usize,
    /// Number of classes, drawn without regard to the edges
    #[arg(long, value_name = "N", default_value_t = 0)]
    classes: usize,
}

#[derive(Debug, Args)]
struct GenerateArgs {
    /// The dataset directory to write; it must not exist yet, or be empty
    dst: PathBuf,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON line on standard output
    #[arg(long)]
    json: bool,
}

/// Looks, imports or generates.
pub(super) fn run(verb: &DataVerb) -> Result<()> {
    match verb {
        DataVerb::Info { data, json } => {
            let info = working("looking at", data, *json, || Ok(Info::of(&Dataset::load(data)?)))?;
            if *json { print_json(&info, None) } else { print_table(&info) }
        }
        DataVerb::Import(args) => {
            let data = working("importing", &args.src.display().to_string(), args.json, || import_from(args))?;
            write(&data, &args.dst, args.json)
        }
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
        DataVerb::Generate(GenerateVerb::Bter { .. }) => {
            Err(not_built("`data generate bter`", "this version generates planted and rmat"))
        }
    }
}

fn import_from(args: &ImportArgs) -> Result<Dataset> {
    match args.kind.as_str() {
        "planetoid" => Ok(import::planetoid(&args.src, args.name.as_deref())?),
        "npz" => match &args.name {
            None => Ok(import::npz(&args.src)?),
            Some(name) => {
                let expected = "an .npz archive holds one set, which is called as its file".into();
                Err(Error::Value { option: "--name", value: name.clone(), expected })
            }
        },
        "gnn-benchmark" | "reddit" | "graphsaint" | "heterophilous" | "ppi" | "ogb" | "edges" | "mtx" | "lux" => {
            Err(not_built(format!("importing `{}`", args.kind), "this version imports planetoid and npz"))
        }
        other => {
            let expected = "there are planetoid and npz".into();
            Err(Error::Value { option: "the kind of import", value: other.into(), expected })
        }
    }
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

fn name_of(dst: &Path) -> String {
    dst.file_name().map_or_else(|| "generated".into(), |name| name.to_string_lossy().into_owned())
}

/// Shows that something is being done until it is.
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
        return print_json(&info, Some(dst));
    }
    say(format_args!("wrote {}", dst.display()));
    print_table(&info)
}

fn print_json(info: &Info, written: Option<&Path>) -> Result<()> {
    let mut line = json!({ "event": "dataset" });
    if let Some(path) = written {
        line["written"] = json!(path);
    }
    if let (Some(line), serde_json::Value::Object(info)) = (line.as_object_mut(), json!(info)) {
        line.extend(info);
    }
    json_line(&line)
}

/// What `data info` is for goes to standard output: it can be piped.
fn print_table(info: &Info) -> Result<()> {
    let degree = &info.degree;
    let mut rows = vec![
        ("name", info.name.clone()),
        ("vertices", count(info.vertices as u64)),
        ("edges", format!("{} ({})", count(info.edges as u64), if info.directed { "directed" } else { "undirected" })),
        ("self-loops", count(info.self_loops as u64)),
        ("repeated edges", count(info.duplicate_edges as u64)),
        ("isolated vertices", count(info.isolated as u64)),
        (
            "in-degree",
            format!("{} to {}, median {}, mean {:.2}", degree.min, count(degree.max), degree.median, degree.mean),
        ),
    ];
    if let Some(graphs) = info.graphs {
        rows.push(("graphs", count(graphs as u64)));
    }
    rows.push(match &info.features {
        Some(f) => ("features", format!("{} {}, {} non-zero", count(f.width as u64), f.kind, percent(Some(f.density)))),
        None => ("features", "none".into()),
    });
    if let Some(f) = &info.features {
        rows.push(("feature norm", f.norm.to_string()));
    }
    rows.push(match &info.labels {
        Some(l) => ("labels", format!("{} classes ({}), {} vertices", l.classes, l.kind, count(l.labelled as u64))),
        None => ("labels", "none".into()),
    });
    for split in &info.splits {
        let labelled = match split.vertices - split.labelled {
            0 => String::new(),
            missing => format!(", {} without a label", count(missing as u64)),
        };
        rows.push((
            split.name,
            format!("{} vertices{labelled}; {}", count(split.vertices as u64), balance(&split.per_class)),
        ));
    }
    rows.extend(info.source.iter().map(|source| ("source", source.clone())));
    rows.extend(info.licence.iter().map(|licence| ("licence", licence.clone())));
    super::output::print(&facts(&rows))
}

/// The smallest and largest class of a split.
fn balance(per_class: &[usize]) -> String {
    match (per_class.iter().min(), per_class.iter().max()) {
        (Some(least), Some(most)) => format!("{least} to {most} a class"),
        _ => "no classes".into(),
    }
}
