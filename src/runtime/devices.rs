//! Which devices a run uses.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use bytesize::ByteSize;
use lapidary_kernels::{CpuDevice, Device, Semaphore, SimDevice, SimSpeed, cuda};

use crate::error::{Error, Result};
use crate::host;
use crate::plan::{DeviceBudget, ExchangePath};

/// The most devices of a run: beyond, starting their threads would take longer than training.
const MOST_DEVICES: usize = 256;

/// The devices that a run uses.
///
/// | constructor | text | devices |
/// | --- | --- | --- |
/// | [`Devices::auto`] | `auto` | every GPU, else the CPU |
/// | [`Devices::cpu`] | `cpu` | the host's cores, in the host's memory: nothing is copied |
/// | [`Devices::cpus`] | `cpu:N` | N workers that share the cores, each with a part of the graph |
/// | [`Devices::cuda`] | `cuda:0,1` | these GPUs, by the driver's numbers; a GPU named twice is two devices, each with a share of its memory |
/// | [`Devices::sim`] | `sim:N` | N simulated devices: memory of their own with a hard capacity, counted copies, kernels on the CPU |
/// | [`Devices::custom`] | | devices of the caller's own |
///
/// ```
/// use lapidary::Devices;
///
/// assert_eq!(Devices::sim(3), "sim:3".parse()?);
/// assert_eq!(Devices::cuda(&[0, 0]).count(), 2);
/// assert_eq!(Devices::cuda(&[0, 1]).to_string(), "cuda:0,1");
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    kind: DeviceKind,
    count: usize,
    threads: Option<NonZeroUsize>,
    /// A simulated device, and the percentage of its usual time that it takes.
    slowed: Option<(usize, u32)>,
    exchange: ExchangeMode,
}

/// How rows go from device to device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangeMode {
    /// Between GPUs that all reach each other's memory straight from one to the other, else through the host.
    #[default]
    Auto,
    /// Through the host.
    Host,
    /// From device to device, as simulated ones can as well; an error on devices that cannot. Parts that are cut into tiles go
    /// through the host all the same.
    Peer,
}

impl fmt::Display for ExchangeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Peer => "peer",
        })
    }
}

impl FromStr for ExchangeMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "peer" => Ok(Self::Peer),
            _ => {
                let expected = "write auto, host or peer".into();
                Err(Error::Value { option: "exchange", value: text.into(), expected })
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DeviceKind {
    Cpu,
    Sim,
    /// By the driver's numbers.
    Cuda(Vec<u32>),
    Custom(CustomDevices),
}

/// Opens device number `i` of a run with a capacity in bytes.
type OpenDevice = dyn Fn(usize, u64) -> lapidary_kernels::Result<Box<dyn Device>> + Send + Sync;

/// Devices of the caller's own.
#[derive(Clone)]
struct CustomDevices {
    name: String,
    capacity_bytes: u64,
    open: Arc<OpenDevice>,
}

impl fmt::Debug for CustomDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomDevices").field(&self.name).finish()
    }
}

impl PartialEq for CustomDevices {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.capacity_bytes == other.capacity_bytes && Arc::ptr_eq(&self.open, &other.open)
    }
}

impl Eq for CustomDevices {}

/// What a run leaves of a GPU's free memory by default, for kernels, cuBLAS and what the driver rounds up: so much, and one
/// part in 32.
const RESERVE_BYTES: u64 = 512 << 20;
const RESERVE_PART: u64 = 32;

impl Devices {
    /// The host's cores, as many as there are (or as `RAYON_NUM_THREADS` says).
    pub fn cpu() -> Self {
        Self::of(DeviceKind::Cpu, 1)
    }

    /// So many workers that share the host's cores and its memory, each with a part of the graph.
    pub fn cpus(count: usize) -> Self {
        Self::of(DeviceKind::Cpu, count)
    }

    /// So many simulated devices.
    pub fn sim(count: usize) -> Self {
        Self::of(DeviceKind::Sim, count)
    }

    /// The GPUs of these numbers of the driver. Whether they are there is seen when they are opened.
    pub fn cuda(ordinals: &[u32]) -> Self {
        Self::of(DeviceKind::Cuda(ordinals.to_vec()), ordinals.len())
    }

    /// Every GPU, else the CPU.
    pub fn auto() -> Self {
        // Without a driver there are no GPUs, whatever the reason.
        let ordinals: Vec<u32> = cuda::gpus().unwrap_or_default().iter().map(|gpu| gpu.ordinal).collect();
        if ordinals.is_empty() { Self::cpu() } else { Self::cuda(&ordinals) }
    }

    /// `count` devices of the caller's own, each with `capacity` of memory. `open(i, capacity_bytes)` opens device `i`, which is
    /// named `name:i` in errors and traces. It is called whenever a run starts, so perhaps more than once.
    ///
    /// Rows go from device to device through the host. Before anything was measured, kernels are taken to be as fast as this
    /// machine's CPU.
    ///
    /// ```
    /// use lapidary::kernels::{SimDevice, SimSpeed};
    /// use lapidary::{ByteSize, Dataset, Devices, Model, Trainer};
    ///
    /// let devices = Devices::custom("mine", 2, ByteSize::mib(64), |i, capacity_bytes| {
    ///     Ok(Box::new(SimDevice::new(&format!("mine:{i}"), None, capacity_bytes, SimSpeed::default())?))
    /// });
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    /// let mut trainer = Trainer::builder(&model, &data).devices(devices).build()?;
    /// assert!(trainer.step()?.loss.is_finite());
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    pub fn custom<F>(name: &str, count: usize, capacity: ByteSize, open: F) -> Self
    where
        F: Fn(usize, u64) -> lapidary_kernels::Result<Box<dyn Device>> + Send + Sync + 'static,
    {
        let custom = CustomDevices { name: name.into(), capacity_bytes: capacity.as_u64(), open: Arc::new(open) };
        Self::of(DeviceKind::Custom(custom), count)
    }

    fn of(kind: DeviceKind, count: usize) -> Self {
        Self { kind, count, threads: None, slowed: None, exchange: ExchangeMode::Auto }
    }

    /// The devices that a text names: as [`FromStr`].
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn parse(text: &str) -> Result<Self> {
        text.parse()
    }

    /// Uses so many threads, of all devices together. The results do not depend on it.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Makes one of several simulated devices take `percent` (at least 100) of the time that its kernels take, to try out
    /// unequal devices. Others are as they are.
    pub fn slowed(mut self, device: usize, percent: u32) -> Self {
        self.slowed = Some((device, percent));
        self
    }

    /// How rows go from device to device; [`ExchangeMode::Auto`] by default. Results do not depend on it.
    pub fn exchange(mut self, exchange: ExchangeMode) -> Self {
        self.exchange = exchange;
        self
    }

    /// How rows will go from device to device. GPUs that can are let read each other's memory.
    ///
    /// # Errors
    /// [`Error::Unreachable`] for [`ExchangeMode::Peer`] on devices that cannot; [`Error::Device`] where the driver refuses it then.
    pub(crate) fn exchange_path(&self) -> Result<ExchangePath> {
        if self.count == 1 || self.exchange == ExchangeMode::Host {
            return Ok(ExchangePath::Host);
        }
        let unreachable = |why: &str| Err(Error::Unreachable { why: why.into() });
        match (&self.kind, self.exchange) {
            (DeviceKind::Sim, ExchangeMode::Peer) => Ok(ExchangePath::Peer),
            (DeviceKind::Cpu, ExchangeMode::Peer) => {
                unreachable("the workers of cpu:N share the host's memory, where nothing is copied")
            }
            (DeviceKind::Custom(custom), ExchangeMode::Peer) => {
                unreachable(&format!("devices of the caller's own, as `{}`, go through the host", custom.name))
            }
            (DeviceKind::Cuda(ordinals), exchange) => {
                let linked = cuda::reach_each_other(ordinals)
                    .and_then(|reach| if reach { cuda::link(ordinals).map(|()| true) } else { Ok(false) });
                match (linked, exchange) {
                    (Ok(true), _) => Ok(ExchangePath::Peer),
                    (_, ExchangeMode::Auto | ExchangeMode::Host) => Ok(ExchangePath::Host),
                    (Ok(false), ExchangeMode::Peer) => unreachable(&format!("GPUs {} cannot all", numbers(ordinals))),
                    (Err(source), ExchangeMode::Peer) => Err(Error::Device {
                        device: self.to_string(),
                        op: "letting them read each other's memory".into(),
                        source: Box::new(source),
                    }),
                }
            }
            _ => Ok(ExchangePath::Host),
        }
    }

    /// How rows would go from device to device, for a plan: [`Devices::path`] without letting GPUs do anything.
    pub(crate) fn planned_path(&self) -> ExchangePath {
        match (&self.kind, self.exchange) {
            (_, ExchangeMode::Peer) => ExchangePath::Peer,
            (DeviceKind::Cuda(ordinals), ExchangeMode::Auto) if self.count > 1 => {
                if cuda::reach_each_other(ordinals).unwrap_or(false) { ExchangePath::Peer } else { ExchangePath::Host }
            }
            _ => ExchangePath::Host,
        }
    }

    /// The most devices that share one GPU.
    pub(crate) fn sharing(&self) -> u64 {
        let DeviceKind::Cuda(ordinals) = &self.kind else { return 1 };
        let shares = ordinals.iter().map(|ordinal| ordinals.iter().filter(|other| *other == ordinal).count() as u64);
        shares.max().unwrap_or(1)
    }

    /// How many devices there are, and so parts of the graph.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What says how fast they are before they were measured: see [`crate::profile::load`].
    pub(crate) fn profile(&self) -> String {
        match &self.kind {
            DeviceKind::Cuda(ordinals) => format!("cuda:{}", ordinals.first().copied().unwrap_or_default()),
            _ => "cpu".into(),
        }
    }

    /// Each device's name and capacity; by default all of the host's memory, and of a GPU what is free less a reserve.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU that is not there; [`Error::NoGpus`] without a driver.
    pub(crate) fn budgets(&self, memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        self.check()?;
        let (names, default_bytes): (Vec<String>, u64) = match &self.kind {
            DeviceKind::Cuda(ordinals) => return self.gpu_budgets(ordinals, memory),
            DeviceKind::Cpu if self.count == 1 => (vec!["cpu".into()], host::memory_bytes()),
            DeviceKind::Cpu => (self.numbered("cpu"), host::memory_bytes()),
            DeviceKind::Sim => (self.numbered("sim"), host::memory_bytes()),
            DeviceKind::Custom(custom) => (self.numbered(&custom.name), custom.capacity_bytes),
        };
        let capacity_bytes = memory.map_or(default_bytes, |memory| memory.as_u64());
        let budget = |name| DeviceBudget { name, capacity_bytes, in_place: self.in_place() };
        Ok(names.into_iter().map(budget).collect())
    }

    /// Whether their memory is the host's.
    pub(crate) fn in_place(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    fn numbered(&self, name: &str) -> Vec<String> {
        (0..self.count).map(|i| format!("{name}:{i}")).collect()
    }

    /// # Errors
    /// [`Error::Value`] for no devices or too many.
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=MOST_DEVICES).contains(&self.count) {
            return Ok(());
        }
        let expected = format!("a run has 1 to {MOST_DEVICES} devices");
        Err(Error::Value { option: "devices", value: self.to_string(), expected })
    }

    fn gpu_budgets(&self, ordinals: &[u32], memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        let missing = |name: String, source| Error::Device { device: name, op: "looking for it".into(), source };
        let gpus = cuda::gpus().map_err(|source| Error::NoGpus {
            option: "devices",
            value: self.to_string(),
            instead: "`cpu` needs none".into(),
            source: Box::new(source),
        })?;
        let budget = |(i, &ordinal): (usize, &u32)| {
            let sharing = ordinals.iter().filter(|&&other| other == ordinal).count();
            let before = ordinals[..i].iter().filter(|&&other| other == ordinal).count();
            let name = if sharing == 1 { format!("cuda:{ordinal}") } else { format!("cuda:{ordinal}.{before}") };
            let Some(gpu) = gpus.iter().find(|gpu| gpu.ordinal == ordinal) else {
                let none = lapidary_kernels::Error::NoGpu { ordinal, count: gpus.len() as u32 };
                return Err(missing(name, Box::new(none)));
            };
            let reserve_bytes = RESERVE_BYTES + gpu.free_bytes / RESERVE_PART;
            let share_bytes = gpu.free_bytes.saturating_sub(reserve_bytes) / sharing as u64;
            let capacity_bytes = memory.map_or(share_bytes, |memory| memory.as_u64());
            Ok(DeviceBudget { name, capacity_bytes, in_place: false })
        };
        ordinals.iter().enumerate().map(budget).collect()
    }

    /// Opens the devices. They share the cores evenly; with more devices than cores each has one thread, and kernels run
    /// one at a time a core, so that an operation's seconds are its own.
    pub(crate) fn open(&self, budgets: &[DeviceBudget]) -> Result<Vec<Box<dyn Device>>> {
        let cores = self.threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let threads = match self.count {
            1 => self.threads,
            count => NonZeroUsize::new((cores / count).max(1)),
        };
        let semaphore = (self.count > cores).then(|| Arc::new(Semaphore::new(cores)));
        let open = |(i, budget): (usize, &DeviceBudget)| -> lapidary_kernels::Result<Box<dyn Device>> {
            let capacity = budget.capacity_bytes;
            Ok(match (&self.kind, &semaphore) {
                (DeviceKind::Sim, semaphore) => {
                    let slowed = self.slowed.filter(|(device, _)| *device == i);
                    let slowdown = slowed.map(|(_, percent)| f64::from(percent) / 100.0);
                    let speed = SimSpeed { semaphore: semaphore.clone(), slowdown, ..SimSpeed::default() };
                    Box::new(SimDevice::new(&budget.name, threads, capacity, speed)?)
                }
                (DeviceKind::Cpu, Some(semaphore)) => {
                    Box::new(CpuDevice::with_semaphore(threads, capacity, semaphore.clone())?)
                }
                (DeviceKind::Cpu, None) => Box::new(CpuDevice::new(threads, capacity)?),
                (DeviceKind::Cuda(ordinals), _) => cuda::open(&budget.name, ordinals[i], capacity)?,
                (DeviceKind::Custom(custom), _) => (custom.open)(i, capacity)?,
            })
        };
        let opened = budgets.iter().enumerate().map(|(i, budget)| {
            open((i, budget)).map_err(|source| Error::Device {
                device: budget.name.clone(),
                op: "starting".into(),
                source: Box::new(source),
            })
        });
        opened.collect()
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self::cpu()
    }
}

impl FromStr for Devices {
    type Err = Error;

    /// From `auto`, `cpu`, `cpu:N`, `cuda:LIST` or `sim:N`.
    ///
    /// # Errors
    /// [`Error::Value`].
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |expected: String| Error::Value { option: "devices", value: text.into(), expected };
        let (kind, list) = text.split_once(':').map_or((text, None), |(kind, list)| (kind, Some(list)));
        let count = || match list.map(str::parse) {
            None => Ok(1),
            Some(Ok(count)) if (1..=MOST_DEVICES).contains(&count) => Ok(count),
            Some(_) => Err(wrong(format!("a number of devices is from 1 to {MOST_DEVICES}, as in sim:2"))),
        };
        match (kind, list) {
            ("auto", None) => Ok(Self::auto()),
            ("cpu", _) => Ok(Self::cpus(count()?)),
            ("sim", _) => Ok(Self::sim(count()?)),
            ("cuda", Some(list)) => {
                let ordinals: Option<Vec<u32>> = list.split(',').map(|number| number.parse().ok()).collect();
                let ordinals = ordinals.filter(|ordinals| ordinals.len() <= MOST_DEVICES);
                let expected = "GPUs are numbers separated by commas, as in cuda:0 or cuda:0,1";
                ordinals.map(|ordinals| Self::cuda(&ordinals)).ok_or_else(|| wrong(expected.into()))
            }
            ("cuda", None) => Err(wrong("GPUs are numbers separated by commas, as in cuda:0 or cuda:0,1".into())),
            _ => Err(wrong("write auto, cpu, cpu:N, cuda:0,1 or sim:N".into())),
        }
    }
}

impl fmt::Display for Devices {
    /// As [`FromStr`] reads them, but for the caller's own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            DeviceKind::Cpu if self.count == 1 => f.write_str("cpu"),
            DeviceKind::Cpu => write!(f, "cpu:{}", self.count),
            DeviceKind::Sim => write!(f, "sim:{}", self.count),
            DeviceKind::Cuda(ordinals) => write!(f, "cuda:{}", numbers(ordinals)),
            DeviceKind::Custom(custom) => write!(f, "{}:{}", custom.name, self.count),
        }
    }
}

/// Numbers of GPUs, separated by commas.
fn numbers(ordinals: &[u32]) -> String {
    ordinals.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
