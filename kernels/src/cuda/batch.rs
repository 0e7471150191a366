//! Calls that are collected, to be queued as one.

use super::engine::Task;
use super::faults::Lookup;
use crate::device::Event;

/// What was collected so far.
#[derive(Debug)]
pub(super) struct Batch {
    /// The event of every call of the batch: that of the one job that it becomes.
    pub(super) event: Event,
    pub(super) tasks: Vec<Task>,
    pub(super) after: Vec<Event>,
    pub(super) lookups: Vec<Lookup>,
}

impl Batch {
    pub(super) fn new(event: Event) -> Self {
        Self { event, tasks: Vec::new(), after: Vec::new(), lookups: Vec::new() }
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
