//! A set of the slots of one table.

use lapidary_kernels::Slot;

/// Some of the slots of a table. Slots are dense, so each has a place of its own.
#[derive(Clone, Debug, Default)]
pub struct SlotSet(Vec<bool>);

impl SlotSet {
    /// Whether a slot is in the set.
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.get(slot.0 as usize).is_some_and(|is_in| *is_in)
    }
}

impl Extend<Slot> for SlotSet {
    fn extend<I: IntoIterator<Item = Slot>>(&mut self, slots: I) {
        for slot in slots {
            let at = slot.0 as usize;
            if at >= self.0.len() {
                self.0.resize(at + 1, false);
            }
            self.0[at] = true;
        }
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::default();
        set.extend(slots);
        set
    }
}
