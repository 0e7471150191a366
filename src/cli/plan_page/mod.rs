//! The page of `lapidary plan --report`: the plan as pictures and tables.

mod residency;

use lapidary_planner::memory::Objective;

use super::advice::{WORDS, advice};
use super::forecast::{
    CURVE_COLUMNS, POLICY_COLUMNS, curve_rows, knee, policy_notes, policy_rows, size, slowest_first, target_facts,
};
use super::output::{count, seconds};
use super::page::{Axis, Bars, Block, Chart, Line, Page, Row};
use crate::forecast::Forecast;

/// Returns the page. `subject` says what is trained on what.
pub(super) fn page(subject: &str, forecast: &Forecast, objective: Objective) -> Page {
    let mut blocks: Vec<Block> = advice(forecast, size).map(Block::Paragraph).into_iter().collect();
    blocks.push(Block::facts(&target_facts(forecast)));
    blocks.push(Block::Heading("Plans".into()));
    blocks.push(Block::table(POLICY_COLUMNS, policy_rows(forecast, objective)));
    blocks.push(Block::List(policy_notes(forecast)));
    blocks.extend(residency::blocks(forecast));
    curve(forecast, &mut blocks);
    blocks.push(Block::Heading("Parts".into()));
    blocks.extend(parts(forecast));
    blocks.push(Block::Heading("Words".into()));
    blocks.push(Block::List(WORDS.lines().map(|line| line.replacen("  ", ": ", 1)).collect()));
    blocks.push(Block::Heading("Again".into()));
    blocks.push(Block::command());
    Page { title: format!("Plan: {subject}"), blocks }
}

/// Adds pictures of the copies and the time of an epoch over the memory of a device, and their table.
fn curve(forecast: &Forecast, blocks: &mut Vec<Block>) {
    if forecast.curve.is_empty() {
        return;
    }
    let largest = forecast.curve.iter().map(|point| point.device_memory).max().unwrap_or(1);
    let (unit, divisor) = unit(largest);
    let memory = |bytes: u64| bytes as f64 / divisor;
    let x = || Axis { label: format!("memory of a device, {unit}"), is_log: true };
    // All memory of a large device would squeeze the picture.
    let here = forecast.device_memory;
    let mark = || (here <= largest).then(|| (memory(here), format!("planned for: {}", size(here))));
    let line = |name: &str, y: &dyn Fn(&crate::forecast::CurvePoint) -> f64| Line {
        name: name.into(),
        points: forecast.curve.iter().map(|point| (memory(point.device_memory), y(point))).collect(),
    };
    let most = forecast.curve.iter().map(|point| point.bytes()).max().unwrap_or(1);
    let (copied, scale) = self::unit(most.max(1));
    blocks.push(Block::Heading("With other memory".into()));
    blocks.extend(knee(&forecast.curve).map(Block::Paragraph));
    blocks.push(Block::Chart(Chart {
        title: "Bytes that an epoch copies, over the memory of a device".into(),
        x: x(),
        y: Axis { label: format!("copied in an epoch, {copied}"), is_log: false },
        lines: vec![
            line("to devices", &|point| point.bytes_to_device as f64 / scale),
            line("to the host", &|point| point.bytes_to_host as f64 / scale),
        ],
        mark: mark(),
    }));
    blocks.push(Block::Chart(Chart {
        title: "Predicted seconds of an epoch, over the memory of a device".into(),
        x: x(),
        y: Axis { label: "predicted time of an epoch, ms".into(), is_log: true },
        lines: vec![line("epoch", &|point| point.epoch_seconds * 1e3)],
        mark: mark(),
    }));
    blocks.push(Block::table(CURVE_COLUMNS, curve_rows(&forecast.curve)));
}

/// Returns a picture and a table of the parts under the last policy; of many, the slowest.
fn parts(forecast: &Forecast) -> Vec<Block> {
    let shown = slowest_first(&forecast.parts, |part| part.compute_seconds);
    let plan = forecast.policies.last().and_then(|policy| policy.outcome.as_ref().ok());
    let row = |&i: &usize| {
        let part = &forecast.parts[i];
        let device = plan.map(|plan| &plan.devices[i]);
        let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), size);
        [
            i.to_string(),
            count(part.vertices.end - part.vertices.start),
            count(part.edges),
            count(part.halo),
            seconds(part.compute_seconds),
            bytes(device.map(|device| device.bytes_to_device)),
            bytes(device.map(|device| device.bytes_to_host)),
            bytes(device.map(|device| device.peak_bytes)),
            device.map_or("-".into(), |device| seconds(device.epoch_seconds)),
        ]
    };
    let header = ["part", "rows", "edges", "halo rows", "all kernels", "to device", "to host", "peak", "epoch"];
    let mut blocks = Vec::new();
    if forecast.parts.len() > 1 {
        blocks.push(Block::Bars(bars(forecast, &shown)));
    }
    blocks.push(Block::table(header, shown.iter().map(row).collect()));
    if shown.len() < forecast.parts.len() {
        let left_out = forecast.parts.len() - shown.len();
        blocks.push(Block::Paragraph(format!("and {left_out} that are not slower (--json has all)")));
    }
    blocks
}

/// Returns a picture of the predicted seconds of these parts: of their kernels alone, and of an epoch with its copies.
fn bars(forecast: &Forecast, shown: &[usize]) -> Bars {
    let plan = forecast.policies.last().and_then(|policy| policy.outcome.as_ref().ok());
    let row = |&i: &usize| {
        let epoch = plan.map(|plan| Some(plan.devices[i].epoch_seconds));
        let kernels = Some(forecast.parts[i].compute_seconds);
        Row::of_seconds(format!("part {i}"), &[Some(kernels), epoch].into_iter().flatten().collect::<Vec<_>>())
    };
    let series = ["all kernels", "epoch, with copies beside kernels"];
    Bars {
        title: "Predicted seconds of each part in an epoch".into(),
        series: series[..if plan.is_some() { 2 } else { 1 }].iter().map(|name| (*name).to_owned()).collect(),
        rows: shown.iter().map(row).collect(),
    }
}

/// Returns the largest unit of which `bytes` are at least one, and its bytes.
fn unit(bytes: u64) -> (&'static str, f64) {
    let units = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let (name, shift) = units.into_iter().rev().find(|(_, shift)| bytes >> shift > 0).unwrap_or(units[0]);
    (name, (1u64 << shift) as f64)
}
