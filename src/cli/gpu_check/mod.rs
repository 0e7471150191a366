//! `lapidary gpu-check`, which help does not show: what `ci/gpu-check` runs on a machine with a GPU.
//!
//! It holds every model on the GPU against the CPU device, the bytes that move and the peak against the plan, and then
//! measures: bandwidth, gathers, epochs, training with less memory than it needs, and a split that learns. The calls by themselves
//! are held against the `f64` reference by the battery of the kernels' tests, which the script runs first. Every part has a share of
//! the time that there is, and says what it left out.

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
    /// Seconds after which nothing new begins
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS")]
    seconds: f64,
    /// Write the results to FILE
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the measured graphs to DIR
    #[arg(long, value_name = "DIR")]
    graphs: Option<PathBuf>,
}

/// The size of the measured graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    Published,
    Tiny,
}

impl Size {
    /// What vertices and edges are divided by.
    fn divisor(self) -> usize {
        match self {
            Self::Published => 1,
            Self::Tiny => 4000,
        }
    }

    /// Timed runs of a kernel, after one that is not.
    fn runs(self) -> usize {
        match self {
            Self::Published => 9,
            Self::Tiny => 2,
        }
    }

    /// Timed epochs of a training, where there is time.
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

/// Runs all of it and writes one JSON object.
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
    // By how much of the time they may take. What others need comes first, then what is asked for most.
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
        // What there is stays, whatever comes next.
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

/// The measured graphs, and the networks that are trained on each.
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
