//! Which tensors to evict for room: all sets that are worth a try, the promising ones first.

/// A tensor that could leave.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub tensor: usize,
    /// What its leaving frees.
    pub bytes: u64,
    /// What its leaving costs at least.
    pub penalty: i128,
    /// Tensors that must leave too if this one does.
    pub requires: Vec<usize>,
}

/// What a search for evictions found.
pub(super) struct Found {
    /// The sets, each as positions in the candidates as they are sorted now.
    pub sets: Vec<Vec<usize>>,
    /// Whether the sets are all that there are below the budget.
    pub complete: bool,
    /// No set costs less than this.
    pub least_penalty: i128,
    /// How many steps the search took.
    pub steps: usize,
}

/// Steps for each set that is asked for.
const STEPS_A_SET: usize = 16;

/// Finds the sets of candidates with at least `excess` bytes, none of which could stay, that cost less than `budget`; at most
/// `most` of them. Keeping more is never worse, so no other set needs to be tried.
///
/// Sorts the candidates by penalty a byte; candidates without bytes never leave.
pub(super) fn evictions(candidates: &mut Vec<Candidate>, excess: u64, budget: i128, most: usize) -> Found {
    candidates.retain(|c| c.bytes > 0);
    candidates.sort_by(|a, b| {
        let (left, right) = (a.penalty * i128::from(b.bytes), b.penalty * i128::from(a.bytes));
        // What others require comes before them, at least among equals.
        let by_room = left.cmp(&right).then(b.bytes.cmp(&a.bytes));
        by_room.then(a.requires.len().cmp(&b.requires.len())).then(a.tensor.cmp(&b.tensor))
    });
    let mut bytes_after = vec![0u64; candidates.len() + 1];
    for (i, candidate) in candidates.iter().enumerate().rev() {
        bytes_after[i] = bytes_after[i + 1] + candidate.bytes;
    }
    let least_penalty = fractional(candidates, 0, excess);
    let steps = most.saturating_mul(STEPS_A_SET).saturating_add(candidates.len());
    let stays = vec![false; candidates.len()];
    let mut search =
        Search { candidates, bytes_after, budget, most, steps, chosen: Vec::new(), stays, sets: Vec::new() };
    let complete = search.extend(0, excess, 0);
    if search.sets.is_empty() && !complete {
        search.sets.push(greedy(candidates, excess));
    }
    Found { sets: search.sets, complete, least_penalty, steps: steps - search.steps }
}

/// The least penalty of `excess` bytes from `first` on, if a part of a tensor could leave.
fn fractional(candidates: &[Candidate], first: usize, excess: u64) -> i128 {
    let (mut left, mut penalty) = (excess, 0);
    for candidate in &candidates[first..] {
        if candidate.bytes >= left {
            // Whole and rest apart: the product of a penalty and a size can be too large.
            let bytes = i128::from(candidate.bytes);
            let (whole, rest) = (candidate.penalty.div_euclid(bytes), candidate.penalty.rem_euclid(bytes));
            let part = rest as u128 * u128::from(left) / u128::from(candidate.bytes);
            return penalty + whole * i128::from(left) + part as i128;
        }
        left -= candidate.bytes;
        penalty += candidate.penalty;
    }
    penalty
}

/// The first candidates that make room, without those that could stay.
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
    bytes_after: Vec<u64>,
    budget: i128,
    most: usize,
    steps: usize,
    chosen: Vec<usize>,
    /// Candidates that were passed over.
    stays: Vec<bool>,
    sets: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Adds candidates from `first` on until `left` more bytes are free. Returns whether it saw all there is.
    fn extend(&mut self, first: usize, left: u64, penalty: i128) -> bool {
        if self.bytes_after[first] < left || penalty + fractional(self.candidates, first, left) >= self.budget {
            return true;
        }
        if self.sets.len() == self.most || self.steps == 0 {
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
        let lacks = |i: &usize| !self.candidates[*i].requires.iter().all(|t| leaves(t));
        if !self.chosen.iter().any(could_stay) && !self.chosen.iter().any(lacks) {
            self.sets.push(self.chosen.clone());
        }
    }
}
