//! `lapidary devices`: what this machine can compute with, and why not with more.

use bytesize::ByteSize;
use clap::Args;
use lapidary_kernels::cuda::{self, Gpu, Libraries};
use serde_json::{Value, json};

use super::output::{align, json_line, one_line, print, table};
use crate::error::Result;
use crate::host;
use crate::runtime::Devices;

/// Text below the flags.
const HELP: &str = "\
Examples:
  lapidary devices                  # a table
  lapidary devices --json           # one line for programs
  lapidary train --devices cuda:0   # train on one of them
  lapidary gpu-check                # whether GPU 0 computes what it should, and how fast

The names in the first column are those of --devices.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct DevicesArgs {
    /// Print one JSON line instead of a table
    #[arg(long)]
    json: bool,
}

/// Lists the devices and the libraries, and what is wrong with them.
pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    let (libraries, gpus) = (cuda::libraries(), cuda::gpus());
    let free: Vec<_> = gpus.iter().flatten().map(|gpu| cuda::free_bytes(gpu.ordinal)).collect();
    let gpus: Vec<(Gpu, _)> = gpus.into_iter().flatten().zip(free).collect();
    let problems = problems(&libraries, &gpus);
    if args.json {
        return json_line(&as_json(&libraries, &gpus, &problems));
    }
    let mut rows = table(["device", "name", "memory", "free", "capability", "L2 cache"]);
    let bytes = |bytes: u64| ByteSize::b(bytes).to_string();
    let cpu = format!("{}, {} threads", host::processor(), rayon::current_num_threads());
    rows.add_row(["cpu".into(), cpu, bytes(host::memory_bytes()), bytes(host::free_bytes()), "-".into(), "-".into()]);
    for (gpu, free) in &gpus {
        let free = free.as_ref().map_or("unknown".into(), |&free| bytes(free));
        let (name, capability) = (one_line(&gpu.name).into_owned(), gpu.capability.to_string());
        rows.add_row([
            format!("cuda:{}", gpu.ordinal),
            name,
            bytes(gpu.total_bytes),
            free,
            capability,
            bytes(gpu.cache_bytes),
        ]);
    }
    print(&align(rows))?;
    print("")?;
    let mut rows = table(["library", "version"]);
    for (name, version) in named(&libraries) {
        rows.add_row([name.into(), version.as_ref().map_or("cannot be used".into(), ToString::to_string)]);
    }
    print(&align(rows))?;
    print("")?;
    problems.iter().try_for_each(|problem| print(problem))?;
    print(&format!("--devices auto is {}", Devices::auto()))
}

type Found<'l> = &'l lapidary_kernels::Result<lapidary_kernels::Version>;

fn named(libraries: &Libraries) -> [(&'static str, Found<'_>); 3] {
    [
        ("driver, for CUDA", &libraries.driver),
        ("kernel compiler (NVRTC)", &libraries.compiler),
        ("cuBLAS", &libraries.blas),
    ]
}

/// Returns what cannot be used and what to do, each once. Without a driver nothing else matters.
fn problems(libraries: &Libraries, gpus: &[(Gpu, lapidary_kernels::Result<u64>)]) -> Vec<String> {
    if let Err(error) = &libraries.driver {
        return vec![format!("no GPU can be used: {error}")];
    }
    let mut problems = Vec::new();
    if gpus.is_empty() {
        problems
            .push("the driver finds no GPU: nvidia-smi lists those there are, CUDA_VISIBLE_DEVICES hides some".into());
    }
    if let Err(error) = &libraries.compiler {
        problems.push(format!("kernels that were not compiled before cannot run on a GPU: {error}"));
    }
    problems
        .extend(libraries.blas.as_ref().err().map(|error| format!("products are slower than they could be: {error}")));
    for (gpu, free) in gpus {
        problems.extend(free.as_ref().err().map(|error| format!("cuda:{} cannot be opened: {error}", gpu.ordinal)));
    }
    problems
}

fn as_json(libraries: &Libraries, gpus: &[(Gpu, lapidary_kernels::Result<u64>)], problems: &[String]) -> Value {
    let library = |found: Found<'_>| match found {
        Ok(version) => json!({ "version": version.to_string() }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let gpu = |(gpu, free): &(Gpu, lapidary_kernels::Result<u64>)| {
        json!({
            "device": format!("cuda:{}", gpu.ordinal), "name": gpu.name, "capability": gpu.capability.to_string(),
            "memory_bytes": gpu.total_bytes, "free_bytes": free.as_ref().ok(), "cache_bytes": gpu.cache_bytes,
        })
    };
    json!({
        "event": "devices",
        "cpu": {
            "device": "cpu", "name": host::processor(), "threads": rayon::current_num_threads(),
            "memory_bytes": host::memory_bytes(), "free_bytes": host::free_bytes(),
        },
        "gpus": gpus.iter().map(gpu).collect::<Vec<_>>(),
        "libraries": {
            "driver": library(&libraries.driver), "compiler": library(&libraries.compiler),
            "cublas": library(&libraries.blas),
        },
        "problems": problems,
        "auto": Devices::auto().to_string(),
    })
}
