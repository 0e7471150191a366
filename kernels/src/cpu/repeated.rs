//! Blocks over which gathers repeat, and their edges window by window (`edge_windows.rs`).
//!
//! Storing the edges takes memory, and as long as gathers over some hundred columns save. So it is done for a block that
//! does not change, once gathers over it repeat, and only in memory that a device may keep without using it: see
//! `slots.rs`.

use std::sync::Arc;

use lapidary_arrays::Identity;

use super::edge_windows::EdgeWindows;

/// Columns that are gathered over a block before its edges are stored. Storing them takes as long as windows save for 200
/// to 500 columns (`cargo bench --bench cpu -- windows`), and who has gathered so many goes on for longer than that.
const COLUMNS: usize = 128;

/// Most blocks that are watched.
const BLOCKS: usize = 4;

/// A block, known by its arrays and its number of sources.
#[derive(Clone, PartialEq)]
pub(super) struct Key {
    pub(super) arrays: [Identity; 2],
    pub(super) sources: usize,
}

/// One watched block.
struct Repeated {
    key: Key,
    /// Columns that were gathered.
    columns: usize,
    windows: Windows,
}

enum Windows {
    NotStored,
    /// A thread is storing them, or they were found not to pay.
    Never,
    Stored(Arc<EdgeWindows>, u64),
}

/// The answer to a gather.
pub(super) enum Answer {
    /// Gather over the block as it is.
    Csr,
    /// Store the edges first: the block repeats.
    Store,
    Windows(Arc<EdgeWindows>),
}

/// The watched blocks, the oldest first.
#[derive(Default)]
pub(super) struct Watched {
    blocks: Vec<Repeated>,
}

impl Watched {
    /// Returns the bytes of all stored edges.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |block: &Repeated| if let Windows::Stored(_, bytes) = block.windows { bytes } else { 0 };
        self.blocks.iter().map(bytes).sum()
    }

    /// Counts a gather of `columns` columns. `fits` says whether there is memory for the block's windows.
    pub(super) fn gather(&mut self, key: &Key, columns: usize, fits: impl FnOnce(u64) -> bool) -> Answer {
        self.blocks.retain(|block| block.key.arrays.iter().all(Identity::is_alive));
        let bytes = self.bytes();
        let Some(block) = self.blocks.iter_mut().find(|block| block.key == *key) else {
            if self.blocks.len() == BLOCKS {
                self.blocks.remove(0);
            }
            self.blocks.push(Repeated { key: key.clone(), columns, windows: Windows::NotStored });
            return Answer::Csr;
        };
        match &block.windows {
            Windows::Stored(windows, _) => Answer::Windows(windows.clone()),
            Windows::NotStored if block.columns >= COLUMNS && fits(bytes) => {
                block.windows = Windows::Never;
                Answer::Store
            }
            _ => {
                block.columns = block.columns.saturating_add(columns);
                Answer::Csr
            }
        }
    }

    /// Keeps stored edges.
    pub(super) fn keep(&mut self, key: &Key, windows: Arc<EdgeWindows>, bytes: u64) {
        if let Some(block) = self.blocks.iter_mut().find(|block| block.key == *key) {
            block.windows = Windows::Stored(windows, bytes);
        }
    }

    /// Frees all stored edges. They are not stored again.
    pub(super) fn clear(&mut self) {
        for block in &mut self.blocks {
            if matches!(block.windows, Windows::Stored(..)) {
                block.windows = Windows::Never;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::slots::Slots;
    use crate::memory::{HostSlot, Shared, Slot};
    use crate::op::call::BlockSlots;

    const ROWS: usize = 1000;
    const EDGES_OF_ROW: usize = 1100;

    /// Puts a block into slots 0 and 1.
    fn put(slots: &Slots) -> BlockSlots {
        let indptr: Vec<u64> = (0..=ROWS).map(|v| (v * EDGES_OF_ROW) as u64).collect();
        let indices: Vec<u32> = (0..ROWS * EDGES_OF_ROW).map(|edge| (edge % EDGES_OF_ROW * 9) as u32).collect();
        let arrays = [Shared::from(indptr).to_bytes(), Shared::from(indices).to_bytes()];
        for (i, bytes) in arrays.into_iter().enumerate() {
            slots.alloc(Slot(i as u32), bytes.len() as u64).expect("there is room");
            slots.copy_in(Slot(i as u32), &HostSlot::Constant(bytes)).expect("the sizes agree");
        }
        let (edges, own_sources) = (ROWS * EDGES_OF_ROW, 9 * EDGES_OF_ROW);
        BlockSlots { indptr: Slot(0), indices: Slot(1), rows: ROWS, own_sources, halo_sources: 0, edges }
    }

    /// Returns for each of some gathers over the block whether it had windows.
    fn gathers(slots: &Slots, block: BlockSlots) -> Vec<bool> {
        let open = slots.open();
        let gather = |_| open.windows(&open.block(block).expect("it is there"), 50).is_some();
        (0..5).map(gather).collect()
    }

    #[test]
    fn windows_are_stored_when_gathers_repeat_and_freed_with_the_array() {
        let slots = Slots::new(u64::MAX, true);
        slots.alloc(Slot(2), 64 << 20).expect("there is room");
        let block = put(&slots);
        assert_eq!(gathers(&slots, block), [false, false, false, true, true]);
        slots.free(Slot(0)).expect("it is there");
        slots.free(Slot(1)).expect("it is there");
        let other = put(&slots);
        assert_eq!(gathers(&slots, other), [false, false, false, true, true], "another array at the same slots");
    }

    #[test]
    fn windows_take_no_memory_that_a_device_does_not_have() {
        let block_bytes = (8 * (ROWS + 1) + 4 * ROWS * EDGES_OF_ROW) as u64;
        let tight = Slots::new(block_bytes + (1 << 20), true);
        let block = put(&tight);
        assert_eq!(gathers(&tight, block), [false; 5]);
        let roomy = Slots::new(block_bytes + (40 << 20), true);
        let block = put(&roomy);
        roomy.alloc(Slot(2), 10 << 20).expect("there is room");
        assert_eq!(gathers(&roomy, block), [false, false, false, true, true]);
        roomy.alloc(Slot(3), 30 << 20).expect("windows make room");
        assert_eq!(gathers(&roomy, block), [false; 5]);
    }

    #[test]
    fn arrays_that_may_change_are_not_watched() {
        let apart = Slots::new(u64::MAX, false);
        apart.alloc(Slot(2), 64 << 20).expect("there is room");
        let block = put(&apart);
        assert_eq!(gathers(&apart, block), [false; 5]);
    }
}
