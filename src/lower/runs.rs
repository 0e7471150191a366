//! The order of steps: tile by tile through as many operations as can go together.

use std::collections::BTreeMap;

use lapidary_kernels::Slot;

use super::LoweredStep;

/// Operations that go through their tiles together: what one tile makes is used while it is at hand, not after all other
/// tiles have passed. Without tiles it is the order of the operations.
#[derive(Default)]
pub(super) struct Run {
    done: Vec<LoweredStep>,
    /// By operation and tile.
    open: Vec<Vec<Vec<LoweredStep>>>,
    /// The tile at which each tensor of the open operations is made.
    made: BTreeMap<Slot, usize>,
}

impl Run {
    /// The next operation, by tile. It goes with the open ones unless one of its tiles reads what a later tile makes.
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

    /// What comes next waits for all that was pushed.
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

    /// All steps in order.
    pub(super) fn finish(mut self) -> Vec<LoweredStep> {
        self.close();
        self.done
    }
}
