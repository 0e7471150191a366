//! Importer for Cora, Citeseer, Pubmed and others in the files of the Planetoid paper.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::job::{Format, ImportJob, Loaded};
use super::numpy::{Array, Matrix, int};
use super::options::Options;
use super::pickle::{Object, Pickle};
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels};
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::plain_file;

/// Number of validation vertices, which follow the training vertices.
const VALIDATION: usize = 500;

/// The largest file that is read as a list of the test vertices.
const MAX_IDS_BYTES: u64 = 1 << 28;

/// Reads the eight files `ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}`.
///
/// `source` is the directory of the files, or DIR/NAME or DIR/ind.NAME. Without `name`, a directory must contain
/// exactly one dataset. Pickles are read as data: nothing in them is run.
///
/// Rows of `tx` and `ty` belong to the ids in `test.index`, in its order. Skipped ids have no features and no label.
/// The graph is made symmetric and repeated edges are dropped; loops stay. The training vertices are the first ones,
/// one for each row of `y`. The validation vertices are the 500 after them, and the test vertices are those in
/// `test.index`.
///
/// # Errors
/// A missing or damaged file, a pickle that names anything but arrays, or arrays that do not fit each other.
/// # Source
/// Yang, Cohen & Salakhutdinov 2016, and its loader.
pub fn planetoid(source: &Path, name: Option<&str>) -> Result<Dataset> {
    let options = Options { name, ..Options::default() };
    load(&ImportJob::new(Format::Planetoid, source, &options))?.parts.build()
}

/// Does the same with the rules of the job.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let (dir, name) = locate(job.source, job.options.name)?;
    let file = |part: &str| dir.join(format!("ind.{name}.{part}"));
    let train_rows = Matrix::of(&Pickle::open(&job.meter, &file("x"))?)?.rows.len();
    let all = Matrix::of(&Pickle::open(&job.meter, &file("allx"))?)?;
    let test = Matrix::of(&Pickle::open(&job.meter, &file("tx"))?)?;
    let train_labels = one_hot(&Pickle::open(&job.meter, &file("y"))?)?;
    let all_labels = one_hot(&Pickle::open(&job.meter, &file("ally"))?)?;
    let test_labels = one_hot(&Pickle::open(&job.meter, &file("ty"))?)?;
    let ids = test_ids(&file("test.index"))?;

    let wrong = |part: &str, why: String| Error::Import { file: file(part).display().to_string(), why };
    let known = all.rows.len();
    let same_rows = [
        ("y", train_labels.labels.len(), "x", train_rows),
        ("ally", all_labels.labels.len(), "allx", known),
        ("ty", test_labels.labels.len(), "tx", test.rows.len()),
        ("test.index", ids.len(), "tx", test.rows.len()),
    ];
    for (part, found, other, expected) in same_rows {
        if found != expected {
            return Err(wrong(part, format!("has {found} rows, but ind.{name}.{other} has {expected}")));
        }
    }
    if train_rows > known {
        return Err(wrong("x", format!("has {train_rows} rows, more than the {known} of ind.{name}.allx")));
    }
    if test.columns != all.columns {
        return Err(wrong("tx", format!("has {} columns, but ind.{name}.allx has {}", test.columns, all.columns)));
    }
    if let Some(id) = ids.iter().find(|&&id| id < known) {
        return Err(wrong("test.index", format!("has id {id}, which is a row of ind.{name}.allx ({known} rows)")));
    }
    let vertices = ids.iter().max().map_or(known, |&id| id + 1);
    // Real datasets have a few gaps. A damaged id must not make us allocate all memory.
    if vertices - known > 64 * ids.len() + 1024 {
        let (count, last) = (ids.len(), vertices - 1);
        return Err(wrong("test.index", format!("has {count} ids, yet one is {last}: most of them would be gaps")));
    }

    let width = all.columns;
    let mut rows = all.rows;
    let mut labels = all_labels.labels;
    rows.resize(vertices, Vec::new());
    labels.resize(vertices, -1);
    for ((&id, row), label) in ids.iter().zip(test.rows).zip(test_labels.labels) {
        rows[id] = row;
        labels[id] = label;
    }
    let store = adjacency(job, &Pickle::open(&job.meter, &file("graph"))?, vertices)?;
    let edges_listed = store.len();
    let (graph, seen) = job.graph(store, vertices)?;
    let mut test: Vec<i64> = ids.iter().map(|&id| id as i64).collect();
    test.sort_unstable();
    let val = train_rows..known.min(train_rows + VALIDATION);
    let published = ["cora", "citeseer", "pubmed"].contains(&name.as_str());
    let parts = Parts {
        directed: job.rules.symmetrise.then_some(false),
        features: Some(sparse(&rows, width)),
        labels: Some(RawLabels::Class(labels.into())),
        classes: Some(all_labels.classes.max(test_labels.classes)),
        splits: [(0..train_rows as i64).collect(), val.map(|id| id as i64).collect(), test]
            .map(|ids| Some(Members::Ids(ids))),
        source: published.then(|| "kimiyoung/planetoid".into()),
        licence: published.then(|| "MIT".into()),
        ..Parts::new(Origin::Memory, name, graph)
    };
    Ok(Loaded::new(parts, edges_listed, seen, job.rules.symmetrise))
}

/// Returns the directory and the dataset's name.
fn locate(source: &Path, name: Option<&str>) -> Result<(PathBuf, String)> {
    if !source.is_dir() {
        let last = source.file_name().map(|last| last.to_string_lossy().into_owned()).unwrap_or_default();
        let last = name.unwrap_or(last.strip_prefix("ind.").unwrap_or(&last)).to_string();
        let dir = source.parent().unwrap_or(Path::new("")).to_path_buf();
        return Ok((dir, last));
    }
    if let Some(name) = name {
        return Ok((source.into(), name.into()));
    }
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(source).map_err(Error::io("list", source))? {
        let file = entry.map_err(Error::io("list", source))?.file_name();
        let file = file.to_string_lossy();
        let name = file.strip_prefix("ind.").and_then(|rest| rest.strip_suffix(".graph"));
        names.extend(name.map(str::to_string));
    }
    let wrong = |why| Err(Error::Import { file: source.display().to_string(), why });
    let mut names: Vec<String> = names.into_iter().collect();
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => Ok((source.into(), only)),
        (None, _) => wrong("holds no Planetoid set: there is no ind.NAME.graph".into()),
        (Some(last), false) => {
            let names = names.join(", ");
            wrong(format!(
                "holds several Planetoid sets ({names}, {last}); say which, as in {}/{last}",
                source.display()
            ))
        }
    }
}

struct OneHot {
    labels: Vec<i64>,
    classes: usize,
}

/// Returns the class of each row, or -1 if no class is marked.
fn one_hot(pickle: &Pickle) -> Result<OneHot> {
    let array = Array::of(pickle, pickle.root, "the label matrix")?;
    let [rows, classes] = array.shape[..] else {
        return Err(pickle.not(format!("the label matrix has shape {:?}, expected [rows, classes]", array.shape)));
    };
    // Without columns, no bytes stand behind the number of rows.
    if classes == 0 {
        return Err(pickle.not(format!("the label matrix has shape {:?}, expected one column per class", array.shape)));
    }
    let cells = array.ints();
    let mut labels = vec![-1; rows];
    for (row, (label, cells)) in labels.iter_mut().zip(cells.chunks(classes)).enumerate() {
        let mut marked = cells.iter().enumerate().filter(|&(_, &cell)| cell != 0);
        if let Some((class, _)) = marked.next() {
            *label = class as i64;
        }
        if let Some((second, _)) = marked.next() {
            return Err(pickle.not(format!("row {row} marks classes {label} and {second}, expected at most one")));
        }
    }
    Ok(OneHot { labels, classes })
}

fn test_ids(path: &Path) -> Result<Vec<usize>> {
    let text = plain_file::read_text(path, MAX_IDS_BYTES);
    let text = text.map_err(Error::missing_or("read", path, "it says which vertices the rows of tx are"))?;
    let wrong = |why| Error::Import { file: path.display().to_string(), why };
    let mut ids = Vec::new();
    for (line, word) in text.lines().enumerate().filter(|(_, word)| !word.trim().is_empty()) {
        let id: u32 = word
            .trim()
            .parse()
            .map_err(|_| wrong(format!("line {} is `{word:.40}`, expected a vertex id", line + 1)))?;
        ids.push(id as usize);
    }
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(wrong(format!("lists vertex {} twice", pair[0]))),
        None => Ok(ids),
    }
}

/// Reads the adjacency lists of a dictionary.
fn adjacency(job: &ImportJob<'_>, pickle: &Pickle, vertices: usize) -> Result<EdgeStore> {
    let Some(Object::Dict(lists)) = pickle.object(pickle.root) else {
        return Err(pickle.not("expected a dictionary of adjacency lists"));
    };
    let vertex = |value| {
        let id = int(pickle, value).ok_or_else(|| pickle.not("a vertex of the graph is not an integer"))?;
        let found = u32::try_from(id).ok().filter(|&id| (id as usize) < vertices);
        found.ok_or_else(|| {
            pickle.not(format!(
                "the graph has vertex {id}, but allx and test.index give {vertices} (0 to {})",
                vertices - 1
            ))
        })
    };
    let mut store = job.store();
    let mut edges = Vec::new();
    for &(key, list) in lists {
        let u = vertex(key)?;
        let list =
            pickle.items(list).ok_or_else(|| pickle.not(format!("the neighbours of vertex {u} are not a list")))?;
        edges.clear();
        for &value in list {
            edges.push([u, vertex(value)?]);
        }
        store.extend(&edges)?;
    }
    Ok(store)
}

fn sparse(rows: &[Vec<(u32, f32)>], width: usize) -> RawFeatures {
    let mut indptr = vec![0u64];
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    for row in rows {
        for &(column, value) in row {
            indices.push(column);
            values.push(value);
        }
        indptr.push(indices.len() as u64);
    }
    RawFeatures::Sparse { indptr: indptr.into(), indices: indices.into(), values: values.into(), width }
}
