//! "What lives when": the memory of a device over the kernel calls of an epoch.

use std::collections::{BTreeMap, BTreeSet};

use super::unit;
use crate::cli::forecast::size;
use crate::cli::output::count;
use crate::cli::page::{Band, Bands, Block};
use crate::forecast::{Arrival, Forecast, Residency, TensorRole, TensorStay};
use crate::lower::operation_name;

/// The most columns of the picture.
const MOST_COLUMNS: usize = 400;

/// The most bands, without that of all others.
const MOST_BANDS: usize = 12;

/// The most rows of the table.
const MOST_ROWS: usize = 20;

/// A limit that is more than so many times the peak is not drawn: it would press the picture flat.
const HIGHEST_LIMIT: f64 = 2.0;

/// A tensor with all of its tiles, and with its next value.
struct Lived<'a> {
    name: &'a str,
    role: TensorRole,
    stays: Vec<&'a TensorStay>,
    /// Its bytes on the device at each moment.
    bytes: Vec<u64>,
}

/// Returns a picture of what the device with the highest peak holds under the last policy, and a table of the largest
/// tensors.
pub(super) fn blocks(forecast: &Forecast) -> Vec<Block> {
    let plan = forecast.policies.last().and_then(|policy| policy.outcome.as_ref().ok());
    let Some(residency) = plan.and_then(|plan| plan.residency.as_ref()) else { return Vec::new() };
    let lived = largest_first(residency);
    vec![
        Block::Heading("What lives when".into()),
        Block::Paragraph(introduction(forecast, residency)),
        Block::Bands(picture(&lived, residency, forecast.device_memory)),
        table(&lived),
    ]
}

fn introduction(forecast: &Forecast, residency: &Residency) -> String {
    let Residency { device, calls, peak_bytes, setup_peak_bytes, .. } = *residency;
    let of_part = match forecast.parts.len() {
        1 => String::new(),
        parts => format!(" of part {device}, the first of {parts} with the highest peak"),
    };
    let policy = forecast.policies.last().map_or("", |policy| policy.policy.name());
    let columns = match calls.div_ceil(MOST_COLUMNS) {
        0 | 1 => String::new(),
        each => format!(" A column stands for {each} calls, and shows the one with the most bytes."),
    };
    let setup = match setup_peak_bytes > peak_bytes {
        true => format!(" The setup, once before the first epoch, needs {}.", size(setup_peak_bytes)),
        false => String::new(),
    };
    format!(
        "The memory{of_part} at each of the {} kernel calls of an epoch, planned by {policy}. At most {} are held at once, of \
         {}.{setup}{columns}",
        count(calls as u64),
        size(peak_bytes),
        size(forecast.device_memory)
    )
}

/// Returns the tensors of an epoch, those with the most bytes at once first.
fn largest_first(residency: &Residency) -> Vec<Lived<'_>> {
    let mut by_name: BTreeMap<&str, Lived<'_>> = BTreeMap::new();
    for stay in &residency.stays {
        // A tile is one of several pieces, and `x'` is the next value of `x`.
        let name = operation_name(&stay.name).trim_end_matches('\'');
        let new = || Lived { name, role: stay.role, stays: Vec::new(), bytes: vec![0; moments(residency)] };
        let lived = by_name.entry(name).or_insert_with(new);
        lived.stays.push(stay);
        lived.bytes[stay.from..=stay.to].iter_mut().for_each(|bytes| *bytes += stay.bytes);
    }
    let mut lived: Vec<Lived<'_>> = by_name.into_values().collect();
    lived.sort_by_key(|of| std::cmp::Reverse((of.most(), of.bytes.iter().sum::<u64>())));
    lived
}

/// Returns the number of moments: the start of the epoch, its calls, and its end if that copies.
fn moments(residency: &Residency) -> usize {
    residency.stays.iter().map(|stay| stay.to).max().unwrap_or(0).max(residency.calls) + 1
}

impl Lived<'_> {
    /// Returns its most bytes at once.
    fn most(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the bytes of some of its stays.
    fn bytes_of(&self, wanted: impl Fn(&TensorStay) -> bool) -> u64 {
        self.stays.iter().filter(|stay| wanted(stay)).map(|stay| stay.bytes).sum()
    }

    /// Returns the first and the last moment at which it is on the device.
    fn span(&self) -> [usize; 2] {
        let first = self.stays.iter().map(|stay| stay.from).min().unwrap_or(0);
        [first, self.stays.iter().map(|stay| stay.to).max().unwrap_or(0)]
    }

    /// Returns the number of its tiles.
    fn pieces(&self) -> usize {
        let tiles = self.stays.iter().map(|stay| stay.name.trim_end_matches('\'')).filter(|name| name.ends_with(']'));
        tiles.collect::<BTreeSet<_>>().len().max(1)
    }

    /// Describes whether it stays or moves.
    fn fate(&self) -> String {
        // Of what is there at the end, an epoch inherits inputs alone.
        let lasts = matches!(self.role, TensorRole::Data | TensorRole::Weights);
        let is_kept = lasts && self.stays.iter().any(|stay| stay.kept);
        let from_before = self.stays.iter().any(|stay| stay.arrival == Arrival::Start);
        let moves = self.stays.iter().any(|stay| stay.arrival == Arrival::Load || stay.stored);
        let words = match (from_before, is_kept, moves) {
            (true, true, false) => "kept from epoch to epoch",
            (_, true, false) => "kept for the next epoch",
            (_, false, false) => "freed after its last use",
            (true, true, true) => "partly kept, partly moved",
            (_, _, true) => "moved",
        };
        words.into()
    }
}

/// Returns, for each column, its first moment and the moment that it shows: the one with the most bytes.
fn columns(totals: &[u64]) -> Vec<(usize, usize)> {
    let each = totals.len().div_ceil(MOST_COLUMNS).max(1);
    let starts = (0..totals.len()).step_by(each);
    let highest = |start: usize| (start..(start + each).min(totals.len())).max_by_key(|&moment| totals[moment]);
    starts.filter_map(|start| Some((start, highest(start)?))).collect()
}

fn picture(lived: &[Lived<'_>], residency: &Residency, limit: u64) -> Bands {
    let mut totals = vec![0u64; moments(residency)];
    for of in lived {
        totals.iter_mut().zip(&of.bytes).for_each(|(total, bytes)| *total += bytes);
    }
    let columns = columns(&totals);
    let (unit, divisor) = unit(residency.peak_bytes.max(1));
    let heights = |bytes: &[u64]| columns.iter().map(|&(_, shown)| bytes[shown] as f64 / divisor).collect::<Vec<_>>();
    let (shown, others) = lived.split_at(lived.len().min(MOST_BANDS));
    // What is there for the longest time is at the bottom.
    let mut shown: Vec<&Lived<'_>> = shown.iter().collect();
    shown.sort_by_key(|of| std::cmp::Reverse(of.bytes.iter().filter(|bytes| **bytes > 0).count()));
    let band = |of: &&Lived<'_>| Band {
        name: of.name.into(),
        note: format!("{}, {}, {}", size(of.most()), calls(of.span()), of.fate()),
        kind: TensorRole::ALL.iter().position(|role| *role == of.role),
        heights: heights(&of.bytes),
    };
    let mut bands: Vec<Band> = shown.iter().map(band).collect();
    if !others.is_empty() {
        let mut rest = totals.clone();
        shown.iter().for_each(|of| rest.iter_mut().zip(&of.bytes).for_each(|(rest, bytes)| *rest -= bytes));
        let most = rest.iter().copied().max().unwrap_or(0);
        let note = format!("{} tensors, at most {} at once", count(others.len() as u64), size(most));
        bands.push(Band { name: "all others".into(), note, kind: None, heights: heights(&rest) });
    }
    let draws_limit = limit as f64 <= HIGHEST_LIMIT * residency.peak_bytes as f64;
    Bands {
        title: "Bytes on the device at each kernel call of an epoch".into(),
        x_label: "kernel call of an epoch".into(),
        y_label: format!("memory of the device, {unit}"),
        steps: columns.iter().map(|(start, _)| *start).chain([totals.len()]).collect(),
        bands,
        kinds: TensorRole::ALL.map(|role| role.name().to_owned()).to_vec(),
        limit: draws_limit.then(|| (limit as f64 / divisor, format!("memory of the device: {}", size(limit)))),
        mark: residency.evaluates_from.map(|call| (call, "evaluation".into())),
    }
}

/// Describes a span of moments.
fn calls([from, to]: [usize; 2]) -> String {
    match (from, to) {
        (0, to) => format!("from the start to call {}", count(to as u64)),
        (from, to) if from == to => format!("at call {}", count(to as u64)),
        (from, to) => format!("from call {} to {}", count(from as u64), count(to as u64)),
    }
}

fn table(lived: &[Lived<'_>]) -> Block {
    let row = |of: &Lived<'_>| {
        let bytes = |bytes: u64| if bytes == 0 { "-".into() } else { size(bytes) };
        let [from, to] = of.span().map(|moment| count(moment as u64));
        [
            of.name.into(),
            of.role.name().into(),
            of.pieces().to_string(),
            size(of.most()),
            from,
            to,
            bytes(of.bytes_of(|stay| stay.arrival == Arrival::Load)),
            bytes(of.bytes_of(|stay| stay.stored)),
            of.fate(),
        ]
    };
    let header =
        ["tensor", "what", "pieces", "most at once", "from call", "to call", "to device", "to host", "kept or moved"];
    Block::table(header, lived.iter().take(MOST_ROWS).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::{DryRun, Shape, Subject};
    use crate::model::Model;
    use bytesize::ByteSize;

    /// Products' shape: its plan in 4 GB has 32 tiles.
    fn forecast(memory: ByteSize) -> Forecast {
        let shape = Shape { vertices: 2_449_029, edges: 123_718_152, features: 100, classes: 47, directed: false };
        let model = Model::gcn(&[100, 256, 256, 47]).dropout(0.5);
        let run = DryRun::new(&model, Subject::Shape(shape)).profile("a100").device_memory(memory).residency(true);
        run.run().expect("it can be planned")
    }

    fn residency(forecast: &Forecast) -> &Residency {
        let plan = forecast.policies[0].outcome.as_ref().expect("it fits");
        plan.residency.as_ref().expect("it was requested")
    }

    #[test]
    fn the_highest_column_is_the_peak_and_no_column_is_above_the_limit() {
        for memory in [ByteSize::gb(4), ByteSize::gib(20)] {
            let forecast = forecast(memory);
            let residency = residency(&forecast);
            let lived = largest_first(residency);
            let drawn = picture(&lived, residency, forecast.device_memory);
            assert!(drawn.steps.len() <= MOST_COLUMNS + 1 && drawn.bands.len() <= MOST_BANDS + 1);
            let total = |column: usize| drawn.bands.iter().map(|band| band.heights[column]).sum::<f64>();
            let highest = (0..drawn.steps.len() - 1).map(total).fold(0.0, f64::max);
            let (_, divisor) = unit(residency.peak_bytes);
            let peak = forecast.policies[0].outcome.as_ref().expect("it fits").peak_bytes();
            assert_eq!((highest * divisor).round() as u64, residency.peak_bytes);
            assert_eq!(residency.peak_bytes.max(residency.setup_peak_bytes), peak);
            assert!(residency.peak_bytes <= memory.as_u64());
        }
    }

    #[test]
    fn what_is_copied_is_what_the_plan_copies() {
        let forecast = forecast(ByteSize::gb(4));
        let lived = largest_first(residency(&forecast));
        let [to_device, to_host] = forecast.policies[0].outcome.as_ref().expect("it fits").bytes();
        let sum = |wanted: &dyn Fn(&TensorStay) -> bool| lived.iter().map(|of| of.bytes_of(wanted)).sum::<u64>();
        assert!(to_device > 0 && to_host > 0);
        assert_eq!([sum(&|stay| stay.arrival == Arrival::Load), sum(&|stay| stay.stored)], [to_device, to_host]);
        assert!(lived.iter().any(|of| of.pieces() > 1), "tiles are one tensor");
    }

    #[test]
    fn roles_are_those_of_the_passes() {
        let forecast = forecast(ByteSize::gib(20));
        let lived = largest_first(residency(&forecast));
        let role = |part: &str| {
            let found = lived.iter().find(|of| of.name.starts_with(part));
            found.unwrap_or_else(|| panic!("{part} is there")).role
        };
        assert_eq!(role("softmax_cross_entropy_grad"), TensorRole::Backward);
        assert_eq!(role("linear_weight_grad"), TensorRole::Backward);
        assert_eq!(role("column_sum"), TensorRole::Backward);
        assert_eq!(role("gather+row_scale+add_bias+relu"), TensorRole::Forward);
        assert_eq!(role("evaluate.gather"), TensorRole::Evaluation);
        assert_eq!(role("convs.0.lin.weight"), TensorRole::Weights);
        assert_eq!(role("split"), TensorRole::Data);
    }

    #[test]
    fn columns_show_their_highest_moment() {
        let totals: Vec<u64> = (0..1000).map(|moment| moment * 7919 % 1009).collect();
        let columns = columns(&totals);
        assert_eq!(columns.len(), 334);
        assert!(columns.iter().all(|&(start, shown)| (start..start + 3).contains(&shown)));
        assert_eq!(columns.iter().map(|(_, shown)| totals[*shown]).max(), totals.iter().copied().max());
        assert_eq!(super::columns(&[1, 2]), [(0, 0), (1, 1)]);
    }
}
