//! A trace of many epochs on disk, in Chrome's trace format. It is written while they run.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytesize::ByteSize;
use lapidary_kernels::Lane;
use serde::Serialize;
use serde_json::json;

use super::trace::{STAGES, Span, StageSpan, Trace};
use crate::error::{Error, Result};
use crate::output::OutputFile;

/// The text before the events.
const HEAD: &str = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";

/// Upper bound of the bytes of the end of the file.
const TAIL_BYTES: u64 = 512;

/// A trace file with every kernel and copy of a run, as JSON for `ui.perfetto.dev` and `chrome://tracing`.
///
/// Each device is a process of the file. If there are several ranks, each rank is one, with the lanes of all its devices.
/// The clocks of other ranks are aligned by when their reports arrive. The stages of mini-batches are one more process,
/// with a lane for each stage and a span for each batch.
///
/// Epochs are written as they come, so memory holds one at a time. The file appears at its path when it is finished,
/// and not before; see [`TraceFile::finish`]. Its size is limited: the first epoch that does not fit and all later ones
/// are left out, which `otherData` in the file reports.
///
/// ```
/// use lapidary::{Dataset, Model, TraceFile, Trainer};
///
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let mut trainer = Trainer::builder(&model, &data).build()?;
/// let folder = tempfile::tempdir().unwrap();
/// let mut file = TraceFile::create(folder.path().join("trace.json"), TraceFile::LIMIT_BYTES)?;
/// trainer.start_trace();
/// for _ in 0..3 {
///     trainer.step()?;
///     file.add(trainer.trace().expect("it was started"))?;
/// }
/// file.finish()?;
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Debug)]
pub struct TraceFile {
    out: OutputFile,
    path: PathBuf,
    limit_bytes: u64,
    written_bytes: u64,
    /// Start of the first span.
    zero: Option<Instant>,
    /// The first and the last epoch in the file.
    epochs: Option<[u64; 2]>,
    /// The first epoch that was left out.
    truncated_at: Option<u64>,
}

/// One kernel, copy or stage of a batch, as in the file format.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    /// Microseconds since the first span.
    ts: f64,
    dur: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Copied>,
}

#[derive(Serialize)]
struct Copied {
    bytes: u64,
}

impl TraceFile {
    /// Size limit of a trace that the command writes, in bytes: about as much as a browser can show.
    pub const LIMIT_BYTES: u64 = 256 << 20;

    /// Creates the file, with a size limit in bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn create(path: impl AsRef<Path>, limit_bytes: u64) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let opened = OutputFile::create(&path).and_then(|mut out| {
            out.write_all(HEAD.as_bytes())?;
            // Report a full device now.
            out.flush()?;
            Ok(out)
        });
        let out = opened.map_err(failed(&path))?;
        let written_bytes = HEAD.len() as u64;
        Ok(Self { out, path, limit_bytes, written_bytes, zero: None, epochs: None, truncated_at: None })
    }

    /// Writes an epoch, if all of it fits and all epochs before it did. The epoch that was written last is not written
    /// again.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then unusable.
    pub fn add(&mut self, trace: &Trace) -> Result<()> {
        let epoch = trace.epoch();
        if epoch == 0 || self.is_full() || self.epochs.is_some_and(|[_, last]| last == epoch) {
            return Ok(());
        }
        let starts = trace.spans().iter().flatten().map(|span| span.start);
        let starts = starts.chain(trace.stages().iter().map(|span| span.start));
        let zero = self.zero.or(starts.min());
        let mut text = Vec::new();
        if self.epochs.is_none() {
            names(&mut text, trace);
        }
        for (device, spans) in trace.spans().iter().enumerate() {
            let first = place(trace, device);
            spans.iter().for_each(|span| event(&mut text, first, span, zero.unwrap_or(span.start)));
        }
        trace.stages().iter().for_each(|span| stage_event(&mut text, trace, span, zero.unwrap_or(span.start)));
        if self.written_bytes + text.len() as u64 + TAIL_BYTES > self.limit_bytes {
            self.truncated_at = Some(epoch);
            return Ok(());
        }
        let lines = if self.epochs.is_none() { text.strip_prefix(b",").unwrap_or(&text) } else { &text };
        self.out.write_all(lines).map_err(failed(&self.path))?;
        self.written_bytes += lines.len() as u64;
        self.zero = zero;
        self.epochs = Some([self.epochs.map_or(epoch, |[first, _]| first), epoch]);
        Ok(())
    }

    /// Returns whether an epoch was left out. All later epochs are then left out too.
    pub fn is_full(&self) -> bool {
        self.truncated_at.is_some()
    }

    /// Returns the first and the last epoch in the file, if there are any.
    pub fn epochs(&self) -> Option<[u64; 2]> {
        self.epochs
    }

    /// Returns the path that the finished file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the file and moves it to its path.
    ///
    /// # Errors
    /// [`Error::Io`]; an earlier file at the path is then unchanged.
    pub fn finish(mut self) -> Result<()> {
        let epochs = self.epochs.map_or_else(|| "none".into(), |[first, last]| format!("{first} to {last}"));
        let mut other = json!({"version": env!("CARGO_PKG_VERSION"), "epochs": epochs});
        if let Some(epoch) = self.truncated_at {
            let limit = ByteSize(self.limit_bytes);
            other["truncated"] =
                format!("epoch {epoch} and all after it are left out, to keep the file within {limit}").into();
        }
        let tail = format!("\n],\"otherData\":{other}}}\n");
        let written = self.out.write_all(tail.as_bytes()).and_then(|()| self.out.finish());
        written.map_err(failed(&self.path))
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    Error::io("write the trace", path)
}

/// What the lanes of a device are called, by their number.
const LANES: [&str; 3] = ["kernels", "copies to the device", "copies to the host"];

/// Returns the process of a device, and the thread of its first lane.
fn place(trace: &Trace, device: usize) -> (usize, usize) {
    match trace.devices().len().checked_div(trace.hosts().len()) {
        Some(devices) => (device / devices, device % devices * LANES.len()),
        None => (device, 0),
    }
}

/// Returns the process of the stages of mini-batches, which follows those of the devices.
fn place_of_stages(trace: &Trace) -> usize {
    if trace.hosts().is_empty() { trace.devices().len() } else { trace.hosts().len() }
}

/// Returns the thread of a stage's lane.
fn thread(span: &StageSpan) -> usize {
    let stage = STAGES.iter().position(|stage| *stage == span.stage).unwrap_or_default();
    span.lane * STAGES.len() + stage
}

/// Appends the names of the processes and of their threads, which are lanes of devices and stages of mini-batches.
fn names(text: &mut Vec<u8>, trace: &Trace) {
    for (device, name) in trace.devices().iter().enumerate() {
        let (pid, first) = place(trace, device);
        let (process, before) = match trace.hosts().get(pid) {
            Some(host) => {
                let name = name.strip_prefix(&format!("rank {pid} ")).unwrap_or(name);
                (format!("rank {pid} on {host}"), format!("{name}: "))
            }
            None => (name.clone(), String::new()),
        };
        if first == 0 {
            process_name(text, pid, &process);
        }
        for (tid, lane) in (first..).zip(LANES) {
            thread_name(text, pid, tid, &format!("{before}{lane}"));
        }
    }
    if !trace.stages().is_empty() {
        let pid = place_of_stages(trace);
        process_name(text, pid, "mini-batches");
        // The first lane of each stage, then the others of those that have several.
        let threads: BTreeMap<usize, &StageSpan> = trace.stages().iter().map(|span| (thread(span), span)).collect();
        for (tid, span) in threads {
            let number = if span.lane == 0 { String::new() } else { format!(" {}", span.lane + 1) };
            thread_name(text, pid, tid, &format!("{}{number}", span.stage));
        }
    }
}

fn process_name(text: &mut Vec<u8>, pid: usize, name: &str) {
    line(text, &json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}));
}

fn thread_name(text: &mut Vec<u8>, pid: usize, tid: usize, name: &str) {
    line(text, &json!({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}));
}

/// Returns the microseconds between two moments. Clocks have nanoseconds: more digits would only enlarge the file.
fn us(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_nanos() as f64 / 1e3
}

/// Appends a span. `pid` and `first` are the place of its device.
fn event(text: &mut Vec<u8>, (pid, first): (usize, usize), span: &Span, zero: Instant) {
    line(
        text,
        &Event {
            name: &span.name,
            ph: "X",
            pid,
            tid: first + span.lane as usize,
            ts: us(zero, span.start),
            dur: us(span.start, span.end),
            args: (span.lane != Lane::Compute).then_some(Copied { bytes: span.bytes }),
        },
    );
}

/// Appends the work of a stage on a batch.
fn stage_event(text: &mut Vec<u8>, trace: &Trace, span: &StageSpan, zero: Instant) {
    line(
        text,
        &Event {
            name: &format!("batch {}", span.batch),
            ph: "X",
            pid: place_of_stages(trace),
            tid: thread(span),
            ts: us(zero, span.start),
            dur: us(span.start, span.end),
            args: None,
        },
    );
}

/// Appends an event.
fn line(text: &mut Vec<u8>, event: &impl Serialize) {
    text.extend_from_slice(b",\n");
    serde_json::to_writer(text, event).expect("an event is plain data");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    /// An epoch of three spans; epochs are 10 ms apart.
    fn epoch(epoch: u64, zero: Instant) -> Trace {
        let at = |ms: u64| zero + Duration::from_millis(10 * epoch + ms);
        let span = |lane, bytes, ms| Span {
            name: "gather \"sum\"".into(),
            lane,
            bytes,
            start: at(ms),
            ready: at(ms),
            end: at(ms + 1),
        };
        let mut trace = Trace::new(vec!["sim:0".into(), "sim:1".into()], Vec::new());
        let first = vec![span(Lane::CopyIn, 100, 0), span(Lane::Compute, 0, 1)];
        trace.set(epoch, vec![first, vec![span(Lane::CopyOut, 7, 4)]], Vec::new());
        trace
    }

    /// Writes the given epochs, and reads the file.
    fn written(epochs: std::ops::RangeInclusive<u64>, limit_bytes: u64) -> (usize, Value) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut file = TraceFile::create(&path, limit_bytes).expect("it can be written");
        let zero = Instant::now();
        for number in epochs {
            file.add(&epoch(number, zero)).expect("there is room");
            file.add(&epoch(number, zero)).expect("it is there already");
        }
        assert!(!path.exists(), "it is not whole yet");
        file.finish().expect("there is room");
        let text = std::fs::read(&path).expect("it is there");
        (text.len(), serde_json::from_slice(&text).expect("it is JSON"))
    }

    fn spans(trace: &Value) -> Vec<&Value> {
        trace["traceEvents"].as_array().expect("a list").iter().filter(|event| event["ph"] == "X").collect()
    }

    #[test]
    fn epochs_follow_one_another_in_one_file() {
        let (_, trace) = written(61..=63, TraceFile::LIMIT_BYTES);
        let spans = spans(&trace);
        assert_eq!(spans.len(), 9);
        assert_eq!((&spans[0]["ts"], &spans[0]["args"]["bytes"]), (&0.0.into(), &100.into()));
        let third = spans[6]["ts"].as_f64().expect("a number");
        assert!((third - 20_000.0).abs() < 1e-3, "{third}");
        let rows = trace["traceEvents"].as_array().expect("a list").len() - 9;
        assert_eq!(rows, 8, "each device and each lane has a name");
        assert_eq!(trace["otherData"]["epochs"], "61 to 63");
        assert_eq!(trace["otherData"]["truncated"], Value::Null);
    }

    #[test]
    fn each_rank_is_a_process_with_the_lanes_of_its_devices() {
        let devices = ["rank 0 sim:0", "rank 0 sim:1", "rank 1 sim:0", "rank 1 sim:1"].map(String::from);
        let mut trace = Trace::new(devices.to_vec(), vec!["here".into(), "there".into()]);
        let now = Instant::now();
        let span = Span { name: "x".into(), lane: Lane::CopyOut, bytes: 1, start: now, ready: now, end: now };
        trace.set(1, vec![Vec::new(), Vec::new(), Vec::new(), vec![span]], Vec::new());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut file = TraceFile::create(&path, TraceFile::LIMIT_BYTES).expect("it can be written");
        file.add(&trace).expect("there is room");
        file.finish().expect("there is room");
        let text = std::fs::read(&path).expect("it is there");
        let trace: Value = serde_json::from_slice(&text).expect("it is JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        let named = |what: &str| -> Vec<(u64, u64, String)> {
            let named = events.iter().filter(|event| event["name"] == what);
            let number = |event: &Value, key: &str| event[key].as_u64().unwrap_or_default();
            let name = |event: &Value| event["args"]["name"].as_str().expect("a name").to_owned();
            named.map(|event| (number(event, "pid"), number(event, "tid"), name(event))).collect()
        };
        assert_eq!(named("process_name"), [(0, 0, "rank 0 on here".into()), (1, 0, "rank 1 on there".into())]);
        let threads = named("thread_name");
        assert_eq!(threads.len(), 12);
        assert_eq!(threads[11], (1, 5, "sim:1: copies to the host".into()));
        let span = spans(&trace)[0];
        assert_eq!((&span["pid"], &span["tid"]), (&1.into(), &5.into()));
    }

    #[test]
    fn a_trace_without_epochs_is_json_too() {
        #[expect(clippy::reversed_empty_ranges)] // none at all
        let (_, trace) = written(1..=0, TraceFile::LIMIT_BYTES);
        assert_eq!(
            (trace["traceEvents"].as_array().map(Vec::len), &trace["otherData"]["epochs"]),
            (Some(0), &"none".into())
        );
    }

    #[test]
    fn a_trace_keeps_within_its_limit_and_says_what_is_left_out() {
        let mut most = 0;
        for limit in [0, 600, 1000, 1500, 2000, 4000, 8000] {
            let (bytes, trace) = written(1..=50, limit);
            let kept = spans(&trace).len() / 3;
            assert!(kept >= most && kept < 50, "{limit}: {kept} epochs");
            assert!(kept == 0 || bytes as u64 <= limit, "{limit}: {bytes}");
            let said = trace["otherData"]["truncated"].as_str().expect("it is said");
            assert!(said.starts_with(&format!("epoch {} and all after", kept + 1)), "{said}");
            most = kept;
        }
        assert!(most > 10, "{most}");
    }
}
