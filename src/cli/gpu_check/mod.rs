//! `lapidary gpu-check`: a command for `ci/gpu-check` on a machine with a GPU. The help does not list it.
//!
//! It compares every model on the GPU with the CPU device, and the bytes moved with the plan. Then it measures
//! bandwidth, gathers, epochs, training with less memory than needed, and a learned split. Single calls are compared
//! with the `f64` reference by the kernels' tests, which the script runs first. Each part has a share of the total
//! time, and reports what it left out.

mod budget;
mod kernels;
mod marks;
mod models;
mod rows;
mod shapes;
mod training;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use lapidary_kernels::cuda;
use serde_json::{Value, json};

use self::budget::Budget;
use self::rows::Rows;
use self::shapes::{Graphs, PRODUCTS, PUBMED, REDDIT};
use super::output::say;
use crate::error::{Error, Result};
use crate::output::OutputFile;

#[derive(Debug, Args)]
pub(super) struct GpuCheckArgs {
    /// Size of the measured graphs: published, or tiny to see that everything runs
    #[arg(long, value_name = "SIZE", default_value = "published", hide_possible_values = true)]
    size: Size,
    /// Start nothing new after SECONDS seconds
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS")]
    seconds: f64,
    /// Write the results to FILE
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the measured graphs into DIR, for measurements of other frameworks
    #[arg(long, value_name = "DIR")]
    graphs: Option<PathBuf>,
}

/// Size of the measured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    Published,
    /// A small part of them, to check that everything runs; times mean nothing
    Tiny,
}

impl Size {
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

/// The device that is checked.
const DEVICE: &str = "cuda:0";
const ORDINAL: u32 = 0;

type Part<'a> = (&'static str, f64, &'a dyn Fn(Budget) -> Result<Value>);

/// Runs all parts and writes one JSON object.
pub(super) fn run(args: &GpuCheckArgs) -> Result<()> {
    let gpus = cuda::gpus().map_err(|source| Error::Device {
        device: DEVICE.into(),
        op: "looking for it".into(),
        source: Box::new(source),
    })?;
    let size = args.size;
    let mut results = json!({
        "gpus": gpus.iter().map(|gpu| json!({ "name": gpu.name, "bytes": gpu.total_bytes })).collect::<Vec<_>>(),
        "size": format!("{size:?}").to_lowercase(),
        "version": env!("CARGO_PKG_VERSION"),
        "threads": rayon::current_num_threads(),
    });
    let graphs = Graphs::new(size);
    // Each part with its share of the time. Parts that others depend on come first, then the most important ones.
    let parts: [Part<'_>; 8] = [
        ("graphs", 0.06, &|_| args.graphs.as_ref().map_or(Ok(Value::Null), |folder| write_graphs(folder, &graphs))),
        ("device", 0.05, &|_| kernels::device(size)),
        ("models", 0.12, &models::against_the_cpu),
        ("epochs", 0.27, &|budget| training::epochs(&graphs, budget)),
        ("bf16", 0.05, &|budget| training::bf16(&graphs, budget)),
        ("gathers", 0.13, &|budget| kernels::gathers(&graphs, budget)),
        ("capacity", 0.22, &|budget| training::capacity(&graphs, budget)),
        ("splits", 0.10, &|budget| training::splits(size, budget)),
    ];
    let (mut failed, mut incomplete) = (Vec::new(), Vec::new());
    let budgets = Budget::shares(args.seconds, &parts.map(|(_, share, _)| share));
    for ((name, _, part), budget) in parts.into_iter().zip(budgets) {
        say(format_args!("{name} ..."));
        let start = Instant::now();
        let done = if budget.is_spent() { Ok(json!({ "rows": [], "left_out": ["all of it"] })) } else { part(budget) };
        match done {
            Ok(value) => {
                if Rows::has_failed(&value) {
                    failed.push(name);
                }
                if Rows::is_incomplete(&value) {
                    incomplete.push(name);
                }
                results[name] = value;
            }
            Err(error) => {
                failed.push(name);
                results[name] = json!({ "error": error.to_string() });
                super::failure::report(&error);
            }
        }
        results["seconds_of_parts"][name] = json!(start.elapsed().as_secs_f64());
        results["failed"] = json!(failed);
        results["marks"] = marks::marks(&results, size);
        // The results so far are written after each part, so that a later crash does not lose them.
        write(&results, &args.out)?;
    }
    match (failed.is_empty(), incomplete.is_empty()) {
        (false, _) => Err(Error::CheckFailed { parts: failed.join(", ") }),
        (true, false) => Err(Error::CheckIncomplete { parts: incomplete.join(", ") }),
        (true, true) => Ok(()),
    }
}

fn write(results: &Value, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(results).expect("results are plain data");
    OutputFile::write(path, text.as_bytes()).map_err(|source| Error::Io { action: "write", path: path.into(), source })
}

/// Writes the measured graphs, and returns the networks that are trained on each.
fn write_graphs(folder: &Path, graphs: &Graphs) -> Result<Value> {
    std::fs::create_dir_all(folder).map_err(|source| Error::Io { action: "make", path: folder.into(), source })?;
    let mut rows = Rows::default();
    for shape in [&REDDIT, &PRODUCTS, &PUBMED] {
        rows.measure(Budget::of(f64::from(u32::MAX)), shape.name, || {
            let graph = graphs.of(shape);
            shapes::write(folder, shape.name, &graph)?;
            Ok(json!({
                "shape": shape.name, "vertices": graph.vertex_count(), "edges": graph.edge_count(),
                "widths": shape.widths, "networks": shape.networks,
            }))
        });
    }
    Ok(rows.into_json())
}
