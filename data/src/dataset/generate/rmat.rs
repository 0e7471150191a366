//! R-MAT: a recursive random graph with a few large hubs. Its edges do not depend on the classes.

use rand::Rng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::pairs::simple_graph;
use super::{Purpose, SplitSizes, check, check_sizes, check_split, stream, vertices};
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::{Members, TEST, TRAIN, VAL, ids};
use crate::graph::{Graph, MAX_VERTICES};

/// Number of pairs of one random stream.
const CHUNK: usize = 1 << 15;

/// Options of [`rmat`].
#[derive(Clone, Debug, PartialEq)]
pub struct RmatOptions {
    /// Name of the dataset.
    pub name: String,
    /// Number of vertices, which need not be a power of two.
    pub vertices: usize,
    /// Pairs drawn per vertex, before loops and repeated edges are dropped.
    pub edge_factor: f64,
    /// Probabilities of the four quarters of the matrix; they sum to 1.
    pub quarters: [f64; 4],
    /// Whether a pair is one edge; otherwise its reverse is added too.
    pub directed: bool,
    /// Number of features; 0 for none.
    pub feature_width: usize,
    /// Number of classes, drawn independently of the edges; 0 for no labels and no splits.
    pub classes: usize,
    /// Standard deviation of the class centroids. The noise around them has a standard deviation of 1.
    pub signal: f64,
    /// Number of vertices in each split.
    pub split: SplitSizes,
    /// Seed: the same seed gives the same bytes.
    pub seed: u64,
}

impl Default for RmatOptions {
    fn default() -> Self {
        Self {
            name: "rmat".into(),
            vertices: 1 << 14,
            edge_factor: 8.0,
            quarters: [0.57, 0.19, 0.19, 0.05],
            directed: false,
            feature_width: 0,
            classes: 0,
            signal: 0.25,
            split: SplitSizes::Fractions { train: 0.6, val: 0.2, test: 0.2 },
            seed: 1,
        }
    }
}

impl RmatOptions {
    fn check(&self) -> Result<()> {
        check((1..=MAX_VERTICES).contains(&self.vertices), "vertices", self.vertices, "1 to 2^32 - 2")?;
        let factor = (0.0..=1e6).contains(&self.edge_factor);
        check(factor, "edge_factor", self.edge_factor, "0 to a million")?;
        let sum: f64 = self.quarters.iter().sum();
        let chances = self.quarters.iter().all(|q| (0.0..=1.0).contains(q)) && (sum - 1.0).abs() < 1e-6;
        check(chances, "quarters", format!("{:?}", self.quarters), "four chances that sum to 1")?;
        check(self.classes <= self.vertices, "classes", self.classes, "at most one per vertex")?;
        let signal = self.signal.is_finite() && self.signal >= 0.0;
        check(signal, "signal", self.signal, "a finite number, not negative")?;
        check_split(&self.split)?;
        let edges_a_pair = if self.directed { 1 } else { 2 };
        let factor = ("edge_factor", self.edge_factor);
        check_sizes(self.vertices, factor, self.edge_factor, edges_a_pair, self.feature_width)
    }
}

/// Generates an R-MAT graph with shuffled ids. It is simple, and symmetric unless `directed`.
///
/// # Errors
/// [`Error::Option`](crate::dataset::Error::Option), [`Error::TooLarge`](crate::dataset::Error::TooLarge).
/// # Cost
/// O(vertices * width + pairs * log vertices).
/// # Source
/// Chakrabarti, Zhan & Faloutsos 2004.
pub fn rmat(options: &RmatOptions) -> Result<Dataset> {
    options.check()?;
    let RmatOptions { vertices: n, classes, seed, .. } = *options;
    let mut names: Vec<u32> = (0..n as u32).collect();
    names.shuffle(&mut stream(seed, Purpose::Names, 0));
    let mut pairs = vec![(0u32, 0u32); (n as f64 * options.edge_factor).round() as usize];
    let quadrants = Quadrants::new(options);
    pairs.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, pairs)| {
        let mut rng = stream(seed, Purpose::Edges, chunk as u64);
        pairs.fill_with(|| {
            let (u, v) = quadrants.pair(&mut rng);
            (names[u as usize], names[v as usize])
        });
    });
    drop(names);
    let graph = simple_graph(n, &pairs, !options.directed)
        .map_err(|problem| Error::Graph { file: "the generated graph".into(), problem })?;
    drop(pairs);

    let source = format!("generated (R-MAT, seed {seed})");
    let columns = (options.feature_width, classes, options.signal, &options.split, seed);
    with_random_columns(graph, options.directed, options.name.clone(), source, columns)
}

/// Makes a dataset from a generated graph, with features, labels and splits that are drawn independently of its edges.
/// `columns`: number of features, number of classes, signal, split, seed.
pub(super) fn with_random_columns(
    graph: Graph,
    directed: bool,
    name: String,
    source: String,
    columns: (usize, usize, f64, &SplitSizes, u64),
) -> Result<Dataset> {
    let (width, classes, signal, split, seed) = columns;
    let n = graph.vertex_count();
    let mut parts = Parts {
        directed: Some(directed),
        source: Some(source),
        licence: Some("CC0".into()),
        ..Parts::new(Origin::Memory, name, graph)
    };
    let labels = vertices::labels(n, classes.max(1), seed);
    if width > 0 {
        let data = vertices::features(&labels, classes.max(1), width, signal, seed);
        parts.features = Some(RawFeatures::Dense { data: data.into(), rows: n, width });
    }
    if classes > 0 {
        let split = vertices::split(&labels, classes, split, seed);
        parts.splits = [TRAIN, VAL, TEST].map(|which| Some(Members::Ids(ids(&split, which))));
        let labels: Vec<i64> = labels.into_par_iter().map(i64::from).collect();
        parts.labels = Some(RawLabels::Class(labels.into()));
        parts.classes = Some(classes);
    }
    parts.build()
}

/// The probabilities of the quarters as thresholds of a 32-bit draw.
struct Quadrants {
    vertices: u64,
    levels: u32,
    thresholds: [u64; 3],
}

impl Quadrants {
    fn new(options: &RmatOptions) -> Self {
        let [a, b, c, _] = options.quarters;
        let levels = options.vertices.next_power_of_two().trailing_zeros();
        let thresholds = [a, a + b, a + b + c].map(|chance| (chance * 4_294_967_296.0) as u64);
        Self { vertices: options.vertices as u64, levels, thresholds }
    }

    /// Draws one pair below `vertices`. Outside pairs, which occur if `vertices` is not a power of two, are drawn
    /// again.
    fn pair(&self, rng: &mut impl Rng) -> (u32, u32) {
        // Outside pairs are rare unless the quarters favour high ids. After this many tries they are folded back.
        const TRIES: usize = 64;
        let (mut u, mut v) = (0u64, 0u64);
        for _ in 0..TRIES {
            (u, v) = (0, 0);
            for _ in 0..self.levels {
                let draw = u64::from(rng.random::<u32>());
                let [a, b, c] = self.thresholds;
                u = u << 1 | u64::from(draw >= b);
                v = v << 1 | u64::from((draw >= a) & (draw < b) | (draw >= c));
            }
            if u < self.vertices && v < self.vertices {
                break;
            }
        }
        ((u % self.vertices) as u32, (v % self.vertices) as u32)
    }
}
