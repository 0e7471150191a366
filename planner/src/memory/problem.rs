//! A request in the form that the policies use: sets of tensors as bits, and which values outlive an op or the epoch.

use fixedbitset::FixedBitSet;

use super::{Boundary, Epoch, Objective, PlanError, Request};
use crate::tasks::{TaskGraph, TaskId, TensorId, TensorKind};

/// A request over a graph, with the queries that the policies need.
#[derive(Clone)]
pub(super) struct Problem<'a> {
    pub graph: &'a TaskGraph,
    pub capacity_bytes: u64,
    /// Whether stores have a cost. If not, every output gets a host copy for free.
    pub stores_count: bool,
    pub epoch: Epoch,
    /// The order that the request fixes, if it does.
    pub order: Option<Vec<TaskId>>,
    /// For each op its inputs and outputs, in ascending order.
    pub need: Vec<Vec<usize>>,
    /// Bytes of the capacity that each tensor takes: its size, or 0 for a small tensor of a relaxed problem.
    pub room: Vec<u64>,
    /// Bytes that each op takes beside the room of its tensors: the sizes of those whose room is 0.
    pub extra: Vec<u64>,
}

impl<'a> Problem<'a> {
    /// # Errors
    /// [`PlanError`] if the order or the boundary does not fit the graph.
    pub fn new(graph: &'a TaskGraph, request: &Request) -> Result<Self, PlanError> {
        if request.order.as_ref().is_some_and(|order| !graph.is_order(order)) {
            return Err(PlanError::Order { ops: graph.ops().len() });
        }
        let stores_count = request.objective == Objective::Both;
        let epoch = match &request.epoch {
            Epoch::Boundary(boundary) => Epoch::Boundary(checked_boundary(graph, boundary, stores_count)?),
            other => other.clone(),
        };
        let list = |op: &crate::tasks::Task| {
            let mut list: Vec<usize> = op.inputs.iter().chain(&op.outputs).map(|t| t.index()).collect();
            list.sort_unstable();
            list
        };
        let need = graph.ops().iter().map(list).collect();
        let room = graph.tensors().iter().map(|t| t.bytes).collect();
        let capacity_bytes = request.capacity_bytes;
        let extra = vec![0; graph.ops().len()];
        Ok(Self { graph, capacity_bytes, stores_count, epoch, order: request.order.clone(), need, room, extra })
    }

    /// Returns a relaxed problem, in which small tensors take room only while an op needs them. Small tensors have
    /// together at most the capacity divided by `share`. Copies cost the same, and each plan of this problem is also a
    /// plan of the relaxed one. So the best relaxed plan costs at most as much as the best plan here.
    pub fn without_small(&self, share: u64) -> Self {
        let mut by_size: Vec<usize> = (0..self.tensors()).collect();
        by_size.sort_by_key(|t| (self.bytes(*t), *t));
        let mut left = self.capacity_bytes / share;
        let mut relaxed = self.clone();
        for t in by_size {
            match left.checked_sub(self.bytes(t)) {
                Some(rest) => left = rest,
                None => break,
            }
            relaxed.room[t] = 0;
        }
        for (op, extra) in relaxed.extra.iter_mut().enumerate() {
            *extra = self.need[op].iter().map(|&t| self.bytes(t) - relaxed.room[t]).sum();
        }
        relaxed
    }

    /// Returns the least capacity at which any policy can work.
    pub fn needed_bytes(&self) -> u64 {
        let boundary = match &self.epoch {
            Epoch::Boundary(boundary) => boundary.resident.iter().map(|t| self.graph.tensor(*t).bytes).sum(),
            _ => 0,
        };
        self.graph.largest_op_bytes().max(boundary)
    }

    /// Returns the order that the request fixes, else program order.
    pub fn program_order(&self) -> Vec<TaskId> {
        self.order.clone().unwrap_or_else(|| self.graph.order().to_vec())
    }

    pub fn ops(&self) -> usize {
        self.graph.ops().len()
    }

    pub fn tensors(&self) -> usize {
        self.graph.tensors().len()
    }

    pub fn bytes(&self, tensor: usize) -> u64 {
        self.graph.tensors()[tensor].bytes
    }

    /// Whether a tensor is an input or output of an op.
    pub fn needs(&self, op: usize, tensor: usize) -> bool {
        self.need[op].binary_search(&tensor).is_ok()
    }

    /// Returns the bytes of a set, which is at most the graph's total.
    pub fn bytes_of(&self, set: &FixedBitSet) -> u64 {
        set.ones().map(|t| self.bytes(t)).sum()
    }

    /// Returns the bytes of the capacity that a set takes.
    pub fn room_of(&self, set: &FixedBitSet) -> u64 {
        set.ones().map(|t| self.room[t]).sum()
    }

    /// Returns the empty set.
    pub fn empty(&self) -> FixedBitSet {
        FixedBitSet::with_capacity(self.tensors())
    }

    pub fn is_cold(&self) -> bool {
        self.epoch == Epoch::Cold
    }

    /// Whether the next epoch inherits the tensor's value: a constant without a next value, or an output that is a next
    /// value.
    pub fn lasts(&self, tensor: usize) -> bool {
        let id = TensorId(tensor as u32);
        let constant = self.graph.tensor(id).kind == TensorKind::Constant;
        !self.is_cold() && (constant && self.graph.next_value(id).is_none() || self.graph.becomes(id).is_some())
    }

    /// Returns the tensor's name in the next epoch, if that inherits it.
    pub fn name_after(&self, tensor: usize) -> Option<TensorId> {
        let id = TensorId(tensor as u32);
        self.lasts(tensor).then(|| self.graph.becomes(id).unwrap_or(id))
    }

    /// Returns the tensor of this epoch that becomes the constant of the next.
    pub fn name_before(&self, constant: TensorId) -> TensorId {
        self.graph.next_value(constant).unwrap_or(constant)
    }

    /// Whether the value must not be lost: an op that is not done reads it, or the next epoch inherits it.
    pub fn is_needed(&self, tensor: usize, done: &FixedBitSet) -> bool {
        self.lasts(tensor) || self.is_read(tensor, done)
    }

    /// Whether an op that is not done reads the tensor.
    pub fn is_read(&self, tensor: usize, done: &FixedBitSet) -> bool {
        // The last reader is the one that is most likely to be left.
        self.graph.consumers(TensorId(tensor as u32)).iter().rev().any(|op| !done.contains(op.index()))
    }

    /// Whether it is useful to keep the tensor after the `done` ops: an op of this epoch or the next reads it, or it
    /// would have to be stored.
    pub fn is_wanted(&self, tensor: usize, done: &FixedBitSet) -> bool {
        if self.is_read(tensor, done) {
            return true;
        }
        let id = TensorId(tensor as u32);
        let in_boundary = || match &self.epoch {
            Epoch::Boundary(boundary) => self.name_after(tensor).is_some_and(|x| boundary.resident.contains(&x)),
            _ => !self.graph.consumers(id).is_empty() || self.graph.becomes(id).is_some(),
        };
        self.lasts(tensor) && in_boundary()
    }
}

fn checked_boundary(graph: &TaskGraph, boundary: &Boundary, stores_count: bool) -> Result<Boundary, PlanError> {
    let mut resident = boundary.resident.clone();
    let mut dirty = boundary.dirty.clone();
    resident.sort_unstable();
    dirty.sort_unstable();
    let wrong = |tensor: &TensorId, why| Err(PlanError::Boundary { tensor: tensor.0, why });
    for list in [&resident, &dirty] {
        if let Some(pair) = list.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(&pair[0], "twice; name it once");
        }
    }
    let inherited =
        |t: &TensorId| graph.tensors().get(t.index()).is_some_and(|tensor| tensor.kind == TensorKind::Constant);
    if let Some(other) = resident.iter().find(|t| !inherited(t)) {
        return wrong(other, "which is no constant of the graph; only constants are inherited");
    }
    if let Some(other) = dirty.iter().find(|t| resident.binary_search(t).is_err()) {
        return wrong(other, "as dirty but not as resident; its value would be nowhere");
    }
    if !stores_count {
        dirty.clear();
    }
    Ok(Boundary { resident, dirty })
}
