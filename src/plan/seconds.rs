//! Predicts the time of kernel calls and scripts from a device profile.

use lapidary_cost_model::Profile;
use lapidary_kernels::{Call, Price, Slot};

use super::script::fetched_bytes;
use super::{Action, Planned, Script};
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

/// Returns the predicted seconds of a script. Kernels, copies in and copies out are three lanes that run at the same
/// time; each lane runs its work in order. A copy in may start while the kernel before it runs. A kernel waits for its
/// copies in.
pub fn script_seconds(profile: &Profile, lowered: &Lowered, script: &Script) -> f64 {
    let bytes = |slots: &[Slot]| slots.iter().map(|slot| lowered.tensor(*slot).bytes).sum::<u64>();
    let copy_in = |slots: &[Slot]| if slots.is_empty() { 0.0 } else { profile.copy_in_s(bytes(slots)) };
    let copy_out = |slots: &[Slot]| if slots.is_empty() { 0.0 } else { profile.copy_out_s(bytes(slots)) };
    let (mut computed, mut copied_in, mut copied_out) = (0.0f64, 0.0f64, 0.0f64);
    let mut before = 0.0;
    for Action { call, store, load, publish, .. } in &script.actions {
        if !store.is_empty() {
            copied_out = copied_out.max(before) + copy_out(store);
            // Loaded tensors take the memory of the stored ones, so loads wait for the stores.
            copied_in = copied_in.max(copied_out);
        }
        copied_in = copied_in.max(before) + copy_in(load);
        if let bytes @ 1.. = fetched_bytes(call) {
            // Other devices pack at the same time. Fetched rows use the lane of copies in.
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

/// Returns the predicted seconds of a sequence: those of the slowest device. `lowered` are its programs by device.
pub(crate) fn planned_seconds(profile: &Profile, lowered: &[Lowered], planned: &Planned) -> f64 {
    let devices = lowered.iter().zip(&planned.devices);
    devices.map(|(lowered, device)| script_seconds(profile, lowered, &device.script())).fold(0.0, f64::max)
}
