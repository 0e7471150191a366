//! Which devices a run uses.

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use bytesize::ByteSize;
use lapidary_kernels::{CpuDevice, Device, Gate, SimDevice, SimSpeed};

use crate::error::{Error, Result};
use crate::host;
use crate::plan::Room;

/// More devices than anyone has; beyond, starting their threads would take longer than training.
const MOST_DEVICES: usize = 256;

/// Which devices a run uses.
///
/// | text | what |
/// | --- | --- |
/// | `auto` | every GPU, else the CPU; this version has no GPUs |
/// | `cpu` | the host's cores, in the host's memory: nothing is copied |
/// | `cpu:N` | N workers that share the cores, each with a part of the graph |
/// | `sim:N` | N simulated devices: memory of their own with a hard capacity, copies that are counted, computing on the CPU |
///
/// ```
/// use lapidary::Devices;
///
/// assert_eq!(Devices::parse("sim:3")?.count(), 3);
/// assert!(Devices::parse("cuda:0").is_err(), "not built yet");
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    kind: Kind,
    count: usize,
    threads: Option<NonZeroUsize>,
    /// A simulated device, and the percentage of its usual time that it takes.
    slowed: Option<(usize, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cpu,
    Sim,
}

impl Devices {
    /// The host's cores, as many as there are (or as `RAYON_NUM_THREADS` says).
    pub fn cpu() -> Self {
        Self { kind: Kind::Cpu, count: 1, threads: None, slowed: None }
    }

    /// From `auto`, `cpu`, `cpu:N` or `sim:N`.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] for `cuda:...`; [`Error::Value`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let (kind, count) = text.split_once(':').map_or((text, None), |(kind, count)| (kind, Some(count)));
        let wrong = |expected: String| Err(Error::Value { option: "--devices", value: text.into(), expected });
        let kind = match (kind, count) {
            ("auto", None) => return Ok(Self::cpu()),
            ("cpu", _) => Kind::Cpu,
            ("sim", _) => Kind::Sim,
            ("cuda", _) => {
                let what = format!("--devices {text}");
                let instead = "this version has cpu, cpu:N and sim:N (and auto, which is cpu)".into();
                return Err(Error::NotBuilt { what, instead });
            }
            _ => return wrong("write auto, cpu, cpu:N or sim:N".into()),
        };
        let count = match count.map(str::parse) {
            None => 1,
            Some(Ok(count)) if (1..=MOST_DEVICES).contains(&count) => count,
            Some(_) => return wrong(format!("a number of devices is from 1 to {MOST_DEVICES}, as in sim:2")),
        };
        Ok(Self { kind, count, threads: None, slowed: None })
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

    /// How many devices there are, and so parts of the graph.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Each device's name and capacity; by default all of the host's memory.
    pub(crate) fn rooms(&self, memory: Option<ByteSize>) -> Vec<Room> {
        let capacity_bytes = memory.map_or_else(host::memory_bytes, |m| m.as_u64());
        let in_place = self.kind == Kind::Cpu;
        let name = |i| match (self.kind, self.count) {
            (Kind::Cpu, 1) => "cpu".to_owned(),
            (Kind::Cpu, _) => format!("cpu:{i}"),
            (Kind::Sim, _) => format!("sim:{i}"),
        };
        (0..self.count).map(|i| Room { name: name(i), capacity_bytes, in_place }).collect()
    }

    /// Opens the devices. They share the cores evenly; with more devices than cores each has one thread, and kernels run
    /// one at a time a core, so that an operation's seconds are its own.
    pub(crate) fn open(&self, rooms: &[Room]) -> Result<Vec<Box<dyn Device>>> {
        let cores = self.threads.map_or_else(rayon::current_num_threads, NonZeroUsize::get);
        let threads = match self.count {
            1 => self.threads,
            count => NonZeroUsize::new((cores / count).max(1)),
        };
        let gate = (self.count > cores).then(|| Arc::new(Gate::new(cores)));
        let open = |(i, room): (usize, &Room)| -> lapidary_kernels::Result<Box<dyn Device>> {
            let capacity = room.capacity_bytes;
            Ok(match (self.kind, &gate) {
                (Kind::Sim, gate) => {
                    let slowed = self.slowed.filter(|(device, _)| *device == i);
                    let slowdown = slowed.map(|(_, percent)| f64::from(percent) / 100.0);
                    let speed = SimSpeed { gate: gate.clone(), slowdown, ..SimSpeed::default() };
                    Box::new(SimDevice::new(&room.name, threads, capacity, speed)?)
                }
                (Kind::Cpu, Some(gate)) => Box::new(CpuDevice::gated(threads, capacity, gate.clone())?),
                (Kind::Cpu, None) => Box::new(CpuDevice::new(threads, capacity)?),
            })
        };
        let opened = rooms.iter().enumerate().map(|(i, room)| {
            open((i, room)).map_err(|source| Error::Device {
                device: room.name.clone(),
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
