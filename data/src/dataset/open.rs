//! Opening a directory of `.npy` files as a dataset.

use std::path::Path;

use half::f16;
use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::Dataset;
use super::build::{Origin, Parts, RawFeatures, RawLabels, checked_graph};
use super::edge_weights;
use super::error::{Error, Result};
use super::features::{Dense, Features};
use super::manifest::{self, Manifest};
use super::npy::{Dtype, NpyFile};
use super::relabel;
use super::split::{Members, NAMES};
use super::stamp::Stamp;
use crate::graph::{Graph, GraphError};

/// The arrays that a dataset directory can have.
const FILES: [&str; 13] = [
    "indptr",
    "indices",
    edge_weights::NAME,
    "features",
    "features_indptr",
    "features_indices",
    "features_values",
    "labels",
    "train",
    "val",
    "test",
    "graph_ids",
    relabel::NAME,
];

/// The arrays of sparse features.
const SPARSE: [&str; 3] = ["features_indptr", "features_indices", "features_values"];

impl Dataset {
    /// Opens a dataset directory. Files are mapped, not read: an array is used in place unless it must be converted
    /// (i64 sources, half floats, labels and split ids). Half floats become f32, so they take twice as many bytes in
    /// memory as in their file.
    ///
    /// While the dataset lives, no other process may write to its files or truncate them, since mapped memory changes
    /// with the file; [`Dataset::check_files`] detects it. To replace a dataset, rename a new directory over it, as [`Dataset::write`] does.
    ///
    /// # Errors
    /// An empty path; a file that is missing, cut short, or of the wrong type, order or shape; values out of range;
    /// arrays that do not fit each other or `dataset.json`. Each error names the file and the position.
    /// # Cost
    /// Every byte is read once, mostly in parallel.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        check_path(dir)?;
        // A change from here on is detected by `Dataset::check_files`.
        let files = FILES.iter().filter_map(|name| Stamp::of(dir.join(format!("{name}.npy")))).collect();
        let manifest = Manifest::read(dir)?;
        let origin = Origin::Directory(dir.to_path_buf());
        let graph = open_graph(dir, &origin)?;
        let vertices = graph.vertex_count();
        let says = |key, stated: u64, found: usize, what: &str| {
            if stated == found as u64 {
                return Ok(());
            }
            let file = dir.join(manifest::FILE).display().to_string();
            Err(Error::Disagrees { file, key, stated: stated.to_string(), found: format!("{what} {found}") })
        };
        says("vertices", manifest.vertices, vertices, "indptr.npy has")?;
        says("edges", manifest.edges, graph.edge_count(), "indices.npy has")?;
        let features = open_features(dir, vertices, &manifest)?;
        let width = match &features {
            None => 0,
            Some(RawFeatures::Dense { width, .. } | RawFeatures::Sparse { width, .. }) => *width,
        };
        if let Some(stated) = manifest.feature_width {
            let what = if features.is_some() { "features.npy has" } else { "there is no features.npy: the width is" };
            says("feature_width", stated, width, what)?;
        }
        let mut splits = [None, None, None];
        for (members, name) in splits.iter_mut().zip(NAMES) {
            *members = open_split(dir, name)?;
        }
        let parts = Parts {
            directed: Some(manifest.directed),
            edge_weights: open_edge_weights(dir)?,
            features,
            labels: open_labels(dir)?,
            classes: manifest.classes.map(|classes| usize::try_from(classes).unwrap_or(usize::MAX)),
            class_names: manifest.class_names,
            splits,
            graph_ids: open_graph_ids(dir)?,
            permutation: open_permutation(dir, vertices, manifest.permutation)?,
            feature_norm: manifest.feature_norm,
            source: manifest.source,
            licence: manifest.licence,
            ..Parts::new(origin, manifest.name, graph)
        };
        let built = parts.build()?;
        let features = built.features.clone().map(|features| match features {
            Features::Dense(dense) => Features::Dense(located(dense, dir)),
            sparse => sparse,
        });
        Ok(Self { files, features, ..built })
    }
}

/// Refuses an empty path, which would otherwise mean the working directory.
pub(crate) fn check_path(dir: &Path) -> Result<()> {
    if dir.as_os_str().is_empty() {
        let (option, expected) = ("the path of the dataset", "the name of a directory".into());
        return Err(Error::Option { option, found: "empty".into(), expected });
    }
    Ok(())
}

/// Opens a file if it exists.
pub(super) fn open_if_there(
    dir: &Path,
    name: &str,
    dtypes: &[Dtype],
    expected: &'static str,
) -> Result<Option<NpyFile>> {
    let path = dir.join(format!("{name}.npy"));
    // If the file's existence cannot be determined, opening it reports why.
    if matches!(path.try_exists(), Ok(false)) {
        return Ok(None);
    }
    NpyFile::open(&path, "it was there a moment ago", dtypes, expected).map(Some)
}

/// Reads offsets: i64 on disk, u64 in memory.
fn open_offsets(dir: &Path, name: &str, needed: &'static str) -> Result<Shared<u64>> {
    let path = dir.join(format!("{name}.npy"));
    let npy = NpyFile::open(&path, needed, &[Dtype::I64], "int64 ('<i8')")?;
    npy.vector_len("[vertices + 1]")?;
    let offsets = npy.array::<i64>();
    check_not_negative(&npy.file, &offsets)?;
    Ok(offsets.reinterpret())
}

fn check_not_negative<T: Copy + PartialOrd + Default + ToString + Sync>(file: &str, values: &[T]) -> Result<()> {
    match values.par_iter().position_first(|value| *value < T::default()) {
        None => Ok(()),
        Some(position) => Err(Error::Value {
            file: file.into(),
            position,
            found: values[position].to_string(),
            expected: "a number that is not negative".into(),
        }),
    }
}

fn open_graph(dir: &Path, origin: &Origin) -> Result<Graph> {
    let indptr = open_offsets(dir, "indptr", "a dataset needs the offsets of its edges")?;
    let path = dir.join("indices.npy");
    let dtypes = [Dtype::U32, Dtype::I32, Dtype::I64];
    let expected = "uint32 ('<u4'), int32 ('<i4') or int64 ('<i8')";
    let npy = NpyFile::open(&path, "a dataset needs the sources of its edges", &dtypes, expected)?;
    npy.vector_len("[edges]")?;
    let indices = match npy.dtype {
        Dtype::I32 => {
            let indices = npy.array::<i32>();
            check_not_negative(&npy.file, &indices)?;
            indices.reinterpret()
        }
        Dtype::I64 => narrow(&npy, indptr.len().saturating_sub(1))?,
        _ => npy.array::<u32>(),
    };
    checked_graph(origin, indptr, indices)
}

fn open_edge_weights(dir: &Path) -> Result<Option<Shared<f32>>> {
    let Some(npy) = open_if_there(dir, edge_weights::NAME, &[Dtype::F32], "float32 ('<f4')")? else {
        return Ok(None);
    };
    npy.vector_len("[edges]")?;
    Ok(Some(npy.array()))
}

fn narrow(npy: &NpyFile, vertices: usize) -> Result<Shared<u32>> {
    let wide = npy.array::<i64>();
    if let Some(position) = wide.par_iter().position_first(|&u| u < 0 || u >= vertices as i64) {
        let expected = format!("a vertex, 0 to {}", vertices.saturating_sub(1));
        return Err(Error::Value { file: npy.file.clone(), position, found: wide[position].to_string(), expected });
    }
    if vertices > u32::MAX as usize {
        let problem = GraphError::TooManyVertices { vertices };
        return Err(Error::Graph { file: npy.file.clone(), problem });
    }
    Ok(wide.par_iter().map(|&u| u as u32).collect::<Vec<_>>().into())
}

/// Notes where the rows of features are, if they are used in place.
fn located(dense: Dense, dir: &Path) -> Dense {
    let path = dir.join("features.npy");
    match NpyFile::open(&path, "it was opened before", &[Dtype::F32], "float32 ('<f4')") {
        Ok(npy) => dense.mapped_from(&path, npy.data_offset()),
        // Half floats are converted.
        Err(_) => dense,
    }
}

fn open_features(dir: &Path, vertices: usize, manifest: &Manifest) -> Result<Option<RawFeatures>> {
    let sparse = SPARSE.iter().map(|name| dir.join(format!("{name}.npy"))).find(|path| path.exists());
    if let Some(npy) = open_if_there(dir, "features", &[Dtype::F32, Dtype::F16], "float32 ('<f4') or float16 ('<f2')")?
    {
        if let Some(sparse) = sparse {
            return Err(Error::TwoFeatures { dense: npy.file.clone(), sparse: sparse.display().to_string() });
        }
        let width = npy.expect_rows(vertices, "one row per vertex")?;
        let data = match npy.dtype {
            Dtype::F16 => {
                let half = npy.array::<f16>();
                half.par_iter().map(|x| x.to_f32()).collect::<Vec<_>>().into()
            }
            _ => npy.array::<f32>(),
        };
        return Ok(Some(RawFeatures::Dense { data, rows: vertices, width }));
    }
    if sparse.is_none() {
        return Ok(None);
    }
    let needed = "sparse features are features_indptr, features_indices and features_values";
    let indptr = open_offsets(dir, "features_indptr", needed)?;
    let columns = NpyFile::open(
        &dir.join("features_indices.npy"),
        needed,
        &[Dtype::U32, Dtype::I32],
        "uint32 ('<u4') or int32 ('<i4')",
    )?;
    columns.vector_len("[cells]")?;
    if columns.dtype == Dtype::I32 {
        check_not_negative(&columns.file, &columns.array::<i32>())?;
    }
    let values = NpyFile::open(&dir.join("features_values.npy"), needed, &[Dtype::F32], "float32 ('<f4')")?;
    values.expect_len(columns.shape[0], "one for each element of features_indices.npy")?;
    let Some(width) = manifest.feature_width else {
        return Err(Error::Disagrees {
            file: dir.join(manifest::FILE).display().to_string(),
            key: "feature_width",
            stated: "nothing".into(),
            found: "sparse features need it: their arrays do not show how wide they are".into(),
        });
    };
    // A width that is too large is refused together with the other parts.
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    Ok(Some(RawFeatures::Sparse { indptr, indices: columns.array(), values: values.array(), width }))
}

fn open_labels(dir: &Path) -> Result<Option<RawLabels>> {
    let expected = "int64 ('<i8') of one label per vertex, or uint8 ('|u1') of [vertices, classes]";
    let Some(npy) = open_if_there(dir, "labels", &[Dtype::I64, Dtype::U8], expected)? else {
        return Ok(None);
    };
    if npy.dtype == Dtype::U8 {
        let [rows, classes] = npy.shape[..] else {
            return Err(npy.wrong_shape("[vertices, classes] for uint8 labels"));
        };
        return Ok(Some(RawLabels::Multi { data: npy.array(), rows, classes }));
    }
    npy.vector_len("[vertices] for int64 labels")?;
    Ok(Some(RawLabels::Class(npy.array())))
}

fn open_split(dir: &Path, name: &str) -> Result<Option<Members>> {
    let expected = "int64 ('<i8') of vertex ids, or bool ('|b1') of [vertices]";
    let Some(npy) = open_if_there(dir, name, &[Dtype::I64, Dtype::Bool], expected)? else {
        return Ok(None);
    };
    npy.vector_len("a vector of vertex ids, or one bool per vertex")?;
    Ok(Some(match npy.dtype {
        Dtype::Bool => Members::Mask(npy.array::<u8>().iter().map(|&on| on != 0).collect()),
        _ => Members::Ids(npy.array::<i64>().to_vec()),
    }))
}

fn open_graph_ids(dir: &Path) -> Result<Option<Shared<i64>>> {
    let Some(npy) = open_if_there(dir, "graph_ids", &[Dtype::I64], "int64 ('<i8')")? else {
        return Ok(None);
    };
    npy.vector_len("[vertices]")?;
    Ok(Some(npy.array()))
}

/// Opens the original ids of the vertices. They exist if and only if the description says so: otherwise results would
/// come back in another order than the user's.
fn open_permutation(dir: &Path, vertices: usize, stated: Option<String>) -> Result<Option<Shared<u32>>> {
    let path = dir.join(manifest::PERMUTATION);
    let there = !matches!(path.try_exists(), Ok(false));
    let disagrees = |stated: String, found: &str| {
        let (file, key) = (dir.join(manifest::FILE).display().to_string(), "permutation");
        Err(Error::Disagrees { file, key, stated, found: found.into() })
    };
    match stated {
        None if there => return disagrees("nothing".into(), "there is a permutation.npy"),
        None => return Ok(None),
        Some(name) if name != manifest::PERMUTATION => {
            return disagrees(format!("`{name:.40}`"), "the file is always permutation.npy");
        }
        Some(_) => {}
    }
    let needed = "dataset.json says that the vertices were relabelled";
    let dtypes = [Dtype::U32, Dtype::I64];
    let npy = NpyFile::open(&path, needed, &dtypes, "uint32 ('<u4') or int64 ('<i8')")?;
    npy.vector_len("[vertices]")?;
    Ok(Some(if npy.dtype == Dtype::I64 { narrow(&npy, vertices)? } else { npy.array::<u32>() }))
}
