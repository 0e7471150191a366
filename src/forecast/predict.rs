//! How long a script takes, by a device's profile.

use lapidary_cost_model::Profile;
use lapidary_kernels::{Call, Mat, RowStep, Slot};

use crate::lower::Lowered;
use crate::plan::{Action, Script, fetched_bytes};

/// Seconds of one kernel call.
pub fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call) -> f64 {
    let size = |rows: usize| rows as u64;
    // As many f32 as a row's bytes are.
    let width = |mat: &Mat| mat.row_bytes().div_ceil(4) as u64;
    match call {
        Call::Gather { block, own, .. } => profile.gather_s(size(block.rows), size(block.edges), width(own)),
        // A window has its share of the edges.
        Call::GatherWindow { block, own, .. } => {
            let edges = block.edges as f64 * own.rows as f64 / block.own_sources.max(1) as f64;
            profile.gather_s(size(block.rows), edges as u64, width(own))
        }
        Call::Accumulate { head, .. } => call_seconds(profile, lowered, head),
        Call::Linear { x, weight, .. } => profile.linear_s(size(x.rows), size(x.cols), size(weight.rows)),
        Call::LinearInputGrad { grad, weight, .. } => {
            profile.linear_s(size(grad.rows), size(grad.cols), size(weight.cols))
        }
        Call::LinearWeightGrad { grad, x, .. } => profile.linear_s(size(x.rows), size(x.cols), size(grad.cols)),
        Call::Fused { head, steps } => {
            let read_bytes = steps.iter().filter_map(RowStep::operand).map(|slot| lowered.tensor(slot).bytes).sum();
            // The launch is counted once.
            call_seconds(profile, lowered, head) + profile.elementwise_s(read_bytes) - profile.elementwise_s(0)
        }
        // That takes no kernel's time.
        Call::Fetch { .. } => 0.0,
        other => {
            let operands = other.reads().into_iter().chain(other.writes());
            profile.elementwise_s(operands.map(|slot| lowered.tensor(slot).bytes).sum())
        }
    }
}

/// Seconds of a script: kernels, copies in and copies out each run one after the other, on lanes beside each other. A copy in
/// may start while the kernel before it runs; a kernel waits for its copies.
pub fn script_seconds(profile: &Profile, lowered: &Lowered, script: &Script) -> f64 {
    let bytes = |slots: &[Slot]| slots.iter().map(|slot| lowered.tensor(*slot).bytes).sum::<u64>();
    let copy_in = |slots: &[Slot]| if slots.is_empty() { 0.0 } else { profile.copy_in_s(bytes(slots)) };
    let copy_out = |slots: &[Slot]| if slots.is_empty() { 0.0 } else { profile.copy_out_s(bytes(slots)) };
    let (mut computed, mut copied_in, mut copied_out) = (0.0f64, 0.0f64, 0.0f64);
    let mut before = 0.0;
    for Action { call, store, load, publish, .. } in &script.actions {
        if !store.is_empty() {
            copied_out = copied_out.max(before) + copy_out(store);
            // What is loaded takes the place of what was stored.
            copied_in = copied_in.max(copied_out);
        }
        copied_in = copied_in.max(before) + copy_in(load);
        if let bytes @ 1.. = fetched_bytes(call) {
            // The others pack at the same time, and their rows go the way of copies in.
            copied_in = copied_in.max(computed) + profile.fetch_s(bytes);
        }
        let waits = !load.is_empty() || matches!(call, Call::Fetch { .. });
        let start = if waits { computed.max(copied_in) } else { computed };
        (before, computed) = (computed, start + call_seconds(profile, lowered, call));
        if !publish.is_empty() {
            copied_out = copied_out.max(computed) + copy_out(publish);
        }
    }
    let [store, _, load] = &script.finish;
    copied_out = copied_out.max(computed) + copy_out(store);
    copied_in += copy_in(load);
    computed.max(copied_in).max(copied_out)
}
