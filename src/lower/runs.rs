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
