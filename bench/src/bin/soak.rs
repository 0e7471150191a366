//! Trains for a long time in one process in which something fails again and again, and recovers each time.
//!
//! ```text
//! cargo run --release -p lapidary-bench --bin soak -- SECONDS FOLDER [SEED]
//! ```
//!
//! Each round trains one model on devices of its own setting, with checkpoints in FOLDER, until its last epoch. On the
//! way, device calls fail or panic, the loss diverges, a checkpoint cannot be written or is damaged, and trainers are
//! dropped. After each fault the round continues from its newest checkpoint. Its final weights, moments and best
//! weights must equal, byte for byte, those of the same training without a fault.
//!
//! Prints a JSON line every few seconds: seconds, epochs, rounds, and the number of faults of each kind. Ends with an
//! error at the first thing that is wrong. `ci/soak` runs this program and samples its memory, threads and open files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use lapidary::kernels::{
    Call, CpuDevice, Device, Error as DeviceError, Event, HostSlot, Lane, Result as DeviceResult, SimDevice, SimSpeed,
    Slot, Span,
};
use lapidary::{
    Adam, ByteSize, Dataset, Devices, Error, ExchangeMode, MemoryPolicy, Model, Partition, Predictor, Strategy, Trainer,
};
use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Epochs of one round.
const EPOCHS: u64 = 60;

/// A checkpoint is written every this many epochs.
const SAVE_EVERY: u64 = 7;

/// Seconds from one printed line to the next.
const PRINT_EVERY: Duration = Duration::from_secs(5);

/// Files that must have the same bytes as without a fault.
const COMPARED: [&str; 3] = ["model.safetensors", "optimizer.safetensors", "best.safetensors"];

type Problem = Box<dyn std::error::Error>;

/// The devices of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// Two devices with memory of their own, and room for all.
    Whole,
    /// Two devices that evict.
    Evicting,
    /// Two devices so small that the parts are split into tiles.
    Tiled,
    /// One device that computes in the memory of the host.
    InPlace,
    /// Two devices that read each other's rows. Their calls do not fail.
    Peers,
}

const SETTINGS: [Setting; 5] = [Setting::Whole, Setting::Evicting, Setting::Tiled, Setting::InPlace, Setting::Peers];

/// A fault that is planted while a trainer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    DeviceError,
    DevicePanic,
    Diverges,
    Unwritable,
    Damaged,
    Dropped,
}

impl Fault {
    const ALL: [Self; 6] =
        [Self::DeviceError, Self::DevicePanic, Self::Diverges, Self::Unwritable, Self::Damaged, Self::Dropped];

    fn name(self) -> &'static str {
        match self {
            Self::DeviceError => "a device call failed",
            Self::DevicePanic => "a device call panicked",
            Self::Diverges => "the loss diverged",
            Self::Unwritable => "a checkpoint could not be written",
            Self::Damaged => "the newest checkpoint was damaged",
            Self::Dropped => "the trainer was dropped",
        }
    }
}

/// The message of injected failures.
const INJECTED: &str = "injected by the soak test";

/// Which device call fails next, of all devices together.
#[derive(Debug, Default)]
struct Fuse {
    /// Number of calls before the failing one; negative for none.
    left: AtomicI64,
    /// 1 if the call panics.
    panics: AtomicU8,
}

/// A device whose calls fail when the fuse says so.
struct Faulty {
    inner: Box<dyn Device>,
    fuse: Arc<Fuse>,
}

impl Faulty {
    fn call<T>(&self, call: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        if self.fuse.left.fetch_sub(1, Ordering::SeqCst) != 0 {
            return call();
        }
        assert!(self.fuse.panics.load(Ordering::SeqCst) == 0, "{INJECTED}");
        Err(DeviceError::Panicked { message: INJECTED.into() })
    }
}

impl Device for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn alloc(&self, slot: Slot, bytes: u64) -> DeviceResult<()> {
        self.call(|| self.inner.alloc(slot, bytes))
    }
    fn free(&self, slot: Slot) -> DeviceResult<()> {
        self.call(|| self.inner.free(slot))
    }
    fn rename(&self, from: Slot, to: Slot) -> DeviceResult<()> {
        self.call(|| self.inner.rename(from, to))
    }
    fn share(&self, slot: Slot) -> DeviceResult<Option<HostSlot>> {
        self.call(|| self.inner.share(slot))
    }
    fn copy_in(&self, lane: Lane, dst: Slot, src: &HostSlot, after: &[Event]) -> DeviceResult<Event> {
        self.call(|| self.inner.copy_in(lane, dst, src, after))
    }
    fn copy_out(&self, lane: Lane, src: Slot, dst: &HostSlot, after: &[Event]) -> DeviceResult<Event> {
        self.call(|| self.inner.copy_out(lane, src, dst, after))
    }
    fn launch(&self, lane: Lane, call: &Call, after: &[Event]) -> DeviceResult<Event> {
        self.call(|| self.inner.launch(lane, call, after))
    }
    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.inner.wait(event)
    }
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }
    fn record(&self, on: bool) {
        self.inner.record(on);
    }
    fn take_spans(&self) -> Vec<Span> {
        self.inner.take_spans()
    }
    fn copied_bytes(&self) -> [u64; 2] {
        self.inner.copied_bytes()
    }
    fn used_bytes(&self) -> u64 {
        self.inner.used_bytes()
    }
    fn peak_bytes(&self) -> u64 {
        self.inner.peak_bytes()
    }
}

impl Setting {
    fn devices(self, fuse: &Arc<Fuse>) -> Devices {
        let fuse = Arc::clone(fuse);
        let custom = |count, memory, in_place: bool| {
            Devices::custom("faulty", count, memory, move |i, capacity| {
                let inner: Box<dyn Device> = if in_place {
                    Box::new(CpuDevice::new(None, capacity)?)
                } else {
                    Box::new(SimDevice::new(&format!("faulty:{i}"), None, capacity, SimSpeed::default())?)
                };
                Ok(Box::new(Faulty { inner, fuse: Arc::clone(&fuse) }))
            })
        };
        match self {
            Self::Whole => custom(2, ByteSize::mib(64), false),
            Self::Evicting => custom(2, ByteSize::kib(1200), false),
            Self::Tiled => custom(2, ByteSize::kib(800), false),
            Self::InPlace => custom(1, ByteSize::mib(64), true),
            Self::Peers => Devices::sim(2).exchange(ExchangeMode::Peer),
        }
    }

    fn trainer(self, data: &Dataset, fuse: &Arc<Fuse>) -> lapidary::Result<Trainer> {
        let model = Model::gcn(&[data.feature_width(), 32, 32, data.class_count()]).dropout(0.5);
        let builder = Trainer::builder(&model, data).optimizer(Adam::new(0.01)).epochs(EPOCHS).eval_every(3);
        let builder = builder.devices(self.devices(fuse)).partition(Partition::Strategy(Strategy::Edges));
        // Trainers are built often, and the other policies plan for a second.
        builder.memory(MemoryPolicy::Lru).build()
    }
}

/// The counts that are printed.
#[derive(Default)]
struct Tally {
    epochs: u64,
    rounds: u64,
    faults: BTreeMap<&'static str, u64>,
}

struct Soak {
    data: Dataset,
    folder: PathBuf,
    rng: ChaCha8Rng,
    fuse: Arc<Fuse>,
    start: Instant,
    printed: Instant,
    tally: Tally,
    /// The files of each setting's run without a fault.
    wanted: BTreeMap<Setting, Vec<Vec<u8>>>,
}

impl Soak {
    fn note(&mut self, what: &'static str) {
        *self.tally.faults.entry(what).or_default() += 1;
    }

    fn print(&mut self) {
        let Tally { epochs, rounds, faults } = &self.tally;
        let seconds = self.start.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({ "seconds": seconds, "epochs": epochs, "rounds": rounds, "faults": faults }));
        self.printed = Instant::now();
    }

    /// Arms or disarms the next failing device call.
    fn arm(&self, calls: Option<(i64, bool)>) {
        self.fuse.panics.store(calls.is_some_and(|(_, panics)| panics).into(), Ordering::SeqCst);
        self.fuse.left.store(calls.map_or(-1, |(left, _)| left), Ordering::SeqCst);
    }

    /// Runs one step, and saves if it is due.
    fn step(&mut self, trainer: &mut Trainer) -> lapidary::Result<()> {
        let epoch = trainer.step()?.epoch;
        self.tally.epochs += 1;
        if self.printed.elapsed() > PRINT_EVERY {
            self.print();
        }
        if epoch % SAVE_EVERY == 0 || epoch == EPOCHS {
            trainer.save(&self.folder)?;
        }
        Ok(())
    }

    /// Trains without a fault. Returns the files that all rounds of the setting must end with.
    fn undisturbed(&mut self, setting: Setting) -> Result<Vec<Vec<u8>>, Problem> {
        self.arm(None);
        let mut trainer = setting.trainer(&self.data, &self.fuse)?;
        if (trainer.tiles() > 1) != (setting == Setting::Tiled) {
            return Err(format!("{setting:?} has {} tiles", trainer.tiles()).into());
        }
        while trainer.epoch() < EPOCHS {
            self.step(&mut trainer)?;
        }
        Ok(self.files()?)
    }

    /// Reads the compared files of the last epoch's checkpoint.
    fn files(&self) -> std::io::Result<Vec<Vec<u8>>> {
        let last = self.folder.join(format!("epoch-{EPOCHS:08}"));
        COMPARED.iter().map(|file| fs::read(last.join(file))).collect()
    }

    /// Returns the newest epoch's folder.
    fn newest(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(&self.folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("epoch-"))).max()
    }

    /// Flips one bit of a random file of the newest checkpoint, cuts the file, or removes it.
    fn damage(&mut self) -> Result<bool, Problem> {
        let Some(newest) = self.newest() else { return Ok(false) };
        let mut files: Vec<PathBuf> = fs::read_dir(newest)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let path = &files[self.rng.random_range(0..files.len())];
        let mut bytes = fs::read(path)?;
        let at = self.rng.random_range(0..bytes.len());
        match self.rng.random_range(0..3) {
            0 => bytes[at] ^= 1 << self.rng.random_range(0..8),
            1 => bytes.truncate(at),
            _ => return Ok(fs::remove_file(path).map(|()| true)?),
        }
        fs::write(path, bytes)?;
        Ok(true)
    }

    /// Opens a trainer and continues from the newest checkpoint that is not damaged. If there is no other one, the
    /// damaged one is removed.
    fn open(&mut self, setting: Setting) -> lapidary::Result<Trainer> {
        let mut trainer = setting.trainer(&self.data, &self.fuse)?;
        loop {
            match trainer.resume(&self.folder) {
                Ok(_) => return Ok(trainer),
                Err(Error::Damaged { path, .. }) => {
                    self.note("a damaged checkpoint was refused");
                    fs::remove_dir_all(path.parent().expect("it is in a folder")).expect("it can be removed");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Plants a fault and trains until it happens or a few epochs have passed. Returns the trainer if it still works.
    fn stretch(&mut self, mut trainer: Trainer, fault: Fault) -> Result<Option<Trainer>, Problem> {
        let blocked = self.folder.join(format!(".new-epoch-{:08}", (trainer.epoch() / SAVE_EVERY + 1) * SAVE_EVERY));
        match fault {
            Fault::DeviceError | Fault::DevicePanic => {
                let calls = self.rng.random_range(0..4000);
                self.arm(Some((calls, fault == Fault::DevicePanic)));
            }
            Fault::Diverges => return self.diverge(trainer),
            Fault::Unwritable => fs::write(&blocked, "a file where a folder should be")?,
            Fault::Damaged | Fault::Dropped => {}
        }
        let last = EPOCHS.min(trainer.epoch() + self.rng.random_range(1..20));
        while trainer.epoch() < last {
            match (self.step(&mut trainer), fault) {
                (Ok(()), _) => {}
                (Err(Error::Device { source, .. }), Fault::DeviceError | Fault::DevicePanic)
                    if source.to_string().contains(INJECTED) =>
                {
                    self.note(fault.name());
                    self.arm(None);
                    return Ok(None);
                }
                (Err(Error::Io { .. }), Fault::Unwritable) => {
                    self.note(fault.name());
                    fs::remove_file(&blocked)?;
                    trainer.save(&self.folder)?;
                    return Ok(Some(trainer));
                }
                (Err(error), _) => return Err(format!("{fault:?}: {error:?}").into()),
            }
        }
        self.arm(None);
        match fault {
            Fault::Unwritable if blocked.exists() => fs::remove_file(&blocked)?,
            Fault::Damaged => {
                if self.damage()? {
                    self.note(fault.name());
                }
                return Ok(None);
            }
            Fault::Dropped => {
                self.note(fault.name());
                return Ok(None);
            }
            _ => {}
        }
        Ok(Some(trainer))
    }

    /// Makes the loss diverge, and returns the same trainer to its newest checkpoint, if there is one.
    fn diverge(&mut self, mut trainer: Trainer) -> Result<Option<Trainer>, Problem> {
        trainer.set_learning_rate(1e30)?;
        // These epochs are never saved.
        for _ in 0..4 {
            match trainer.step() {
                Ok(_) => self.tally.epochs += 1,
                Err(Error::Diverged { .. } | Error::NotFiniteAtStart { .. } | Error::Weights(_)) => {
                    self.note(Fault::Diverges.name());
                    return Ok(trainer.resume(&self.folder)?.map(|_| trainer));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err("a learning rate of 1e30 does not make the loss diverge".into())
    }

    /// Trains to the last epoch with faults on the way, and compares the result.
    fn round(&mut self, setting: Setting) -> Result<(), Problem> {
        if !self.wanted.contains_key(&setting) {
            let wanted = self.undisturbed(setting)?;
            self.wanted.insert(setting, wanted);
            self.clear()?;
        }
        let mut running = None;
        loop {
            let trainer = match running.take() {
                Some(trainer) => trainer,
                None => {
                    // Sometimes the fault strikes while a trainer is built and resumed.
                    if self.rng.random_range(0..3) == 0 {
                        let (calls, panics) = (self.rng.random_range(0..300), self.rng.random_range(0..2) == 0);
                        self.arm(Some((calls, panics)));
                    }
                    let opened = self.open(setting);
                    self.arm(None);
                    match opened {
                        Ok(trainer) => trainer,
                        Err(Error::Device { source, .. }) if source.to_string().contains(INJECTED) => {
                            self.note("a device call failed at the start");
                            continue;
                        }
                        Err(error) => return Err(format!("{setting:?}: {error:?}").into()),
                    }
                }
            };
            if trainer.epoch() == EPOCHS {
                break;
            }
            let fault = Fault::ALL[self.rng.random_range(0..Fault::ALL.len())];
            running = self.stretch(trainer, fault)?;
        }
        if self.files()? != self.wanted[&setting] {
            return Err(format!("{setting:?}: the files of the last epoch differ from those without a fault").into());
        }
        Predictor::open(&self.folder)?.predict(&self.data)?;
        self.tally.rounds += 1;
        self.clear()
    }

    fn clear(&self) -> Result<(), Problem> {
        fs::remove_dir_all(&self.folder)?;
        Ok(fs::create_dir_all(&self.folder)?)
    }
}

/// Prints panics, except for the injected ones.
fn hide_injected_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains(INJECTED) {
            usual(info);
        }
    }));
}

fn main() -> Result<(), Problem> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (seconds, folder) = match &words[..] {
        [seconds, folder, ..] => (Duration::from_secs_f64(seconds.parse()?), Path::new(folder)),
        _ => return Err("soak SECONDS FOLDER [SEED]".into()),
    };
    let seed = words.get(2).map_or(Ok(1), |seed| seed.parse())?;
    hide_injected_panics();
    let mut soak = Soak {
        data: Dataset::builtin("planted")?,
        folder: folder.join("run"),
        rng: ChaCha8Rng::seed_from_u64(seed),
        fuse: Arc::default(),
        start: Instant::now(),
        printed: Instant::now(),
        tally: Tally::default(),
        wanted: BTreeMap::new(),
    };
    soak.arm(None);
    if folder.join("run").exists() {
        return Err(format!("{} exists already", folder.join("run").display()).into());
    }
    fs::create_dir_all(&soak.folder)?;
    while soak.start.elapsed() < seconds {
        for setting in SETTINGS {
            if soak.start.elapsed() < seconds {
                soak.round(setting)
                    .map_err(|problem| format!("seed {seed}, round {}: {problem}", soak.tally.rounds))?;
            }
        }
    }
    soak.print();
    fs::remove_dir_all(&soak.folder)?;
    Ok(())
}
