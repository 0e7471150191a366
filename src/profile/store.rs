//! What was measured of this machine's hardware, in files of the user's cache folder.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapidary_cost_model::{KernelTimes, Profile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::{self, CpuSeconds};
use crate::output::OutputFile;
use crate::plain_file;

/// Version of stored measurements. The number after the plus increases when the way of measuring or
/// the speed of kernels changes.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+16");

/// A measurement that is older than this is made again: machines get other neighbours, kernels and settings.
const OLD: Duration = Duration::from_secs(30 * 24 * 3600);

/// A measurement that was disturbed is made again after this time.
const OLD_IF_DISTURBED: Duration = Duration::from_secs(600);

/// Bytes of the largest file that is read.
const MOST_BYTES: u64 = 64 << 20;

/// The share of all cores that others used during a measurement, the hypervisor included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Busy(pub f64);

/// A measurement that is under way.
pub(crate) struct BusyWatch(Option<(CpuSeconds, SystemTime)>);

impl Busy {
    /// Starts to watch what others use.
    pub(crate) fn watch() -> BusyWatch {
        BusyWatch(host::cpu_seconds().map(|used| (used, SystemTime::now())))
    }

    /// Whether a measurement beside it is not to be trusted.
    pub(crate) fn disturbs(self) -> bool {
        self.0 > 0.15
    }
}

impl BusyWatch {
    /// Returns how busy others were; not at all if the system does not tell.
    pub(crate) fn end(&self) -> Busy {
        let share = || {
            let (before, start) = self.0?;
            let now = host::cpu_seconds()?;
            let others = (now.all - before.all) - (now.own - before.own);
            let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
            Some((others / cores / start.elapsed().ok()?.as_secs_f64()).clamp(0.0, 1.0))
        };
        Busy(share().filter(|share| share.is_finite()).unwrap_or(0.0))
    }
}

/// The hardware that is measured: the processor and the number of threads, or a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hardware {
    pub(super) processor: String,
    pub(super) threads: usize,
}

/// A stored measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Remembered<T> {
    version: String,
    processor: String,
    threads: usize,
    /// Seconds since 1970.
    measured_at: u64,
    /// How busy others were.
    pub(crate) busy: Busy,
    /// What was measured.
    pub(crate) value: T,
}

impl<T> Remembered<T> {
    /// Returns the time since the measurement.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_secs(now().saturating_sub(self.measured_at))
    }
}

/// Where the measurements of some hardware are kept.
pub(super) struct Store {
    hardware: Hardware,
    /// `None` without a home folder.
    files: Option<[PathBuf; 2]>,
}

impl Store {
    /// Keeps measurements in the user's cache folder, by the XDG convention. `kind` begins the names of the files.
    pub(super) fn new(kind: &str, hardware: Hardware) -> Self {
        let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let caches = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
        Self::in_folder(caches.map(|caches| caches.join("lapidary")), kind, hardware)
    }

    fn in_folder(folder: Option<PathBuf>, kind: &str, hardware: Hardware) -> Self {
        let of = match kind {
            "gpu" => format!("-{}", hardware.processor.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
            _ => String::new(),
        };
        let files =
            folder.map(|folder| ["profile", "kernels"].map(|what| folder.join(format!("{kind}-{what}{of}.json"))));
        Self { hardware, files }
    }

    /// Returns the stored profile, if it is valid.
    pub(super) fn profile(&self) -> Option<Remembered<Profile>> {
        self.read::<Profile>(0).filter(|remembered| remembered.value.check().is_ok())
    }

    /// Returns the stored times of kernels, if they are valid.
    pub(super) fn kernels(&self, profile: &Profile) -> Option<Remembered<KernelTimes>> {
        let Remembered { version, processor, threads, measured_at, busy, value } = self.read::<serde_json::Value>(1)?;
        let value = KernelTimes::from_json(&value.to_string(), profile).ok()?;
        Some(Remembered { version, processor, threads, measured_at, busy, value })
    }

    pub(super) fn keep_profile(&self, profile: &Profile, busy: Busy) -> std::io::Result<()> {
        self.write(0, profile, busy, now())
    }

    /// Stores the times of kernels. With `busy`, they were measured now; without, a run has added to them, which keeps
    /// their age.
    pub(super) fn keep_kernels(&self, times: &KernelTimes, busy: Option<Busy>) -> std::io::Result<()> {
        let before = self.read::<serde_json::Value>(1).filter(|_| busy.is_none());
        let before = before.map(|before| (before.measured_at, before.busy));
        let (at, busy) = before.unwrap_or_else(|| (now(), busy.unwrap_or_default()));
        self.write(1, serde_json::from_str::<serde_json::Value>(&times.to_json())?, busy, at)
    }

    #[cfg(any(test, feature = "command"))]
    pub(super) fn forget(&self) {
        self.files.iter().flatten().for_each(|file| drop(std::fs::remove_file(file)));
    }

    /// Reads a measurement; `None` if its file is missing or broken, is of another hardware or version, or is too old.
    fn read<T: DeserializeOwned>(&self, file: usize) -> Option<Remembered<T>> {
        let json = plain_file::read(&self.files.as_ref()?[file], MOST_BYTES).ok()?;
        let remembered: Remembered<T> = serde_json::from_slice(&json).ok()?;
        let Hardware { processor, threads } = &self.hardware;
        let is_ours =
            (&*remembered.version, &remembered.processor, &remembered.threads) == (VERSION, processor, threads);
        let limit = if remembered.busy.disturbs() { OLD_IF_DISTURBED } else { OLD };
        (is_ours && remembered.age() < limit).then_some(remembered)
    }

    fn write<T: Serialize>(&self, file: usize, value: T, busy: Busy, measured_at: u64) -> std::io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        if let Some(folder) = files[file].parent() {
            std::fs::create_dir_all(folder)?;
        }
        let Hardware { processor, threads } = self.hardware.clone();
        let remembered = Remembered { version: VERSION.into(), processor, threads, measured_at, busy, value };
        OutputFile::write(&files[file], serde_json::to_string(&remembered)?.as_bytes())
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile::named("a100").expect("it is built in")
    }

    #[test]
    fn measurements_are_remembered_for_their_hardware() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = Hardware { processor: "Babbage's".into(), threads: 2 };
        let store = |hardware: &Hardware| Store::in_folder(Some(folder.path().join("caches")), "cpu", hardware.clone());
        assert!(store(&here).profile().is_none() && store(&here).kernels(&profile()).is_none());
        store(&here).keep_profile(&profile(), Busy(0.0)).expect("the folder can be written");
        store(&here).keep_kernels(&KernelTimes::new(&profile()), None).expect("the folder can be written");
        assert_eq!(store(&here).profile().expect("it is there").value, profile());
        assert_eq!(store(&here).kernels(&profile()).expect("they are there").value, KernelTimes::new(&profile()));
        assert!(store(&Hardware { threads: 3, ..here.clone() }).profile().is_none());
        let file = folder.path().join("caches/cpu-profile.json");
        let json = std::fs::read_to_string(&file).expect("it is there");
        for broken in [&json[..json.len() / 2], &json.replace(VERSION, "0"), ""] {
            std::fs::write(&file, broken).expect("the folder can be written");
            assert!(store(&here).profile().is_none(), "{broken}");
        }
        store(&here).forget();
        assert!(store(&here).kernels(&profile()).is_none() && !file.exists());
    }

    #[test]
    fn old_and_disturbed_measurements_are_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = Hardware { processor: "Babbage's".into(), threads: 2 };
        let store = Store::in_folder(Some(folder.path().to_owned()), "cpu", here);
        let file = folder.path().join("cpu-profile.json");
        for (busy, days, is_kept) in [(0.0, 29, true), (0.0, 31, false), (0.6, 0, true), (0.6, 1, false)] {
            store.keep_profile(&profile(), Busy(busy)).expect("the folder can be written");
            let json = std::fs::read_to_string(&file).expect("it is there");
            let mut json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
            json["measured_at"] = (now() - days * 24 * 3600).into();
            std::fs::write(&file, json.to_string()).expect("the folder can be written");
            assert_eq!(store.profile().is_some(), is_kept, "{busy} busy, {days} days");
        }
    }

    #[test]
    fn others_are_noticed() {
        let watch = Busy::watch();
        assert!((0.0..=1.0).contains(&watch.end().0));
        assert!(Busy(0.5).disturbs() && !Busy(0.05).disturbs());
    }
}
