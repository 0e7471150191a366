//! What a dataset is like, in numbers.

use lapidary_kernels::call::NO_LABEL;
use rayon::prelude::*;
use serde::Serialize;

use super::split::{NAMES, TRAIN};
use super::{Dataset, FeatureNorm, Features, Labels};

/// A summary of a dataset, to be printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// What it is called.
    pub name: String,
    /// Number of vertices.
    pub vertices: usize,
    /// Number of directed edges.
    pub edges: usize,
    /// Whether edges have a direction.
    pub directed: bool,
    /// Edges from a vertex to itself.
    pub self_loops: usize,
    /// Edges that repeat another.
    pub duplicate_edges: usize,
    /// Vertices without an edge to or from another.
    pub isolated: usize,
    /// In-degrees.
    pub degree: DegreeInfo,
    /// Graphs in the set, if it says which vertex is in which.
    pub graphs: Option<usize>,
    /// The features, if there are any.
    pub features: Option<FeatureInfo>,
    /// The labels, if there are any.
    pub labels: Option<LabelInfo>,
    /// Train, val and test, those that have vertices.
    pub splits: Vec<SplitInfo>,
    /// Where the data is from.
    pub source: Option<String>,
    /// Under which terms.
    pub licence: Option<String>,
}

/// How many in-edges vertices have, loops included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DegreeInfo {
    /// The least.
    pub min: u64,
    /// The middle one, or the mean of the two middle ones.
    pub median: f64,
    /// Edges a vertex.
    pub mean: f64,
    /// The greatest.
    pub max: u64,
}

/// The feature matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FeatureInfo {
    /// `dense` or `sparse`, as stored.
    pub kind: &'static str,
    /// Number of columns.
    pub width: usize,
    /// Share of cells that are not 0.
    pub density: f64,
    /// How rows are normalised unless asked otherwise.
    pub norm: FeatureNorm,
}

/// The labels of all vertices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelInfo {
    /// `single` or `multi`.
    pub kind: &'static str,
    /// Number of classes.
    pub classes: usize,
    /// Vertices that have a label.
    pub labelled: usize,
    /// Vertices of each class.
    pub per_class: Vec<usize>,
}

/// One split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitInfo {
    /// `train`, `val` or `test`.
    pub name: &'static str,
    /// Number of vertices.
    pub vertices: usize,
    /// Those of them that have a label; only they count.
    pub labelled: usize,
    /// Those of each class.
    pub per_class: Vec<usize>,
}

impl Info {
    /// Looks at all of a dataset.
    ///
    /// # Cost
    /// O(size), mostly in parallel; 16 bytes a vertex.
    pub fn of(data: &Dataset) -> Self {
        let graph = data.graph();
        let everyone = class_counts(data, |_| true);
        let labels = data.labels().map(|labels| LabelInfo {
            kind: match labels {
                Labels::Class(_) => "single",
                Labels::Multi { .. } => "multi",
            },
            classes: data.class_count(),
            labelled: (0..graph.vertex_count()).into_par_iter().filter(|&v| labels.is_labelled(v)).count(),
            per_class: everyone,
        });
        let split = |(which, name)| SplitInfo {
            name,
            vertices: data.split_size(which),
            labelled: data.labelled_split_size(which),
            per_class: class_counts(data, |v| data.split()[v] == which),
        };
        Self {
            name: data.name().into(),
            vertices: graph.vertex_count(),
            edges: graph.edge_count(),
            directed: data.directed(),
            self_loops: graph.self_loop_count(),
            duplicate_edges: graph.duplicate_edge_count(),
            isolated: isolated(data),
            degree: degrees(data),
            graphs: data.graph_ids().map(|ids| 1 + ids.windows(2).filter(|pair| pair[0] != pair[1]).count()),
            features: data.features().map(|features| FeatureInfo {
                kind: match features {
                    Features::Dense(_) => "dense",
                    Features::Sparse(_) => "sparse",
                },
                width: features.width(),
                density: density(features),
                norm: data.default_feature_norm(),
            }),
            labels,
            splits: (TRAIN..).zip(NAMES).map(split).filter(|split| split.vertices > 0).collect(),
            source: data.source().map(str::to_string),
            licence: data.licence().map(str::to_string),
        }
    }
}

fn isolated(data: &Dataset) -> usize {
    let graph = data.graph();
    let n = graph.vertex_count();
    let has_other = |v: usize| graph.sources(v).iter().any(|&u| u as usize != v);
    let mut touched: Vec<bool> = (0..n).into_par_iter().map(has_other).collect();
    // Without directions a vertex that no other reaches reaches no other.
    if data.directed() {
        for v in 0..n {
            for &u in graph.sources(v).iter().filter(|&&u| u as usize != v) {
                touched[u as usize] = true;
            }
        }
    }
    touched.into_par_iter().filter(|&touched| !touched).count()
}

fn degrees(data: &Dataset) -> DegreeInfo {
    let graph = data.graph();
    let n = graph.vertex_count();
    let mut degrees: Vec<u64> = (0..n).into_par_iter().map(|v| graph.in_degree(v)).collect();
    degrees.par_sort_unstable();
    // A dataset has at least one vertex.
    DegreeInfo {
        min: degrees[0],
        median: (degrees[(n - 1) / 2] + degrees[n / 2]) as f64 / 2.0,
        mean: graph.edge_count() as f64 / n as f64,
        max: degrees[n - 1],
    }
}

fn density(features: &Features) -> f64 {
    let cells = features.rows() as f64 * features.width() as f64;
    let filled = features.values().par_iter().filter(|&&x| x != 0.0).count();
    if cells > 0.0 { filled as f64 / cells } else { 0.0 }
}

fn class_counts(data: &Dataset, counts: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut per_class = vec![0; data.class_count()];
    for v in (0..data.graph().vertex_count()).filter(|&v| counts(v)) {
        match data.labels() {
            None => {}
            Some(Labels::Class(labels)) if labels[v] == NO_LABEL => {}
            Some(Labels::Class(labels)) => per_class[labels[v] as usize] += 1,
            Some(Labels::Multi { data, classes }) => {
                for (count, &cell) in per_class.iter_mut().zip(&data[v * classes..(v + 1) * classes]) {
                    *count += usize::from(cell);
                }
            }
        }
    }
    per_class
}
