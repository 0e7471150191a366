//! Datasets: a graph with features, labels and splits of its vertices.
//!
//! A [`Dataset`] comes from memory ([`Dataset::from_arrays`]), from a directory of `.npy` files ([`Dataset::open`]),
//! from files of other programs ([`import`]), or from a generator ([`generate`]). All of them pass the same checks, so
//! the rest of the library can trust the arrays.

mod arrays;
mod build;
mod builtin;
mod edge_store;
mod edge_weights;
mod error;
mod features;
mod fingerprint;
pub mod generate;
#[cfg(feature = "import")]
pub mod import;
mod info;
mod join;
mod labels;
mod make;
mod manifest;
mod mmap;
pub(crate) mod names;
pub mod npy;
mod open;
mod relabel;
mod row_file;
mod rows;
mod split;
mod stamp;
pub(crate) mod write;

use std::sync::{Arc, OnceLock};

use lapidary_arrays::NO_LABEL;
use lapidary_arrays::Shared;
use rayon::prelude::*;

use crate::graph::{Graph, Permutation, VertexOrder};
use stamp::Stamp;

pub use arrays::Arrays;
pub use error::{Error, Result};
pub use features::{Dense, FeatureNorm, Features, Sparse};
pub use fingerprint::Fingerprint;
pub use info::{DegreeInfo, DegreeRange, EdgeWeightInfo, FeatureInfo, Info, LabelInfo, SkewInfo, SplitInfo};
pub use labels::Labels;
pub use make::MadeFeatures;
pub use names::VertexNames;
pub use row_file::RowFile;
pub use split::{NONE, RandomSplit, TEST, TRAIN, VAL};

/// A graph with features, labels and splits. Cloning shares the arrays.
#[derive(Clone, Debug)]
pub struct Dataset {
    // Invariant: every per-vertex array has one row for each vertex of the graph, which has at least one; labels are
    // below `classes` or NO_LABEL; there is one class name per class, or none at all; `split` holds only NONE, TRAIN,
    // VAL and TEST; `graph_ids` ascend in the original order of the vertices, which `permutation` leads to if they were
    // relabelled; an undirected graph is symmetric; there is one finite weight per edge, or none at
    // all. The weights of an undirected graph need not be symmetric.
    name: String,
    graph: Graph,
    directed: bool,
    edge_weights: Option<Shared<f32>>,
    features: Option<Features>,
    labels: Option<Labels>,
    classes: usize,
    class_names: Option<Arc<[String]>>,
    split: Shared<u32>,
    graph_ids: Option<Shared<i64>>,
    permutation: Option<Arc<Permutation>>,
    /// The order to which [`Dataset::in_order`] has brought the vertices.
    order: VertexOrder,
    feature_norm: Option<FeatureNorm>,
    /// How the features were made from the graph, if they were.
    made_features: Option<MadeFeatures>,
    source: Option<String>,
    licence: Option<String>,
    /// Computed on first use, and shared by all clones.
    fingerprint: Arc<OnceLock<Fingerprint>>,
    /// The files that the arrays were mapped from; empty for a dataset in memory.
    files: Arc<[Stamp]>,
}

impl Dataset {
    /// Returns whether this dataset and `other` are clones of one another, which share their arrays.
    pub fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fingerprint, &other.fingerprint)
    }

    /// Checks that the files of the dataset are still those that [`Dataset::open`] mapped: the same files, with the same
    /// sizes and modification times. Mapped memory changes with its file, so results that were computed before a change
    /// was detected are not to be trusted. A dataset in memory has no files.
    ///
    /// # Errors
    /// [`Error::Changed`], which names the first file that differs.
    /// # Cost
    /// One system call per file.
    pub fn check_files(&self) -> Result<()> {
        self.files.iter().try_for_each(Stamp::check)
    }

    /// Returns the name of the dataset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns whether edges have a direction. If not, the graph is symmetric.
    pub fn directed(&self) -> bool {
        self.directed
    }

    /// Returns the features, if there are any.
    pub fn features(&self) -> Option<&Features> {
        self.features.as_ref()
    }

    /// Returns the number of features per vertex; 0 without features.
    pub fn feature_width(&self) -> usize {
        self.features.as_ref().map_or(0, Features::width)
    }

    /// Returns the labels, if there are any.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// Returns the number of classes; 0 without labels.
    pub fn class_count(&self) -> usize {
        self.classes
    }

    /// Returns the names of the classes in their order, if they have names.
    pub fn class_names(&self) -> Option<&[String]> {
        self.class_names.as_deref()
    }

    /// Returns the split of each vertex, `[vertices]`: [`NONE`], [`TRAIN`], [`VAL`] or [`TEST`].
    pub fn split(&self) -> &Shared<u32> {
        &self.split
    }

    /// Returns the number of vertices in a split, with or without a label.
    pub fn split_size(&self, which: u32) -> usize {
        self.split.par_iter().filter(|&&s| s == which).count()
    }

    /// Returns the number of vertices in a split that have a label. Only these count in loss and metrics.
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

    /// Returns the number of labelled vertices of each class in a split, `[classes]`; `None` if the vertices have no labels, or
    /// several classes.
    ///
    /// # Cost
    /// O(vertices + classes).
    pub fn class_counts(&self, which: u32) -> Option<Vec<u64>> {
        let Some(Labels::Class(labels)) = &self.labels else { return None };
        let mut counts = vec![0; self.classes];
        let labelled = self.split.iter().zip(labels.iter()).filter(|&(&s, &label)| s == which && label != NO_LABEL);
        labelled.for_each(|(_, &class)| counts[class as usize] += 1);
        Some(counts)
    }

    /// Returns the id of the graph that each vertex belongs to, if the dataset has several graphs. In the original order
    /// of the vertices, ids ascend.
    pub fn graph_ids(&self) -> Option<&[i64]> {
        self.graph_ids.as_deref()
    }

    /// Returns how features are to be normalised, if the dataset specifies it.
    pub fn feature_norm(&self) -> Option<FeatureNorm> {
        self.feature_norm
    }

    /// Returns the normalisation that the dataset specifies. If it specifies none: by row for sparse features without
    /// negative values, otherwise none.
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

    /// Returns digests of the graph, the features, the labels and the splits, which detect changes.
    ///
    /// # Cost
    /// The first call reads every byte once, in parallel, at about the speed of memory.
    pub fn fingerprint(&self) -> &Fingerprint {
        if let Some(made) = self.fingerprint.get() {
            return made;
        }
        // Not computed inside `get_or_init`: a thread of the pool that waits for the digests may run a task that asks
        // for them too.
        let made = Fingerprint::of(self);
        self.fingerprint.get_or_init(|| made)
    }

    /// Returns the source of the data, if the dataset specifies it.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Returns the licence of the data, if the dataset specifies it.
    pub fn licence(&self) -> Option<&str> {
        self.licence.as_deref()
    }
}
