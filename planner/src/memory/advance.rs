//! Moves the copies of a plan to earlier steps, where they run beside kernels. The bytes stay the same.
//!
//! A policy decides what stays on the device from op to op. Its plan copies a tensor at the step that reads it, and makes
//! room at the same step. So the copy waits for the op before, and the op for the copy. Here
//!
//! - a tensor that is stored at some time is stored as soon as it was made,
//! - a tensor that leaves does so after the last op that uses it,
//! - and each load happens as early as there is room for it at every step in between.
//!
//! Loads are moved in the order in which they are needed, so the next one gets the room first. To load the next tensor
//! that is missing, as soon as there is room, is best among all ways to load ahead.
//!
//! # Source
//! Cao, Felten, Karlin and Li, A Study of Integrated Prefetching and Caching Strategies, SIGMETRICS 1995: rules 1 and 3.

use super::Plan;
use crate::tasks::{TaskGraph, TensorId, TensorKind};

/// The most steps by which a load is moved. It bounds the time of [`advance`]: so many ops hide any copy that can be hidden.
const MOST_STEPS: usize = 512;

/// Returns the plan with its copies moved to earlier steps. A plan that copies nothing is returned as it is.
///
/// Bytes, order, start and end of the plan stay the same; its peak may rise up to the capacity. A load of a fresh input is
/// not moved before an op whose empty output its reader waits for: rows of other devices come after this device's own.
///
/// # Panics
/// If the plan is not one of this graph.
/// # Cost
/// O(sum of the lists' lengths + loads x 512).
pub fn advance(graph: &TaskGraph, plan: &Plan, capacity_bytes: u64) -> Plan {
    if plan.steps.iter().all(|step| step.store.is_empty() && step.load.is_empty()) {
        return plan.clone();
    }
    let mut moved = plan.clone();
    for step in &mut moved.steps {
        [&mut step.store, &mut step.evict, &mut step.load].into_iter().for_each(Vec::clear);
    }
    let made = made_at(graph, plan);
    store_early(plan, &made, &mut moved);
    let mut stays = stays(graph, plan, &made);
    for stay in &stays {
        if let Some(step) = stay.leaves {
            moved.steps[step].evict.push(stay.tensor);
        }
    }
    let mut held = held_bytes(graph, plan.steps.len(), &stays);
    // What is needed next comes first.
    stays.retain(|stay| stay.is_loaded);
    stays.sort_by_key(|stay| (stay.first_use, stay.comes));
    for stay in &stays {
        let bytes = graph.tensor(stay.tensor).bytes;
        let mut step = stay.comes;
        let earliest = stay.earliest.max(stay.comes.saturating_sub(MOST_STEPS));
        while step > earliest && held[step - 1].checked_add(bytes).is_some_and(|sum| sum <= capacity_bytes) {
            step -= 1;
            held[step] += bytes;
        }
        moved.steps[step].load.push(stay.tensor);
    }
    moved.peak_bytes = held.into_iter().fold(edges_bytes(graph, &moved), u64::max);
    moved
}

/// The time of a tensor on the device, from its arrival until it leaves.
struct Stay {
    tensor: TensorId,
    is_loaded: bool,
    /// The step at which it is loaded or made, or 0.
    comes: usize,
    /// The first step at which it may be loaded.
    earliest: usize,
    /// The first step that reads it; the number of steps if there is none.
    first_use: usize,
    /// The first step without a use after it.
    unused: usize,
    /// The step at which it leaves; `None` if it is there at the end.
    leaves: Option<usize>,
}

/// Returns the step that makes each tensor; `None` for inputs.
fn made_at(graph: &TaskGraph, plan: &Plan) -> Vec<Option<usize>> {
    let mut made = vec![None; graph.tensors().len()];
    for (i, step) in plan.steps.iter().enumerate() {
        graph.op(step.op).outputs.iter().for_each(|t| made[t.index()] = Some(i));
    }
    made
}

/// Moves each store to the step after the one that made the tensor, or to the first step.
fn store_early(plan: &Plan, made: &[Option<usize>], moved: &mut Plan) {
    let earliest = |t: TensorId| made[t.index()].map_or(0, |step| step + 1);
    for (i, step) in plan.steps.iter().enumerate() {
        step.store.iter().for_each(|&t| moved.steps[earliest(t).min(i)].store.push(t));
    }
    moved.finish.store.clear();
    for &t in &plan.finish.store {
        match moved.steps.get_mut(earliest(t)) {
            Some(step) => step.store.push(t),
            None => moved.finish.store.push(t),
        }
    }
}

/// Returns what is on the device and when, with evictions as early as possible.
fn stays(graph: &TaskGraph, plan: &Plan, made: &[Option<usize>]) -> Vec<Stay> {
    let steps = plan.steps.len();
    let new = |tensor, comes, is_loaded, earliest| Stay {
        tensor,
        is_loaded,
        comes,
        earliest,
        first_use: steps,
        unused: comes,
        leaves: None,
    };
    let mut now: Vec<Option<Stay>> = graph.tensors().iter().map(|_| None).collect();
    // The step after the last eviction of each tensor.
    let mut absent = vec![0; graph.tensors().len()];
    let mut stays = Vec::new();
    for &t in &plan.start.resident {
        now[t.index()] = Some(new(t, 0, false, 0));
    }
    for (i, step) in plan.steps.iter().enumerate() {
        for t in &step.evict {
            let mut stay = now[t.index()].take().expect("a plan evicts what is on the device");
            // What is loaded and not used stays as the plan says.
            let leaves = if stay.is_loaded && stay.first_use == steps { i } else { stay.unused };
            stay.leaves = Some(leaves);
            absent[t.index()] = leaves + 1;
            stays.push(stay);
        }
        for &t in &step.load {
            now[t.index()] = Some(new(t, i, true, absent[t.index()]));
        }
        let op = graph.op(step.op);
        for t in &op.inputs {
            let stay = now[t.index()].as_mut().expect("an op's inputs are on the device");
            if stay.is_loaded && stay.first_use == steps {
                let told = told_at(graph, &op.inputs, made).filter(|_| graph.tensor(*t).kind == TensorKind::Fresh);
                stay.earliest = stay.earliest.max(told.map_or(0, |step| step + 1));
            }
            stay.first_use = stay.first_use.min(i);
            stay.unused = i + 1;
        }
        for &t in &op.outputs {
            now[t.index()] = Some(Stay { unused: i + 1, ..new(t, i, false, i) });
        }
    }
    stays.extend(now.into_iter().flatten());
    // What no op reads is not needed sooner than the plan says.
    stays.iter_mut().filter(|stay| stay.first_use == steps).for_each(|stay| stay.earliest = stay.comes);
    stays
}

/// Returns the last step that makes an empty input of an op. Such a tensor only orders two ops.
fn told_at(graph: &TaskGraph, inputs: &[TensorId], made: &[Option<usize>]) -> Option<usize> {
    inputs.iter().filter(|t| graph.tensor(**t).bytes == 0).filter_map(|t| made[t.index()]).max()
}

/// Returns the bytes on the device during each step.
fn held_bytes(graph: &TaskGraph, steps: usize, stays: &[Stay]) -> Vec<u64> {
    let (mut come, mut go) = (vec![0u64; steps], vec![0u64; steps]);
    for stay in stays {
        let bytes = graph.tensor(stay.tensor).bytes;
        come[stay.comes] += bytes;
        if let Some(step) = stay.leaves {
            go[step] += bytes;
        }
    }
    // What is there at the start and leaves at once is in both lists, so the sum in between may wrap.
    let held = come.into_iter().zip(go).scan(0u64, |held, (come, go)| {
        *held = held.wrapping_add(come).wrapping_sub(go);
        Some(*held)
    });
    held.collect()
}

/// Returns the larger of the bytes before the first step and after the last one.
fn edges_bytes(graph: &TaskGraph, plan: &Plan) -> u64 {
    let bytes = |tensors: &[TensorId]| tensors.iter().map(|t| graph.tensor(*t).bytes).sum::<u64>();
    let end = if plan.finish.load.is_empty() { 0 } else { bytes(&plan.finish.load) + kept_bytes(graph, plan) };
    end.max(bytes(&plan.start.resident))
}

/// Returns the bytes that are there after the last step and its evictions.
fn kept_bytes(graph: &TaskGraph, plan: &Plan) -> u64 {
    let mut here = vec![false; graph.tensors().len()];
    let mut set = |tensors: &[TensorId], is_here| tensors.iter().for_each(|t| here[t.index()] = is_here);
    set(&plan.start.resident, true);
    for step in &plan.steps {
        set(&step.evict, false);
        set(&step.load, true);
        set(&graph.op(step.op).outputs, true);
    }
    set(&plan.finish.evict, false);
    let kept = here.iter().zip(graph.tensors()).filter(|(here, _)| **here);
    kept.map(|(_, tensor)| tensor.bytes).sum()
}
