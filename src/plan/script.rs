//! Scripts: what a worker does in one epoch, step by step.

use std::sync::Arc;

use lapidary_kernels::{Call, Mat, Slot};
use lapidary_planner::memory::Plan;

use super::Tasks;
use crate::lower::{Lowered, LoweredStep};

/// One kernel call with the copies around it: stores, then evictions, then loads, then the call, then publishing and loads
/// for later calls.
#[derive(Clone, Debug)]
pub struct Action {
    /// Name of the operation.
    pub name: Arc<str>,
    /// Index of the step that it runs.
    pub step: usize,
    /// The kernel call.
    pub call: Arc<Call>,
    /// Slots that are copied to the host first.
    pub store: Vec<Slot>,
    /// Slots that are freed then.
    pub evict: Vec<Slot>,
    /// Slots that are copied to the device then, and that the call reads.
    pub load: Vec<Slot>,
    /// Slots that are copied to the device as soon as there is room, for a later call. The room is planned from this
    /// action on.
    pub ahead: Vec<Slot>,
    /// Outputs that are copied to the host after the call.
    pub publish: Vec<Slot>,
}

/// A plan in the form that a worker interprets.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Slots on the device when the script begins.
    pub start: Vec<Slot>,
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// Slots that are stored, evicted and loaded after the last action.
    pub finish: [Vec<Slot>; 3],
    /// Outputs that become inputs at the end: `(output, input)`.
    pub next: Vec<(Slot, Slot)>,
    /// Index of the first action after the last one of the first phase. Time from there on counts as evaluation.
    pub evaluates_from: Option<usize>,
    /// Most bytes on the device at once.
    pub peak_bytes: u64,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied to the host.
    pub bytes_to_host: u64,
    /// Bytes fetched from other devices.
    pub bytes_between_devices: u64,
}

impl Script {
    /// Whether the script copies nothing between its first call and its last.
    pub fn copies_nothing(&self) -> bool {
        self.copies() == 0 && !self.actions.iter().any(|action| action.call.is_exchange())
    }

    /// Returns the number of copies between host and device from the first call to the last.
    pub fn copies(&self) -> usize {
        let of_action = |action: &Action| {
            [&action.store, &action.load, &action.ahead, &action.publish].into_iter().map(Vec::len).sum::<usize>()
        };
        let [store, _, load] = &self.finish;
        self.actions.iter().map(of_action).sum::<usize>() + store.len() + load.len()
    }

    /// Returns the same script for other sizes: `steps` are those of the same programs, lowered with sizes that this
    /// script's bound.
    pub fn resized(&self, steps: &[LoweredStep], lowered: &Lowered) -> Self {
        let mut script = self.clone();
        script.actions.iter_mut().for_each(|action| action.call = steps[action.step].call.clone());
        let bytes = |slots: &[Slot]| slots.iter().map(|&slot| lowered.tensor(slot).bytes).sum::<u64>();
        let of_actions = |copied: fn(&Action) -> [&Vec<Slot>; 2]| -> u64 {
            script.actions.iter().flat_map(copied).map(|slots| bytes(slots)).sum()
        };
        let [store, _, load] = &script.finish;
        let to_device = of_actions(|action| [&action.load, &action.ahead]) + bytes(load);
        let to_host = of_actions(|action| [&action.store, &action.publish]) + bytes(store);
        (script.bytes_to_device, script.bytes_to_host) = (to_device, to_host);
        script
    }

    /// Creates the script of a plan of `steps`, with slots in place of the planner's numbers.
    pub fn new(steps: &[LoweredStep], tasks: &Tasks, plan: &Plan) -> Self {
        let slots = |tensors: &[_]| tasks.slots_of(tensors);
        let actions = plan.steps.iter().map(|planned| {
            let step = &steps[planned.op.index()];
            let outputs = tasks.graph.op(planned.op).outputs.iter().copied();
            let published: Vec<_> = outputs.filter(|t| tasks.graph.tensor(*t).publish).collect();
            let (load, ahead) =
                slots(&planned.load).into_iter().partition(|&slot| step.call.reads().any(|read| read == slot));
            Action {
                name: step.name.clone(),
                step: planned.op.index(),
                call: step.call.clone(),
                store: slots(&planned.store),
                evict: slots(&planned.evict),
                load,
                ahead,
                publish: slots(&published),
            }
        });
        let first_phase = steps.first().map_or(0, |step| step.phase);
        Self {
            evaluates_from: plan
                .steps
                .iter()
                .rposition(|planned| steps[planned.op.index()].phase == first_phase)
                .map(|last| last + 1)
                .filter(|&after| after < plan.steps.len()),
            start: slots(&plan.start.resident),
            actions: actions.collect(),
            finish: [slots(&plan.finish.store), slots(&plan.finish.evict), slots(&plan.finish.load)],
            next: steps.iter().flat_map(|step| step.next.iter().copied()).collect(),
            peak_bytes: plan.peak_bytes,
            bytes_to_device: plan.bytes_to_device,
            bytes_to_host: plan.bytes_to_host,
            bytes_between_devices: steps.iter().map(|step| fetched_bytes(&step.call)).sum(),
        }
    }
}

/// Returns the bytes that a call copies from other devices.
pub(crate) fn fetched_bytes(call: &Call) -> u64 {
    let bytes = |out: Mat| (out.numbers() as u64).saturating_mul(out.dtype.byte_count());
    if call.fetches() { bytes(call.out()) } else { 0 }
}
