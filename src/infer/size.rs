//! The sizes of graphs: small ones run together in batches, and leave their memory to later ones.

use crate::dataset::Dataset;

/// A batch takes graphs until it has so many vertices and edges. A larger one leaves the caches; a smaller one spends more of
/// its time on its preparation.
pub(super) const BATCH_SIZE: usize = 1 << 18;

/// Returns the number of vertices and edges.
pub(super) fn size(data: &Dataset) -> usize {
    data.graph().vertex_count() + data.graph().edge_count()
}

/// Whether a graph, or a batch, is at most as large as a batch should be.
pub(super) fn is_small(data: &Dataset) -> bool {
    size(data) <= BATCH_SIZE
}
