//! The order of steps: tile by tile, through as many operations as can run together.

use std::collections::BTreeMap;

use lapidary_kernels::Slot;

use super::{LoweredStep, TileOrder};

/// The steps of an operation.
pub(super) struct Steps {
    /// The steps of each tile.
    pub(super) tiles: Vec<Vec<LoweredStep>>,
    /// How many tiles of a gather's rows are summed side by side; 1 for other operations.
    pub(super) group: usize,
}

/// Runs: operations that go through their tiles together. The output of a tile is used while it is still on the device,
/// not after all other tiles. Without tiles, this is the order of the operations.
///
/// A gather that sums several tiles of rows side by side goes through groups of tiles, and the operations after it do so
/// too. Within a group, the sources that one tile of rows has read are used for the others while they are still on the
/// device.
///
/// In [`TileOrder::Serpentine`], a run goes through its tiles from the last to the first, if no tile needs what an earlier
/// one has made. A sum over rows does: it continues from tile to tile. The next run begins with the first tile, because
/// that is the first source of a gather and the first term of a sum. So what was made last is read first, while it is
/// still on the device.
#[derive(Default)]
pub(super) struct Runs {
    order: TileOrder,
    done: Vec<LoweredStep>,
    open: Vec<Steps>,
    /// The tile at which each output of the open operations is computed.
    made: BTreeMap<Slot, usize>,
}

impl Runs {
    /// Creates runs that go through their tiles in this order.
    pub(super) fn new(order: TileOrder) -> Self {
        Self { order, ..Self::default() }
    }

    /// Adds the next operation. It joins the open operations, unless one of its tiles reads the output of a later tile.
    pub(super) fn push(&mut self, steps: Steps) {
        let reads_later = |(tile, steps): (usize, &Vec<LoweredStep>)| {
            let reads = steps.iter().flat_map(|step| step.call.reads());
            reads.filter_map(|slot| self.made.get(&slot)).any(|&made| made > tile)
        };
        if steps.tiles.iter().enumerate().any(reads_later) {
            self.close();
        }
        for (tile, steps) in steps.tiles.iter().enumerate() {
            self.made.extend(steps.iter().flat_map(|step| step.call.writes()).map(|slot| (slot, tile)));
        }
        self.open.push(steps);
    }

    /// Orders the open operations group by group, and each group tile by tile. Later operations come after them.
    pub(super) fn close(&mut self) {
        let mut run = std::mem::take(&mut self.open);
        self.made.clear();
        if self.order == TileOrder::Serpentine && may_descend(&run) {
            run = run.into_iter().map(Steps::descending).collect();
        }
        let group = run.iter().map(|steps| steps.group).max().unwrap_or(1);
        let tiles = run.iter().map(|steps| steps.tiles.len()).max().unwrap_or(0);
        let mut open: Vec<_> = run.into_iter().map(|steps| (steps.group, steps.tiles.into_iter())).collect();
        for _ in 0..tiles.div_ceil(group) {
            // Gathers of several tiles side by side stand between operations that go tile by tile.
            for ops in open.chunk_by_mut(|a, b| a.0 == 1 && b.0 == 1) {
                match ops {
                    [(2.., gather)] => self.done.extend(side_by_side(gather.take(group).collect())),
                    ops => {
                        for _ in 0..group {
                            self.done.extend(ops.iter_mut().filter_map(|(_, tiles)| tiles.next()).flatten());
                        }
                    }
                }
            }
        }
    }

    /// Returns all steps in order.
    pub(super) fn finish(mut self) -> Vec<LoweredStep> {
        self.close();
        self.done
    }
}

impl Steps {
    /// Returns the number of steps before the calls of the first tile, such as packs, that all tiles wait for. Every tile
    /// has as many calls.
    fn first(&self) -> usize {
        let calls = self.tiles.last().map_or(0, Vec::len);
        self.tiles.first().map_or(0, |first| first.len().saturating_sub(calls))
    }

    /// Returns the steps with the last tile first. What all tiles wait for still comes before them.
    fn descending(mut self) -> Self {
        let first = self.first();
        if let Some(tile) = self.tiles.first_mut() {
            let calls = tile.split_off(first);
            let packs = std::mem::replace(tile, calls);
            self.tiles.reverse();
            self.tiles[0].splice(0..0, packs);
        }
        self
    }
}

/// Returns whether the operations of a run can go through their tiles from the last to the first: no step reads what an
/// earlier tile makes.
fn may_descend(run: &[Steps]) -> bool {
    let mut made: BTreeMap<Slot, usize> = BTreeMap::new();
    // What an operation does once, it does before its tiles, and before those of later operations.
    let place = |steps: &Steps, tile: usize| if steps.tiles.len() == 1 { usize::MAX } else { tile };
    for steps in run {
        let first = steps.first();
        for (tile, calls) in steps.tiles.iter().enumerate() {
            for (i, step) in calls.iter().enumerate() {
                let at = if tile == 0 && i < first { usize::MAX } else { place(steps, tile) };
                if step.call.reads().filter_map(|slot| made.get(&slot)).any(|&made| made < at) {
                    return false;
                }
                made.extend(step.call.writes().map(|slot| (slot, at)));
            }
        }
    }
    true
}

/// Orders the steps of some tiles of a gather: first what comes before its calls, then for each group of sources the
/// calls of all tiles. All tiles have as many calls, which are their last steps.
fn side_by_side(tiles: Vec<Vec<LoweredStep>>) -> Vec<LoweredStep> {
    let calls = tiles.iter().map(Vec::len).min().unwrap_or(0);
    let mut steps: Vec<LoweredStep> = Vec::new();
    let mut rest: Vec<_> = Vec::new();
    for mut tile in tiles {
        let of_sources = tile.split_off(tile.len() - calls);
        steps.extend(tile);
        rest.push(of_sources.into_iter());
    }
    for _ in 0..calls {
        steps.extend(rest.iter_mut().filter_map(Iterator::next));
    }
    steps
}

#[cfg(test)]
mod tests {
    use lapidary_kernels::op::Move;
    use lapidary_kernels::{Call, Mat};

    use super::*;

    /// Returns a step that reads and writes these slots.
    fn step(name: &str, reads: u32, writes: u32) -> LoweredStep {
        let mat = |slot| Mat::f32(Slot(slot), 1, 1);
        LoweredStep::new(name, Call::new(Move::Concat, [mat(reads)], [mat(writes)]))
    }

    /// Returns the names of the steps of groups of tiles that go through a gather and what follows it.
    fn names_of_groups(order: TileOrder) -> Vec<String> {
        // A gather of four tiles, two side by side, each with two calls. Before it, rows are packed.
        let gather = |tile: u32| {
            let packs = (tile == 0).then(|| step("pack", 90, 91));
            let calls = (0..2).map(|call| step(&format!("g{tile}.{call}"), 80 + call, 10 * tile + call));
            packs.into_iter().chain(calls).collect()
        };
        let then = |name: &str, from: u32, to: u32| -> Vec<Vec<LoweredStep>> {
            (0..4).map(|tile| vec![step(&format!("{name}{tile}"), 10 * tile + from, 10 * tile + to)]).collect()
        };
        let mut run = Runs::new(order);
        run.push(Steps { tiles: (0..4).map(gather).collect(), group: 2 });
        run.push(Steps { tiles: then("a", 1, 2), group: 1 });
        run.push(Steps { tiles: then("b", 2, 3), group: 1 });
        // This one reads the last tile of `b`, so it comes after all of them.
        run.push(Steps { tiles: vec![vec![step("c", 33, 99)]], group: 1 });
        names(run)
    }

    #[test]
    fn groups_of_tiles_go_through_a_gather_and_what_follows_it() {
        let first = ["pack", "g0.0", "g1.0", "g0.1", "g1.1", "a0", "b0", "a1", "b1"];
        let second = ["g2.0", "g3.0", "g2.1", "g3.1", "a2", "b2", "a3", "b3", "c"];
        assert_eq!(names_of_groups(TileOrder::Ascending), [first, second].concat());
        // No tile needs an earlier one, so the last may come first. Packs still come before all.
        let first = ["pack", "g3.0", "g2.0", "g3.1", "g2.1", "a3", "b3", "a2", "b2"];
        let second = ["g1.0", "g0.0", "g1.1", "g0.1", "a1", "b1", "a0", "b0", "c"];
        assert_eq!(names_of_groups(TileOrder::Serpentine), [first, second].concat());
    }

    fn names(runs: Runs) -> Vec<String> {
        runs.finish().into_iter().map(|step| step.name.to_string()).collect()
    }

    #[test]
    fn a_sum_over_tiles_goes_from_the_first_to_the_last() {
        let rows = |name: &str, from: u32, to: u32| -> Vec<Vec<LoweredStep>> {
            (0..3).map(|tile| vec![step(&format!("{name}{tile}"), 10 * tile + from, 10 * tile + to)]).collect()
        };
        let sum = |tile: u32| {
            let mut call =
                Call::new(Move::Concat, [Mat::f32(Slot(10 * tile + 2), 1, 1)], [Mat::f32(Slot(50 + tile), 1, 1)]);
            if tile > 0 {
                call = call.added_to(Slot(50 + tile - 1));
            }
            vec![LoweredStep::new(format!("sum{tile}"), call)]
        };
        let mut runs = Runs::new(TileOrder::Serpentine);
        // What the run does once stays before its tiles.
        runs.push(Steps { tiles: vec![vec![step("once", 90, 91)]], group: 1 });
        runs.push(Steps { tiles: rows("a", 1, 2), group: 1 });
        runs.close();
        runs.push(Steps { tiles: rows("b", 2, 3), group: 1 });
        runs.push(Steps { tiles: (0..3).map(sum).collect(), group: 1 });
        let order = ["once", "a2", "a1", "a0", "b0", "sum0", "b1", "sum1", "b2", "sum2"];
        assert_eq!(names(runs), order);
    }
}
