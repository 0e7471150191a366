//! Recomputation: an op may run once more, so that its outputs need not be kept or moved until they are read again.
//!
//! The choice is made by rewriting the task graph. A second run is an op of its own, with outputs of its own; each reader
//! reads either those or the first ones. Each rewritten graph is planned like any other.

use std::collections::BTreeMap;

use super::{Outcome, Plan, PlanError, Request, plan};
use crate::tasks::{Task, TaskGraph, TaskId, Tensor, TensorId};

/// Most rewritten graphs for which [`plan_with_recompute`] plans each one.
const MOST_REWRITES: usize = 4096;

/// A plan in which some ops run twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recomputed {
    /// The rewritten graph: the ops and tensors of the original graph with their ids, then the second runs and what
    /// they make.
    pub graph: TaskGraph,
    /// The ops that run twice, in ascending order. The second run of number `i` has the id of the last original op plus
    /// `i + 1`.
    pub again: Vec<TaskId>,
    /// The plan of the rewritten graph.
    pub plan: Plan,
    /// Bytes copied in the measure of the request, and the costs of the second runs.
    pub cost: u64,
    /// Whether no choice of second runs and plan costs less.
    pub exact: bool,
}

/// An op that runs twice, and the readers of its outputs that read the second ones: ids of the rewritten graph.
type Rerun = (TaskId, Vec<(TensorId, TaskId)>);

/// Plans one epoch in which ops may run once more. `again_cost` has an entry for each op: the cost of a second run in
/// bytes, or `None` if it runs once.
///
/// Ops with published outputs or next values run once, whatever their entry.
///
/// # Returns
/// `None` if no plan fits: a second run needs the memory of the first.
/// # Errors
/// [`PlanError`] if the boundary does not fit the graph, or if the request fixes an order, which would lack the second
/// runs.
/// # Panics
/// If `again_cost` has not one entry for each op.
/// # Cost
/// One plan for each set of ops and each way of sharing their readers, if these are at most 4096. Beyond that, the ops
/// are added one by one while the cost falls, each with its later readers; O(ops^2) plans.
/// # Source
/// Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, 2020, section 4, with moves to
/// the host and at most one second run.
pub fn plan_with_recompute(
    graph: &TaskGraph,
    again_cost: &[Option<u64>],
    request: &Request,
) -> Result<Option<Recomputed>, PlanError> {
    assert_eq!(again_cost.len(), graph.ops().len(), "one cost for each op");
    if request.order.is_some() {
        return Err(PlanError::Order { ops: graph.ops().len() });
    }
    let Outcome::Feasible(first) = plan(graph, request)? else { return Ok(None) };
    let cost = first.cost_bytes(request.objective);
    let mut best = Recomputed { graph: graph.clone(), again: Vec::new(), exact: first.exact, plan: first, cost };
    let candidates = candidates(graph, again_cost);
    let total =
        |set: &[TaskId]| set.iter().fold(0u64, |sum, op| sum.saturating_add(again_cost[op.index()].unwrap_or(0)));
    let consider = |reruns: &[Rerun], best: &mut Recomputed| -> Result<(), PlanError> {
        let again: Vec<TaskId> = reruns.iter().map(|(op, _)| *op).collect();
        let extra = total(&again);
        // Even without any copy, it would not cost less.
        if extra >= best.cost {
            return Ok(());
        }
        let Some(rewritten) = rewrite(graph, reruns) else { return Ok(()) };
        if let Outcome::Feasible(plan) = plan(&rewritten, request)? {
            let cost = plan.cost_bytes(request.objective).saturating_add(extra);
            let exact = best.exact && plan.exact;
            if cost < best.cost {
                *best = Recomputed { graph: rewritten, again, plan, cost, exact };
            }
            best.exact = exact;
        }
        Ok(())
    };
    match shared_in_every_way(graph, &candidates) {
        Some(ways) => {
            for reruns in &ways {
                consider(reruns, &mut best)?;
            }
        }
        None => {
            best.exact = false;
            let mut chosen: Vec<TaskId> = Vec::new();
            loop {
                let before = best.cost;
                let mut added = None;
                for &op in candidates.iter().filter(|op| !chosen.contains(op)) {
                    let mut set = chosen.clone();
                    set.push(op);
                    set.sort_unstable();
                    let was = best.cost;
                    consider(&later_readers(graph, &set), &mut best)?;
                    if best.cost < was {
                        added = Some(set);
                    }
                }
                match added {
                    Some(set) if best.cost < before => chosen = set,
                    _ => break,
                }
            }
        }
    }
    Ok(Some(best))
}

/// Returns the ops that may run twice and of which a second run can be of use, in ascending order.
fn candidates(graph: &TaskGraph, again_cost: &[Option<u64>]) -> Vec<TaskId> {
    let mut candidates: Vec<TaskId> = Vec::new();
    for &op in graph.order().iter().rev() {
        let outputs = &graph.op(op).outputs;
        let leaves = |output: &TensorId| graph.tensor(*output).publish || graph.becomes(*output).is_some();
        if again_cost[op.index()].is_none() || outputs.iter().any(leaves) {
            continue;
        }
        // What is read once is of use only to an op that runs again behind it.
        let reads: Vec<TaskId> = outputs.iter().flat_map(|&output| graph.consumers(output)).copied().collect();
        if reads.len() > 1 || reads.iter().any(|reader| candidates.contains(reader)) {
            candidates.push(op);
        }
    }
    candidates.sort_unstable();
    candidates
}

/// Returns the readers of an output in a graph in which `set` runs twice: the original ones, and second runs.
fn readers(graph: &TaskGraph, set: &[TaskId], output: TensorId) -> Vec<TaskId> {
    let originals = graph.consumers(output).iter().copied();
    let second = set.iter().enumerate().filter(|(_, op)| graph.op(**op).inputs.contains(&output));
    originals.chain(second.map(|(i, _)| TaskId((graph.ops().len() + i) as u32))).collect()
}

/// Returns every set of candidates with every way of sharing their readers; `None` if there are too many.
fn shared_in_every_way(graph: &TaskGraph, candidates: &[TaskId]) -> Option<Vec<Vec<Rerun>>> {
    let mut ways = Vec::new();
    if candidates.len() > 16 {
        return None;
    }
    for bits in 1u32..1 << candidates.len() {
        let set: Vec<TaskId> =
            candidates.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, &op)| op).collect();
        let pairs: Vec<(usize, TensorId, TaskId)> = set
            .iter()
            .enumerate()
            .flat_map(|(i, op)| graph.op(*op).outputs.iter().map(move |&output| (i, output)))
            .flat_map(|(i, output)| readers(graph, &set, output).into_iter().map(move |reader| (i, output, reader)))
            .collect();
        if pairs.len() > 16 || ways.len() + (1 << pairs.len()) > MOST_REWRITES {
            return None;
        }
        for share in 0u32..1 << pairs.len() {
            let mut reruns: Vec<Rerun> = set.iter().map(|&op| (op, Vec::new())).collect();
            for (_, &(i, output, reader)) in pairs.iter().enumerate().filter(|(n, _)| share >> n & 1 == 1) {
                reruns[i].1.push((output, reader));
            }
            if reruns.iter().all(|(_, readers)| !readers.is_empty()) {
                ways.push(reruns);
            }
        }
    }
    Some(ways)
}

/// Returns the readers of each second run if it comes after the widest gap between two readers in program order. Second
/// runs read second outputs.
fn later_readers(graph: &TaskGraph, set: &[TaskId]) -> Vec<Rerun> {
    let place: BTreeMap<TaskId, usize> = graph.order().iter().enumerate().map(|(place, &op)| (op, place)).collect();
    let of = |&op: &TaskId| {
        let outputs = &graph.op(op).outputs;
        let mut places: Vec<usize> =
            outputs.iter().flat_map(|&output| graph.consumers(output)).map(|reader| place[reader]).collect();
        places.push(place[&op]);
        places.sort_unstable();
        let gap = places.windows(2).max_by_key(|pair| pair[1] - pair[0]).map_or(usize::MAX, |pair| pair[1]);
        let is_late = |reader: &TaskId| place.get(reader).is_none_or(|&at| at >= gap);
        let late = |&output: &TensorId| {
            let readers = readers(graph, set, output).into_iter().filter(is_late);
            readers.map(|reader| (output, reader)).collect::<Vec<_>>()
        };
        (op, outputs.iter().flat_map(late).collect())
    };
    set.iter().map(of).collect()
}

/// Returns the graph with second runs; `None` if these would wait for each other.
fn rewrite(graph: &TaskGraph, reruns: &[Rerun]) -> Option<TaskGraph> {
    let (mut tensors, mut ops) = (graph.tensors().to_vec(), graph.ops().to_vec());
    ops.extend(reruns.iter().map(|(op, _)| {
        let first = graph.op(*op);
        Task { name: format!("{} again", first.name).into(), inputs: first.inputs.clone(), ..Task::default() }
    }));
    for (i, (op, moved)) in reruns.iter().enumerate() {
        for &output in &graph.op(*op).outputs {
            let copy = TensorId(tensors.len() as u32);
            let tensor = graph.tensor(output);
            tensors.push(Tensor { name: format!("{} again", tensor.name).into(), ..tensor.clone() });
            ops[graph.ops().len() + i].outputs.push(copy);
            for (_, reader) in moved.iter().filter(|(moved, _)| *moved == output) {
                let inputs = &mut ops[reader.index()].inputs;
                inputs.iter_mut().filter(|input| **input == output).for_each(|input| *input = copy);
            }
        }
    }
    TaskGraph::new(tensors, ops).ok()
}
