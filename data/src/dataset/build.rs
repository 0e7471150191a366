//! The only constructor of [`Dataset`]: checks arrays from any origin against each other.

use std::path::PathBuf;
use std::sync::Arc;

use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::Dataset;
use super::edge_weights;
use super::error::{Error, Result};
use super::features::{Dense, FeatureNorm, Features, Sparse, SparseFiles};
use super::labels::{Labels, MAX_CLASSES};
use super::manifest;
use super::relabel;
use super::split::{self, Members, NAMES};
use crate::graph::{Graph, GraphError, MAX_VERTICES, Permutation, VertexOrder};
use crate::host;

/// Where the arrays come from. Errors use it to name them.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use some of it
pub(crate) enum Origin {
    Memory,
    Directory(PathBuf),
    Archive(PathBuf),
    /// Files of another program, which name the arrays differently.
    Import(PathBuf),
}

impl Origin {
    /// Returns the name of an array in messages: the path of its file, or its own name in memory.
    pub(crate) fn name(&self, array: &str) -> String {
        match self {
            Self::Memory => format!("`{array}`"),
            Self::Directory(dir) => dir.join(format!("{array}.npy")).display().to_string(),
            Self::Archive(path) => {
                // Archives use the conventional short names.
                let member = match array {
                    "features" => "x",
                    "labels" => "y",
                    other => other,
                };
                format!("{}[{member}]", path.display())
            }
            Self::Import(path) => format!("{}: the {array} in it", path.display()),
        }
    }

    fn manifest(&self) -> String {
        match self {
            Self::Memory | Self::Archive(_) | Self::Import(_) => "the caller".into(),
            Self::Directory(dir) => dir.join(manifest::FILE).display().to_string(),
        }
    }
}

/// Features before they are checked.
#[derive(Clone, Debug)]
pub(crate) enum RawFeatures {
    Dense { data: Shared<f32>, rows: usize, width: usize },
    Sparse { indptr: Shared<u64>, indices: Shared<u32>, values: Shared<f32>, width: usize },
}

/// Labels before they are checked.
#[derive(Clone, Debug)]
pub(crate) enum RawLabels {
    Class(Shared<i64>),
    Multi { data: Shared<u8>, rows: usize, classes: usize },
}

/// Everything that a dataset is made of, before it is checked.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub origin: Origin,
    pub name: String,
    pub graph: Graph,
    pub directed: Option<bool>,
    /// One for each edge, in the order of the graph.
    pub edge_weights: Option<Shared<f32>>,
    pub features: Option<RawFeatures>,
    pub labels: Option<RawLabels>,
    pub classes: Option<usize>,
    pub class_names: Option<Vec<String>>,
    pub splits: [Option<Members>; 3],
    pub graph_ids: Option<Shared<i64>>,
    /// The original id of each vertex, if the vertices were relabelled.
    pub permutation: Option<Shared<u32>>,
    pub feature_norm: Option<FeatureNorm>,
    pub source: Option<String>,
    pub licence: Option<String>,
    /// The files of arrays that are not where `origin` says, such as the splits that the options of an import name.
    pub files: Vec<(&'static str, String)>,
}

/// Checks a CSR; an error names the array that is wrong.
pub(crate) fn checked_graph(origin: &Origin, indptr: Shared<u64>, indices: Shared<u32>) -> Result<Graph> {
    Graph::new(indptr, indices).map_err(|problem| {
        let array = match problem {
            GraphError::SourceOutOfRange { .. } | GraphError::Unsorted { .. } => "indices",
            _ => "indptr",
        };
        Error::Graph { file: origin.name(array), problem }
    })
}

/// Returns what is wrong with the width of sparse features, if anything. The stored cells do not bound the width, and
/// transposing the features for training takes one 8-byte offset per column.
fn bad_sparse_width(width: usize, have_bytes: u64) -> Option<String> {
    if width == 0 {
        return Some("features have at least one column".into());
    }
    if width > MAX_VERTICES {
        return Some(format!("columns are 32-bit numbers: there are at most {MAX_VERTICES}"));
    }
    let shortage = host::shortage(8 * (width as u64 + 1), have_bytes)?;
    Some(format!("the offset of each column {shortage}"))
}

impl Parts {
    /// Starts from a graph alone.
    pub(crate) fn new(origin: Origin, name: String, graph: Graph) -> Self {
        Self {
            origin,
            name,
            graph,
            directed: None,
            edge_weights: None,
            features: None,
            labels: None,
            classes: None,
            class_names: None,
            splits: [None, None, None],
            graph_ids: None,
            permutation: None,
            feature_norm: None,
            source: None,
            licence: None,
            files: Vec::new(),
        }
    }

    /// Returns the name of an array in messages.
    fn file_of(&self, array: &str) -> String {
        let own = self.files.iter().find(|(name, _)| *name == array);
        own.map_or_else(|| self.origin.name(array), |(_, file)| file.clone())
    }

    /// Checks only what must hold before rows are dropped: one row per vertex, and ids that are vertices.
    #[cfg_attr(not(feature = "import"), allow(dead_code))] // only importers use it
    pub(crate) fn check_rows(&self) -> Result<()> {
        let vertices = self.graph.vertex_count();
        if let Some(weights) = &self.edge_weights {
            edge_weights::check(&self.graph, weights, || self.file_of(edge_weights::NAME))?;
        }
        self.check_features(vertices)?;
        self.check_labels(vertices)?;
        split::mark(vertices, self.named_splits())?;
        self.check_graph_ids(vertices, None)
    }

    /// Checks all parts and builds the dataset.
    ///
    /// # Cost
    /// O(size), mostly in parallel.
    pub(crate) fn build(self) -> Result<Dataset> {
        let vertices = self.graph.vertex_count();
        if vertices == 0 {
            return Err(Error::EmptyGraph { file: self.file_of("indptr") });
        }
        let directed = self.check_direction()?;
        if let Some(weights) = &self.edge_weights {
            edge_weights::check(&self.graph, weights, || self.file_of(edge_weights::NAME))?;
        }
        let features = self.check_features(vertices)?;
        let (labels, classes) = self.check_labels(vertices)?;
        self.check_class_names(classes)?;
        let split = split::mark(vertices, self.named_splits())?;
        let permutation = self.check_permutation(vertices)?;
        self.check_graph_ids(vertices, permutation.as_ref())?;
        Ok(Dataset {
            name: self.name,
            graph: self.graph,
            directed,
            edge_weights: self.edge_weights,
            features,
            labels,
            classes,
            class_names: self.class_names.map(Into::into),
            split: split.into(),
            graph_ids: self.graph_ids,
            permutation: permutation.map(Arc::new),
            feature_norm: self.feature_norm,
            made_features: None,
            source: self.source,
            licence: self.licence,
            order: VertexOrder::Own,
            fingerprint: Arc::default(),
            files: Arc::default(),
        })
    }

    /// Returns train, val and test, each with the name of its file.
    fn named_splits(&self) -> [Option<(&Members, String)>; 3] {
        [0, 1, 2].map(|which| self.splits[which].as_ref().map(|members| (members, self.file_of(NAMES[which]))))
    }

    fn check_direction(&self) -> Result<bool> {
        match self.directed {
            Some(true) => Ok(true),
            Some(false) if self.graph.is_symmetric() => Ok(false),
            Some(false) => Err(Error::Asymmetric { file: self.origin.manifest() }),
            None => Ok(!self.graph.is_symmetric()),
        }
    }

    fn wrong_rows(&self, array: &str, found: Vec<usize>, vertices: usize) -> Error {
        let expected = format!("{vertices} rows (one per vertex)");
        Error::Shape { file: self.file_of(array), found, expected }
    }

    fn check_features(&self, vertices: usize) -> Result<Option<Features>> {
        match &self.features {
            None => Ok(None),
            Some(RawFeatures::Dense { data, rows, width }) => {
                if *rows != vertices {
                    return Err(self.wrong_rows("features", vec![*rows, *width], vertices));
                }
                if *width == 0 {
                    let expected = format!("[{rows}, 1 or more columns]");
                    return Err(Error::Shape { file: self.file_of("features"), found: vec![*rows, 0], expected });
                }
                let dense = Dense::new(data.clone(), *rows, *width, &self.file_of("features"))?;
                Ok(Some(Features::Dense(dense)))
            }
            Some(RawFeatures::Sparse { indptr, indices, values, width }) => {
                if indptr.len() != vertices + 1 {
                    let expected = format!("[{}] (vertices + 1)", vertices + 1);
                    let file = self.file_of("features_indptr");
                    return Err(Error::Shape { file, found: vec![indptr.len()], expected });
                }
                if let Some(found) = bad_sparse_width(*width, host::memory_bytes()) {
                    let (file, stated) = (self.origin.manifest(), width.to_string());
                    return Err(Error::Disagrees { file, key: "feature_width", stated, found });
                }
                let files = SparseFiles {
                    indptr: self.file_of("features_indptr"),
                    indices: self.file_of("features_indices"),
                    values: self.file_of("features_values"),
                };
                let sparse = Sparse::new(indptr.clone(), indices.clone(), values.clone(), *width, &files)?;
                Ok(Some(Features::Sparse(sparse)))
            }
        }
    }

    fn check_labels(&self, vertices: usize) -> Result<(Option<Labels>, usize)> {
        let file = self.file_of("labels");
        if let Some(classes) = self.classes.filter(|&classes| classes > MAX_CLASSES) {
            let found = format!("at most {MAX_CLASSES} classes are supported");
            let stated = classes.to_string();
            return Err(Error::Disagrees { file: self.origin.manifest(), key: "classes", stated, found });
        }
        match &self.labels {
            None => match self.classes {
                Some(classes) if classes > 0 => Err(Error::Disagrees {
                    file: self.origin.manifest(),
                    key: "classes",
                    stated: classes.to_string(),
                    found: format!("there is no {file}"),
                }),
                _ => Ok((None, 0)),
            },
            Some(RawLabels::Class(labels)) => {
                if labels.len() != vertices {
                    return Err(self.wrong_rows("labels", vec![labels.len()], vertices));
                }
                let (labels, classes) = Labels::single(labels, self.classes, &file)?;
                Ok((Some(labels), classes))
            }
            Some(RawLabels::Multi { data, rows, classes }) => {
                if *rows != vertices {
                    return Err(self.wrong_rows("labels", vec![*rows, *classes], vertices));
                }
                if *classes == 0 {
                    let expected = format!("[{rows}, 1 or more classes]");
                    return Err(Error::Shape { file, found: vec![*rows, 0], expected });
                }
                if let Some(stated) = self.classes.filter(|stated| stated != classes) {
                    return Err(Error::Disagrees {
                        file: self.origin.manifest(),
                        key: "classes",
                        stated: stated.to_string(),
                        found: format!("{file} has {classes} columns"),
                    });
                }
                Ok((Some(Labels::multi(data.clone(), *classes, &file)?), *classes))
            }
        }
    }

    fn check_class_names(&self, classes: usize) -> Result<()> {
        match &self.class_names {
            Some(names) if names.len() != classes => Err(Error::Disagrees {
                file: self.origin.manifest(),
                key: "class_names",
                stated: format!("{} names", names.len()),
                found: format!("there are {classes} classes"),
            }),
            _ => Ok(()),
        }
    }

    fn check_permutation(&self, vertices: usize) -> Result<Option<Permutation>> {
        let Some(ids) = &self.permutation else { return Ok(None) };
        if ids.len() != vertices {
            return Err(self.wrong_rows(relabel::NAME, vec![ids.len()], vertices));
        }
        let bad = |position: usize| Error::Value {
            file: self.file_of(relabel::NAME),
            position,
            found: ids[position].to_string(),
            expected: format!("each vertex once, 0 to {}", vertices.saturating_sub(1)),
        };
        Permutation::checked(ids.to_vec()).map(Some).map_err(bad)
    }

    /// Graph ids ascend in the original order of the vertices.
    fn check_graph_ids(&self, vertices: usize, permutation: Option<&Permutation>) -> Result<()> {
        let Some(ids) = &self.graph_ids else { return Ok(()) };
        if ids.len() != vertices {
            return Err(self.wrong_rows("graph_ids", vec![ids.len()], vertices));
        }
        let place = |original: usize| permutation.map_or(original, |order| order.new_of_old()[original] as usize);
        let id = |original: usize| ids[place(original)];
        match (1..vertices).into_par_iter().position_first(|v| id(v) < id(v - 1)) {
            None => Ok(()),
            Some(at) => Err(Error::GraphIds {
                file: self.file_of("graph_ids"),
                vertex: place(at + 1),
                found: id(at + 1),
                previous: id(at),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_width_is_bounded_by_its_type_and_by_the_memory() {
        let bad = |width, have| bad_sparse_width(width, have).unwrap_or_default();
        assert!(bad(0, 1 << 40).contains("at least one"));
        assert!(bad(MAX_VERTICES + 1, 1 << 40).contains("32-bit"));
        assert_eq!(bad(MAX_VERTICES, 1 << 40), "");
        assert_eq!(bad(MAX_VERTICES, 1 << 34), "the offset of each column needs 32.0 GiB, but this host has 16.0 GiB");
        assert_eq!(bad(1023, 8192), "");
        assert!(bad(1024, 8192).contains("this host has 8.00 KiB"));
    }
}
