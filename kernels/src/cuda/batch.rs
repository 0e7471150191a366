//! Batches: calls that are collected and queued as one job.

use super::engine::Task;
use super::faults::Lookup;
use crate::device::Event;
use crate::memory::Slot;

/// The calls collected so far.
#[derive(Debug)]
pub(super) struct Batch {
    /// The event of every call of the batch: the event of the job that the batch becomes.
    pub(super) event: Event,
    pub(super) tasks: Vec<Task>,
    pub(super) after: Vec<Event>,
    pub(super) lookups: Vec<Lookup>,
    /// Copies to the host that read results of the batch.
    pub(super) copies: Vec<(Slot, Event)>,
}

impl Batch {
    pub(super) fn new(event: Event) -> Self {
        Self { event, tasks: Vec::new(), after: Vec::new(), lookups: Vec::new(), copies: Vec::new() }
    }

    /// Makes the batch wait for these events, too.
    pub(super) fn wait_for(&mut self, after: &[Event]) {
        for &event in after {
            if event != self.event && event != Event::DONE && !self.after.contains(&event) {
                self.after.push(event);
            }
        }
    }
}
