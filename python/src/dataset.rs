//! Datasets from files and from arrays of numpy.

use std::path::PathBuf;

use lapidary::graph::Graph;
use lapidary::{Arrays, Dataset, Error, dataset};
use numpy::{PyArray1, PyReadonlyArray1, PyReadonlyArray2, ToPyArray};
use pyo3::prelude::*;

use crate::error::raised;
use crate::lent::LentArray;

/// A dataset of the library.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativeDataset(pub(crate) Dataset);

/// What a dataset has beside its edges.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Rest<'py> {
    name: Option<String>,
    /// One after the other, row by row, and the number of columns.
    features: Option<(LentArray<'py, f32>, usize)>,
    sparse_features: Option<SparseFeatures<'py>>,
    labels: Option<PyReadonlyArray1<'py, i64>>,
    multi_labels: Option<PyReadonlyArray2<'py, u8>>,
    classes: Option<usize>,
    class_names: Option<Vec<String>>,
    train: Option<PyReadonlyArray1<'py, i64>>,
    val: Option<PyReadonlyArray1<'py, i64>>,
    test: Option<PyReadonlyArray1<'py, i64>>,
    graph_ids: Option<PyReadonlyArray1<'py, i64>>,
    feature_norm: Option<String>,
}

/// The arrays `indptr`, `indices` and `values` of a CSR, and the number of columns.
type SparseFeatures<'py> = (LentArray<'py, i64>, LentArray<'py, u32>, LentArray<'py, f32>, usize);

impl Rest<'_> {
    /// Adds everything to the edges.
    fn add_to(self, mut arrays: Arrays) -> PyResult<lapidary::Result<Arrays>> {
        if let Some(name) = self.name {
            arrays = arrays.name(name);
        }
        if let Some((cells, width)) = self.features {
            arrays = arrays.shared_features(cells.share()?, width);
        }
        if let Some((indptr, indices, values, width)) = self.sparse_features {
            let offsets = indptr.share()?.reinterpret::<u64>();
            arrays = arrays.sparse_features(offsets, indices.share()?, values.share()?, width);
        }
        if let Some(labels) = self.labels {
            arrays = arrays.labels(labels.as_slice()?);
        }
        if let Some(labels) = self.multi_labels {
            arrays = arrays.multi_labels(labels.as_array());
        }
        if let Some(classes) = self.classes {
            arrays = arrays.classes(classes);
        }
        if let Some(names) = self.class_names {
            arrays = arrays.class_names(names);
        }
        if let Some(ids) = self.train {
            arrays = arrays.train(ids.as_slice()?);
        }
        if let Some(ids) = self.val {
            arrays = arrays.val(ids.as_slice()?);
        }
        if let Some(ids) = self.test {
            arrays = arrays.test(ids.as_slice()?);
        }
        if let Some(ids) = self.graph_ids {
            arrays = arrays.graph_ids(ids.as_slice()?);
        }
        Ok(match self.feature_norm.map(|norm| norm.parse()).transpose() {
            Ok(None) => Ok(arrays),
            Ok(Some(norm)) => Ok(arrays.feature_norm(norm)),
            Err(error) => Err(Error::Dataset(error)),
        })
    }
}

/// Checks the arrays, without the GIL.
fn built(py: Python<'_>, arrays: lapidary::Result<Arrays>) -> PyResult<NativeDataset> {
    let made = py.detach(|| arrays.and_then(|arrays| Ok(Dataset::from_arrays(arrays)?)));
    made.map(NativeDataset).map_err(|error| raised(py, &error))
}

#[pymethods]
impl NativeDataset {
    /// Opens a dataset directory, or `builtin:NAME`.
    #[staticmethod]
    fn load(py: Python<'_>, spec: &str) -> PyResult<Self> {
        let loaded = py.detach(|| Dataset::load(spec));
        loaded.map(Self).map_err(|error| raised(py, &error.into()))
    }

    /// Takes a CSR over in-edges without a copy, with the weights of its edges.
    #[staticmethod]
    fn from_csr(
        py: Python<'_>,
        indptr: LentArray<'_, i64>,
        indices: LentArray<'_, u32>,
        edge_weights: Option<LentArray<'_, f32>>,
        rest: Rest<'_>,
    ) -> PyResult<Self> {
        let mut arrays = Arrays::csr(indptr.share()?.reinterpret::<u64>(), indices.share()?);
        if let Some(weights) = edge_weights {
            arrays = arrays.edge_weights(weights.share()?);
        }
        built(py, rest.add_to(arrays)?)
    }

    /// Sorts the edges from `ends.0[i]` to `ends.1[i]` among `vertices` vertices into a CSR, with their weights.
    #[staticmethod]
    fn from_edges(
        py: Python<'_>,
        vertices: usize,
        ends: (PyReadonlyArray1<'_, u32>, PyReadonlyArray1<'_, u32>),
        edge_weights: Option<PyReadonlyArray1<'_, f32>>,
        rest: Rest<'_>,
    ) -> PyResult<Self> {
        let weights = edge_weights.as_ref().map(|weights| weights.as_slice()).transpose()?;
        let (sources, targets) = (ends.0.as_slice()?, ends.1.as_slice()?);
        let graph = py.detach(|| {
            let edges: Vec<(u32, u32)> = sources.iter().copied().zip(targets.iter().copied()).collect();
            match weights {
                None => Graph::from_edges(vertices, &edges).map(|graph| (graph, None)),
                Some(weights) => {
                    Graph::from_edges_and_values(vertices, &edges, weights).map(|(graph, sorted)| (graph, Some(sorted)))
                }
            }
        });
        let wrong = |problem| raised(py, &dataset::Error::Graph { file: "`edges`".into(), problem }.into());
        let (graph, weights) = graph.map_err(wrong)?;
        let mut arrays = Arrays::new(graph);
        if let Some(weights) = weights {
            arrays = arrays.edge_weights(weights);
        }
        built(py, rest.add_to(arrays)?)
    }

    /// The names of the vertices in a dataset directory; `None` if it has no names.
    fn names_in(&self, py: Python<'_>, directory: PathBuf) -> PyResult<Option<Vec<String>>> {
        let vertices = self.0.graph().vertex_count();
        let names = dataset::VertexNames::open(&directory, vertices).map_err(|error| raised(py, &error.into()))?;
        let text = |names: &dataset::VertexNames, vertex| String::from_utf8_lossy(&names.get(vertex)).into_owned();
        Ok(names.map(|names| (0..vertices).map(|vertex| text(&names, vertex)).collect()))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn vertices(&self) -> usize {
        self.0.graph().vertex_count()
    }

    #[getter]
    fn edges(&self) -> usize {
        self.0.graph().edge_count()
    }

    #[getter]
    fn feature_width(&self) -> usize {
        self.0.feature_width()
    }

    #[getter]
    fn has_sparse_features(&self) -> bool {
        matches!(self.0.features(), Some(dataset::Features::Sparse(_)))
    }

    #[getter]
    fn classes(&self) -> usize {
        self.0.class_count()
    }

    #[getter]
    fn class_names(&self) -> Option<Vec<String>> {
        self.0.class_names().map(<[String]>::to_vec)
    }

    #[getter]
    fn directed(&self) -> bool {
        self.0.directed()
    }

    /// The number of labelled vertices in the splits train, val and test.
    #[getter]
    fn split_sizes(&self) -> [usize; 3] {
        [dataset::TRAIN, dataset::VAL, dataset::TEST].map(|split| self.0.labelled_split_size(split))
    }

    /// The labels, one per vertex and -1 for none; `None` if there are none, or several per vertex.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<i64>>> {
        let labels = self.0.labels()?;
        let dataset::Labels::Class(classes) = labels else { return None };
        let label = |(vertex, &class): (usize, &u32)| if labels.is_labelled(vertex) { i64::from(class) } else { -1 };
        Some(PyArray1::from_iter(py, classes.iter().enumerate().map(label)))
    }

    #[getter]
    fn has_several_labels(&self) -> bool {
        matches!(self.0.labels(), Some(dataset::Labels::Multi { .. }))
    }

    /// The split of each vertex: 0 for none, then as [`dataset::TRAIN`], [`dataset::VAL`] and [`dataset::TEST`].
    #[getter]
    fn split<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        self.0.split().to_pyarray(py)
    }

    /// The ids that the vertices had before they were relabelled; `None` if they were not.
    #[getter]
    fn permutation<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<u32>>> {
        self.0.permutation().map(|order| order.old_of_new().to_pyarray(py))
    }

    /// The address of each array: `indptr`, `indices`, dense features, weights of edges.
    fn addresses(&self) -> [Option<usize>; 4] {
        let graph = self.0.graph();
        let features = match self.0.features() {
            Some(dataset::Features::Dense(dense)) => Some(dense.data().as_ptr().addr()),
            _ => None,
        };
        let weights = self.0.edge_weights().map(|weights| weights.as_ptr().addr());
        [Some(graph.indptr().as_ptr().addr()), Some(graph.indices().as_ptr().addr()), features, weights]
    }
}
