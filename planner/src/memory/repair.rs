//! Makes a schedule of a relaxed problem fit the true one.

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::Schedule;
use crate::tasks::TensorId;

/// Where a schedule holds more than the capacity, tensors leave until their next use: first those that the relaxed problem gave
/// no room, then others; of each the one that is used last, and of these the largest.
///
/// # Cost
/// O(ops x tensors x readers) at worst.
pub(super) fn fit(problem: &Problem, relaxed: &Problem, mut schedule: Schedule) -> Schedule {
    let ops = schedule.len();
    let mut place = vec![0; ops];
    schedule.iter().enumerate().for_each(|(i, turn)| place[turn.op.index()] = i);
    let next_use = |t: usize, now: usize| {
        let readers = problem.graph.consumers(TensorId(t as u32)).iter().map(|op| place[op.index()]);
        readers.filter(|at| *at > now).min().unwrap_or(ops)
    };
    let mut gone = FixedBitSet::with_capacity(problem.tensors());
    for (now, turn) in schedule.iter_mut().enumerate() {
        let need = &problem.need[turn.op.index()];
        gone.difference_with(need);
        turn.during.difference_with(&gone);
        let mut held = problem.bytes_of(&turn.during);
        if held > problem.capacity_bytes {
            let mut others: Vec<usize> = turn.during.difference(need).collect();
            others.sort_by_key(|t| {
                let is_large = relaxed.room[*t] > 0;
                (is_large, std::cmp::Reverse(next_use(*t, now)), std::cmp::Reverse(problem.bytes(*t)), *t)
            });
            let mut leaving = Vec::new();
            for t in others {
                if held <= problem.capacity_bytes {
                    break;
                }
                held -= problem.bytes(t);
                leaving.push(t);
            }
            // What turned out not to be necessary stays after all; the largest first.
            leaving.sort_by_key(|t| (std::cmp::Reverse(problem.bytes(*t)), *t));
            for t in leaving {
                if held + problem.bytes(t) <= problem.capacity_bytes {
                    held += problem.bytes(t);
                } else {
                    turn.during.remove(t);
                    gone.insert(t);
                }
            }
        }
        turn.survives = turn.during.clone();
    }
    schedule
}
