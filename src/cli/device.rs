//! The flags that say where and how a program runs. All verbs that run a program share them.

use std::num::NonZeroUsize;
use std::sync::Once;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use lapidary_kernels::Matmul;

use super::output::say;
use crate::error::{Error, Result};
use crate::lower::{BackwardMode, SumMode};
use crate::program::{Passes, Recompute, Strips};
use crate::runtime::{Devices, ExchangeMode, MemoryPolicy, Partition, RunOptions};

/// The most threads: more than any machine has cores. With more, starting them would take longer than training.
const MOST_THREADS: usize = 1024;

#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct DeviceArgs {
    /// Devices: auto (all GPUs, else the CPU), cpu, cpu:N, cuda:0,1 or sim:N (simulated)
    #[arg(long, value_name = "DEVICES", default_value = "auto")]
    devices: String,
    /// Memory of each device, such as 8GiB or 500MB; a plain number is bytes [default: all]
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<String>,
    /// Threads of all devices together; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Memory policy: optimal, roc, lru or none
    #[arg(long, value_name = "POLICY", default_value = "optimal", hide_possible_values = true)]
    memory: PolicyArg,
    /// Products of matrices: auto, f32, bf16 (of bf16 matrices on a CPU with AVX512-BF16; last bits differ), or by the
    /// tensor cores of a GPU, of f32 matrices: tf32 (10 bits of each number count) or 3xtf32 (almost all bits count).
    /// auto is bf16 on CPUs of AMD that have AVX512-BF16, else f32
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true)]
    matmul: MatmulArg,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// [`Matmul`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MatmulArg {
    Auto,
    F32,
    Bf16,
    Tf32,
    #[value(name = "3xtf32")]
    Tf32x3,
}

/// The flags that say how a program is split and compiled, shared by running and planning.
#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
pub(super) struct LayoutArgs {
    /// Partition of the vertices: learned, edges, vertices, or a file (a run.json, or the parts.json of `data
    /// partition`)
    #[arg(long, value_name = "PARTITION", default_value = "learned")]
    partition: String,
    /// Exchange of rows between devices: host (through the host), peer (directly), staged (directly, from one device
    /// after the other) or auto (peer or staged where GPUs can)
    #[arg(long, value_name = "PATH", default_value = "auto")]
    exchange: String,
    /// Sums of gradients over several devices: parts (by the host, in the order of the parts) or nccl (from GPU to GPU, by
    /// NVIDIA's NCCL; last bits differ)
    #[arg(long, value_name = "HOW", default_value = "parts")]
    sum: String,
    /// Rows that move backward over a directed graph: pull (those that are read), fold (sums for the rows that were read
    /// forward) or auto (the fewer rows)
    #[arg(long, value_name = "ROWS", default_value = "auto")]
    backward: String,
    /// Optimisation passes: all, none, or some of order,prune,reuse,fuse
    #[arg(long, value_name = "PASSES", default_value = "all")]
    passes: String,
}

impl LayoutArgs {
    pub(super) fn partition(&self) -> Result<Partition> {
        Partition::parse(&self.partition)
    }

    pub(super) fn passes(&self) -> Result<Passes> {
        Ok(self.passes.parse()?)
    }

    pub(super) fn backward(&self) -> Result<BackwardMode> {
        self.backward.parse()
    }

    pub(super) fn sums(&self) -> Result<SumMode> {
        self.sum.parse()
    }

    /// Returns how rows are exchanged between `count` devices. `devices` is the text of `--devices`.
    ///
    /// # Errors
    /// [`Error::Value`] for an unknown word, and for `peer` and `staged` between the workers of `cpu:N`.
    pub(super) fn exchange(&self, devices: &str, count: usize) -> Result<ExchangeMode> {
        let exchange = self.exchange.parse()?;
        if matches!(exchange, ExchangeMode::Peer | ExchangeMode::Staged) && devices.starts_with("cpu") && count > 1 {
            let expected = format!("the workers of {devices} share the host's memory, and exchange nothing directly");
            return Err(Error::Value { option: "exchange", value: self.exchange.clone(), expected });
        }
        Ok(exchange)
    }
}

/// [`Recompute`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RecomputeArg {
    Auto,
    Never,
    Always,
}

impl RecomputeArg {
    pub(super) fn recompute(self) -> Recompute {
        match self {
            Self::Auto => Recompute::Auto,
            Self::Never => Recompute::Never,
            Self::Always => Recompute::Always,
        }
    }
}

/// Parses `--strips`.
pub(super) fn strips(text: &str) -> std::result::Result<Strips, String> {
    if text == "auto" {
        return Ok(Strips::Auto);
    }
    let count = text.parse().ok().filter(|count| (1..=MOST_STRIPS).contains(count));
    count.map(Strips::Exactly).ok_or_else(|| format!("write auto, or a number from 1 to {MOST_STRIPS}"))
}

/// What is said if a number of strips is asked for and nothing is cut.
pub(super) const NOTHING_CUT: &str = "--strips cuts nothing: a strip has at least 16 columns, and no matrix that a gather \
    reads or makes has so many for each; ask for fewer strips, or leave it at auto";

/// Most strips of columns. A gather over more of them would mainly read the graph.
const MOST_STRIPS: usize = 64;

/// A memory policy on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyArg {
    Optimal,
    Roc,
    Lru,
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
    /// Says that products have other last bits than on other machines, or that `--matmul` has no effect.
    pub(super) fn say_how_matrices_are_multiplied(&self, matmul: Option<Matmul>) {
        match (matmul, self.matmul) {
            (Some(Matmul::Bf16), _) => {
                say("products of bf16 matrices by AVX512-BF16 (--matmul f32: the same bits on every CPU)");
            }
            (Some(Matmul::Tf32), _) => say("products of f32 matrices in TF32 (--matmul f32: slower, and exact to f32)"),
            (Some(Matmul::Tf32x3), _) => {
                say("products of f32 matrices in 3xTF32: almost as exact as f32 (--matmul f32: exact to f32)");
            }
            (_, MatmulArg::Tf32) => say("--matmul tf32 changes nothing here: it is for rows stored as f32 on a GPU"),
            (_, MatmulArg::Tf32x3) => {
                say("--matmul 3xtf32 changes nothing here: it is for rows stored as f32 on a GPU");
            }
            (None, MatmulArg::Bf16) => {
                say("--matmul bf16 changes nothing here: it is for rows stored as bf16 (--dtype bf16) on the CPU");
            }
            _ => {}
        }
    }

    /// Says that the gradients of a training have other last bits than on other devices, or that `--sum` has no effect.
    /// `sums` is how they are added; `None` if nothing is trained.
    ///
    /// # Errors
    /// [`Error::Value`] for an unknown word.
    pub(super) fn say_how_gradients_are_added(&self, sums: Option<SumMode>) -> Result<()> {
        match (self.layout.sums()?, sums) {
            (SumMode::Parts, _) => {}
            (SumMode::Nccl, None) => say("--sum nccl changes nothing here: it is for training"),
            (SumMode::Nccl, Some(SumMode::Parts)) => {
                say("--sum nccl changes nothing here: a single device has nothing to add");
            }
            (SumMode::Nccl, Some(SumMode::Nccl)) => {
                say("gradients are added by NCCL (--sum parts: the same bits on any devices)")
            }
        }
        Ok(())
    }

    pub(super) fn options(&self) -> Result<RunOptions> {
        let mut devices = Devices::parse(&self.devices)?;
        let exchange = self.layout.exchange(&self.devices, devices.count())?;
        devices = devices.exchange(exchange).sums(self.layout.sums()?);
        if let Some(threads) = self.threads {
            if threads.get() > MOST_THREADS {
                let expected = format!("at most {MOST_THREADS} are started");
                return Err(Error::Value { option: "threads", value: threads.to_string(), expected });
            }
            devices = devices.threads(threads);
        }
        devices = match self.matmul {
            MatmulArg::Auto => devices,
            MatmulArg::F32 => devices.matmul(Matmul::F32),
            MatmulArg::Tf32 => devices.matmul(Matmul::Tf32),
            MatmulArg::Tf32x3 => devices.matmul(Matmul::Tf32x3),
            MatmulArg::Bf16 if Matmul::Bf16.supported() => devices.matmul(Matmul::Bf16),
            MatmulArg::Bf16 => {
                let expected = "this machine's CPU has no AVX512-BF16; leave it at auto".into();
                return Err(Error::Value { option: "matmul", value: "bf16".into(), expected });
            }
        };
        let options = RunOptions::new()
            .devices(devices)
            .memory(self.memory.policy())
            .partition(self.layout.partition()?)
            .backward(self.layout.backward()?)
            .passes(self.layout.passes()?);
        Ok(match memory_size(self.device_memory.as_deref())? {
            Some(memory) => options.device_memory(memory),
            None => options,
        })
    }
}

/// Parses `--device-memory`.
pub(super) fn memory_size(text: Option<&str>) -> Result<Option<ByteSize>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Error::Value {
            option: "device_memory",
            value: text.into(),
            expected: "write bytes, or a number with kB, MB, GB, KiB, MiB or GiB".into(),
        })
    };
    let size: Option<ByteSize> = text.map(parse).transpose()?;
    if let Some(text) = text.filter(|text| is_without_unit(text)) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            say(format_args!("note: --device-memory {text} is {text} bytes; {text} gigabytes are {text}GB"))
        });
    }
    Ok(size)
}

/// Whether a size is so small a number of bytes that its unit was probably forgotten.
fn is_without_unit(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|bytes| (1..1000).contains(&bytes))
}
