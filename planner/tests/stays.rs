//! What is on the device when: the same as a replay finds, step by step.

use std::collections::BTreeSet;

use crate::common::{POLICIES, Shape, planned, random_capacity, random_graph, request};
use lapidary_planner::memory::{Arrival, Epoch, Limit, Objective, Plan, Policy, Request, Stay, advance, stays};
use lapidary_planner::tasks::{Task, TaskGraph, Tensor, TensorId, TensorKind};

/// Returns what is on the device at each moment.
fn replayed(graph: &TaskGraph, plan: &Plan) -> Vec<BTreeSet<TensorId>> {
    let mut held: BTreeSet<TensorId> = plan.start.resident.iter().copied().collect();
    let mut moments = vec![held.clone()];
    for step in &plan.steps {
        held.retain(|t| !step.evict.contains(t));
        held.extend(&step.load);
        held.extend(&graph.op(step.op).outputs);
        moments.push(held.clone());
    }
    held.retain(|t| !plan.finish.evict.contains(t));
    held.extend(&plan.finish.load);
    moments.push(held);
    moments
}

fn at(stays: &[Stay], moment: usize) -> impl Iterator<Item = &Stay> {
    stays.iter().filter(move |stay| (stay.from..=stay.to).contains(&moment))
}

/// Few states, so that many graphs can be planned.
fn quick(policy: Policy, epoch: Epoch, capacity: u64) -> Request {
    let limit = Limit { states: 3_000, ..Limit::default() };
    Request { limit, ..request(policy, Objective::Both, epoch, capacity) }
}

#[test]
fn they_hold_what_the_plan_holds_at_each_step() {
    let shape = Shape { ops: 40, inputs: 15, most_bytes: 1000 };
    let (mut loads, mut stored, mut finishes) = (0, 0, 0);
    for seed in 0..30 {
        let graph = random_graph(7_000_000 + seed, &shape);
        let capacity = random_capacity(&graph, seed);
        let steady = planned(&graph, &quick(Policy::Lru, Epoch::Steady, capacity));
        for epoch in [Epoch::Cold, Epoch::Steady, Epoch::Boundary(steady.start.clone())] {
            for policy in POLICIES {
                let plan = planned(&graph, &quick(policy, epoch.clone(), capacity));
                let plan = advance(&graph, &plan, capacity);
                let stays = stays(&graph, &plan);
                let moments = replayed(&graph, &plan);
                let finish = moments.last() != moments.iter().nth_back(1);
                for (moment, held) in moments.iter().enumerate().take(plan.steps.len() + 1 + usize::from(finish)) {
                    let found: Vec<TensorId> = at(&stays, moment).map(|stay| stay.tensor).collect();
                    assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), *held, "seed {seed} {policy} {moment}");
                    assert_eq!(found.len(), held.len(), "seed {seed} {policy}: two stays at once");
                }
                let of = |wanted: &dyn Fn(&Stay) -> bool| -> u64 {
                    stays.iter().filter(|stay| wanted(stay)).map(|stay| graph.tensor(stay.tensor).bytes).sum()
                };
                let held = |moment| of(&|stay| (stay.from..=stay.to).contains(&moment));
                assert_eq!((0..moments.len()).map(held).max(), Some(plan.peak_bytes), "seed {seed} {policy}");
                assert_eq!(of(&|stay| stay.arrival == Arrival::Load), plan.bytes_to_device, "seed {seed} {policy}");
                assert_eq!(of(&|stay| stay.stored), plan.bytes_to_host, "seed {seed} {policy}");
                let kept: BTreeSet<TensorId> = stays.iter().filter(|stay| stay.kept).map(|stay| stay.tensor).collect();
                assert_eq!(Some(&kept), moments.last(), "seed {seed} {policy}");
                loads += stays.iter().filter(|stay| stay.arrival == Arrival::Load).count();
                stored += stays.iter().filter(|stay| stay.stored).count();
                finishes += usize::from(finish);
            }
        }
    }
    assert!(loads > 100 && stored > 100 && finishes > 0, "{loads} loads, {stored} stores, {finishes} finishes");
}

#[test]
fn a_tensor_that_comes_back_has_two_stays() {
    // x is read first and last; y and z leave no room for it in between.
    let tensor = |name: &str, bytes, kind| Tensor { name: name.into(), bytes, kind, publish: false };
    let tensors = vec![
        tensor("x", 10, TensorKind::Constant),
        tensor("y", 10, TensorKind::Local),
        tensor("z", 20, TensorKind::Local),
        tensor("end", 1, TensorKind::Local),
    ];
    let op = |name: &str, inputs: &[u32], output: u32| Task {
        name: name.into(),
        inputs: inputs.iter().copied().map(TensorId).collect(),
        outputs: vec![TensorId(output)],
        ..Task::default()
    };
    let ops = vec![op("first", &[0], 1), op("second", &[1], 2), op("third", &[0, 2], 3)];
    let graph = TaskGraph::new(tensors, ops).expect("the graph is good");
    let plan = planned(&graph, &request(Policy::Optimal, Objective::Both, Epoch::Cold, 31));
    let mut found = stays(&graph, &plan);
    found.retain(|stay| stay.tensor == TensorId(0));
    let stay = |from, to, kept| Stay { tensor: TensorId(0), from, to, arrival: Arrival::Load, stored: false, kept };
    assert_eq!(found, [stay(1, 1, false), stay(3, 3, true)]);
}
