//! Datasets: a graph with what is known of its vertices.
//!
//! A [`Dataset`] comes from memory ([`Dataset::from_arrays`]), from a directory of `.npy` files ([`Dataset::open`]),
//! from files that other programs write ([`import`]), or from a generator ([`generate`]). All of them pass the same
//! checks, so that the rest of the library can trust its arrays.

mod arrays;
mod build;
mod builtin;
mod edge_store;
mod error;
mod features;
mod fingerprint;
pub mod generate;
pub mod import;
mod info;
mod labels;
mod manifest;
mod mmap;
pub mod npy;
mod open;
mod rows;
mod split;
mod write;

use std::sync::{Arc, OnceLock};

use lapidary_arrays::NO_LABEL;
use lapidary_arrays::Shared;
use rayon::prelude::*;

use crate::graph::Graph;

pub use arrays::Arrays;
pub use error::{Error, Result};
pub use features::{Dense, FeatureNorm, Features, Sparse};
pub use fingerprint::Fingerprint;
pub use info::{DegreeInfo, DegreeRange, FeatureInfo, Info, LabelInfo, SkewInfo, SplitInfo};
pub use labels::Labels;
pub use split::{NONE, RandomSplit, TEST, TRAIN, VAL};

/// A graph with features, labels and splits. Cloning shares the arrays.
#[derive(Clone, Debug)]
pub struct Dataset {
    // Invariant: every per-vertex array has a row for each of the graph's vertices, of which there is at least one;
    // labels are below `classes` or NO_LABEL; there is a class name a class, or none; `split` holds NONE, TRAIN, VAL and TEST only; `graph_ids` ascend;
    // an undirected graph is symmetric.
    name: String,
    graph: Graph,
    directed: bool,
    features: Option<Features>,
    labels: Option<Labels>,
    classes: usize,
    class_names: Option<Arc<[String]>>,
    split: Shared<u32>,
    graph_ids: Option<Shared<i64>>,
    feature_norm: Option<FeatureNorm>,
    source: Option<String>,
    licence: Option<String>,
    /// Made when somebody first asks, for all clones.
    fingerprint: Arc<OnceLock<Fingerprint>>,
}

impl Dataset {
    /// Whether `other` is a clone of this dataset, or this one of it: the two share their arrays.
    pub fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fingerprint, &other.fingerprint)
    }

    /// What the dataset is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Whether edges have a direction. If not, the graph is symmetric.
    pub fn directed(&self) -> bool {
        self.directed
    }

    /// The features; a dataset of topology alone has none.
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref()
    }

    /// Number of features a vertex; 0 without features.
    pub fn feature_width(&self) -> usize {
        self.features.as_ref().map_or(0, Features::width)
    }

    /// The labels, if there are any.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// Number of classes; 0 without labels.
    pub fn class_count(&self) -> usize {
        self.classes
    }

    /// What the classes are called, in their order, if they have names.
    pub fn class_names(&self) -> Option<&[String]> {
        self.class_names.as_deref()
    }

    /// `[vertices]`: [`NONE`], [`TRAIN`], [`VAL`] or [`TEST`].
    pub fn split(&self) -> &Shared<u32> {
        &self.split
    }

    /// Number of vertices in a split, labelled or not.
    pub fn split_size(&self, which: u32) -> usize {
        self.split.par_iter().filter(|&&s| s == which).count()
    }

    /// Number of vertices in a split that have a label. Only these count in loss and metrics.
    pub fn labelled_split_size(&self, which: u32) -> usize {
        match &self.labels {
            None => 0,
            Some(Labels::Multi { .. }) => self.split_size(which),
            Some(Labels::Class(labels)) => {
                let rows = self.split.par_iter().zip(labels.par_iter());
                rows.filter(|&(&s, &label)| s == which && label != NO_LABEL).count()
            }
        }
    }

    /// Which graph of a set of graphs each vertex belongs to, ascending.
    pub fn graph_ids(&self) -> Option<&[i64]> {
        self.graph_ids.as_deref()
    }

    /// How features are to be normalised, if the dataset says.
    pub fn feature_norm(&self) -> Option<FeatureNorm> {
        self.feature_norm
    }

    /// What the dataset says; else by row for sparse features of which none is negative, else not at all.
    ///
    /// # Cost
    /// O(stored values) for sparse features, in parallel.
    pub fn default_feature_norm(&self) -> FeatureNorm {
        match (self.feature_norm, &self.features) {
            (Some(norm), _) => norm,
            (None, Some(Features::Sparse(sparse))) if sparse.values().par_iter().all(|&x| x >= 0.0) => FeatureNorm::Row,
            _ => FeatureNorm::None,
        }
    }

    /// Digests of the graph, the features, the labels and the splits, by which a change of any is found out.
    ///
    /// # Cost
    /// The first time, every byte is read once, in parallel at about the speed of memory.
    pub fn fingerprint(&self) -> &Fingerprint {
        if let Some(made) = self.fingerprint.get() {
            return made;
        }
        // Not while the lock is held: a thread of the pool that waits for digests may run a task that asks for them too.
        let made = Fingerprint::of(self);
        self.fingerprint.get_or_init(|| made)
    }

    /// Where the data is from, if the dataset says.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Under which terms, if the dataset says.
    pub fn licence(&self) -> Option<&str> {
        self.licence.as_deref()
    }
}
