//! The room beside each op: how many bytes of other tensors can stay while it runs.

use std::ops::Range;

use super::lives::{Life, Lives};
use super::problem::Problem;
use crate::tasks::TaskId;

/// Most pairs of an op and a tensor that may stay while it runs, for which sums of sizes are compared with the room.
const MOST_STAYING: usize = 4_000_000;

/// Returns, for each place, the bytes that its op leaves for other tensors: at most as many as can be used.
pub(super) fn rooms(problem: &Problem, lives: &Lives) -> Vec<u64> {
    let n = problem.ops();
    // What may stay at each place, first as differences.
    let (mut bytes, mut count) = (vec![0i128; n + 1], 0usize);
    for life in &lives.lives {
        for run in staying_runs(life) {
            bytes[run.start as usize] += i128::from(life.room);
            bytes[run.end as usize] -= i128::from(life.room);
            count += run.len();
        }
    }
    (1..=n).for_each(|at| bytes[at] += bytes[at - 1]);
    let free = |at: usize| problem.capacity_bytes - problem.graph.op_bytes(TaskId(lives.order.op[at] as u32));
    if count > MOST_STAYING {
        return (0..n).map(|at| free(at).min(u64::try_from(bytes[at]).unwrap_or(u64::MAX))).collect();
    }
    let mut staying = vec![Vec::new(); n];
    for life in &lives.lives {
        staying_runs(life).cloned().flatten().for_each(|at| staying[at as usize].push(life.room));
    }
    let mut sums = SubsetSums::default();
    staying.into_iter().enumerate().map(|(at, sizes)| sums.room(free(at), sizes)).collect()
}

/// Returns the places at which a value may stay and take room.
fn staying_runs(life: &Life) -> impl Iterator<Item = &Range<u32>> {
    let spans = if life.room > 0 { &life.spans[..] } else { &[] };
    let tail = (life.room > 0 && life.lasts).then_some(&life.tail);
    spans.iter().chain(tail).flat_map(|span| &span.0)
}

/// Most distinct sums that are tracked.
const SUMS: usize = 512;

/// The distinct sums of subsets, in ascending order, and memory for the next ones.
#[derive(Default)]
struct SubsetSums {
    found: Vec<u64>,
    next: Vec<u64>,
}

impl SubsetSums {
    /// Returns the greatest sum of sizes that can stay while an op runs. Large tensors stay whole or not at all; the
    /// remaining small ones may stay in part.
    fn room(&mut self, room: u64, mut sizes: Vec<u64>) -> u64 {
        let sum = |sizes: &[u64]| sizes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        if sum(&sizes) <= room {
            return sum(&sizes);
        }
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        self.found.clear();
        self.found.push(0);
        let mut taken = 0;
        while taken < sizes.len() && self.found.len() <= SUMS {
            self.add(sizes[taken], room);
            taken += 1;
            if self.found.last() == Some(&room) {
                return room;
            }
        }
        let rest = sum(&sizes[taken..]);
        self.found.iter().map(|sum| sum.saturating_add(rest).min(room)).max().unwrap_or(room)
    }

    /// Adds the sums with one more size, up to `room`.
    fn add(&mut self, size: u64, room: u64) {
        self.next.clear();
        let mut more = self.found.iter().map_while(|sum| sum.checked_add(size).filter(|sum| *sum <= room)).peekable();
        for &sum in &self.found {
            while let Some(less) = more.next_if(|more| *more < sum) {
                self.next.push(less);
            }
            more.next_if_eq(&sum);
            self.next.push(sum);
        }
        self.next.extend(more);
        std::mem::swap(&mut self.found, &mut self.next);
    }
}
