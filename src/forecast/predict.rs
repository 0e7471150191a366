//! Predicts the time of kernel calls from a device profile.

use lapidary_cost_model::{CostModel, FeatureSums, Operation, Profile};
use lapidary_kernels::{Call, Price, Slot};
use rayon::prelude::*;

use crate::graph::Graph;
use crate::lower::Lowered;

/// Returns the predicted seconds of one kernel call.
pub fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call) -> f64 {
    let size = |size: usize| size as u64;
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let steps = &call.inputs[call.head_inputs().len()..];
    let head_s = match call.price() {
        // The profile counts columns of f32, so the width is the number of f32 values with the bytes of a row.
        Price::Gather { block, edges, row_bytes, .. } => {
            profile.gather_s(size(block.rows), edges, size(row_bytes.div_ceil(4)))
        }
        Price::Product { rows, k, m } => profile.linear_s(size(rows), size(k), size(m)),
        Price::Rows { .. } => {
            // The sum that the call continues is not counted. Operands of row steps are counted below.
            let mut beside = call.sum.iter().chain(steps).map(|mat| mat.slot);
            profile.elementwise_s(bytes(&mut call.reads().chain(call.writes())) - bytes(&mut beside))
        }
        Price::Nothing => 0.0,
    };
    // The launch is already counted in `head_s`, so it is subtracted here.
    let step_bytes = bytes(&mut steps.iter().map(|mat| mat.slot));
    if call.op.steps().is_empty() {
        head_s
    } else {
        head_s + profile.elementwise_s(step_bytes) - profile.elementwise_s(0)
    }
}

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
