//! Makes a schedule of a relaxed problem fit the true problem.

use fixedbitset::FixedBitSet;

use super::problem::Problem;
use super::schedule::Schedule;
use crate::tasks::TensorId;

/// Evicts tensors until their next use wherever the schedule holds more than the capacity. First come the tensors to
/// which the relaxed problem gave no room, the one used last first. Then comes, of the others that free enough, the one
/// with the fewest bytes of copies.
///
/// # Cost
/// O(ops x tensors x readers) in the worst case.
pub(super) fn fit(problem: &Problem, relaxed: &Problem, mut schedule: Schedule) -> Schedule {
    let ops = schedule.len();
    let mut place = vec![0; ops];
    schedule.iter().enumerate().for_each(|(i, turn)| place[turn.op.index()] = i);
    let next_use = |t: usize, now: usize| {
        let readers = problem.graph.consumers(TensorId(t as u32)).iter().map(|op| place[op.index()]);
        readers.filter(|at| *at > now).min().unwrap_or(ops)
    };
    let mut gone = FixedBitSet::with_capacity(problem.tensors());
    let mut stored = FixedBitSet::with_capacity(problem.tensors());
    for (now, turn) in schedule.iter_mut().enumerate() {
        let need = &problem.need[turn.op.index()];
        need.iter().for_each(|t| gone.remove(*t));
        turn.during.difference_with(&gone);
        let held = problem.bytes_of(&turn.during);
        if let Some(excess) = held.checked_sub(problem.capacity_bytes).filter(|excess| *excess > 0) {
            let others: Vec<usize> = turn.during.ones().filter(|t| !problem.needs(turn.op.index(), *t)).collect();
            let (mut small, mut large): (Vec<usize>, Vec<usize>) = others.iter().partition(|t| relaxed.room[**t] == 0);
            small.sort_by_key(|t| (std::cmp::Reverse(next_use(*t, now)), std::cmp::Reverse(problem.bytes(*t)), *t));
            let copies = |t: usize| {
                let dirty = problem.stores_count && problem.graph.producer(TensorId(t as u32)).is_some();
                let store = dirty && !problem.graph.tensors()[t].publish && !stored.contains(t);
                u128::from(problem.bytes(t)) * (1 + u128::from(store))
            };
            let left = excess.saturating_sub(problem.bytes_of(&small.iter().copied().collect()));
            // First the tensors that free enough by themselves, the cheapest first; then the others, the largest first.
            large.sort_by_key(|t| {
                let suffices = problem.bytes(*t) >= left;
                let rank = if suffices { copies(*t) } else { u128::from(u64::MAX - problem.bytes(*t)) };
                (!suffices, rank, std::cmp::Reverse(next_use(*t, now)), *t)
            });
            for t in spared(problem, excess, small.into_iter().chain(large)) {
                turn.during.remove(t);
                gone.insert(t);
                stored.insert(t);
            }
        }
        turn.survives = turn.during.clone();
    }
    schedule
}

/// Returns the first tensors that free `excess` bytes, without those that turn out to be unnecessary (checked from the
/// largest on).
fn spared(problem: &Problem, excess: u64, order: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut freed = 0u64;
    let mut leaving: Vec<usize> = Vec::new();
    for t in order {
        if freed >= excess {
            break;
        }
        freed += problem.bytes(t);
        leaving.push(t);
    }
    leaving.sort_by_key(|t| (std::cmp::Reverse(problem.bytes(*t)), *t));
    leaving.retain(|t| {
        let stays = freed - problem.bytes(*t) >= excess;
        if stays {
            freed -= problem.bytes(*t);
        }
        !stays
    });
    leaving
}
