//! Plans training epochs at capacities from the least possible to the total, and prints the results and the time taken:
//! `cargo run --release -p lapidary-planner --example plan_training [-- WORDS]`.
//! WORDS: `cold` (otherwise the steady epoch), `pubmed` (otherwise Reddit's sizes), `deep` (16 residual layers,
//! otherwise 1 to 4 layers), `low` (only the lower third of the capacities), `roc` (also run that policy), or a number
//! of states.

#[path = "../tests/common/training.rs"]
mod training;

use std::time::Instant;

use lapidary_planner::check::check;
use lapidary_planner::memory::{Epoch, Limit, Objective, Outcome, Policy, Request, plan};
use training::{Model, training_graph};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |word: &str| arguments.iter().any(|a| a == word);
    let epoch = if asked("cold") { Epoch::Cold } else { Epoch::Steady };
    let states = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(Limit::default().states);
    // Vertices, edges, features, hidden width, classes: Pubmed, or Reddit.
    let [n, e, features, hidden, classes] =
        if asked("pubmed") { [19_717, 108_365, 500, 64, 3] } else { [232_965, 114_848_857, 602, 256, 41] };
    let mut cases: Vec<(Model, usize)> = Vec::new();
    for layers in 1..=4 {
        cases.extend([Model::Gcn, Model::Gin, Model::CommNet].map(|model| (model, layers)));
    }
    cases.push((Model::ResGcn, 16));
    for (model, layers) in cases {
        if asked("deep") != (layers == 16) {
            continue;
        }
        let graph = training_graph(model, layers, n, e, features, hidden, classes);
        println!("{model:?}, {layers} layers: {} ops, {} tensors", graph.ops().len(), graph.tensors().len());
        println!(
            "{:>14} {:>14} {:>14} {:>14} {:>8} {:>6} {:>8}",
            "capacity", "roc", "cost", "bound", "gap %", "exact", "s"
        );
        let least = graph.largest_op_bytes();
        // `low`: only the capacities at which there is much to decide.
        let all = least + (graph.total_bytes() - least) / if asked("low") { 3 } else { 1 };
        for i in 0..16u64 {
            let capacity_bytes = least + (all - least) / 16 * i;
            let request = |policy| Request {
                policy,
                objective: Objective::Both,
                epoch: epoch.clone(),
                capacity_bytes,
                order: None,
                limit: Limit { states, ..Limit::default() },
            };
            let run = |policy| match plan(&graph, &request(policy)).expect("the request is good") {
                Outcome::Feasible(plan) => plan,
                Outcome::Infeasible { .. } => unreachable!("the largest op fits"),
            };
            let start = Instant::now();
            let best = run(Policy::Optimal);
            let seconds = start.elapsed().as_secs_f64();
            check(&graph, &best, Objective::Both, &epoch, capacity_bytes).expect("the plan is valid");
            let roc = match asked("roc") {
                true => run(Policy::Roc).cost_bytes(Objective::Both).to_string(),
                false => "-".into(),
            };
            let cost = best.cost_bytes(Objective::Both);
            let gap = 100.0 * (cost - best.lower_bound_bytes) as f64 / (cost as f64).max(1.0);
            println!(
                "{capacity_bytes:>14} {roc:>14} {cost:>14} {:>14} {gap:>8.3} {:>6} {seconds:>8.3}",
                best.lower_bound_bytes, best.exact
            );
        }
    }
}
