//! A device's task graph: the tensors of one epoch and the ops over them, with sizes in bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use rustc_hash::FxHashSet;

/// Index of a tensor in [`TaskGraph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// Index of an op in [`TaskGraph::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

impl TensorId {
    /// Returns the id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl TaskId {
    /// Returns the id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The origin of a tensor, and whether an epoch can inherit it from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// An input that is on the host at the start and may stay on the device from epoch to epoch.
    Constant,
    /// An input that is new on the host every epoch.
    Fresh,
    /// An op's output.
    Local,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Unique name.
    pub name: Arc<str>,
    /// Size in bytes.
    pub bytes: u64,
    /// The kind of input, or output.
    pub kind: TensorKind,
    /// Whether it is an output that is stored to the host when it is made, because others read it there.
    pub publish: bool,
}

/// One op. While it runs, its inputs and outputs are on the device. A tensor that occurs twice counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Unique name.
    pub name: Arc<str>,
    /// Tensors that it reads. A tensor that is listed twice counts once.
    pub inputs: Vec<TensorId>,
    /// Tensors that it makes.
    pub outputs: Vec<TensorId>,
    /// Outputs that are the next epoch's value of a constant: `(output, constant)`.
    pub next: Vec<(TensorId, TensorId)>,
}

/// Why tensors and ops do not form a task graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// There are no ops.
    #[error("there are no ops; a task graph needs at least one")]
    NoOps,
    /// More than 2^32 - 1 tensors or ops.
    #[error("there are {found} {what}; at most 4294967295 can be numbered")]
    TooMany {
        /// Tensors or ops.
        what: &'static str,
        /// How many there are.
        found: usize,
    },
    /// Two tensors or two ops have the same name.
    #[error("two {what} are named `{name}`; give each its own name")]
    DuplicateName {
        /// Tensors or ops.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An op names a tensor that does not exist.
    #[error("op `{op}` names tensor number {tensor}, but there are {tensors} tensors, counted from 0")]
    UnknownTensor {
        /// The op.
        op: String,
        /// The tensor number.
        tensor: u32,
        /// Number of tensors.
        tensors: usize,
    },
    /// Two ops make the same tensor, or one op makes it twice.
    #[error("tensor `{tensor}` is made by op `{first}` and again by op `{second}`; a tensor is made once")]
    TwoProducers {
        /// The tensor.
        tensor: String,
        /// The op that comes first.
        first: String,
        /// The op that comes second; it can be the same.
        second: String,
    },
    /// An op has the same tensor as input and output.
    #[error("op `{op}` has tensor `{tensor}` as input and as output; an output is a new tensor (see `next`)")]
    InputAndOutput {
        /// The op.
        op: String,
        /// The tensor.
        tensor: String,
    },
    /// The kind of a tensor contradicts the ops.
    #[error("tensor `{tensor}` is of kind {kind}, but {found}")]
    WrongKind {
        /// The tensor.
        tensor: String,
        /// Its kind.
        kind: &'static str,
        /// What the ops do with it.
        found: String,
    },
    /// `publish` is set on a tensor that no op makes.
    #[error("tensor `{tensor}` is marked `publish`, but no op makes it; only outputs are published")]
    PublishedInput {
        /// The tensor.
        tensor: String,
    },
    /// A `next` pair is invalid: the op does not make the output, or one of the tensors cannot be paired.
    #[error("op `{op}` says that `{output}` is the next `{input}`, but {why}")]
    WrongNext {
        /// The op.
        op: String,
        /// The tensor named as the next value.
        output: String,
        /// The constant that it is the next value of.
        input: String,
        /// The reason.
        why: String,
    },
    /// Ops depend on each other in a cycle.
    #[error("these ops wait for each other: {}; a task graph has no cycle", .ops.join(", "))]
    Cycle {
        /// The ops of one cycle.
        ops: Vec<String>,
    },
    /// The sizes add up to more than a u64 holds.
    #[error("the tensors' sizes add up to more than 2^64 - 1 bytes")]
    TooManyBytes,
}

/// The ops of one device in an epoch and their tensors, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGraph {
    // Invariant: ids are in range; each tensor has at most one producer, and has one exactly if it is local; no op has
    // a tensor twice; `next` pairs outputs one to one with constants of the same size; `order` is topological; the sum
    // of the sizes fits a u64.
    tensors: Vec<Tensor>,
    ops: Vec<Task>,
    producer: Vec<Option<TaskId>>,
    consumers: Vec<Vec<TaskId>>,
    /// For a constant, its next value; for an output, the constant whose next value it is.
    partner: Vec<Option<TensorId>>,
    order: Vec<TaskId>,
}

impl TaskGraph {
    /// Checks tensors and ops and links them.
    ///
    /// # Errors
    /// [`TaskError`], the first one found.
    /// # Cost
    /// O(size log size).
    pub fn new(tensors: Vec<Tensor>, mut ops: Vec<Task>) -> Result<Self, TaskError> {
        if ops.is_empty() {
            return Err(TaskError::NoOps);
        }
        for (what, found) in [("tensors", tensors.len()), ("ops", ops.len())] {
            if u32::try_from(found).is_err() {
                return Err(TaskError::TooMany { what, found });
            }
        }
        unique("tensors", tensors.iter().map(|t| &*t.name))?;
        unique("ops", ops.iter().map(|op| &*op.name))?;
        tensors.iter().try_fold(0u64, |sum, t| sum.checked_add(t.bytes)).ok_or(TaskError::TooManyBytes)?;
        for op in &mut ops {
            dedup(&mut op.inputs);
        }
        let (producer, consumers) = link(&tensors, &ops)?;
        check_kinds(&tensors, &ops, &producer)?;
        let partner = pair_next(&tensors, &ops, &producer)?;
        let order = program_order(&ops, &producer)?;
        Ok(Self { tensors, ops, producer, consumers, partner, order })
    }

    /// Returns all tensors, indexed by [`TensorId`].
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns all ops as given, indexed by [`TaskId`].
    pub fn ops(&self) -> &[Task] {
        &self.ops
    }

    /// Returns a tensor.
    ///
    /// # Panics
    /// If the id is not of this graph.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// Returns an op.
    ///
    /// # Panics
    /// If the id is not of this graph.
    pub fn op(&self, id: TaskId) -> &Task {
        &self.ops[id.index()]
    }

    /// Returns the op that makes a tensor; `None` for an input.
    pub fn producer(&self, id: TensorId) -> Option<TaskId> {
        self.producer[id.index()]
    }

    /// Returns the ops that read a tensor, in ascending order.
    pub fn consumers(&self, id: TensorId) -> &[TaskId] {
        &self.consumers[id.index()]
    }

    /// Returns the output that is a constant's value in the next epoch.
    pub fn next_value(&self, constant: TensorId) -> Option<TensorId> {
        self.partner[constant.index()].filter(|_| self.producer(constant).is_none())
    }

    /// Returns the constant that an output becomes in the next epoch.
    pub fn becomes(&self, output: TensorId) -> Option<TensorId> {
        self.partner[output.index()].filter(|_| self.producer(output).is_some())
    }

    /// Returns the program order. It is the order of `ops` if every op comes after those that it depends on, else the
    /// topological order that always takes the ready op of least index.
    pub fn order(&self) -> &[TaskId] {
        &self.order
    }

    /// Whether `order` has every op once, each after the ops that it depends on.
    pub fn is_order(&self, order: &[TaskId]) -> bool {
        let mut place = vec![None; self.ops.len()];
        for (i, op) in order.iter().enumerate() {
            match place.get_mut(op.index()) {
                Some(free @ None) => *free = Some(i),
                _ => return false,
            }
        }
        order.len() == self.ops.len()
            && self.ops.iter().enumerate().all(|(i, op)| {
                op.inputs.iter().filter_map(|t| self.producer(*t)).all(|before| place[before.index()] < place[i])
            })
    }

    /// Returns the bytes that an op needs on the device while it runs: its inputs and outputs, each counted once.
    pub fn op_bytes(&self, id: TaskId) -> u64 {
        let op = self.op(id);
        op.inputs.iter().chain(&op.outputs).map(|t| self.tensor(*t).bytes).sum()
    }

    /// Returns the bytes of the largest op: the least capacity at which the graph can run.
    pub fn largest_op_bytes(&self) -> u64 {
        (0..self.ops.len() as u32).map(|i| self.op_bytes(TaskId(i))).max().unwrap_or(0)
    }

    /// Returns the bytes of all tensors: a capacity at which nothing ever has to leave.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }
}

fn unique<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), TaskError> {
    let mut seen = FxHashSet::default();
    for name in names {
        if !seen.insert(name) {
            return Err(TaskError::DuplicateName { what, name: name.to_string() });
        }
    }
    Ok(())
}

/// Removes repeated ids; keeps the first of each.
fn dedup(ids: &mut Vec<TensorId>) {
    if ids.len() <= FEW {
        let mut kept = 0;
        for i in 0..ids.len() {
            if !ids[..kept].contains(&ids[i]) {
                ids[kept] = ids[i];
                kept += 1;
            }
        }
        ids.truncate(kept);
        return;
    }
    let mut seen = FxHashSet::default();
    ids.retain(|id| seen.insert(*id));
}

/// Up to so many ids, looking through a list is faster than a set.
const FEW: usize = 32;

type Links = (Vec<Option<TaskId>>, Vec<Vec<TaskId>>);

/// Returns the producer and the readers of each tensor.
fn link(tensors: &[Tensor], ops: &[Task]) -> Result<Links, TaskError> {
    let mut producer: Vec<Option<TaskId>> = vec![None; tensors.len()];
    let mut consumers = vec![Vec::new(); tensors.len()];
    for (i, op) in ops.iter().enumerate() {
        let id = TaskId(i as u32);
        let named = op.inputs.iter().chain(&op.outputs).chain(op.next.iter().flat_map(|(y, x)| [y, x]));
        if let Some(unknown) = named.into_iter().find(|t| t.index() >= tensors.len()) {
            return Err(TaskError::UnknownTensor {
                op: op.name.to_string(),
                tensor: unknown.0,
                tensors: tensors.len(),
            });
        }
        for t in &op.inputs {
            consumers[t.index()].push(id);
        }
        for t in &op.outputs {
            let tensor = || tensors[t.index()].name.to_string();
            if op.inputs.contains(t) {
                return Err(TaskError::InputAndOutput { op: op.name.to_string(), tensor: tensor() });
            }
            if let Some(first) = producer[t.index()].replace(id) {
                let first = ops[first.index()].name.to_string();
                return Err(TaskError::TwoProducers { tensor: tensor(), first, second: op.name.to_string() });
            }
        }
    }
    Ok((producer, consumers))
}

fn check_kinds(tensors: &[Tensor], ops: &[Task], producer: &[Option<TaskId>]) -> Result<(), TaskError> {
    for (tensor, producer) in tensors.iter().zip(producer) {
        let wrong = |kind, found| Err(TaskError::WrongKind { tensor: tensor.name.to_string(), kind, found });
        match (tensor.kind, producer) {
            (TensorKind::Local, None) => return wrong("local", "no op makes it".into()),
            (TensorKind::Constant, Some(op)) => {
                return wrong("constant", format!("op `{}` makes it", ops[op.index()].name));
            }
            (TensorKind::Fresh, Some(op)) => return wrong("fresh", format!("op `{}` makes it", ops[op.index()].name)),
            _ => {}
        }
        if tensor.publish && producer.is_none() {
            return Err(TaskError::PublishedInput { tensor: tensor.name.to_string() });
        }
    }
    Ok(())
}

/// Pairs each constant with its next value.
fn pair_next(
    tensors: &[Tensor],
    ops: &[Task],
    producer: &[Option<TaskId>],
) -> Result<Vec<Option<TensorId>>, TaskError> {
    let mut partner: Vec<Option<TensorId>> = vec![None; tensors.len()];
    for (i, op) in ops.iter().enumerate() {
        for &(y, x) in &op.next {
            let (output, input) = (&tensors[y.index()], &tensors[x.index()]);
            let why = if producer[y.index()] != Some(TaskId(i as u32)) {
                format!("it does not make `{}`", output.name)
            } else if producer[x.index()].is_some() {
                format!("an op makes `{}`; only an input has a next value", input.name)
            } else if input.kind != TensorKind::Constant {
                format!("`{}` is fresh: it is new on the host every epoch", input.name)
            } else if output.bytes != input.bytes {
                format!("the first has {} bytes and the second {}", output.bytes, input.bytes)
            } else if let Some(other) = partner[x.index()] {
                format!("`{}` is its next value already", tensors[other.index()].name)
            } else if let Some(other) = partner[y.index()] {
                format!("it is the next `{}` already", tensors[other.index()].name)
            } else {
                partner[x.index()] = Some(y);
                partner[y.index()] = Some(x);
                continue;
            };
            let (output, input) = (output.name.to_string(), input.name.to_string());
            return Err(TaskError::WrongNext { op: op.name.to_string(), output, input, why });
        }
    }
    Ok(partner)
}

/// Returns a topological order that always takes the ready op of least index. An order that is already topological is
/// kept.
fn program_order(ops: &[Task], producer: &[Option<TaskId>]) -> Result<Vec<TaskId>, TaskError> {
    let comes_after =
        |(i, op): (usize, &Task)| op.inputs.iter().filter_map(|t| producer[t.index()]).all(|before| before.index() < i);
    if ops.iter().enumerate().all(comes_after) {
        return Ok((0..ops.len() as u32).map(TaskId).collect());
    }
    let mut graph = DiGraph::<(), ()>::with_capacity(ops.len(), ops.len());
    let nodes: Vec<NodeIndex> = ops.iter().map(|_| graph.add_node(())).collect();
    for (i, op) in ops.iter().enumerate() {
        for before in op.inputs.iter().filter_map(|t| producer[t.index()]) {
            graph.add_edge(nodes[before.index()], nodes[i], ());
        }
    }
    let mut waits: Vec<usize> =
        nodes.iter().map(|n| graph.neighbors_directed(*n, petgraph::Direction::Incoming).count()).collect();
    let mut ready: BinaryHeap<Reverse<usize>> = (0..ops.len()).filter(|i| waits[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(ops.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(TaskId(i as u32));
        for after in graph.neighbors(nodes[i]) {
            waits[after.index()] -= 1;
            if waits[after.index()] == 0 {
                ready.push(Reverse(after.index()));
            }
        }
    }
    if order.len() == ops.len() {
        return Ok(order);
    }
    // No op depends on itself directly, so every cycle has at least two ops.
    let cycle = kosaraju_scc(&graph).into_iter().find(|part| part.len() > 1).expect("what is left has a cycle");
    let mut cycle: Vec<usize> = cycle.into_iter().map(NodeIndex::index).collect();
    cycle.sort_unstable();
    Err(TaskError::Cycle { ops: cycle.into_iter().map(|i| format!("`{}`", ops[i].name)).collect() })
}
