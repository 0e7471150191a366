//! The command: verbs, flags and output.
//!
//! Results go to standard output: tables, or with `--json` JSON lines and nothing else. Progress, notes and errors go
//! to standard error. `failure.rs` has the exit codes.

mod advice;
mod batch_forecast;
mod bus_error;
mod compare;
mod compared_times;
mod data;
mod defaults;
mod device;
mod devices;
mod failure;
mod fit_on;
mod forecast;
mod gpu_check;
mod infer;
mod kernel_times;
mod limits;
mod log;
mod manual;
mod metrics;
mod model;
mod new;
mod output;
mod page;
mod partitioner;
mod plan;
mod plan_page;
mod profile;
mod reorder;
mod run_trace;
mod signals;
mod train;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use device::DeviceArgs;
pub use limits::Allocator;

use crate::error::{Error, Result};
use crate::ranks::Ranks;

/// Text below the verbs: the exit codes.
const EXIT_CODES: &str = "\
Exit codes:
  0        Success
  1        The command failed
  2        The command line is wrong
  3        Nothing that was asked for fits into memory, or a check was incomplete
  128 + N  The command was ended by signal N

Results go to standard output, progress and errors to standard error.";

/// Trains graph neural networks on the whole graph, and applies them to other graphs
#[derive(Debug, Parser)]
#[command(name = "lapidary", version, arg_required_else_help = true, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Train a model (without flags: a GCN on the built-in planted graph)
    Train(Box<train::TrainArgs>),
    /// Apply a trained model to a dataset
    Infer(Box<infer::InferArgs>),
    /// Compute the memory, copies and time of a run, without running it
    Plan(Box<plan::PlanArgs>),
    /// Measure this machine, or the network between the ranks of a job
    Profile(profile::ProfileArgs),
    /// List the CPU and the GPUs, and what is missing to use them
    Devices(devices::DevicesArgs),
    /// Check whether a GPU works, is right, and how fast it is
    GpuCheck(gpu_check::GpuCheckArgs),
    /// Inspect, import, partition and generate datasets
    #[command(subcommand)]
    Data(data::DataVerb),
    /// Write a small program that embeds the library
    New(new::NewArgs),
    /// Print a script with which a shell completes verbs and flags
    Completions(manual::CompletionsArgs),
    /// Write the man pages
    Man(manual::ManArgs),
}

/// Runs the command line of this process, and returns its exit code.
pub fn run() -> ExitCode {
    log::to_stderr();
    let verb = match Cli::try_parse() {
        Ok(cli) => cli.verb,
        // Of several ranks, the first one says so.
        Err(error) if Ranks::started_as().is_some_and(|rank| rank > 0) => {
            return ExitCode::from(error.exit_code() as u8);
        }
        Err(error) => error.exit(),
    };
    if Ranks::started_as().is_some_and(|rank| rank > 0)
        && !matches!(verb, Verb::Train(_) | Verb::Infer(_) | Verb::Profile(_))
    {
        // Nothing to do together: rank 0 does it.
        return ExitCode::SUCCESS;
    }
    bus_error::explain();
    let done = limits::prepare().and_then(|()| match verb {
        Verb::Train(mut args) => on_ranks(|ranks| train::run(&mut args, ranks)),
        Verb::Infer(args) => on_ranks(|ranks| infer::run(&args, ranks).map(|()| ExitCode::SUCCESS)),
        Verb::Plan(args) => plan::run(&args),
        Verb::Profile(args) => on_ranks(|ranks| profile::run(&args, ranks).map(|()| ExitCode::SUCCESS)),
        Verb::Devices(args) => devices::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::GpuCheck(args) => gpu_check::run(&args),
        Verb::New(args) => new::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Data(verb) => data::run(&verb).map(|()| ExitCode::SUCCESS),
        Verb::Completions(args) => manual::completions(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
        Verb::Man(args) => manual::man(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    });
    done.unwrap_or_else(|error| failure::end(&error))
}

/// Runs a verb on all ranks of the job. Only rank 0 prints; of ranks that fail, the first one.
fn on_ranks(run: impl FnOnce(&Ranks) -> Result<ExitCode>) -> Result<ExitCode> {
    let ranks = match Ranks::from_environment() {
        // Rank 0 says so.
        Err(Error::NoMpi { rank: 1.., .. }) => return Ok(ExitCode::from(failure::FAILED)),
        joined => joined?,
    };
    if !ranks.is_first() {
        output::silence();
    }
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let line = words.collect::<Vec<_>>().join(" ");
    let done = ranks
        .agree("version", env!("CARGO_PKG_VERSION"))
        .and_then(|()| ranks.agree("command line", &line))
        .and_then(|()| run(&ranks));
    done.or_else(|error| {
        let reported = ranks.fail(&error);
        if ranks.count() == 1 {
            return Err(error);
        }
        Ok(failure::end_rank(&error, &ranks, reported))
    })
}
