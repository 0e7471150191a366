//! The times of kernels: measured once for `plan`, learned from every training, and shown.

use std::time::Duration;

use lapidary_cost_model::{KernelTimes, Profile};
use serde_json::json;

use super::compared_times::Compared;
use super::output::{self, align, count, json_line, print, say, table};
use crate::error::Result;
use crate::forecast::{TimedEpochs, measure_kernels, teach};
use crate::graph::Graph;
use crate::plan::Locality;
use crate::profile::{self, Busy, BusyWatch, CPU};
use crate::train::Trainer;

/// First epochs of a training, in which memory is touched for the first time.
const WARM_UP: usize = 2;

/// The kernels of a training are timed until so many epochs had the same calls.
const EPOCHS: usize = 5;

/// Most epochs that are timed. While vertices move from device to device, few have the same calls.
const MOST_EPOCHS: usize = 30;

/// Measures the kernels of this machine's cores, with a progress bar.
pub(super) fn measure(hidden: bool) -> Result<()> {
    let bar = output::bar(0, hidden);
    bar.set_prefix("measuring the kernels of this machine");
    if bar.is_hidden() {
        say("measuring the kernels of this machine, once: about 110 s, or up to 5 minutes beside other programs");
    }
    let report = measure_kernels(|done, count| {
        bar.set_length(count as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = report?;
    if report.disturbed {
        say(format_args!(
            "other programs used {} of the cores meanwhile: predicted seconds may be up to 2 times off; measure again on a \
             quiet machine with `lapidary profile --again`",
            output::percent(Some(report.busy))
        ));
    }
    if let Err(why) = &report.kept {
        say(format_args!("the times cannot be kept, so they are measured each time: {why}"));
    }
    Ok(())
}

/// Measures the kernels if a forecast with this profile needs them and they are not known yet. A debug build does not: its
/// tests run many programs at once.
pub(super) fn measure_if_needed(word: &str, hidden: bool) -> Result<()> {
    if word != CPU || cfg!(debug_assertions) {
        return Ok(());
    }
    if has_suite(word)? { Ok(()) } else { measure(hidden) }
}

/// Returns whether the kernels of this hardware are known.
///
/// # Errors
/// Those of [`profile::load`], which may measure its rates.
pub(super) fn has_suite(word: &str) -> Result<bool> {
    Ok(profile::kernel_times(word, &profile::load(word)?).has_suite())
}

/// Times the kernels of a training's first epochs. If the profile of its devices is not known and nobody wants to see the
/// times, it does nothing: a training is no time to measure a machine.
pub(super) struct KernelWatch<'a> {
    graph: &'a Graph,
    /// Whether to show the times.
    shows: bool,
    /// Whether somebody else records the epochs as well.
    is_traced: bool,
    /// The profile of the devices, and their caches, once an epoch is to be timed.
    known: Option<(Profile, Locality)>,
    epochs: TimedEpochs,
    /// Epochs before the first one that counts.
    seen: usize,
    /// Watches what other programs use.
    watch: BusyWatch,
}

impl<'a> KernelWatch<'a> {
    /// Starts to watch a training on the whole `graph`.
    pub(super) fn new(graph: &'a Graph, shows: bool, is_traced: bool) -> Self {
        Self { graph, shows, is_traced, known: None, epochs: TimedEpochs::default(), seen: 0, watch: Busy::watch() }
    }

    /// Reads what the trainer's last epoch has measured, and starts or ends the measurement.
    ///
    /// # Errors
    /// Those of [`profile::load`], if the times are to be shown.
    pub(super) fn after_epoch(&mut self, trainer: &mut Trainer) -> Result<()> {
        self.seen += 1;
        if self.seen == WARM_UP {
            let word = trainer.profile_name();
            let profile = if self.shows { Some(profile::load(&word)?) } else { profile::known(&word) };
            if let Some(profile) = profile {
                let locality = Locality::new(&word, &profile).of_graph(self.graph);
                self.known = Some((profile, locality));
                trainer.start_trace();
            }
            return Ok(());
        }
        let is_timed = self.seen <= WARM_UP + MOST_EPOCHS && self.epochs.alike() < EPOCHS;
        let Some((_, locality)) = self.known.as_ref().filter(|_| is_timed) else { return Ok(()) };
        let alike = self.epochs.add(trainer.measured_calls(locality));
        if (alike == EPOCHS || self.seen == WARM_UP + MOST_EPOCHS) && !self.is_traced {
            trainer.stop_trace();
        }
        Ok(())
    }

    /// Shows predicted beside measured times, if that was asked for, and remembers the measured ones for later forecasts.
    ///
    /// # Returns
    /// The times; `None` if none were measured.
    pub(super) fn finish(self, trainer: &Trainer, as_json: bool) -> Result<Option<Compared>> {
        let alike = self.epochs.alike();
        let Some((profile, _)) = self.known.filter(|_| alike > 0) else { return Ok(None) };
        let word = trainer.profile_name();
        let mut times = profile::kernel_times(&word, &profile);
        let calls = self.epochs.typical(self.watch.end());
        let compared = Compared::new(&times, &calls, alike);
        match (self.shows, as_json) {
            (true, true) => json_line(&compared.json())?,
            (true, false) => print(&compared.text())?,
            (false, _) => {}
        }
        if self.shows && word == CPU && !times.has_suite() {
            say("note: the kernels of this machine were not measured yet, so predicted times are rough or missing; \
                 `lapidary profile` measures them once, in about 110 s");
        }
        if !cfg!(debug_assertions) {
            teach(&mut times, calls, false);
            // Forecasts are worse without, and nothing else is.
            if let Err(error) = profile::remember_kernels(&word, &times, None) {
                tracing::debug!("the times of kernels are not kept: {error}");
            }
        }
        Ok(Some(compared))
    }
}

/// Prints the rates of this machine's profile, and what is known of its kernels.
pub(super) fn show(as_json: bool) -> Result<()> {
    let profile = profile::load(CPU)?;
    let remembered = profile::remembered_kernels(CPU, &profile);
    if as_json {
        let kernels = |times: &KernelTimes| {
            let kernel = |(name, [suite, runs], spread): (&str, [usize; 2], f64)| json!({ "kernel": name, "suite": suite, "runs": runs, "spread": spread });
            times.kernels().map(kernel).collect::<Vec<_>>()
        };
        return json_line(&json!({
            "event": "profile",
            "profile": profile,
            "age_seconds": remembered.as_ref().map(|remembered| remembered.age().as_secs()),
            "busy": remembered.as_ref().map(|remembered| remembered.busy),
            "kernels": remembered.as_ref().map(|remembered| kernels(&remembered.value)),
        }));
    }
    let rate = |bytes_per_s: f64| format!("{:.1} GB/s", bytes_per_s / 1e9);
    let mut facts = vec![
        ("memory", rate(profile.memory_bytes_per_s)),
        ("gathers from memory", rate(profile.gather_bytes_per_s)),
        ("gathers from the cache", rate(profile.cached_gather_bytes_per_s)),
        ("last cache", bytesize::ByteSize(profile.cache_bytes).to_string()),
        ("products", format!("{:.0} GFLOP/s", profile.flops_per_s / 1e9)),
    ];
    let Some(remembered) = remembered else {
        facts.push(("kernels", "not measured yet: `lapidary profile` does it".into()));
        return print(&output::facts(&facts));
    };
    facts.push(("measured", ago(remembered.age())));
    facts.push(("used by others", output::percent(Some(remembered.busy.0))));
    let mut rows = table(["kernel", "measured calls", "of trainings", "spread"]);
    for (name, [suite, runs], spread) in remembered.value.kernels() {
        rows.add_row([name.to_owned(), count(suite as u64), count(runs as u64), output::percent(Some(spread))]);
    }
    print(&format!("{}\n\n{}", output::facts(&facts), align(rows)))
}

/// Formats an age.
fn ago(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    match minutes {
        0 => "just now".into(),
        1..=119 => format!("{minutes} minutes ago"),
        120..=2879 => format!("{} hours ago", minutes / 60),
        _ => format!("{} days ago", minutes / 1440),
    }
}
