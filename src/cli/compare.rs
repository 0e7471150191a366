//! `lapidary plan --compare`: what training would cost with other partitions.

use std::time::Instant;

use serde_json::json;

use super::output::{align, count, json_line, print, say, seconds, table};
use super::partitioner::{Partitioner, Weighings};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::forecast::{DryRun, Forecast, Subject};
use crate::runtime::Partition;

/// The seed of random parts and of partitioners, the default of `data partition`.
const SEED: u64 = 1;

/// One way to partition: its name, the seconds that it took, and the plan with its parts.
struct Compared {
    name: String,
    partition_s: f64,
    forecast: Forecast,
}

impl Compared {
    /// Returns the seconds of an epoch if ranks send while they compute.
    fn epoch_s(&self) -> Option<f64> {
        let plan = self.forecast.policies.iter().rev().find_map(|policy| policy.outcome.as_ref().ok())?;
        let sending = self.forecast.traffic.as_ref().map_or(0.0, |traffic| traffic.seconds);
        Some(plan.epoch_seconds().max(sending))
    }

    /// Returns the epochs after which the time to partition is saved, compared with `first`. `None` if it never is.
    fn pays_after(&self, first: &Self) -> Option<u64> {
        let saved = first.epoch_s()? - self.epoch_s()?;
        let cost = self.partition_s - first.partition_s;
        (saved > 0.0).then(|| (cost.max(0.0) / saved).ceil() as u64)
    }
}

/// Plans with each of `ways`, separated by commas, and prints a table, or a JSON line for each. Returns whether any fits.
///
/// # Errors
/// [`Error::Value`](crate::error::Error::Value) for a way that does not exist; those of the partitioners and of
/// [`DryRun::run`].
pub(super) fn run(
    ways: &str,
    weighings: &Weighings,
    dry_run: &DryRun<'_>,
    data: &Dataset,
    as_json: bool,
) -> Result<bool> {
    let ways = ways.split(',').map(|way| Ok((way, Partitioner::parse("compare", way)?))).collect::<Result<Vec<_>>>()?;
    ways.iter().try_for_each(|(_, partitioner)| partitioner.check_weights(weighings))?;
    let weights = weighings.weights(data, dry_run)?;
    let mut compared: Vec<Compared> = Vec::new();
    for (name, partitioner) in ways {
        if !as_json {
            say(format_args!("planning with the partition {name}"));
        }
        let start = Instant::now();
        let assignment = partitioner.assign(data, dry_run, &weights, SEED)?;
        let partition_s = start.elapsed().as_secs_f64();
        let (order, ranges) = assignment.relabelling();
        let moved = data.relabelled(&order);
        let dry_run = dry_run.clone().subject(Subject::Data(&moved)).partition(Partition::Ranges(ranges));
        let forecast = dry_run.run()?;
        let one = Compared { name: name.into(), partition_s, forecast };
        if as_json {
            json_line(&line(&one, compared.first()))?;
        }
        compared.push(one);
    }
    if !as_json {
        print(&show(&compared))?;
    }
    Ok(compared.iter().any(|one| one.epoch_s().is_some()))
}

fn line(one: &Compared, first: Option<&Compared>) -> serde_json::Value {
    let traffic = one.forecast.traffic.as_ref();
    json!({
        "event": "compare",
        "partition": one.name,
        "partition_seconds": one.partition_s,
        "halo_rows": one.forecast.parts.iter().map(|part| part.halo).sum::<u64>(),
        "rows": traffic.map(|traffic| traffic.epoch.rows),
        "messages": traffic.map(|traffic| traffic.epoch.messages),
        "bytes": traffic.map(|traffic| traffic.epoch.bytes),
        "largest": traffic.map(|traffic| traffic.largest()),
        "imbalance": imbalance(&one.forecast),
        "network_seconds": traffic.map(|traffic| traffic.seconds),
        "epoch_seconds": one.epoch_s(),
        "pays_after_epochs": first.and_then(|first| one.pays_after(first)),
    })
}

/// Returns the predicted seconds of the slowest part's kernels, divided by the mean.
fn imbalance(forecast: &Forecast) -> f64 {
    let seconds = forecast.parts.iter().map(|part| part.compute_seconds);
    let (sum, most) = seconds.fold((0.0, 0.0f64), |(sum, most), s| (sum + s, most.max(s)));
    if sum > 0.0 { most * forecast.parts.len() as f64 / sum } else { 1.0 }
}

fn show(compared: &[Compared]) -> String {
    let mut table = table([
        "partition",
        "halo rows",
        "sent rows",
        "a rank, at most",
        "messages",
        "imbalance",
        "to partition",
        "epoch",
        "pays after",
    ]);
    for one in compared {
        let traffic = one.forecast.traffic.as_ref();
        let of_traffic = |number: Option<u64>| number.map_or_else(|| "-".into(), count);
        let pays = match (&compared[0], one.epoch_s()) {
            (first, _) if std::ptr::eq(first, one) => "-".into(),
            (first, Some(_)) => {
                let epochs = |n| format!("{} epoch{}", count(n), if n == 1 { "" } else { "s" });
                one.pays_after(first).map_or_else(|| "never".into(), epochs)
            }
            (_, None) => "-".into(),
        };
        table.add_row([
            one.name.clone(),
            count(one.forecast.parts.iter().map(|part| part.halo).sum()),
            of_traffic(traffic.map(|traffic| traffic.epoch.rows)),
            of_traffic(traffic.map(|traffic| traffic.largest().rows)),
            of_traffic(traffic.map(|traffic| traffic.epoch.messages)),
            format!("{:.3}", imbalance(&one.forecast)),
            seconds(one.partition_s),
            one.epoch_s().map_or_else(|| "does not fit".into(), seconds),
            pays,
        ]);
    }
    align(table)
}
