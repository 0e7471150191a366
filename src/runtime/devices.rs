//! The devices that a run uses.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::{Arc, Once};

use bytesize::ByteSize;
use lapidary_kernels::{CpuDevice, Device, Matmul, Semaphore, SimDevice, SimSpeed, StorageType, cuda};

use super::IdleDevice;
use crate::error::{Error, Result};
use crate::host;
use crate::lower::SumMode;
use crate::plan::{DeviceBudget, ExchangePath};

/// The most devices of a run. With more, starting their threads would take longer than training.
const MOST_DEVICES: usize = 256;

/// The devices that a run uses.
///
/// | constructor | text | devices |
/// | --- | --- | --- |
/// | [`Devices::auto`] | `auto` | every GPU, or the CPU if there is none |
/// | [`Devices::cpu`] | `cpu` | the host's cores and memory; nothing is copied |
/// | [`Devices::cpus`] | `cpu:N` | N workers that share the cores; each has a part of the graph |
/// | [`Devices::cuda`] | `cuda:0,1` | these GPUs, by the driver's numbers |
/// | [`Devices::sim`] | `sim:N` | N simulated devices: own memory, counted copies, kernels on the CPU |
/// | [`Devices::custom`] | | devices that the caller implements |
///
/// A GPU that is named twice is two devices, each with a share of its memory. The memory of a simulated device has a
/// hard capacity.
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
    /// A simulated device that is slowed down, and its time as a percentage of the usual time.
    slowed: Option<(usize, u32)>,
    exchange: ExchangeMode,
    sums: SumMode,
    /// How bf16 matrices are multiplied on a CPU, if it was said.
    matmul: Option<Matmul>,
}

/// How rows are copied from device to device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangeMode {
    /// Directly between GPUs if all of them reach each other's memory: at once, or in stages if memory is short.
    /// Otherwise through the host.
    #[default]
    Auto,
    /// Through the host.
    Host,
    /// Directly from device to device, also between simulated devices. An error on devices that do not support it. Rows
    /// of parts that are split into tiles still go through the host.
    Peer,
    /// Directly, the rows of one device after those of another, so that a device never holds its whole halo. Otherwise
    /// as [`ExchangeMode::Peer`].
    Staged,
}

impl ExchangeMode {
    /// Returns the ways from device to device that may be used, the best one first; `None` if rows go through the host.
    fn between_devices(self) -> Option<Vec<ExchangePath>> {
        match self {
            Self::Auto => Some(vec![ExchangePath::Peer, ExchangePath::Staged]),
            Self::Host => None,
            Self::Peer => Some(vec![ExchangePath::Peer]),
            Self::Staged => Some(vec![ExchangePath::Staged]),
        }
    }
}

impl fmt::Display for ExchangeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Peer => "peer",
            Self::Staged => "staged",
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
            "staged" => Ok(Self::Staged),
            _ => {
                let expected = "write auto, host, peer or staged".into();
                Err(Error::Value { option: "exchange", value: text.into(), expected })
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DeviceKind {
    Cpu,
    Sim,
    /// The driver's numbers of the GPUs.
    Cuda(Vec<u32>),
    Custom(CustomDevices),
}

/// A function that opens device number `i` of a run with a capacity in bytes.
type OpenDevice = dyn Fn(usize, u64) -> lapidary_kernels::Result<Box<dyn Device>> + Send + Sync;

/// Devices that the caller implements.
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

/// Memory of a GPU that a run leaves free by default, for kernels, cuBLAS and the driver's rounding: this many bytes,
/// and 1/[`RESERVE_PART`] of the free memory.
const RESERVE_BYTES: u64 = 512 << 20;
const RESERVE_PART: u64 = 32;

impl Devices {
    /// Returns the CPU: all cores of the host, or as many as `RAYON_NUM_THREADS` says.
    pub fn cpu() -> Self {
        Self::of(DeviceKind::Cpu, 1)
    }

    /// Returns `count` workers that share the cores and the memory of the host. Each has a part of the graph.
    pub fn cpus(count: usize) -> Self {
        Self::of(DeviceKind::Cpu, count)
    }

    /// Returns `count` simulated devices.
    pub fn sim(count: usize) -> Self {
        Self::of(DeviceKind::Sim, count)
    }

    /// Returns the GPUs with these numbers of the driver. Opening them fails if they do not exist.
    pub fn cuda(ordinals: &[u32]) -> Self {
        Self::of(DeviceKind::Cuda(ordinals.to_vec()), ordinals.len())
    }

    /// Returns every GPU, or the CPU if there is none. A driver that is there but cannot be used is warned of.
    pub fn auto() -> Self {
        let gpus = cuda::gpus().unwrap_or_else(|error| {
            if !matches!(error, lapidary_kernels::Error::NoLibrary { .. } | lapidary_kernels::Error::NotBuilt { .. }) {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| tracing::warn!("no GPU is used: {error}"));
            }
            Vec::new()
        });
        let ordinals: Vec<u32> = gpus.iter().map(|gpu| gpu.ordinal).collect();
        if ordinals.is_empty() { Self::cpu() } else { Self::cuda(&ordinals) }
    }

    /// Returns `count` devices that the caller implements, each with `capacity` of memory. `open(i, capacity_bytes)`
    /// opens device `i`, which errors and traces call `name:i`. It is called each time a run starts, so possibly more
    /// than once.
    ///
    /// Rows go from device to device through the host. Until kernels are measured, they are predicted to be as fast as
    /// on this machine's CPU.
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
        Self {
            kind,
            count,
            threads: None,
            slowed: None,
            exchange: ExchangeMode::Auto,
            sums: SumMode::Parts,
            matmul: None,
        }
    }

    /// Parses the name of devices, as [`FromStr`] does.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn parse(text: &str) -> Result<Self> {
        text.parse()
    }

    /// Sets the number of threads of all devices together. The results do not depend on it.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Slows down one simulated device: its kernels take `percent` (at least 100) of their usual time. This is for
    /// trying out devices of unequal speed. It has no effect on devices that are not simulated.
    pub fn slowed(mut self, device: usize, percent: u32) -> Self {
        self.slowed = Some((device, percent));
        self
    }

    /// Sets how rows are copied from device to device. The default is [`ExchangeMode::Auto`]. The results do not depend
    /// on it.
    pub fn exchange(mut self, exchange: ExchangeMode) -> Self {
        self.exchange = exchange;
        self
    }

    /// Sets how gradients are added over several devices. The default is [`SumMode::Parts`]. [`SumMode::Nccl`] is for
    /// different GPUs of one process; opening other devices fails with it.
    pub fn sums(mut self, sums: SumMode) -> Self {
        self.sums = sums;
        self
    }

    /// Returns how gradients are added: a single device has nothing to add.
    pub(crate) fn chosen_sums(&self) -> SumMode {
        if self.count > 1 { self.sums } else { SumMode::Parts }
    }

    /// Returns [`Devices::chosen_sums`] for a run.
    ///
    /// # Errors
    /// [`Error::Value`] if these devices, or several ranks, cannot add so.
    pub(crate) fn checked_sums(&self, ranks: usize) -> Result<SumMode> {
        let sums = self.planned_sums(ranks)?;
        let is_cuda = matches!(self.kind, DeviceKind::Cuda(_));
        if sums == SumMode::Nccl && !is_cuda { Err(self.adds_not("")) } else { Ok(sums) }
    }

    /// Returns [`Devices::chosen_sums`] for a plan, in which simulated devices stand for GPUs.
    ///
    /// # Errors
    /// [`Error::Value`] if such devices, or several ranks, cannot add so.
    pub(crate) fn planned_sums(&self, ranks: usize) -> Result<SumMode> {
        if self.sums == SumMode::Nccl && ranks > 1 {
            return Err(self.adds_not("; with several ranks, leave it at parts"));
        }
        match (self.chosen_sums(), &self.kind) {
            (SumMode::Parts, _) => Ok(SumMode::Parts),
            (SumMode::Nccl, DeviceKind::Cuda(_)) if self.sharing() > 1 => Err(self.adds_not(", each named once")),
            (SumMode::Nccl, DeviceKind::Cuda(_) | DeviceKind::Sim) => Ok(SumMode::Nccl),
            (SumMode::Nccl, _) => Err(self.adds_not("")),
        }
    }

    /// Returns the error of devices that NCCL does not add over, with the end of a sentence.
    fn adds_not(&self, why: &str) -> Error {
        let expected = format!("NCCL adds over several GPUs of one process, as in cuda:0,1{why}");
        Error::Value { option: "sum", value: self.sums.name().into(), expected }
    }

    /// Sets how matrices are multiplied.
    ///
    /// - Those stored as bf16, on the CPU and on simulated devices: by default by [`Matmul::Bf16`] if that is faster
    ///   ([`Matmul::pays`]), else by [`Matmul::F32`], which gives the same bits on all CPUs.
    /// - Those stored as f32, on GPUs: by default by [`Matmul::F32`].
    ///
    /// Opening devices fails if they cannot multiply so.
    pub fn matmul(mut self, matmul: Matmul) -> Self {
        self.matmul = Some(matmul);
        self
    }

    /// Returns how matrices stored as `dtype` are multiplied, if these devices can do it in more than one way.
    pub(crate) fn chosen_matmul(&self, dtype: StorageType) -> Option<Matmul> {
        let best = if Matmul::Bf16.pays() { Matmul::Bf16 } else { Matmul::F32 };
        match (&self.kind, dtype) {
            (DeviceKind::Cpu | DeviceKind::Sim, StorageType::Bf16) => Some(self.matmul.unwrap_or(best)),
            (DeviceKind::Cuda(_), StorageType::F32) => {
                self.matmul.filter(|matmul| matches!(matmul, Matmul::Tf32 | Matmul::Tf32x3))
            }
            _ => None,
        }
    }

    /// Returns how rows can be copied from device to device, the best way first. Lets GPUs read each other's memory if
    /// they can.
    ///
    /// # Errors
    /// With [`ExchangeMode::Peer`] and [`ExchangeMode::Staged`]: [`Error::Unreachable`] if the devices do not support
    /// it, and [`Error::Device`] if the driver fails.
    pub(crate) fn exchange_paths(&self) -> Result<Vec<ExchangePath>> {
        let Some(paths) = self.exchange.between_devices().filter(|_| self.count > 1) else {
            return Ok(vec![ExchangePath::Host]);
        };
        let unreachable = |why: &str| Err(Error::Unreachable { why: why.into() });
        match (&self.kind, self.exchange) {
            (DeviceKind::Sim, ExchangeMode::Peer | ExchangeMode::Staged) => Ok(paths),
            (DeviceKind::Cpu, ExchangeMode::Peer | ExchangeMode::Staged) => {
                unreachable("the workers of cpu:N share the host's memory, where nothing is copied")
            }
            (DeviceKind::Custom(custom), ExchangeMode::Peer | ExchangeMode::Staged) => {
                unreachable(&format!("devices of the caller's own, as `{}`, go through the host", custom.name))
            }
            (DeviceKind::Cuda(ordinals), exchange) => {
                let linked = cuda::reach_each_other(ordinals)
                    .and_then(|reach| if reach { cuda::link(ordinals).map(|()| true) } else { Ok(false) });
                match (linked, exchange) {
                    (Ok(true), _) => Ok(paths),
                    (_, ExchangeMode::Auto | ExchangeMode::Host) => Ok(vec![ExchangePath::Host]),
                    (Ok(false), _) => unreachable(&format!("GPUs {} cannot all", numbers(ordinals))),
                    (Err(source), _) => Err(Error::Device {
                        device: self.to_string(),
                        op: "letting them read each other's memory".into(),
                        source: Box::new(source),
                    }),
                }
            }
            _ => Ok(vec![ExchangePath::Host]),
        }
    }

    /// Returns how rows could be copied from device to device, for a plan. Unlike [`Devices::exchange_paths`], changes
    /// no setting of a GPU.
    pub(crate) fn planned_paths(&self) -> Vec<ExchangePath> {
        let reach = match (&self.kind, self.exchange) {
            (_, ExchangeMode::Peer | ExchangeMode::Staged) => true,
            (DeviceKind::Cuda(ordinals), _) => cuda::reach_each_other(ordinals).unwrap_or(false),
            _ => false,
        };
        let paths = self.exchange.between_devices().filter(|_| reach && self.count > 1);
        paths.unwrap_or_else(|| vec![ExchangePath::Host])
    }

    /// Returns the greatest number of devices that share one GPU.
    pub(crate) fn sharing(&self) -> u64 {
        let DeviceKind::Cuda(ordinals) = &self.kind else { return 1 };
        let shares = ordinals.iter().map(|ordinal| ordinals.iter().filter(|other| *other == ordinal).count() as u64);
        shares.max().unwrap_or(1)
    }

    /// Returns the greatest number of devices that share cores: those of the host, or of one GPU.
    pub(crate) fn sharing_cores(&self) -> u64 {
        if matches!(self.kind, DeviceKind::Cuda(_)) { self.sharing() } else { self.count as u64 }
    }

    /// Returns how many programs can run side by side, each on [`Devices::one_thread`]: as many as there are cores if the
    /// device is the CPU, otherwise one.
    pub(crate) fn lanes(&self) -> usize {
        match (&self.kind, self.count) {
            (DeviceKind::Cpu, 1) => self.threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get),
            _ => 1,
        }
    }

    /// Returns the devices with one thread.
    pub(crate) fn one_thread(&self) -> Self {
        self.clone().threads(NonZeroUsize::MIN)
    }

    /// Returns the first of the devices alone.
    pub(crate) fn first(&self) -> Self {
        let kind = match &self.kind {
            DeviceKind::Cuda(ordinals) => DeviceKind::Cuda(ordinals[..1].to_vec()),
            other => other.clone(),
        };
        Self { kind, count: 1, ..self.clone() }
    }

    /// Returns the number of devices, which is the number of parts of the graph.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the name of the profile that predicts times until the devices are measured: see
    /// [`crate::profile::load`].
    pub fn profile(&self) -> String {
        match &self.kind {
            DeviceKind::Cuda(ordinals) => format!("cuda:{}", numbers(ordinals)),
            _ => "cpu".into(),
        }
    }

    /// Returns the name and the capacity of each device. The default capacity is an equal share of the host's memory, or the
    /// free memory of a GPU less a reserve.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU that does not exist; [`Error::NoGpus`] without a driver; [`Error::Value`] for no
    /// devices or too many.
    pub(crate) fn budgets(&self, memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        self.check()?;
        let share_bytes = || host::memory_bytes() / self.count as u64;
        let (names, default_bytes): (Vec<String>, u64) = match &self.kind {
            DeviceKind::Cuda(ordinals) => return self.gpu_budgets(ordinals, memory),
            DeviceKind::Cpu if self.count == 1 => (vec!["cpu".into()], share_bytes()),
            DeviceKind::Cpu => (self.numbered("cpu"), share_bytes()),
            DeviceKind::Sim => (self.numbered("sim"), share_bytes()),
            DeviceKind::Custom(custom) => (self.numbered(&custom.name), custom.capacity_bytes),
        };
        let capacity_bytes = memory.map_or(default_bytes, |memory| memory.as_u64());
        let budget = |name| DeviceBudget { name, capacity_bytes, in_place: self.in_place() };
        Ok(names.into_iter().map(budget).collect())
    }

    /// Returns whether the devices compute in the memory of the host.
    pub(crate) fn in_place(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    fn numbered(&self, name: &str) -> Vec<String> {
        (0..self.count).map(|i| format!("{name}:{i}")).collect()
    }

    /// Checks the number of devices.
    ///
    /// # Errors
    /// [`Error::Value`] for no devices or too many.
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=MOST_DEVICES).contains(&self.count) {
            return Ok(());
        }
        Err(wrong_count(&self.to_string()))
    }

    fn gpu_budgets(&self, ordinals: &[u32], memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        let missing = |name: String, source| Error::Device { device: name, op: "looking for it".into(), source };
        cuda::gpus().map_err(|source| Error::NoGpus {
            option: "devices",
            value: self.to_string(),
            instead: "`cpu` needs none".into(),
            source: Box::new(source),
        })?;
        let budget = |(i, &ordinal): (usize, &u32)| {
            let sharing = ordinals.iter().filter(|&&other| other == ordinal).count();
            let before = ordinals[..i].iter().filter(|&&other| other == ordinal).count();
            let name = if sharing == 1 { format!("cuda:{ordinal}") } else { format!("cuda:{ordinal}.{before}") };
            let free_bytes = match cuda::free_bytes(ordinal) {
                Err(source) => return Err(missing(name, Box::new(source))),
                Ok(free_bytes) => free_bytes,
            };
            let reserve_bytes = RESERVE_BYTES + free_bytes / RESERVE_PART;
            let share_bytes = free_bytes.saturating_sub(reserve_bytes) / sharing as u64;
            let capacity_bytes = memory.map_or(share_bytes, |memory| memory.as_u64());
            Ok(DeviceBudget { name, capacity_bytes, in_place: false })
        };
        ordinals.iter().enumerate().map(budget).collect()
    }

    /// Opens the devices. They share the cores evenly. With more devices than cores, each device has one thread, and
    /// only as many kernels run at a time as there are cores, so that the measured time of a kernel is not shared with
    /// others.
    pub(crate) fn open(&self, budgets: &[DeviceBudget]) -> Result<Vec<IdleDevice>> {
        let cores = self.threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let threads = match self.count {
            1 => self.threads,
            count => NonZeroUsize::new((cores / count).max(1)),
        };
        let semaphore = (self.count > cores).then(|| Arc::new(Semaphore::new(cores)));
        let matmul = self.matmul.or_else(|| self.chosen_matmul(StorageType::Bf16)).unwrap_or_default();
        let group = match (&self.kind, self.chosen_sums()) {
            (DeviceKind::Cuda(ordinals), SumMode::Nccl) => {
                let failed = |source| Error::Device {
                    device: self.to_string(),
                    op: "getting ready to add gradients".into(),
                    source: Box::new(source),
                };
                Some(Arc::new(cuda::group(ordinals).map_err(failed)?))
            }
            _ => None,
        };
        let open = |(i, budget): (usize, &DeviceBudget)| -> lapidary_kernels::Result<Box<dyn Device>> {
            let capacity = budget.capacity_bytes;
            Ok(match (&self.kind, &semaphore) {
                (DeviceKind::Sim, semaphore) => {
                    let slowed = self.slowed.filter(|(device, _)| *device == i);
                    let slowdown = slowed.map(|(_, percent)| f64::from(percent) / 100.0);
                    let speed = SimSpeed { semaphore: semaphore.clone(), slowdown, matmul, ..SimSpeed::default() };
                    Box::new(SimDevice::new(&budget.name, threads, capacity, speed)?)
                }
                (DeviceKind::Cpu, Some(semaphore)) => {
                    Box::new(CpuDevice::with_semaphore(threads, capacity, semaphore.clone())?.matmul(matmul)?)
                }
                (DeviceKind::Cpu, None) => Box::new(CpuDevice::new(threads, capacity)?.matmul(matmul)?),
                (DeviceKind::Cuda(ordinals), _) => cuda::open_with(
                    &budget.name,
                    ordinals[i],
                    capacity,
                    &cuda::Options { matmul, ..Default::default() },
                    group.clone().map(|group| (group, i)),
                )?,
                (DeviceKind::Custom(custom), _) => (custom.open)(i, capacity)?,
            })
        };
        let opened = budgets.iter().enumerate().map(|(i, budget)| {
            open((i, budget)).map(IdleDevice::from).map_err(|source| Error::Device {
                device: budget.name.clone(),
                op: "starting".into(),
                source: Box::new(source),
            })
        });
        let opened: Vec<IdleDevice> = opened.collect::<Result<_>>()?;
        if let Some(notice) = opened.iter().flat_map(|idle| idle.device.notices()).next() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| tracing::warn!("{notice}"));
        }
        Ok(opened)
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self::cpu()
    }
}

impl FromStr for Devices {
    type Err = Error;

    /// Parses `auto`, `cpu`, `cpu:N`, `cuda:LIST` or `sim:N`.
    ///
    /// # Errors
    /// [`Error::Value`].
    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            |expected: &str| Err(Error::Value { option: "devices", value: text.into(), expected: expected.into() });
        let (kind, list) = text.split_once(':').map_or((text, None), |(kind, list)| (kind, Some(list)));
        let count = || match list.map(str::parse) {
            None => Ok(1),
            Some(Ok(count)) if (1..=MOST_DEVICES).contains(&count) => Ok(count),
            Some(_) => Err(wrong_count(text)),
        };
        match (kind, list) {
            ("auto", None) => Ok(Self::auto()),
            ("cpu", _) => Ok(Self::cpus(count()?)),
            ("sim", _) => Ok(Self::sim(count()?)),
            ("cuda", list) => {
                let number = |text: &str| text.parse().ok();
                let ordinals: Option<Vec<u32>> = list.and_then(|list| list.split(',').map(number).collect());
                match ordinals.filter(|ordinals| ordinals.len() <= MOST_DEVICES) {
                    Some(ordinals) => Ok(Self::cuda(&ordinals)),
                    None => wrong("GPUs are numbers separated by commas, as in cuda:0 or cuda:0,1"),
                }
            }
            _ => wrong("write auto, cpu, cpu:N, cuda:0,1 or sim:N"),
        }
    }
}

fn wrong_count(devices: &str) -> Error {
    let expected = format!("a number of devices is from 1 to {MOST_DEVICES}, as in sim:2");
    Error::Value { option: "devices", value: devices.into(), expected }
}

impl fmt::Display for Devices {
    /// Writes the text that [`FromStr`] reads, except for custom devices, which no text names.
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

/// Formats numbers of GPUs, separated by commas.
fn numbers(ordinals: &[u32]) -> String {
    ordinals.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
