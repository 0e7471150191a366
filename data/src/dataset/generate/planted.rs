//! A planted partition with power-law degrees: the edges reveal the classes.

use rand::Rng;
use rayon::prelude::*;

use super::pairs::simple_graph;
use super::sampler::{PowerLaw, Sampler};
use super::{Purpose, SplitSizes, check, check_sizes, check_split, stream, vertices};
use crate::dataset::Dataset;
use crate::dataset::build::{Origin, Parts, RawFeatures, RawLabels};
use crate::dataset::error::{Error, Result};
use crate::dataset::split::{Members, TEST, TRAIN, VAL, ids};
use crate::graph::MAX_VERTICES;

/// Number of pairs of one random stream.
const CHUNK: usize = 1 << 15;

/// Options of [`planted`]. The default is the built-in dataset `planted`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlantedOptions {
    /// Name of the dataset.
    pub name: String,
    /// Number of vertices.
    pub vertices: usize,
    /// Number of classes, all equally likely.
    pub classes: usize,
    /// Mean number of neighbours. The graph may have 1 or 2 % fewer edges, where hubs repeat pairs.
    pub mean_degree: f64,
    /// Exponent of the power law: expected degrees d have density ~ d^-exponent.
    pub exponent: f64,
    /// The largest expected degree.
    pub max_degree: f64,
    /// Share of edges within a class.
    pub inside: f64,
    /// Number of features; 0 for none.
    pub feature_width: usize,
    /// Standard deviation of the class centroids. The noise around them has a standard deviation of 1.
    pub signal: f64,
    /// Number of vertices in each split.
    pub split: SplitSizes,
    /// Seed: the same seed gives the same bytes.
    pub seed: u64,
}

impl Default for PlantedOptions {
    fn default() -> Self {
        Self {
            name: "planted".into(),
            vertices: 3000,
            classes: 7,
            mean_degree: 8.0,
            exponent: 2.5,
            max_degree: 100.0,
            inside: 0.8,
            feature_width: 64,
            signal: 0.15,
            split: SplitSizes::PerClass { train: 20, val: 500, test: 1000 },
            seed: 1,
        }
    }
}

impl PlantedOptions {
    fn check(&self) -> Result<()> {
        check((1..=MAX_VERTICES).contains(&self.vertices), "vertices", self.vertices, "1 to 2^32 - 2")?;
        let classes = (1..=self.vertices).contains(&self.classes);
        check(classes, "classes", self.classes, "at least 1 and at most one per vertex")?;
        let room = (self.vertices - 1) as f64;
        let degree = (0.0..=room / 2.0).contains(&self.mean_degree);
        check(degree, "mean_degree", self.mean_degree, "0 or more, and at most half the other vertices")?;
        check(self.exponent > 1.0 && self.exponent <= 20.0, "exponent", self.exponent, "above 1 and at most 20")?;
        let most = self.max_degree.is_finite() && self.max_degree >= self.mean_degree;
        check(most, "max_degree", self.max_degree, "at least the mean degree")?;
        check((0.0..=1.0).contains(&self.inside), "inside", self.inside, "0 to 1")?;
        let signal = self.signal.is_finite() && self.signal >= 0.0;
        check(signal, "signal", self.signal, "a finite number, not negative")?;
        check_split(&self.split)?;
        let pairs_a_vertex = self.mean_degree / 2.0;
        check_sizes(self.vertices, ("mean_degree", self.mean_degree), pairs_a_vertex, 2, self.feature_width)
    }
}

/// Generates a graph whose vertices have a class, an expected degree from a power law, and neighbours of their own
/// class with probability `inside`. Features are noisy class centroids. The graph is symmetric and simple.
///
/// # Errors
/// [`Error::Option`](crate::dataset::Error::Option), [`Error::TooLarge`](crate::dataset::Error::TooLarge).
/// # Cost
/// O(vertices * width + edges): a few seconds for a million vertices with ten million edges on two cores.
/// # Source
/// Karrer & Newman 2011, the degree-corrected stochastic block model.
pub fn planted(options: &PlantedOptions) -> Result<Dataset> {
    options.check()?;
    let PlantedOptions { vertices: n, classes, seed, .. } = *options;
    let labels = vertices::labels(n, classes, seed);
    let graph = Communities::new(options, &labels).graph(options)?;
    let split = vertices::split(&labels, classes, &options.split, seed);
    let features = vertices::features(&labels, classes, options.feature_width, options.signal, seed);
    let labels: Vec<i64> = labels.into_par_iter().map(i64::from).collect();
    let raw = RawFeatures::Dense { data: features.into(), rows: n, width: options.feature_width };
    let parts = Parts {
        directed: Some(false),
        features: (options.feature_width > 0).then_some(raw),
        labels: Some(RawLabels::Class(labels.into())),
        classes: Some(classes),
        splits: [TRAIN, VAL, TEST].map(|which| Some(Members::Ids(ids(&split, which)))),
        source: Some(format!("generated (planted partition, seed {seed})")),
        licence: Some("CC0".into()),
        ..Parts::new(Origin::Memory, options.name.clone(), graph)
    };
    parts.build()
}

/// The members of each class, and how likely each vertex is to be drawn.
struct Communities {
    /// Vertices, sorted by class.
    members: Vec<u32>,
    /// `[classes + 1]`: the offset of each class in `members`.
    start: Vec<usize>,
    /// Sampler over positions in `members`.
    sampler: Sampler,
}

impl Communities {
    fn new(options: &PlantedOptions, labels: &[u32]) -> Self {
        let mut start = vec![0usize; options.classes + 1];
        for &label in labels {
            start[label as usize + 1] += 1;
        }
        for class in 0..options.classes {
            start[class + 1] += start[class];
        }
        let mut next = start.clone();
        let mut members = vec![0u32; labels.len()];
        for (v, &label) in labels.iter().enumerate() {
            let slot = &mut next[label as usize];
            members[*slot] = v as u32;
            *slot += 1;
        }
        let law = PowerLaw::with_mean(options.mean_degree.max(1e-3), options.max_degree.max(1e-3), options.exponent);
        let mut weights = vec![0f64; labels.len()];
        weights.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, weights)| {
            let mut rng = stream(options.seed, Purpose::Weights, chunk as u64);
            weights.fill_with(|| law.draw(&mut rng));
        });
        let sampler = Sampler::new(weights.into_iter());
        Self { members, start, sampler }
    }

    /// Draws pairs until there are about as many distinct ones as requested, since hubs repeat pairs.
    fn graph(&self, options: &PlantedOptions) -> Result<crate::graph::Graph> {
        const ROUNDS: usize = 4;
        let target = (options.vertices as f64 * options.mean_degree / 2.0).round() as usize;
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let mut chunk = 0;
        let mut missing = target;
        let mut round = 1;
        loop {
            let old = pairs.len();
            pairs.resize(old + missing, (0, 0));
            pairs[old..].par_chunks_mut(CHUNK).enumerate().for_each(|(at, pairs)| {
                let mut rng = stream(options.seed, Purpose::Edges, chunk + at as u64);
                pairs.fill_with(|| self.pair(options.inside, &mut rng));
            });
            chunk += missing.div_ceil(CHUNK) as u64;
            let graph = simple_graph(options.vertices, &pairs, true)
                .map_err(|problem| Error::Graph { file: "the generated graph".into(), problem })?;
            missing = target.saturating_sub(graph.edge_count() / 2);
            if missing * 50 <= target || round == ROUNDS {
                return Ok(graph);
            }
            round += 1;
        }
    }

    /// Draws the two ends of an edge, which may be the same vertex.
    fn pair(&self, inside: f64, rng: &mut impl Rng) -> (u32, u32) {
        let items = self.members.len();
        let total = self.sampler.mass_before(items);
        let u = self.sampler.item_at(rng.random::<f64>() * total);
        let class = self.start.partition_point(|&start| start <= u) - 1;
        let low = self.sampler.mass_before(self.start[class]);
        let own = self.sampler.mass_before(self.start[class + 1]) - low;
        let stays = rng.random::<f64>() < inside || own >= total;
        let draw: f64 = rng.random();
        let mass = if stays {
            low + draw * own
        } else {
            // Anywhere outside the class: positions after the class are shifted by its mass.
            let elsewhere = draw * (total - own);
            if elsewhere < low { elsewhere } else { elsewhere + own }
        };
        (self.members[u], self.members[self.sampler.item_at(mass)])
    }
}
