//! The output of `lapidary plan` for a dry run of training.

use lapidary_planner::memory::{Objective, Policy};
use serde::Serialize;
use serde_json::json;

use super::advice::{WORDS, advice};
use super::output::{align, count, facts, json_line, percent, print, seconds, table};
use crate::error::Result;
use crate::forecast::{
    CurvePoint, DeviceForecast, Forecast, Load, PlanForecast, PolicyForecast, StepForecast, Traffic,
};
use crate::lower::{BackwardMode, ExchangePath};

/// The most devices that a table shows.
const MOST_ROWS: usize = 16;

/// The columns of [`policy_rows`].
pub(super) const POLICY_COLUMNS: [&str; 9] =
    ["policy", "tiles", "to devices", "to host", "lower bound", "gap", "peak", "host memory", "epoch"];

/// The columns of [`curve_rows`].
pub(super) const CURVE_COLUMNS: [&str; 5] = ["device memory", "tiles", "to devices", "to host", "epoch"];

/// Prints tables, or with `as_json` one JSON line per policy and one per point of the curve.
pub(super) fn show(forecast: &Forecast, objective: Objective, explain: bool, as_json: bool) -> Result<()> {
    if as_json {
        for policy in &forecast.policies {
            match &policy.outcome {
                Ok(plan) => json_line(&plan_line(forecast, policy.policy, plan))?,
                Err(needed_bytes) => json_line(&json!({
                    "event": "plan",
                    "policy": policy.policy.name(),
                    "feasible": false,
                    "needed_bytes": needed_bytes,
                }))?,
            }
        }
        for point in &forecast.curve {
            let mut line = json!({
                "event": "whatif",
                "device_memory": point.device_memory,
                "tiles": point.tiles,
                "strips": point.strips,
                "bytes_to_device": point.bytes_to_device,
                "bytes_to_host": point.bytes_to_host,
                "epoch_seconds": point.epoch_seconds,
            });
            if point.bytes_between_devices > 0 {
                line["bytes_between_devices"] = point.bytes_between_devices.into();
            }
            json_line(&line)?;
        }
        if let Some(traffic) = &forecast.traffic {
            json_line(&traffic_line(traffic, forecast))?;
        }
        return Ok(());
    }
    print(&facts(&target_facts(forecast)))?;
    print(&format!("\n{}", parts_table(forecast)))?;
    print(&format!("\n{}", policies_table(forecast, objective)))?;
    if forecast.parts.len() > 1 {
        for policy in &forecast.policies {
            if let Ok(plan) = &policy.outcome {
                print(&format!("\n{}", devices_table(policy, plan)))?;
            }
        }
    }
    if let Some(traffic) = &forecast.traffic {
        print(&format!("\n{}", traffic_table(traffic, forecast)))?;
    }
    if explain {
        for policy in &forecast.policies {
            if let Ok(plan) = &policy.outcome {
                print(&steps(policy, plan))?;
            }
        }
    }
    if !forecast.curve.is_empty() {
        print(&format!("\n{}", curve_table(&forecast.curve)))?;
        if let Some(knee) = knee(&forecast.curve) {
            print(&format!("\n{knee}"))?;
        }
    }
    print(&format!("\n{WORDS}"))?;
    match advice(forecast, size) {
        Some(advice) => print(&format!("\n{advice}")),
        None => Ok(()),
    }
}

/// Returns what is planned for, as names and values.
pub(super) fn target_facts(forecast: &Forecast) -> Vec<(&'static str, String)> {
    let (devices, memory) = (forecast.parts.len(), size(forecast.device_memory));
    let each = if devices == 1 { "" } else { " each" };
    let mut rows =
        vec![("devices", format!("{devices} of {memory}{each}")), ("profile", forecast.profile.name.clone())];
    rows.extend(forecast.basis().map(|basis| ("seconds", basis.to_owned())));
    rows.extend(forecast.assumption.map(|assumption| ("assumption", assumption.to_owned())));
    rows
}

/// Returns the seconds of an epoch if ranks compute while they send, and if they do not: of the last policy that fits.
fn epoch_seconds(traffic: &Traffic, forecast: &Forecast) -> Option<[f64; 2]> {
    let plan = forecast.policies.iter().rev().find_map(|policy| policy.outcome.as_ref().ok())?;
    let kernels = plan.epoch_seconds() + plan.eval_seconds();
    Some([kernels.max(traffic.seconds), kernels + traffic.seconds])
}

fn traffic_line(traffic: &Traffic, forecast: &Forecast) -> serde_json::Value {
    let pairs = traffic.pairs.iter().map(|(from, to, load)| json!([from, to, load.rows, load.messages, load.bytes]));
    json!({
        "event": "ranks",
        "ranks": traffic.ranks,
        "network": traffic.network,
        "rows": traffic.epoch.rows,
        "messages": traffic.epoch.messages,
        "bytes": traffic.epoch.bytes,
        "largest": traffic.largest(),
        "setup": traffic.setup,
        "broadcast": traffic.broadcast,
        "two_copies": traffic.two_copies,
        "gradient_bytes": traffic.gradient_bytes,
        "network_seconds": traffic.seconds,
        "epoch_seconds": epoch_seconds(traffic, forecast),
        "pairs": pairs.collect::<Vec<_>>(),
    })
}

/// Formats what the ranks send each other.
fn traffic_table(traffic: &Traffic, forecast: &Forecast) -> String {
    let mut table = table([&format!("{} ranks", traffic.ranks), "rows", "messages", "bytes"]);
    let ranks = traffic.ranks as u64;
    let average = Load {
        rows: traffic.epoch.rows / ranks,
        messages: traffic.epoch.messages / ranks,
        bytes: traffic.epoch.bytes / ranks,
    };
    let loads = [
        ("all, in an epoch", traffic.epoch),
        ("a rank, on average", average),
        ("a rank, at most", traffic.largest()),
        ("all, once before", traffic.setup),
        ("if all rows were broadcast", traffic.broadcast),
    ];
    let two_copies = traffic.two_copies.map(|load| ("if two ranks held each row (1.5D)", load));
    for (what, load) in loads.into_iter().chain(two_copies) {
        table.add_row([what.to_owned(), count(load.rows), count(load.messages), size(load.bytes)]);
    }
    table.add_row(["gradients, a rank".to_owned(), String::new(), String::new(), size(traffic.gradient_bytes)]);
    let network = traffic.network;
    let rate = format!("{} per message, {} per second", seconds(network.latency_s), size(network.bytes_per_s as u64));
    let mut rows = vec![("network", rate), ("sending", format!("{} of an epoch", seconds(traffic.seconds)))];
    if let Some([beside, after]) = epoch_seconds(traffic, forecast) {
        rows.push(("epoch", format!("{} if ranks send while they compute, else {}", seconds(beside), seconds(after))));
    }
    format!("{}\n\n{}", align(table), facts(&rows))
}

/// A plan as one JSON line. There can be many steps, so they are borrowed and not copied.
#[derive(Serialize)]
struct PlanLine<'a> {
    event: &'static str,
    policy: &'static str,
    feasible: bool,
    exact: bool,
    bytes_to_device: u64,
    bytes_to_host: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_between_devices: Option<u64>,
    peak_bytes: u64,
    lower_bound_bytes: u64,
    epoch_seconds: f64,
    epoch_seconds_range: [f64; 2],
    eval_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    basis: Option<&'static str>,
    host_bytes: u64,
    tiles: usize,
    strips: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backward: Option<&'static str>,
    devices: Vec<DeviceLine<'a>>,
}

#[derive(Serialize)]
struct DeviceLine<'a> {
    rows: [u64; 2],
    edges: u64,
    halo_rows: u64,
    compute_seconds: f64,
    exact: bool,
    bytes_to_device: u64,
    bytes_to_host: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_between_devices: Option<u64>,
    peak_bytes: u64,
    lower_bound_bytes: u64,
    bound_to_order: bool,
    epoch_seconds: f64,
    eval_seconds: f64,
    steps: &'a [StepForecast],
}

fn plan_line<'a>(forecast: &Forecast, policy: Policy, plan: &'a PlanForecast) -> PlanLine<'a> {
    let [bytes_to_device, bytes_to_host] = plan.bytes();
    let devices = plan.devices.iter().zip(&forecast.parts).map(|(device, part)| DeviceLine {
        rows: [part.vertices.start, part.vertices.end],
        edges: part.edges,
        halo_rows: part.halo,
        compute_seconds: part.compute_seconds,
        exact: device.exact,
        bytes_to_device: device.bytes_to_device,
        bytes_to_host: device.bytes_to_host,
        bytes_between_devices: some(device.bytes_between_devices),
        peak_bytes: device.peak_bytes,
        lower_bound_bytes: device.lower_bound_bytes,
        bound_to_order: device.bound_to_order,
        epoch_seconds: device.epoch_seconds,
        eval_seconds: device.eval_seconds,
        steps: &device.steps,
    });
    PlanLine {
        event: "plan",
        policy: policy.name(),
        feasible: true,
        exact: plan.devices.iter().all(|device| device.exact),
        bytes_to_device,
        bytes_to_host,
        bytes_between_devices: some(plan.bytes_between_devices()),
        peak_bytes: plan.peak_bytes(),
        lower_bound_bytes: lower_bound(plan),
        epoch_seconds: plan.epoch_seconds(),
        epoch_seconds_range: plan.epoch_seconds_range(),
        eval_seconds: plan.eval_seconds(),
        basis: forecast.basis(),
        host_bytes: plan.host_bytes,
        tiles: plan.tiles,
        strips: plan.strips,
        backward: plan.folds.then_some(BackwardMode::Fold.name()),
        exchange: (plan.devices.len() > 1).then_some(plan.exchange.name()),
        devices: devices.collect(),
    }
}

/// Returns `None` for 0, so that the field is left out.
fn some(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

fn lower_bound(plan: &PlanForecast) -> u64 {
    plan.devices.iter().map(|device| device.lower_bound_bytes).sum()
}

fn parts_table(forecast: &Forecast) -> String {
    let slowest = forecast.parts.iter().map(|part| part.compute_seconds).fold(0.0, f64::max);
    let mean = forecast.parts.iter().map(|part| part.compute_seconds).sum::<f64>() / forecast.parts.len() as f64;
    let mut table = table(["part", "rows", "edges", "halo rows", "all kernels"]);
    let shown = slowest_first(&forecast.parts, |part| part.compute_seconds);
    for &i in &shown {
        let part = &forecast.parts[i];
        let rows = part.vertices.end - part.vertices.start;
        let numbers = [rows, part.edges, part.halo].map(count);
        table.add_row([i.to_string()].into_iter().chain(numbers).chain([seconds(part.compute_seconds)]));
    }
    let mut text = align(table) + &and_more(forecast.parts.len() - shown.len());
    if forecast.parts.len() > 1 && mean > 0.0 {
        text += &format!("\nthe slowest part takes {:.3} times the mean", slowest / mean);
    }
    text
}

/// Returns a row for each policy; of one that does not fit, only its name.
pub(super) fn policy_rows(forecast: &Forecast, objective: Objective) -> Vec<[String; 9]> {
    let row = |policy: &PolicyForecast| {
        let name = policy.policy.name().to_owned();
        let Ok(plan) = &policy.outcome else {
            return std::array::from_fn(|column| if column == 0 { name.clone() } else { "-".into() });
        };
        let [to_device, to_host] = plan.bytes();
        let cost = to_device + if objective == Objective::Both { to_host } else { 0 };
        let bound = lower_bound(plan);
        // If the cost is above 0, a bound of 0 gives no information.
        let gap = (bound > 0 || cost == 0).then(|| (cost - bound.min(cost)) as f64 / cost.max(1) as f64);
        [
            name,
            plan.tiles.to_string(),
            size(to_device),
            size(to_host),
            if bound == 0 && cost > 0 { "-".into() } else { size(bound) },
            percent(gap),
            size(plan.peak_bytes()),
            size(plan.host_bytes),
            seconds(plan.epoch_seconds()),
        ]
    };
    forecast.policies.iter().map(row).collect()
}

/// Returns what is to be said of the policies below their table.
pub(super) fn policy_notes(forecast: &Forecast) -> Vec<String> {
    let (mut notes, mut too_small) = (Vec::new(), Vec::new());
    for policy in &forecast.policies {
        let name = policy.policy.name();
        let plan = match &policy.outcome {
            Ok(plan) => plan,
            Err(needed) => {
                let needs = format!("it needs {} ({needed} bytes) per device", size(*needed));
                too_small.push(format!("{name} does not fit: {needs}"));
                continue;
            }
        };
        let between = plan.bytes_between_devices();
        if between > 0 {
            let stages = if plan.exchange == ExchangePath::Staged { ", in stages" } else { "" };
            notes.push(format!("{name} copies {} per epoch between devices{stages}", size(between)));
        }
        if plan.devices.iter().any(|device| device.bound_to_order) {
            notes.push(format!("{name} has so many steps that its bound is that of plans in this order"));
        }
        if plan.strips > 1 {
            notes.push(format!("{name} cuts wide matrices into {} strips of columns", plan.strips));
        }
        let [from, to] = plan.epoch_seconds_range().map(seconds);
        let mut expected = format!("{name}: 9 of 10 epochs are expected to take {from} to {to}");
        if plan.eval_seconds() > 0.0 {
            expected += &format!(", and an evaluation {} more", seconds(plan.eval_seconds()));
        }
        notes.push(expected);
        if plan.folds {
            notes.push(format!("{name} sends sums backward (--backward fold)"));
        }
    }
    notes.extend(too_small);
    notes
}

fn policies_table(forecast: &Forecast, objective: Objective) -> String {
    let mut table = table(POLICY_COLUMNS);
    table.add_rows(policy_rows(forecast, objective));
    let notes = policy_notes(forecast).iter().map(|note| format!("\n{note}")).collect::<String>();
    align(table) + &notes
}

fn devices_table(policy: &PolicyForecast, plan: &PlanForecast) -> String {
    let mut table = table([policy.policy.name(), "to device", "to host", "lower bound", "peak", "epoch"]);
    let shown = slowest_first(&plan.devices, |device| device.epoch_seconds);
    for &i in &shown {
        let device = &plan.devices[i];
        let DeviceForecast { bytes_to_device, bytes_to_host, lower_bound_bytes, peak_bytes, .. } = *device;
        let numbers = [bytes_to_device, bytes_to_host, lower_bound_bytes, peak_bytes].map(size);
        let row = [format!("device {i}")].into_iter().chain(numbers).chain([seconds(device.epoch_seconds)]);
        table.add_row(row);
    }
    align(table) + &and_more(plan.devices.len() - shown.len())
}

/// Returns the places of the rows that a table shows: all, or of many the slowest.
pub(super) fn slowest_first<T>(rows: &[T], seconds: impl Fn(&T) -> f64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..rows.len()).collect();
    if rows.len() > MOST_ROWS {
        places.sort_by(|&a, &b| seconds(&rows[b]).total_cmp(&seconds(&rows[a])));
        places.truncate(MOST_ROWS);
    }
    places
}

fn and_more(left_out: usize) -> String {
    if left_out == 0 { String::new() } else { format!("\nand {left_out} that are not slower (--json has all)") }
}

/// Returns a row for each point of the curve. Points with the same text are there once.
pub(super) fn curve_rows(curve: &[CurvePoint]) -> Vec<[String; 5]> {
    let row = |point: &CurvePoint| {
        let [memory, to_device, to_host] = [point.device_memory, point.bytes_to_device, point.bytes_to_host].map(size);
        let tiles = match point.strips {
            1 => point.tiles.to_string(),
            strips => format!("{} x {strips}", point.tiles),
        };
        [memory, tiles, to_device, to_host, seconds(point.epoch_seconds)]
    };
    let mut rows: Vec<_> = curve.iter().map(row).collect();
    rows.dedup();
    rows
}

fn curve_table(curve: &[CurvePoint]) -> String {
    let mut table = table(CURVE_COLUMNS);
    table.add_rows(curve_rows(curve));
    align(table)
}

/// Describes the least memory of the curve from which more memory saves no bytes, and the point before it.
pub(super) fn knee(curve: &[CurvePoint]) -> Option<String> {
    let least = curve.last()?.bytes();
    let enough = curve.iter().position(|point| point.bytes() == least)?;
    let moved = |point: &CurvePoint| match point.bytes() {
        0 => "moves nothing".to_owned(),
        bytes => format!("moves {} per epoch", size(bytes)),
    };
    let knee = &curve[enough];
    let end = format!("{} {}", size(knee.device_memory), moved(knee));
    Some(match enough.checked_sub(1).map(|before| &curve[before]) {
        Some(before) => {
            format!("{} {}; {end}, and more memory helps no more", size(before.device_memory), moved(before))
        }
        None => format!("{end}, and more memory helps no more"),
    })
}

fn steps(policy: &PolicyForecast, plan: &PlanForecast) -> String {
    let mut text = String::new();
    for (i, device) in plan.devices.iter().enumerate() {
        text += &format!("\n{}, device {i}", policy.policy.name());
        for step in device.steps.iter() {
            text += &format!("\n  {}", step.op);
            for (what, tensors) in [("store", &step.store), ("evict", &step.evict), ("load", &step.load)] {
                if !tensors.is_empty() {
                    text += &format!("  | {what} {}", tensors.join(", "));
                }
            }
        }
    }
    text
}

/// Formats a size with two decimals, since neighbouring points of a curve differ in the third digit.
pub(super) fn size(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.2} {unit}") }
}
