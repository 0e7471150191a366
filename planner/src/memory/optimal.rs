//! The policy `optimal`: minimises bytes. It starts from the best plan of the other policies, improves it with beams of
//! growing width, and then tries to prove that nothing is cheaper.

use super::cache::{self, Clock, Rule};
use super::lives::Lives;
use super::prices::Prices;
use super::problem::Problem;
use super::schedule::{self, Schedule};
use super::search::{Found, Search, bytes_of};
use super::{Limit, Objective, Plan, Policy, ROC_SHARE, none, repair, roc};

/// Most rounds of the ascent of prices.
const ROUNDS: usize = 400;

/// The beams in order: their width, and the number of eviction sets that they try per op.
const BEAMS: [(usize, usize); 3] = [(4, 2), (32, 4), (256, 8)];

/// The beam that runs if best-first search did not finish.
const WIDE: (usize, usize) = (2048, 16);

/// How small tensors must be to be left out of the search: together at most the capacity divided by this. The values
/// are tried in order, until a proof is found.
const SHARES: [u64; 3] = [100, 1_000, 20_000];

/// Number of intervals and ops that an ascent of prices may visit in all its rounds.
const INTERVAL_STEPS: usize = 20_000_000;

/// With more pairs of an op and a tensor than this, nothing is searched.
const MOST_PAIRS: usize = 4_000_000;

/// With fewer states per op of a large graph than this, only the cache rules that know the future are tried, and nothing
/// is searched or proven.
const STATES_AN_OP: usize = 10;

/// So many states are enough for any graph.
const ENOUGH_STATES: usize = 100_000;

/// Returns a lower bound on the cost of any plan, from prices alone: see [`Plan::lower_bound_bytes`]. `upper_bytes` is
/// the cost of some plan.
pub(super) fn lower_bound_bytes(problem: &Problem, upper_bytes: u64) -> u64 {
    if problem.order.is_none() && problem.ops() > Limit::LARGE_OPS {
        return lower_bound_bytes(&in_program_order(problem), upper_bytes);
    }
    let lives = Lives::new(problem);
    bytes_of(Prices::new(problem, &lives, upper_bytes, rounds(&lives)).bound())
}

/// Returns the best plan found within `states` states, with what is proven about it.
///
/// The plan is never worse than that of any other policy, unless a large graph is planned with few states
/// ([`STATES_AN_OP`]). Its lower bound is that of the prices, raised to the least
/// estimate of the states that were not expanded; `exact` says that the cost equals the bound. With more than
/// [`Limit::SMALL_OPS`] ops, small tensors are left out of the search ([`Problem::without_small`]), and evicted
/// afterwards where they do not fit ([`repair`]).
pub(super) fn plan(problem: &Problem, objective: Objective, states: usize) -> Plan {
    let mut best = Best { problem, objective, plan: None };
    let clock = Clock::of_ops(problem);
    for rule in [Rule::FarthestNext, Rule::FarthestNextClean] {
        best.offer_plan(cache::plan(problem, rule, &clock));
    }
    // A request with so few states needs an answer at once, without a proof.
    let is_large = problem.ops() > Limit::LARGE_OPS;
    if is_large && states < ENOUGH_STATES.min(STATES_AN_OP * problem.ops()) {
        return best.finish(0);
    }
    best.offer_plan(schedule::plan_changes(problem, Policy::None, &none::changes(problem)));
    best.offer_plan(cache::plan(problem, Rule::LeastRecent, &clock));
    if is_large {
        return large(best, states);
    }
    best.offer(&roc::schedule(problem, states / ROC_SHARE).0);
    let mut lower = 0;
    if problem.ops() <= Limit::SMALL_OPS {
        lower = search(problem, problem, &mut best, states, false).0;
    }
    for (i, share) in SHARES.into_iter().enumerate() {
        if lower >= best.cost() || problem.ops() <= Limit::SMALL_OPS {
            break;
        }
        let relaxed = problem.without_small(share);
        let states = if i == 0 { states / 4 * 3 } else { states / 8 };
        let (proven, is_solved) = search(problem, &relaxed, &mut best, states, i == 0);
        lower = lower.max(proven);
        let reserve: u64 = (0..problem.tensors()).map(|t| problem.bytes(t) - relaxed.room[t]).sum();
        // A plan with room reserved for all small tensors needs no repair.
        let mut reserved = Problem { capacity_bytes: problem.capacity_bytes - reserve, ..relaxed };
        reserved.extra.fill(0);
        let fits = |op: &Vec<usize>| op.iter().map(|t| reserved.room[*t]).sum::<u64>() <= reserved.capacity_bytes;
        if lower < best.cost() && reserve > 0 && reserved.need.iter().all(fits) {
            search(problem, &reserved, &mut best, states / 8, false);
        }
        if lower < best.cost() && problem.order.is_none() {
            in_order(problem, &mut best, states / 8);
        }
        // With fewer tensors left out, the problem is only harder.
        if !is_solved {
            break;
        }
    }
    best.finish(lower)
}

/// Plans a large graph: in program order, with cache rules, once by ops and once by prices, and then with beams. The
/// lower bound is that of the prices.
fn large(mut best: Best<'_, '_>, states: usize) -> Plan {
    let problem = best.problem;
    let ordered = in_program_order(problem);
    let lives = Lives::new(&ordered);
    let prices = Prices::new(&ordered, &lives, best.cost(), rounds(&lives));
    let clock = Clock::of_prices(prices.sums());
    for rule in [Rule::FarthestNext, Rule::FarthestNextClean] {
        best.offer_plan(cache::plan(problem, rule, &clock));
    }
    let lower = bytes_of(prices.bound());
    if lower < best.cost() && problem.ops() * problem.tensors() <= MOST_PAIRS {
        let share = problem.tensors().div_ceil(Limit::LARGE_OPS);
        beams(&prices, &mut best, states / share);
    }
    best.finish(lower)
}

/// Returns the problem with its program order, in which intervals are ranges and prices are sharper.
fn in_program_order<'g>(problem: &Problem<'g>) -> Problem<'g> {
    Problem { order: Some(problem.program_order()), ..problem.clone() }
}

fn rounds(lives: &Lives) -> usize {
    let spans = lives.lives.iter().flat_map(|life| life.spans.iter().chain([&life.tail]));
    let steps = lives.order.op.len() + spans.map(|span| span.0.len()).sum::<usize>();
    (INTERVAL_STEPS / steps.max(1)).clamp(8, ROUNDS)
}

/// Searches the relaxed problem and offers what it finds to `best`. Returns a lower bound, and whether the relaxed
/// problem has no plan cheaper than the best known cost.
fn search(problem: &Problem, relaxed: &Problem, best: &mut Best, states: usize, wide: bool) -> (u64, bool) {
    let small = problem.ops() <= Limit::SMALL_OPS;
    let lives = Lives::new(relaxed);
    let mut upper = best.cost();
    let prices = Prices::new(relaxed, &lives, upper, rounds(&lives));
    let mut lower = bytes_of(prices.bound());
    let mut left = states;
    let mut take = |found: Found, lower: &mut u64, upper: &mut u64| {
        *lower = (*lower).max(found.lower.map_or(*upper, bytes_of).min(*upper));
        if let (Some(schedule), Some(cost)) = (found.schedule, found.cost) {
            *upper = (*upper).min(bytes_of(cost));
            best.offer(&repair::fit(problem, relaxed, schedule));
            *upper = (*upper).min(best.cost());
        }
        *lower = (*lower).min(*upper);
        found.states
    };
    for (width, most) in BEAMS {
        if lower >= upper {
            return (lower, true);
        }
        // For a graph that is meant to be planned exactly, most states are left to the search that proves.
        let budget = if small { left.min(20_000) } else { left };
        let found = Search::new(relaxed, &lives, &prices, upper).beam(width, most, budget);
        left = left.saturating_sub(take(found, &mut lower, &mut upper));
    }
    if lower < upper {
        let found = Search::new(relaxed, &lives, &prices, upper).best_first(left);
        left = left.saturating_sub(take(found, &mut lower, &mut upper));
    }
    if lower < upper && wide {
        let found = Search::new(relaxed, &lives, &prices, upper).beam(WIDE.0, WIDE.1, left + states / 8);
        take(found, &mut lower, &mut upper);
    }
    (lower, lower >= upper)
}

/// Improves the best plan within its own order, where prices are sharper and no tensor is left out.
fn in_order(problem: &Problem, best: &mut Best, states: usize) {
    let order = best.plan.as_ref().map(Plan::order);
    let ordered = Problem { order, ..problem.clone() };
    let lives = Lives::new(&ordered);
    beams(&Prices::new(&ordered, &lives, best.cost(), rounds(&lives)), best, states);
}

/// Improves the best plan with beams, in the order of the prices' problem.
fn beams(prices: &Prices<'_, '_>, best: &mut Best, states: usize) {
    let mut left = states;
    for (width, most) in BEAMS {
        if bytes_of(prices.bound()) >= best.cost() {
            break;
        }
        let found = Search::new(prices.problem, prices.lives, prices, best.cost()).beam(width, most, left);
        left = left.saturating_sub(found.states);
        if let Some(schedule) = &found.schedule {
            best.offer(schedule);
        }
    }
}

struct Best<'p, 'g> {
    problem: &'p Problem<'g>,
    objective: Objective,
    plan: Option<Plan>,
}

impl Best<'_, '_> {
    fn offer(&mut self, schedule: &Schedule) {
        self.offer_plan(schedule::plan(self.problem, Policy::Optimal, schedule));
    }

    fn offer_plan(&mut self, plan: Plan) {
        if self.plan.is_none() || plan.cost_bytes(self.objective) < self.cost() {
            self.plan = Some(plan);
        }
    }

    /// Returns the best plan, with what is proven about it.
    fn finish(self, lower: u64) -> Plan {
        let cost = self.cost();
        let plan = self.plan.expect("a cache rule has a plan whenever there is one");
        Plan { policy: Policy::Optimal, exact: lower >= cost, lower_bound_bytes: lower.min(cost), ..plan }
    }

    fn cost(&self) -> u64 {
        self.plan.as_ref().map_or(u64::MAX, |plan| plan.cost_bytes(self.objective))
    }
}
