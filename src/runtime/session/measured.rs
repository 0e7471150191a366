//! What a session measures: its runs, and the calls of a run.

use bytemuck::Pod;
use lapidary_cost_model::KernelWork;
use lapidary_kernels::{HostSlot, Lane};

use super::Session;
use crate::error::NotFinite;
use crate::plan::{COPY_IN, COPY_OUT, Locality, between_name, between_work, copy_work, kernel_work};
use crate::runtime::message::Note;
use crate::runtime::trace::{Span, idle_seconds};

/// Results of one run of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// For each part, the contents of each metric.
    pub(super) metrics: Vec<Vec<HostSlot>>,
    /// Seconds before the evaluation and of the evaluation, each of the slowest part.
    pub seconds: [f64; 2],
    /// Bytes copied to devices and to the host, over all parts.
    pub bytes: [u64; 2],
    /// Bytes that the plan copies to devices and to the host.
    pub planned_bytes: [u64; 2],
    /// Bytes copied from device to device, over all parts: measured and planned.
    pub bytes_between: [u64; 2],
    /// For each part, the recorded spans.
    pub spans: Vec<Vec<Span>>,
    /// The first number that is not finite, if they were checked.
    pub not_finite: Option<NotFinite>,
    /// What the rank of each part says.
    pub notes: Vec<Note>,
}

impl Done {
    /// Returns the number of a signal that has asked a rank to end; 0 if there was none. It is the same on all ranks.
    pub(crate) fn signal(&self) -> usize {
        self.notes.iter().map(|note| note.signal).max().unwrap_or(0)
    }

    /// Adds the measurements of a later run. Metrics and notes are those of the later one.
    pub(crate) fn add(&mut self, later: Self) {
        let sum = |a: [u64; 2], b: [u64; 2]| [a[0] + b[0], a[1] + b[1]];
        self.bytes = sum(self.bytes, later.bytes);
        self.planned_bytes = sum(self.planned_bytes, later.planned_bytes);
        self.bytes_between = sum(self.bytes_between, later.bytes_between);
        self.seconds = [self.seconds[0] + later.seconds[0], self.seconds[1] + later.seconds[1]];
        self.spans.resize_with(later.spans.len(), Vec::new);
        self.spans.iter_mut().zip(later.spans).for_each(|(spans, later)| spans.extend(later));
        (self.metrics, self.notes) = (later.metrics, later.notes);
        self.not_finite = self.not_finite.take().or(later.not_finite);
    }

    /// Returns the seconds of all kernels of each part; empty if nothing was recorded.
    pub(crate) fn kernel_seconds(&self) -> Vec<f64> {
        let of_part = |spans: &Vec<Span>| {
            let kernels = spans.iter().filter(|span| span.lane == Lane::Compute);
            kernels.map(|span| span.end.saturating_duration_since(span.start).as_secs_f64()).sum()
        };
        let noted = self.spans.iter().any(|spans| !spans.is_empty());
        if noted { self.spans.iter().map(of_part).collect() } else { Vec::new() }
    }

    /// Returns metric number `metric` of each part.
    pub(crate) fn metric<T: Pod>(&self, metric: usize) -> Vec<Vec<T>> {
        self.metrics.iter().map(|metrics| metrics[metric].to_vec()).collect()
    }
}

/// A kernel call or copy that was timed.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredCall {
    /// The part whose device ran it.
    pub part: usize,
    /// The name under which its time is learned.
    pub kernel: String,
    /// What it does.
    pub work: KernelWork,
    /// Seconds that it took.
    pub seconds: f64,
}

impl MeasuredCall {
    /// Whether another call does the same work with the same kernel on the same part.
    pub(crate) fn does_the_same(&self, other: &Self) -> bool {
        (self.part, &self.kernel, &self.work) == (other.part, &other.kernel, &other.work)
    }
}

impl Session {
    /// Returns the kernel calls and copies of a run of these phases, with their times. `spans` are those of each part. Where
    /// `sharing` devices share cores, a kernel's time is what it would be with all cores.
    pub(crate) fn measured_calls(
        &self,
        phases: &[usize],
        spans: &[Vec<Span>],
        (locality, sharing): (&Locality, u64),
    ) -> Vec<MeasuredCall> {
        let mut measured = Vec::new();
        let Some(scripts) = self.scripts.get(phases).filter(|_| self.batches.is_none()) else { return measured };
        for (part, ((script, lowered), spans)) in scripts.iter().zip(self.runtime.lowered()).zip(spans).enumerate() {
            let seconds = |span: &Span| span.end.saturating_duration_since(span.ready).as_secs_f64();
            // The kernels of a lane run in the order of the script.
            let mut kernels = spans.iter().filter(|span| span.lane == Lane::Compute);
            for action in script.actions.iter().filter(|action| !action.call.fetches()) {
                let Some(span) = kernels.next().filter(|span| *span.name == *action.name) else { break };
                // Its time is also that of waiting for other devices.
                if action.call.reduces() {
                    continue;
                }
                let (kernel, work) = kernel_work(lowered, &action.call, locality);
                measured.push(MeasuredCall { part, kernel, work, seconds: seconds(span) / sharing as f64 });
            }
            // With several parts, a part also waits for others.
            if let ([first, ..], [_]) = (&spans[..], &scripts[..]) {
                let work = between_work(lowered, script);
                let seconds = idle_seconds(first.start, spans) / script.actions.len().max(1) as f64;
                measured.push(MeasuredCall { part, kernel: between_name(script, locality).into(), work, seconds });
            }
            for (lane, name) in [(Lane::CopyIn, COPY_IN), (Lane::CopyOut, COPY_OUT)] {
                for span in spans.iter().filter(|span| span.lane == lane && span.bytes > 0) {
                    let work = copy_work(span.bytes, locality);
                    measured.push(MeasuredCall { part, kernel: name.into(), work, seconds: seconds(span) });
                }
            }
        }
        measured
    }
}
