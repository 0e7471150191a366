//! Importers for scipy's sparse matrices: shchur/gnn-benchmark, DGL's Reddit, GraphSAINT.
//!
//! The rows of these matrices are sources: cell (u, v) is the edge u -> v, as in PyTorch Geometric.

use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::archive::Archive;
use super::job::{ImportJob, Loaded, dense, labels};
use super::numbers::{Numbers, int_pairs};
use super::source::{Meter, Metered};
use super::weights::Decision;
use crate::dataset::build::{RawFeatures, RawLabels};
use crate::dataset::edge_store::{Built, EdgeStore};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::Members;
use crate::host;

/// Reads an archive with `adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`, the same for `attr` (or `attr_matrix`),
/// and `labels`.
///
/// Feature values are kept; PyTorch Geometric sets those above 0 to 1. These datasets have no splits.
///
/// # Source
/// Shchur, Mumme, Bojchevski & Günnemann 2018, and their loader.
pub(super) fn gnn_benchmark(job: &ImportJob<'_>) -> Result<Loaded> {
    let archive = &mut Archive::open(&job.meter, job.source)?;
    if !archive.has("adj_indptr") {
        let found = archive.names();
        return Err(archive.wrong(format!("has no adj_indptr, expected adj_data, adj_indices, ...; it holds {found}")));
    }
    let matrix = out_edges(job, archive, "adj_")?;
    let vertices = matrix.vertices;
    let mut loaded = matrix.load(job)?;
    let parts = &mut loaded.parts;
    parts.directed = job.rules.symmetrise.then_some(false);
    if archive.has("attr_indptr") {
        parts.features = Some(sparse(archive, vertices)?);
    } else if let Some(matrix) = archive.optional("attr_matrix")? {
        parts.features = Some(dense(matrix, vertices)?);
    }
    if let Some(numbers) = archive.optional("labels")? {
        parts.labels = Some(labels(numbers, vertices)?);
    } else if archive.has("labels_indptr") {
        parts.labels = Some(marked(archive, vertices)?);
    }
    parts.source = Some("shchur/gnn-benchmark".into());
    loaded.notes.extend(archive.unread());
    Ok(loaded)
}

/// Reads a folder with `reddit_graph.npz`, a COO matrix, and `reddit_data.npz`: `feature`, `label`, `node_types` (1
/// training, 2 validation, 3 test).
pub(super) fn reddit(job: &ImportJob<'_>) -> Result<Loaded> {
    let data = job.source.join("reddit_data.npz");
    let path = job.source.join("reddit_graph.npz");
    let mut archive = Archive::open(&job.meter, &path)?;
    let matrix =
        if archive.has("indptr") { out_edges(job, &mut archive, "")? } else { coordinates(job, &path, archive)? };
    let vertices = matrix.vertices;
    let mut loaded = matrix.load(job)?;
    let parts = &mut loaded.parts;
    let archive = &mut Archive::open(&job.meter, &data)?;
    parts.features = Some(dense(archive.numbers("feature", "it has the features")?, vertices)?);
    parts.labels = Some(labels(archive.numbers("label", "it has the labels")?, vertices)?);
    let types = archive.numbers("node_types", "it has the splits")?;
    types.expect_len(vertices, "one per vertex")?;
    let types: Vec<u8> =
        types.ints("0 to 3 (none, training, validation, testing)", |x| (0..4).contains(&x).then_some(x as u8))?;
    let mask = |which: u8| Some(Members::Mask(types.iter().map(|&found| found == which).collect()));
    parts.splits = [mask(1), mask(2), mask(3)];
    parts.name = "reddit".into();
    parts.source = Some("DGL's Reddit, after GraphSAGE".into());
    Ok(loaded)
}

/// Reads a folder with `adj_full.npz`, `feats.npy`, `class_map.json` (for each vertex a class, or a list of 0 and 1)
/// and `role.json` (`tr`, `va`, `te`).
pub(super) fn graphsaint(job: &ImportJob<'_>) -> Result<Loaded> {
    let path = job.source.join("adj_full.npz");
    let archive = &mut Archive::open(&job.meter, &path)?;
    if let Some(format) = archive.text("format")?.filter(|format| format != "csr") {
        return Err(archive.wrong(format!("is a matrix of format `{format:.10}`, expected csr")));
    }
    let matrix = out_edges(job, archive, "")?;
    let vertices = matrix.vertices;
    let mut loaded = matrix.load(job)?;
    let parts = &mut loaded.parts;
    let features = Numbers::open(&job.meter, &job.source.join("feats.npy"), "it has the features")?;
    parts.features = Some(dense(features, vertices)?);
    let map = class_map(&job.meter, &job.source.join("class_map.json"), vertices)?;
    parts.labels = Some(map);
    let role: Roles = json(&job.meter, &job.source.join("role.json"), "it has the splits")?;
    parts.splits = [role.tr, role.va, role.te].map(|ids| Some(Members::Ids(ids)));
    parts.source = Some("GraphSAINT".into());
    Ok(loaded)
}

/// The edges of an adjacency matrix.
struct Matrix {
    vertices: usize,
    store: EdgeStore,
    decision: Decision,
}

impl Matrix {
    /// Builds the graph by the rules.
    fn load(self, job: &ImportJob<'_>) -> Result<Loaded> {
        let edges_listed = self.store.len();
        let Built { graph, weights, seen } = job.build(self.store, self.vertices)?;
        let parts = job.weighted_parts(graph, weights);
        let Decision { dropped, .. } = self.decision;
        let (values_dropped, weights_from) = (dropped, self.decision.source());
        let notes = self.decision.note.into_iter().collect();
        let loaded = Loaded::new(parts, edges_listed, seen, job.rules.symmetrise);
        Ok(Loaded { values_dropped, weights_from, notes, ..loaded })
    }
}

/// Returns the side of a square matrix.
fn square(place: &str, [rows, columns]: [usize; 2]) -> Result<usize> {
    if rows == columns {
        return Ok(rows);
    }
    let why = format!("is {rows} by {columns}, expected a square matrix: a vertex is a row and a column");
    Err(Error::Import { file: place.into(), why })
}

/// Converts a number to a vertex, or returns an error.
fn vertex(place: &str, position: usize, found: i64, vertices: usize) -> Result<u32> {
    if (0..vertices as i64).contains(&found) {
        return Ok(found as u32);
    }
    let expected = format!("a vertex, 0 to {}", vertices.saturating_sub(1));
    Err(Error::Value { file: place.into(), position, found: found.to_string(), expected })
}

/// Reads a CSR matrix whose rows are sources.
fn out_edges(job: &ImportJob<'_>, archive: &mut Archive<'_>, prefix: &str) -> Result<Matrix> {
    let name = |part: &str| format!("{prefix}{part}");
    let needed = "it is a part of the adjacency matrix";
    let vertices = square(&archive.place(&name("shape")), archive.matrix_shape(&name("shape"))?)?;
    // The lengths stand in headers, so a false number of vertices is found before their offsets are read.
    archive.numbers(&name("indptr"), needed)?.expect_len(vertices.saturating_add(1), "rows + 1")?;
    let edges = archive.numbers(&name("indices"), needed)?.vector_len("[edges]")?;
    job.check_vertices(vertices, edges as u64)?;
    let offsets = archive.numbers(&name("indptr"), needed)?;
    let place = offsets.place.clone();
    let indptr = offsets.offsets(Some(vertices + 1), "rows + 1")?;
    let indices = archive.numbers(&name("indices"), needed)?;
    check_offsets(&place, &indptr, edges)?;
    let place = indices.place.clone();
    drop(indices);
    let decision = Decision::on_matrix(job, archive, &name("data"), edges)?;
    let mut store = job.store_with(decision.kept.is_some());
    let indices = archive.numbers(&name("indices"), needed)?;
    let (mut position, mut row) = (0usize, 0usize);
    let mut block = Vec::new();
    indices.int_blocks(|columns| {
        block.clear();
        for &column in columns {
            while indptr[row + 1] <= position as u64 {
                row += 1;
            }
            block.push([row as u32, vertex(&place, position, column, vertices)?]);
            position += 1;
        }
        store.extend(&block)
    })?;
    decision.read(archive, &mut store)?;
    Ok(Matrix { vertices, store, decision })
}

/// Checks that offsets rise from 0 to the number of elements.
fn check_offsets(place: &str, indptr: &[u64], elements: usize) -> Result<()> {
    let rises = indptr.first() == Some(&0) && indptr.is_sorted();
    if rises && indptr.last() == Some(&(elements as u64)) {
        return Ok(());
    }
    let why = format!("does not rise from 0 to {elements}, the number of elements; rows cannot be told apart");
    Err(Error::Import { file: place.into(), why })
}

/// Reads a COO matrix. `row` and `col` are read in parallel, so the archive is opened twice.
fn coordinates(job: &ImportJob<'_>, path: &Path, mut archive: Archive<'_>) -> Result<Matrix> {
    let needed = "it is a part of the adjacency matrix";
    let vertices = square(&archive.place("shape"), archive.matrix_shape("shape")?)?;
    let edges = archive.numbers("row", needed)?.vector_len("[edges]")?;
    let decision = Decision::on_matrix(job, &mut archive, "data", edges)?;
    let mut other = Archive::open(&job.meter, path)?;
    let (rows, columns) = (archive.numbers("row", needed)?, other.numbers("col", needed)?);
    let (row_place, column_place) = (rows.place.clone(), columns.place.clone());
    let mut store = job.store_with(decision.kept.is_some());
    let mut block = Vec::new();
    let mut position = 0;
    int_pairs(rows, columns, |rows, columns| {
        block.clear();
        for (&row, &column) in rows.iter().zip(columns) {
            let u = vertex(&row_place, position, row, vertices)?;
            block.push([u, vertex(&column_place, position, column, vertices)?]);
            position += 1;
        }
        store.extend(&block)
    })?;
    decision.read(&mut Archive::open(&job.meter, path)?, &mut store)?;
    Ok(Matrix { vertices, store, decision })
}

/// Reads features in CSR. Columns need not ascend within a row, and cells that occur twice are added, as in scipy.
fn sparse(archive: &mut Archive<'_>, vertices: usize) -> Result<RawFeatures> {
    let needed = "it is a part of the feature matrix";
    let [rows, width] = archive.matrix_shape("attr_shape")?;
    if rows != vertices {
        let (file, expected) = (archive.place("attr_shape"), format!("{vertices} rows (one per vertex)"));
        return Err(Error::Shape { file, found: vec![rows, width], expected });
    }
    let offsets = archive.numbers("attr_indptr", needed)?;
    let place = offsets.place.clone();
    let mut indptr = offsets.offsets(Some(vertices + 1), "vertices + 1")?;
    let columns = archive.numbers("attr_indices", needed)?;
    let cells = columns.vector_len("[cells]")?;
    check_offsets(&place, &indptr, cells)?;
    let below = format!("a column, 0 to {}", width.saturating_sub(1));
    let mut indices: Vec<u32> = columns.ints(&below, |x| u32::try_from(x).ok().filter(|&x| (x as usize) < width))?;
    let data = archive.numbers("attr_data", needed)?;
    data.expect_len(cells, "one value per cell")?;
    let mut values = data.floats()?;
    join_cells(&mut indptr, &mut indices, &mut values);
    Ok(RawFeatures::Sparse { indptr: indptr.into(), indices: indices.into(), values: values.into(), width })
}

/// Sorts the columns of each row and adds the values of equal columns.
fn join_cells(indptr: &mut [u64], indices: &mut Vec<u32>, values: &mut Vec<f32>) {
    let mut to = 0;
    let mut from = 0;
    let mut row: Vec<(u32, f32)> = Vec::new();
    for offset in indptr.iter_mut().skip(1) {
        let end = *offset as usize;
        row.clear();
        row.extend(indices[from..end].iter().copied().zip(values[from..end].iter().copied()));
        row.sort_by_key(|&(column, _)| column);
        let start = to;
        for &(column, value) in &row {
            if to > start && indices[to - 1] == column {
                values[to - 1] += value;
            } else {
                (indices[to], values[to]) = (column, value);
                to += 1;
            }
        }
        from = end;
        *offset = to as u64;
    }
    indices.truncate(to);
    values.truncate(to);
}

/// Reads labels from a CSR matrix of 0 and 1 with one column per class.
fn marked(archive: &mut Archive<'_>, vertices: usize) -> Result<RawLabels> {
    let needed = "it is a part of the label matrix";
    let [rows, classes] = archive.matrix_shape("labels_shape")?;
    let offsets = archive.numbers("labels_indptr", needed)?;
    let place = offsets.place.clone();
    let indptr = offsets.offsets(Some(vertices + 1), "vertices + 1")?;
    let columns = archive.numbers("labels_indices", needed)?;
    check_offsets(&place, &indptr, columns.vector_len("[cells]")?)?;
    let columns: Vec<usize> = columns.ints("a class", |x| usize::try_from(x).ok().filter(|&x| x < classes))?;
    let cells = vertices.checked_mul(classes).filter(|_| rows == vertices).ok_or_else(|| Error::Shape {
        file: archive.place("labels_shape"),
        found: vec![rows, classes],
        expected: format!("{vertices} rows (one per vertex)"),
    })?;
    if let Some(shortage) = host::lack(cells as u64, host::free_bytes()) {
        return Err(archive.wrong(format!("has labels of {rows} by {classes}, which {shortage}")));
    }
    let mut data = vec![0u8; cells];
    for (v, range) in indptr.windows(2).enumerate() {
        columns[range[0] as usize..range[1] as usize].iter().for_each(|&class| data[v * classes + class] = 1);
    }
    Ok(RawLabels::Multi { data: data.into(), rows, classes })
}

#[derive(Deserialize)]
struct Roles {
    tr: Vec<i64>,
    va: Vec<i64>,
    te: Vec<i64>,
}

/// Returns a function that converts a JSON error to an import error.
pub(super) fn not_json(path: &Path) -> impl Fn(serde_json::Error) -> Error {
    let file = path.display().to_string();
    move |e| Error::Import { file: file.clone(), why: format!("is not the JSON that was expected: {e}") }
}

/// Opens a JSON file as a stream.
pub(super) fn json_file<'m>(
    meter: &'m Meter<'_>,
    path: &Path,
    needed: &'static str,
) -> Result<serde_json::Deserializer<serde_json::de::IoRead<BufReader<Metered<'m>>>>> {
    let file = meter.open(path, needed)?;
    Ok(serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 18, file)))
}

fn json<T: for<'de> Deserialize<'de>>(meter: &Meter<'_>, path: &Path, needed: &'static str) -> Result<T> {
    let mut from = json_file(meter, path, needed)?;
    let value = T::deserialize(&mut from).map_err(not_json(path))?;
    from.end().map_err(not_json(path))?;
    Ok(value)
}

/// Reads `{"0": 3, "1": 5}` or `{"0": [0, 1, 1], ...}`. A vertex that is not listed has no label.
fn class_map(meter: &Meter<'_>, path: &Path, vertices: usize) -> Result<RawLabels> {
    let mut from = json_file(meter, path, "it has the labels")?;
    let map = ClassMap { vertices, single: Vec::new(), multi: Vec::new(), classes: 0 };
    let map = map.deserialize(&mut from).map_err(not_json(path))?;
    from.end().map_err(not_json(path))?;
    Ok(match map.classes {
        0 => RawLabels::Class(map.single.into()),
        classes => RawLabels::Multi { data: map.multi.into(), rows: vertices, classes },
    })
}

/// The part of the map read so far. The first entry decides which of the two vectors is used.
struct ClassMap {
    vertices: usize,
    single: Vec<i64>,
    multi: Vec<u8>,
    classes: usize,
}

impl ClassMap {
    fn put(&mut self, key: &str, classes: Classes) -> std::result::Result<(), String> {
        let most = self.vertices.saturating_sub(1);
        let v: usize = key
            .parse()
            .ok()
            .filter(|&v| v < self.vertices)
            .ok_or_else(|| format!("vertex `{key:.40}`, expected 0 to {most}"))?;
        match classes {
            Classes::One(class) if self.classes == 0 => {
                self.single.resize(self.vertices, -1);
                self.single[v] = class;
            }
            Classes::Many(cells) if self.single.is_empty() && !cells.is_empty() => {
                if self.classes == 0 {
                    let bytes = self.vertices as u64 * cells.len() as u64;
                    if let Some(shortage) = host::lack(bytes, host::free_bytes()) {
                        return Err(format!(
                            "{} classes for each of {} vertices: that {shortage}",
                            cells.len(),
                            self.vertices
                        ));
                    }
                    self.classes = cells.len();
                    self.multi.resize(self.vertices * self.classes, 0);
                }
                if cells.len() != self.classes {
                    return Err(format!("vertex {v} has {} classes, the first one has {}", cells.len(), self.classes));
                }
                self.multi[v * self.classes..][..self.classes].copy_from_slice(&cells);
            }
            _ => {
                return Err(format!(
                    "vertex {v} has a class where others have lists, or a list where others have a class"
                ));
            }
        }
        Ok(())
    }
}

/// The labels of one vertex.
enum Classes {
    One(i64),
    Many(Vec<u8>),
}

impl<'de> Deserialize<'de> for Classes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Classes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a class, or a list of 0 and 1")
            }

            fn visit_i64<E>(self, class: i64) -> std::result::Result<Classes, E> {
                Ok(Classes::One(class))
            }

            fn visit_u64<E: serde::de::Error>(self, class: u64) -> std::result::Result<Classes, E> {
                i64::try_from(class).map(Classes::One).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut cells: A) -> std::result::Result<Classes, A::Error> {
                let mut many = Vec::new();
                while let Some(cell) = cells.next_element::<f64>()? {
                    if cell != 0.0 && cell != 1.0 {
                        return Err(serde::de::Error::custom(format_args!("{cell} in a list of 0 and 1")));
                    }
                    if many.len() > crate::dataset::labels::MAX_CLASSES {
                        return Err(serde::de::Error::custom("a list of more classes than are supported"));
                    }
                    many.push(cell as u8);
                }
                Ok(Classes::Many(many))
            }
        }
        from.deserialize_any(Reader)
    }
}

impl<'de> DeserializeSeed<'de> for ClassMap {
    type Value = Self;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ClassMap {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map from vertices to classes")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let classes = map.next_value::<Classes>()?;
            self.put(&key, classes).map_err(serde::de::Error::custom)?;
        }
        Ok(self)
    }
}
