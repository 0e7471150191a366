//! The flags that say where and how a program runs, the same for every verb that runs one.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};

use crate::error::{Error, Result};
use crate::runtime::{Devices, MemoryPolicy, Partition, RunOptions};

/// More threads than any machine has cores; beyond, starting them would take longer than training.
const MOST_THREADS: usize = 1024;

#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct DeviceArgs {
    /// Which devices compute: auto (every GPU, else the CPU), cpu, cpu:N (N workers), cuda:0,1 (these GPUs) or sim:N (N
    /// simulated devices)
    #[arg(long, value_name = "DEVICES", default_value = "auto")]
    pub(super) devices: String,
    /// How much memory each device may use: bytes, or a number with kB, MB, GB, KiB, MiB, GiB
    #[arg(long, value_name = "SIZE")]
    pub(super) device_memory: Option<String>,
    /// How many threads the devices use together; every core by default. Results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Which passes rewrite the program: all, none, or names separated by commas [order, prune, reuse, fuse]
    #[arg(long, value_name = "PASSES", default_value = "all")]
    passes: String,
    /// How vertices are split over devices: learned, edges, vertices, or a file of ranges (run.json of a checkpoint)
    #[arg(long, value_name = "SPLIT", default_value = "learned")]
    partition: String,
    /// How rows go from device to device: host (through its memory), peer (straight from one to the other: GPUs that reach each other, or
    /// sim:N), or auto (peer on GPUs that can). Parts that are cut into tiles always go through the host
    #[arg(long, value_name = "WAY", default_value = "auto")]
    exchange: String,
    /// How it is decided what stays on a device
    #[arg(long, value_name = "POLICY", default_value = "optimal")]
    memory: PolicyArg,
    /// Write when everything ran to FILE, in the Chrome trace format (open it at ui.perfetto.dev). Epochs that would make it
    /// larger than 256 MiB are left out
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Print the plan first
    #[arg(long)]
    pub(super) explain: bool,
}

/// A memory policy on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyArg {
    /// The fewest bytes
    Optimal,
    /// ROC's dynamic program
    Roc,
    /// The least recently used leaves
    Lru,
    /// Nothing stays
    None,
}

impl PolicyArg {
    pub(super) fn policy(self) -> MemoryPolicy {
        match self {
            Self::Optimal => MemoryPolicy::Optimal,
            Self::Roc => MemoryPolicy::Roc,
            Self::Lru => MemoryPolicy::Lru,
            Self::None => MemoryPolicy::None,
        }
    }
}

impl DeviceArgs {
    pub(super) fn options(&self) -> Result<RunOptions> {
        let mut devices = Devices::parse(&self.devices)?.exchange(self.exchange.parse()?);
        if let Some(threads) = self.threads {
            if threads.get() > MOST_THREADS {
                let expected = format!("at most {MOST_THREADS} are started");
                return Err(Error::Value { option: "--threads", value: threads.to_string(), expected });
            }
            devices = devices.threads(threads);
        }
        let options = RunOptions::new()
            .devices(devices)
            .memory(self.memory.policy())
            .partition(Partition::parse(&self.partition)?)
            .passes(self.passes.parse()?);
        Ok(match memory_size(self.device_memory.as_deref())? {
            Some(memory) => options.device_memory(memory),
            None => options,
        })
    }
}

/// What `--device-memory` says.
pub(super) fn memory_size(text: Option<&str>) -> Result<Option<ByteSize>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Error::Value {
            option: "--device-memory",
            value: text.into(),
            expected: "write bytes, or a number with kB, MB, GB, KiB, MiB or GiB".into(),
        })
    };
    text.map(parse).transpose()
}
