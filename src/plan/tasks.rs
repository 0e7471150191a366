//! The task graph of a part's steps, for the planner: tensors with sizes, and ops over them.

use std::collections::{BTreeMap, BTreeSet};

use lapidary_kernels::Slot;
use lapidary_planner::tasks::{Task, TaskError, TaskGraph, Tensor, TensorId, TensorKind};

use crate::lower::{Lifetime, Lowered, LoweredStep};

/// A task graph, with the slot of each of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The graph. Its ops are the steps, in the same order.
    pub graph: TaskGraph,
    /// Slots by tensor; `None` for a tensor that only orders two steps.
    slots: Vec<Option<Slot>>,
    ids: BTreeMap<Slot, TensorId>,
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
    /// O(steps log steps).
    pub fn new(
        lowered: &Lowered,
        steps: &[LoweredStep],
        publish: &BTreeSet<Slot>,
        beside: &[Slot],
    ) -> Result<Self, TaskError> {
        let made: BTreeSet<Slot> = steps.iter().flat_map(|step| step.call.writes()).collect();
        let mut ids: BTreeMap<Slot, TensorId> = BTreeMap::new();
        let (mut slots, mut tensors) = (Vec::new(), Vec::new());
        let mut id_of = |slot: Slot| {
            *ids.entry(slot).or_insert_with(|| {
                let tensor = lowered.tensor(slot);
                let kind = match (made.contains(&slot), tensor.kind) {
                    (true, _) => TensorKind::Local,
                    (false, Lifetime::Received | Lifetime::Batch) => TensorKind::Fresh,
                    (false, _) => TensorKind::Constant,
                };
                let publish = made.contains(&slot) && publish.contains(&slot);
                tensors.push(Tensor { name: tensor.name.clone(), bytes: tensor.bytes, kind, publish });
                slots.push(Some(slot));
                TensorId(slots.len() as u32 - 1)
            })
        };
        let ops = steps.iter().map(|step| Task {
            name: step.name.to_string(),
            inputs: step.call.reads().map(&mut id_of).collect(),
            outputs: step.call.writes().map(&mut id_of).collect(),
            next: step.next.iter().map(|&(new, old)| (id_of(new), id_of(old))).collect(),
        });
        let mut ops: Vec<Task> = ops.collect();
        beside.iter().copied().map(&mut id_of).for_each(drop);
        // A single pass, so the time does not grow with the square of the number of steps.
        let mut users = Users::default();
        for (i, step) in steps.iter().enumerate() {
            let awaited = step.call.reads().chain(step.after.iter().copied());
            awaited.for_each(|slot| users.readers.entry(slot).or_default().push(i));
            users.writer.extend(step.call.writes().map(|slot| (slot, i)));
        }
        for (i, step) in steps.iter().enumerate() {
            for slot in &step.after {
                let Some(&maker) = users.writer.get(slot) else { continue };
                let made = TensorId(tensors.len() as u32);
                let name = format!("{} made before {}", lowered.tensor(*slot).name, step.name);
                tensors.push(Tensor { name, bytes: 0, kind: TensorKind::Local, publish: false });
                slots.push(None);
                ops[maker].outputs.push(made);
                ops[i].inputs.push(made);
            }
        }
        for exchange in &lowered.exchanges {
            let publishers = exchange.published().iter().filter_map(|slot| users.writer.get(slot));
            let mut publishers: Vec<usize> = publishers.copied().collect();
            publishers.sort_unstable();
            let readers = exchange.received().iter().filter_map(|slot| users.readers.get(slot)).flatten();
            let readers: BTreeSet<usize> = readers.copied().collect();
            // Each publisher is followed by the next, and the last by the readers.
            for (i, &publisher) in publishers.iter().enumerate() {
                let sent = TensorId(tensors.len() as u32);
                let name = format!("{} sent", lowered.tensor(exchange.published()[i]).name);
                tensors.push(Tensor { name, bytes: 0, kind: TensorKind::Local, publish: false });
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
        self.ids.get(&slot).copied()
    }
}

/// The steps that use each slot.
#[derive(Default)]
struct Users {
    readers: BTreeMap<Slot, Vec<usize>>,
    writer: BTreeMap<Slot, usize>,
}
