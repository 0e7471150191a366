//! The emulated GPU's libraries, built once for all tests, and programs that run over them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder of the emulator's sources, beside the tests of this crate.
fn texts() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    [here.join("emulator"), here.join("kernels/emulator")].into_iter().find(|path| path.exists()).expect("it is there")
}

/// Returns the folder of the built libraries; `None`, with a loud message, if they cannot be built.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    if Command::new("g++").arg("--version").output().is_err() || !cfg!(all(target_arch = "x86_64", target_os = "linux"))
    {
        eprintln!("\n!! SKIPPED: there is no emulated GPU here, which takes g++ and Linux on x86-64\n");
        return None;
    }
    let mut hasher = DefaultHasher::new();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(texts())
        .expect("the folder is there")
        .map(|entry| entry.expect("it is read").path())
        .collect();
    paths.sort();
    for path in paths {
        std::fs::read(path).expect("the emulator's texts are there").hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulator-{:016x}", hasher.finish()));
    if !folder.exists() {
        // Built under another name, then renamed, because other test programs may build it as well.
        let beside = folder.with_extension(std::process::id().to_string());
        let built = Command::new("sh").arg(texts().join("build")).arg(&beside).output().expect("there is a shell");
        assert!(built.status.success(), "the emulator does not build:\n{}", String::from_utf8_lossy(&built.stderr));
        if std::fs::rename(&beside, &folder).is_err() {
            let _ = std::fs::remove_dir_all(beside);
        }
    }
    Some(folder)
}

/// Settings of a program over the emulated GPU.
#[derive(Clone, Copy, Default)]
pub struct Emulated<'a> {
    /// Seed for the order in which threads, blocks and streams run.
    pub seed: u64,
    /// Whether kernels run with AddressSanitizer.
    pub sanitized: bool,
    /// Whether races, reads of unwritten shared memory and missing waits are looked for.
    pub races: bool,
    /// Whether the emulated cuBLAS is used.
    pub blas: bool,
    /// Whether the emulated NCCL is used.
    pub nccl: bool,
    /// Bytes of the GPU's cache.
    pub cache: Option<u32>,
    /// Extra time that kernels seem to take per slice of columns after the first, in ms.
    pub slice_ms: i32,
    /// A change to the kernels.
    pub plant: Option<&'a str>,
}

impl Emulated<'_> {
    /// Returns the command that runs `program` over the emulated GPU.
    pub fn command(&self, folder: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        assert!(!(self.sanitized && self.races), "kernels have one sanitizer");
        let cache = folder.join(match (self.sanitized, self.races) {
            (true, _) => "kernels-asan",
            (_, true) => "kernels-races",
            _ => "kernels",
        });
        let mut libraries = folder.as_os_str().to_owned();
        for (is_used, library) in [(self.blas, "blas"), (self.nccl, "nccl")] {
            if is_used {
                libraries.push(":");
                libraries.push(folder.join(library));
            }
        }
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("LAPIDARY_CACHE", cache)
            .env("EMULATED_SEED", self.seed.to_string());
        if self.sanitized {
            let found = Command::new("g++").arg("-print-file-name=libasan.so").output().expect("g++ was found");
            let library = String::from_utf8_lossy(&found.stdout).trim().to_owned();
            command.env("EMULATED_ASAN", "1").env("LD_PRELOAD", library);
            command.env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0");
        }
        if self.races {
            command.env("EMULATED_RACES", "1");
        }
        if let Some(cache) = self.cache {
            command.env("EMULATED_CACHE", cache.to_string());
        }
        if self.slice_ms != 0 {
            command.env("EMULATED_SLICE_MS", self.slice_ms.to_string());
        }
        if let Some(plant) = self.plant {
            // Changed kernels are not cached.
            command.env("EMULATED_PLANT", plant).env("LAPIDARY_CACHE", "/dev/null/nowhere");
        }
        command
    }
}
