//! The command: verbs, flags, and what people and programs see.
//!
//! With `--json` a verb prints JSON lines on standard output and nothing else there. People get progress and tables on
//! standard error. The exit code is 0, 1 (it failed: one `error:` line and its causes) or 2 (the command line is not
//! understood).

mod data;
mod infer;
mod output;
mod plan;
mod train;

use std::error::Error as _;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::error::{Error, Result};
use output::say;

/// Trains graph neural networks on the whole graph, exactly, and runs them on graphs they never saw.
#[derive(Debug, Parser)]
#[command(name = "lapidary", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Train a model; alone, a GCN on the built-in planted graph
    Train(Box<train::TrainArgs>),
    /// Apply a trained model to a data set
    Infer(Box<infer::InferArgs>),
    /// Plan what stays on a device of a given memory [of a task graph; of a training run it is not built yet]
    Plan(Box<plan::PlanArgs>),
    /// Look at, import and generate data sets
    #[command(subcommand)]
    Data(data::DataVerb),
}

/// Runs the command that the process was started as.
pub fn run() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::builder()
                .with_env_var("LAPIDARY_LOG")
                .with_default_directive(tracing::Level::WARN.into())
                .from_env_lossy(),
        )
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    let done = match Cli::parse().verb {
        Verb::Train(args) => train::run(&args),
        Verb::Infer(args) => infer::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Data(verb) => data::run(&verb),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// One `error:` line, then its causes.
fn report(error: &Error) {
    say(format_args!("error: {error}"));
    let mut cause = error.source();
    while let Some(reason) = cause {
        say(format_args!("  caused by: {reason}"));
        cause = reason.source();
    }
}

/// The error of a part of the design that this version does not have.
fn not_built(what: impl Into<String>, instead: impl Into<String>) -> Error {
    Error::NotBuilt { what: what.into(), instead: instead.into() }
}

/// More threads than any machine has cores; beyond, starting them would take longer than training.
const MOST_THREADS: usize = 1024;

/// The flags that say where and how a program runs, the same for every verb that runs one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
struct DeviceArgs {
    /// Which devices compute: auto or cpu [cpu:N, sim:N and cuda:0,1 are not built yet]
    #[arg(long, value_name = "DEVICES", default_value = "auto")]
    devices: String,
    /// How much memory each device may use: bytes, or a number with kB, MB, GB, KiB, MiB, GiB
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<String>,
    /// How many threads the CPU device uses; every core by default. Results do not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    /// Which passes rewrite the program: all, none, or names separated by commas [order, prune]
    #[arg(long, value_name = "PASSES", default_value = "all")]
    passes: String,
    /// How vertices are split over devices [not built yet: one device has them all]
    #[arg(long, value_name = "SPLIT")]
    partition: Option<String>,
    /// How device memory is planned [not built yet: everything stays on the device]
    #[arg(long, value_name = "POLICY")]
    memory: Option<String>,
    /// Write a Chrome trace [not built yet]
    #[arg(long, value_name = "FILE")]
    trace: Option<std::path::PathBuf>,
    /// Print the plan first [not built yet]
    #[arg(long)]
    explain: bool,
}

impl DeviceArgs {
    /// The devices, once flags that are not built are refused.
    fn devices(&self) -> Result<crate::Devices> {
        let devices = crate::Devices::parse(&self.devices)?;
        if let Some(threads) = self.threads.filter(|threads| threads.get() > MOST_THREADS) {
            let expected = format!("at most {MOST_THREADS} are started");
            return Err(Error::Value { option: "--threads", value: threads.to_string(), expected });
        }
        let one_device = "one device holds the whole graph and keeps everything that it needs";
        let refused = [
            ("--partition", self.partition.is_some(), one_device),
            ("--memory", self.memory.is_some(), one_device),
            ("--trace", self.trace.is_some(), "the epoch lines give the seconds of each epoch"),
            ("--explain", self.explain, "the summary gives the memory that was planned and used"),
        ];
        match refused.into_iter().find(|(_, given, _)| *given) {
            Some((flag, _, instead)) => Err(not_built(flag, instead)),
            None => Ok(match self.threads {
                Some(threads) => devices.threads(threads),
                None => devices,
            }),
        }
    }

    fn memory(&self) -> Result<Option<bytesize::ByteSize>> {
        memory_size(self.device_memory.as_ref())
    }
}

/// What `--device-memory` says.
fn memory_size(text: Option<&String>) -> Result<Option<bytesize::ByteSize>> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Error::Value {
            option: "--device-memory",
            value: text.clone(),
            expected: "write bytes, or a number with kB, MB, GB, KiB, MiB or GiB".into(),
        })
    };
    text.map(parse).transpose()
}
