//! Which devices a run uses.

use std::num::NonZeroUsize;
use std::str::FromStr;

use bytesize::ByteSize;
use lapidary_kernels::{CpuDevice, Device};

use crate::error::{Error, Result};
use crate::host;

/// Which devices a run uses.
///
/// This version computes on `cpu`: the host's cores, in place. `auto` (every GPU, else the CPU) is `cpu`.
///
/// ```
/// use lapidary::Devices;
///
/// assert!(Devices::parse("cpu").is_ok());
/// assert!(Devices::parse("cuda:0").is_err(), "not built yet");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    threads: Option<NonZeroUsize>,
}

impl Devices {
    /// The host's cores, as many as there are (or as `RAYON_NUM_THREADS` says).
    pub fn cpu() -> Self {
        Self { threads: None }
    }

    /// From `auto` or `cpu`.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] for `cpu:N`, `sim:N` and `cuda:...`; [`Error::Value`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        let kind = text.split(':').next().unwrap_or_default();
        match (text, kind) {
            ("auto" | "cpu", _) => Ok(Self::cpu()),
            (_, "cpu" | "sim" | "cuda") => {
                let what = format!("--devices {text}");
                Err(Error::NotBuilt { what, instead: "this version has `cpu` (and `auto`, which is `cpu`)".into() })
            }
            _ => {
                let expected = "write auto or cpu".into();
                Err(Error::Value { option: "--devices", value: text.into(), expected })
            }
        }
    }

    /// Uses so many threads. The results do not depend on it.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Opens the device with a capacity; by default all of the host's memory.
    pub(crate) fn open(&self, memory: Option<ByteSize>) -> Result<Box<dyn Device>> {
        let capacity_bytes = memory.map_or_else(host::memory_bytes, |m| m.as_u64());
        let device = CpuDevice::new(self.threads, capacity_bytes);
        let device = device.map_err(|source| Error::Device { device: "cpu".into(), op: "starting".into(), source })?;
        Ok(Box::new(device))
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self::cpu()
    }
}

impl FromStr for Devices {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}
