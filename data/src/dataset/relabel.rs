//! Relabelling: the same dataset with its vertices in another order, which is recorded.

use std::path::Path;
use std::sync::Arc;

use super::Dataset;
use super::error::Result;
use super::features::Features;
use super::labels::Labels;
use crate::graph::{Permutation, VertexOrder};

/// The name of the array.
pub(super) const NAME: &str = "permutation";

impl Dataset {
    /// Returns the original id of each vertex, if the vertices of this dataset were relabelled. Rows that were computed
    /// from this dataset come back in the original order by [`Permutation::restored`].
    ///
    /// ```
    /// use lapidary_data::dataset::Dataset;
    /// use lapidary_data::graph::Permutation;
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let moved = data.relabelled(&Permutation::random(34, 1));
    /// let degrees = |data: &Dataset| (0..34).map(|v| data.graph().in_degree(v)).collect::<Vec<_>>();
    /// let order = moved.permutation().expect("it was relabelled");
    /// assert_ne!(degrees(&moved), degrees(&data));
    /// assert_eq!(order.restored(&degrees(&moved), 1), degrees(&data));
    /// # Ok::<(), lapidary_data::dataset::Error>(())
    /// ```
    pub fn permutation(&self) -> Option<&Permutation> {
        self.permutation.as_deref()
    }

    /// Returns the dataset with its vertices renamed: vertex i is the vertex `order.old_of_new()[i]` of this one. Edges
    /// and their weights, features, labels, splits and graph ids follow their vertices. [`Dataset::permutation`] of the
    /// result leads back to the original order, also if this dataset was relabelled before.
    ///
    /// # Panics
    /// If `order` has another number of vertices.
    /// # Cost
    /// O(size) and sorting each row of edges, in parallel. All arrays are new: they take as much memory as this dataset.
    pub fn relabelled(&self, order: &Permutation) -> Self {
        let moved = |features: &Features| features.relabelled(order);
        Self { features: self.features.as_ref().map(moved), ..self.relabelled_without_features(order) }
    }

    /// Returns the dataset with its vertices in an order: `permutation`, which is that of `order`, as
    /// [`Dataset::relabelled`] does it. [`Dataset::order`] of the result is `order`. Drops this dataset.
    ///
    /// # Errors
    /// [`Error::Changed`](super::Error::Changed) if a file of this dataset changed meanwhile.
    /// # Panics
    /// If `permutation` has another number of vertices.
    /// # Cost
    /// As [`Dataset::relabelled`]: while it runs, memory holds the arrays twice.
    pub fn in_order(self, order: VertexOrder, permutation: &Permutation) -> Result<Self> {
        let moved = self.relabelled(permutation);
        self.check_files()?;
        Ok(Self { order, ..moved })
    }

    /// Returns the order to which [`Dataset::in_order`] or [`Dataset::reordered`] has brought the vertices in memory.
    /// It is [`VertexOrder::Own`] for a dataset as it was opened, even if its directory was written relabelled.
    pub fn order(&self) -> VertexOrder {
        self.order
    }

    /// Does the same as [`Dataset::relabelled`], but leaves the features out.
    fn relabelled_without_features(&self, order: &Permutation) -> Self {
        let earlier = self.permutation.as_ref();
        let labels = self.labels.as_ref().map(|labels| match labels {
            Labels::Class(classes) => Labels::Class(order.rows(classes, 1).into()),
            Labels::Multi { data, classes } => {
                Labels::Multi { data: order.rows(data, *classes).into(), classes: *classes }
            }
        });
        Self {
            graph: order.apply(&self.graph),
            edge_weights: self.edge_weights.as_ref().map(|weights| order.apply_values(&self.graph, weights).into()),
            features: None,
            labels,
            split: order.rows(&self.split, 1).into(),
            graph_ids: self.graph_ids.as_ref().map(|ids| order.rows(ids, 1).into()),
            permutation: Some(Arc::new(earlier.map_or_else(|| order.clone(), |earlier| earlier.then(order)))),
            order: VertexOrder::Own,
            fingerprint: Arc::default(),
            files: Arc::default(),
            name: self.name.clone(),
            directed: self.directed,
            classes: self.classes,
            class_names: self.class_names.clone(),
            feature_norm: self.feature_norm,
            made_features: self.made_features,
            source: self.source.clone(),
            licence: self.licence.clone(),
        }
    }

    /// Writes [`Dataset::relabelled`] to a directory, and the files that `more` adds. Features are not copied in memory:
    /// their rows go from this dataset to the file one by one.
    ///
    /// # Errors
    /// Those of [`Dataset::write`]; [`Error::Changed`](super::Error::Changed) if a file of this dataset changed
    /// meanwhile.
    /// # Panics
    /// If `order` has another number of vertices.
    pub(crate) fn write_relabelled(
        &self,
        order: &Permutation,
        dir: &Path,
        more: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        Self::check_destination(dir)?;
        let moved = self.relabelled_without_features(order);
        let features = self.features.as_ref().map(|features| (features, Some(order)));
        moved.write_directory(dir, features, |dir| {
            more(dir)?;
            // The directory gets its name only if it was written from what was opened.
            self.check_files()
        })
    }
}
