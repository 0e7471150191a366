//! Tests of the checker: it accepts good plans, and rejects every kind of corruption.

use crate::common::{Shape, planned, random_capacity, random_graph, request};
use lapidary_planner::check::{CheckError, Exchange, Fetch, check, check_joint};
use lapidary_planner::memory::{Boundary, Epoch, Objective, Plan, Policy, Step};
use lapidary_planner::tasks::{Task, TaskGraph, TaskId, Tensor, TensorId, TensorKind};

fn tensor(name: &str, bytes: u64, kind: TensorKind) -> Tensor {
    Tensor { name: name.into(), bytes, kind, publish: false }
}

fn ids(ids: &[u32]) -> Vec<TensorId> {
    ids.iter().copied().map(TensorId).collect()
}

fn op(name: &str, inputs: &[u32], outputs: &[u32]) -> Task {
    Task { name: name.into(), inputs: ids(inputs), outputs: ids(outputs), next: Vec::new() }
}

/// x (10) -> a (10) -> b (10), then b and a -> c (10), which is the next x. At 30 bytes something must leave.
fn graph() -> TaskGraph {
    let mut tensors = vec![tensor("x", 10, TensorKind::Constant)];
    tensors.extend(["a", "b", "c"].map(|name| tensor(name, 10, TensorKind::Local)));
    let mut ops = vec![op("f", &[0], &[1]), op("g", &[1], &[2]), op("h", &[0, 2], &[3])];
    ops[2].next.push((TensorId(3), TensorId(0)));
    TaskGraph::new(tensors, ops).expect("the graph is good")
}

const STEADY: Epoch = Epoch::Steady;

/// At 30 bytes: x is dirty at the start, and a leaves, dead, before h.
fn plan() -> Plan {
    planned(&graph(), &request(Policy::Optimal, Objective::Both, STEADY, 30))
}

fn broken(corrupt: impl FnOnce(&mut Plan)) -> CheckError {
    let mut plan = plan();
    corrupt(&mut plan);
    check(&graph(), &plan, Objective::Both, &STEADY, 30).expect_err("the plan is corrupt")
}

#[test]
fn the_plan_is_as_expected() {
    let plan = plan();
    assert_eq!(check(&graph(), &plan, Objective::Both, &STEADY, 30), Ok(()));
    assert_eq!((plan.bytes_to_device, plan.bytes_to_host, plan.peak_bytes), (0, 0, 30));
    assert_eq!(plan.start, Boundary { resident: ids(&[0]), dirty: ids(&[0]) });
    assert_eq!(plan.steps[2], Step { op: TaskId(2), store: vec![], evict: ids(&[1]), load: vec![] });
}

fn says(error: &CheckError, parts: &[&str]) {
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
}

#[test]
fn every_rule_is_enforced() {
    says(&broken(|p| p.steps[0].load = ids(&[1])), &["step 0", "`f`", "loads", "`a`", "no host copy"]);
    says(&broken(|p| p.steps[0].load = ids(&[0])), &["step 0", "loads", "`x`", "on the device"]);
    says(&broken(|p| p.steps[0].store = ids(&[1])), &["step 0", "stores", "`a`", "not on the device"]);
    says(&broken(|p| p.steps[1].store = ids(&[0, 0])), &["step 1", "stores", "`x`", "has a host copy"]);
    says(&broken(|p| p.steps[1].evict = ids(&[0])), &["step 1", "`g`", "evicts", "`x`", "needed again"]);
    says(&broken(|p| p.steps[2].evict = ids(&[3])), &["step 2", "evicts", "`c`", "not on the device"]);
    says(&broken(|p| p.steps[2].evict.clear()), &["step 2", "40 bytes", "capacity is 30"]);
    says(&broken(|p| p.steps[2].evict = ids(&[1, 1])), &["step 2", "evicts", "`a`"]);
    says(&broken(|p| p.steps.swap(0, 1)), &["step 0", "`g`", "reads", "`a`"]);
    says(&broken(|p| p.steps[1].op = TaskId(0)), &["`f`", "2 times"]);
    says(&broken(|p| drop(p.steps.pop())), &["`h`", "0 times"]);
    says(&broken(|p| p.steps[0].op = TaskId(9)), &["op number 9"]);
    says(&broken(|p| p.steps[0].evict = ids(&[9])), &["step 0", "tensor number 9"]);
    says(&broken(|p| p.start.resident = ids(&[0, 0])), &["start", "`x`", "before"]);
    says(&broken(|p| p.start.resident = ids(&[0, 1])), &["start", "`a`", "no constant"]);
    says(&broken(|p| p.start.resident = ids(&[9])), &["start", "tensor number 9"]);
    says(&broken(|p| p.start.resident.clear()), &["start", "dirty", "`x`"]);
    says(&broken(|p| p.start.dirty.clear()), &["end", "`c`", "host copy"]);
    says(&broken(|p| p.bytes_to_device += 1), &["bytes to the device", "1", "0"]);
    says(&broken(|p| p.bytes_to_host += 1), &["bytes to the host"]);
    says(&broken(|p| p.peak_bytes -= 1), &["peak bytes", "29", "30"]);
    says(&broken(|p| p.lower_bound_bytes = 1), &["lower bound"]);
    says(&broken(|p| p.finish.evict = ids(&[2])), &["after its last step"]);
    let stored_for_nothing = |p: &mut Plan| {
        p.steps[1].store = ids(&[0]);
        p.bytes_to_host = 10;
    };
    says(&broken(stored_for_nothing), &["lower bound"]);
}

#[test]
fn cold_epochs_inherit_nothing() {
    let error = check(&graph(), &plan(), Objective::Both, &Epoch::Cold, 30).expect_err("the plan inherits x");
    says(&error, &["start", "`x`", "cold"]);
}

#[test]
fn a_given_boundary_is_held_to() {
    let given =
        |resident: &[u32], dirty: &[u32]| Epoch::Boundary(Boundary { resident: ids(resident), dirty: ids(dirty) });
    let other = check(&graph(), &plan(), Objective::Both, &given(&[], &[]), 30).expect_err("x is resident");
    says(&other, &["start", "`x`"]);
    let epoch = given(&[0], &[]);
    let mut plan = planned(&graph(), &request(Policy::Optimal, Objective::Both, epoch.clone(), 30));
    assert_eq!(check(&graph(), &plan, Objective::Both, &epoch, 30), Ok(()));
    assert_eq!((plan.finish.store.clone(), plan.bytes_to_host), (ids(&[3]), 10));
    plan.finish.store.clear();
    says(&check(&graph(), &plan, Objective::Both, &epoch, 30).expect_err("c is dirty"), &["end", "`c`"]);
}

/// Changes one entry of a valid plan, in every place and way. No change may go unnoticed, unless it has no effect.
#[test]
fn no_single_corruption_of_a_random_plan_passes() {
    let shape = Shape { ops: 8, inputs: 4, most_bytes: 9 };
    let mut tried = 0;
    for seed in 0..200 {
        let graph = random_graph(7_000 + seed, &shape);
        let capacity = random_capacity(&graph, seed);
        let epoch = if seed % 2 == 0 { Epoch::Cold } else { Epoch::Steady };
        let good = planned(&graph, &request(Policy::Optimal, Objective::Both, epoch.clone(), capacity));
        let error = |plan: &Plan| check(&graph, plan, Objective::Both, &epoch, capacity).err();
        let objects = |plan: &Plan| error(plan).is_some();
        // What is missing is found at its place, and not only because the totals no longer agree.
        let misses = |plan: &Plan| matches!(error(plan), Some(CheckError::Tensor { .. }));
        let weighs = |t: &TensorId| graph.tensor(*t).bytes > 0;
        for (i, step) in good.steps.iter().enumerate() {
            for at in 0..step.store.len() {
                let mut plan = good.clone();
                plan.steps[i].store.remove(at);
                assert!(misses(&plan), "seed {seed}: step {i} without a store: {:?}", error(&plan));
                tried += 1;
            }
            for at in 0..step.load.len() {
                let mut plan = good.clone();
                plan.steps[i].load.remove(at);
                assert!(misses(&plan), "seed {seed}: step {i} without a load: {:?}", error(&plan));
                tried += 1;
            }
            for t in (0..graph.tensors().len() as u32).map(TensorId).filter(weighs) {
                let mut plan = good.clone();
                plan.steps[i].store.push(t);
                assert!(objects(&plan), "seed {seed}: step {i} with one more store");
                let mut plan = good.clone();
                plan.steps[i].load.push(t);
                assert!(objects(&plan), "seed {seed}: step {i} with one more load");
                tried += 2;
            }
        }
        for other in 1..good.steps.len() {
            let mut plan = good.clone();
            plan.steps[0].op = plan.steps[other].op;
            assert!(objects(&plan), "seed {seed}: an op twice");
            tried += 1;
        }
    }
    assert!(tried > 5_000, "only {tried} corruptions");
}

/// Returns two devices that each make rows for the other and read the other's rows.
fn pair(order: [u32; 2]) -> (TaskGraph, Plan) {
    let mut tensors = vec![
        tensor("halo", 1, TensorKind::Fresh),
        tensor("rows", 1, TensorKind::Local),
        tensor("y", 1, TensorKind::Local),
    ];
    tensors[1].publish = true;
    let graph = TaskGraph::new(tensors, vec![op("pack", &[], &[1]), op("use", &[0], &[2])]).expect("the graph is good");
    let order = order.map(TaskId).to_vec();
    let request = lapidary_planner::memory::Request {
        order: Some(order),
        ..request(Policy::Optimal, Objective::Both, Epoch::Cold, 10)
    };
    let plan = planned(&graph, &request);
    (graph, plan)
}

fn exchanges() -> Vec<Exchange> {
    let (halo, rows) = (TensorId(0), TensorId(1));
    vec![
        Exchange { reader: (0, halo), writers: vec![(1, rows)] },
        Exchange { reader: (1, halo), writers: vec![(0, rows)] },
    ]
}

#[test]
fn devices_that_pack_first_do_not_wait_for_each_other() {
    let [first, second] = [pair([0, 1]), pair([0, 1])];
    assert_eq!(check_joint(&[(&first.0, &first.1), (&second.0, &second.1)], &exchanges(), &[]), Ok(()));
    let [first, second] = [pair([0, 1]), pair([1, 0])];
    assert_eq!(check_joint(&[(&first.0, &first.1), (&second.0, &second.1)], &exchanges(), &[]), Ok(()));
}

#[test]
fn devices_that_read_first_wait_for_each_other() {
    let [first, second] = [pair([1, 0]), pair([1, 0])];
    let error = check_joint(&[(&first.0, &first.1), (&second.0, &second.1)], &exchanges(), &[]);
    let error = error.expect_err("each waits for the other");
    let CheckError::Deadlock { steps } = &error else { panic!("{error}") };
    assert_eq!(steps.len(), 4);
    says(&error, &["device 0 step 0 (op `use`)", "device 1 step 1 (op `pack`)"]);
}

#[test]
fn a_step_that_waits_for_itself_is_found() {
    let tensors =
        vec![tensor("halo", 1, TensorKind::Fresh), Tensor { publish: true, ..tensor("rows", 1, TensorKind::Local) }];
    let graph = TaskGraph::new(tensors, vec![op("both", &[0], &[1])]).expect("the graph is good");
    let plan = planned(&graph, &request(Policy::None, Objective::Both, Epoch::Cold, 10));
    let exchange = Exchange { reader: (0, TensorId(0)), writers: vec![(0, TensorId(1))] };
    assert!(
        matches!(check_joint(&[(&graph, &plan)], &[exchange], &[]), Err(CheckError::Deadlock { steps }) if steps.len() == 1)
    );
}

#[test]
fn exchanges_that_mean_nothing_are_refused() {
    let (graph, plan) = pair([0, 1]);
    let devices = [(&graph, &plan)];
    let (halo, rows) = (TensorId(0), TensorId(1));
    for (reader, writer) in [
        ((0, rows), (0, rows)),
        ((0, halo), (0, halo)),
        ((1, halo), (0, rows)),
        ((0, halo), (1, rows)),
        ((0, TensorId(9)), (0, rows)),
    ] {
        let exchange = Exchange { reader, writers: vec![writer] };
        assert!(matches!(check_joint(&devices, &[exchange], &[]), Err(CheckError::Exchange { .. })));
    }
}

/// Returns a device that makes rows `a` and `b`, lends them, and copies rows of others to `halo a` and `halo b`.
fn lender(order: [u32; 5], capacity_bytes: u64) -> (TaskGraph, Plan) {
    let names = ["a", "b", "halo a", "halo b", "y"];
    let tensors = names.map(|name| tensor(name, 1, TensorKind::Local)).to_vec();
    let ops = vec![
        op("pack a", &[], &[0]),
        op("pack b", &[], &[1]),
        op("fetch a", &[0], &[2]),
        op("fetch b", &[1], &[3]),
        op("use", &[2, 3], &[4]),
    ];
    let graph = TaskGraph::new(tensors, ops).expect("the graph is good");
    let request = lapidary_planner::memory::Request {
        order: Some(order.map(TaskId).to_vec()),
        ..request(Policy::Lru, Objective::Both, Epoch::Cold, capacity_bytes)
    };
    let plan = planned(&graph, &request);
    (graph, plan)
}

/// Returns the fetches of `a` and `b` from these lenders to those readers.
fn fetches(lenders: &[usize], readers: &[usize]) -> Vec<Fetch> {
    let all = |devices: &[usize], tensor: u32| devices.iter().map(|&device| (device, TensorId(tensor))).collect();
    [0, 1].map(|rows| Fetch { lenders: all(lenders, rows), readers: all(readers, rows + 2) }).into()
}

#[test]
fn devices_that_fetch_from_each_other_in_one_order_come_to_their_ends() {
    for order in [[0, 1, 2, 3, 4], [0, 2, 1, 3, 4], [1, 0, 3, 2, 4], [1, 3, 0, 2, 4]] {
        for capacity in [3, 4, 10] {
            let [first, second] = [lender(order, capacity), lender(order, 10)];
            let devices = [(&first.0, &first.1), (&second.0, &second.1)];
            assert_eq!(check_joint(&devices, &[], &fetches(&[0, 1], &[0, 1])), Ok(()), "{order:?}, {capacity}");
        }
    }
}

#[test]
fn devices_that_fetch_in_different_orders_wait_for_each_other() {
    let [first, second] = [lender([0, 1, 2, 3, 4], 10), lender([0, 1, 3, 2, 4], 10)];
    let error = check_joint(&[(&first.0, &first.1), (&second.0, &second.1)], &[], &fetches(&[0, 1], &[0, 1]));
    says(&error.expect_err("each has to come first"), &["device 0", "device 1", "fetch a", "fetch b"]);
}

#[test]
fn rows_that_are_given_up_before_they_are_read_are_found() {
    // The second device reads `b` first; the first gives `a` up before it lends `b`.
    let (first, second) = (lender([0, 2, 1, 3, 4], 10), lender([0, 1, 3, 2, 4], 10));
    let fetches = fetches(&[0], &[1]);
    let mut plan = first.1.clone();
    plan.steps.iter_mut().for_each(|step| step.evict.clear());
    assert_eq!(check_joint(&[(&first.0, &plan), (&second.0, &second.1)], &[], &fetches), Ok(()));
    let step = plan.steps.iter().position(|step| step.op == TaskId(1)).expect("it runs");
    plan.steps[step].evict.push(TensorId(0));
    let error = check_joint(&[(&first.0, &plan), (&second.0, &second.1)], &[], &fetches);
    says(&error.expect_err("it is overwritten too early"), &["device 0 step 2 (op `pack b`)", "device 1", "fetch a"]);
}

#[test]
fn fetches_that_mean_nothing_are_refused() {
    let (graph, plan) = lender([0, 1, 2, 3, 4], 10);
    let (a, halo) = (TensorId(0), TensorId(2));
    for (reader, lender) in
        [((0, halo), (1, a)), ((1, halo), (0, a)), ((0, TensorId(9)), (0, a)), ((0, halo), (0, TensorId(4)))]
    {
        let found = check_joint(&[(&graph, &plan)], &[], &[Fetch { readers: vec![reader], lenders: vec![lender] }]);
        assert!(matches!(found, Err(CheckError::Exchange { .. })), "{reader:?}, {lender:?}: {found:?}");
    }
}
