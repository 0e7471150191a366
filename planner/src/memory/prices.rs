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
//! tensor sizes, so `r_k` can be lowered to the greatest such sum ([`super::rooms`]).
//!
//! The same prices bound the remaining cost in any state of a running epoch; the search uses that as its estimate
//! ([`Ledger`]).
//!
//! Prices are found by subgradient steps in floating point ([`super::relaxation`]), then rounded to multiples of 2^-16.
//! The bound is then computed in integers, so that rounding errors cannot make it wrong.

use std::cell::OnceCell;

use super::lives::{Carried, End, Life, Lives};
use super::precedence::Span;
use super::problem::Problem;
use super::relaxation::Relaxation;
use super::rooms::rooms;

/// Costs have units of 2^-16 bytes.
pub(super) const SHIFT: u32 = 16;

/// Converts a size to units of cost.
pub(super) fn cost(bytes: u64) -> i128 {
    i128::from(bytes) << SHIFT
}

/// The prices of a problem. Ops are counted by their place in the order of [`Lives::order`].
pub(super) struct Prices<'p, 'g> {
    pub problem: &'p Problem<'g>,
    pub lives: &'p Lives,
    /// Bytes of the capacity that an op leaves for tensors that it does not use.
    room: Vec<u64>,
    /// For each place, the sum of the prices of all ops before it; at the end, that of all.
    sums: Vec<i128>,
    /// For each op, the tensors whose future cost it changes, once a search asks for them.
    touched: OnceCell<Vec<Vec<u32>>>,
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

/// The ops that are done. In a fixed order they are the first `first` places.
#[derive(Clone, Copy)]
struct Done<'d> {
    ops: &'d [bool],
    first: usize,
}

impl<'p, 'g> Prices<'p, 'g> {
    /// Finds prices. `upper_bytes` is the cost of some plan.
    ///
    /// # Cost
    /// O(`rounds` x ranges of all spans), and the length of all spans if there are not more than [`MOST_STAYING`].
    pub fn new(problem: &'p Problem<'g>, lives: &'p Lives, upper_bytes: u64, rounds: usize) -> Self {
        let room = rooms(problem, lives);
        let sums = vec![0; problem.ops() + 1];
        let mut prices = Self { problem, lives, room, sums, touched: OnceCell::new() };
        prices.ascend(upper_bytes, rounds);
        prices
    }

    /// Returns the sums of the prices of all ops before each place.
    pub fn sums(&self) -> &[i128] {
        &self.sums
    }

    /// Returns the ledger before the first op.
    pub fn ledger(&self) -> Ledger {
        let done = vec![false; self.problem.ops()];
        let done = Done { ops: &done, first: 0 };
        let futures: Vec<[Future; 3]> = (0..self.problem.tensors()).map(|t| self.futures(t, done)).collect();
        let rent: i128 = (0..self.room.len()).map(|at| self.price(at) * i128::from(self.room[at])).sum();
        let base = futures.iter().map(|f| f[0][0]).sum::<i128>() - rent;
        Ledger { futures, base }
    }

    /// Returns the ledger after one more op, which `done` already includes.
    pub fn after(&self, ledger: Ledger, op: usize, done: &[bool]) -> Ledger {
        let mut next = ledger;
        let at = self.lives.order.place[op];
        next.base += self.price(at) * i128::from(self.room[at]);
        let done = Done { ops: done, first: at + 1 };
        for &t in &self.touched.get_or_init(|| touched(self.problem, self.lives))[op] {
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

    fn price(&self, place: usize) -> i128 {
        self.sums[place + 1] - self.sums[place]
    }

    fn futures(&self, t: usize, done: Done<'_>) -> [Future; 3] {
        let life = &self.lives.lives[t];
        let mut futures = [[0; 3]; 3];
        futures[0] = self.future(t, End::Away, done);
        if life.lasts {
            futures[1] = self.future(t, End::Clean, done);
            futures[2] = self.future(t, End::Dirty, done);
        }
        futures
    }

    fn rent(&self, life: &Life, span: &Span, done: Done<'_>) -> i128 {
        let order = &self.lives.order;
        let between = |start: usize, end: usize| self.sums[end.max(start)] - self.sums[start];
        let rent: i128 = if done.first == 0 || order.is_total() {
            span.0.iter().map(|run| between((run.start as usize).max(done.first), run.end as usize)).sum()
        } else {
            span.places().filter(|at| !done.ops[order.op[*at]]).map(|at| self.price(at)).sum()
        };
        i128::from(life.room) * rent
    }

    fn future(&self, t: usize, end: End, done: Done<'_>) -> Future {
        let life = &self.lives.lives[t];
        let copy = cost(life.bytes);
        let store = if self.problem.stores_count { copy } else { 0 };
        let first = life.chain.iter().take_while(|op| done.ops[**op]).count();
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
            || self.problem.graph.consumers(crate::tasks::TensorId(t as u32)).iter().any(|op| !done.ops[op.index()]);
        let absent = if is_read || stays_at_end { copy + after_first } else { 0 };
        let clean = cheapest;
        let dirty = if life.lasts && end != End::Dirty { store + clean } else { all_stay.min(store + clean) };
        match life.producer {
            Some(op) if !done.ops[op] && life.publish => [store + clean; 3],
            Some(op) if !done.ops[op] => [if self.problem.stores_count { dirty } else { clean }; 3],
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
        let mut relaxation = Relaxation::new(self.problem, self.lives, &self.room);
        for _ in 0..rounds {
            let value = relaxation.solve(&price);
            if value > best.0 + 1e-7 * upper.abs() {
                stalled = 0;
                best.0 = value;
                best.1.clone_from(&price);
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
            let mut norm = 0.0;
            for (at, d) in direction.iter_mut().enumerate() {
                let over = relaxation.kept[at] - self.room[at] as f64;
                *d = if price[at] == 0.0 && over < 0.0 { 0.0 } else { over + 0.5 * *d };
                norm += *d * *d;
            }
            if norm == 0.0 {
                break;
            }
            let step = pace * gap / norm;
            price.iter_mut().zip(&direction).for_each(|(p, d)| *p = (*p + step * d).clamp(0.0, 4.0 * n as f64));
        }
        let scale = f64::from(1u32 << SHIFT);
        for (at, price) in best.1.iter().enumerate() {
            self.sums[at + 1] = self.sums[at] + (price * scale).round() as i128;
        }
        if self.bound() < 0 {
            self.sums.fill(0);
        }
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

/// Returns, for each op, the tensors whose future cost it changes.
fn touched(problem: &Problem, lives: &Lives) -> Vec<Vec<u32>> {
    let mut touched = vec![Vec::new(); problem.ops()];
    for (op, touched) in touched.iter_mut().enumerate() {
        touched.extend(problem.need[op].iter().map(|t| *t as u32));
    }
    for (t, life) in lives.lives.iter().enumerate().filter(|(_, life)| life.room > 0) {
        let places = life.spans.iter().chain([&life.tail]).flat_map(Span::places);
        places.for_each(|at| touched[lives.order.op[at]].push(t as u32));
    }
    for list in &mut touched {
        list.sort_unstable();
        list.dedup();
    }
    touched
}
