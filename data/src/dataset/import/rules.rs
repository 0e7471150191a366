//! Rules for repeated edges, loops, edges without a reverse, and vertices without edges.

use lapidary_arrays::Shared;
use rayon::prelude::*;

use crate::dataset::build::{Parts, RawFeatures, RawLabels};
use crate::dataset::error::{Error, Result};
use crate::dataset::rows::Keep;
use crate::dataset::split::Members;
use crate::graph::Graph;

/// Whether an item is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The item is kept and counted.
    Keep,
    /// The item is dropped and counted.
    Drop,
}

impl std::str::FromStr for Fate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "keep" => Ok(Self::Keep),
            "drop" => Ok(Self::Drop),
            other => {
                let (option, expected) = ("the value", "`keep` or `drop`".into());
                Err(Error::Option { option, found: other.into(), expected })
            }
        }
    }
}

/// The rules for the edges of a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub keep: Keep,
    pub symmetrise: bool,
}

impl Rules {
    pub(super) const fn new(duplicates: Fate, self_loops: Fate, symmetrise: bool) -> Self {
        let duplicates = matches!(duplicates, Fate::Keep);
        let self_loops = matches!(self_loops, Fate::Keep);
        Self { keep: Keep { duplicates, self_loops }, symmetrise }
    }
}

/// Returns for each vertex whether it has an edge to or from another one.
pub(super) fn connected(graph: &Graph) -> Vec<bool> {
    let n = graph.vertex_count();
    let has_other = |v: usize| graph.sources(v).iter().any(|&u| u as usize != v);
    let mut connected: Vec<bool> = (0..n).into_par_iter().map(has_other).collect();
    for v in 0..n {
        for &u in graph.sources(v).iter().filter(|&&u| u as usize != v) {
            connected[u as usize] = true;
        }
    }
    connected
}

/// Drops the vertices that are not `kept`, with their edges, weights, features, labels and splits.
///
/// # Errors
/// Arrays that do not have one row per vertex, as in [`Parts::build`].
pub(super) fn select(parts: &mut Parts, kept: &[bool]) -> Result<()> {
    let vertices = kept.len();
    parts.check_rows()?;
    let mut name = vec![0u32; vertices];
    for (count, (name, _)) in (0..).zip(name.iter_mut().zip(kept).filter(|(_, kept)| **kept)) {
        *name = count;
    }
    let graph = &parts.graph;
    let rows = || (0..vertices).filter(|&v| kept[v]);
    let mut indptr = vec![0u64];
    let mut indices = Vec::with_capacity(graph.edge_count());
    if let Some(weights) = &mut parts.edge_weights {
        let edges = rows().flat_map(|v| graph.edges(v)).filter(|&edge| kept[graph.indices()[edge] as usize]);
        *weights = edges.map(|edge| weights[edge]).collect::<Vec<_>>().into();
    }
    for v in rows() {
        indices.extend(graph.sources(v).iter().filter(|&&u| kept[u as usize]).map(|&u| name[u as usize]));
        indptr.push(indices.len() as u64);
    }
    parts.graph = Graph::new(indptr.into(), indices.into())
        .map_err(|problem| Error::Graph { file: parts.origin.name("edges"), problem })?;
    match &mut parts.features {
        None => {}
        Some(RawFeatures::Dense { data, rows: count, width }) => {
            *data = rows().flat_map(|v| data[v * *width..(v + 1) * *width].iter().copied()).collect::<Vec<_>>().into();
            *count = rows().count();
        }
        Some(RawFeatures::Sparse { indptr, indices, values, .. }) => {
            let range = |v: usize| indptr[v] as usize..indptr[v + 1] as usize;
            let new_indices: Vec<u32> = rows().flat_map(|v| indices[range(v)].iter().copied()).collect();
            let new_values: Vec<f32> = rows().flat_map(|v| values[range(v)].iter().copied()).collect();
            let mut offsets = vec![0u64];
            for v in rows() {
                offsets.push(offsets[offsets.len() - 1] + range(v).len() as u64);
            }
            (*indptr, *indices, *values) = (offsets.into(), new_indices.into(), new_values.into());
        }
    }
    match &mut parts.labels {
        None => {}
        Some(RawLabels::Class(labels)) => *labels = pick(labels, rows()),
        Some(RawLabels::Multi { data, rows: count, classes }) => {
            *data =
                rows().flat_map(|v| data[v * *classes..(v + 1) * *classes].iter().copied()).collect::<Vec<_>>().into();
            *count = rows().count();
        }
    }
    parts.graph_ids = parts.graph_ids.as_ref().map(|ids| pick(ids, rows()));
    for members in parts.splits.iter_mut().flatten() {
        match members {
            Members::Mask(mask) => *mask = rows().map(|v| mask[v]).collect(),
            Members::Ids(ids) => {
                ids.retain(|&id| kept[id as usize]);
                ids.iter_mut().for_each(|id| *id = name[*id as usize].into());
            }
        }
    }
    Ok(())
}

fn pick<T: Copy + Send + Sync + 'static>(values: &[T], rows: impl Iterator<Item = usize>) -> Shared<T>
where
    Shared<T>: From<Vec<T>>,
{
    rows.map(|v| values[v]).collect::<Vec<T>>().into()
}
