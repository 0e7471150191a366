//! Records when each kernel and copy ran, for trace viewers and for the cost model.

use std::time::{Duration, Instant};

use lapidary_kernels::{Event, Lane};

/// One kernel or copy on one device.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the operation or the tensor.
    pub name: String,
    /// The lane that it ran on.
    pub lane: Lane,
    /// Bytes copied; 0 for kernels.
    pub bytes: u64,
    /// When it began.
    pub start: Instant,
    /// When its memory was ready.
    pub ready: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Returns the seconds from `start` to the last end in which no span ran. A span counts from `ready` on.
pub(super) fn idle_seconds(start: Instant, spans: &[Span]) -> f64 {
    let mut busy: Vec<[Instant; 2]> = spans.iter().map(|span| [span.ready, span.end]).collect();
    busy.sort_unstable();
    let (idle, _) = busy.into_iter().fold((Duration::ZERO, start), |(idle, until), [ready, end]| {
        (idle + ready.saturating_duration_since(until), until.max(end))
    });
    idle.as_secs_f64()
}

/// The stages of mini-batches, in the order in which a batch passes through them.
pub(crate) const STAGES: [&str; 3] = ["sampling", "gathering", "computing"];

/// The work of one stage on one mini-batch.
#[derive(Clone, Debug)]
pub struct StageSpan {
    /// The stage: `sampling`, `gathering` or `computing`.
    pub stage: &'static str,
    /// Number of the batch in its epoch, from 1.
    pub batch: u64,
    /// Which of the stage's threads did it, from 0: several batches are prepared at a time.
    pub lane: usize,
    /// When the stage began it.
    pub start: Instant,
    /// When the stage had done it.
    pub end: Instant,
}

/// The names of queued work, to label the device's spans.
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

    /// Labels the device's spans, and sorts them by their start.
    pub(super) fn name(&mut self, noted: Vec<lapidary_kernels::Span>) -> Vec<Span> {
        let queued = std::mem::take(&mut self.queued);
        let mut by_event: std::collections::BTreeMap<u64, (Lane, String, u64)> =
            queued.into_iter().map(|(event, lane, name, bytes)| (event.0, (lane, name, bytes))).collect();
        let named = noted.into_iter().filter_map(|span| {
            let (lane, name, bytes) = by_event.remove(&span.event.0)?;
            Some(Span { name, lane, bytes, start: span.start, ready: span.ready, end: span.end })
        });
        let mut spans: Vec<Span> = named.collect();
        spans.sort_by_key(|span| span.start);
        spans
    }
}

/// The spans of all devices in one epoch. A [`TraceFile`](crate::TraceFile) stores many epochs.
#[derive(Debug)]
pub struct Trace {
    epoch: u64,
    devices: Vec<String>,
    /// The machine of each rank, if there are several. Each rank has equally many devices.
    hosts: Vec<String>,
    /// The spans of each device.
    spans: Vec<Vec<Span>>,
    /// The spans of the stages of mini-batches.
    stages: Vec<StageSpan>,
}

/// The use of a device's time; see [`Trace::busy`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Seconds in which a kernel ran.
    pub kernels_s: f64,
    /// Seconds in which a copy ran.
    pub copies_s: f64,
    /// Seconds in which both ran, that is, copies hidden by kernels.
    pub both_s: f64,
}

impl Trace {
    /// Returns a trace without an epoch.
    pub(crate) fn new(devices: Vec<String>, hosts: Vec<String>) -> Self {
        Self { epoch: 0, spans: vec![Vec::new(); devices.len()], devices, hosts, stages: Vec::new() }
    }

    /// Replaces the spans by those of an epoch: by device, and of the stages of mini-batches.
    pub(crate) fn set(&mut self, epoch: u64, spans: Vec<Vec<Span>>, stages: Vec<StageSpan>) {
        (self.epoch, self.spans, self.stages) = (epoch, spans, stages);
    }

    /// Returns the epoch, from 1; 0 if there was none yet.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the names of the devices.
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Returns the names of the ranks' machines, if there are several ranks. Each has equally many devices.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the spans of each device.
    pub fn spans(&self) -> &[Vec<Span>] {
        &self.spans
    }

    /// Returns the spans of the stages of mini-batches, batch by batch; none for an epoch on the whole graph.
    pub fn stages(&self) -> &[StageSpan] {
        &self.stages
    }

    /// Returns the use of each device's time.
    pub fn busy(&self) -> Vec<Busy> {
        let of_device = |spans: &Vec<Span>| {
            let [kernels, copies] = [true, false].map(|kernels| {
                let chosen = spans.iter().filter(|span| (span.lane == Lane::Compute) == kernels);
                union(chosen.map(|span| (span.start, span.end)).collect())
            });
            Busy { kernels_s: total_s(&kernels), copies_s: total_s(&copies), both_s: common_s(&kernels, &copies) }
        };
        self.spans.iter().map(of_device).collect()
    }
}

type Stretch = (Instant, Instant);

/// Returns the union of the intervals as ascending intervals that do not touch.
fn union(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_unstable();
    let mut joined: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for (start, end) in stretches {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

fn total_s(stretches: &[Stretch]) -> f64 {
    stretches.iter().map(|&(start, end)| end.saturating_duration_since(start).as_secs_f64()).sum()
}

/// Returns the seconds in the intersection of two unions.
fn common_s(a: &[Stretch], b: &[Stretch]) -> f64 {
    let (mut i, mut j, mut seconds) = (0, 0, 0.0);
    while let (Some(&(a_start, a_end)), Some(&(b_start, b_end))) = (a.get(i), b.get(j)) {
        seconds += a_end.min(b_end).saturating_duration_since(a_start.max(b_start)).as_secs_f64();
        if a_end <= b_end { i += 1 } else { j += 1 }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_that_kernels_and_copies_share_counts_once() {
        let mut trace = Trace::new(vec!["cuda:0".into(), "cuda:1".into()], Vec::new());
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let span = |lane, start, end| Span {
            name: "x".into(),
            lane,
            bytes: 0,
            start: at(start),
            ready: at(start),
            end: at(end),
        };
        let (compute, copy_in, copy_out) = (Lane::Compute, Lane::CopyIn, Lane::CopyOut);
        // Kernels from 10 to 20 and 30 to 40; copies from 15 to 35, some in both directions at once, and from 50 to 60.
        let first = [
            span(compute, 10, 20),
            span(copy_in, 15, 30),
            span(copy_out, 25, 35),
            span(compute, 30, 40),
            span(copy_in, 50, 60),
        ];
        trace.set(1, vec![first.to_vec(), Vec::new()], Vec::new());
        let [busy, idle] = trace.busy()[..] else { panic!("there are two devices") };
        for (got, want) in [(busy.kernels_s, 0.020), (busy.copies_s, 0.030), (busy.both_s, 0.010)] {
            assert!((got - want).abs() < 1e-9, "{got}, not {want}");
        }
        assert_eq!(idle, Busy::default());
    }

    #[test]
    fn a_device_is_idle_where_no_lane_works() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let span = |[begun, ready, end]: [u64; 3]| Span {
            name: String::new(),
            lane: Lane::Compute,
            bytes: 0,
            start: at(begun),
            ready: at(ready),
            end: at(end),
        };
        // Idle from 0 to 2, while memory is made ready from 10 to 11, and from 16 to 20; two lanes work at once from 5 to 8.
        let spans = [[5, 5, 10], [2, 2, 8], [10, 11, 16], [20, 20, 21]].map(span);
        assert!((idle_seconds(start, &spans) - 0.007).abs() < 1e-9, "{}", idle_seconds(start, &spans));
        assert_eq!(idle_seconds(start, &[]), 0.0);
    }
}
