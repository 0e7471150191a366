//! `lapidary gpu-check`: whether a GPU works, is right, and how fast it is.
//!
//! First what is known before anything runs. Then whether results are right: every call against the `f64` reference,
//! every model against the CPU, gathers of published shapes bit for bit, and memory as the driver counts it. These have
//! no deadline, because a check that was not made has no result. Then speed, in what is left of the time.

mod budget;
mod checked;
mod correctness;
mod goals;
mod nvidia_smi;
mod preflight;
mod report;
mod section;
mod shapes;
mod speed;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::{Args, ValueEnum};
use lapidary_kernels::cuda;

use self::checked::Checked;
use self::preflight::Preflight;
use self::shapes::Graphs;
use super::output::{facts, say};
use crate::error::{Error, Result};
use crate::train::utc;

/// Text below the flags.
const HELP: &str = "\
Examples:
  lapidary gpu-check                               # GPU 0, in about 8 minutes
  lapidary gpu-check --gpu 1 --out second-gpu      # another GPU and folder
  lapidary gpu-check --only conformance::gather    # what failed, once more
  PYTHON=venv/bin/python lapidary gpu-check        # beside the PyTorch of this Python

The driver and the kernel compiler (NVRTC) must be there: `lapidary devices` says what is missing.
The folder gets report.html, report.md and results.json. If Python has PyTorch, it is measured on the
same graphs. They take 1 GB in the folder for temporary files until then.

Exit codes:
  0  PASS: everything was checked, and is right
  1  FAIL: something is wrong, or the GPU cannot be used
  3  INCOMPLETE: nothing is wrong, but something was left out, such as for lack of time
A goal of speed that is not met is in the report, but is no failure.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct GpuCheckArgs {
    /// The GPU to check, by the driver's number
    #[arg(long, default_value_t = 0, value_name = "N")]
    gpu: u32,
    /// Write the report and the results into DIR [default: gpu-check-<GPU>-<DATE>]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start no measurement after MINUTES; correctness takes as long as it takes
    #[arg(long, default_value_t = 8.0, value_name = "MINUTES", value_parser = minutes)]
    minutes: f64,
    /// Size of the graphs: published, or tiny, with few shapes of each kernel, to see that everything runs
    #[arg(long, value_name = "SIZE", default_value = "published", hide_possible_values = true)]
    size: Size,
    /// Run only checks and measurements whose section or name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Size of the measured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    Published,
    /// A small part of them, and few shapes, to check that everything runs; times mean nothing
    Tiny,
}

impl Size {
    fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Tiny => "tiny",
        }
    }

    /// Returns the divisor of the numbers of vertices and edges.
    fn divisor(self) -> usize {
        match self {
            Self::Published => 1,
            Self::Tiny => 4000,
        }
    }

    /// Returns the number of timed runs of a kernel, after one untimed run.
    fn runs(self) -> usize {
        match self {
            Self::Published => 9,
            Self::Tiny => 2,
        }
    }

    /// Returns the maximum number of timed epochs of a training.
    fn epochs(self) -> usize {
        match self {
            Self::Published => 20,
            Self::Tiny => 2,
        }
    }
}

/// What is checked.
#[derive(Clone, Debug)]
struct Scope {
    gpu: u32,
    size: Size,
    only: Option<String>,
}

impl Scope {
    fn device(&self) -> String {
        format!("cuda:{}", self.gpu)
    }

    /// Whether a row of a section was asked for.
    fn selects(&self, section: &str, row: &str) -> bool {
        self.only.as_ref().is_none_or(|only| format!("{section}: {row}").contains(only.as_str()))
    }

    /// Whether the GPU answers no more. After some errors, every later call of the process fails.
    fn is_lost(&self) -> bool {
        cuda::counts(self.gpu).is_err()
    }
}

/// Parses `--minutes`.
fn minutes(text: &str) -> std::result::Result<f64, String> {
    const MOST: f64 = 1e6;
    let minutes = text.parse().ok().filter(|minutes| (0.0..=MOST).contains(minutes));
    minutes.ok_or_else(|| format!("write a number from 0 to {MOST}"))
}

/// Adds the device to an error of the driver.
fn driver<T>(op: &str, result: lapidary_kernels::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Device { device: "cuda".into(), op: op.into(), source: Box::new(source) })
}

/// Checks the GPU, writes the report, and returns the exit code of the verdict.
pub(super) fn run(args: &GpuCheckArgs) -> Result<ExitCode> {
    let scope = Scope { gpu: args.gpu, size: args.size, only: args.only.clone() };
    let (start, date) = (Instant::now(), utc(SystemTime::now())[..10].to_owned());
    let (preflight, peers) = Preflight::look(&scope)?;
    let shown: Vec<(&str, String)> =
        preflight.facts.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    say(facts(&shown));
    preflight.notes.iter().for_each(|note| say(format_args!("note: {note}")));
    let folder = args.out.clone().unwrap_or_else(|| free_name(&preflight.gpu.name, &date));
    std::fs::create_dir_all(&folder).map_err(Error::io("make", &folder))?;
    let mut checked = Checked::new(scope, date, preflight, start);
    let graphs = Graphs::new(args.size);
    checked.check_correctness(&graphs, &folder)?;
    checked.measure_speed(args.minutes * 60.0, &graphs, &peers, &folder)?;
    checked.write_report(&folder)?;
    checked.print(&folder)?;
    Ok(checked.verdict().exit_code())
}

/// Returns a folder that does not exist yet: `gpu-check-<GPU>-<DATE>`, with a number if there is one.
fn free_name(gpu: &str, date: &str) -> PathBuf {
    let words: Vec<&str> = gpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let name = format!("gpu-check-{}-{date}", words.join("-"));
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).map(PathBuf::from).find(|path| !path.exists());
    free.expect("numbers do not end")
}
