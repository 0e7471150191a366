//! A worker: one device, one part, and the script that it interprets.
//!
//! The worker runs ahead of its device: it queues copies and kernels on lanes, each after the events that it needs, and
//! waits only for what it must: rows of other parts, and memory. An evicted tensor keeps its memory until what still uses
//! it has happened, so the device never holds more than the plan says, and copies run beside kernels where there is room.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use lapidary_kernels::{Device, Event, HostSlot, Lane, Slot};

use super::exchange::{Inbox, Mail};
use super::message::{Report, Run, ToDriver, ToWorker};
use super::trace::{Span, SpanLane};
use crate::error::{Error, Result};
use crate::lower::{Exchange, Kind, Lowered};
use crate::plan::{Script, lasts};

/// Why a worker stops.
pub(super) enum Stop {
    Failed(Error),
    Aborted,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Step<T> = std::result::Result<T, Stop>;

/// A tensor on the device.
#[derive(Clone, Copy)]
struct Resident {
    /// When its contents are there.
    ready: Event,
    /// The last kernel and the last copy to the host that read it.
    read: [Event; 2],
}

impl Resident {
    fn new(ready: Event) -> Self {
        Self { ready, read: [Event::DONE; 2] }
    }

    fn last_uses(&self) -> [Event; 3] {
        [self.ready, self.read[0], self.read[1]]
    }
}

/// A tensor on the host.
struct HostCopy {
    slot: HostSlot,
    /// When its contents are there.
    ready: Event,
}

/// Something that waits for its copy to the host before others are told.
struct Unsent {
    exchange: usize,
    copied: Event,
    rows: HostSlot,
}

pub(super) struct Worker {
    part: usize,
    device: Box<dyn Device>,
    lowered: Arc<Lowered>,
    resident: Vec<Option<Resident>>,
    host: Vec<Option<HostCopy>>,
    /// Buffers for copies to the host, by slot, used again each epoch.
    staging: Vec<Option<HostSlot>>,
    /// Evicted, but still in use.
    leaving: VecDeque<(Slot, [Event; 3])>,
    /// The most that the script at hand may hold.
    limit_bytes: u64,
    unsent: VecDeque<Unsent>,
    inbox: Inbox,
    mail: Mail,
    from: Receiver<ToWorker>,
    driver: Sender<ToDriver>,
}

impl Worker {
    pub(super) fn new(
        part: usize,
        device: Box<dyn Device>,
        lowered: Arc<Lowered>,
        host: Vec<Option<HostSlot>>,
        mail: Mail,
        inbox: Inbox,
        from: Receiver<ToWorker>,
        driver: Sender<ToDriver>,
    ) -> Self {
        let count = lowered.tensors.len();
        let here = |slot: HostSlot| HostCopy { slot, ready: Event::DONE };
        Self {
            part,
            device,
            lowered,
            resident: vec![None; count],
            host: host.into_iter().map(|slot| slot.map(here)).collect(),
            staging: vec![None; count],
            leaving: VecDeque::new(),
            limit_bytes: u64::MAX,
            unsent: VecDeque::new(),
            inbox,
            mail,
            from,
            driver,
        }
    }

    /// Does what it is told until the driver is gone.
    pub(super) fn serve(mut self) {
        while let Ok(message) = self.from.recv() {
            let done = match message {
                ToWorker::Run(run) => self.run(&run).map(|report| ToDriver::Done(self.part, report)),
                ToWorker::Rows(exchange, part, rows) => {
                    self.inbox.put_rows(exchange, part, rows);
                    continue;
                }
                ToWorker::Sum(exchange, sum) => {
                    self.inbox.put_sum(exchange, sum);
                    continue;
                }
                ToWorker::Write(slot, values) => self.write(slot, values).map(|()| ToDriver::Written(self.part)),
                ToWorker::Read(slot) => self.read(slot).map(|contents| ToDriver::Contents(self.part, contents)),
                ToWorker::Abort => Err(Stop::Aborted),
            };
            let (message, goes_on) = match done {
                Ok(message) => (message, true),
                Err(Stop::Failed(error)) => (ToDriver::Failed(self.part, error), false),
                Err(Stop::Aborted) => (ToDriver::Aborted(self.part), false),
            };
            // A driver that is gone needs no answer.
            if self.driver.send(message).is_err() || !goes_on {
                return;
            }
        }
    }

    fn run(&mut self, run: &Run) -> Step<Report> {
        let script = &*run.script;
        let before = self.device.copied_bytes();
        self.limit_bytes = script.peak_bytes.max(self.device.used_bytes());
        self.enter(script)?;
        self.limit_bytes = script.peak_bytes;
        for (slot, values) in &run.controls {
            self.set(*slot, values.clone())?;
        }
        let entered = self.device.copied_bytes();
        let mut clocks = vec![Instant::now()];
        let mut metrics: Vec<Option<(HostSlot, Event)>> = vec![None; run.metrics.len()];
        let mut spans = Vec::new();
        for (i, action) in script.actions.iter().enumerate() {
            if i == run.evaluates_from {
                self.settle()?;
                clocks.push(Instant::now());
            }
            let copied = self.around(&action.name, [&action.store, &action.evict, &action.load])?;
            let done = self.compute(&action.name, &action.call)?;
            for &slot in &action.publish {
                self.publish(slot)?;
            }
            for (metric, slot) in metrics.iter_mut().zip(run.metrics.iter()) {
                if action.call.writes().contains(slot) {
                    *metric = Some((self.copy_metric(*slot)?, done));
                }
            }
            if run.traced {
                spans.push((i, copied, done));
            }
        }
        self.around("the end of the epoch", [&script.finish[0], &script.finish[1], &script.finish[2]])?;
        self.settle()?;
        clocks.push(Instant::now());
        let after = self.device.copied_bytes();
        self.advance(script)?;
        let seconds = |i: usize| clocks.get(i + 1).map_or(0.0, |end| (*end - clocks[i]).as_secs_f64());
        let metrics = metrics.into_iter().map(|metric| metric.map(|(host, _)| host));
        Ok(Report {
            entry_bytes: [entered[0] - before[0], entered[1] - before[1]],
            bytes: [after[0] - entered[0], after[1] - entered[1]],
            peak_bytes: self.device.peak_bytes(),
            seconds: [seconds(0), seconds(1)],
            metrics: metrics.map(|m| m.expect("a metric is an output of its sequence")).collect(),
            spans: Vec::new(),
        })
    }
}
