//! Importer for the raw files of the Open Graph Benchmark's node datasets.

use std::fs;
use std::path::{Path, PathBuf};

use super::blocks::Blocks;
use super::job::{ImportJob, Loaded};
use super::table::{self, Table};
use super::text::{Small, Stop, each_edge};
use super::weights::EdgeWeights;
use crate::dataset::edge_store::{Built, EdgeStore};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::graph::MAX_VERTICES;

/// Datasets whose loader adds the reverse of every edge, which the files lack.
const UNDIRECTED: [&str; 2] = ["products", "proteins"];

/// Reads a folder with `raw/edge.csv.gz` and `raw/num-node-list.csv.gz`. Also reads `raw/node-feat.csv.gz`,
/// `raw/node-label.csv.gz`, `raw/num-edge-list.csv.gz`, `raw/edge-weight.csv.gz`, `raw/edge-feat.csv.gz` and `split/NAME/{train,valid,test}.csv.gz` if they exist. Files
/// may be compressed or not.
///
/// # Source
/// Hu et al. 2020, and the loader of its package.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let (root, raw) = folders(job.source);
    let file = |name: &str| csv(&raw, name);
    let vertices = one_number(job, &file("num-node-list"), "it says how many vertices there are")?;
    if vertices == 0 || vertices > MAX_VERTICES {
        return Err(job.wrong(format!("has {vertices} vertices, expected 1 to {MAX_VERTICES}")));
    }
    let edge_file = file("edge");
    let weights = Weights::of(job, &raw)?;
    let mut store = edges(job, &edge_file, vertices, weights.file.is_some())?;
    let edges_listed = store.len();
    job.check_vertices(vertices, edges_listed)?;
    let edge_count = file("num-edge-list");
    if edge_count.exists() {
        let stated = one_number(job, &edge_count, "it says how many edges there are")?;
        if stated as u64 != edges_listed {
            let why = format!("has {edges_listed} edges, but {} says {stated}", edge_count.display());
            return Err(Error::Import { file: edge_file.display().to_string(), why });
        }
    }
    let name = root.file_name().map_or_else(|| "ogb".into(), |name| name.to_string_lossy().into_owned());
    let symmetrise = job.options.symmetrise.unwrap_or_else(|| UNDIRECTED.iter().any(|set| name.contains(set)));
    weights.read(job, edges_listed, &mut store)?;
    let Built { graph, weights: kept, seen } = job.finish(store, vertices, symmetrise, |id| id)?;
    let mut parts = job.weighted_parts(graph, kept);
    parts.directed = symmetrise.then_some(false);
    let features = file("node-feat");
    if features.exists() {
        parts.features = Some(table::features(&job.meter, &features, vertices)?);
    }
    let labels = file("node-label");
    if labels.exists() {
        parts.labels = Some(table::labels(&job.meter, &labels, vertices)?);
    }
    if let Some(folder) = split_folder(&root)? {
        for (members, name) in parts.splits.iter_mut().zip(["train", "valid", "test"]) {
            let ids = Table::<i64>::read(&job.meter, &csv(&folder, name), "it is one of three splits", vertices)?;
            if ids.width > 1 {
                let why = format!("has {} cells in a line, expected one: the id of a vertex", ids.width);
                return Err(Error::Import { file: csv(&folder, name).display().to_string(), why });
            }
            *members = Some(Members::Ids(ids.cells));
        }
    }
    parts.name = name;
    parts.source = Some("Open Graph Benchmark".into());
    let mut loaded = Loaded::new(parts, edges_listed, seen, symmetrise);
    loaded.weights_from = weights.source();
    loaded.notes.extend(weights.note);
    Ok(loaded)
}

/// The file with the weights of the edges, if they are kept.
#[derive(Default)]
struct Weights {
    /// Its path, the column, and the number of columns.
    file: Option<(PathBuf, usize, usize)>,
    note: Option<String>,
}

impl Weights {
    /// Looks for `edge-weight`, and for `edge-feat`, whose columns may be anything.
    fn of(job: &ImportJob<'_>, raw: &Path) -> Result<Self> {
        let choice = job.options.edge_weights;
        let there = |name: &str| Some(csv(raw, name)).filter(|path| path.exists());
        let plain = there("edge-weight").or_else(|| there("edge_weight"));
        let features = there("edge-feat");
        let path = match choice {
            EdgeWeights::Drop => None,
            EdgeWeights::Guess => plain.clone(),
            _ => plain.clone().or_else(|| features.clone()),
        };
        let Some(path) = path else {
            if choice.asked().is_some() {
                let why = "nothing or `drop`: the folder has neither edge-weight nor edge-feat";
                return Err(choice.refused(why));
            }
            let note = features.map(|_| {
                let how = "set option `edge_weights` to the number of a column to keep it as weights";
                format!("edge features (edge-feat) were left out; {how}")
            });
            return Ok(Self { file: None, note: note.filter(|_| choice == EdgeWeights::Guess) });
        };
        let columns = table::width(&job.meter, &path)?;
        let column = match (choice, choice.number()) {
            (_, Some(column)) if column < columns => column,
            (EdgeWeights::Guess | EdgeWeights::Keep, _) if columns == 1 => 0,
            _ => return Err(choice.refused(format!("the number of a column, 1 to {columns}, of {}", path.display()))),
        };
        Ok(Self { file: Some((path, column, columns)), note: None })
    }

    /// Appends the weights to a store.
    fn read(&self, job: &ImportJob<'_>, edges: u64, store: &mut EdgeStore) -> Result<()> {
        let Some((path, column, columns)) = &self.file else { return Ok(()) };
        table::column(&job.meter, path, (*column, *columns), edges, |values| store.extend_weights(values))
    }

    /// Returns where the weights are from, for the report.
    fn source(&self) -> Option<String> {
        let (path, column, columns) = self.file.as_ref()?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Some(if *columns == 1 { name } else { format!("column {} of {name}", column + 1) })
    }
}

/// Returns the dataset's folder, and the folder with the raw files.
fn folders(source: &Path) -> (PathBuf, PathBuf) {
    let raw = source.join("raw");
    if raw.is_dir() {
        return (source.into(), raw);
    }
    let root = match source.parent() {
        Some(parent) if source.file_name().is_some_and(|name| name == "raw") => parent.into(),
        _ => source.into(),
    };
    (root, source.into())
}

/// Returns the path of a file, which may be compressed.
fn csv(folder: &Path, name: &str) -> PathBuf {
    let plain = folder.join(format!("{name}.csv"));
    if plain.exists() { plain } else { folder.join(format!("{name}.csv.gz")) }
}

fn one_number(job: &ImportJob<'_>, path: &Path, needed: &'static str) -> Result<usize> {
    let table = Table::<u64>::read(&job.meter, path, needed, 1)?;
    match table.cells[..] {
        [number] => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
        _ => {
            let why = "does not hold one number; only datasets of one graph can be imported".into();
            Err(Error::Import { file: path.display().to_string(), why })
        }
    }
}

fn edges(job: &ImportJob<'_>, path: &Path, vertices: usize, weighted: bool) -> Result<EdgeStore> {
    let file = path.display().to_string();
    let wrong = |why: String| Error::Import { file: file.clone(), why };
    let text = job.meter.open_text(path, "it has the edges")?;
    let mut store = job.store_with(weighted);
    let read = each_edge::<_, Small>(Blocks::new(text, file.clone()), 0, (b',', None), |edges, _| {
        if let Some(at) = edges.iter().position(|edge| edge.iter().any(|&end| end as usize >= vertices)) {
            let (edge, [u, v]) = (store.len() as usize + at, edges[at]);
            return Err(wrong(format!(
                "edge {edge} is {u},{v}, but there are {vertices} vertices (0 to {})",
                vertices - 1
            )));
        }
        store.extend(edges)
    })?;
    match read {
        Ok(counts) if counts.with_more == 0 => Ok(store),
        Ok(counts) => Err(wrong(format!(
            "has {} lines with more than two columns, expected source,destination",
            counts.with_more
        ))),
        Err(stopped) if stopped.stop == Stop::OneEnd => {
            Err(wrong(format!("line {} has one column, expected source,destination", stopped.line)))
        }
        Err(stopped) => Err(wrong(format!("line {} is not two vertices, expected source,destination", stopped.line))),
    }
}

/// Returns the only folder in `split/`.
fn split_folder(root: &Path) -> Result<Option<PathBuf>> {
    let all = root.join("split");
    if !all.is_dir() {
        return Ok(None);
    }
    let mut folders = Vec::new();
    for entry in fs::read_dir(&all).map_err(Error::io("list", &all))? {
        let path = entry.map_err(Error::io("list", &all))?.path();
        if csv(&path, "train").exists() {
            folders.push(path);
        }
    }
    if folders.len() > 1 {
        let why = format!("holds {} splits, expected one; move the others away", folders.len());
        return Err(Error::Import { file: all.display().to_string(), why });
    }
    Ok(folders.pop())
}
