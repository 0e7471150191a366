//! Datasets in numpy's `.npz` archives.

use std::path::Path;

use super::archive::Archive;
use super::job::{Job, Kind, Loaded, Options};
use super::numbers::Numbers;
use super::source::Meter;
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels, checked_graph};
use crate::dataset::error::{Error, Result};
use crate::dataset::npy::{Dtype, check_dtype};
use crate::dataset::rows::{Seen, tidy};
use crate::dataset::split::{Members, NAMES};
use crate::graph::Graph;

/// Reads an archive of `indptr`, `indices` and, as far as they are there, `x`, `y`, `train`, `val`, `test`.
///
/// Members may be stored or deflated; others are ignored. Rows of the CSR are sorted if they are not.
///
/// # Shapes
/// `indptr`: `[vertices + 1]`; `indices`: `[edges]`, sources by destination; `x`: `[vertices, width]`; `y`: `[vertices]`
/// of integers (-1: none), or u8 `[vertices, classes]`; splits: bool `[vertices]` or ids.
/// # Errors
/// Those of [`Dataset::open`]; `file` is then `ARCHIVE[member]`.
/// # Cost
/// O(size); memory is that of the dataset and a few hundred KB.
pub fn npz(source: &Path) -> Result<Dataset> {
    let options = Options::default();
    load(&Job::new(Kind::Npz, source, &options))?.parts.build()
}

/// Which of the kinds of archives this is.
pub(super) fn kind_of(source: &Path) -> Result<Kind> {
    let meter = Meter::new(None);
    let archive = Archive::open(&meter, source)?;
    Ok(if archive.has("indptr") {
        Kind::Npz
    } else if archive.has("adj_indptr") {
        Kind::GnnBenchmark
    } else if archive.has("edges") && archive.has("node_features") {
        Kind::Heterophilous
    } else {
        Kind::Npz
    })
}

/// A member that may be there, of one of these types and in C order.
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

pub(super) fn load(job: &Job<'_>) -> Result<Loaded> {
    let archive = &mut Archive::open(&job.meter, job.source)?;
    let origin = Origin::Archive(job.source.into());
    let required = |file: String| Error::Import { file, why: "is missing; an archive needs indptr and indices".into() };
    let not_negative = "a number that is not negative and fits";

    let missing = required(archive.place("indptr"));
    let (indptr, _) = member(archive, "indptr", &[Dtype::I64, Dtype::I32], "int64 or int32")?.ok_or(missing)?;
    indptr.vector_len("[vertices + 1]")?;
    let indptr: Vec<u64> = indptr.ints(not_negative, |x| u64::try_from(x).ok())?;
    let missing = required(archive.place("indices"));
    let dtypes = [Dtype::I32, Dtype::U32, Dtype::I64];
    let (indices, _) = member(archive, "indices", &dtypes, "int32, uint32 or int64")?.ok_or(missing)?;
    indices.vector_len("[edges]")?;
    let indices: Vec<u32> = indices.ints(not_negative, |x| u32::try_from(x).ok())?;
    let edges_listed = indices.len() as u64;
    let (graph, seen) = in_edges(job, &origin, indptr, indices)?;
    let stem = job.source.file_stem().map_or_else(|| "unnamed".into(), |stem| stem.to_string_lossy().into_owned());
    let mut parts = Parts::new(origin, stem, graph);

    let dtypes = [Dtype::F32, Dtype::F64, Dtype::F16];
    if let Some((x, _)) = member(archive, "x", &dtypes, "float32, float64 or float16")? {
        let [rows, width] = x.shape[..] else { return Err(x.wrong_shape("[vertices, width]")) };
        parts.features = Some(RawFeatures::Dense { data: x.floats()?.into(), rows, width });
    }
    let dtypes = [Dtype::I64, Dtype::I32, Dtype::U8];
    if let Some((y, dtype)) = member(archive, "y", &dtypes, "int64, int32 or uint8")? {
        parts.labels = Some(match y.shape[..] {
            [rows, classes] if dtype == Dtype::U8 => {
                let data: Vec<u8> = y.ints(not_negative, |x| u8::try_from(x).ok())?;
                RawLabels::Multi { data: data.into(), rows, classes }
            }
            [_] => RawLabels::Class(y.ints("a class", Some)?.into()),
            _ => return Err(y.wrong_shape("[vertices]")),
        });
    }
    for (members, name) in parts.splits.iter_mut().zip(NAMES) {
        let expected = "bool of [vertices], or int64 or int32 of vertex ids";
        let Some((split, dtype)) = member(archive, name, &[Dtype::Bool, Dtype::I64, Dtype::I32], expected)? else {
            continue;
        };
        split.vector_len(expected)?;
        *members = Some(match dtype {
            Dtype::Bool => Members::Mask(split.ints(expected, |x| Some(x != 0))?),
            _ => Members::Ids(split.ints(expected, Some)?),
        });
    }
    Ok(Loaded::new(parts, edges_listed, seen, job.rules.symmetrise))
}

/// The graph of a CSR over in-edges whose rows need not be sorted, by the rules.
pub(super) fn in_edges(
    job: &Job<'_>,
    origin: &Origin,
    mut indptr: Vec<u64>,
    mut indices: Vec<u32>,
) -> Result<(Graph, Seen)> {
    let rises = indptr.first() == Some(&0) && indptr.is_sorted() && indptr.last() == Some(&(indices.len() as u64));
    // Offsets that are no offsets are left to the check of the graph.
    let keep = job.rules.keep;
    if !rises || !job.rules.symmetrise {
        let seen = if rises { tidy(0, &mut indptr, &mut indices, keep) } else { Seen::default() };
        return Ok((checked_graph(origin, indptr.into(), indices.into())?, seen));
    }
    let vertices = indptr.len() - 1;
    if let Some(position) = indices.iter().position(|&u| u as usize >= vertices) {
        let problem = crate::graph::GraphError::SourceOutOfRange { position, found: indices[position], vertices };
        return Err(Error::Graph { file: origin.name("indices"), problem });
    }
    let mut store = job.store();
    let mut block = Vec::new();
    for (v, row) in indptr.windows(2).enumerate() {
        block.extend(indices[row[0] as usize..row[1] as usize].iter().map(|&u| [u, v as u32]));
        if block.len() >= 1 << 16 {
            store.extend(&block)?;
            block.clear();
        }
    }
    store.extend(&block)?;
    drop((indptr, indices));
    job.graph(store, vertices)
}
