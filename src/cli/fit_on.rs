//! `lapidary plan --fit-on`: the same training on several kinds of devices, side by side.

use bytesize::ByteSize;
use serde_json::json;

use super::forecast::size;
use super::output::{align, json_line, print, seconds, table};
use crate::error::{Error, Result};
use crate::forecast::{DryRun, PlanForecast};

/// A kind of device: a profile with its memory, or a size with the profile of the other flags.
enum Kind<'a> {
    Profile(&'a str),
    Memory(&'a str, ByteSize),
}

impl<'a> Kind<'a> {
    fn parse(word: &'a str) -> Result<Self> {
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Self::Profile(word));
        }
        let size = word.parse().map_err(|_| Error::Value {
            option: "fit_on",
            value: word.into(),
            expected: "write names of profiles and sizes, such as rtx4090,h100,24GB".into(),
        })?;
        Ok(Self::Memory(word, size))
    }

    fn name(&self) -> &'a str {
        match self {
            Self::Profile(name) | Self::Memory(name, _) => name,
        }
    }

    /// Makes the error of a profile that does not exist name the flag.
    fn explained(&self, error: Error) -> Error {
        match (self, error) {
            (Self::Profile(_), Error::Value { option: "profile", value, expected }) => {
                Error::Value { option: "fit_on", value, expected }
            }
            (_, error) => error,
        }
    }

    fn dry_run<'b>(&self, dry_run: &DryRun<'b>) -> DryRun<'b> {
        match self {
            Self::Profile(name) => dry_run.clone().profile(*name),
            Self::Memory(_, size) => dry_run.clone().device_memory(*size),
        }
    }
}

/// Plans for each kind in `words`, and prints a table, or with `as_json` one JSON line for each. Returns whether it fits
/// on any.
///
/// # Errors
/// [`Error::Value`] for a word that is neither a profile nor a size; those of [`DryRun::run`].
pub(super) fn run(words: &str, dry_run: &DryRun<'_>, as_json: bool) -> Result<bool> {
    let kinds = words.split(',').map(|word| Kind::parse(word.trim())).collect::<Result<Vec<_>>>()?;
    let mut shown = table(["device", "memory", "fits", "tiles", "copies", "peak", "epoch"]);
    let mut fits = false;
    for kind in &kinds {
        let forecast = kind.dry_run(dry_run).run().map_err(|error| kind.explained(error))?;
        let outcome = &forecast.policies.last().expect("there is a policy").outcome;
        fits |= outcome.is_ok();
        let memory = forecast.device_memory;
        if as_json {
            json_line(&line(kind.name(), memory, outcome))?;
            continue;
        }
        let row = match outcome {
            Ok(plan) => [
                "yes".into(),
                plan.tiles.to_string(),
                size(plan.bytes().iter().sum()),
                size(plan.peak_bytes()),
                seconds(plan.epoch_seconds()),
            ],
            Err(needed) => [format!("no, it needs {}", size(*needed)), "-".into(), "-".into(), "-".into(), "-".into()],
        };
        shown.add_row([kind.name().to_owned(), size(memory)].into_iter().chain(row));
    }
    if !as_json {
        print(&align(shown))?;
        print("\ncopies: bytes between host and devices in an epoch; times are predicted, not measured")?;
        if kinds.iter().any(|kind| matches!(kind, Kind::Memory(..))) {
            print(&format!(
                "a device of which only the size is given has the speed of `{}` (--profile)",
                dry_run.profile_name()
            ))?;
        }
    }
    Ok(fits)
}

fn line(name: &str, memory: u64, outcome: &std::result::Result<PlanForecast, u64>) -> serde_json::Value {
    match outcome {
        Ok(plan) => {
            let [bytes_to_device, bytes_to_host] = plan.bytes();
            json!({
                "event": "fit", "device": name, "device_memory": memory, "feasible": true, "tiles": plan.tiles,
                "bytes_to_device": bytes_to_device, "bytes_to_host": bytes_to_host, "peak_bytes": plan.peak_bytes(),
                "epoch_seconds": plan.epoch_seconds(), "host_bytes": plan.host_bytes,
            })
        }
        Err(needed_bytes) => json!({
            "event": "fit", "device": name, "device_memory": memory, "feasible": false, "needed_bytes": needed_bytes,
        }),
    }
}
