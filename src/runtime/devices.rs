//! Which devices a run uses.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use bytesize::ByteSize;
use lapidary_kernels::{CpuDevice, Device, Semaphore, SimDevice, SimSpeed, cuda};

use crate::error::{Error, Result};
use crate::host;
use crate::plan::{DeviceBudget, ExchangePath};

/// More devices than anyone has; beyond, starting their threads would take longer than training.
const MOST_DEVICES: usize = 256;

/// Which devices a run uses.
///
/// | text | what |
/// | --- | --- |
/// | `auto` | every GPU, else the CPU |
/// | `cpu` | the host's cores, in the host's memory: nothing is copied |
/// | `cpu:N` | N workers that share the cores, each with a part of the graph |
/// | `cuda:0,1` | these GPUs, by the driver's numbers; one that comes twice is two devices with a share of its memory each |
/// | `sim:N` | N simulated devices: memory of their own with a hard capacity, copies that are counted, computing on the CPU |
///
/// ```
/// use lapidary::Devices;
///
/// assert_eq!(Devices::parse("sim:3")?.count(), 3);
/// assert_eq!(Devices::parse("cuda:0,0")?.count(), 2);
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    kind: Kind,
    count: usize,
    /// Of GPUs, the driver's number of each; else empty.
    ordinals: Vec<u32>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cpu,
    Sim,
    Cuda,
}

/// What a run leaves of a GPU's free memory by default, for kernels, cuBLAS and what the driver rounds up: so much, and one
/// part in 32.
const RESERVE_BYTES: u64 = 512 << 20;
const RESERVE_PART: u64 = 32;

impl Devices {
    /// The host's cores, as many as there are (or as `RAYON_NUM_THREADS` says).
    pub fn cpu() -> Self {
        Self::of(Kind::Cpu, 1)
    }

    fn of(kind: Kind, count: usize) -> Self {
        Self { kind, count, ordinals: Vec::new(), threads: None, slowed: None, exchange: ExchangeMode::Auto }
    }

    fn gpus(ordinals: Vec<u32>) -> Self {
        Self { ordinals: ordinals.clone(), ..Self::of(Kind::Cuda, ordinals.len()) }
    }

    /// Every GPU, else the CPU.
    fn auto() -> Self {
        // Without a driver there are no GPUs, whatever the reason.
        let ordinals: Vec<u32> = cuda::gpus().unwrap_or_default().iter().map(|gpu| gpu.ordinal).collect();
        if ordinals.is_empty() { Self::cpu() } else { Self::gpus(ordinals) }
    }

    /// From `auto`, `cpu`, `cpu:N`, `cuda:LIST` or `sim:N`. Whether a GPU is there is seen when it is opened.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn parse(text: &str) -> Result<Self> {
        let (kind, count) = text.split_once(':').map_or((text, None), |(kind, count)| (kind, Some(count)));
        let wrong = |expected: String| Err(Error::Value { option: "devices", value: text.into(), expected });
        let kind = match (kind, count) {
            ("auto", None) => return Ok(Self::auto()),
            ("cpu", _) => Kind::Cpu,
            ("sim", _) => Kind::Sim,
            ("cuda", _) => {
                let number = |text: &str| text.parse().ok();
                let ordinals: Option<Vec<u32>> = count.and_then(|list| list.split(',').map(number).collect());
                return match ordinals {
                    Some(ordinals) if ordinals.len() <= MOST_DEVICES => Ok(Self::gpus(ordinals)),
                    _ => wrong("GPUs are numbers separated by commas, as in cuda:0 or cuda:0,1".into()),
                };
            }
            _ => return wrong("write auto, cpu, cpu:N, cuda:0,1 or sim:N".into()),
        };
        let count = match count.map(str::parse) {
            None => 1,
            Some(Ok(count)) if (1..=MOST_DEVICES).contains(&count) => count,
            Some(_) => return wrong(format!("a number of devices is from 1 to {MOST_DEVICES}, as in sim:2")),
        };
        Ok(Self::of(kind, count))
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
        match (self.kind, self.exchange) {
            (Kind::Sim, ExchangeMode::Peer) => Ok(ExchangePath::Peer),
            (Kind::Cpu, ExchangeMode::Peer) => {
                unreachable("the workers of cpu:N share the host's memory, where nothing is copied")
            }
            (Kind::Cuda, exchange) => {
                let linked = cuda::reach_each_other(&self.ordinals)
                    .and_then(|reach| if reach { cuda::link(&self.ordinals).map(|()| true) } else { Ok(false) });
                match (linked, exchange) {
                    (Ok(true), _) => Ok(ExchangePath::Peer),
                    (_, ExchangeMode::Auto | ExchangeMode::Host) => Ok(ExchangePath::Host),
                    (Ok(false), ExchangeMode::Peer) => unreachable(&format!("GPUs {} cannot all", self.numbers())),
                    (Err(source), ExchangeMode::Peer) => Err(Error::Device {
                        device: format!("cuda:{}", self.numbers()),
                        op: "letting them read each other's memory".into(),
                        source: Box::new(source),
                    }),
                }
            }
            _ => Ok(ExchangePath::Host),
        }
    }

    /// The numbers of the GPUs.
    fn numbers(&self) -> String {
        self.ordinals.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// How many devices there are, and so parts of the graph.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What says how fast they are before they were measured: see [`crate::profile::load`].
    pub(crate) fn profile(&self) -> String {
        self.ordinals.first().map_or_else(|| "cpu".into(), |ordinal| format!("cuda:{ordinal}"))
    }

    /// Each device's name and capacity; by default all of the host's memory, and of a GPU what is free less a reserve.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU that is not there; [`Error::NoGpus`] without a driver.
    pub(crate) fn budgets(&self, memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        if self.kind == Kind::Cuda {
            return self.gpu_budgets(memory);
        }
        let capacity_bytes = memory.map_or_else(host::memory_bytes, |m| m.as_u64());
        let in_place = self.kind == Kind::Cpu;
        let name = |i| match self.kind {
            Kind::Cpu if self.count == 1 => "cpu".to_owned(),
            Kind::Cpu => format!("cpu:{i}"),
            _ => format!("sim:{i}"),
        };
        Ok((0..self.count).map(|i| DeviceBudget { name: name(i), capacity_bytes, in_place }).collect())
    }

    fn gpu_budgets(&self, memory: Option<ByteSize>) -> Result<Vec<DeviceBudget>> {
        let missing = |name: String, source| Error::Device { device: name, op: "looking for it".into(), source };
        let gpus = cuda::gpus().map_err(|source| Error::NoGpus {
            option: "devices",
            value: format!("cuda:{}", self.numbers()),
            instead: "`cpu` needs none".into(),
            source: Box::new(source),
        })?;
        let budget = |(i, &ordinal): (usize, &u32)| {
            let sharing = self.ordinals.iter().filter(|&&other| other == ordinal).count();
            let before = self.ordinals[..i].iter().filter(|&&other| other == ordinal).count();
            let name = if sharing == 1 { format!("cuda:{ordinal}") } else { format!("cuda:{ordinal}.{before}") };
            let Some(gpu) = gpus.iter().find(|gpu| gpu.ordinal == ordinal) else {
                let none = lapidary_kernels::Error::NoGpu { ordinal, count: gpus.len() as u32 };
                return Err(missing(name, Box::new(none)));
            };
            let reserve_bytes = RESERVE_BYTES + gpu.free_bytes / RESERVE_PART;
            let share_bytes = gpu.free_bytes.saturating_sub(reserve_bytes) / sharing as u64;
            Ok(DeviceBudget {
                name,
                capacity_bytes: memory.map_or(share_bytes, |memory| memory.as_u64()),
                in_place: false,
            })
        };
        self.ordinals.iter().enumerate().map(budget).collect()
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
            Ok(match (self.kind, &semaphore) {
                (Kind::Sim, semaphore) => {
                    let slowed = self.slowed.filter(|(device, _)| *device == i);
                    let slowdown = slowed.map(|(_, percent)| f64::from(percent) / 100.0);
                    let speed = SimSpeed { semaphore: semaphore.clone(), slowdown, ..SimSpeed::default() };
                    Box::new(SimDevice::new(&budget.name, threads, capacity, speed)?)
                }
                (Kind::Cpu, Some(semaphore)) => {
                    Box::new(CpuDevice::with_semaphore(threads, capacity, semaphore.clone())?)
                }
                (Kind::Cpu, None) => Box::new(CpuDevice::new(threads, capacity)?),
                (Kind::Cuda, _) => cuda::open(&budget.name, self.ordinals[i], capacity)?,
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

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}
