//! Enumerates the sets of tensors that can be evicted to make room, promising ones first.

/// A tensor that can be evicted.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub tensor: usize,
    /// Bytes that its eviction frees.
    pub bytes: u64,
    /// Lower bound on the cost of its eviction.
    pub penalty: i128,
    /// Tensors that must be evicted too if this one is.
    pub requires: Vec<usize>,
}

/// The result of a search for evictions.
pub(super) struct Found {
    /// The sets. Each lists positions in the sorted candidates.
    pub sets: Vec<Vec<usize>>,
    /// Whether these are all the sets below the budget.
    pub complete: bool,
    /// Lower bound on the cost of any set.
    pub least_penalty: i128,
    /// Number of steps that the search took.
    pub steps: usize,
}

/// Search steps per requested set.
const STEPS_A_SET: usize = 16;

/// Most candidates that a search decides about, one after the other: each takes a frame of the stack.
const DEEPEST: usize = 2048;

/// Finds at most `most` sets of candidates that free at least `excess` bytes and cost less than `budget`. Only minimal
/// sets are returned, in which no member could stay: keeping more is never worse, so other sets need not be tried.
///
/// Sorts the candidates by penalty per byte. Removes candidates without bytes, which never leave.
pub(super) fn evictions(candidates: &mut Vec<Candidate>, excess: u64, budget: i128, most: usize) -> Found {
    candidates.retain(|c| c.bytes > 0);
    candidates.sort_by(|a, b| {
        let (left, right) = (product(a.penalty, b.bytes), product(b.penalty, a.bytes));
        // At least among equals, a tensor that others require comes before them.
        let by_room = left.cmp(&right).then(b.bytes.cmp(&a.bytes));
        by_room.then(a.requires.len().cmp(&b.requires.len())).then(a.tensor.cmp(&b.tensor))
    });
    let sums = Sums::new(candidates);
    let least_penalty = sums.fractional(candidates, 0, excess);
    let steps = most.saturating_mul(STEPS_A_SET).saturating_add(candidates.len());
    let stays = vec![false; candidates.len()];
    let mut search = Search { candidates, sums, budget, most, steps, chosen: Vec::new(), stays, sets: Vec::new() };
    let complete = search.extend(0, excess, 0);
    if search.sets.is_empty() && !complete {
        search.sets.push(greedy(candidates, excess));
    }
    Found { sets: search.sets, complete, least_penalty, steps: steps - search.steps }
}

/// Returns a product that may not fit 128 bits, in two parts. Penalties are not negative.
fn product(penalty: i128, bytes: u64) -> (u128, u64) {
    let (penalty, bytes) = (penalty.unsigned_abs(), u128::from(bytes));
    let low = (penalty & u128::from(u64::MAX)) * bytes;
    ((penalty >> 64) * bytes + (low >> 64), low as u64)
}

/// For each candidate, and after the last one: the bytes and the penalty of all before it.
struct Sums {
    bytes: Vec<u64>,
    penalty: Vec<i128>,
}

impl Sums {
    fn new(candidates: &[Candidate]) -> Self {
        let mut sums = Self { bytes: vec![0], penalty: vec![0] };
        let (mut bytes, mut penalty) = (0, 0);
        for candidate in candidates {
            bytes += candidate.bytes;
            penalty += candidate.penalty;
            sums.bytes.push(bytes);
            sums.penalty.push(penalty);
        }
        sums
    }

    /// Returns the bytes of the candidates from `first` on.
    fn bytes_from(&self, first: usize) -> u64 {
        self.bytes[self.bytes.len() - 1] - self.bytes[first]
    }

    /// Returns the least penalty to free `excess` bytes with candidates from `first` on, if a fraction of a tensor could
    /// leave.
    fn fractional(&self, candidates: &[Candidate], first: usize, excess: u64) -> i128 {
        let freed = |after: &u64| after - self.bytes[first];
        let whole = self.bytes[first + 1..].partition_point(|after| freed(after) < excess);
        let penalty = self.penalty[first + whole] - self.penalty[first];
        let Some(last) = candidates.get(first + whole) else { return penalty };
        let part = i128::from(excess - freed(&self.bytes[first + whole]));
        let bytes = i128::from(last.bytes);
        let share = last.penalty.checked_mul(part).map(|product| product / bytes);
        penalty + share.unwrap_or(last.penalty / bytes * part)
    }
}

/// Returns the first candidates that make enough room, without those that could stay.
fn greedy(candidates: &[Candidate], excess: u64) -> Vec<usize> {
    let mut freed = 0;
    let mut set: Vec<usize> = Vec::new();
    for (i, candidate) in candidates.iter().enumerate() {
        if freed >= excess {
            break;
        }
        freed += candidate.bytes;
        set.push(i);
    }
    for at in (0..set.len()).rev() {
        let bytes = candidates[set[at]].bytes;
        if freed - bytes >= excess {
            freed -= bytes;
            set.remove(at);
        }
    }
    set
}

struct Search<'c> {
    candidates: &'c [Candidate],
    sums: Sums,
    budget: i128,
    most: usize,
    steps: usize,
    chosen: Vec<usize>,
    /// Candidates that were skipped.
    stays: Vec<bool>,
    sets: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Adds candidates from `first` on until `left` more bytes are free. Returns whether it tried all possibilities.
    fn extend(&mut self, first: usize, left: u64, penalty: i128) -> bool {
        if self.sums.bytes_from(first) < left
            || penalty + self.sums.fractional(self.candidates, first, left) >= self.budget
        {
            return true;
        }
        if self.sets.len() == self.most || self.steps == 0 || first == DEEPEST {
            return false;
        }
        self.steps -= 1;
        let candidate = &self.candidates[first];
        let mut complete = true;
        if !candidate.requires.iter().any(|t| self.has_stayed(first, *t)) {
            self.chosen.push(first);
            if candidate.bytes >= left {
                self.emit(candidate.bytes - left);
            } else {
                complete = self.extend(first + 1, left - candidate.bytes, penalty + candidate.penalty);
            }
            self.chosen.pop();
        }
        self.stays[first] = true;
        complete &= self.extend(first + 1, left, penalty);
        self.stays[first] = false;
        complete
    }

    fn has_stayed(&self, first: usize, tensor: usize) -> bool {
        (0..first).any(|i| self.stays[i] && self.candidates[i].tensor == tensor)
    }

    fn emit(&mut self, spare: u64) {
        let could_stay = |i: &usize| self.candidates[*i].bytes <= spare;
        let leaves = |t: &usize| self.chosen.iter().any(|i| self.candidates[*i].tensor == *t);
        let lacks = |i: &usize| !self.candidates[*i].requires.iter().all(leaves);
        if !self.chosen.iter().any(could_stay) && !self.chosen.iter().any(lacks) {
            self.sets.push(self.chosen.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(tensor: usize, bytes: u64, penalty: i128) -> Candidate {
        Candidate { tensor, bytes, penalty, requires: Vec::new() }
    }

    fn sets(candidates: &[Candidate], found: &Found) -> Vec<Vec<usize>> {
        let name = |set: &Vec<usize>| {
            let mut names: Vec<usize> = set.iter().map(|i| candidates[*i].tensor).collect();
            names.sort_unstable();
            names
        };
        let mut sets: Vec<Vec<usize>> = found.sets.iter().map(name).collect();
        sets.sort();
        sets
    }

    #[test]
    fn many_candidates_do_not_overflow_the_stack() {
        let mut candidates: Vec<Candidate> = (0..200_000).map(|t| candidate(t, 1, 1)).collect();
        let found = evictions(&mut candidates, 150_000, i128::MAX, 100_000);
        assert!(!found.complete);
        assert_eq!(found.sets, [(0..150_000).collect::<Vec<_>>()]);
    }

    #[test]
    fn all_sets_of_which_none_can_be_spared_are_found() {
        let mut candidates: Vec<Candidate> = [(3, 9), (5, 9), (2, 1), (4, 20), (0, 0)]
            .into_iter()
            .enumerate()
            .map(|(t, (bytes, penalty))| candidate(t, bytes, penalty))
            .collect();
        let all = evictions(&mut candidates, 5, i128::MAX, 100);
        assert!(all.complete);
        assert_eq!(sets(&candidates, &all), [vec![0, 2], vec![0, 3], vec![1], vec![2, 3]]);
        let cheap = evictions(&mut candidates, 5, 11, 100);
        assert_eq!(sets(&candidates, &cheap), [vec![0, 2], vec![1]]);
        assert!(cheap.least_penalty <= 9);
        let first = evictions(&mut candidates, 5, i128::MAX, 1);
        assert_eq!((first.sets.len(), first.complete), (1, false));
    }

    #[test]
    fn what_is_required_leaves_too() {
        let mut candidates = vec![candidate(0, 4, 1), candidate(1, 4, 1), candidate(2, 4, 1)];
        candidates[0].requires = vec![1];
        candidates[1].requires = vec![2];
        let found = evictions(&mut candidates, 8, i128::MAX, 100);
        assert_eq!(sets(&candidates, &found), [vec![1, 2]]);
    }

    #[test]
    fn enormous_sizes_are_compared_exactly() {
        let large = u64::MAX / 4;
        let mut candidates =
            vec![candidate(0, large, i128::from(large) << 17), candidate(1, large + 1, i128::from(large) << 17)];
        let found = evictions(&mut candidates, large, i128::MAX, 100);
        assert_eq!((candidates[0].tensor, found.complete), (1, true));
        assert!(found.least_penalty <= i128::from(large) << 17);
    }
}
