//! Importer for the raw files of the Open Graph Benchmark's node datasets.

use std::fs;
use std::path::{Path, PathBuf};

use super::blocks::Blocks;
use super::job::{ImportJob, Loaded};
use super::table::{self, Table};
use super::text::{Small, Stop, each_edge};
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::graph::MAX_VERTICES;

/// Datasets whose loader adds the reverse of every edge, which the files lack.
const UNDIRECTED: [&str; 2] = ["products", "proteins"];

/// Reads a folder with `raw/edge.csv.gz` and `raw/num-node-list.csv.gz`. Also reads `raw/node-feat.csv.gz`,
/// `raw/node-label.csv.gz`, `raw/num-edge-list.csv.gz` and `split/NAME/{train,valid,test}.csv.gz` if they exist. Files
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
    let store = edges(job, &edge_file, vertices)?;
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
    let (graph, seen) = store.finish(vertices, symmetrise, job.rules.keep, |id| id)?;
    let mut parts = job.parts(graph);
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
            *members = Some(Members::Ids(ids.cells));
        }
    }
    parts.name = name;
    parts.source = Some("Open Graph Benchmark".into());
    let mut loaded = Loaded::new(parts, edges_listed, seen, symmetrise);
    if file("edge-feat").exists() {
        loaded.notes.push("edge features (edge-feat) were left out".into());
    }
    Ok(loaded)
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

fn edges(job: &ImportJob<'_>, path: &Path, vertices: usize) -> Result<EdgeStore> {
    let file = path.display().to_string();
    let wrong = |why: String| Error::Import { file: file.clone(), why };
    let text = job.meter.open_text(path, "it has the edges")?;
    let mut store = job.store();
    let read = each_edge::<_, Small>(Blocks::new(text, file.clone()), 0, b',', |edges| {
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
