//! Prices of memory, and the lower bound that they prove.
//!
//! Each op `k` has a price `p_k >= 0` per byte that stays on the device while the op runs, beside the op's own tensors.
//! The room of the op, `r_k`, is the capacity minus the op's own bytes. A plan pays for its copies, and at most `sum
//! p_k r_k` for room. So its cost is at least
//!
//! `L(p) = sum over values of the least (copies + price of staying) - sum over ops of p_k r_k`.
//!
//! Here each value chooses by itself, for each interval of its [`Life`], between staying and a load. It pays once for a
//! store if it has no host copy and does not stay throughout. The intervals are the same in every order that the
//! request allows, so the bound holds for all of them. It is the Lagrangian relaxation of the capacities. With the best
//! prices it equals the linear program in which a fraction of a tensor may stay. What stays during an op is a sum of
//! tensor sizes, so `r_k` can be lowered to the greatest such sum.
//!
//! The same prices bound the remaining cost in any state of a running epoch; the search uses that as its estimate
//! ([`Ledger`]).
//!
//! Prices are found by subgradient steps in floating point, then rounded to multiples of 2^-16. The bound is then
//! computed in integers, so that rounding errors cannot make it wrong.

use super::lives::{Carried, End, Life, Lives};
use super::problem::Problem;

/// Costs have units of 2^-16 bytes.
pub(super) const SHIFT: u32 = 16;

/// Converts a size to units of cost.
pub(super) fn cost(bytes: u64) -> i128 {
    i128::from(bytes) << SHIFT
}

/// The prices of a problem.
pub(super) struct Prices<'p, 'g> {
    pub problem: &'p Problem<'g>,
    pub lives: &'p Lives,
    /// Bytes of the capacity that an op leaves for tensors that it does not use.
    room: Vec<u64>,
    price: Vec<i128>,
    /// For each op, the tensors whose future cost it changes.
    pub touched: Vec<Vec<u32>>,
}

/// The remaining cost of a value by its state: absent (or not made yet), clean, dirty.
pub(super) type Future = [i128; 3];

/// The remaining costs of all values after some ops are done. A value that the next epoch inherits has three, one for
/// each [`End`].
#[derive(Clone, Default)]
pub(super) struct Ledger {
    futures: Vec<[Future; 3]>,
    /// Remaining cost of all values together, if nothing is on the device and nothing stays at the end, minus the
    /// prices of the remaining room.
    pub base: i128,
}

impl Ledger {
    /// Returns the remaining cost of a value in this state, minus its share of `base`.
    pub fn beyond_base(&self, tensor: usize, end: End, status: usize) -> i128 {
        self.futures[tensor][end as usize][status] - self.futures[tensor][0][0]
    }
}

impl<'p, 'g> Prices<'p, 'g> {
    /// Finds prices. `upper_bytes` is the cost of some plan.
    ///
    /// # Cost
    /// O(`rounds` x length of all spans).
    pub fn new(problem: &'p Problem<'g>, lives: &'p Lives, upper_bytes: u64, rounds: usize) -> Self {
        let mut touched = vec![Vec::new(); problem.ops()];
        for (op, touched) in touched.iter_mut().enumerate() {
            touched.extend(problem.need[op].iter().map(|t| *t as u32));
        }
        for (t, life) in lives.lives.iter().enumerate().filter(|(_, life)| life.room > 0) {
            life.spans.iter().chain([&life.tail]).flatten().for_each(|op| touched[*op as usize].push(t as u32));
        }
        for list in &mut touched {
            list.sort_unstable();
            list.dedup();
        }
        // For each op the sizes of what may stay while it runs.
        let mut staying = vec![Vec::new(); problem.ops()];
        for life in lives.lives.iter().filter(|life| life.room > 0) {
            let intervals = life.spans.iter().chain(life.lasts.then_some(&life.tail));
            intervals.flatten().for_each(|op| staying[*op as usize].push(life.room));
        }
        let room = staying.into_iter().enumerate().map(|(op, sizes)| room(problem, op, sizes)).collect();
        let mut prices = Self { problem, lives, room, price: vec![0; problem.ops()], touched };
        prices.ascend(upper_bytes, rounds);
        prices
    }

    /// Returns the ledger before the first op.
    pub fn ledger(&self) -> Ledger {
        let done = vec![false; self.problem.ops()];
        let futures: Vec<[Future; 3]> = (0..self.problem.tensors()).map(|t| self.futures(t, &done)).collect();
        let rent: i128 = self.price.iter().zip(&self.room).map(|(p, r)| p * i128::from(*r)).sum();
        let base = futures.iter().map(|f| f[0][0]).sum::<i128>() - rent;
        Ledger { futures, base }
    }

    /// Returns the ledger after one more op, which `done` already includes.
    pub fn after(&self, ledger: &Ledger, op: usize, done: &[bool]) -> Ledger {
        let mut next = ledger.clone();
        next.base += self.price[op] * i128::from(self.room[op]);
        for &t in &self.touched[op] {
            let t = t as usize;
            next.base -= next.futures[t][0][0];
            next.futures[t] = self.futures(t, done);
            next.base += next.futures[t][0][0];
        }
        next
    }

    /// Returns the lower bound on the cost of any plan, in units of cost.
    pub fn bound(&self) -> i128 {
        let ledger = self.ledger();
        let fixed: i128 = self.lives.fixed.iter().map(|c| inherit(&ledger, c, c.options[0])).sum();
        let open: i128 = self.lives.open.iter().map(|c| least(&ledger, c)).sum();
        ledger.base + fixed + open
    }

    fn futures(&self, t: usize, done: &[bool]) -> [Future; 3] {
        let life = &self.lives.lives[t];
        let mut futures = [[0; 3]; 3];
        futures[0] = self.future(t, End::Away, done);
        if life.lasts {
            futures[1] = self.future(t, End::Clean, done);
            futures[2] = self.future(t, End::Dirty, done);
        }
        futures
    }

    fn rent(&self, life: &Life, span: &[u32], done: &[bool]) -> i128 {
        let open = span.iter().map(|op| *op as usize).filter(|op| !done[*op]);
        i128::from(life.room) * open.map(|op| self.price[op]).sum::<i128>()
    }

    fn future(&self, t: usize, end: End, done: &[bool]) -> Future {
        let life = &self.lives.lives[t];
        let copy = cost(life.bytes);
        let store = if self.problem.stores_count { copy } else { 0 };
        let first = life.chain.iter().take_while(|op| done[**op]).count();
        let stays_at_end = life.lasts && end != End::Away;
        let (mut all_stay, mut cheapest, mut after_first) = (0, 0, 0);
        let tail = stays_at_end.then_some(&life.tail);
        for (i, span) in life.spans[first..].iter().chain(tail).enumerate() {
            let rent = self.rent(life, span, done);
            all_stay += rent;
            cheapest += rent.min(copy);
            after_first += if i == 0 { 0 } else { rent.min(copy) };
        }
        let is_read = first < life.chain.len()
            || self.problem.graph.consumers(crate::tasks::TensorId(t as u32)).iter().any(|op| !done[op.index()]);
        let absent = if is_read || stays_at_end { copy + after_first } else { 0 };
        let clean = cheapest;
        let dirty = if life.lasts && end != End::Dirty { store + clean } else { all_stay.min(store + clean) };
        match life.producer {
            Some(op) if !done[op] && life.publish => [store + clean; 3],
            Some(op) if !done[op] => [if self.problem.stores_count { dirty } else { clean }; 3],
            _ => [absent, clean, dirty],
        }
    }

    /// Finds prices by subgradient ascent with Polyak's step sizes along deflected directions. Keeps the best prices
    /// found.
    fn ascend(&mut self, upper_bytes: u64, rounds: usize) {
        let n = self.problem.ops();
        let upper = upper_bytes as f64;
        let mut price = vec![0.0; n];
        let mut best = (f64::NEG_INFINITY, price.clone());
        let mut direction = vec![0.0; n];
        let (mut pace, mut stalled) = (1.0, 0);
        for _ in 0..rounds {
            let (value, kept) = self.relaxed(&price);
            if value > best.0 + 1e-7 * upper.abs() {
                (best, stalled) = ((value, price.clone()), 0);
            } else {
                stalled += 1;
                if stalled == 12 {
                    (pace, stalled) = (pace / 2.0, 0);
                    price.clone_from(&best.1);
                    direction.fill(0.0);
                    if pace < 1e-4 {
                        break;
                    }
                    continue;
                }
            }
            let gap = upper - value;
            if gap <= 0.5 {
                break;
            }
            for (op, d) in direction.iter_mut().enumerate() {
                let over = kept[op] - self.room[op] as f64;
                *d = if price[op] == 0.0 && over < 0.0 { 0.0 } else { over + 0.5 * *d };
            }
            let norm: f64 = direction.iter().map(|d| d * d).sum();
            if norm == 0.0 {
                break;
            }
            let step = pace * gap / norm;
            price.iter_mut().zip(&direction).for_each(|(p, d)| *p = (*p + step * d).clamp(0.0, 4.0 * n as f64));
        }
        let scale = f64::from(1u32 << SHIFT);
        self.price = best.1.iter().map(|p| (p * scale).round() as i128).collect();
        if self.bound() < 0 {
            self.price.fill(0);
        }
    }

    /// Returns the value of the relaxation at these prices, and how many bytes stay at each op.
    fn relaxed(&self, price: &[f64]) -> (f64, Vec<f64>) {
        let mut kept = vec![0.0; price.len()];
        let mut value = -price.iter().zip(&self.room).map(|(p, r)| p * *r as f64).sum::<f64>();
        let mut settled = vec![false; self.problem.tensors()];
        let lives = &self.lives.lives;
        for carried in self.lives.open.iter().chain(&self.lives.fixed) {
            let choice = |end: &End| {
                let status = *end as usize;
                let before = choose(&lives[carried.before], price, status, *end, self.problem.stores_count);
                if carried.before == carried.after {
                    return (before.0, vec![(carried.before, before.1)]);
                }
                let after = choose(&lives[carried.after], price, 0, *end, self.problem.stores_count);
                (before.0 + after.0, vec![(carried.before, before.1), (carried.after, after.1)])
            };
            let cheapest = carried.options.iter().map(choice).min_by(|a, b| a.0.total_cmp(&b.0));
            let (cost, stays) = cheapest.expect("a constant has an option");
            value += cost;
            for (t, stays) in stays {
                settled[t] = true;
                stay(&lives[t], &stays, &mut kept);
            }
        }
        for (_, life) in lives.iter().enumerate().filter(|(t, life)| !settled[*t] && life.bytes > 0) {
            let (cost, stays) = choose(life, price, 0, End::Away, self.problem.stores_count);
            value += cost;
            stay(life, &stays, &mut kept);
        }
        (value, kept)
    }
}

/// Returns what the constant and its next value add to the base if the constant is inherited in state `end`.
pub(super) fn inherit(ledger: &Ledger, carried: &Carried, end: End) -> i128 {
    let status = end as usize;
    if carried.before == carried.after {
        return ledger.beyond_base(carried.before, end, status);
    }
    ledger.beyond_base(carried.before, End::Away, status) + ledger.beyond_base(carried.after, end, 0)
}

/// Returns the least value of [`inherit`] over all options.
pub(super) fn least(ledger: &Ledger, carried: &Carried) -> i128 {
    carried.options.iter().map(|end| inherit(ledger, carried, *end)).min().expect("a constant has an option")
}

/// Returns the cheapest future cost of a value at the start of the epoch, and whether it stays in each of its
/// intervals, the tail last.
fn choose(life: &Life, price: &[f64], status: usize, end: End, stores_count: bool) -> (f64, Vec<bool>) {
    let copy = life.bytes as f64;
    let store = if stores_count { copy } else { 0.0 };
    let tail = (life.lasts && end != End::Away).then_some(&life.tail);
    let rents: Vec<f64> = life
        .spans
        .iter()
        .chain(tail)
        .map(|span| life.room as f64 * span.iter().map(|op| price[*op as usize]).sum::<f64>())
        .collect();
    let all: f64 = rents.iter().sum();
    let mut stays: Vec<bool> = rents.iter().map(|rent| *rent < copy).collect();
    let cheapest: f64 = rents.iter().map(|rent| rent.min(copy)).sum();
    let must_store = life.lasts && end != End::Dirty;
    match (life.producer, status) {
        (None, 0) => {
            if let Some(first) = stays.first_mut() {
                let saved = rents[0].min(copy);
                *first = false;
                return (cheapest - saved + copy, stays);
            }
            (0.0, stays)
        }
        (None, 1) => (cheapest, stays),
        (Some(_), _) if life.publish => (store + cheapest, stays),
        (Some(_), _) if !stores_count => (cheapest, stays),
        _ if must_store => (store + cheapest, stays),
        _ if all < store + cheapest => (all, vec![true; rents.len()]),
        _ => (store + cheapest, stays),
    }
}

fn stay(life: &Life, stays: &[bool], kept: &mut [f64]) {
    for (span, _) in life.spans.iter().chain([&life.tail]).zip(stays).filter(|(_, stays)| **stays) {
        span.iter().for_each(|op| kept[*op as usize] += life.room as f64);
    }
}

/// Most distinct sums that are tracked.
const SUMS: usize = 512;

/// Returns the greatest sum of sizes that can stay while an op runs. Large tensors stay whole or not at all; the
/// remaining small ones may stay in part.
fn room(problem: &Problem, op: usize, mut sizes: Vec<u64>) -> u64 {
    let room = problem.capacity_bytes - problem.graph.op_bytes(crate::tasks::TaskId(op as u32));
    let sum = |sizes: &[u64]| sizes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    if sum(&sizes) <= room {
        return sum(&sizes);
    }
    sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let mut sums = vec![0u64];
    let mut taken = 0;
    while taken < sizes.len() && sums.len() <= SUMS {
        let more: Vec<u64> =
            sums.iter().map(|sum| sum.saturating_add(sizes[taken])).filter(|sum| *sum <= room).collect();
        sums = merged(&sums, &more);
        taken += 1;
    }
    let rest = sum(&sizes[taken..]);
    sums.iter().map(|sum| sum.saturating_add(rest).min(room)).max().unwrap_or(room)
}

/// Merges two ascending lists; each number occurs once.
fn merged(a: &[u64], b: &[u64]) -> Vec<u64> {
    let mut all = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        all.push(a[i].min(b[j]));
        (i, j) = (i + usize::from(a[i] <= b[j]), j + usize::from(b[j] <= a[i]));
    }
    all.extend_from_slice(&a[i..]);
    all.extend_from_slice(&b[j..]);
    all
}
