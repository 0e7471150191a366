//! When everything ran: for a trace that people look at, and for the cost model.

use std::time::Instant;

use lapidary_kernels::{Event, Lane};

/// One kernel or copy of one device.
#[derive(Clone, Debug)]
pub struct Span {
    /// The operation or the tensor.
    pub name: String,
    /// On which lane.
    pub lane: Lane,
    /// Bytes copied; 0 for kernels.
    pub bytes: u64,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// What was queued, so that the device's notes can be given names.
#[derive(Debug, Default)]
pub(super) struct Labels {
    on: bool,
    queued: Vec<(Event, Lane, String, u64)>,
}

impl Labels {
    pub(super) fn start(&mut self, on: bool) {
        self.on = on;
        self.queued.clear();
    }

    pub(super) fn note(&mut self, event: Event, lane: Lane, name: &str, bytes: u64) {
        if self.on {
            self.queued.push((event, lane, name.to_owned(), bytes));
        }
    }

    /// The device's notes with their names, in the order in which they ran.
    pub(super) fn name(&mut self, noted: Vec<lapidary_kernels::Span>) -> Vec<Span> {
        let queued = std::mem::take(&mut self.queued);
        let mut by_event: std::collections::BTreeMap<u64, (Lane, String, u64)> =
            queued.into_iter().map(|(event, lane, name, bytes)| (event.0, (lane, name, bytes))).collect();
        let named = noted.into_iter().filter_map(|span| {
            let (lane, name, bytes) = by_event.remove(&span.event.0)?;
            Some(Span { name, lane, bytes, start: span.start, end: span.end })
        });
        let mut spans: Vec<Span> = named.collect();
        spans.sort_by_key(|span| span.start);
        spans
    }
}
