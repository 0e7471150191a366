//! Plans whose copies were moved to earlier steps: the same bytes, valid, and no more memory than there is.

use std::collections::BTreeMap;

use crate::common::{POLICIES, Shape, planned, random_capacity, random_graph, request};
use crate::training::{Model, training_graph};
use lapidary_planner::check::{Exchange, check, check_joint};
use lapidary_planner::memory::{Epoch, Limit, Objective, Plan, Policy, Request, Step, advance};
use lapidary_planner::tasks::{Task, TaskGraph, TaskId, Tensor, TensorId, TensorKind};

fn ids(ids: &[u32]) -> Vec<TensorId> {
    ids.iter().copied().map(TensorId).collect()
}

fn tensor(name: String, bytes: u64, kind: TensorKind) -> Tensor {
    Tensor { name: name.into(), bytes, kind, publish: false }
}

/// Returns the steps at which each tensor is copied: all stores, or all loads.
fn places(plan: &Plan, copies: fn(&Step) -> &Vec<TensorId>) -> BTreeMap<TensorId, Vec<usize>> {
    let mut places: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
    for (i, step) in plan.steps.iter().enumerate() {
        copies(step).iter().for_each(|t| places.entry(*t).or_default().push(i));
    }
    places
}

fn sum(places: &BTreeMap<TensorId, Vec<usize>>) -> usize {
    places.values().flatten().sum()
}

#[test]
fn copies_move_as_far_as_there_is_room() {
    // Each op reads a constant of its own.
    let mut tensors: Vec<Tensor> = ["a", "b", "c"].map(|name| tensor(name.into(), 10, TensorKind::Constant)).into();
    tensors.extend((0..3).map(|i| tensor(format!("y{i}"), 1, TensorKind::Local)));
    let op =
        |i: u32| Task { name: format!("op{i}").into(), inputs: ids(&[i]), outputs: ids(&[3 + i]), ..Task::default() };
    let graph = TaskGraph::new(tensors, (0..3).map(op).collect()).expect("the graph is good");
    let loads = |plan: &Plan| plan.steps.iter().map(|step| step.load.clone()).collect::<Vec<_>>();
    let evictions = |plan: &Plan| plan.steps.iter().map(|step| step.evict.clone()).collect::<Vec<_>>();
    let before = planned(&graph, &request(Policy::None, Objective::Both, Epoch::Cold, 33));
    assert_eq!(loads(&before), [ids(&[0]), ids(&[1]), ids(&[2])]);
    // With room for three, all are loaded at the start, in the order in which they are needed.
    let moved = advance(&graph, &before, 33);
    assert_eq!(loads(&moved), [ids(&[0, 1, 2]), vec![], vec![]]);
    assert_eq!(evictions(&moved), evictions(&before));
    assert_eq!(moved.peak_bytes, 31);
    // With room for two, the third waits until the first has left.
    let moved = advance(&graph, &before, 22);
    assert_eq!(loads(&moved), [ids(&[0, 1]), ids(&[2]), vec![]]);
    // Without room, nothing moves.
    assert_eq!(advance(&graph, &before, 12), before);
}

#[test]
fn what_will_be_stored_is_stored_when_it_was_made() {
    // y is made first, read last, and has to leave in between.
    let mut tensors = vec![tensor("x".into(), 1, TensorKind::Constant)];
    tensors.extend(["y", "p", "q", "r"].map(|name| tensor(name.into(), 10, TensorKind::Local)));
    let op = |name: &str, inputs: &[u32], output: u32| Task {
        name: name.into(),
        inputs: ids(inputs),
        outputs: ids(&[output]),
        next: vec![],
    };
    let ops = vec![op("f", &[0], 1), op("g", &[0], 2), op("h", &[2], 3), op("k", &[1, 3], 4)];
    let graph = TaskGraph::new(tensors, ops).expect("the graph is good");
    let order = Some((0..4).map(TaskId).collect());
    // Without a limit on the way, y would stay; a policy that keeps nothing stores it before `g`, which is at once.
    let request = Request { order, ..request(Policy::Lru, Objective::Both, Epoch::Cold, 30) };
    let mut plan = planned(&graph, &request);
    for step in &mut plan.steps {
        step.store.clear();
        step.evict.clear();
        step.load.clear();
    }
    plan.steps[0].load = ids(&[0]);
    plan.steps[2] = Step { op: TaskId(2), store: ids(&[1]), evict: ids(&[0, 1]), load: vec![] };
    plan.steps[3] = Step { op: TaskId(3), store: vec![], evict: ids(&[2]), load: ids(&[1]) };
    (plan.bytes_to_device, plan.bytes_to_host, plan.peak_bytes, plan.lower_bound_bytes) = (11, 10, 30, 0);
    let moved = advance(&graph, &plan, 30);
    assert_eq!(check(&graph, &moved, Objective::Both, &Epoch::Cold, 30), Ok(()));
    assert_eq!((moved.steps[1].store.clone(), moved.steps[1].evict.clone()), (ids(&[1]), ids(&[1])));
    assert_eq!(moved.steps[2].load, ids(&[1]), "it is back while `h` runs");
    assert_eq!((moved.bytes_to_device, moved.bytes_to_host, moved.peak_bytes), (11, 10, 30));
}

#[test]
fn moved_plans_are_valid_and_copy_the_same() {
    let shape = Shape { ops: 60, inputs: 20, most_bytes: 1000 };
    let (mut earlier, mut copies) = (0, 0);
    for seed in 0..100 {
        let graph = random_graph(9_000_000 + seed, &shape);
        let capacity = random_capacity(&graph, seed);
        let limit = Limit { states: 1_000, ..Limit::default() };
        let quick = |policy, objective, epoch| Request { limit, ..request(policy, objective, epoch, capacity) };
        for objective in [Objective::Both, Objective::Loads] {
            let steady = planned(&graph, &quick(Policy::Lru, objective, Epoch::Steady)).start;
            for epoch in [Epoch::Cold, Epoch::Steady, Epoch::Boundary(steady)] {
                for policy in POLICIES {
                    let plan = planned(&graph, &quick(policy, objective, epoch.clone()));
                    let moved = advance(&graph, &plan, capacity);
                    let checked = check(&graph, &moved, objective, &epoch, capacity);
                    assert_eq!(checked, Ok(()), "seed {seed} {objective:?} {epoch:?} {policy:?}");
                    let bytes = |plan: &Plan| [plan.bytes_to_device, plan.bytes_to_host];
                    assert_eq!(bytes(&moved), bytes(&plan));
                    assert_eq!((moved.order(), &moved.start), (plan.order(), &plan.start));
                    let [before, after] = [&plan, &moved].map(|plan| places(plan, |step| &step.load));
                    let [of_before, of_after] = [&before, &after].map(|places| places.values().map(Vec::len));
                    assert!(of_before.eq(of_after) && before.keys().eq(after.keys()));
                    assert!(before.values().flatten().zip(after.values().flatten()).all(|(old, new)| new <= old));
                    earlier += sum(&before) - sum(&after);
                    copies += before.values().flatten().count();
                    assert_eq!(advance(&graph, &plan, capacity), moved, "the same every time");
                }
            }
        }
    }
    assert!(earlier > copies / 2, "{copies} loads are {earlier} steps earlier in all");
}

#[test]
fn a_plan_without_copies_stays_as_it_is() {
    let graph = training_graph(Model::Gcn, 2, 1000, 5000, 50, 16, 3);
    let plan = planned(&graph, &request(Policy::Optimal, Objective::Both, Epoch::Steady, graph.total_bytes()));
    assert_eq!((plan.bytes_to_device, plan.bytes_to_host), (0, 0));
    assert_eq!(advance(&graph, &plan, graph.total_bytes()), plan);
}

/// Returns the epoch of a device that exchanges rows `layers` times: it packs rows, and reads those of the others with
/// large tensors of its own. `sizes` gives the size of each tensor.
fn exchanging(layers: u32, mut sizes: impl FnMut() -> u64) -> (TaskGraph, Vec<Exchange>) {
    let mut tensors = vec![tensor("x".into(), sizes(), TensorKind::Constant)];
    let (mut ops, mut exchanges, mut last) = (Vec::new(), Vec::new(), 0);
    for layer in 0..layers {
        let first = tensors.len() as u32;
        let [packed, sent, halo, weight, out] = [first, first + 1, first + 2, first + 3, first + 4];
        tensors.push(Tensor { publish: true, ..tensor(format!("packed{layer}"), sizes(), TensorKind::Local) });
        tensors.push(tensor(format!("packed{layer} sent"), 0, TensorKind::Local));
        tensors.push(tensor(format!("halo{layer}"), sizes(), TensorKind::Fresh));
        tensors.push(tensor(format!("weight{layer}"), sizes(), TensorKind::Constant));
        tensors.push(tensor(format!("out{layer}"), sizes(), TensorKind::Local));
        let op = |name: &str, inputs: &[u32], outputs: &[u32]| Task {
            name: format!("{name}{layer}").into(),
            inputs: ids(inputs),
            outputs: ids(outputs),
            next: vec![],
        };
        ops.push(op("pack", &[last], &[packed, sent]));
        let own = tensors.len() as u32;
        tensors.push(tensor(format!("own{layer}"), sizes(), TensorKind::Local));
        ops.push(op("own", &[last, weight], &[own]));
        ops.push(op("gather", &[own, halo, sent], &[out]));
        exchanges.push(Exchange { reader: (0, TensorId(halo)), writers: vec![(0, TensorId(packed))] });
        last = out;
    }
    (TaskGraph::new(tensors, ops).expect("the graph is good"), exchanges)
}

#[test]
fn moved_plans_of_devices_that_exchange_rows_do_not_wait_in_a_circle() {
    let mut early = 0;
    for seed in 0..60u64 {
        let mut state = seed;
        let mut size = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 54
        };
        let devices: Vec<_> = (0..3).map(|_| exchanging(6, &mut size)).collect();
        let mut order = None;
        let plans: Vec<Plan> = devices
            .iter()
            .enumerate()
            .map(|(i, (graph, _))| {
                let capacity = random_capacity(graph, seed * 3 + i as u64);
                let request = request(Policy::Lru, Objective::Both, Epoch::Steady, capacity);
                let plan = planned(graph, &Request { order: order.clone(), ..request });
                order.get_or_insert_with(|| plan.order());
                let moved = advance(graph, &plan, capacity);
                let [before, after] = [&plan, &moved].map(|plan| places(plan, |step| &step.load));
                let fresh = |t: &TensorId| graph.tensor(*t).kind == TensorKind::Fresh;
                early += before.iter().filter(|(t, at)| fresh(t) && after[t] != **at).count();
                moved
            })
            .collect();
        let joint: Vec<_> = devices.iter().zip(&plans).map(|((graph, _), plan)| (graph, plan)).collect();
        let exchanges: Vec<Exchange> = (0..3)
            .flat_map(|reader| devices[0].1.iter().map(move |exchange| (reader, exchange)))
            .map(|(reader, exchange)| Exchange {
                reader: (reader, exchange.reader.1),
                writers: (0..3).filter(|i| *i != reader).map(|i| (i, exchange.writers[0].1)).collect(),
            })
            .collect();
        assert_eq!(check_joint(&joint, &exchanges, &[]), Ok(()), "seed {seed}");
    }
    assert!(early > 100, "only {early} halos are read early");
}
