//! What is known before anything runs: the GPU, its libraries, other programs on it, the host and its disk.

use bytesize::ByteSize;
use lapidary_kernels::cuda::{self, Gpu};

use super::speed::{Peers, graph_bytes};
use super::{Scope, driver, nvidia_smi};
use crate::error::Result;
use crate::host;
use crate::profile::gpu::Bench;

/// Facts by name, and what may disturb the check.
pub(super) struct Preflight {
    pub(super) gpu: Gpu,
    pub(super) facts: Vec<(String, String)>,
    pub(super) notes: Vec<String>,
}

impl Preflight {
    /// Also looks for what the GPU can be compared with.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if the GPU cannot be used: without a driver or a compiler, or if there is no such GPU.
    pub(super) fn look(scope: &Scope) -> Result<(Self, Peers)> {
        let gpus = driver("looking for it", cuda::gpus())?;
        let none = lapidary_kernels::Error::NoGpu { ordinal: scope.gpu, count: gpus.len() as u32 };
        let gpu = gpus.into_iter().find(|gpu| gpu.ordinal == scope.gpu).ok_or(none);
        let gpu = driver("looking for it", gpu)?;
        let (mut facts, mut notes) = (Vec::new(), Vec::new());
        let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
        fact("GPU", format!("{} (cuda:{})", gpu.name, gpu.ordinal));
        let libraries = cuda::libraries();
        for (name, version) in [("driver, for CUDA", libraries.driver), ("kernel compiler (NVRTC)", libraries.compiler)]
        {
            fact(name, version.map_or_else(|error| error.to_string(), |version| version.to_string()));
        }
        // Also compiles a kernel, so a compiler that is missing is an error here.
        let bench = Bench::open(scope.gpu)?;
        bench.launch_seconds(1)?;
        bench.choices().into_iter().for_each(|choice| fact("chosen", choice));
        drop(bench);
        let free_bytes = driver("asking for its memory", cuda::free_bytes(scope.gpu))?;
        fact("memory", format!("{} of {} free", ByteSize::b(free_bytes), ByteSize::b(gpu.total_bytes)));
        fact("compute capability", gpu.capability.to_string());
        fact("L2 cache", ByteSize::b(gpu.cache_bytes).to_string());
        nvidia_smi::facts(scope.gpu).into_iter().for_each(|(name, value)| fact(name, value));
        match nvidia_smi::processes() {
            Some(others) if !others.is_empty() => {
                fact("other processes", others.join("; "));
                notes.push(format!("{} other processes use a GPU: times may be too long", others.len()));
            }
            Some(_) => fact("other processes", "none".into()),
            None => fact("other processes", "unknown: nvidia-smi is not installed".into()),
        }
        if free_bytes < gpu.total_bytes / 10 * 9 {
            notes.push("other programs hold some of the GPU's memory: large checks may be left out".into());
        }
        let threads = rayon::current_num_threads();
        fact(
            "host",
            format!("{}, {threads} threads, {} of memory", host::processor(), ByteSize::b(host::memory_bytes())),
        );
        // Importing PyTorch takes seconds, so all that can be wrong is known before.
        let peers = Peers::find();
        match &peers {
            Peers::Found { python, version } => {
                let (folder, bytes) = (std::env::temp_dir(), graph_bytes(scope.size));
                fact("compared with", format!("PyTorch {version} of {}", python.display()));
                let free = free_disk(&folder);
                let known = free.map_or_else(|| "unknown".into(), |free| format!("{free}"));
                fact("disk", format!("{bytes} for the graphs, in {} ({known} free, TMPDIR)", folder.display()));
                if free.is_some_and(|free| free < bytes) {
                    notes.push(format!("{} has no room for the graphs; TMPDIR names another folder", folder.display()));
                }
            }
            Peers::Missing(why) => fact("compared with", format!("nothing: {why}")),
        }
        Ok((Self { gpu, facts, notes }, peers))
    }
}

/// Returns the free bytes of the disk that a folder is on.
#[cfg(unix)]
fn free_disk(folder: &std::path::Path) -> Option<ByteSize> {
    rustix::fs::statvfs(folder).ok().map(|disk| ByteSize::b(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

#[cfg(not(unix))]
fn free_disk(_folder: &std::path::Path) -> Option<ByteSize> {
    None
}
