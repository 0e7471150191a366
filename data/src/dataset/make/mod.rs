//! Features made from the graph, for datasets without any.

mod spectral;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::features::{Dense, FeatureNorm, Features, Sparse};
use super::{Dataset, Error, Result};
use crate::graph::Graph;

/// Width of random features, and the most columns of spectral ones.
const WIDTH: usize = 32;

/// How features are made from the graph.
///
/// `Degree` and `Constant` mean the same on every graph, so a model that is trained with them can be applied to others. The
/// rows of the other three belong to the vertices of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MadeFeatures {
    /// Two columns: 1, and `ln(1 + in-degree)`. Directed graphs have `ln(1 + out-degree)` too.
    Degree,
    /// One column of 1.
    Constant,
    /// The identity matrix, stored sparse: a column for each vertex, as in the featureless GCN of Kipf & Welling 2017.
    OneHot,
    /// 32 columns from the standard normal distribution, the same for the same vertex number.
    Random,
    /// Up to 32 columns: the leading eigenvectors of the normalised adjacency matrix, approximated by 30 rounds of subspace
    /// iteration, each scaled to a mean square of 1. Edges count in both directions.
    Spectral,
}

impl MadeFeatures {
    const ALL: [(Self, &str); 5] = [
        (Self::Degree, "degree"),
        (Self::Constant, "constant"),
        (Self::OneHot, "onehot"),
        (Self::Random, "random"),
        (Self::Spectral, "spectral"),
    ];
}

impl fmt::Display for MadeFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(kind, _)| kind == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for MadeFeatures {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        found.ok_or_else(|| Error::Option {
            option: "make_features",
            found: text.into(),
            expected: "`degree`, `constant`, `onehot`, `random` or `spectral`".into(),
        })
    }
}

impl Dataset {
    /// Returns the dataset with features that are made from its graph, in place of its own. They are not normalised.
    ///
    /// ```
    /// use lapidary_data::dataset::{Dataset, MadeFeatures};
    ///
    /// let club = Dataset::builtin("karate")?.with_made_features(MadeFeatures::Degree);
    /// assert_eq!(club.feature_width(), 2);
    /// assert_eq!(club.features().unwrap().values()[1], (1.0 + club.graph().edges(0).len() as f32).ln());
    /// # Ok::<(), lapidary_data::dataset::Error>(())
    /// ```
    ///
    /// # Cost
    /// O(n) and the cells of the result; spectral ones take O(e + 32 n) a round and column.
    pub fn with_made_features(&self, kind: MadeFeatures) -> Self {
        let features = match kind {
            MadeFeatures::Degree => degrees(self),
            MadeFeatures::Constant => dense(vec![1.0; self.graph.vertex_count()], 1),
            MadeFeatures::OneHot => one_hot(self),
            MadeFeatures::Random => random(self),
            MadeFeatures::Spectral => {
                let (cells, width) = spectral::leading((&self.graph, self.directed), |v| self.original(v), WIDTH);
                dense(cells, width)
            }
        };
        Self {
            features: Some(features),
            feature_norm: Some(FeatureNorm::None),
            made_features: Some(kind),
            fingerprint: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns how the features were made from the graph; `None` if they are the dataset's own.
    pub fn made_features(&self) -> Option<MadeFeatures> {
        self.made_features
    }

    /// Returns the number of a vertex in the dataset before it was relabelled.
    fn original(&self, v: usize) -> u32 {
        self.permutation.as_ref().map_or(v as u32, |permutation| permutation.old_of_new()[v])
    }
}

fn dense(cells: Vec<f32>, width: usize) -> Features {
    Features::Dense(Dense::of_checked(cells.into(), width))
}

fn degrees(data: &Dataset) -> Features {
    let graph = &data.graph;
    let log = |degree: usize| (1.0 + degree as f32).ln();
    let out = data.directed.then(|| out_degrees(graph));
    let row = |v: usize| [Some(1.0), Some(log(graph.edges(v).len())), out.as_ref().map(|out| log(out[v] as usize))];
    dense((0..graph.vertex_count()).flat_map(row).flatten().collect(), if data.directed { 3 } else { 2 })
}

fn out_degrees(graph: &Graph) -> Vec<u32> {
    let mut degrees = vec![0; graph.vertex_count()];
    (0..graph.vertex_count()).for_each(|v| graph.sources(v).iter().for_each(|&u| degrees[u as usize] += 1));
    degrees
}

fn one_hot(data: &Dataset) -> Features {
    let n = data.graph.vertex_count();
    let indptr: Vec<u64> = (0..=n as u64).collect();
    let indices: Vec<u32> = (0..n).map(|v| data.original(v)).collect();
    Features::Sparse(Sparse::of_checked(indptr.into(), indices.into(), vec![1.0; n].into(), n))
}

fn random(data: &Dataset) -> Features {
    let n = data.graph.vertex_count();
    let mut cells = vec![0.0f32; n * WIDTH];
    cells.par_chunks_exact_mut(WIDTH).enumerate().for_each(|(v, row)| fill_random(data.original(v), row));
    dense(cells, WIDTH)
}

/// Fills a vertex's row with numbers from the standard normal distribution.
fn fill_random(vertex: u32, row: &mut [f32]) {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(vertex));
    row.iter_mut().for_each(|x| *x = StandardNormal.sample(&mut random));
}
