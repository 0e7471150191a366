//! Properties of plans of larger random graphs: valid, never above another policy's cost, never below their bound.

use crate::common::{POLICIES, Shape, planned, random_capacity, random_graph, random_order, request};
use crate::tiled::tiled_graph;
use crate::training::{Model, training_graph};
use lapidary_planner::check::check;
use lapidary_planner::memory::{Epoch, Limit, Objective, Plan, Policy, Request};
use lapidary_planner::tasks::{Task, TaskGraph, Tensor, TensorId, TensorKind};

const SHAPE: Shape = Shape { ops: 60, inputs: 20, most_bytes: 1000 };

/// Few states, so that many graphs can be planned, and plans without a proof occur too.
fn quick(policy: Policy, objective: Objective, epoch: &Epoch, capacity: u64) -> Request {
    let limit = Limit { states: 3_000, ..Limit::default() };
    Request { limit, ..request(policy, objective, epoch.clone(), capacity) }
}

#[test]
fn large_plans_are_valid_and_ordered() {
    let mut unproven = 0;
    for seed in 0..60 {
        let graph = random_graph(1_000_000 + seed, &SHAPE);
        let capacity = random_capacity(&graph, seed);
        for objective in [Objective::Both, Objective::Loads] {
            for epoch in [Epoch::Cold, Epoch::Steady] {
                let plans: Vec<Plan> =
                    POLICIES.map(|policy| planned(&graph, &quick(policy, objective, &epoch, capacity))).into();
                let bound = plans.iter().map(|plan| plan.lower_bound_bytes).max();
                for plan in &plans {
                    let checked = check(&graph, plan, objective, &epoch, capacity);
                    assert_eq!(checked, Ok(()), "seed {seed} {objective:?} {epoch:?} {:?}", plan.policy);
                    assert!(Some(plan.cost_bytes(objective)) >= bound, "seed {seed}: a bound is above a plan");
                    assert!(
                        plans[3].cost_bytes(objective) <= plan.cost_bytes(objective),
                        "seed {seed} {:?}",
                        plan.policy
                    );
                }
                unproven += usize::from(!plans[3].exact);
            }
        }
    }
    assert!(unproven > 0, "every plan was proven, so the cut search was not seen");
}

#[test]
fn a_given_order_is_kept_and_costs_no_less() {
    for seed in 0..30 {
        let graph = random_graph(2_000_000 + seed, &SHAPE);
        let capacity = random_capacity(&graph, seed);
        let order = random_order(&graph, seed);
        for epoch in [Epoch::Cold, Epoch::Steady] {
            let free = planned(&graph, &quick(Policy::Optimal, Objective::Both, &epoch, capacity));
            for policy in POLICIES {
                let request =
                    Request { order: Some(order.clone()), ..quick(policy, Objective::Both, &epoch, capacity) };
                let plan = planned(&graph, &request);
                assert_eq!(plan.order(), order, "seed {seed}");
                assert_eq!(check(&graph, &plan, Objective::Both, &epoch, capacity), Ok(()), "seed {seed} {policy:?}");
                assert!(free.lower_bound_bytes <= plan.cost_bytes(Objective::Both), "seed {seed} {policy:?}");
            }
        }
    }
}

#[test]
fn a_boundary_of_another_plan_can_be_kept() {
    for seed in 0..30 {
        let graph = random_graph(3_000_000 + seed, &SHAPE);
        let capacity = random_capacity(&graph, seed);
        let steady = planned(&graph, &quick(Policy::Optimal, Objective::Both, &Epoch::Steady, capacity));
        let epoch = Epoch::Boundary(steady.start.clone());
        for policy in POLICIES {
            let plan = planned(&graph, &quick(policy, Objective::Both, &epoch, capacity));
            assert_eq!(check(&graph, &plan, Objective::Both, &epoch, capacity), Ok(()), "seed {seed} {policy:?}");
            assert!(plan.lower_bound_bytes <= steady.cost_bytes(Objective::Both), "seed {seed} {policy:?}");
        }
    }
}

/// A plan for less memory is also one for more, so no bound at a larger capacity may be above its cost. If both plans
/// are exact, the cost may not rise.
#[test]
fn more_memory_never_costs_more() {
    for seed in 0..15 {
        let graph = random_graph(6_000_000 + seed, &SHAPE);
        let (least, all) = (graph.largest_op_bytes(), graph.total_bytes());
        for epoch in [Epoch::Cold, Epoch::Steady] {
            let (mut cheapest, mut exact) = (u64::MAX, u64::MAX);
            for i in 0..=10 {
                let capacity = least + (all - least) / 10 * i;
                let plan = planned(&graph, &quick(Policy::Optimal, Objective::Both, &epoch, capacity));
                let cost = plan.cost_bytes(Objective::Both);
                assert!(plan.lower_bound_bytes <= cheapest, "seed {seed} {epoch:?} {capacity}");
                cheapest = cheapest.min(cost);
                if plan.exact {
                    assert!(cost <= exact, "seed {seed} {epoch:?} {capacity}");
                    exact = cost;
                }
            }
        }
    }
}

#[test]
fn plans_are_the_same_every_time() {
    for seed in 0..10 {
        let graph = random_graph(4_000_000 + seed, &SHAPE);
        let capacity = random_capacity(&graph, seed);
        for policy in POLICIES {
            let request = quick(policy, Objective::Both, &Epoch::Steady, capacity);
            assert_eq!(planned(&graph, &request), planned(&graph, &request), "seed {seed} {policy:?}");
        }
    }
}

/// A graph with Pubmed's numbers of vertices and edges, so that the sizes are realistic.
fn pubmed(model: Model, layers: usize) -> TaskGraph {
    training_graph(model, layers, 19_717, 108_365, 500, 64, 3)
}

/// Only at the least capacities, where every byte matters, a few graphs have a larger gap.
#[test]
fn nearly_all_training_epochs_of_up_to_four_layers_are_within_a_hundredth() {
    let (mut exact, mut within, mut beyond) = (0, 0, Vec::new());
    for layers in 1..=4 {
        for model in [Model::Gcn, Model::Gin, Model::CommNet] {
            let graph = pubmed(model, layers);
            let (least, all) = (graph.largest_op_bytes(), graph.total_bytes());
            for i in 0..16 {
                let capacity = least + (all - least) / 16 * i;
                let plan = planned(&graph, &request(Policy::Optimal, Objective::Both, Epoch::Steady, capacity));
                assert_eq!(check(&graph, &plan, Objective::Both, &Epoch::Steady, capacity), Ok(()));
                let cost = plan.cost_bytes(Objective::Both);
                match cost - plan.lower_bound_bytes {
                    0 => exact += 1,
                    gap if gap <= cost / 100 => within += 1,
                    gap => beyond.push((model, layers, i, cost, gap)),
                }
            }
        }
    }
    assert!(exact >= 160 && beyond.len() <= 4, "{exact} exact, {within} within a hundredth, beyond: {beyond:?}");
}

/// Graphs of thousands of ops are planned in program order, and so are their bounds.
#[test]
fn training_epochs_in_tiles_are_near_their_bounds() {
    for (tiles, group) in [(16, 4), (32, 8), (32, 2)] {
        let graph = tiled_graph(2, tiles, group, 10_000, 500_000, 256);
        assert!(graph.ops().len() > Limit::LARGE_OPS);
        for percent in [105, 150, 300] {
            let capacity = graph.largest_op_bytes() / 100 * percent;
            let plans = POLICIES.map(|policy| {
                let limit = Limit { states: 200_000, ..Limit::default() };
                let request = request(policy, Objective::Both, Epoch::Steady, capacity);
                planned(&graph, &Request { limit, ..request })
            });
            let bound = plans.iter().map(|plan| plan.lower_bound_bytes).max().expect("there are policies");
            for plan in &plans {
                let cost = plan.cost_bytes(Objective::Both);
                assert_eq!(check(&graph, plan, Objective::Both, &Epoch::Steady, capacity), Ok(()));
                assert!(bound <= cost && plans[3].cost_bytes(Objective::Both) <= cost, "{:?}", plan.policy);
            }
            let cost = plans[3].cost_bytes(Objective::Both);
            assert!(bound >= cost / 100 * 85, "{tiles} tiles, {percent} %: at least {bound}, found {cost}");
        }
    }
}

#[test]
fn graphs_of_twelve_ops_are_planned_exactly() {
    let shape = Shape { ops: 12, inputs: 14, most_bytes: 1000 };
    for seed in 0..100 {
        let graph = random_graph(5_000_000 + seed, &shape);
        let capacity = random_capacity(&graph, seed);
        for epoch in [Epoch::Cold, Epoch::Steady] {
            let plan = planned(&graph, &request(Policy::Optimal, Objective::Both, epoch.clone(), capacity));
            assert_eq!(check(&graph, &plan, Objective::Both, &epoch, capacity), Ok(()), "seed {seed}");
            assert!(plan.exact, "seed {seed} {epoch:?} {capacity}");
        }
    }
}

#[test]
fn everything_fits_where_there_is_room_for_everything() {
    let graph = pubmed(Model::ResGcn, 16);
    let request = request(Policy::Optimal, Objective::Both, Epoch::Steady, graph.total_bytes());
    let plan = planned(&graph, &request);
    assert_eq!((plan.cost_bytes(Objective::Both), plan.exact), (0, true));
}

/// Sums of copies of these sizes do not fit 64 bits and must not wrap.
#[test]
fn enormous_sizes_do_not_wrap() {
    let tensor = |name: &str, bytes, kind| Tensor { name: name.into(), bytes, kind, publish: false };
    let mut tensors =
        vec![tensor("a", u64::MAX / 2, TensorKind::Constant), tensor("b", u64::MAX / 2, TensorKind::Constant)];
    let mut ops = Vec::new();
    for i in 0..16u32 {
        tensors.push(tensor(&format!("y{i}"), 0, TensorKind::Local));
        ops.push(Task {
            name: format!("op{i}").into(),
            inputs: vec![TensorId(i % 2)],
            outputs: vec![TensorId(2 + i)],
            next: vec![],
        });
        if i > 0 {
            ops[i as usize].inputs.push(TensorId(1 + i));
        }
    }
    let graph = TaskGraph::new(tensors, ops).expect("the sizes sum to less than 2^64");
    for policy in POLICIES {
        let capacity = u64::MAX / 2;
        let plan = planned(&graph, &request(policy, Objective::Both, Epoch::Cold, capacity));
        assert_eq!(plan.bytes_to_device, u64::MAX, "16 loads of 2^63 bytes");
        assert_eq!(check(&graph, &plan, Objective::Both, &Epoch::Cold, capacity), Ok(()));
    }
}

/// The same, with something to decide at every op.
#[test]
fn enormous_sizes_are_planned_as_small_ones_are() {
    for seed in 0..40 {
        let small = random_graph(8_000_000 + seed, &Shape { ops: 14, inputs: 6, most_bytes: 8 });
        let capacity = random_capacity(&small, seed);
        let scale = u64::MAX / small.total_bytes().max(1);
        let tensors = small.tensors().iter().map(|t| Tensor { bytes: t.bytes * scale, ..t.clone() }).collect();
        let large = TaskGraph::new(tensors, small.ops().to_vec()).expect("the sizes sum to less than 2^64");
        for epoch in [Epoch::Cold, Epoch::Steady] {
            let cost = |graph: &TaskGraph, scale: u64| {
                let request = quick(Policy::Optimal, Objective::Both, &epoch, capacity * scale);
                let plan = planned(graph, &request);
                assert_eq!(check(graph, &plan, Objective::Both, &epoch, capacity * scale), Ok(()), "seed {seed}");
                plan.exact.then_some(u128::from(plan.cost_bytes(Objective::Both)))
            };
            if let (Some(small), Some(large)) = (cost(&small, 1), cost(&large, scale)) {
                assert_eq!(large, (small * u128::from(scale)).min(u128::from(u64::MAX)), "seed {seed} {epoch:?}");
            }
        }
    }
}
