//! A session: programs bound to data, split over devices, planned, and ready to run.

mod batches;
mod measured;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::Pod;
use lapidary_kernels::{HostSlot, Slot};
use lapidary_planner::memory::Epoch;
use rayon::prelude::*;

use batches::{BatchPrograms, SizedShare};
pub(crate) use batches::{BatchShare, SharedBatch};
pub(crate) use measured::{Done, MeasuredCall};

use super::driver::Runtime;
use super::message::{Note, Report, Run};
use super::trace::Trace;
use super::{IdleDevice, RunOptions};
use crate::error::{Error, NotFinite, Result};
use crate::lower::{Inputs, Lowered, SumMode, Supply, Tiling, lower_in_order};
use crate::plan::{
    Choice, DeviceBudget, EpochWork, ExchangePath, Fit, Fitted, Known, Layout, LoweredParts, Method, Planned, Script,
    Sequence, Variant, epoch_bytes, plan_between, plan_sequence, planned_seconds,
};
use crate::profile;
use crate::program::{LevelSizes, Origin, Program};
use crate::ranks::Ranks;

/// Inputs of [`Session::open`].
pub(crate) struct SessionSpec<'a> {
    /// The programs with their names; each is a phase.
    pub programs: &'a [(&'a str, &'a Program)],
    /// Number of strips of columns that wide matrices of the programs are cut into.
    pub strips: usize,
    /// Other training and evaluation programs with the same results, and their strips of columns. One pair takes the place
    /// of the first if that is predicted to save time.
    pub instead: &'a [([&'a Program; 2], usize)],
    /// The data.
    pub inputs: &'a Inputs,
    /// The vertex range of each device.
    pub parts: Vec<Range<usize>>,
    /// The main phases, which run repeatedly. Other phases are planned around them.
    pub main: &'a [usize],
    /// Other sequences of phases that will run; they are planned at once.
    pub others: &'a [&'a [usize]],
    /// Whether the main phases run more than once, so that tensors that stay on a device can be used the next time.
    pub repeats: bool,
    /// The seed of dropout.
    pub seed: u64,
    /// Outputs, by phase and name, that can be read after a run.
    pub keep: &'a [(usize, String)],
    /// Plans of an earlier session with the same programs and phases. They are used again if they fit.
    pub plans: Option<&'a Plans>,
    /// Bounds of the sizes of mini-batches, if any program is for them.
    pub levels: Option<LevelSizes>,
}

/// The devices that a session runs on, and how they reach each other.
pub(crate) struct Surroundings {
    /// The devices of all ranks, in the order of their parts.
    pub budgets: Vec<DeviceBudget>,
    /// The layouts of whole parts that are possible, the best one first.
    pub layouts: Vec<Layout>,
    /// How gradients are added.
    pub sums: SumMode,
    pub ranks: Ranks,
    /// The machine of each rank, if there are several.
    pub hosts: Vec<String>,
    /// Name of the profile of the devices.
    pub profile: String,
}

impl Surroundings {
    /// Looks up the devices of all ranks.
    ///
    /// # Errors
    /// Those of [`Devices::budgets`](super::Devices) on any rank; [`Error::RanksDiffer`] for other numbers of devices.
    fn new(options: &RunOptions) -> Result<Self> {
        let (ranks, own) = (options.ranks.clone(), options.devices.budgets(options.device_memory)?);
        let profile = options.devices.profile();
        let sums = options.devices.checked_sums(ranks.count())?;
        if ranks.count() == 1 {
            let layouts = options.whole_layouts(options.devices.exchange_paths()?);
            return Ok(Self { budgets: own, layouts, sums, ranks, hosts: Vec::new(), profile });
        }
        ranks.agree("number of devices", &own.len().to_string())?;
        let devices = own.len();
        let (hosts, budgets): (Vec<_>, Vec<Vec<_>>) = ranks.gather((ranks.host(), own))?.into_iter().unzip();
        let mut budgets: Vec<DeviceBudget> = budgets.concat();
        for (part, budget) in budgets.iter_mut().enumerate() {
            budget.name = format!("rank {} {}", part / devices, budget.name);
        }
        let layouts = options.whole_layouts(vec![ExchangePath::Host]);
        Ok(Self { budgets, layouts, sums, ranks, hosts, profile })
    }
}

/// Plans of a session, for another session with the same programs, devices and method.
pub(crate) struct Plans {
    budgets: Vec<DeviceBudget>,
    layouts: Vec<Layout>,
    layout: Layout,
    setup: Planned,
    main: Planned,
}

/// Programs on devices, with their data in place.
pub(crate) struct Session {
    runtime: Runtime,
    /// The devices of all ranks.
    budgets: Vec<DeviceBudget>,
    layouts: Vec<Layout>,
    ranks: Ranks,
    /// The machine of each rank, if there are several.
    hosts: Vec<String>,
    method: Method,
    parts: Vec<Range<usize>>,
    keep: BTreeSet<Slot>,
    layout: Layout,
    strips: usize,
    main: Vec<usize>,
    repeats: bool,
    /// The plan of each sequence of phases.
    sequences: BTreeMap<Vec<usize>, Planned>,
    scripts: BTreeMap<Vec<usize>, Vec<Arc<Script>>>,
    setup: Planned,
    /// Whether the plans are those of another session.
    took_plans: bool,
    setup_peaks: Vec<u64>,
    setup_seconds: Vec<f64>,
    start_up: StartUp,
    peaks: Vec<u64>,
    /// What this rank says to the others in the next runs.
    note: Note,
    batches: Option<BatchPrograms>,
}

/// Time that was needed before the first epoch could run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StartUp {
    /// Seconds for splitting the vertices, lowering, and planning memory.
    pub plan_seconds: f64,
    /// Seconds for starting the devices, building the blocks, and work that runs once, such as a hoisted gather.
    pub setup_seconds: f64,
}

impl Session {
    /// Lowers the programs for each part, plans the setup and the main phases, starts the workers, and runs the setup.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`], before the workers start and any blocks are built; [`Error::Device`].
    pub(crate) fn open(options: &RunOptions, job: &SessionSpec<'_>) -> Result<Self> {
        let surroundings = Surroundings::new(options)?;
        Self::open_on(surroundings, options.method(), job, |budgets| options.devices.open(budgets))
    }

    /// Opens a session like [`Session::open`], on devices of an earlier session with the same options if there are as many as
    /// are needed, so that their memory is used again.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn open_again(options: &RunOptions, job: &SessionSpec<'_>, idle: Vec<IdleDevice>) -> Result<Self> {
        Self::open_on(Surroundings::new(options)?, options.method(), job, |budgets| {
            let fit = idle.len() == budgets.len()
                && idle.iter().zip(budgets).all(|(idle, budget)| idle.device.capacity_bytes() == budget.capacity_bytes);
            if fit { Ok(idle) } else { options.devices.open(budgets) }
        })
    }

    /// Opens a session like [`Session::open`], in place of `old`, with the same options. `old` ends once the new plans are
    /// made; if they do not fit, `old` continues.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn open_in_place_of(old: &mut Self, options: &RunOptions, job: &SessionSpec<'_>) -> Result<Self> {
        // The free memory of a GPU is not asked for again: `old` still has most of it.
        let surroundings = Surroundings {
            budgets: old.budgets.clone(),
            layouts: old.layouts.clone(),
            sums: options.devices.checked_sums(old.ranks.count())?,
            ranks: old.ranks.clone(),
            hosts: old.hosts.clone(),
            profile: options.devices.profile(),
        };
        Self::open_on(surroundings, options.method(), job, |budgets| {
            old.runtime.stop();
            options.devices.open(budgets)
        })
    }

    /// Opens a session like [`Session::open`], on the devices that `open` returns for the budgets of this rank. It is
    /// called after planning.
    pub(super) fn open_on(
        Surroundings { budgets, layouts, sums, ranks, hosts, profile: name }: Surroundings,
        method: Method,
        job: &SessionSpec<'_>,
        open: impl FnOnce(&[DeviceBudget]) -> Result<Vec<IdleDevice>>,
    ) -> Result<Self> {
        let start = Instant::now();
        let devices = budgets.len() / ranks.count();
        let own = ranks.rank() * devices..(ranks.rank() + 1) * devices;
        let mut supply = Supply::of_own_parts(job.inputs, job.parts.clone(), own.clone());
        let epoch = if job.repeats { Epoch::Steady } else { Epoch::Cold };
        // Each rank counts the rows and edges of its own parts. All ranks try the same layouts.
        let mut lower_all = |variant: usize, layout: Layout| -> Result<LoweredParts> {
            let mut programs = job.programs.to_vec();
            if let Some(instead) = variant.checked_sub(1) {
                programs.iter_mut().zip(job.instead[instead].0).for_each(|(program, instead)| program.1 = instead);
            }
            let tilings = Tiling::of_all(ranks.gather(supply.tile(layout))?, layout);
            let levels = job.levels.unwrap_or_default();
            let lower = |tiling: Tiling| {
                lower_in_order(&programs, &tiling.with_levels(levels), layout.order, job.seed).with_sums(sums)
            };
            Ok(LoweredParts::new(tilings.into_par_iter().map(lower).collect()))
        };
        let kept = |lowered: &[Lowered]| -> BTreeSet<Slot> {
            let kept = job.keep.iter().filter_map(|(phase, name)| lowered[0].phases[*phase].outputs.get(name));
            kept.flatten().copied().collect()
        };
        let work = EpochWork { phases: job.main, epoch: &epoch, keep: &kept };
        let plan_all =
            |lowered: &LoweredParts, budgets: &[DeviceBudget], method: &Method| lowered.plan(&work, budgets, method);
        let usable = job.plans.filter(|plans| plans.budgets == budgets && plans.layouts == layouts);
        let variants = Variant::all(job.strips, job.instead.iter().map(|(_, strips)| *strips));
        let again = usable.map(|plans| Ok::<_, Error>((plans, lower_all(0, plans.layout)?))).transpose()?;
        let known = again.and_then(|(plans, lowered)| {
            let keep = kept(lowered.parts());
            let setup = plans.setup.reused(lowered.parts(), Sequence::Setup, &keep)?;
            let main = plans.main.reused(lowered.parts(), Sequence::Phases(job.main), &keep)?;
            Some(Fitted { variant: variants[0], lowered, planned: (setup, main), layout: plans.layout })
        });
        let took_plans = known.is_some();
        let nominal = profile::nominal(&name);
        let seconds = |lowered: &LoweredParts, (_, main): &(Planned, Planned)| {
            Ok(planned_seconds(&nominal, lowered.parts(), main))
        };
        let to = Fit {
            budgets: &budgets,
            whole_layouts: &layouts,
            method: &method,
            weighs: method.weighs(&epoch),
            known: Some(&Known::default()),
            least_tiles: 1,
        };
        let choice = Choice { variants: &variants, to };
        let fitted = known.map_or_else(|| choice.fit_best(&mut lower_all, plan_all, epoch_bytes, seconds), Ok)?;
        let Fitted { variant, lowered, planned: (setup, main), layout } = fitted;
        let lowered = lowered.into_parts();
        let keep = kept(&lowered);
        let beside = Beside { main: job.repeats.then_some(&main), budgets: &budgets, keep: &keep, method: &method };
        let others = job.others.iter().filter(|phases| **phases != job.main);
        let others: Vec<(Vec<usize>, Planned)> =
            others.map(|phases| Ok((phases.to_vec(), beside.plan(&lowered, phases)?))).collect::<Result<_>>()?;
        let planned = Instant::now();
        // Planning may have tried other layouts; this sets the one that was chosen.
        let tilings = supply.tile(layout);
        let batches = match job.levels {
            Some(bound) => {
                let tilings = Tiling::of_all(ranks.gather(tilings)?, layout);
                Some(BatchPrograms::new(job, tilings, (layout.order, sums), bound))
            }
            None => None,
        };
        let opened = open(&budgets[own])?;
        let runtime = Runtime::open(opened, lowered, &mut supply, &ranks)?;
        let setup_scripts = scripts(&setup);
        let mut session = Self {
            budgets,
            layouts,
            ranks,
            hosts,
            method,
            parts: job.parts.clone(),
            keep,
            layout,
            strips: variant.strips,
            main: job.main.to_vec(),
            repeats: job.repeats,
            scripts: BTreeMap::new(),
            sequences: BTreeMap::new(),
            setup,
            took_plans,
            setup_peaks: setup_scripts.iter().map(|script| script.peak_bytes).collect(),
            setup_seconds: Vec::new(),
            start_up: StartUp::default(),
            peaks: vec![0; runtime.lowered().len()],
            note: Note::default(),
            batches,
            runtime,
        };
        session.set_plans([(job.main.to_vec(), main)].into_iter().chain(others));
        let planning = planned - start;
        // The setup of a session that does not repeat is timed, because its kernels are part of the only run.
        session.setup_seconds =
            session.run_scripts(&setup_scripts, &[], &[], [!job.repeats, false], &[])?.kernel_seconds();
        let [plan_seconds, setup_seconds] = [planning, start.elapsed() - planning].map(|took| took.as_secs_f64());
        session.start_up = StartUp { plan_seconds, setup_seconds };
        Ok(session)
    }

    /// Returns the seconds of each part's kernels in the setup of a session that does not repeat. Empty if there were
    /// no kernels.
    pub(crate) fn setup_seconds(&self) -> &[f64] {
        &self.setup_seconds
    }

    /// Ends the session and returns its plans and its devices, for another session.
    pub(crate) fn into_plans_and_devices(self) -> (Plans, Vec<IdleDevice>) {
        let Self { runtime, budgets, layouts, layout, setup, mut sequences, main, .. } = self;
        let main = sequences.remove(&main).expect("the main phases are planned");
        (Plans { budgets, layouts, layout, setup, main }, runtime.into_devices())
    }

    /// Returns whether the plans are those of another session.
    pub(crate) fn took_plans(&self) -> bool {
        self.took_plans
    }

    /// Returns the time that it took to open the session.
    pub(crate) fn start_up(&self) -> StartUp {
        self.start_up
    }

    /// Sets what this rank says to the others in the next runs: see [`Done::notes`].
    pub(crate) fn say(&mut self, note: Note) {
        self.note = note;
    }

    /// Sets which signal this rank tells the others that it has got: see [`Session::say`].
    pub(crate) fn say_signal(&mut self, signal: usize) {
        self.note.signal = signal;
    }

    /// Runs phases one after the other; if there are several, the first is training. `metrics` are the outputs, by
    /// phase and name, that are returned. `controls` are written before the run.
    ///
    /// # Errors
    /// [`Error::Device`], with the device, the operation and the part; [`Error::DoesNotFit`] for phases other than the
    /// main ones.
    pub(crate) fn run(
        &mut self,
        phases: &[usize],
        metrics: &[(usize, &str)],
        controls: &[(Origin, HostSlot)],
        traced: bool,
    ) -> Result<Done> {
        self.run_phases(phases, metrics, controls, [traced, false], Vec::new())
    }

    /// Runs phases like [`Session::run`], one call after the other, and looks for the first number that is not finite:
    /// of the first step, and there of the first part.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub(crate) fn run_checked(
        &mut self,
        phases: &[usize],
        controls: &[(Origin, HostSlot)],
    ) -> Result<Option<NotFinite>> {
        Ok(self.run_phases(phases, &[], controls, [false, true], Vec::new())?.not_finite)
    }

    fn run_phases(
        &mut self,
        phases: &[usize],
        metrics: &[(usize, &str)],
        controls: &[(Origin, HostSlot)],
        traced_and_checked: [bool; 2],
        shares: Vec<SizedShare<Lowered>>,
    ) -> Result<Done> {
        self.plan(phases)?;
        let lowered = &self.runtime.lowered()[0];
        let slot = |(phase, name): &(usize, &str)| lowered.phases[*phase].output(name);
        let metrics: Vec<Slot> = metrics.iter().map(slot).collect();
        let controls = controls.iter().filter_map(|(origin, value)| Some((self.origin(origin)?[0], value.clone())));
        let controls: Vec<(Slot, HostSlot)> = controls.collect();
        let mut scripts = self.scripts[phases].clone();
        let mut resized = Vec::new();
        for (script, (lowered, values)) in scripts[self.runtime.own_parts()].iter_mut().zip(shares) {
            *script = Arc::new(script.resized(&lowered.sequence(phases), &lowered));
            resized.push((Arc::new(lowered), values));
        }
        self.run_scripts(&scripts, &metrics, &controls, traced_and_checked, &resized)
    }

    fn run_scripts(
        &mut self,
        scripts: &[Arc<Script>],
        metrics: &[Slot],
        controls: &[(Slot, HostSlot)],
        [traced, checked]: [bool; 2],
        shares: &[SizedShare<Arc<Lowered>>],
    ) -> Result<Done> {
        let metrics = Arc::new(metrics.to_vec());
        let first = self.runtime.own_parts().start;
        let reports = self.runtime.run(scripts, |part, script| {
            let share = shares.get(part - first);
            Run {
                script,
                metrics: metrics.clone(),
                controls: share.iter().flat_map(|(_, values)| values).chain(controls).cloned().collect(),
                note: self.note,
                lowered: share.map(|(lowered, _)| lowered.clone()),
                traced,
                checked,
            }
        })?;
        let mut done = Done::default();
        for (part, report) in reports.into_iter().enumerate() {
            let Report { bytes, bytes_between, planned_bytes, peak_bytes, seconds, metrics, spans, not_finite, note } =
                report;
            done.notes.push(note);
            let step = |found: &Option<NotFinite>| found.as_ref().map_or(usize::MAX, |found| found.step);
            if step(&not_finite) < step(&done.not_finite) {
                done.not_finite = not_finite;
            }
            self.peaks[part] = peak_bytes;
            done.metrics.push(metrics);
            done.spans.push(spans);
            done.bytes_between[0] += bytes_between;
            done.bytes_between[1] += planned_bytes[2];
            for i in 0..2 {
                done.bytes[i] += bytes[i];
                done.planned_bytes[i] += planned_bytes[i];
                done.seconds[i] = seconds[i].max(done.seconds[i]);
            }
        }
        Ok(done)
    }

    /// Plans phases that have not run yet. Tensors that the main phases leave on a device stay there.
    fn plan(&mut self, phases: &[usize]) -> Result<()> {
        if self.sequences.contains_key(phases) {
            return Ok(());
        }
        let main = self.repeats.then(|| &self.sequences[&self.main]);
        let beside = Beside { main, budgets: &self.budgets, keep: &self.keep, method: &self.method };
        let planned = beside.plan(self.runtime.lowered(), phases)?;
        self.set_plans([(phases.to_vec(), planned)]);
        Ok(())
    }

    /// Sets the plans of these phases.
    fn set_plans(&mut self, plans: impl IntoIterator<Item = (Vec<usize>, Planned)>) {
        for (phases, planned) in plans {
            self.scripts.insert(phases.clone(), scripts(&planned));
            self.sequences.insert(phases, planned);
        }
    }

    /// Overwrites the lasting tensors in these slots, one after the other, on every device.
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

    /// Reads lasting tensors, or kept outputs, from these slots, one after the other. They are read from the first
    /// part of this rank, since all parts have the same values.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn read<T: Pod>(&self, slots: &[Slot]) -> Result<Vec<T>> {
        let part = self.runtime.own_parts().start;
        let mut all = Vec::new();
        for &slot in slots {
            let contents = self.runtime.show(part, slot)?;
            contents.read(|bytes| see_as(bytes, &mut |piece: &[T]| all.extend_from_slice(piece)));
        }
        Ok(all)
    }

    /// Reads a kept output of which each part has its own rows: calls `see` with the rows of all parts, piece by piece, in
    /// order. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::OtherRank`](crate::Error::OtherRank).
    pub(crate) fn read_rows<T: Pod>(&self, phase: usize, name: &str, mut see: impl FnMut(&[T])) -> Result<()> {
        let tiles = &self.runtime.lowered()[0].phases[phase].outputs[name];
        let is_alone = self.ranks.count() == 1;
        let mut own = Vec::new();
        for part in self.runtime.own_parts() {
            for &tile in tiles {
                self.runtime
                    .show(part, tile)?
                    .read(|bytes| if is_alone { see_as(bytes, &mut see) } else { own.extend_from_slice(bytes) });
            }
        }
        if !is_alone {
            self.ranks.gather_bytes(own)?.iter().for_each(|bytes| see_as(bytes, &mut see));
        }
        Ok(())
    }

    /// Returns the slots of an origin, if the programs read it.
    pub(crate) fn origin(&self, origin: &Origin) -> Option<&[Slot]> {
        self.runtime.lowered()[0].origins.get(origin).map(Vec::as_slice)
    }

    /// Returns the slots of a phase's output.
    pub(crate) fn output(&self, phase: usize, name: &str) -> Option<&[Slot]> {
        self.runtime.lowered()[0].phases[phase].outputs.get(name).map(Vec::as_slice)
    }

    /// Returns the number of strips of columns that wide matrices are cut into.
    pub(crate) fn strips(&self) -> usize {
        self.strips
    }

    /// Returns the number of tiles of each part.
    pub(crate) fn tiles(&self) -> usize {
        self.layout.tiles
    }

    /// Returns the plan of the main phases as text: one line per step of each device.
    pub(crate) fn explain(&self) -> String {
        let mut text = String::new();
        let devices = self.budgets.iter().zip(&self.parts).zip(self.runtime.lowered());
        for (((budget, part), lowered), script) in devices.zip(&self.scripts[&self.main]) {
            text += &format!(
                "{}: vertices {} to {}, peak {} bytes\n",
                budget.name, part.start, part.end, script.peak_bytes
            );
            let names = |slots: &[Slot]| slots.iter().map(|s| &*lowered.tensor(*s).name).collect::<Vec<_>>().join(", ");
            text += &format!("  starts with {}\n", names(&script.start));
            for action in &script.actions {
                text += &format!("  {}", action.name);
                let around = [
                    ("store", &action.store),
                    ("evict", &action.evict),
                    ("load", &action.load),
                    ("publish", &action.publish),
                    ("load ahead", &action.ahead),
                ];
                for (what, slots) in around.into_iter().filter(|(_, slots)| !slots.is_empty()) {
                    text += &format!("  | {what} {}", names(slots));
                }
                text.push('\n');
            }
        }
        text
    }

    /// Changes one part's script of the main phases, for tests.
    #[cfg(test)]
    pub(super) fn corrupt_main(&mut self, part: usize, corrupt: impl FnOnce(&mut Script)) {
        let scripts = self.scripts.get_mut(&self.main).expect("the main phases are planned");
        corrupt(Arc::make_mut(&mut scripts[part]));
    }

    /// Returns a trace of these devices, without an epoch.
    pub(crate) fn trace(&self) -> Trace {
        Trace::new(self.budgets.iter().map(|budget| budget.name.clone()).collect(), self.hosts.clone())
    }

    /// Returns, for each part, the largest planned peak of the setup and of all sequences planned so far, in bytes.
    pub(crate) fn planned_peak_bytes(&self) -> Vec<u64> {
        let of_part = |part: usize| {
            let scripts = self.scripts.values().map(|scripts| scripts[part].peak_bytes);
            scripts.fold(self.setup_peaks[part], u64::max)
        };
        (0..self.parts.len()).map(of_part).collect()
    }

    /// Returns, for each part, the peak of its device's memory so far, in bytes.
    pub(crate) fn peak_bytes(&self) -> Vec<u64> {
        self.peaks.clone()
    }

    /// Returns the vertex ranges of the devices.
    pub(crate) fn part_pairs(&self) -> Vec<[usize; 2]> {
        self.parts.iter().map(|part| [part.start, part.end]).collect()
    }
}

/// Calls `see` with bytes as elements, which are copied only if they are not aligned.
fn see_as<T: Pod>(bytes: &[u8], see: &mut impl FnMut(&[T])) {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => see(elements),
        Err(_) => see(&bytemuck::pod_collect_to_vec::<u8, T>(bytes)),
    }
}

/// Phases that run beside the main ones.
struct Beside<'a> {
    /// The plan of the main phases if they run again. Tensors that they leave on a device stay there.
    main: Option<&'a Planned>,
    budgets: &'a [DeviceBudget],
    keep: &'a BTreeSet<Slot>,
    method: &'a Method,
}

impl Beside<'_> {
    /// Plans these phases.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    fn plan<L: Borrow<Lowered> + Sync>(&self, lowered: &[L], phases: &[usize]) -> Result<Planned> {
        let Self { main, budgets, keep, method } = *self;
        match main {
            Some(main) => plan_between(lowered, budgets, phases, main, keep, method),
            None => plan_sequence(lowered, budgets, Sequence::Phases(phases), &Epoch::Cold, keep, method),
        }
    }
}

/// Returns the script of each worker.
fn scripts(planned: &Planned) -> Vec<Arc<Script>> {
    planned.devices.iter().map(|device| Arc::new(device.script())).collect()
}
