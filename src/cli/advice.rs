//! The last lines of `lapidary plan`: what the words of its tables mean, and what follows from them.

use super::output::seconds;
use crate::forecast::{Forecast, PlanForecast};
use crate::host;

/// The words of the tables.
pub(super) const WORDS: &str = "\
tiles      pieces of rows that are computed one after the other, so that each fits
halo rows  rows of other parts that a part reads
gap        the share of the copied bytes that is above what any plan must copy";

/// Returns whether the training fits, what it costs, and what would help. `size` formats bytes.
pub(super) fn advice(forecast: &Forecast, size: fn(u64) -> String) -> Option<String> {
    // Policies are listed from simple to good.
    let last = forecast.policies.last()?;
    let memory = size(forecast.device_memory);
    let plan = match &last.outcome {
        Ok(plan) => plan,
        Err(needed) => {
            return Some(format!(
                "It does not fit into {memory}: give each device {} (--device-memory), make the model narrower (--hidden) or \
                 use more devices (--devices).",
                size(*needed)
            ));
        }
    };
    let epoch = seconds(plan.epoch_seconds());
    let copied: u64 = plan.bytes().iter().sum();
    let pieces = if plan.tiles == 1 { String::new() } else { format!(" in {} tiles", plan.tiles) };
    let mut text = match copied {
        0 => format!("It fits into {memory}{pieces}, and copies nothing: an epoch takes about {epoch}."),
        _ => format!("It fits into {memory}{pieces}, and copies {} an epoch, which takes about {epoch}.", size(copied)),
    };
    if let Some((enough, whole_s)) = whole(forecast).filter(|_| copied > 0) {
        text += &format!(" With {} a device, it would copy nothing and take {}.", size(enough), seconds(whole_s));
    }
    if let Some(remark) = host_remark(plan, size) {
        text += &format!(" {remark}");
    }
    Some(text)
}

/// Returns the least memory of the curve with which nothing is copied, and the seconds of an epoch.
fn whole(forecast: &Forecast) -> Option<(u64, f64)> {
    let point = forecast.curve.iter().find(|point| point.bytes() == 0)?;
    Some((point.device_memory, point.epoch_seconds))
}

fn host_remark(plan: &PlanForecast, size: fn(u64) -> String) -> Option<String> {
    let has = host::memory_bytes();
    (plan.host_bytes > has)
        .then(|| format!("The host needs {} for it, and this machine has {}.", size(plan.host_bytes), size(has)))
}
