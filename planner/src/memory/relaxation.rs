//! The relaxed problem of [`super::prices`] in floating point: what each value chooses at given prices.

use std::ops::Range;

use super::lives::{Carried, End, Life, Lives};
use super::problem::Problem;

/// The intervals of all values in one list: for each value, the intervals before its readers, then its tail.
struct Intervals {
    runs: Vec<Range<u32>>,
    /// For each interval, its first run; then the number of runs.
    first_run: Vec<usize>,
    /// For each value, its first interval.
    first: Vec<usize>,
}

impl Intervals {
    fn new(lives: &[Life]) -> Self {
        let mut all = Self { runs: Vec::new(), first_run: vec![0], first: Vec::with_capacity(lives.len()) };
        for life in lives {
            all.first.push(all.first_run.len() - 1);
            for span in life.spans.iter().chain([&life.tail]) {
                all.runs.extend_from_slice(&span.0);
                all.first_run.push(all.runs.len());
            }
        }
        all
    }

    fn runs(&self, interval: usize) -> &[Range<u32>] {
        &self.runs[self.first_run[interval]..self.first_run[interval + 1]]
    }
}

/// The relaxed problem in floating point.
pub(super) struct Relaxation<'a, 'g> {
    problem: &'a Problem<'g>,
    lives: &'a Lives,
    /// For each place, the bytes that its op leaves for other tensors.
    room: &'a [u64],
    intervals: Intervals,
    /// How many bytes stay at each place, by the last call of [`Relaxation::solve`].
    pub kept: Vec<f64>,
    /// For each place, the sum of the prices before it.
    sums: Vec<f64>,
    /// Values that the next epoch inherits. They are settled with their constants.
    carried: Vec<bool>,
    /// The rents of a value's intervals, the tail last.
    rents: Vec<f64>,
}

impl<'a, 'g> Relaxation<'a, 'g> {
    pub fn new(problem: &'a Problem<'g>, lives: &'a Lives, room: &'a [u64]) -> Self {
        let mut carried = vec![false; problem.tensors()];
        for constant in lives.open.iter().chain(&lives.fixed) {
            (carried[constant.before], carried[constant.after]) = (true, true);
        }
        let places = problem.ops() + 1;
        let (kept, sums) = (vec![0.0; places], vec![0.0; places]);
        Self { problem, lives, room, intervals: Intervals::new(&lives.lives), kept, sums, carried, rents: Vec::new() }
    }

    /// Returns the value of the relaxation at these prices, by place, and sets `kept`.
    ///
    /// # Cost
    /// O(ranges of all intervals).
    pub fn solve(&mut self, price: &[f64]) -> f64 {
        let lives = self.lives;
        self.kept.fill(0.0);
        price.iter().enumerate().for_each(|(at, price)| self.sums[at + 1] = self.sums[at] + price);
        let mut value = -price.iter().zip(self.room).map(|(p, r)| p * *r as f64).sum::<f64>();
        for constant in lives.open.iter().chain(&lives.fixed) {
            let mut cheapest = (f64::INFINITY, End::Away);
            for &end in &constant.options {
                let cost = self.settle_constant(constant, end, false);
                if cost < cheapest.0 {
                    cheapest = (cost, end);
                }
            }
            value += self.settle_constant(constant, cheapest.1, true);
        }
        for (t, life) in lives.lives.iter().enumerate() {
            if !self.carried[t] && life.bytes > 0 {
                value += self.settle(t, 0, End::Away, true);
            }
        }
        // So far, each interval that stays was noted at its ends.
        let mut held = 0.0;
        for kept in &mut self.kept {
            held += *kept;
            *kept = held;
        }
        value
    }

    fn settle_constant(&mut self, constant: &Carried, end: End, stays: bool) -> f64 {
        let mut cost = self.settle(constant.before, end as usize, end, stays);
        if constant.before != constant.after {
            cost += self.settle(constant.after, 0, end, stays);
        }
        cost
    }

    /// Returns the cheapest future cost of a value at the start of the epoch. With `stays`, also notes the intervals in
    /// which it stays.
    fn settle(&mut self, t: usize, status: usize, end: End, stays: bool) -> f64 {
        let life = &self.lives.lives[t];
        let (copy, room) = (life.bytes as f64, life.room as f64);
        let stores_count = self.problem.stores_count;
        let store = if stores_count { copy } else { 0.0 };
        let first = self.intervals.first[t];
        let has_tail = life.lasts && end != End::Away;
        let intervals = first..first + life.spans.len() + usize::from(has_tail);
        self.rents.clear();
        let (mut all, mut cheapest) = (0.0, 0.0);
        for interval in intervals.clone() {
            let runs = self.intervals.runs(interval).iter();
            let prices = runs.map(|run| self.sums[run.end as usize] - self.sums[run.start as usize]);
            let rent = room * prices.sum::<f64>();
            self.rents.push(rent);
            all += rent;
            cheapest += rent.min(copy);
        }
        let must_store = life.lasts && end != End::Dirty;
        let (mut skipped, mut always) = (0, false);
        let cost = match (life.producer, status) {
            (None, 0) if self.rents.is_empty() => 0.0,
            (None, 0) => {
                skipped = 1;
                cheapest - self.rents[0].min(copy) + copy
            }
            (None, 1) => cheapest,
            (Some(_), _) if life.publish => store + cheapest,
            (Some(_), _) if !stores_count => cheapest,
            _ if must_store => store + cheapest,
            _ if all < store + cheapest => {
                always = true;
                all
            }
            _ => store + cheapest,
        };
        if stays {
            for (rent, interval) in self.rents.iter().zip(intervals).skip(skipped) {
                if always || *rent < copy {
                    for run in self.intervals.runs(interval) {
                        self.kept[run.start as usize] += room;
                        self.kept[run.end as usize] -= room;
                    }
                }
            }
        }
        cost
    }
}
