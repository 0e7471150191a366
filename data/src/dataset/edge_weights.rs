//! The weights of the edges of a dataset: checks and access.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use lapidary_arrays::Shared;
use rayon::prelude::*;

use super::Dataset;
use super::error::{Error, Result};
use super::fingerprint::Fingerprint;
use crate::graph::Graph;

/// The name of the array.
pub(super) const NAME: &str = "edge_weights";

impl Dataset {
    /// Returns the weight of each edge, `[edges]`, in the order of the sources of [`Dataset::graph`], if edges have
    /// weights. All are finite; they may be negative. The two directions of an undirected edge may have different ones.
    pub fn edge_weights(&self) -> Option<&Shared<f32>> {
        self.edge_weights.as_ref()
    }

    /// Returns the dataset without the weights of its edges. The other arrays are shared.
    ///
    /// # Cost
    /// O(1).
    pub fn without_edge_weights(self) -> Self {
        if self.edge_weights.is_none() {
            return self;
        }
        let known = self.fingerprint.get().cloned();
        let known = known.map(|digests| Fingerprint { edge_weights: None, ..digests });
        let fingerprint = Arc::new(known.map_or_else(OnceLock::new, OnceLock::from));
        let is_other = |path: &Path| path.file_stem().is_none_or(|stem| stem != NAME);
        let files = self.files.iter().filter(|stamp| is_other(stamp.path())).cloned().collect();
        Self { edge_weights: None, fingerprint, files, ..self }
    }
}

/// Checks that there is one weight per edge, and that all are finite.
///
/// # Errors
/// [`Error::Shape`]; [`Error::EdgeWeight`], which names the first edge.
/// # Cost
/// O(e), in parallel.
pub(super) fn check(graph: &Graph, weights: &[f32], file: impl Fn() -> String) -> Result<()> {
    check_len(weights.len(), graph.edge_count(), &file)?;
    let Some(edge) = weights.par_iter().position_first(|weight| !weight.is_finite()) else { return Ok(()) };
    let destination = graph.indptr().partition_point(|&offset| offset <= edge as u64) - 1;
    let (source, found) = (graph.indices()[edge], weights[edge]);
    Err(Error::EdgeWeight { file: file(), edge, source_vertex: source, destination: destination as u32, found })
}

/// Checks the weights of a list of edges, as [`check`] does. Edges are numbered in the order of the list.
pub(super) fn check_list(edges: &[(u32, u32)], weights: &[f32], file: impl Fn() -> String) -> Result<()> {
    check_len(weights.len(), edges.len(), &file)?;
    let Some(edge) = weights.par_iter().position_first(|weight| !weight.is_finite()) else { return Ok(()) };
    let (source_vertex, destination) = edges[edge];
    Err(Error::EdgeWeight { file: file(), edge, source_vertex, destination, found: weights[edge] })
}

fn check_len(found: usize, edges: usize, file: impl Fn() -> String) -> Result<()> {
    if found == edges {
        return Ok(());
    }
    Err(Error::Shape { file: file(), found: vec![found], expected: format!("[{edges}] (one weight per edge)") })
}
