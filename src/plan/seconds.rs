//! Predicts the time of kernel calls and sequences from a device profile.

use lapidary_cost_model::Profile;
use lapidary_kernels::{Call, Price, Slot};

use super::timeline::Timeline;
use super::{Planned, PlannedDevice};
use crate::lower::Lowered;
use crate::profile::Nominal;

/// Returns the predicted seconds of one kernel call.
pub fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call) -> f64 {
    let size = |size: usize| size as u64;
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let steps = &call.inputs[call.head_inputs().len()..];
    let head_s = match call.price() {
        // The profile counts columns of f32, so the width is the number of f32 values with the bytes of a row.
        Price::Gather { block, edges, row_bytes, .. } => {
            // A window of the sources reads the sum of those before.
            let sum = profile.elementwise_s(bytes(&mut call.sum.iter().map(|mat| mat.slot))) - profile.elementwise_s(0);
            profile.gather_s(size(block.rows), edges, size(row_bytes.div_ceil(4))) + sum
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

/// Returns the predicted seconds of a sequence, to compare plans: those of the slowest device. `lowered` are its programs
/// by device.
pub(crate) fn planned_seconds(nominal: &Nominal, lowered: &[Lowered], planned: &Planned) -> f64 {
    let of_device = |(lowered, device): (&Lowered, &PlannedDevice)| {
        let timeline = Timeline::new(&nominal.profile, lowered, &device.script());
        if nominal.shares_cores { timeline.sum_s() } else { timeline.seconds }
    };
    lowered.iter().zip(&planned.devices).map(of_device).fold(0.0, f64::max)
}
