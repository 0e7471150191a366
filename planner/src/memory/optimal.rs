//! The fewest bytes: from the best of the other policies, through beams of growing width, to a proof.

use super::lives::Lives;
use super::prices::Prices;
use super::problem::Problem;
use super::schedule::{self, Schedule};
use super::search::{Search, bytes_of};
use super::{Limit, Objective, Plan, Policy, lru, none, roc};

/// Rounds of the ascent of prices.
const ROUNDS: usize = 400;

/// Widths of the beams, one after the other, and how many evictions an op they try.
const BEAMS: [(usize, usize); 4] = [(4, 2), (32, 4), (256, 8), (2048, 16)];

/// A lower bound on what any plan costs, by prices alone. `upper_bytes` is what some plan costs.
pub(super) fn lower_bound_bytes(problem: &Problem, upper_bytes: u64) -> u64 {
    let lives = Lives::new(problem);
    bytes_of(Prices::new(problem, &lives, upper_bytes, ROUNDS).bound())
}

/// The best plan that is found within `states` states, and what is proven of it.
///
/// The plan is never worse than that of any other policy. Its bound is the prices', raised to the least estimate of the states
/// that were not expanded; `exact` says that the two meet.
pub(super) fn plan(problem: &Problem, objective: Objective, states: usize) -> Plan {
    let mut best = Best { problem, objective, plan: None };
    best.offer(&none::schedule(problem));
    best.offer(&lru::schedule(problem));
    best.offer(&roc::schedule(problem, states / 8).0);
    let lives = Lives::new(problem);
    let prices = Prices::new(problem, &lives, best.cost(), ROUNDS);
    let mut lower = bytes_of(prices.bound());
    let mut left = states;
    let small = problem.ops() <= Limit::SMALL_OPS;
    for (width, most) in BEAMS {
        if lower >= best.cost() || left < states / 2 {
            break;
        }
        // A graph that is to be planned exactly is left to the search that proves.
        let budget = if small { left.min(20_000) } else { left };
        let upper = best.cost();
        let found = Search::new(problem, &lives, &prices, upper).beam(width, most, budget);
        left = left.saturating_sub(found.states);
        if let Some(schedule) = &found.schedule {
            best.offer(schedule);
        }
        lower = lower.max(found.lower.map_or(upper, bytes_of).min(best.cost()));
    }
    if lower < best.cost() {
        let upper = best.cost();
        let found = Search::new(problem, &lives, &prices, upper).best_first(left);
        if let Some(schedule) = &found.schedule {
            best.offer(schedule);
        }
        lower = lower.max(found.lower.map_or(upper, bytes_of).min(best.cost()));
    }
    let cost = best.cost();
    let plan = best.plan.expect("`none` has a plan whenever there is one");
    Plan { policy: Policy::Optimal, exact: lower >= cost, lower_bound_bytes: lower.min(cost), ..plan }
}

struct Best<'p, 'g> {
    problem: &'p Problem<'g>,
    objective: Objective,
    plan: Option<Plan>,
}

impl Best<'_, '_> {
    fn offer(&mut self, schedule: &Schedule) {
        let plan = schedule::plan(self.problem, Policy::Optimal, schedule);
        if self.plan.is_none() || plan.cost_bytes(self.objective) < self.cost() {
            self.plan = Some(plan);
        }
    }

    fn cost(&self) -> u64 {
        self.plan.as_ref().map_or(u64::MAX, |plan| plan.cost_bytes(self.objective))
    }
}
