//! Predicts the time of single vertices from a device profile.

use lapidary_cost_model::{CostModel, FeatureSums, Operation};
use rayon::prelude::*;

use crate::graph::Graph;

/// Returns the predicted seconds of each vertex in all of `ops`, without constants per call.
pub(super) fn vertex_seconds(graph: &Graph, ops: &[Operation], model: &CostModel) -> Vec<f64> {
    let mut widths: Vec<u32> = ops.iter().map(|op| op.work.width()).filter(|&width| width > 0).collect();
    widths.sort_unstable();
    widths.dedup();
    let sums = FeatureSums::new(graph.indptr(), graph.indices(), model.profile(), &widths);
    let sums = sums.expect("a graph's arrays are a CSR");
    let cost = model.range_cost(ops, &sums).expect("the sums were made for these widths and this profile");
    (0..graph.vertex_count()).into_par_iter().map(|v| cost.of(v..v + 1)).collect()
}
