//! Device profiles by name: built-in ones, files, and profiles of this machine's cores and GPUs, which are measured and
//! remembered.

mod cpu;
pub(crate) mod gpu;
mod links;
mod store;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use lapidary_cost_model::{KernelTimes, Profile};
use lapidary_kernels::cuda;

pub use cpu::measure;
pub(crate) use store::Busy;
#[cfg(feature = "command")]
pub(crate) use store::{BusyWatch, Remembered};
use store::{Hardware, Store};

use crate::error::{Error, Result};
use crate::host;
use crate::plain_file;

/// The name of the profile of this machine's cores.
pub(crate) const CPU: &str = "cpu";

/// Numbers per gathered row.
const WIDTH: usize = 64;

/// Loads the profile `cpu`, `cuda:N` (that GPU), `cuda:N,M` (the first GPU, with the slowest link between them), one of
/// [`Profile::NAMES`], or a JSON file. This machine's profiles are measured if they are not remembered, or if what is
/// remembered is old or was disturbed.
///
/// # Errors
/// [`Error::Io`] and [`Error::Profile`] for a file; [`Error::Device`] if this hardware cannot be measured;
/// [`Error::NoGpus`] if there is no GPU driver.
pub fn load(word: &str) -> Result<Profile> {
    if let Some(store) = store(word) {
        return once(word, &store);
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
    if word != CPU {
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

/// Returns the profile of this hardware if it is known, and measures nothing.
#[cfg(feature = "command")]
pub(crate) fn known(word: &str) -> Option<Profile> {
    let profiles = PROFILES.lock().unwrap_or_else(PoisonError::into_inner);
    profiles.get(word).cloned().or_else(|| Some(store(word)?.profile()?.value))
}

/// Returns the times of the kernels of this hardware, as far as they are remembered. `profile` is its profile.
pub(crate) fn kernel_times(word: &str, profile: &Profile) -> KernelTimes {
    let remembered = store(word).and_then(|store| store.kernels(profile));
    remembered.map_or_else(|| KernelTimes::new(profile), |remembered| remembered.value)
}

/// Returns what is remembered of the times of kernels, with its age; `None` if there is nothing.
#[cfg(feature = "command")]
pub(crate) fn remembered_kernels(word: &str, profile: &Profile) -> Option<Remembered<KernelTimes>> {
    store(word)?.kernels(profile)
}

/// Remembers the times of the kernels of this hardware. If they were measured now, `busy` is how busy others were; if a run
/// has only added to them, there is none.
///
/// # Errors
/// [`std::io::Error`] if the file cannot be written.
pub(crate) fn remember_kernels(word: &str, times: &KernelTimes, busy: Option<Busy>) -> std::io::Result<()> {
    store(word).map_or(Ok(()), |store| store.keep_kernels(times, busy))
}

/// Forgets the profile of this hardware and the times of its kernels.
#[cfg(feature = "command")]
pub(crate) fn forget(word: &str) {
    if let Some(store) = store(word) {
        store.forget();
        PROFILES.lock().unwrap_or_else(PoisonError::into_inner).remove(word);
    }
}

/// Returns where the measurements of this machine's hardware are kept; `None` if the word names no such hardware.
fn store(word: &str) -> Option<Store> {
    if word == CPU {
        let hardware = Hardware { processor: host::processor(), threads: rayon::current_num_threads() };
        return Some(Store::new("cpu", hardware));
    }
    Some(Store::new("gpu", Hardware { processor: gpu_name(gpu_ordinals(word)?[0]), threads: 0 }))
}

/// Returns the name of a GPU; empty if it is not there. Drivers are asked once, since they can take seconds.
fn gpu_name(ordinal: u32) -> String {
    static NAMES: OnceLock<BTreeMap<u32, String>> = OnceLock::new();
    let ask = || cuda::gpus().unwrap_or_default().into_iter().map(|gpu| (gpu.ordinal, gpu.name)).collect();
    NAMES.get_or_init(ask).get(&ordinal).cloned().unwrap_or_default()
}

/// Returns the numbers of the GPUs in a word such as `cuda:0,1`, at least one.
fn gpu_ordinals(word: &str) -> Option<Vec<u32>> {
    word.strip_prefix("cuda:")?.split(',').map(|ordinal| ordinal.parse().ok()).collect()
}

/// The profiles that this process has measured or read.
static PROFILES: Mutex<BTreeMap<String, Profile>> = Mutex::new(BTreeMap::new());

/// Returns the profile of this hardware, from its file or measured now. It stays the same for the whole process.
fn once(word: &str, store: &Store) -> Result<Profile> {
    let mut profiles = PROFILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(profile) = profiles.get(word) {
        return Ok(profile.clone());
    }
    let ordinals = gpu_ordinals(word);
    let mut profile = match store.profile() {
        Some(remembered) => remembered.value,
        // Fuzz targets may be built without optimisation, and would then measure for minutes.
        None if cfg!(fuzzing) => nominal(word).profile,
        None => {
            let watch = Busy::watch();
            let profile = ordinals.as_ref().map_or_else(measure, |ordinals| gpu::measure(ordinals[0]))?;
            if let Err(error) = store.keep_profile(&profile, watch.end()) {
                tracing::debug!("the profile of this hardware is not kept: {error}");
            }
            profile
        }
    };
    // Not remembered: it takes milliseconds, and depends on which GPUs there are.
    if let Some(ordinals) = ordinals {
        profile.between_devices_bytes_per_s = links::slowest(&ordinals)?;
        tracing::debug!("{word}: {:?} bytes per second over the slowest link", profile.between_devices_bytes_per_s);
    }
    profiles.insert(word.to_owned(), profile.clone());
    Ok(profile)
}

/// Returns a source for edge `i` such that consecutive edges have distant sources: multiples of a large odd number,
/// modulo `sources`.
fn far_apart(i: u64, sources: usize) -> u32 {
    (i.wrapping_mul(2_654_435_761) % sources as u64) as u32
}

/// Returns the bytes per second of random rows, of [`WIDTH`] numbers each, that a gather read in so many seconds.
fn random_rate(rows: usize, edges: usize, seconds: f64, memory_bytes_per_s: f64) -> f64 {
    let random = (4 * edges * WIDTH) as f64;
    let sequential = lapidary_kernels::cpu::gather_bytes(rows as u64, edges as u64, WIDTH as u64) as f64 - random;
    // At most half of the time is subtracted, so that a disturbed measurement cannot make the rest vanish.
    random / (seconds - sequential / memory_bytes_per_s).max(0.5 * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

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
