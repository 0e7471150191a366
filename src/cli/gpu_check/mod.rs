//! `lapidary gpu-check`, which help does not show: what `ci/gpu-check` runs on a machine with a GPU.
//!
//! It holds every model on the GPU against the CPU device, the bytes that move and the peak against the plan, and then
//! measures: bandwidth, gathers, epochs, and training with less memory than it needs. The calls by themselves are held against
//! the `f64` reference by the battery of the kernels' tests, which the script runs first.

mod measure;
mod models;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lapidary_kernels::cuda;
use serde_json::{Value, json};

use super::output::say;
use crate::error::{Error, Result};

#[derive(Debug, Args)]
pub(super) struct GpuCheckArgs {
    /// How large the measured graphs are
    #[arg(long, default_value = "published")]
    size: Size,
    /// Write the results to FILE
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// How large the measured graphs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    /// The shapes of published benchmarks
    Published,
    /// A thousandth of them: to see that everything runs, where time means nothing
    Tiny,
}

impl Size {
    /// What vertices and edges are divided by.
    fn divisor(self) -> usize {
        match self {
            Self::Published => 1,
            Self::Tiny => 1000,
        }
    }
}

/// The device that is checked.
const DEVICE: &str = "cuda:0";

/// Runs all of it and writes one JSON object.
pub(super) fn run(args: &GpuCheckArgs) -> Result<()> {
    let gpus = cuda::gpus().map_err(|source| Error::Device {
        device: DEVICE.into(),
        op: "looking for it".into(),
        source: Box::new(source),
    })?;
    let mut results = json!({
        "gpus": gpus.iter().map(|gpu| json!({ "name": gpu.name, "bytes": gpu.total_bytes })).collect::<Vec<_>>(),
        "size": format!("{:?}", args.size).to_lowercase(),
        "version": env!("CARGO_PKG_VERSION"),
    });
    let mut failed = Vec::new();
    let parts: [(&str, &dyn Fn() -> Result<Value>); 5] = [
        ("models", &models::against_the_cpu),
        ("bandwidth", &|| measure::bandwidth(args.size)),
        ("gathers", &|| measure::gathers(args.size)),
        ("epochs", &|| measure::epochs(args.size)),
        ("capacity", &|| measure::capacity(args.size)),
    ];
    for (name, part) in parts {
        say(format_args!("{name} ..."));
        match part() {
            Ok(value) => {
                if value.as_array().is_some_and(|rows| rows.iter().any(|row| row["ok"] == false)) {
                    failed.push(name);
                }
                results[name] = value;
            }
            Err(error) => {
                failed.push(name);
                results[name] = json!({ "error": error.to_string() });
                super::report(&error);
            }
        }
        // What there is stays, whatever comes next.
        results["failed"] = json!(failed);
        let text = serde_json::to_string_pretty(&results).expect("results are plain data");
        std::fs::write(&args.out, text).map_err(|source| Error::Io {
            action: "write",
            path: args.out.clone(),
            source,
        })?;
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::CheckFailed { parts: failed.join(", ") }) }
}

/// The middle of some numbers.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
