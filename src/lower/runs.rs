//! The order of steps: tile by tile, through as many operations as can run together.

use std::collections::BTreeMap;

use lapidary_kernels::Slot;

use super::LoweredStep;

/// The steps of an operation.
pub(super) struct Steps {
    /// The steps of each tile.
    pub(super) tiles: Vec<Vec<LoweredStep>>,
    /// How many tiles of a gather's rows are summed side by side; 1 for other operations.
    pub(super) group: usize,
}

/// Operations that go through their tiles together. The output of a tile is used while it is still on the device, not
/// after all other tiles. Without tiles, this is the order of the operations.
///
/// A gather that sums several tiles of rows side by side goes through groups of tiles, and the operations after it do so
/// too. Within a group, the sources that one tile of rows has read are used for the others while they are still on the
/// device.
#[derive(Default)]
pub(super) struct Run {
    done: Vec<LoweredStep>,
    open: Vec<Steps>,
    /// The tile at which each output of the open operations is computed.
    made: BTreeMap<Slot, usize>,
}

impl Run {
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
        let group = self.open.iter().map(|steps| steps.group).max().unwrap_or(1);
        let tiles = self.open.iter().map(|steps| steps.tiles.len()).max().unwrap_or(0);
        let mut open: Vec<_> = self.open.drain(..).map(|steps| (steps.group, steps.tiles.into_iter())).collect();
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
        self.made.clear();
    }

    /// Returns all steps in order.
    pub(super) fn finish(mut self) -> Vec<LoweredStep> {
        self.close();
        self.done
    }
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
        LoweredStep::new(name.into(), Call::new(Move::Concat, [mat(reads)], [mat(writes)]))
    }

    #[test]
    fn groups_of_tiles_go_through_a_gather_and_what_follows_it() {
        // A gather of four tiles, two side by side, each with two calls. Before it, rows are packed.
        let gather = |tile: u32| {
            let packs = (tile == 0).then(|| step("pack", 90, 91));
            let calls = (0..2).map(|call| step(&format!("g{tile}.{call}"), 80 + call, 10 * tile + call));
            packs.into_iter().chain(calls).collect()
        };
        let then = |name: &str, from: u32, to: u32| -> Vec<Vec<LoweredStep>> {
            (0..4).map(|tile| vec![step(&format!("{name}{tile}"), 10 * tile + from, 10 * tile + to)]).collect()
        };
        let mut run = Run::default();
        run.push(Steps { tiles: (0..4).map(gather).collect(), group: 2 });
        run.push(Steps { tiles: then("a", 1, 2), group: 1 });
        run.push(Steps { tiles: then("b", 2, 3), group: 1 });
        // This one reads the last tile of `b`, so it comes after all of them.
        run.push(Steps { tiles: vec![vec![step("c", 33, 99)]], group: 1 });
        let names: Vec<String> = run.finish().into_iter().map(|step| step.name).collect();
        let first = ["pack", "g0.0", "g1.0", "g0.1", "g1.1", "a0", "b0", "a1", "b1"];
        let second = ["g2.0", "g3.0", "g2.1", "g3.1", "a2", "b2", "a3", "b3", "c"];
        assert_eq!(names, [first, second].concat());
    }
}
