//! Importer for GraphSAGE's protein graphs, in the files that DGL and PyTorch Geometric load.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::csr_archives::{json_file, not_json};
use super::job::{ImportJob, Loaded, dense, labels};
use super::numbers::Numbers;
use crate::dataset::build::{RawFeatures, RawLabels};
use crate::dataset::edge_store::EdgeStore;
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::graph::MAX_VERTICES;

/// Names of the splits in file names.
const SPLITS: [&str; 3] = ["train", "valid", "test"];

/// Reads a folder with `train_graph.json` (networkx's node-link format), `train_feats.npy`, `train_labels.npy`,
/// `train_graph_id.npy`, and the same for `valid` and `test`. Graph ids continue through the three splits. An edge
/// between two graphs is dropped, as in PyTorch Geometric. Every link becomes two edges, unless the file says
/// `directed`.
pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let mut store = job.store();
    let (mut graph_ids, mut features, mut classes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut width, mut class_count) = (None, None);
    let mut directed = None;
    let (mut between, mut listed) = (0, 0);
    let mut splits = [const { None }; 3];
    for (members, split) in splits.iter_mut().zip(SPLITS) {
        let file = |rest: &str| job.source.join(format!("{split}_{rest}"));
        let first = graph_ids.len();
        let next_graph = graph_ids.last().map_or(0, |&last: &i64| last + 1);
        let ids = Numbers::open(&job.meter, &file("graph_id.npy"), "it says which graph each vertex is in")?;
        ids.vector_len("[vertices]")?;
        let ids = ids.ints("a graph: not negative", |x| (x >= 0).then_some(x))?;
        let n = ids.len();
        if first + n > MAX_VERTICES {
            return Err(job.wrong(format!("has more than {MAX_VERTICES} vertices")));
        }
        let least = ids.iter().min().copied().unwrap_or(0);
        let most = ids.iter().max().copied().unwrap_or(0);
        if most - least >= n as i64 && n > 0 {
            let (file, why) = (file("graph_id.npy"), format!("has graphs {least} to {most}, but {n} vertices"));
            return Err(Error::Import { file: file.display().to_string(), why });
        }
        graph_ids.extend(ids.iter().map(|id| id - least + next_graph));

        let path = file("graph.json");
        let mut reader =
            Links { ids: &ids, first: first as u32, store: &mut store, between: 0, links: 0, nodes: 0, directed: None };
        let mut json = json_file(&job.meter, &path, "it has the links")?;
        (&mut reader).deserialize(&mut json).map_err(not_json(&path))?;
        json.end().map_err(not_json(&path))?;
        let wrong = |why: String| Error::Import { file: path.display().to_string(), why };
        if reader.nodes != n as u64 {
            return Err(wrong(format!("has {} nodes, but {split}_graph_id.npy has {n}", reader.nodes)));
        }
        (between, listed) = (between + reader.between, listed + reader.links);
        let says = reader.directed.unwrap_or(false);
        if directed.is_some_and(|before| before != says) {
            return Err(wrong("is directed but another split is not, or vice versa".into()));
        }
        directed = Some(says);

        append_features(job, &file("feats.npy"), n, &mut features, &mut width)?;
        append_classes(job, &file("labels.npy"), n, &mut classes, &mut class_count)?;
        *members = Some(Members::Ids((first as i64..(first + n) as i64).collect()));
    }
    let vertices = graph_ids.len();
    let symmetrise = job.options.symmetrise.unwrap_or(directed == Some(false));
    let (graph, seen) = store.finish(vertices, symmetrise, job.rules.keep, |id| id)?;
    let mut parts = job.parts(graph);
    parts.name = "ppi".into();
    parts.directed = symmetrise.then_some(false);
    parts.graph_ids = Some(graph_ids.into());
    parts.features = width.map(|width| RawFeatures::Dense { data: features.into(), rows: vertices, width });
    parts.labels =
        class_count.map(|classes_| RawLabels::Multi { data: classes.into(), rows: vertices, classes: classes_ });
    parts.splits = splits;
    parts.source = Some("GraphSAGE's PPI".into());
    let mut loaded = Loaded::new(parts, listed, seen, symmetrise);
    if between > 0 {
        loaded.notes.push(format!("{between} links between two graphs were left out"));
    }
    Ok(loaded)
}

fn append_features(
    job: &ImportJob<'_>,
    path: &Path,
    rows: usize,
    all: &mut Vec<f32>,
    width: &mut Option<usize>,
) -> Result<()> {
    let numbers = Numbers::open(&job.meter, path, "it has the features")?;
    let RawFeatures::Dense { data, width: found, .. } = dense(numbers, rows)? else { return Ok(()) };
    same_width(path, found, width)?;
    all.extend_from_slice(&data);
    Ok(())
}

fn append_classes(
    job: &ImportJob<'_>,
    path: &Path,
    rows: usize,
    all: &mut Vec<u8>,
    classes: &mut Option<usize>,
) -> Result<()> {
    let numbers = Numbers::open(&job.meter, path, "it has the labels")?;
    match labels(numbers, rows)? {
        RawLabels::Multi { data, classes: found, .. } => {
            same_width(path, found, classes)?;
            all.extend_from_slice(&data);
            Ok(())
        }
        RawLabels::Class(_) => {
            let why = "has one column, expected one column of 0 and 1 per class".into();
            Err(Error::Import { file: path.display().to_string(), why })
        }
    }
}

fn same_width(path: &Path, found: usize, width: &mut Option<usize>) -> Result<()> {
    match *width {
        Some(before) if before != found => {
            let why = format!("has {found} columns, but the split before has {before}");
            Err(Error::Import { file: path.display().to_string(), why })
        }
        _ => {
            *width = Some(found);
            Ok(())
        }
    }
}

/// Reads the links of a node-link file as a stream.
struct Links<'a> {
    /// The graph id of each vertex.
    ids: &'a [i64],
    /// The offset that is added to the file's vertices.
    first: u32,
    store: &'a mut EdgeStore,
    between: u64,
    links: u64,
    nodes: u64,
    directed: Option<bool>,
}

#[derive(Deserialize)]
struct Node {
    id: u64,
}

#[derive(Deserialize)]
struct Link {
    source: u64,
    target: u64,
}

impl Links<'_> {
    fn vertex(&self, id: u64) -> std::result::Result<u32, String> {
        let n = self.ids.len();
        let found = usize::try_from(id).ok().filter(|&id| id < n);
        found.map(|id| id as u32).ok_or_else(|| format!("vertex {id}, but {n} vertices have a graph id"))
    }

    fn link(&mut self, link: &Link) -> std::result::Result<(), String> {
        let (u, v) = (self.vertex(link.source)?, self.vertex(link.target)?);
        self.links += 1;
        if self.ids[u as usize] != self.ids[v as usize] {
            self.between += 1;
            return Ok(());
        }
        self.store.extend(&[[self.first + u, self.first + v]]).map_err(|e| e.to_string())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Links<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Links<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a graph with nodes and links")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "directed" => self.directed = Some(map.next_value()?),
                "nodes" => {
                    map.next_value_seed(each(|node: Node| {
                        self.vertex(node.id)?;
                        self.nodes += 1;
                        Ok(())
                    }))?;
                }
                "links" | "edges" => map.next_value_seed(each(|link: Link| self.link(&link)))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Passes the elements of a list to a function, one by one.
struct Each<T, F>(F, PhantomData<T>);

/// Passes each element of a list to a function.
fn each<T, F: FnMut(T) -> std::result::Result<(), String>>(take: F) -> Each<T, F> {
    Each(take, PhantomData)
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> std::result::Result<(), String>> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> std::result::Result<(), String>> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> std::result::Result<(), A::Error> {
        while let Some(element) = list.next_element::<T>()? {
            self.0(element).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}
