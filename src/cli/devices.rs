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
    let (libraries, found) = (cuda::libraries(), cuda::gpus());
    let free = |gpu: &Gpu| cuda::free_bytes(gpu.ordinal);
    let gpus: Vec<(Gpu, _)> = found.iter().flatten().map(|gpu| (gpu.clone(), free(gpu))).collect();
    let problems = problems(&libraries, found.as_ref().err(), &gpus);
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

fn named(libraries: &Libraries) -> [(&'static str, Found<'_>); 4] {
    [
        ("driver, for CUDA", &libraries.driver),
        ("kernel compiler (NVRTC)", &libraries.compiler),
        ("cuBLAS", &libraries.blas),
        ("NCCL, for --sum nccl", &libraries.nccl),
    ]
}

/// Returns what cannot be used and what to do, each once. Without a driver that works, nothing else matters. `failed` is
/// why the driver does not list the GPUs.
fn problems(
    libraries: &Libraries,
    failed: Option<&lapidary_kernels::Error>,
    gpus: &[(Gpu, lapidary_kernels::Result<u64>)],
) -> Vec<String> {
    if let Some(error) = libraries.driver.as_ref().err().or(failed) {
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
    if let (Err(error), 2..) = (&libraries.nccl, gpus.len()) {
        problems.push(format!("gradients cannot be added from GPU to GPU (--sum nccl): {error}"));
    }
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
            "cublas": library(&libraries.blas), "nccl": library(&libraries.nccl),
        },
        "problems": problems,
        "auto": Devices::auto().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use lapidary_kernels::{Error, Version};

    use super::*;

    #[test]
    fn a_driver_that_fails_is_not_a_machine_without_gpus() {
        let found = |major| Ok(Version { major, minor: 0 });
        let libraries = Libraries { driver: found(13), compiler: found(13), blas: found(13), nccl: found(2) };
        let failed = Error::Cuda { call: "counting GPUs", name: "CUDA_ERROR_UNKNOWN".into(), advice: "run nvidia-smi" };
        let said = problems(&libraries, Some(&failed), &[]).concat();
        assert!(said.contains("no GPU can be used") && said.contains("CUDA_ERROR_UNKNOWN"), "{said}");
        assert!(problems(&libraries, None, &[]).concat().contains("the driver finds no GPU"));
    }
}
