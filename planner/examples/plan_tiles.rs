//! Plans training epochs in tiles, and prints the results and the time taken:
//! `cargo run --release -p lapidary-planner --example plan_tiles`.

#[path = "../tests/common/tiled.rs"]
mod tiled;

use std::time::Instant;

use lapidary_planner::check::check;
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Policy, Request, plan};
use tiled::tiled_graph;

fn main() {
    println!(
        "{:>5} {:>5} {:>6} {:>8} {:>14} {:>14} {:>14} {:>7} {:>7} {:>7}",
        "tiles", "group", "ops", "capacity", "quick", "cost", "bound", "gap %", "quick s", "s"
    );
    for (tiles, group) in [(8, 2), (16, 1), (16, 4), (32, 2), (32, 8), (64, 4), (96, 8), (128, 8)] {
        let graph = tiled_graph(3, tiles, group, 100_000, 5_000_000, 256);
        let least = graph.largest_op_bytes();
        for percent in [105, 130, 200, 400] {
            let capacity_bytes = least / 100 * percent;
            let request = |states| Request {
                policy: Policy::Optimal,
                objective: Objective::Both,
                epoch: Epoch::Steady,
                capacity_bytes,
                order: None,
                limit: Limit { states, ..Limit::default() },
            };
            let run = |states| {
                let start = Instant::now();
                match plan(&graph, &request(states)).expect("the request is good") {
                    Outcome::Feasible(plan) => (plan, start.elapsed().as_secs_f64()),
                    Outcome::Infeasible { .. } => unreachable!("the largest op fits"),
                }
            };
            let (quick, quick_s) = run(2_000);
            let (best, seconds) = run(200_000);
            check(&graph, &best, Objective::Both, &Epoch::Steady, capacity_bytes).expect("the plan is valid");
            let cost = best.cost_bytes(Objective::Both);
            let gap = 100.0 * (cost - best.lower_bound_bytes) as f64 / (cost as f64).max(1.0);
            println!(
                "{tiles:>5} {group:>5} {:>6} {percent:>7}% {:>14} {cost:>14} {:>14} {gap:>7.2} {quick_s:>7.3} {seconds:>7.3}",
                graph.ops().len(),
                quick.cost_bytes(Objective::Both),
                best.lower_bound_bytes,
            );
        }
    }
}
