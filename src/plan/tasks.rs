//! The task graph of a part's steps, for the planner: tensors with sizes, and ops over them.

use std::collections::{BTreeMap, BTreeSet};

use lapidary_kernels::Slot;
use lapidary_planner::tasks::{Task, TaskError, TaskGraph, Tensor, TensorId, TensorKind};

use crate::lower::{Lifetime, Lowered, LoweredStep, SlotSet};

/// A task graph, with the slot of each of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The graph. Its ops are the steps, in the same order.
    pub graph: TaskGraph,
    /// Slots by tensor; `None` for a tensor that only orders two steps.
    slots: Vec<Option<Slot>>,
    /// Tensors by slot; `None` for one that no op uses.
    ids: Vec<Option<TensorId>>,
}

impl Tasks {
    /// Creates the task graph of `steps`, which are some of `lowered`'s. Slots in `publish` that are computed here are
    /// stored to the host as soon as they are computed. Slots in `beside` are on the device meanwhile, whether or not a
    /// step reads them.
    ///
    /// A step that reads what parts build together comes after the step that publishes this part's share: a tensor of
    /// no bytes goes from one to the other.
    ///
    /// # Errors
    /// [`TaskError`] if there are no steps, or if the sum of the sizes does not fit 64 bits.
    /// # Cost
    /// O(slots + operands of the steps).
    pub fn new(
        lowered: &Lowered,
        steps: &[LoweredStep],
        publish: &SlotSet,
        beside: &[Slot],
    ) -> Result<Self, TaskError> {
        let mut writer: Vec<Option<u32>> = vec![None; lowered.tensors.len()];
        for (i, step) in (0..).zip(steps) {
            step.call.writes().for_each(|slot| writer[slot.0 as usize] = Some(i));
        }
        let mut ids: Vec<Option<TensorId>> = vec![None; lowered.tensors.len()];
        let (mut slots, mut tensors) = (Vec::new(), Vec::new());
        let mut id_of = |slot: Slot| {
            *ids[slot.0 as usize].get_or_insert_with(|| {
                let (tensor, is_made) = (lowered.tensor(slot), writer[slot.0 as usize].is_some());
                let kind = match (is_made, tensor.kind) {
                    (true, _) => TensorKind::Local,
                    (false, Lifetime::Received | Lifetime::Batch) => TensorKind::Fresh,
                    (false, _) => TensorKind::Constant,
                };
                let publish = is_made && publish.contains(slot);
                tensors.push(Tensor { name: tensor.name.clone(), bytes: tensor.bytes, kind, publish });
                slots.push(Some(slot));
                TensorId(slots.len() as u32 - 1)
            })
        };
        let ops = steps.iter().map(|step| Task {
            name: step.name.clone(),
            inputs: step.call.reads().map(&mut id_of).collect(),
            outputs: step.call.writes().map(&mut id_of).collect(),
            next: step.next.iter().map(|&(new, old)| (id_of(new), id_of(old))).collect(),
        });
        let mut ops: Vec<Task> = ops.collect();
        beside.iter().copied().map(&mut id_of).for_each(drop);
        let writer_of = |slot: Slot| writer[slot.0 as usize].map(|maker| maker as usize);
        for (i, step) in steps.iter().enumerate() {
            for slot in &step.after {
                let Some(maker) = writer_of(*slot) else { continue };
                let made = TensorId(tensors.len() as u32);
                let name = format!("{} made before {}", lowered.tensor(*slot).name, step.name);
                tensors.push(Tensor { name: name.into(), bytes: 0, kind: TensorKind::Local, publish: false });
                slots.push(None);
                ops[maker].outputs.push(made);
                ops[i].inputs.push(made);
            }
        }
        let readers = readers_of_received(lowered, steps);
        for exchange in &lowered.exchanges {
            let mut publishers: Vec<usize> = exchange.published().iter().filter_map(|&slot| writer_of(slot)).collect();
            publishers.sort_unstable();
            let readers = exchange.received().iter().filter_map(|slot| readers.get(slot)).flatten();
            let readers: BTreeSet<usize> = readers.copied().collect();
            // Each publisher is followed by the next, and the last by the readers.
            for (i, &publisher) in publishers.iter().enumerate() {
                let sent = TensorId(tensors.len() as u32);
                let name = format!("{} sent", lowered.tensor(exchange.published()[i]).name);
                tensors.push(Tensor { name: name.into(), bytes: 0, kind: TensorKind::Local, publish: false });
                slots.push(None);
                ops[publisher].outputs.push(sent);
                match publishers.get(i + 1) {
                    Some(&next) => ops[next].inputs.push(sent),
                    None => readers.iter().for_each(|&reader| ops[reader].inputs.push(sent)),
                }
            }
        }
        Ok(Self { graph: TaskGraph::new(tensors, ops)?, slots, ids })
    }

    /// Returns the slots of tensors.
    pub fn slots_of(&self, tensors: &[TensorId]) -> Vec<Slot> {
        tensors.iter().filter_map(|t| self.slots[t.index()]).collect()
    }

    /// Returns the slot of a tensor; `None` for one that only orders two steps.
    pub fn slot_of(&self, tensor: TensorId) -> Option<Slot> {
        self.slots[tensor.index()]
    }

    /// Returns the tensor of a slot, if the ops use it.
    pub fn tensor_of(&self, slot: Slot) -> Option<TensorId> {
        self.ids.get(slot.0 as usize).copied().flatten()
    }
}

/// Returns the steps that wait for each slot that an exchange fills.
fn readers_of_received(lowered: &Lowered, steps: &[LoweredStep]) -> BTreeMap<Slot, Vec<usize>> {
    let received = lowered.exchanges.iter().flat_map(|exchange| exchange.received());
    let mut readers: BTreeMap<Slot, Vec<usize>> = received.map(|&slot| (slot, Vec::new())).collect();
    if readers.is_empty() {
        return readers;
    }
    for (i, step) in steps.iter().enumerate() {
        for slot in step.call.reads().chain(step.after.iter().copied()) {
            if let Some(readers) = readers.get_mut(&slot) {
                readers.push(i);
            }
        }
    }
    readers
}
