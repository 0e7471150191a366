//! When everything ran: for a trace that people look at, and for the cost model.

use std::path::Path;
use std::time::Instant;

use lapidary_kernels::{Event, Lane};
use serde_json::{Value, json};

use crate::error::{Error, Result};

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

/// Epochs as the Chrome trace format has them: a row a device and lane.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    devices: Vec<String>,
    events: Vec<Value>,
}

impl Trace {
    /// An empty trace, whose time begins now.
    pub fn new(devices: Vec<String>) -> Self {
        Self { start: Instant::now(), devices, events: Vec::new() }
    }

    /// Adds what the devices did, by device.
    pub fn add(&mut self, spans: &[Vec<Span>]) {
        for (device, spans) in spans.iter().enumerate() {
            for span in spans {
                let us = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64() * 1e6;
                let mut event = json!({
                    "name": span.name, "ph": "X", "pid": device, "tid": span.lane as usize,
                    "ts": us(span.start), "dur": us(span.end) - us(span.start),
                });
                if span.lane != Lane::Compute {
                    event["args"] = json!({"bytes": span.bytes});
                }
                self.events.push(event);
            }
        }
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut events = Vec::new();
        for (pid, device) in self.devices.iter().enumerate() {
            events.push(json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": device}}));
            for (tid, lane) in ["kernels", "copies to the device", "copies to the host"].iter().enumerate() {
                events.push(json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": lane}}));
            }
        }
        events.extend(self.events.iter().cloned());
        let text = json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string();
        let failed = |source| Error::Io { action: "write the trace", path: path.into(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}
