//! Task graphs. Every policy plans what was accepted, and the checker replays the plans. The first byte selects the
//! memory and the objective.
#![no_main]

use lapidary::tasks_file;
use lapidary_fuzz::{file, selected};
use lapidary_planner::check;
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Policy, Request, plan};
use libfuzzer_sys::fuzz_target;

/// Larger graphs are planned too, but not at the rate that a fuzzer needs.
const MOST_OPS: usize = 12;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = selected(bytes) else { return };
    let Ok(graph) = tasks_file::read(&file("tasks.json", rest)) else { return };
    assert!(graph.is_order(graph.order()));
    if graph.ops().len() > MOST_OPS {
        return;
    }
    let (least, most) = (graph.largest_op_bytes(), graph.total_bytes());
    let capacity_bytes = least + ((most - least) / 8).saturating_mul(first as u64 & 7);
    let objective = if first & 8 == 0 { Objective::Both } else { Objective::Loads };
    let epoch = if first & 16 == 0 { Epoch::Cold } else { Epoch::Steady };
    let limit = Limit { states: 2_000, small_states: 2_000, bounds: true };
    for policy in Policy::ALL {
        let request = Request { policy, objective, epoch: epoch.clone(), capacity_bytes, order: None, limit };
        let outcome = plan(&graph, &request).expect("the request names no order and no boundary");
        if let Outcome::Feasible(plan) = outcome {
            check::check(&graph, &plan, objective, &epoch, capacity_bytes).expect("a plan can be run");
        }
    }
});
