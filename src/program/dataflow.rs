//! The program: a dataflow graph in which tensors and operations alternate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use lapidary_kernels::op::{Op, TensorType, infer};
use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

use super::BlockSpec;
use super::ir::{Degree, Origin, Tensor};
use super::shape::ProgramError;

/// A node of the dataflow graph: tensors and operations alternate along its edges.
#[derive(Clone, Debug)]
enum Content {
    Tensor(Tensor),
    Op(Op),
}

/// A node and its creation number. The graph reuses the indices of removed nodes, so an index does not give the order
/// of creation.
#[derive(Clone, Debug)]
struct Node {
    age: u64,
    content: Content,
}

/// The id of a tensor within its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(NodeIndex);

/// The id of an operation within its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(NodeIndex);

/// A dataflow program: a directed acyclic graph of operations and tensors, and its named outputs.
#[derive(Clone, Debug, Default)]
pub struct Program {
    // Invariant: bipartite and acyclic; an edge's weight is the operand's index among the inputs or outputs of its op;
    // all operands have the types that `infer` requires; `origins` has every tensor with an origin.
    graph: StableDiGraph<Node, u32>,
    nodes_made: u64,
    origins: BTreeMap<Origin, TensorId>,
    outputs: BTreeMap<String, TensorId>,
    next: BTreeMap<TensorId, TensorId>,
    runs: BTreeSet<OpId>,
}

impl Program {
    /// Creates an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the tensor with this origin; always the same one.
    ///
    /// # Errors
    /// [`ProgramError::OriginType`] if it was requested with another type before.
    pub fn input(&mut self, origin: Origin, ty: TensorType) -> Result<TensorId, ProgramError> {
        if let Some(&known) = self.origins.get(&origin) {
            let had = self.tensor(known).ty;
            return if had == ty {
                Ok(known)
            } else {
                Err(ProgramError::OriginType { origin: origin.into(), had: had.into(), asked: ty.into() })
            };
        }
        let constant = !origin.varies();
        let tensor = Tensor {
            name: origin_name(&origin),
            ty,
            constant,
            wants_gradient: origin.is_learned(),
            origin: Some(origin.clone()),
        };
        let id = TensorId(self.add(Content::Tensor(tensor)));
        self.origins.insert(origin, id);
        Ok(id)
    }

    /// Appends an operation and returns its outputs.
    ///
    /// # Errors
    /// The error of [`infer`] if operands do not fit.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<Vec<TensorId>, ProgramError> {
        let op = op.into();
        let operands: Vec<&Tensor> = inputs.iter().map(|&id| self.tensor(id)).collect();
        let types: Vec<TensorType> = operands.iter().map(|t| t.ty).collect();
        let of_batch = matches!(op.block(), Some(BlockSpec::Batch { .. }));
        let constant = operands.iter().all(|t| t.constant) && !of_batch;
        let wants_gradient = operands.iter().any(|t| t.wants_gradient);
        let output_types = infer(&op, &types)?;
        let kind = op.name();
        let node = self.add(Content::Op(op));
        for (place, input) in inputs.iter().enumerate() {
            self.graph.add_edge(input.0, node, place as u32);
        }
        let name = format!("{kind}.{}", self.graph[node].age);
        let mut outputs = Vec::new();
        for (place, ty) in output_types.into_iter().enumerate() {
            let tensor = Tensor { name: name.clone(), ty, constant, wants_gradient, origin: None };
            let id = self.add(Content::Tensor(tensor));
            self.graph.add_edge(node, id, place as u32);
            outputs.push(TensorId(id));
        }
        Ok(outputs)
    }

    /// Appends an operation with one output and returns that output.
    ///
    /// # Errors
    /// The error of [`infer`] if operands do not fit.
    pub fn push1(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<TensorId, ProgramError> {
        Ok(self.push(op, inputs)?[0])
    }

    /// Makes a tensor a named output of the program. Passes keep outputs.
    pub fn set_output(&mut self, name: impl Into<String>, tensor: TensorId) {
        self.outputs.insert(name.into(), tensor);
    }

    /// Returns the outputs by name.
    pub fn outputs(&self) -> &BTreeMap<String, TensorId> {
        &self.outputs
    }

    /// Declares `output` the next epoch's value of `input`.
    pub fn set_next(&mut self, output: TensorId, input: TensorId) {
        self.next.insert(output, input);
    }

    /// Returns the outputs that are the next epoch's value of an input, each with that input.
    pub fn next(&self) -> &BTreeMap<TensorId, TensorId> {
        &self.next
    }

    /// Makes a tensor without a producer as old as another one, so that what reads it has its place in the order.
    pub(super) fn make_as_old(&mut self, tensor: TensorId, like: TensorId) {
        self.graph[tensor.0].age = self.graph[like.0].age;
    }

    /// Declares that tiles of what comes before are done with before the operation that makes `output` begins.
    pub(super) fn start_run(&mut self, output: TensorId) {
        self.runs.extend(self.producer(output));
    }

    /// Whether tiles of what comes before are done with before this operation begins.
    pub fn starts_run(&self, op: OpId) -> bool {
        self.runs.contains(&op)
    }

    /// Returns the tensors that no operation produces, by origin.
    pub fn origins(&self) -> &BTreeMap<Origin, TensorId> {
        &self.origins
    }

    /// Returns a tensor.
    ///
    /// # Panics
    /// If the id is of another program, or the tensor was removed.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        match &self.graph[id.0].content {
            Content::Tensor(tensor) => tensor,
            Content::Op(_) => unreachable!("a TensorId names a tensor"),
        }
    }

    /// Returns an operation.
    ///
    /// # Panics
    /// If the id is of another program, or the operation was removed.
    pub fn op(&self, id: OpId) -> &Op {
        match &self.graph[id.0].content {
            Content::Op(op) => op,
            Content::Tensor(_) => unreachable!("an OpId names an operation"),
        }
    }

    /// Returns the operands of an operation, in order.
    pub fn inputs(&self, op: OpId) -> Vec<TensorId> {
        self.neighbours(op.0, Direction::Incoming).into_iter().map(TensorId).collect()
    }

    /// Returns the outputs of an operation, in order.
    pub fn op_outputs(&self, op: OpId) -> Vec<TensorId> {
        self.neighbours(op.0, Direction::Outgoing).into_iter().map(TensorId).collect()
    }

    /// Returns the operation that produces a tensor.
    pub fn producer(&self, tensor: TensorId) -> Option<OpId> {
        self.neighbours(tensor.0, Direction::Incoming).first().copied().map(OpId)
    }

    /// Returns the operations that read a tensor, oldest first. An operation that reads it twice occurs twice.
    pub fn consumers(&self, tensor: TensorId) -> Vec<OpId> {
        let mut readers: Vec<OpId> = self.graph.neighbors(tensor.0).map(OpId).collect();
        readers.sort_by_key(|op| self.graph[op.0].age);
        readers
    }

    /// Returns all operations in topological order; of those that are ready, the oldest comes first.
    ///
    /// # Cost
    /// O(nodes log nodes).
    pub fn ops(&self) -> Vec<OpId> {
        let mut waiting: BTreeMap<NodeIndex, usize> = BTreeMap::new();
        let mut ready: BinaryHeap<Reverse<(u64, NodeIndex)>> = BinaryHeap::new();
        let aged = |node: NodeIndex| Reverse((self.graph[node].age, node));
        for node in self.graph.node_indices() {
            match self.graph.neighbors_directed(node, Direction::Incoming).count() {
                0 => ready.push(aged(node)),
                count => drop(waiting.insert(node, count)),
            }
        }
        let mut order = Vec::new();
        while let Some(Reverse((_, node))) = ready.pop() {
            if matches!(self.graph[node].content, Content::Op(_)) {
                order.push(OpId(node));
            }
            for reader in self.graph.neighbors(node) {
                if let Some(count) = waiting.get_mut(&reader) {
                    *count -= 1;
                    if *count == 0 {
                        waiting.remove(&reader);
                        ready.push(aged(reader));
                    }
                }
            }
        }
        order
    }

    /// Returns all tensors, oldest first.
    pub fn tensors(&self) -> Vec<TensorId> {
        let is_tensor = |&n: &NodeIndex| matches!(self.graph[n].content, Content::Tensor(_));
        let mut tensors: Vec<TensorId> = self.graph.node_indices().filter(is_tensor).map(TensorId).collect();
        tensors.sort_by_key(|tensor| self.graph[tensor.0].age);
        tensors
    }

    /// Makes every reader of `old` read `new` instead, including outputs that name it.
    pub(super) fn redirect(&mut self, old: TensorId, new: TensorId) {
        let uses: Vec<_> = self.graph.edges(old.0).map(|e| (e.id(), e.target(), *e.weight())).collect();
        for (edge, reader, place) in uses {
            self.graph.remove_edge(edge);
            self.graph.add_edge(new.0, reader, place);
        }
        for output in self.outputs.values_mut().filter(|t| **t == old) {
            *output = new;
        }
    }

    /// Makes an operation read `tensor` as its operand `place`. The type must be that of the previous operand.
    pub(super) fn set_operand(&mut self, op: OpId, place: u32, tensor: TensorId) {
        let edges = self.graph.edges_directed(op.0, Direction::Incoming);
        let edge = edges.filter(|edge| *edge.weight() == place).map(|edge| edge.id()).next();
        if let Some(edge) = edge {
            self.graph.remove_edge(edge);
            self.graph.add_edge(tensor.0, op.0, place);
        }
    }

    /// Makes an operation, and its outputs, older than `reader` and younger than everything that is older than `reader`.
    ///
    /// # Cost
    /// O(nodes).
    pub(super) fn move_before(&mut self, op: OpId, reader: OpId) {
        let age = self.graph[reader.0].age;
        let moved: Vec<NodeIndex> =
            std::iter::once(op.0).chain(self.op_outputs(op).iter().map(|output| output.0)).collect();
        let by = moved.len() as u64;
        self.graph.node_weights_mut().filter(|node| node.age >= age).for_each(|node| node.age += by);
        (age..).zip(moved).for_each(|(age, node)| self.graph[node].age = age);
        self.nodes_made += by;
    }

    /// Merges two operations into one, in place of the second. `second` reads the output of `first` as its operand
    /// `place`, and nothing else reads that output.
    pub(super) fn absorb(&mut self, first: OpId, second: OpId, place: usize) {
        let (mut operands, mut others) = (self.inputs(first), self.inputs(second));
        let between = others.remove(place);
        operands.extend(others);
        let fused = self.op(first).clone().followed_by(self.op(second).as_row_step());
        let output = self.op_outputs(second)[0];
        let name = format!("{}+{}", kind_of(&self.tensor(between).name), self.tensor(output).name);
        let edges: Vec<_> = self.graph.edges_directed(second.0, Direction::Incoming).map(|edge| edge.id()).collect();
        edges.into_iter().for_each(|edge| {
            self.graph.remove_edge(edge);
        });
        self.remove_op(first);
        for (place, operand) in operands.iter().enumerate() {
            self.graph.add_edge(operand.0, second.0, place as u32);
        }
        self.graph[second.0].content = Content::Op(fused);
        if let Content::Tensor(tensor) = &mut self.graph[output.0].content {
            tensor.name = name;
        }
    }

    /// Removes an operation and its outputs, which must have no readers.
    pub(super) fn remove_op(&mut self, op: OpId) {
        for output in self.op_outputs(op) {
            self.next.remove(&output);
            debug_assert!(self.graph.neighbors(output.0).next().is_none(), "a removed tensor has no reader");
            self.graph.remove_node(output.0);
        }
        self.graph.remove_node(op.0);
    }

    /// Removes a tensor with an origin, which must have no readers.
    pub(super) fn remove_input(&mut self, tensor: TensorId) {
        if let Some(origin) = self.tensor(tensor).origin.clone() {
            self.origins.remove(&origin);
            self.graph.remove_node(tensor.0);
        }
    }

    fn add(&mut self, content: Content) -> NodeIndex {
        self.nodes_made += 1;
        self.graph.add_node(Node { age: self.nodes_made, content })
    }

    fn neighbours(&self, node: NodeIndex, direction: Direction) -> Vec<NodeIndex> {
        let mut found: Vec<(u32, NodeIndex)> = self
            .graph
            .edges_directed(node, direction)
            .map(|e| {
                let other = if direction == Direction::Incoming { e.source() } else { e.target() };
                (*e.weight(), other)
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, n)| n).collect()
    }
}

/// Returns a tensor's name without its number.
fn kind_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(kind, _)| kind)
}

fn origin_name(origin: &Origin) -> String {
    match origin {
        Origin::Features => "features".into(),
        Origin::KeptFeatures => "kept_features".into(),
        Origin::CopiedFeatures => "batch.copied_features".into(),
        Origin::Embedding => "embedding".into(),
        Origin::Made(number) => format!("made_{number}"),
        Origin::FeatureValues => "feature_values".into(),
        Origin::EdgePermutation(_) => "edge_permutation".into(),
        Origin::Scale(Degree::InverseRoot { .. }) => "inverse_root_degree".into(),
        Origin::Scale(Degree::Inverse { .. }) => "inverse_degree".into(),
        Origin::Identity(_) => "identity".into(),
        Origin::HeadMean { .. } => "head_mean".into(),
        Origin::EdgeWeights(..) => "edge_weights".into(),
        Origin::SourceIds(_) => "source_ids".into(),
        Origin::OfBatch(origin, _) => format!("batch.{}", origin_name(origin)),
        Origin::Labels => "labels".into(),
        Origin::Targets => "targets".into(),
        Origin::Split => "split".into(),
        Origin::ClassWeights(_) => "class_weights".into(),
        Origin::Parameter(name) => name.clone(),
        Origin::Moment { parameter, which } => format!("{parameter}.moment{which}"),
        Origin::Rows { of, first } => format!("{}.rows_{first}", origin_name(of)),
        Origin::Clock => "clock".into(),
        Origin::LearningRate => "learning_rate".into(),
    }
}
