//! Reports as ranks tell them to each other.

use std::time::{Duration, Instant};

use lapidary_kernels::{HostSlot, Lane};
use serde::{Deserialize, Serialize};

use super::message::{Note, Report};
use super::trace::Span;
use crate::error::{Error, NotFinite, Result};

/// A [`Report`] without addresses and clocks of a process.
#[derive(Serialize, Deserialize)]
struct Wire {
    bytes: [u64; 2],
    bytes_between: u64,
    planned_bytes: [u64; 3],
    peak_bytes: u64,
    seconds: [f64; 2],
    metrics: Vec<Vec<u8>>,
    /// Name, lane, bytes, and the seconds from the start of the run to the span's start, to when its memory was ready,
    /// and to its end.
    spans: Vec<(String, u8, u64, [f64; 3])>,
    not_finite: Option<NotFinite>,
    note: Note,
}

/// Writes a report of a run that began at `began`.
pub(super) fn report_bytes(report: &Report, began: Instant) -> Vec<u8> {
    let since = |at: Instant| at.saturating_duration_since(began).as_secs_f64();
    let span =
        |span: &Span| (span.name.clone(), span.lane as u8, span.bytes, [span.start, span.ready, span.end].map(since));
    let wire = Wire {
        bytes: report.bytes,
        bytes_between: report.bytes_between,
        planned_bytes: report.planned_bytes,
        peak_bytes: report.peak_bytes,
        seconds: report.seconds,
        metrics: report.metrics.iter().map(HostSlot::to_vec).collect(),
        spans: report.spans.iter().map(span).collect(),
        not_finite: report.not_finite.clone(),
        note: report.note,
    };
    serde_json::to_vec(&wire).expect("numbers and names can be written")
}

/// Reads a report that has just arrived. The clock of its spans is moved so that the last one ends now.
///
/// # Errors
/// [`Error::OtherVersion`]; [`Error::Device`] if the host has no memory for it.
pub(super) fn report_of(bytes: &[u8]) -> Result<Report> {
    let wire: Wire = serde_json::from_slice(bytes).map_err(|source| Error::OtherVersion { source })?;
    let metrics = wire.metrics.iter().map(|metric| HostSlot::staged(metric)).collect::<lapidary_kernels::Result<_>>();
    let lanes = [Lane::Compute, Lane::CopyIn, Lane::CopyOut];
    let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let (now, took) = (Instant::now(), wire.spans.iter().map(|(.., [.., end])| *end).fold(0.0, f64::max));
    let began = now.checked_sub(duration(took)).unwrap_or(now);
    let span = |(name, lane, bytes, at): (String, u8, u64, [f64; 3])| {
        let lane = lanes.into_iter().find(|known| *known as u8 == lane)?;
        let [start, ready, end] = at.map(|seconds| began + duration(seconds));
        Some(Span { name, lane, bytes, start, ready, end })
    };
    Ok(Report {
        bytes: wire.bytes,
        bytes_between: wire.bytes_between,
        planned_bytes: wire.planned_bytes,
        peak_bytes: wire.peak_bytes,
        seconds: wire.seconds,
        metrics: metrics.map_err(|source| Error::Device {
            device: "host".into(),
            op: "making room for a report".into(),
            source: Box::new(source),
        })?,
        spans: wire.spans.into_iter().filter_map(span).collect(),
        not_finite: wire.not_finite,
        note: wire.note,
    })
}
