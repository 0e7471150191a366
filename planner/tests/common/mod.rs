//! Random task graphs.
#![allow(dead_code)]

use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Plan, Policy, Request, plan};
use lapidary_planner::tasks::{Task, TaskGraph, TaskId, Tensor, TensorId, TensorKind};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub const POLICIES: [Policy; 4] = [Policy::None, Policy::Lru, Policy::Roc, Policy::Optimal];

/// The size of a random graph.
pub struct Shape {
    pub ops: usize,
    pub inputs: usize,
    pub most_bytes: u64,
}

/// Returns a graph with shared inputs, fresh inputs, published outputs, next values and some sizes of zero. Its ops are
/// sometimes shuffled.
pub fn random_graph(seed: u64, shape: &Shape) -> TaskGraph {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tensors = Vec::new();
    let tensor = |name: String, bytes, kind| Tensor { name: name.into(), bytes, kind, publish: false };
    for i in 0..rng.random_range(1..=shape.inputs) {
        let kind = if rng.random_bool(0.25) { TensorKind::Fresh } else { TensorKind::Constant };
        tensors.push(tensor(format!("in{i}"), rng.random_range(0..=shape.most_bytes), kind));
    }
    let inputs = tensors.len();
    let mut ops: Vec<Task> = Vec::new();
    let mut updated = vec![false; inputs];
    for i in 0..rng.random_range(1..=shape.ops) {
        let mut op = Task { name: format!("op{i}").into(), ..Task::default() };
        for _ in 0..rng.random_range(0..=3) {
            // Recent tensors are read more often, as in real programs.
            let back = rng.random_range(0..tensors.len()).min(rng.random_range(0..tensors.len()));
            let t = if rng.random_bool(0.5) { tensors.len() - 1 - back } else { rng.random_range(0..tensors.len()) };
            op.inputs.push(TensorId(t as u32));
        }
        for j in 0..if rng.random_bool(0.2) { 2 } else { 1 } {
            let y = TensorId(tensors.len() as u32);
            let mut output = tensor(format!("t{i}.{j}"), rng.random_range(0..=shape.most_bytes), TensorKind::Local);
            output.publish = rng.random_bool(0.2);
            let x = rng.random_range(0..inputs);
            if rng.random_bool(0.3) && tensors[x].kind == TensorKind::Constant && !updated[x] {
                updated[x] = true;
                output.bytes = tensors[x].bytes;
                op.next.push((y, TensorId(x as u32)));
            }
            op.outputs.push(y);
            tensors.push(output);
        }
        ops.push(op);
    }
    if rng.random_bool(0.2) {
        ops.shuffle(&mut rng);
    }
    TaskGraph::new(tensors, ops).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

pub fn request(policy: Policy, objective: Objective, epoch: Epoch, capacity_bytes: u64) -> Request {
    Request { policy, objective, epoch, capacity_bytes, order: None, limit: Limit::default() }
}

/// Returns the plan; panics if there is none.
pub fn planned(graph: &TaskGraph, request: &Request) -> Plan {
    match plan(graph, request).expect("the request is good") {
        Outcome::Feasible(plan) => plan,
        other => panic!("{other:?}, but {} bytes are enough", request.capacity_bytes),
    }
}

/// Returns a random capacity between the least possible and the total.
pub fn random_capacity(graph: &TaskGraph, seed: u64) -> u64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x00c0_ffee);
    let (least, all) = (graph.largest_op_bytes(), graph.total_bytes());
    // At small capacities there is more to decide.
    least + (rng.random_range(0..=all - least)).min(rng.random_range(0..=all - least))
}

/// Returns a random topological order.
pub fn random_order(graph: &TaskGraph, seed: u64) -> Vec<TaskId> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut order = Vec::new();
    let mut left: Vec<TaskId> = graph.order().to_vec();
    while !left.is_empty() {
        let is_ready = |op: &TaskId| {
            let mut before = graph.op(*op).inputs.iter().filter_map(|t| graph.producer(*t));
            before.all(|op| order.contains(&op))
        };
        let ready: Vec<usize> = (0..left.len()).filter(|i| is_ready(&left[*i])).collect();
        order.push(left.remove(ready[rng.random_range(0..ready.len())]));
    }
    order
}
