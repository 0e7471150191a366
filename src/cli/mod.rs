//! The command: verbs, flags, and what people and programs see.
//!
//! With `--json` a verb prints JSON lines on standard output and nothing else there. People get progress and tables on
//! standard error. The exit code is 0, 1 (it failed: one `error:` line and its causes) or 2 (the command line is not
//! understood).

mod data;
mod device;
mod forecast;
mod gpu_check;
mod infer;
mod model;
mod output;
mod plan;
mod run_trace;
mod train;

use std::error::Error as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use device::DeviceArgs;

use crate::error::Error;
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
    /// Say what a run would need, move and take, before anything runs
    Plan(Box<plan::PlanArgs>),
    /// Check and measure the GPU of this machine
    #[command(hide = true)]
    GpuCheck(gpu_check::GpuCheckArgs),
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
        Verb::GpuCheck(args) => gpu_check::run(&args),
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
