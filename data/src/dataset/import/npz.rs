//! Importer for numpy's `.npz` archives.

use std::path::Path;

use super::archive::Archive;
use super::job::{Format, ImportJob, Loaded};
use super::numbers::Numbers;
use super::options::Options;
use super::source::Meter;
use super::weights::Decision;
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels, checked_graph};
use crate::dataset::edge_store::{Built, EdgeStore};
use crate::dataset::error::{Error, Result};
use crate::dataset::npy::{Dtype, check_dtype};
use crate::dataset::rows::{Seen, tidy};
use crate::dataset::split::Members;
use crate::graph::{Graph, GraphError, MAX_VERTICES};

/// Reads an archive of `indptr` and `indices`, or of PyTorch Geometric's `edge_index`. Also reads `x`, `y`, and
/// `train`, `val`, `test` or `train_mask`, `val_mask`, `test_mask` if they exist.
///
/// Edges may have weights: `edge_weight`, `edge_weights` or, beside `indices`, `data`.
///
/// Members may be stored or deflated; other members are ignored. Rows of the CSR are sorted if necessary.
///
/// # Shapes
/// `indptr`: `[vertices + 1]`; `indices`: `[edges]`, sources by destination; `edge_index`: `[2, edges]`, sources and
/// destinations; `x`: `[vertices, width]`; `y`: `[vertices]` of integers (-1: none), or u8 `[vertices, classes]`;
/// splits: bool `[vertices]` or ids.
/// # Errors
/// Those of [`Dataset::open`]; `file` is then `ARCHIVE[member]`.
/// # Cost
/// O(size); memory is that of the dataset plus a few hundred KB.
pub fn npz(source: &Path) -> Result<Dataset> {
    let options = Options::default();
    load(&ImportJob::new(Format::Npz, source, &options))?.parts.build()
}

/// Returns which of the formats of archives this is.
pub(super) fn kind_of(source: &Path) -> Result<Format> {
    let meter = Meter::new(None);
    let archive = Archive::open(&meter, source)?;
    Ok(if archive.has("indptr") || archive.has(EDGES) {
        Format::Npz
    } else if archive.has("adj_indptr") {
        Format::GnnBenchmark
    } else if archive.has("edges") && archive.has("node_features") {
        Format::Heterophilous
    } else {
        Format::Npz
    })
}

/// Reads an optional member, which must have one of these types and be in C order.
fn member<'a>(
    archive: &'a mut Archive<'_>,
    name: &str,
    dtypes: &[Dtype],
    expected: &'static str,
) -> Result<Option<(Numbers<'a>, Dtype)>> {
    let Some(numbers) = archive.optional(name)? else { return Ok(None) };
    let dtype = check_dtype(&numbers.place, &numbers.header, dtypes, expected)?;
    Ok(Some((numbers, dtype)))
}

/// Names of arrays: ours first, then those of PyTorch Geometric.
const EDGES: &str = "edge_index";
const WEIGHTS: [&str; 2] = ["edge_weight", "edge_weights"];
const SPLITS: [[&str; 2]; 3] = [["train", "train_mask"], ["val", "val_mask"], ["test", "test_mask"]];
/// The arrays that can define a graph.
const NEEDED: &str =
    "an archive needs indptr and indices (CSR over in-edges), or edge_index (sources over destinations)";
const NOT_NEGATIVE: &str = "a number that is not negative and fits";

pub(super) fn load(job: &ImportJob<'_>) -> Result<Loaded> {
    let archive = &mut Archive::open(&job.meter, job.source)?;
    let origin = Origin::Archive(job.source.into());
    let (built, edges_listed, decision) = match (archive.has("indptr"), archive.has(EDGES)) {
        (true, true) => return Err(archive.wrong("has both indptr and edge_index; which is the graph? remove one")),
        (_, true) => edge_index(job, archive)?,
        _ => csr(job, archive, &origin)?,
    };
    let stem = job.source.file_stem().map_or_else(|| "unnamed".into(), |stem| stem.to_string_lossy().into_owned());
    let Built { graph, weights, seen } = built;
    let mut parts = Parts { edge_weights: weights, ..Parts::new(origin, stem, graph) };

    let dtypes = [Dtype::F32, Dtype::F64, Dtype::F16];
    let vertices = parts.graph.vertex_count();
    if let Some((x, _)) = member(archive, "x", &dtypes, "float32, float64 or float16")? {
        let [rows, width] = x.shape[..] else { return Err(x.wrong_shape("[vertices, width]")) };
        expect_rows(&x, vertices)?;
        parts.features = Some(RawFeatures::Dense { data: x.floats()?.into(), rows, width });
    }
    let dtypes = [Dtype::I64, Dtype::I32, Dtype::U8];
    if let Some((y, dtype)) = member(archive, "y", &dtypes, "int64, int32 or uint8")? {
        if y.shape.len() <= 2 {
            expect_rows(&y, vertices)?;
        }
        parts.labels = Some(match y.shape[..] {
            [rows, classes] if classes > 1 && dtype == Dtype::U8 => {
                let data: Vec<u8> = y.ints(NOT_NEGATIVE, |x| u8::try_from(x).ok())?;
                RawLabels::Multi { data: data.into(), rows, classes }
            }
            [_] | [_, 1] => RawLabels::Class(y.ints("a class", Some)?.into()),
            _ => return Err(y.wrong_shape("[vertices]")),
        });
    }
    for (members, names) in parts.splits.iter_mut().zip(SPLITS) {
        let mut there = names.into_iter().filter(|name| archive.has(name));
        let Some(name) = there.next() else { continue };
        if let Some(other) = there.next() {
            return Err(archive.wrong(format!("has both {name} and {other}; remove one")));
        }
        *members = split(job, archive, name, vertices)?;
    }
    let mut loaded = Loaded::new(parts, edges_listed, seen, job.rules.symmetrise);
    (loaded.weights_from, loaded.values_dropped) = (decision.source(), decision.dropped);
    loaded.notes.extend(decision.note);
    loaded.notes.extend(archive.unread());
    Ok(loaded)
}

/// Checks the number of rows before they are read: a few KB can decompress into gigabytes.
fn expect_rows(array: &Numbers<'_>, vertices: usize) -> Result<()> {
    let fits = array.shape.first() == Some(&vertices);
    if fits { Ok(()) } else { Err(array.wrong_shape(format_args!("{vertices} rows (one per vertex)"))) }
}

/// Reads a split: ids or a mask. If there are several splits, reads the mask that `--split` selects.
fn split(job: &ImportJob<'_>, archive: &mut Archive<'_>, name: &str, vertices: usize) -> Result<Option<Members>> {
    let expected = "bool of [vertices], or int64 or int32 of vertex ids";
    let Some((split, dtype)) = member(archive, name, &[Dtype::Bool, Dtype::I64, Dtype::I32], expected)? else {
        return Ok(None);
    };
    let [_, splits] = split.shape[..] else {
        split.vector_len(expected)?;
        job.split_among(1, &split.place)?;
        match dtype {
            Dtype::Bool => split.expect_len(vertices, "one element per vertex")?,
            _ if split.shape[0] > vertices => {
                return Err(split.wrong_shape(format_args!("at most {vertices} ids (one per vertex)")));
            }
            _ => {}
        }
        return Ok(Some(match dtype {
            Dtype::Bool => Members::Mask(split.ints(expected, |x| Some(x != 0))?),
            _ => Members::Ids(split.ints(expected, Some)?),
        }));
    };
    if dtype != Dtype::Bool {
        return Err(split.wrong_shape("bool of [vertices] or [vertices, splits]"));
    }
    expect_rows(&split, vertices)?;
    let which = job.split_among(splits, &split.place)?;
    let all: Vec<bool> = split.ints(expected, |x| Some(x != 0))?;
    Ok(Some(Members::Mask(all.chunks_exact(splits).map(|row| row[which]).collect())))
}

/// Reads `indptr` and `indices`.
fn csr(job: &ImportJob<'_>, archive: &mut Archive<'_>, origin: &Origin) -> Result<(Built, u64, Decision)> {
    let required = |file: String| Error::Import { file, why: format!("is missing; {NEEDED}") };
    let missing = required(archive.place("indptr"));
    let (indptr, _) = member(archive, "indptr", &[Dtype::I64, Dtype::I32], "int64 or int32")?.ok_or(missing)?;
    let vertices = indptr.vector_len("[vertices + 1]")?.saturating_sub(1);
    drop(indptr);
    // The number of edges stands in a header, so a false number of vertices is found before their offsets are read.
    let missing = required(archive.place("indices"));
    let dtypes = [Dtype::I32, Dtype::U32, Dtype::I64];
    let (indices, _) = member(archive, "indices", &dtypes, "int32, uint32 or int64")?.ok_or(missing)?;
    let edges = indices.vector_len("[edges]")?;
    job.check_vertices(vertices, edges as u64)?;
    drop(indices);
    let plain = [&WEIGHTS[..], &["data"]].concat();
    let decision = Decision::on(job, archive, &plain, &["data"], edges)?;
    let indptr = archive.numbers("indptr", NEEDED)?;
    let indptr: Vec<u64> = indptr.ints(NOT_NEGATIVE, |x| u64::try_from(x).ok())?;
    let indices = archive.numbers("indices", NEEDED)?;
    let indices: Vec<u32> = indices.ints(NOT_NEGATIVE, |x| u32::try_from(x).ok())?;
    let edges_listed = indices.len() as u64;
    if decision.kept.is_none() || !rises(&indptr, &indices) {
        let (graph, seen) = in_edges(job, origin, indptr, indices)?;
        return Ok((Built { graph, weights: None, seen }, edges_listed, decision));
    }
    let mut store = listed(job.store_with(true), origin, &indptr, &indices)?;
    drop((indptr, indices));
    decision.read(archive, &mut store)?;
    Ok((job.build(store, vertices)?, edges_listed, decision))
}

/// Reads PyTorch Geometric's `edge_index`: the sources of all edges, then their destinations. The number of vertices is
/// `num_nodes`, else the rows of `x`, `y` or `train_mask`, else the greatest end plus 1.
fn edge_index(job: &ImportJob<'_>, archive: &mut Archive<'_>) -> Result<(Built, u64, Decision)> {
    let mut rows = None;
    if let Some(number) = archive.optional("num_nodes")? {
        if number.shape.iter().any(|&axis| axis != 1) {
            return Err(number.wrong_shape("one number"));
        }
        rows = number.ints(NOT_NEGATIVE, |x| usize::try_from(x).ok())?.first().copied();
    }
    for name in ["x", "y", "train_mask"] {
        if rows.is_none() && archive.has(name) {
            rows = archive.optional(name)?.and_then(|array| array.shape.first().copied());
        }
    }
    let dtypes = [Dtype::I64, Dtype::I32, Dtype::U32];
    let Some((ends, _)) = member(archive, EDGES, &dtypes, "int64, int32 or uint32")? else {
        return Err(archive.wrong(NEEDED));
    };
    let [2, edges] = ends.shape[..] else { return Err(ends.wrong_shape("[2, edges] (sources, destinations)")) };
    drop(ends);
    let decision = Decision::on(job, archive, &WEIGHTS, &[], edges)?;
    let ends = archive.numbers(EDGES, NEEDED)?;
    let place = ends.place.clone();
    let expected = rows.map_or(NOT_NEGATIVE.into(), |rows| format!("a vertex: 0 to {}", rows.max(1) - 1));
    let most = rows.unwrap_or(MAX_VERTICES).min(MAX_VERTICES) as i64;
    let ends: Vec<u32> = ends.ints(&expected, |x| u32::try_from(x).ok().filter(|_| x < most))?;
    let greatest = ends.iter().max().map_or(0, |&end| end as usize + 1);
    let (sources, destinations) = ends.split_at(edges);
    let mut store = job.store_with(decision.kept.is_some());
    store.extend_columns(sources, destinations)?;
    let vertices = rows.unwrap_or(greatest);
    if vertices > MAX_VERTICES {
        return Err(Error::Graph { file: place, problem: GraphError::TooManyVertices { vertices } });
    }
    drop(ends);
    decision.read(archive, &mut store)?;
    Ok((job.build(store, vertices)?, edges as u64, decision))
}

/// Builds the graph of a CSR over in-edges by the rules. Its rows need not be sorted.
pub(super) fn in_edges(
    job: &ImportJob<'_>,
    origin: &Origin,
    mut indptr: Vec<u64>,
    mut indices: Vec<u32>,
) -> Result<(Graph, Seen)> {
    let rises = rises(&indptr, &indices);
    // Invalid offsets are left to the check of the graph, which reports them.
    let keep = job.rules.keep;
    if !rises || !job.rules.symmetrise {
        let seen = if rises { tidy(0, &mut indptr, &mut indices, keep) } else { Seen::default() };
        return Ok((checked_graph(origin, indptr.into(), indices.into())?, seen));
    }
    let vertices = indptr.len() - 1;
    let store = listed(job.store(), origin, &indptr, &indices)?;
    drop((indptr, indices));
    job.graph(store, vertices)
}

/// Returns whether offsets rise from 0 to the number of edges.
fn rises(indptr: &[u64], indices: &[u32]) -> bool {
    indptr.first() == Some(&0) && indptr.is_sorted() && indptr.last() == Some(&(indices.len() as u64))
}

/// Appends the edges of a CSR over in-edges to a store, in their order.
fn listed(mut store: EdgeStore, origin: &Origin, indptr: &[u64], indices: &[u32]) -> Result<EdgeStore> {
    let vertices = indptr.len() - 1;
    if let Some(position) = indices.iter().position(|&u| u as usize >= vertices) {
        let problem = GraphError::SourceOutOfRange { position, found: indices[position], vertices };
        return Err(Error::Graph { file: origin.name("indices"), problem });
    }
    let mut block = Vec::new();
    for (v, row) in indptr.windows(2).enumerate() {
        block.extend(indices[row[0] as usize..row[1] as usize].iter().map(|&u| [u, v as u32]));
        if block.len() >= 1 << 16 {
            store.extend(&block)?;
            block.clear();
        }
    }
    store.extend(&block)?;
    Ok(store)
}
