//! The order of steps: tile by tile, through as many operations as can run together.

use std::collections::BTreeMap;

use lapidary_kernels::Slot;

use super::LoweredStep;

/// Operations that go through their tiles together. The output of a tile is used while it is still on the device, not
/// after all other tiles. Without tiles, this is the order of the operations.
#[derive(Default)]
pub(super) struct Run {
    done: Vec<LoweredStep>,
    /// Steps by operation and tile.
    open: Vec<Vec<Vec<LoweredStep>>>,
    /// The tile at which each output of the open operations is computed.
    made: BTreeMap<Slot, usize>,
}

impl Run {
    /// Adds the next operation, as steps per tile. It joins the open operations, unless one of its tiles reads the
    /// output of a later tile.
    pub(super) fn push(&mut self, tiles: Vec<Vec<LoweredStep>>) {
        let reads_later = |(tile, steps): (usize, &Vec<LoweredStep>)| {
            let reads = steps.iter().flat_map(|step| step.call.reads());
            reads.filter_map(|slot| self.made.get(&slot)).any(|&made| made > tile)
        };
        if tiles.iter().enumerate().any(reads_later) {
            self.close();
        }
        for (tile, steps) in tiles.iter().enumerate() {
            self.made.extend(steps.iter().flat_map(|step| step.call.writes()).map(|slot| (slot, tile)));
        }
        self.open.push(tiles);
    }

    /// Orders the open operations tile by tile. Later operations come after them.
    pub(super) fn close(&mut self) {
        let mut open: Vec<_> = self.open.drain(..).map(Vec::into_iter).collect();
        loop {
            let tile: Vec<Vec<LoweredStep>> = open.iter_mut().filter_map(Iterator::next).collect();
            if tile.is_empty() {
                break;
            }
            self.done.extend(tile.into_iter().flatten());
        }
        self.made.clear();
    }

    /// Returns all steps in order.
    pub(super) fn finish(mut self) -> Vec<LoweredStep> {
        self.close();
        self.done
    }
}
