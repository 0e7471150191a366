//! Calls that are collected, to be queued as one.

use super::engine::Task;
use super::faults::Lookup;
use crate::device::Event;
use crate::memory::Slot;

/// What was collected so far.
#[derive(Debug)]
pub(super) struct Batch {
    /// The event of every call of the batch: that of the one job that it becomes.
    pub(super) event: Event,
    pub(super) tasks: Vec<Task>,
    pub(super) after: Vec<Event>,
    pub(super) lookups: Vec<Lookup>,
    /// Copies to the host that follow calls of the batch.
    pub(super) copies: Vec<(Slot, Event)>,
}

impl Batch {
    pub(super) fn new(event: Event) -> Self {
        Self { event, tasks: Vec::new(), after: Vec::new(), lookups: Vec::new(), copies: Vec::new() }
    }

    /// The batch happens after these, too.
    pub(super) fn wait_for(&mut self, after: &[Event]) {
        for &event in after {
            if event != self.event && event != Event::DONE && !self.after.contains(&event) {
                self.after.push(event);
            }
        }
    }
}
