//! How long a script takes, by a device's profile.

use lapidary_cost_model::Profile;
use lapidary_kernels::{Call, Price, Slot};

use crate::lower::Lowered;
use crate::plan::{Action, Script, fetched_bytes};

/// Seconds of one kernel call.
pub fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call) -> f64 {
    let size = |size: usize| size as u64;
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let steps = &call.inputs[call.head_inputs().len()..];
    let head_s = match call.price() {
        // As many f32 as a row's bytes are.
        Price::Gather { block, edges, row_bytes, .. } => {
            profile.gather_s(size(block.rows), edges, size(row_bytes.div_ceil(4)))
        }
        Price::Product { rows, k, m } => profile.linear_s(size(rows), size(k), size(m)),
        Price::Rows { .. } => {
            // What it goes on from is not counted; what steps read is counted below.
            let mut beside = call.sum.iter().chain(steps).map(|mat| mat.slot);
            profile.elementwise_s(bytes(&mut call.reads().chain(call.writes())) - bytes(&mut beside))
        }
        Price::Nothing => 0.0,
    };
    // The launch is counted once.
    let step_bytes = bytes(&mut steps.iter().map(|mat| mat.slot));
    if call.op.steps().is_empty() {
        head_s
    } else {
        head_s + profile.elementwise_s(step_bytes) - profile.elementwise_s(0)
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
        let waits = !load.is_empty() || call.fetches();
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
