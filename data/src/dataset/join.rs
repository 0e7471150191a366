//! Joining: several datasets as one, side by side.

use std::sync::Arc;

use lapidary_arrays::{NO_LABEL, NoHostMemory, Shared, SpareArrays};

use super::Dataset;
use super::error::{Error, Result};
use super::features::{Dense, Features, Sparse};
use super::labels::Labels;
use super::split::NONE;
use crate::graph::{Graph, MAX_VERTICES, Permutation, VertexOrder};

impl Dataset {
    /// Joins datasets into one whose graph has the graphs of all, with no edge between them, as `Batch.from_data_list`
    /// does in PyG. The vertices of each dataset follow those of the one before. The graph id of a vertex is the position
    /// of its dataset. A single dataset is returned as it is.
    ///
    /// If only some datasets have labels, the vertices of the others have none; with several labels per vertex, they are
    /// in no split.
    ///
    /// ```
    /// use lapidary_data::dataset::Dataset;
    ///
    /// let club = Dataset::builtin("karate")?;
    /// let both = Dataset::joined(&[club.clone(), club.clone()])?;
    /// assert_eq!(both.graph().vertex_count(), 2 * 34);
    /// assert_eq!(both.graph().sources(34 + 5)[0], 34 + club.graph().sources(5)[0]);
    /// # Ok::<(), lapidary_data::dataset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotJoined`] if there are no datasets, if some do not fit beside the first ([`Dataset::check_beside`]), or if
    /// there are too many vertices; [`Error::HostMemory`].
    /// # Cost
    /// O(size): all arrays are copied.
    pub fn joined(all: &[Self]) -> Result<Self> {
        if let [only] = all {
            return Ok(only.clone());
        }
        let joined = Self::joined_unlabelled(all, &mut SpareArrays::new(0))?;
        let (labels, split) = labels(all);
        let ids = all.iter().zip(0i64..).flat_map(|(data, id)| std::iter::repeat_n(id, data.graph.vertex_count()));
        Ok(Self {
            labels,
            split: split.into(),
            graph_ids: Some(ids.collect::<Vec<_>>().into()),
            permutation: permutation(all).map(Arc::new),
            ..joined
        })
    }

    /// Joins datasets like [`Dataset::joined`], without labels, splits, graph ids and permutation. Arrays are in `spare`
    /// memory, if there is any: joining many times then needs no new memory.
    ///
    /// # Errors
    /// As [`Dataset::joined`].
    /// # Cost
    /// O(size) without labels: graph, weights and features are copied, except those of a single dataset.
    pub fn joined_unlabelled(all: &[Self], spare: &mut SpareArrays) -> Result<Self> {
        let Some(first) = all.first() else {
            return Err(Error::NotJoined { dataset: String::new(), why: "there is none".into() });
        };
        let labelled = || all.iter().filter(|data| data.labels.is_some());
        let first_labelled = labelled().next().unwrap_or(first);
        all.iter().try_for_each(|data| data.check_beside(first).and_then(|()| data.check_beside(first_labelled)))?;
        let vertices = all.iter().map(|data| data.graph.vertex_count()).sum::<usize>();
        if vertices > MAX_VERTICES {
            let why = format!("together they have {vertices} vertices, and a graph has at most {MAX_VERTICES}");
            return Err(Error::NotJoined { dataset: first.name.clone(), why });
        }
        let names = &first_labelled.class_names;
        let names = names.clone().filter(|_| labelled().all(|data| data.class_names == *names));
        let unlabelled = Self {
            name: first.name.clone(),
            graph: first.graph.clone(),
            directed: all.iter().any(|data| data.directed),
            edge_weights: first.edge_weights.clone(),
            features: first.features.clone(),
            labels: None,
            classes: all.iter().map(|data| data.classes).max().unwrap_or(0),
            class_names: names,
            split: vec![NONE; vertices].into(),
            graph_ids: None,
            permutation: None,
            order: VertexOrder::Own,
            feature_norm: first.feature_norm,
            made_features: first.made_features,
            source: None,
            licence: None,
            fingerprint: Arc::default(),
            files: all.iter().flat_map(|data| data.files.iter().cloned()).collect(),
        };
        if all.len() == 1 {
            return Ok(unlabelled);
        }
        let graphs: Vec<&Graph> = all.iter().map(|data| &data.graph).collect();
        let weights: Option<Vec<&[f32]>> = all.iter().map(|data| data.edge_weights.as_deref()).collect();
        Ok(Self {
            name: format!("{} and {} more", first.name, all.len() - 1),
            graph: Graph::side_by_side(&graphs, spare)?,
            edge_weights: weights.map(|weights| concat(&weights, spare)).transpose()?,
            features: features(all, spare)?,
            ..unlabelled
        })
    }

    /// Checks that this dataset can be joined with `first`.
    ///
    /// # Errors
    /// [`Error::NotJoined`] if they differ in the width, the kind or the specified normalisation of features, in the kind
    /// of labels, or in having edge weights.
    pub fn check_beside(&self, first: &Self) -> Result<()> {
        let features = |data: &Self| match &data.features {
            None => "no features".to_string(),
            Some(Features::Dense(dense)) => format!("{} features", dense.width()),
            Some(Features::Sparse(sparse)) => format!("{} sparse features", sparse.width()),
        };
        let labels = |data: &Self| match &data.labels {
            None => "no labels".to_string(),
            Some(Labels::Class(_)) => "one label per vertex".to_string(),
            Some(Labels::Multi { classes, .. }) => format!("{classes} labels per vertex"),
        };
        let weights = |data: &Self| match data.edge_weights {
            None => "no edge weights".to_string(),
            Some(_) => "edge weights".to_string(),
        };
        let norm = |data: &Self| match data.feature_norm {
            None => "no feature norm".to_string(),
            Some(norm) => format!("the feature norm `{norm}`"),
        };
        let both_labelled = self.labels.is_some() && first.labels.is_some();
        let facts: [&dyn Fn(&Self) -> String; 4] = [&features, &weights, &norm, &labels];
        let compared = facts.iter().take(if both_labelled { 4 } else { 3 });
        match compared.map(|fact| (fact(self), fact(first))).find(|(own, other)| own != other) {
            None => Ok(()),
            Some((own, other)) => {
                let why = format!("it has {own}, and `{}` has {other}", first.name);
                Err(Error::NotJoined { dataset: self.name.clone(), why })
            }
        }
    }
}

/// Returns the features of all vertices, if there are any.
fn features(all: &[Dataset], spare: &mut SpareArrays) -> Result<Option<Features>> {
    let Some(all) = all.iter().map(|data| data.features.as_ref()).collect::<Option<Vec<&Features>>>() else {
        return Ok(None);
    };
    let sparse: Vec<&Sparse> = all.iter().filter_map(|features| features.sparse()).collect();
    Ok(Some(match sparse.is_empty() {
        false => Features::Sparse(Sparse::one_after_the_other(&sparse)),
        true => {
            let cells: Vec<&[f32]> = all.iter().map(|features| &features.values()[..]).collect();
            Features::Dense(Dense::of_checked(concat(&cells, spare)?, all[0].width()))
        }
    }))
}

/// Returns one array after the other.
fn concat(all: &[&[f32]], spare: &mut SpareArrays) -> std::result::Result<Shared<f32>, NoHostMemory> {
    let len = all.iter().map(|array| array.len()).sum();
    spare.filled(len, |mut rest: &mut [f32]| {
        for array in all {
            let (to, later) = rest.split_at_mut(array.len());
            to.copy_from_slice(array);
            rest = later;
        }
    })
}

/// Returns the labels of all vertices, if there are any, and the split of each.
fn labels(all: &[Dataset]) -> (Option<Labels>, Vec<u32>) {
    let (mut classes, mut cells, mut split) = (Vec::new(), Vec::new(), Vec::new());
    let columns = all.iter().find_map(|data| match data.labels {
        Some(Labels::Multi { classes, .. }) => Some(classes),
        _ => None,
    });
    for data in all {
        let vertices = data.graph.vertex_count();
        match (&data.labels, columns) {
            (Some(Labels::Class(own)), _) => classes.extend_from_slice(own),
            (Some(Labels::Multi { data, .. }), _) => cells.extend_from_slice(data),
            (None, Some(columns)) => cells.resize(cells.len() + vertices * columns, 0),
            (None, None) => classes.resize(classes.len() + vertices, NO_LABEL),
        }
        match (&data.labels, columns) {
            (None, Some(_)) => split.resize(split.len() + vertices, NONE),
            _ => split.extend_from_slice(&data.split),
        }
    }
    let any = all.iter().any(|data| data.labels.is_some());
    let labels = match columns {
        Some(classes) => Labels::Multi { data: cells.into(), classes },
        None => Labels::Class(classes.into()),
    };
    (any.then_some(labels), split)
}

/// Returns the original ids of all vertices, if some dataset was relabelled.
fn permutation(all: &[Dataset]) -> Option<Permutation> {
    all.iter().any(|data| data.permutation.is_some()).then(|| {
        let (mut old_of_new, mut first) = (Vec::new(), 0);
        for data in all {
            let vertices = data.graph.vertex_count() as u32;
            match &data.permutation {
                Some(own) => old_of_new.extend(own.old_of_new().iter().map(|&old| first + old)),
                None => old_of_new.extend(first..first + vertices),
            }
            first += vertices;
        }
        Permutation::new(old_of_new).expect("each dataset permutes its own vertices")
    })
}
