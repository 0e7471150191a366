//! The what-if curve: what an epoch copies, and how long it takes, with less memory and with more.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::CurvePoint;
use super::planned::PlannedParts;
use crate::error::Result;
use crate::plan::grid_down;

/// Most points of the curve.
const POINTS: usize = 12;

/// Returns the curve, at capacities from the smallest feasible one to the largest useful one, in about equal ratios. More
/// memory never takes more time or copies, and rarely more tiles of as many strips.
///
/// `plan(memory, tiles)` plans for this memory of each device with at least so many tiles; its inner error is the number of
/// bytes that would be enough. `point` is the point of a plan. `at_hand` is the memory at hand, and the point of what is
/// planned for it, if that fits.
pub(super) fn plan_curve(
    plan: impl Fn(u64, usize) -> Result<std::result::Result<PlannedParts, u64>> + Sync,
    point: impl Fn(&PlannedParts, u64) -> CurvePoint + Sync,
    (at_hand, planned): (u64, Option<CurvePoint>),
) -> Result<Vec<CurvePoint>> {
    let Err(least) = plan(0, 1)? else { return Ok(Vec::new()) };
    let most = match plan(u64::MAX, 1)? {
        Ok(planned) => planned.peak_bytes().max(least),
        Err(_) => return Ok(Vec::new()),
    };
    let point_with = |memory: u64, tiles: usize| Ok(plan(memory, tiles)?.ok().map(|planned| point(&planned, memory)));
    let made = on_all_cores(&memories(least, most, at_hand), |&memory| point_with(memory, 1));
    let mut curve: Vec<CurvePoint> = made.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    // What is planned for the memory at hand is compared with the others.
    let place = curve.partition_point(|point| point.device_memory < at_hand);
    curve.splice(place..place, planned);
    // More tiles hardly cost anything where there is less memory, so less memory takes no fewer of them.
    for i in (1..curve.len()).rev() {
        let (less, more) = (curve[i - 1], curve[i]);
        let is_fixed = planned.is_some() && i - 1 == place;
        if !is_fixed && less.strips == more.strips && less.tiles < more.tiles {
            curve[i - 1] = point_with(less.device_memory, more.tiles)?.unwrap_or(less);
        }
    }
    // A plan for less memory is also valid with more memory, so it replaces a plan that is worse.
    for i in 1..curve.len() {
        let less = curve[i - 1];
        if !curve[i].is_no_worse_than(&less) {
            curve[i] = CurvePoint { device_memory: curve[i].device_memory, ..less };
        }
    }
    if planned.is_some() {
        curve.remove(place);
    }
    Ok(curve)
}

/// Returns the capacities of the curve: the least, the most, and between them capacities at which layouts are compared, from
/// an eighth of the memory at hand on. Plans for little memory have many steps and take long.
fn memories(least: u64, most: u64, at_hand: u64) -> Vec<u64> {
    let from = least.max(at_hand.min(most) / 8);
    let mut between: Vec<u64> = grid_down(most.saturating_sub(1)).take_while(|memory| *memory > from).collect();
    if between.is_empty() && least < most {
        between.push(least + (most - least) / 2);
    }
    between.reverse();
    let step = between.len().div_ceil(POINTS - 2).max(1);
    // The largest of them are where most is to be gained.
    let kept = between.iter().rev().step_by(step).copied();
    let mut memories: Vec<u64> = kept.chain([least, most]).collect();
    memories.sort_unstable();
    memories.dedup();
    memories
}

/// Returns `make(item)` for each item, in order. The first items start first.
///
/// It uses threads of its own, not the shared pool: an item may wait for another one that works in the pool.
fn on_all_cores<I: Sync, T: Send>(items: &[I], make: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            match items.get(i) {
                Some(item) => made.push((i, make(item))),
                None => break made,
            }
        }
    };
    let mut made: Vec<(usize, T)> = std::thread::scope(|scope| {
        // If the system starts no more threads, those that run do all the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..threads).filter_map(start).collect();
        let mut made = work();
        for thread in threads {
            made.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        made
    });
    made.sort_by_key(|(i, _)| *i);
    made.into_iter().map(|(_, made)| made).collect()
}
