//! A session: programs on data, split over devices, planned, and ready to run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;
use lapidary_kernels::{Device, HostSlot, Lane, Slot};
use lapidary_planner::memory::Epoch;

use super::RunOptions;
use super::driver::Runtime;
use super::message::{Report, Run};
use super::trace::Span;
use crate::error::Result;
use crate::lower::{Inputs, Lowered, Supply, lower};
use crate::plan::{DeviceBudget, ExchangePath, Method, Planned, Script, Sequence, both, fit, plan_sequence};
use crate::program::{Origin, Program};

/// What a session is opened for.
pub(crate) struct SessionSpec<'a> {
    /// The programs, which are its phases.
    pub programs: &'a [(&'a str, &'a Program)],
    /// The data.
    pub inputs: &'a Inputs,
    /// The part of each device.
    pub parts: Vec<Range<usize>>,
    /// The phases that run again and again; the others fit themselves in between.
    pub main: &'a [usize],
    /// Other phases that will run, and so are to be planned at once.
    pub others: &'a [&'a [usize]],
    /// Whether the main phases do run again, so that what stays on a device is there the next time.
    pub repeats: bool,
    /// The seed of dropout.
    pub seed: u64,
    /// Outputs, by phase and name, that can be read afterwards.
    pub keep: &'a [(usize, String)],
}

/// Programs on devices with their data in place.
pub(crate) struct Session {
    runtime: Runtime,
    budgets: Vec<DeviceBudget>,
    method: Method,
    parts: Vec<Range<usize>>,
    keep: BTreeSet<Slot>,
    /// Into how many tiles each part is cut.
    tiles: usize,
    main: Vec<usize>,
    repeats: bool,
    /// By phases.
    sequences: BTreeMap<Vec<usize>, Planned>,
    scripts: BTreeMap<Vec<usize>, Vec<Arc<Script>>>,
    setup_peaks: Vec<u64>,
    setup_seconds: Vec<f64>,
    start_up: StartUp,
    peaks: Vec<u64>,
}

/// What it took until the first epoch could run, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StartUp {
    /// Choosing each device's vertices, lowering, and planning memory.
    pub plan_seconds: f64,
    /// Starting the devices, making the blocks, and what runs once, such as a hoisted gather.
    pub setup_seconds: f64,
}

/// What one run of a sequence did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// By part, the contents of each metric.
    metrics: Vec<Vec<HostSlot>>,
    /// Of training and of the evaluation: those of the slowest part.
    pub seconds: [f64; 2],
    /// To devices and to the host, over all parts.
    pub bytes: [u64; 2],
    /// The same as planned.
    pub planned_bytes: [u64; 2],
    /// From device to device, over all parts: measured and planned.
    pub bytes_between: [u64; 2],
    /// What was noted, by part.
    pub spans: Vec<Vec<Span>>,
}

impl Done {
    /// By part, the seconds of all its kernels; nothing if none were noted.
    pub(crate) fn kernel_seconds(&self) -> Vec<f64> {
        let of_part = |spans: &Vec<Span>| {
            let kernels = spans.iter().filter(|span| span.lane == Lane::Compute);
            kernels.map(|span| span.end.saturating_duration_since(span.start).as_secs_f64()).sum()
        };
        let noted = self.spans.iter().any(|spans| !spans.is_empty());
        if noted { self.spans.iter().map(of_part).collect() } else { Vec::new() }
    }

    /// Metric number `metric` as each part has it.
    pub(crate) fn metric<T: Pod>(&self, metric: usize) -> Vec<Vec<T>> {
        self.metrics.iter().map(|metrics| metrics[metric].to_vec()).collect()
    }
}

impl Session {
    /// Lowers the programs for each part, plans the setup and the main phases, starts the workers, and runs the setup.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] before anything that grows with the graph is made; [`Error::Device`].
    pub(crate) fn open(options: &RunOptions, job: &SessionSpec<'_>) -> Result<Self> {
        let budgets = options.devices.budgets(options.device_memory)?;
        let path = options.devices.exchange_path()?;
        Self::open_on((budgets, path), options.method(), job, |budgets| options.devices.open(budgets))
    }

    /// As [`Session::open`], in place of `old`, which ends once the new plans are made: if they do not fit, it goes on.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn open_in_place_of(old: &mut Self, options: &RunOptions, job: &SessionSpec<'_>) -> Result<Self> {
        let budgets = options.devices.budgets(options.device_memory)?;
        let path = options.devices.exchange_path()?;
        Self::open_on((budgets, path), options.method(), job, |budgets| {
            old.runtime.stop();
            options.devices.open(budgets)
        })
    }

    /// As [`Session::open`], on the devices that `open` gives, once the plans are made.
    pub(super) fn open_on(
        (budgets, path): (Vec<DeviceBudget>, ExchangePath),
        method: Method,
        job: &SessionSpec<'_>,
        open: impl FnOnce(&[DeviceBudget]) -> Result<Vec<Box<dyn Device>>>,
    ) -> Result<Self> {
        let start = Instant::now();
        let mut supply = Supply::of_parts(job.inputs, job.parts.clone());
        let epoch = if job.repeats { Epoch::Steady } else { Epoch::Cold };
        let mut keep = BTreeSet::new();
        let lower_all = |tiles: usize| -> Vec<Lowered> {
            let tilings = supply.tile(tiles).into_iter().map(|tiling| tiling.over(path));
            tilings.map(|tiling| lower(job.programs, &tiling, job.seed)).collect()
        };
        let plan_all = |lowered: &Vec<Lowered>| {
            let kept = job.keep.iter().filter_map(|(phase, name)| lowered[0].phases[*phase].outputs.get(name));
            keep = kept.flatten().copied().collect();
            let setup = plan_sequence(lowered, &budgets, Sequence::Setup, &Epoch::Cold, &keep, &method);
            let main = plan_sequence(lowered, &budgets, Sequence::Phases(job.main), &epoch, &keep, &method);
            both(setup, main)
        };
        let (lowered, (setup, main), tiles) = fit(&budgets, lower_all, plan_all, method.weighs(&epoch))?;
        let planned = Instant::now();
        // Of the tiles that were tried, these are the ones.
        supply.tile(tiles);
        let opened = open(&budgets)?;
        let runtime = Runtime::open(opened, lowered, &mut supply)?;
        let setup_scripts = scripts(&setup);
        let mut session = Self {
            budgets,
            method,
            parts: job.parts.clone(),
            keep,
            tiles,
            main: job.main.to_vec(),
            repeats: job.repeats,
            scripts: BTreeMap::from([(job.main.to_vec(), scripts(&main))]),
            sequences: BTreeMap::from([(job.main.to_vec(), main)]),
            setup_peaks: setup_scripts.iter().map(|script| script.peak_bytes).collect(),
            setup_seconds: Vec::new(),
            start_up: StartUp::default(),
            peaks: vec![0; runtime.lowered().len()],
            runtime,
        };
        let before = Instant::now();
        job.others.iter().try_for_each(|phases| session.plan(phases))?;
        let planning = (planned - start) + before.elapsed();
        // What runs once is timed: there is no steady state to look at.
        session.setup_seconds = session.run_scripts(&setup_scripts, &[], &[], !job.repeats)?.kernel_seconds();
        let [plan_seconds, setup_seconds] = [planning, start.elapsed() - planning].map(|took| took.as_secs_f64());
        session.start_up = StartUp { plan_seconds, setup_seconds };
        Ok(session)
    }

    /// Seconds of each part's kernels in the setup, of a job that does not repeat; nothing if there were no kernels.
    pub(crate) fn setup_seconds(&self) -> &[f64] {
        &self.setup_seconds
    }

    /// What it took to open.
    pub(crate) fn start_up(&self) -> StartUp {
        self.start_up
    }

    /// Runs phases one after the other, the first of them being training if there are several. `metrics` are outputs, by
    /// phase and name, that are handed over; `controls` are set first.
    ///
    /// # Errors
    /// [`Error::Device`], with the device, the operation and the part; [`Error::DoesNotFit`] for phases
    /// other than the main ones.
    pub(crate) fn run(
        &mut self,
        phases: &[usize],
        metrics: &[(usize, &str)],
        controls: &[(Origin, HostSlot)],
        traced: bool,
    ) -> Result<Done> {
        self.plan(phases)?;
        let lowered = &self.runtime.lowered()[0];
        let slot = |(phase, name): &(usize, &str)| lowered.phases[*phase].output(name);
        let metrics: Vec<Slot> = metrics.iter().map(slot).collect();
        let controls = controls.iter().filter_map(|(origin, value)| Some((self.origin(origin)?[0], value.clone())));
        let controls: Vec<(Slot, HostSlot)> = controls.collect();
        let scripts = self.scripts[phases].clone();
        self.run_scripts(&scripts, &metrics, &controls, traced)
    }

    fn run_scripts(
        &mut self,
        scripts: &[Arc<Script>],
        metrics: &[Slot],
        controls: &[(Slot, HostSlot)],
        traced: bool,
    ) -> Result<Done> {
        let metrics = Arc::new(metrics.to_vec());
        let reports = self.runtime.run(scripts, |script| Run {
            script,
            metrics: metrics.clone(),
            controls: controls.to_vec(),
            traced,
        })?;
        let planned = scripts.iter().fold([0, 0], |sum, s| [sum[0] + s.bytes_to_device, sum[1] + s.bytes_to_host]);
        let planned_between = scripts.iter().map(|script| script.bytes_between_devices).sum();
        let mut done = Done { planned_bytes: planned, bytes_between: [0, planned_between], ..Done::default() };
        for (part, Report { bytes, bytes_between, peak_bytes, seconds, metrics, spans, .. }) in
            reports.into_iter().enumerate()
        {
            self.peaks[part] = peak_bytes;
            done.metrics.push(metrics);
            done.spans.push(spans);
            done.bytes_between[0] += bytes_between;
            for i in 0..2 {
                done.bytes[i] += bytes[i];
                done.seconds[i] = seconds[i].max(done.seconds[i]);
            }
        }
        Ok(done)
    }

    /// Plans phases that have not run yet. What the main phases leave on a device stays there.
    fn plan(&mut self, phases: &[usize]) -> Result<()> {
        if self.sequences.contains_key(phases) {
            return Ok(());
        }
        let lowered = self.runtime.lowered();
        let between = match self.repeats {
            true => Some(&self.sequences[&self.main]),
            false => None,
        };
        let planned = match between {
            Some(main) => crate::plan::plan_between(lowered, &self.budgets, phases, main, &self.keep, &self.method)?,
            None => {
                let sequence = Sequence::Phases(phases);
                plan_sequence(lowered, &self.budgets, sequence, &Epoch::Cold, &self.keep, &self.method)?
            }
        };
        self.scripts.insert(phases.to_vec(), scripts(&planned));
        self.sequences.insert(phases.to_vec(), planned);
        Ok(())
    }

    /// Overwrites what lasts and lies in these slots, one after the other.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write<T: Pod>(&self, slots: &[Slot], values: &[T]) -> Result<()> {
        let mut rest = values;
        for &slot in slots {
            let bytes = self.runtime.lowered()[0].tensor(slot).bytes as usize;
            let (values, after) = rest.split_at(bytes / size_of::<T>());
            self.runtime.write(slot, values)?;
            rest = after;
        }
        Ok(())
    }

    /// What lasts and lies in these slots, one after the other, as the first part has it: all have the same.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, slots: &[Slot]) -> Result<Vec<T>> {
        let pieces = slots.iter().map(|&slot| self.runtime.read(0, slot)).collect::<Result<Vec<Vec<T>>>>()?;
        Ok(pieces.concat())
    }

    /// An output that was to be kept, of which each part has its rows: those of all parts.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read_rows<T: Pod>(&self, phase: usize, name: &str) -> Result<Vec<T>> {
        let tiles = &self.runtime.lowered()[0].phases[phase].outputs[name];
        let mut rows = Vec::new();
        for part in 0..self.parts.len() {
            for &tile in tiles {
                rows.extend(self.runtime.read::<T>(part, tile)?);
            }
        }
        Ok(rows)
    }

    /// Where an origin lies, if the programs read it.
    pub(crate) fn origin(&self, origin: &Origin) -> Option<&[Slot]> {
        self.runtime.lowered()[0].origins.get(origin).map(Vec::as_slice)
    }

    /// Where a phase's result lies.
    pub(crate) fn output(&self, phase: usize, name: &str) -> Option<&[Slot]> {
        self.runtime.lowered()[0].phases[phase].outputs.get(name).map(Vec::as_slice)
    }

    /// Into how many tiles each part is cut.
    pub(crate) fn tiles(&self) -> usize {
        self.tiles
    }

    /// The plan of the main phases, in words: a line a step of each device.
    pub(crate) fn explain(&self) -> String {
        let mut text = String::new();
        let devices = self.budgets.iter().zip(&self.parts).zip(self.runtime.lowered());
        for (((budget, part), lowered), script) in devices.zip(&self.scripts[&self.main]) {
            text += &format!(
                "{}: vertices {} to {}, peak {} bytes\n",
                budget.name, part.start, part.end, script.peak_bytes
            );
            let names =
                |slots: &[Slot]| slots.iter().map(|s| lowered.tensor(*s).name.as_str()).collect::<Vec<_>>().join(", ");
            text += &format!("  starts with {}\n", names(&script.start));
            for action in &script.actions {
                text += &format!("  {}", action.name);
                let around = [
                    ("store", &action.store),
                    ("evict", &action.evict),
                    ("load", &action.load),
                    ("publish", &action.publish),
                ];
                for (what, slots) in around.into_iter().filter(|(_, slots)| !slots.is_empty()) {
                    text += &format!("  | {what} {}", names(slots));
                }
                text.push('\n');
            }
        }
        text
    }

    /// Changes one part's script of the main phases.
    #[cfg(test)]
    pub(super) fn corrupt_main(&mut self, part: usize, corrupt: impl FnOnce(&mut Script)) {
        let scripts = self.scripts.get_mut(&self.main).expect("the main phases are planned");
        corrupt(Arc::make_mut(&mut scripts[part]));
    }

    /// What the devices are called.
    pub(crate) fn device_names(&self) -> Vec<String> {
        self.budgets.iter().map(|budget| budget.name.clone()).collect()
    }

    /// By part, the most that the plans of all that has run hold.
    pub(crate) fn planned_peak_bytes(&self) -> Vec<u64> {
        let of_part = |part: usize| {
            let scripts = self.scripts.values().map(|scripts| scripts[part].peak_bytes);
            scripts.fold(self.setup_peaks[part], u64::max)
        };
        (0..self.parts.len()).map(of_part).collect()
    }

    /// By part, the most that its device has held.
    pub(crate) fn peak_bytes(&self) -> Vec<u64> {
        self.peaks.clone()
    }

    /// The vertex ranges of the devices.
    pub(crate) fn part_pairs(&self) -> Vec<[usize; 2]> {
        self.parts.iter().map(|part| [part.start, part.end]).collect()
    }
}

/// What each worker does.
fn scripts(planned: &Planned) -> Vec<Arc<Script>> {
    planned.devices.iter().map(|device| Arc::new(device.script())).collect()
}
