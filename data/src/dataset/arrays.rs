//! Building a dataset from arrays in memory.

use lapidary_arrays::Shared;
use ndarray::{ArrayBase, Data, Ix2};

use super::Dataset;
use super::build::{Origin, Parts, RawFeatures, RawLabels, checked_graph};
use super::edge_weights;
use super::error::{Error, Result};
use super::features::FeatureNorm;
use super::split::Members;
use crate::graph::Graph;

/// The arrays of a dataset; [`Dataset::from_arrays`] checks them. Only the edges are required.
///
/// ```
/// use lapidary_data::dataset::{Arrays, Dataset, TRAIN};
/// use ndarray::array;
///
/// // A path of four vertices, with both directions of each edge.
/// let edges = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)];
/// let x = array![[1.0, 0.0], [1.0, 0.5], [0.0, 0.5], [0.0, 1.0]];
/// let data = Dataset::from_arrays(
///     Arrays::edges(4, &edges).name("path").features(x).labels(&[0, 0, 1, 1]).train(&[0, 3]).val(&[1]).test(&[2]),
/// )?;
/// assert_eq!((data.feature_width(), data.class_count(), data.split_size(TRAIN)), (2, 2, 2));
/// assert!(!data.directed());
/// # Ok::<(), lapidary_data::dataset::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Arrays {
    topology: Topology,
    rest: Rest,
}

#[derive(Clone, Debug)]
enum Topology {
    Graph(Graph),
    Csr(Shared<u64>, Shared<u32>),
    Edges(usize, Vec<(u32, u32)>),
}

#[derive(Clone, Debug, Default)]
struct Rest {
    name: Option<String>,
    directed: Option<bool>,
    edge_weights: Option<Shared<f32>>,
    features: Option<RawFeatures>,
    labels: Option<RawLabels>,
    classes: Option<usize>,
    class_names: Option<Vec<String>>,
    splits: [Option<Members>; 3],
    graph_ids: Option<Shared<i64>>,
    feature_norm: Option<FeatureNorm>,
    source: Option<String>,
    licence: Option<String>,
}

impl Arrays {
    /// Starts from a graph that exists already.
    pub fn new(graph: Graph) -> Self {
        Self { topology: Topology::Graph(graph), rest: Rest::default() }
    }

    /// Starts from a CSR over in-edges: row v lists the sources u of u -> v, ascending.
    ///
    /// # Shapes
    /// `indptr`: `[vertices + 1]`; `indices`: `[edges]`.
    pub fn csr(indptr: impl Into<Shared<u64>>, indices: impl Into<Shared<u32>>) -> Self {
        Self { topology: Topology::Csr(indptr.into(), indices.into()), rest: Rest::default() }
    }

    /// Starts from a list of edges (u, v), each u -> v, in any order. For an undirected graph, list both directions.
    pub fn edges(vertices: usize, edges: &[(u32, u32)]) -> Self {
        Self { topology: Topology::Edges(vertices, edges.to_vec()), rest: Rest::default() }
    }

    /// Sets the name of the dataset. The default is `unnamed`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.rest.name = Some(name.into());
        self
    }

    /// Sets whether edges have a direction. By default, a graph is directed if it is not symmetric.
    pub fn directed(mut self, directed: bool) -> Self {
        self.rest.directed = Some(directed);
        self
    }

    /// Sets the weight of each edge, `[edges]`: in the order of the list given to [`Arrays::edges`], otherwise in the order
    /// of the sources. Weights are finite; they may be negative.
    pub fn edge_weights(mut self, weights: impl Into<Shared<f32>>) -> Self {
        self.rest.edge_weights = Some(weights.into());
        self
    }

    /// Sets dense features, `[vertices, width]`. An owned matrix in C order is not copied.
    pub fn features<S: Data<Elem = f32>>(mut self, features: ArrayBase<S, Ix2>) -> Self {
        let (rows, width) = features.dim();
        let whole = features.is_standard_layout();
        let owned = features.into_owned();
        let data = if whole {
            let (data, offset) = owned.into_raw_vec_and_offset();
            match offset {
                // The vector of a matrix cut out of a larger one may have elements before and after it.
                Some(0) | None if data.len() == rows * width => data,
                offset => data.into_iter().skip(offset.unwrap_or(0)).take(rows * width).collect(),
            }
        } else {
            owned.iter().copied().collect()
        };
        self.rest.features = Some(RawFeatures::Dense { data: data.into(), rows, width });
        self
    }

    /// Sets dense features that may have other holders: the cells in C order. They are not copied.
    ///
    /// # Shapes
    /// `cells`: `[vertices * width]`.
    ///
    /// ```
    /// use lapidary_data::dataset::{Arrays, Dataset, Error, Features};
    ///
    /// let cells: lapidary_arrays::Shared<f32> = vec![1.0, 0.0, 1.0, 0.5, 0.0, 0.5].into();
    /// let arrays = Arrays::edges(3, &[(0, 1), (1, 2)]);
    /// let data = Dataset::from_arrays(arrays.clone().shared_features(cells.clone(), 2))?;
    /// let Some(Features::Dense(dense)) = data.features() else { unreachable!("they are dense") };
    /// assert_eq!(dense.data().as_ptr(), cells.as_ptr());
    ///
    /// let wrong = Dataset::from_arrays(arrays.shared_features(cells, 4));
    /// assert!(matches!(wrong, Err(Error::Shape { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn shared_features(mut self, cells: impl Into<Shared<f32>>, width: usize) -> Self {
        let data = cells.into();
        let rows = data.len().checked_div(width).unwrap_or(0);
        self.rest.features = Some(RawFeatures::Dense { data, rows, width });
        self
    }

    /// Sets sparse features as CSR. Columns ascend strictly within a row.
    ///
    /// # Shapes
    /// `indptr`: `[vertices + 1]`; `indices` and `values`: `[cells]`.
    pub fn sparse_features(
        mut self,
        indptr: impl Into<Shared<u64>>,
        indices: impl Into<Shared<u32>>,
        values: impl Into<Shared<f32>>,
        width: usize,
    ) -> Self {
        let (indptr, indices, values) = (indptr.into(), indices.into(), values.into());
        self.rest.features = Some(RawFeatures::Sparse { indptr, indices, values, width });
        self
    }

    /// Sets one label per vertex, -1 for none. Takes a slice, a vector or an `Array1` of integers.
    pub fn labels<'a, T: Copy + Into<i64> + 'a>(mut self, labels: impl IntoIterator<Item = &'a T>) -> Self {
        self.rest.labels = Some(RawLabels::Class(widen(labels).into()));
        self
    }

    /// Sets several labels per vertex: `[vertices, classes]` of 0 and 1.
    pub fn multi_labels<S: Data<Elem = u8>>(mut self, labels: ArrayBase<S, Ix2>) -> Self {
        let (rows, classes) = labels.dim();
        let data: Vec<u8> = labels.iter().copied().collect();
        self.rest.labels = Some(RawLabels::Multi { data: data.into(), rows, classes });
        self
    }

    /// Sets the number of classes. With one label per vertex, the default is the greatest label plus 1.
    pub fn classes(mut self, classes: usize) -> Self {
        self.rest.classes = Some(classes);
        self
    }

    /// Sets the names of the classes, which a checkpoint keeps. There is one per class.
    ///
    /// ```
    /// use lapidary_data::dataset::{Arrays, Dataset, Error};
    ///
    /// let arrays = Arrays::edges(2, &[(0, 1)]).labels(&[0, 1]);
    /// let data = Dataset::from_arrays(arrays.clone().class_names(["cat", "dog"]))?;
    /// assert_eq!(data.class_names().unwrap(), ["cat", "dog"]);
    ///
    /// let wrong = Dataset::from_arrays(arrays.class_names(["cat"]));
    /// assert!(matches!(wrong, Err(Error::Disagrees { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn class_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.rest.class_names = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the ids of the training vertices.
    pub fn train<'a, T: Copy + Into<i64> + 'a>(self, ids: impl IntoIterator<Item = &'a T>) -> Self {
        self.split(0, Members::Ids(widen(ids)))
    }

    /// Sets the ids of the validation vertices.
    pub fn val<'a, T: Copy + Into<i64> + 'a>(self, ids: impl IntoIterator<Item = &'a T>) -> Self {
        self.split(1, Members::Ids(widen(ids)))
    }

    /// Sets the ids of the test vertices.
    pub fn test<'a, T: Copy + Into<i64> + 'a>(self, ids: impl IntoIterator<Item = &'a T>) -> Self {
        self.split(2, Members::Ids(widen(ids)))
    }

    /// Sets the training vertices as a mask, `[vertices]`.
    pub fn train_mask(self, mask: &[bool]) -> Self {
        self.split(0, Members::Mask(mask.to_vec()))
    }

    /// Sets the validation vertices as a mask, `[vertices]`.
    pub fn val_mask(self, mask: &[bool]) -> Self {
        self.split(1, Members::Mask(mask.to_vec()))
    }

    /// Sets the test vertices as a mask, `[vertices]`.
    pub fn test_mask(self, mask: &[bool]) -> Self {
        self.split(2, Members::Mask(mask.to_vec()))
    }

    /// Sets the id of the graph that each vertex belongs to, for a dataset of several graphs. Ids ascend.
    pub fn graph_ids<'a, T: Copy + Into<i64> + 'a>(mut self, ids: impl IntoIterator<Item = &'a T>) -> Self {
        self.rest.graph_ids = Some(widen(ids).into());
        self
    }

    /// Sets how features are normalised by default.
    pub fn feature_norm(mut self, norm: FeatureNorm) -> Self {
        self.rest.feature_norm = Some(norm);
        self
    }

    /// Sets the source of the data.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.rest.source = Some(source.into());
        self
    }

    /// Sets the licence of the data.
    pub fn licence(mut self, licence: impl Into<String>) -> Self {
        self.rest.licence = Some(licence.into());
        self
    }

    fn split(mut self, which: usize, members: Members) -> Self {
        self.rest.splits[which] = Some(members);
        self
    }
}

fn widen<'a, T: Copy + Into<i64> + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<i64> {
    values.into_iter().map(|&value| value.into()).collect()
}

impl Dataset {
    /// Checks the arrays and builds a dataset from them. See [`Arrays`] for an example.
    ///
    /// # Errors
    /// Those of [`Dataset::open`]; `file` is then the name of the array.
    /// # Cost
    /// O(size), mostly in parallel.
    pub fn from_arrays(arrays: Arrays) -> Result<Self> {
        let origin = Origin::Memory;
        let mut rest = arrays.rest;
        let graph = match arrays.topology {
            Topology::Graph(graph) => graph,
            Topology::Csr(indptr, indices) => checked_graph(&origin, indptr, indices)?,
            Topology::Edges(vertices, edges) => {
                let wrong = |problem| Error::Graph { file: origin.name("edges"), problem };
                match &mut rest.edge_weights {
                    None => Graph::from_edges(vertices, &edges).map_err(wrong)?,
                    Some(weights) => {
                        edge_weights::check_list(&edges, weights, || origin.name(edge_weights::NAME))?;
                        let (graph, sorted) = Graph::from_edges_and_values(vertices, &edges, weights).map_err(wrong)?;
                        *weights = sorted.into();
                        graph
                    }
                }
            }
        };
        let name = rest.name.unwrap_or_else(|| "unnamed".into());
        let parts = Parts {
            directed: rest.directed,
            edge_weights: rest.edge_weights,
            features: rest.features,
            labels: rest.labels,
            classes: rest.classes,
            class_names: rest.class_names,
            splits: rest.splits,
            graph_ids: rest.graph_ids,
            feature_norm: rest.feature_norm,
            source: rest.source,
            licence: rest.licence,
            ..Parts::new(origin, name, graph)
        };
        parts.build()
    }
}
