//! Which ops run before which others in every order that the request allows, and the sets of ops between two uses.

use std::ops::Range;

use fixedbitset::FixedBitSet;

use super::problem::Problem;

/// A set of ops: ranges of places in program order, ascending and apart.
///
/// If the request gives the order, the ops between two uses are one range. In any case they are few ranges, so a sum of
/// prices over them takes a few differences of sums ([`super::prices`]).
#[derive(Clone, Debug, Default)]
pub(super) struct Span(pub Vec<Range<u32>>);

impl Span {
    /// Returns the places, in ascending order.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(|run| run.start as usize..run.end as usize)
    }
}

/// Which ops run before which others in every order.
pub(super) struct Precedence {
    /// The place of each op in program order, or in the order that the request gives.
    pub place: Vec<usize>,
    /// The op at each place.
    pub op: Vec<usize>,
    /// For each place, the places that always come before it, and those that always come after it. `None` if the
    /// request gives the order.
    partial: Option<[Vec<FixedBitSet>; 2]>,
}

impl Precedence {
    /// # Cost
    /// O(ops) if the request gives the order, else O(uses x ops), in steps of 64 ops.
    pub fn new(problem: &Problem) -> Self {
        let graph = problem.graph;
        let op: Vec<usize> = problem.program_order().iter().map(|op| op.index()).collect();
        let n = op.len();
        let mut place = vec![0; n];
        op.iter().enumerate().for_each(|(at, op)| place[*op] = at);
        if problem.order.is_some() {
            return Self { place, op, partial: None };
        }
        let mut before: Vec<FixedBitSet> = Vec::with_capacity(n);
        for &op in &op {
            let mut set = FixedBitSet::with_capacity(n);
            for earlier in graph.ops()[op].inputs.iter().filter_map(|t| graph.producer(*t)) {
                let earlier = place[earlier.index()];
                if !set.put(earlier) {
                    set.union_with(&before[earlier]);
                }
            }
            before.push(set);
        }
        let mut after = vec![FixedBitSet::with_capacity(n); n];
        for at in (0..n).rev() {
            let mut set = std::mem::take(&mut after[at]);
            for later in graph.ops()[op[at]].outputs.iter().flat_map(|t| graph.consumers(*t)) {
                let later = place[later.index()];
                if !set.put(later) {
                    set.union_with(&after[later]);
                }
            }
            after[at] = set;
        }
        Self { place, op, partial: Some([before, after]) }
    }

    /// Whether the request gives the order.
    pub fn is_total(&self) -> bool {
        self.partial.is_none()
    }

    /// Whether the first op runs before the other in every order.
    pub fn precedes(&self, first: usize, last: usize) -> bool {
        let (first, last) = (self.place[first], self.place[last]);
        match &self.partial {
            None => first < last,
            Some([before, _]) => before[last].contains(first),
        }
    }

    /// Returns the ops that always run after the op `since` (`None`: the start) and before the op `until` (`None`: the
    /// end).
    pub fn between(&self, since: Option<usize>, until: Option<usize>) -> Span {
        let n = self.op.len();
        let [since, until] = [since, until].map(|op| op.map(|op| self.place[op]));
        let places = since.map_or(0, |at| at + 1)..until.unwrap_or(n);
        let Some([before, after]) = &self.partial else {
            let all = Some(places.start as u32..places.end as u32);
            return Span(all.filter(|run| !run.is_empty()).into_iter().collect());
        };
        let sets = [since.map(|at| &after[at]), until.map(|at| &before[at])];
        Span(runs(places, sets.into_iter().flatten().collect()))
    }

    /// Returns the longest chain of these ops in which each precedes the next; of several, the one that a scan in
    /// topological order finds first.
    pub fn chain(&self, mut ops: Vec<usize>) -> Vec<usize> {
        let Some([before, _]) = &self.partial else {
            ops.sort_unstable_by_key(|op| self.place[*op]);
            return ops;
        };
        // Sorting by the number of preceding ops gives a topological order.
        ops.sort_by_cached_key(|op| (before[self.place[*op]].count_ones(..), *op));
        let mut best: Vec<(usize, Option<usize>)> = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            let link =
                (0..i).filter(|j| self.precedes(ops[*j], *op)).max_by_key(|j| (best[*j].0, std::cmp::Reverse(*j)));
            best.push((link.map_or(1, |j| best[j].0 + 1), link));
        }
        let mut at = (0..ops.len()).max_by_key(|i| (best[*i].0, std::cmp::Reverse(*i)));
        let mut chain = Vec::new();
        while let Some(i) = at {
            chain.push(ops[i]);
            at = best[i].1;
        }
        chain.reverse();
        chain
    }
}

/// Returns the ranges of `places` that are in all sets.
fn runs(places: Range<usize>, sets: Vec<&FixedBitSet>) -> Vec<Range<u32>> {
    const BITS: usize = usize::BITS as usize;
    let mut runs: Vec<Range<u32>> = Vec::new();
    if places.is_empty() {
        return runs;
    }
    let mut add = |start: usize, end: usize| match runs.last_mut() {
        Some(last) if last.end as usize == start => last.end = end as u32,
        _ => runs.push(start as u32..end as u32),
    };
    for block in places.start / BITS..=(places.end - 1) / BITS {
        let mut bits = sets.iter().fold(usize::MAX, |bits, set| bits & set.as_slice()[block]);
        let first = block * BITS;
        if first < places.start {
            bits &= usize::MAX << (places.start - first);
        }
        if places.end < first + BITS {
            bits &= usize::MAX >> (first + BITS - places.end);
        }
        let mut at = 0;
        while bits != 0 {
            let skip = bits.trailing_zeros() as usize;
            bits >>= skip;
            let run = bits.trailing_ones() as usize;
            add(first + at + skip, first + at + skip + run);
            bits = bits.checked_shr(run as u32).unwrap_or(0);
            at += skip + run;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_ones_of_all_sets() {
        let n = 200;
        let set = |keep: fn(usize) -> bool| (0..n).filter(|at| keep(*at)).collect::<FixedBitSet>();
        let mut a = set(|at| at % 7 != 0 || at < 70);
        let mut b = set(|at| at % 64 != 63 && at != 5);
        a.grow(n);
        b.grow(n);
        for places in [0..n, 3..130, 64..128, 63..65, 7..7, 199..200] {
            let found = runs(places.clone(), vec![&a, &b]);
            let listed: Vec<usize> = Span(found.clone()).places().collect();
            let wanted: Vec<usize> = places.filter(|at| a.contains(*at) && b.contains(*at)).collect();
            assert_eq!(listed, wanted);
            assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "apart");
        }
    }
}
