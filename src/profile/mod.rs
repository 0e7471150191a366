//! Device profiles by name: built-in ones, files, and profiles of this machine's cores and GPUs, which are measured
//! once.

pub(crate) mod gpu;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lapidary_cost_model::Profile;
use lapidary_kernels::cpu::{self, RowWork};
use lapidary_kernels::{AlignedBytes, BlockView, MatMut, MatView, NoHostMemory, RowStep, cuda};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::host;
use crate::output::OutputFile;
use crate::plain_file;

/// Bytes of the matrices that are read: larger than all but the largest caches.
const BYTES: usize = 192 << 20;

/// Numbers per gathered row.
const WIDTH: usize = 64;

/// Loads the profile `cpu`, `cuda:N` (that GPU), one of [`Profile::NAMES`], or a JSON file.
///
/// # Errors
/// [`Error::Io`] and [`Error::Profile`] for a file; [`Error::Device`] if this hardware cannot be measured;
/// [`Error::NoGpus`] if there is no GPU driver.
pub fn load(word: &str) -> Result<Profile> {
    if word == "cpu" {
        let hardware = Hardware { processor: host::processor(), threads: rayon::current_num_threads() };
        return once(word, "cpu-profile.json".into(), hardware, measure);
    }
    if let Some(ordinal) = gpu_ordinal(word) {
        let (file, hardware) = gpu_hardware(ordinal);
        return once(word, file, hardware, || gpu::measure(ordinal));
    }
    if let Some(profile) = Profile::named(word) {
        return Ok(profile);
    }
    let path = PathBuf::from(word);
    let json = plain_file::read_text(&path, plain_file::TEXT_BYTES);
    let json = json.map_err(|source| match source.kind() {
        ErrorKind::NotFound => {
            let expected = format!("expected cpu, cuda:0, {} or a file", Profile::NAMES.join(", "));
            Error::Value { option: "profile", value: word.into(), expected }
        }
        _ => Error::Io { action: "read", path: path.clone(), source },
    })?;
    Profile::from_json(&json).map_err(|source| Error::Profile { path, source })
}

/// The rates by which plans are chosen.
pub(crate) struct Nominal {
    /// Typical rates.
    pub profile: Profile,
    /// Whether copies use the cores that compute. They then hide nothing.
    pub shares_cores: bool,
}

/// Returns the rates by which plans are chosen for devices with the profile `word`: those of two cores of a host, or of a
/// GPU. Measured rates would choose other tiles, and so other last bits, each time they are measured.
pub(crate) fn nominal(word: &str) -> Nominal {
    let gpu = Profile::named("h200").expect("it is built in");
    if word != "cpu" {
        return Nominal { profile: gpu, shares_cores: false };
    }
    let profile = Profile {
        name: "nominal cpu".into(),
        memory_bytes_per_s: 22e9,
        gather_bytes_per_s: 15e9,
        cached_gather_bytes_per_s: 60e9,
        short_gather_bytes_per_s: 40e9,
        cache_bytes: 16 << 20,
        to_device_bytes_per_s: 10e9,
        to_host_bytes_per_s: 10e9,
        between_devices_bytes_per_s: None,
        flops_per_s: 150e9,
        launch_s: 40e-6,
        access_width: std::num::NonZeroU32::new(16).expect("16 is not 0"),
        ..gpu
    };
    Nominal { profile, shares_cores: true }
}

fn gpu_ordinal(word: &str) -> Option<u32> {
    word.strip_prefix("cuda:")?.parse().ok()
}

/// Returns the name of the file with the profile of a GPU, and what it is measured on.
fn gpu_hardware(ordinal: u32) -> (String, Hardware) {
    let gpus = cuda::gpus().unwrap_or_default();
    let processor = gpus.into_iter().find(|gpu| gpu.ordinal == ordinal).map_or_else(String::new, |gpu| gpu.name);
    let file = format!("gpu-profile-{}.json", processor.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    (file, Hardware { processor, threads: 0 })
}

/// Returns the profile of `hardware`, from its file or measured now. It stays the same for the whole process.
fn once(word: &str, file: String, hardware: Hardware, measure: impl FnOnce() -> Result<Profile>) -> Result<Profile> {
    static PROFILES: Mutex<BTreeMap<String, Profile>> = Mutex::new(BTreeMap::new());
    let mut profiles = PROFILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(profile) = profiles.get(word) {
        return Ok(profile.clone());
    }
    let file = cache_folder().map(|folder| folder.join(file));
    let profile = match file.as_deref().and_then(|file| remembered(file, &hardware)) {
        Some(profile) => profile,
        None => {
            let profile = measure()?;
            if let Some(file) = &file
                && let Err(error) = remember(file, hardware, &profile)
            {
                tracing::debug!("the profile of this hardware is not kept: {error}");
            }
            profile
        }
    };
    profiles.insert(word.to_owned(), profile.clone());
    Ok(profile)
}

/// The hardware that is measured: the processor and the number of threads, or a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hardware {
    processor: String,
    threads: usize,
}

/// A stored profile, with the hardware that it was measured on.
#[derive(Serialize, Deserialize)]
struct Remembered {
    version: String,
    #[serde(flatten)]
    hardware: Hardware,
    profile: Profile,
}

/// Version of stored profiles. The number after the plus increases when the way of measuring changes.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+3");

/// Returns the user's cache folder by the XDG convention; `None` without a home folder.
fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let caches = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("lapidary"))
}

/// Returns the profile in `file`; `None` if the file is missing or broken, or is of another hardware or version.
fn remembered(file: &Path, here: &Hardware) -> Option<Profile> {
    let json = plain_file::read(file, plain_file::TEXT_BYTES).ok()?;
    let Remembered { version, hardware, profile } = serde_json::from_slice(&json).ok()?;
    ((version.as_str(), &hardware) == (VERSION, here) && profile.check().is_ok()).then_some(profile)
}

/// Stores a measured profile in `file`.
fn remember(file: &Path, hardware: Hardware, profile: &Profile) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let remembered = Remembered { version: VERSION.into(), hardware, profile: profile.clone() };
    OutputFile::write(file, serde_json::to_string_pretty(&remembered)?.as_bytes())
}

/// Measures the threads of the current rayon pool with Lapidary's own kernels.
///
/// # Cost
/// About a second, and 400 MiB during that time.
/// # Errors
/// [`Error::Device`] if the host does not have enough memory.
pub fn measure() -> Result<Profile> {
    let failed = |NoHostMemory { need_bytes }| Error::Device {
        device: "cpu".into(),
        op: "measuring its profile".into(),
        source: Box::new(lapidary_kernels::Error::HostMemory { need_bytes }),
    };
    let mut bytes = AlignedBytes::zeroed(BYTES).map_err(failed)?;
    let mut out = AlignedBytes::zeroed(BYTES).map_err(failed)?;
    bytes.as_mut_slice::<f32>().fill(1.0);
    out.as_mut_slice::<f32>().fill(1.0);
    let memory_bytes_per_s = memory_rate(bytes.as_slice(), out.as_mut_slice());
    let mut rate = |of: u64, degrees: Degrees| {
        let rows = (of as usize / 4 / WIDTH).clamp(1, BYTES / 4 / WIDTH);
        gather_rate(bytes.as_slice(), out.as_mut_slice(), rows, degrees, memory_bytes_per_s)
    };
    let mut long = |of| rate(of, Degrees::Equal(32));
    let gather_bytes_per_s = long(BYTES as u64);
    let cache_bytes = host::cache_bytes();
    // The reported cache may not be all ours: other rows and the sums need space as well, and so do other processors.
    let surely_ours = cache_bytes / 8;
    let cached_gather_bytes_per_s = long(surely_ours);
    let cache_bytes = served_bytes(cache_bytes, gather_bytes_per_s, cached_gather_bytes_per_s, long);
    let short_gather_bytes_per_s = rate(surely_ours, Degrees::UpTo(8));
    let flops_per_s = product_rate(bytes.as_slice(), out.as_mut_slice());
    let profile = Profile {
        name: "cpu".into(),
        memory_bytes_per_s,
        gather_bytes_per_s,
        cached_gather_bytes_per_s,
        short_gather_bytes_per_s,
        cache_bytes,
        // A copy within host memory reads and writes every byte.
        to_device_bytes_per_s: memory_bytes_per_s / 2.0,
        to_host_bytes_per_s: memory_bytes_per_s / 2.0,
        between_devices_bytes_per_s: None,
        flops_per_s,
        launch_s: launch_seconds(),
        capacity_bytes: host::memory_bytes(),
        access_width: std::num::NonZeroU32::new(16).expect("a cache line has 16 floats"),
    };
    tracing::debug!(?profile, "measured");
    Ok(profile)
}

/// Returns the least of several times: disturbances only slow a run.
fn least_seconds(times: usize, mut run: impl FnMut()) -> f64 {
    let timed = (0..times).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    timed.fold(f64::INFINITY, f64::min).max(1e-9)
}

fn matrix(data: &[f32], rows: usize, cols: usize) -> MatView<'_> {
    MatView::new(&data[..rows * cols], rows, cols).expect("the slice has that length")
}

fn matrix_mut(data: &mut [f32], rows: usize, cols: usize) -> MatMut<'_> {
    MatMut::new(&mut data[..rows * cols], rows, cols).expect("the slice has that length")
}

fn relu(x: MatView<'_>, out: MatMut<'_>) {
    cpu::rows_then(x, &[RowWork::new(RowStep::Relu, &[])], out).expect("the shapes agree");
}

fn memory_rate(x: &[f32], out: &mut [f32]) -> f64 {
    let rows = x.len() / WIDTH;
    let run = || relu(matrix(x, rows, WIDTH), matrix_mut(out, rows, WIDTH));
    cpu::elementwise_bytes(1, rows as u64, WIDTH as u64) as f64 / least_seconds(5, run)
}

/// Returns the largest of the sizes `most`, `most / 2` and `most / 4` at which the cache gives at least three quarters
/// of its saving; `most / 8` if none does.
fn served_bytes(most: u64, memory_rate: f64, cached_rate: f64, mut rate: impl FnMut(u64) -> f64) -> u64 {
    let (memory_s, cached_s) = (1.0 / memory_rate, 1.0 / cached_rate);
    let halves = [most, most / 2, most / 4];
    let served = |&bytes: &u64| memory_s - 1.0 / rate(bytes) >= 0.75 * (memory_s - cached_s);
    halves.into_iter().find(served).unwrap_or(most / 8)
}

/// The number of neighbours per row.
#[derive(Clone, Copy)]
enum Degrees {
    /// The same number for all rows.
    Equal(u64),
    /// Random, from 0 to this number.
    UpTo(u64),
}

/// Returns the rate at which a gather reads random rows of a matrix with `sources` rows. The time of its sequential
/// reads and writes is subtracted.
fn gather_rate(x: &[f32], out: &mut [f32], sources: usize, degrees: Degrees, memory_bytes_per_s: f64) -> f64 {
    const EDGES: u64 = 1 << 19;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut degree = || match degrees {
        Degrees::Equal(degree) => degree,
        Degrees::UpTo(most) => rng.random_range(0..=most),
    };
    let (mut indptr, mut edges) = (vec![0], 0);
    while edges < EDGES {
        edges += degree();
        indptr.push(edges);
    }
    let rows = indptr.len() - 1;
    let indices: Vec<u32> = (0..edges).map(|i| far_apart(i, sources)).collect();
    let block = BlockView { indptr: &indptr, indices: &indices, own_sources: sources, halo_sources: 0 };
    let run = || {
        cpu::gather(block, None, matrix(x, sources, WIDTH), None, matrix_mut(out, rows, WIDTH)).expect("it is a block");
    };
    random_rate(rows, indices.len(), least_seconds(5, run), memory_bytes_per_s)
}

/// Returns a source for edge `i` such that consecutive edges have distant sources: multiples of a large odd number,
/// modulo `sources`.
fn far_apart(i: u64, sources: usize) -> u32 {
    (i.wrapping_mul(2_654_435_761) % sources as u64) as u32
}

/// Returns the bytes per second of random rows, of [`WIDTH`] numbers each, that a gather read in so many seconds.
fn random_rate(rows: usize, edges: usize, seconds: f64, memory_bytes_per_s: f64) -> f64 {
    let random = (4 * edges * WIDTH) as f64;
    let sequential = cpu::gather_bytes(rows as u64, edges as u64, WIDTH as u64) as f64 - random;
    // At most half of the time is subtracted, so that a disturbed measurement cannot make the rest vanish.
    random / (seconds - sequential / memory_bytes_per_s).max(0.5 * seconds)
}

fn product_rate(x: &[f32], out: &mut [f32]) -> f64 {
    const SHAPE: [usize; 3] = [1 << 14, 256, 256];
    let [n, k, m] = SHAPE;
    let run = || cpu::linear(matrix(x, n, k), matrix(x, m, k), matrix_mut(out, n, m)).expect("the shapes agree");
    cpu::linear_flops(n as u64, k as u64, m as u64) as f64 / least_seconds(5, run)
}

fn launch_seconds() -> f64 {
    let (x, mut out) = ([1.0f32; 16], [0.0f32; 16]);
    least_seconds(200, || relu(matrix(&x, 1, 16), matrix_mut(black_box(&mut out), 1, 16))).max(1e-7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured_and_remembered() {
        let profile = measure().expect("there is memory for it");
        profile.check().expect("its rates are good");
        assert!((1e8..1e13).contains(&profile.gather_bytes_per_s), "{profile:?}");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("caches").join("profile.json");
        let here = Hardware { processor: "Babbage's".into(), threads: 2 };
        assert_eq!(remembered(&file, &here), None);
        remember(&file, here.clone(), &profile).expect("the folder can be written");
        assert_eq!(remembered(&file, &here), Some(profile.clone()));
        let json = std::fs::read_to_string(&file).expect("it is there");
        for broken in [&json[..json.len() / 2], &json.replace("Babbage's", "abacus"), ""] {
            std::fs::write(&file, broken).expect("the folder can be written");
            assert_eq!(remembered(&file, &here), None, "{broken}");
        }
    }

    #[test]
    fn a_cache_is_as_large_as_what_it_serves() {
        // For a matrix larger than the cache, the part that fits is served from the cache.
        let rate = |cache: u64| {
            move |bytes: u64| {
                let served = (cache as f64 / bytes as f64).min(1.0);
                1.0 / (served / 4.0 + (1.0 - served))
            }
        };
        for (cache, want) in [(100, 64), (64, 64), (50, 64), (40, 32), (20, 16), (3, 8)] {
            assert_eq!(served_bytes(64, 1.0, 4.0, rate(cache)), want, "{cache}");
        }
    }

    #[test]
    fn words_name_profiles() {
        assert_eq!(load("a100").expect("it is built in").name, "a100");
        let unknown = load("abacus").expect_err("there is no such profile").to_string();
        assert!(unknown.contains("abacus") && unknown.contains("h200"), "{unknown}");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("its name is text");
        std::fs::write(file.path(), Profile::named("p100").expect("it is built in").to_json())
            .expect("it can be written");
        assert_eq!(load(path).expect("it is a profile").name, "p100");
        std::fs::write(file.path(), "{}").expect("it can be written");
        assert!(matches!(load(path), Err(Error::Profile { .. })));
    }
}
