//! Writing a dataset to a directory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use bytemuck::Pod;
use lapidary_arrays::NO_LABEL;

use super::Dataset;
use super::edge_weights;
use super::error::{Error, Result};
use super::features::Features;
use super::labels::Labels;
use super::manifest::{self, Manifest};
use super::npy::{self, Dtype};
use super::open::check_path;
use super::relabel;
use super::split::{NAMES, TRAIN, ids};
use crate::graph::Permutation;

impl Dataset {
    /// Writes a dataset directory that [`Dataset::open`] and numpy read.
    ///
    /// The write is all or nothing: files go into a new directory beside `dir`, which is renamed to `dir` when all of
    /// them are on disk. Features are written as f32, and splits as ascending ids. If the dataset was relabelled, its
    /// permutation is in `permutation.npy`.
    ///
    /// # Errors
    /// As [`Dataset::check_destination`]; [`Error::Io`], which leaves nothing behind.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.write_with(dir.as_ref(), |_| Ok(()))
    }

    /// Checks whether a dataset could be written to `dir`. Call it before long work.
    ///
    /// # Errors
    /// [`Error::Option`] if `dir` is an empty path, the working directory or a mount point; [`Error::Exists`] if it exists and
    /// is not an empty directory.
    pub fn check_destination(dir: impl AsRef<Path>) -> Result<()> {
        check_path(dir.as_ref())?;
        refuse_if_full(dir.as_ref())?;
        refuse_if_fixed(dir.as_ref())
    }

    /// Writes the dataset, and the files that `more` adds.
    pub(crate) fn write_with(&self, dir: &Path, more: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.write_directory(dir, self.features.as_ref().map(|features| (features, None)), more)
    }

    /// Writes the dataset, but with the rows of `features` in the order beside them, and the files that `more` adds.
    pub(super) fn write_directory(
        &self,
        dir: &Path,
        features: Option<(&Features, Option<&Permutation>)>,
        more: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        Self::check_destination(dir)?;
        // A link to an empty directory stays: the dataset takes the place of the directory.
        let dir = &dir.canonicalize().unwrap_or_else(|_| dir.into());
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".dataset-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The same mode as any other directory: the umask applies.
            builder.permissions(fs::Permissions::from_mode(0o777));
        }
        let temporary = builder.tempdir_in(parent).map_err(Error::io("make a temporary directory in", parent))?;
        self.write_files(temporary.path(), features)?;
        more(temporary.path())?;
        if cfg!(unix) {
            // The entries of the directory are on disk before it gets its name.
            let synced = File::open(temporary.path()).and_then(|directory| directory.sync_all());
            synced.map_err(Error::io("write", temporary.path()))?;
        }
        fs::rename(temporary.path(), dir).map_err(|source| {
            // Another process may have filled it in the meantime.
            refuse_if_full(dir).err().unwrap_or(Error::Io {
                action: "move the new dataset to",
                path: dir.into(),
                source,
            })
        })?;
        // The directory was renamed: there is nothing to clean up.
        let _ = temporary.keep();
        Ok(())
    }

    fn write_files(&self, dir: &Path, features: Option<(&Features, Option<&Permutation>)>) -> Result<()> {
        let vertices = self.graph.vertex_count();
        let graph = &self.graph;
        put(dir, "indptr", Dtype::I64, &[vertices + 1], graph.indptr())?;
        put(dir, "indices", Dtype::U32, &[graph.edge_count()], graph.indices())?;
        if let Some(weights) = &self.edge_weights {
            put(dir, edge_weights::NAME, Dtype::F32, &[graph.edge_count()], weights)?;
        }
        if let Some((features, order)) = features {
            put_features(dir, features, order)?;
        }
        if let Some(permutation) = &self.permutation {
            put(dir, relabel::NAME, Dtype::U32, &[vertices], permutation.old_of_new())?;
        }
        match &self.labels {
            None => {}
            Some(Labels::Class(labels)) => {
                let wide = |&label: &u32| if label == NO_LABEL { -1 } else { i64::from(label) };
                let labels: Vec<i64> = labels.iter().map(wide).collect();
                put(dir, "labels", Dtype::I64, &[vertices], &labels)?;
            }
            Some(Labels::Multi { data, classes }) => put(dir, "labels", Dtype::U8, &[vertices, *classes], data)?,
        }
        for (which, name) in (TRAIN..).zip(NAMES) {
            let ids = ids(&self.split, which);
            if !ids.is_empty() {
                put(dir, name, Dtype::I64, &[ids.len()], &ids)?;
            }
        }
        if let Some(graph_ids) = &self.graph_ids {
            put(dir, "graph_ids", Dtype::I64, &[vertices], graph_ids)?;
        }
        let manifest = Manifest {
            name: self.name.clone(),
            vertices: vertices as u64,
            edges: graph.edge_count() as u64,
            directed: self.directed,
            source: self.source.clone(),
            licence: self.licence.clone(),
            feature_width: features.map(|(features, _)| features.width() as u64),
            classes: self.labels.as_ref().map(|_| self.classes as u64),
            class_names: self.class_names.as_ref().map(|names| names.to_vec()),
            feature_norm: self.feature_norm,
            permutation: self.permutation.as_ref().map(|_| manifest::PERMUTATION.into()),
        };
        put_file(&dir.join(manifest::FILE), |to| to.write_all(manifest.to_text().as_bytes()))
    }
}

fn refuse_if_full(dir: &Path) -> Result<()> {
    let full = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        // A path that does not exist is what we want; a plain file of that name is not.
        Err(_) => dir.symlink_metadata().is_ok(),
    };
    if full { Err(Error::Exists { path: dir.into() }) } else { Ok(()) }
}

/// Refuses an empty directory that no other can take the place of.
fn refuse_if_fixed(dir: &Path) -> Result<()> {
    let Ok(real) = dir.canonicalize() else { return Ok(()) };
    let found = match std::env::current_dir().and_then(|here| here.canonicalize()) {
        Ok(here) if here == real => "the working directory",
        _ if is_mount_point(&real) => "a mount point",
        _ => return Ok(()),
    };
    let (option, expected) = ("the path of the dataset", "the name of a new directory".into());
    Err(Error::Option { option, found: found.into(), expected })
}

#[cfg(unix)]
fn is_mount_point(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| path.metadata().map(|of| of.dev()).ok();
    dir.parent().is_none_or(|parent| device(parent) != device(dir))
}

#[cfg(not(unix))]
fn is_mount_point(dir: &Path) -> bool {
    dir.parent().is_none()
}

/// Writes the files of features, with their rows in the given order.
fn put_features(dir: &Path, features: &Features, order: Option<&Permutation>) -> Result<()> {
    match features {
        Features::Dense(dense) => {
            let width = dense.width();
            let order = order.map(|order| (order, |v: usize| v * width..(v + 1) * width));
            put_rows(dir, "features", Dtype::F32, &[dense.rows(), width], dense.data(), order)
        }
        Features::Sparse(sparse) => {
            let (indptr, cells) = (sparse.indptr(), sparse.indices().len());
            match order {
                None => put(dir, "features_indptr", Dtype::I64, &[indptr.len()], indptr)?,
                Some(order) => put(dir, "features_indptr", Dtype::I64, &[indptr.len()], &order.offsets(indptr))?,
            }
            let order = order.map(|order| (order, |v: usize| indptr[v] as usize..indptr[v + 1] as usize));
            put_rows(dir, "features_indices", Dtype::U32, &[cells], sparse.indices(), order)?;
            put_rows(dir, "features_values", Dtype::F32, &[cells], sparse.values(), order)
        }
    }
}

/// Writes an array in which each vertex has the range of elements that the function returns. With an order, its vertices
/// are written in that order.
fn put_rows<T: Pod>(
    dir: &Path,
    name: &str,
    dtype: Dtype,
    shape: &[usize],
    data: &[T],
    order: Option<(&Permutation, impl Fn(usize) -> Range<usize>)>,
) -> Result<()> {
    let Some((order, row)) = order else { return put(dir, name, dtype, shape, data) };
    put_file(&dir.join(format!("{name}.npy")), |to| {
        npy::write_header(&mut *to, dtype, shape)?;
        let mut rows = order.old_of_new().iter().map(|&old| &data[row(old as usize)]);
        rows.try_for_each(|row| to.write_all(bytemuck::cast_slice(row)))
    })
}

fn put<T: Pod>(dir: &Path, name: &str, dtype: Dtype, shape: &[usize], data: &[T]) -> Result<()> {
    put_file(&dir.join(format!("{name}.npy")), |to| npy::write(to, dtype, shape, data))
}

/// Writes one file. It is on disk when this returns.
pub(crate) fn put_file(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    let file = File::create_new(path).map_err(Error::io("create", path))?;
    let mut to = BufWriter::new(file);
    fill(&mut to).and_then(|()| to.flush()).and_then(|()| to.get_ref().sync_all()).map_err(Error::io("write", path))
}
