//! Statistics of a dataset.

use lapidary_arrays::NO_LABEL;
use rayon::prelude::*;
use serde::Serialize;

use super::split::{NAMES, TRAIN};
use super::{Dataset, FeatureNorm, Features, Labels};

/// A summary of a dataset for display.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// Name of the dataset.
    pub name: String,
    /// Number of vertices.
    pub vertices: usize,
    /// Number of directed edges.
    pub edges: usize,
    /// Whether edges have a direction.
    pub directed: bool,
    /// Number of edges from a vertex to itself.
    pub self_loops: usize,
    /// Number of edges that repeat another.
    pub duplicate_edges: usize,
    /// Number of vertices without an edge to or from another vertex.
    pub isolated: usize,
    /// Statistics of in-degrees.
    pub degree: DegreeInfo,
    /// How unevenly the edges are distributed over the vertices.
    pub skew: SkewInfo,
    /// Number of vertices per range of in-degrees; the ranges double.
    pub degree_histogram: Vec<DegreeRange>,
    /// The weights of the edges, if they have any.
    pub edge_weights: Option<EdgeWeightInfo>,
    /// Number of graphs in the dataset, if it has graph ids.
    pub graphs: Option<usize>,
    /// Whether the vertices were relabelled: then the dataset has the original id of each.
    pub relabelled: bool,
    /// The features, if there are any.
    pub features: Option<FeatureInfo>,
    /// The labels, if there are any.
    pub labels: Option<LabelInfo>,
    /// The splits that have vertices, in the order train, val, test.
    pub splits: Vec<SplitInfo>,
    /// Source of the data.
    pub source: Option<String>,
    /// Licence of the data.
    pub licence: Option<String>,
}

/// Statistics of in-degrees, loops included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DegreeInfo {
    /// The smallest in-degree.
    pub min: u64,
    /// The median: the middle one, or the mean of the two middle ones.
    pub median: f64,
    /// Edges per vertex.
    pub mean: f64,
    /// The largest in-degree.
    pub max: u64,
}

/// How unevenly the in-edges are distributed over the vertices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SkewInfo {
    /// The Gini coefficient of in-degrees: 0 if all are equal, near 1 if one vertex has all edges.
    pub gini: f64,
    /// Share of the edges that end at the 1 % of the vertices (at least one) with the highest in-degree.
    pub top_percent_share: f64,
}

/// A range of in-degrees, and the number of vertices in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DegreeRange {
    /// The smallest in-degree of the range.
    pub least: u64,
    /// The largest in-degree of the range.
    pub most: u64,
    /// Number of vertices.
    pub vertices: usize,
}

/// Statistics of the weights of the edges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EdgeWeightInfo {
    /// The smallest weight.
    pub min: f32,
    /// The largest weight.
    pub max: f32,
    /// The mean weight.
    pub mean: f64,
    /// Number of weights below 0.
    pub negative: usize,
    /// Number of weights that are 0.
    pub zero: usize,
    /// Whether the two directions of every edge have the same weight.
    pub symmetric: bool,
}

/// Statistics of the feature matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FeatureInfo {
    /// `dense` or `sparse`, as stored.
    pub kind: &'static str,
    /// Number of columns.
    pub width: usize,
    /// Share of cells that are not 0.
    pub density: f64,
    /// How rows are normalised by default.
    pub norm: FeatureNorm,
}

/// Statistics of the labels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelInfo {
    /// `single` or `multi`.
    pub kind: &'static str,
    /// Number of classes.
    pub classes: usize,
    /// Names of the classes, if they have names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
    /// Number of vertices that have a label.
    pub labelled: usize,
    /// Number of vertices per class.
    pub per_class: Vec<usize>,
}

/// Statistics of one split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitInfo {
    /// `train`, `val` or `test`.
    pub name: &'static str,
    /// Number of vertices.
    pub vertices: usize,
    /// Number of its vertices that have a label. Only these count in loss and metrics.
    pub labelled: usize,
    /// Number of its vertices per class.
    pub per_class: Vec<usize>,
}

impl Info {
    /// Computes the summary of a dataset.
    ///
    /// # Cost
    /// O(size), mostly in parallel; 16 bytes per vertex.
    pub fn of(data: &Dataset) -> Self {
        let graph = data.graph();
        let degrees = sorted_degrees(data);
        let counts = Counts::of(data);
        let total = |of: &dyn Fn(&OfSplit) -> usize| counts.0.iter().map(of).sum();
        let labels = data.labels().map(|labels| LabelInfo {
            kind: match labels {
                Labels::Class(_) => "single",
                Labels::Multi { .. } => "multi",
            },
            classes: data.class_count(),
            class_names: data.class_names().map(<[String]>::to_vec),
            labelled: total(&|split| split.labelled),
            per_class: (0..data.class_count()).map(|class| total(&|split| split.per_class[class])).collect(),
        });
        let split = |(which, name): (u32, _)| {
            let OfSplit { vertices, labelled, per_class } = counts.0[which as usize].clone();
            SplitInfo { name, vertices, labelled, per_class }
        };
        Self {
            name: data.name().into(),
            vertices: graph.vertex_count(),
            edges: graph.edge_count(),
            directed: data.directed(),
            self_loops: graph.self_loop_count(),
            duplicate_edges: graph.duplicate_edge_count(),
            isolated: isolated(data),
            degree: summary(&degrees),
            skew: skew(&degrees),
            degree_histogram: histogram(&degrees),
            edge_weights: edge_weights(data),
            graphs: graphs(data),
            relabelled: data.permutation().is_some(),
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

/// Returns the number of different graph ids, which ascend in the original order of the vertices.
fn graphs(data: &Dataset) -> Option<usize> {
    let ids = data.graph_ids()?;
    let restored = data.permutation().map(|order| order.restored(ids, 1));
    let ids = restored.as_deref().unwrap_or(ids);
    Some(1 + ids.windows(2).filter(|pair| pair[0] != pair[1]).count())
}

/// Returns the statistics of the weights. Without edges, there are none.
fn edge_weights(data: &Dataset) -> Option<EdgeWeightInfo> {
    let weights = data.edge_weights().filter(|weights| !weights.is_empty())?;
    let count = |of: fn(&f32) -> bool| weights.par_iter().filter(|weight| of(weight)).count();
    let sum: f64 = weights.par_chunks(1 << 16).map(|part| part.iter().map(|&x| f64::from(x)).sum::<f64>()).sum();
    Some(EdgeWeightInfo {
        min: weights.par_iter().copied().reduce(|| f32::INFINITY, f32::min),
        max: weights.par_iter().copied().reduce(|| f32::NEG_INFINITY, f32::max),
        mean: sum / weights.len() as f64,
        negative: count(|&weight| weight < 0.0),
        zero: count(|&weight| weight == 0.0),
        symmetric: data.graph().has_symmetric_values(weights),
    })
}

fn isolated(data: &Dataset) -> usize {
    let graph = data.graph();
    let n = graph.vertex_count();
    let has_other = |v: usize| graph.sources(v).iter().any(|&u| u as usize != v);
    let mut touched: Vec<bool> = (0..n).into_par_iter().map(has_other).collect();
    // In an undirected graph, a vertex without in-edges has no out-edges either.
    if data.directed() {
        for v in 0..n {
            for &u in graph.sources(v).iter().filter(|&&u| u as usize != v) {
                touched[u as usize] = true;
            }
        }
    }
    touched.into_par_iter().filter(|&touched| !touched).count()
}

/// Returns the in-degrees in ascending order. A dataset has at least one vertex.
fn sorted_degrees(data: &Dataset) -> Vec<u64> {
    let graph = data.graph();
    let mut degrees: Vec<u64> = (0..graph.vertex_count()).into_par_iter().map(|v| graph.in_degree(v)).collect();
    degrees.par_sort_unstable();
    degrees
}

fn summary(degrees: &[u64]) -> DegreeInfo {
    let n = degrees.len();
    let edges: u64 = degrees.iter().sum();
    DegreeInfo {
        min: degrees[0],
        median: (degrees[(n - 1) / 2] + degrees[n / 2]) as f64 / 2.0,
        mean: edges as f64 / n as f64,
        max: degrees[n - 1],
    }
}

fn skew(degrees: &[u64]) -> SkewInfo {
    let n = degrees.len();
    let edges: u64 = degrees.iter().sum();
    if edges == 0 {
        return SkewInfo { gini: 0.0, top_percent_share: 0.0 };
    }
    // The weight of the i-th smallest of n is 2 i - n + 1, with i from 0.
    let weighted: f64 = degrees.iter().enumerate().map(|(i, &d)| (2.0 * i as f64 - n as f64 + 1.0) * d as f64).sum();
    let top: u64 = degrees[n - n.div_ceil(100)..].iter().sum();
    SkewInfo { gini: weighted / (n as f64 * edges as f64), top_percent_share: top as f64 / edges as f64 }
}

/// Returns the ranges 0, 1, 2 to 3, 4 to 7, ... up to the largest degree.
fn histogram(degrees: &[u64]) -> Vec<DegreeRange> {
    let mut ranges: Vec<DegreeRange> = Vec::new();
    let mut least = 0;
    let mut start = 0;
    while start < degrees.len() {
        let most = if least == 0 { 0 } else { 2 * least - 1 };
        let end = degrees.partition_point(|&degree| degree <= most);
        ranges.push(DegreeRange { least, most, vertices: end - start });
        start = end;
        least = most + 1;
    }
    ranges
}

fn density(features: &Features) -> f64 {
    let cells = features.rows() as f64 * features.width() as f64;
    let filled = features.values().par_iter().filter(|&&x| x != 0.0).count();
    if cells > 0.0 { filled as f64 / cells } else { 0.0 }
}

/// Counts of the vertices of one split.
#[derive(Clone)]
struct OfSplit {
    vertices: usize,
    labelled: usize,
    per_class: Vec<usize>,
}

/// The counts of each split: none, train, val and test.
struct Counts([OfSplit; 4]);

impl Counts {
    /// Counts in one pass over the vertices, in parallel.
    fn of(data: &Dataset) -> Self {
        let classes = data.class_count();
        let vertices = data.graph().vertex_count();
        // With very many classes, one table per thread would cost more than it saves.
        let threads = rayon::current_num_threads().min(vertices / (4 * classes + 1)).max(1);
        let len = vertices.div_ceil(threads);
        let empty = || Self([(); 4].map(|()| OfSplit { vertices: 0, labelled: 0, per_class: vec![0; classes] }));
        let range = |(start, splits): (usize, &[u32])| {
            let mut counts = empty();
            for (v, &split) in (start * len..).zip(splits) {
                counts.0[split as usize].add(data.labels(), v);
            }
            counts
        };
        data.split().par_chunks(len).enumerate().map(range).reduce_with(Self::plus).unwrap_or_else(empty)
    }

    fn plus(mut self, other: Self) -> Self {
        for (split, more) in self.0.iter_mut().zip(other.0) {
            split.vertices += more.vertices;
            split.labelled += more.labelled;
            for (count, more) in split.per_class.iter_mut().zip(more.per_class) {
                *count += more;
            }
        }
        self
    }
}

impl OfSplit {
    fn add(&mut self, labels: Option<&Labels>, v: usize) {
        self.vertices += 1;
        match labels {
            None => {}
            Some(Labels::Class(labels)) if labels[v] == NO_LABEL => {}
            Some(Labels::Class(labels)) => {
                self.labelled += 1;
                self.per_class[labels[v] as usize] += 1;
            }
            Some(Labels::Multi { data, classes }) => {
                self.labelled += 1;
                for (count, &cell) in self.per_class.iter_mut().zip(&data[v * classes..(v + 1) * classes]) {
                    *count += usize::from(cell);
                }
            }
        }
    }
}
