//! Device profiles: a few rates per device, from which times are predicted before anything is measured.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::gpu::GpuRates;

/// The rates of a device, for `f32`. A rate is what a large call reaches, not the peak of the datasheet, where that is
/// known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name of the device.
    pub name: String,
    /// Sequential memory bandwidth for reads and writes, in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Bandwidth of a gather that reads random rows of a matrix larger than any cache, in bytes per second.
    pub gather_bytes_per_s: f64,
    /// Bandwidth of a gather that reads random rows of a matrix that fits the cache, in bytes per second.
    pub cached_gather_bytes_per_s: f64,
    /// The same for destinations with few neighbours, whose number is not known in advance.
    pub short_gather_bytes_per_s: f64,
    /// Bytes of the last-level cache that the device's threads share; only the share that is theirs.
    pub cache_bytes: u64,
    /// Bandwidth of copies from host to device, in bytes per second.
    pub to_device_bytes_per_s: f64,
    /// Bandwidth of copies from device to host, in bytes per second.
    pub to_host_bytes_per_s: f64,
    /// Bandwidth of copies from another device, in bytes per second. If absent, the other device is a share of the same
    /// GPU, and every byte is read and written in its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_devices_bytes_per_s: Option<f64>,
    /// Floating-point operations per second of a large matrix product.
    pub flops_per_s: f64,
    /// Launch overhead of a call, in seconds.
    pub launch_s: f64,
    /// Bytes of memory.
    pub capacity_bytes: u64,
    /// Numbers per coalesced access: 32 for a GPU's warp, 16 for a cache line.
    pub access_width: NonZeroU32,
    /// The rates of a GPU that bound kernels whose machine code was counted. If absent, gathers are predicted by the rates
    /// above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuRates>,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is not the JSON of a profile.
    #[error(
        "this is not a device profile; expected JSON with name, memory_bytes_per_s, gather_bytes_per_s, \
         cached_gather_bytes_per_s, short_gather_bytes_per_s, cache_bytes, to_device_bytes_per_s, to_host_bytes_per_s, flops_per_s, launch_s, capacity_bytes and access_width, and optionally between_devices_bytes_per_s and gpu"
    )]
    Json(#[from] serde_json::Error),
    /// A rate is not a finite number above 0.
    #[error("the profile `{profile}` has {field} = {found}, expected a finite number above 0")]
    Rate {
        /// Name of the profile.
        profile: String,
        /// Name of the field.
        field: &'static str,
        /// The value found.
        found: f64,
    },
}

impl Profile {
    /// The names of the built-in profiles.
    pub const NAMES: [&'static str; 6] = ["h200", "h100", "a100", "l40s", "rtx4090", "p100"];

    /// Returns a built-in profile; `None` if the name is not one of [`Profile::NAMES`].
    ///
    /// The rates are the usual shares of the peak rates that kernels reach. A gather reaches 60 % of the memory
    /// bandwidth, and all of it from the L2 cache. A product reaches 80 % of the `f32` peak, which on newer devices
    /// is that of the CUDA cores, not of TF32. Links, including those between devices, reach 80 % of the bus.
    /// The rates only need to be good until the first epoch is measured.
    ///
    /// # Source
    /// - `h200`: NVIDIA H200 SXM datasheet: 141 GB at 4.8 TB/s, 67 TFLOP/s, PCIe 5.0 x16, NVLink at 900 GB/s both ways
    ///   together. Measured on one: copies at 4.18 TB/s, products at 44 TFLOP/s, 60 MiB of L2.
    /// - `h100`: NVIDIA H100 SXM datasheet: 80 GB at 3.35 TB/s, 67 TFLOP/s; 50 of the chip's 60 MB of L2 are enabled
    ///   (NVIDIA, "Hopper architecture in depth", 2022). The rest as `h200`.
    /// - `a100`: NVIDIA A100 80 GB SXM datasheet: 80 GB at 2,039 GB/s, 19.5 TFLOP/s, 40 MB of L2, PCIe 4.0 x16,
    ///   NVLink at 600 GB/s both ways together.
    /// - `l40s`: NVIDIA L40S datasheet: 48 GB at 864 GB/s, 91.6 TFLOP/s, PCIe 4.0 x16, no NVLink; 96 MB of L2 (NVIDIA Ada
    ///   architecture whitepaper).
    /// - `rtx4090`: NVIDIA Ada architecture whitepaper: 24 GB at 1,008 GB/s, 82.6 TFLOP/s, 72 MB of L2, PCIe 4.0 x16, no
    ///   NVLink.
    /// - `p100`: NVIDIA Tesla P100 for PCIe, 16 GB, datasheet: 732 GB/s, 9.3 TFLOP/s, 4 MB of L2, PCIe 3.0 x16.
    pub fn named(name: &str) -> Option<Self> {
        let (memory, flops, [link, between], cache_bytes, capacity_bytes) = match name {
            "h200" => (4.18e12, 44e12, [64e9, 450e9], 60 << 20, 141_000_000_000),
            "h100" => (0.9 * 3.35e12, 44e12, [64e9, 450e9], 50_000_000, 80_000_000_000),
            "a100" => (0.85 * 2.039e12, 0.8 * 19.5e12, [32e9, 300e9], 40_000_000, 80_000_000_000),
            "l40s" => (0.85 * 864e9, 0.8 * 91.6e12, [32e9; 2], 96_000_000, 48_000_000_000),
            "rtx4090" => (0.9 * 1.008e12, 0.8 * 82.6e12, [32e9; 2], 72_000_000, 24_000_000_000),
            "p100" => (0.75 * 732e9, 0.8 * 9.3e12, [16e9; 2], 4_000_000, 16_000_000_000),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            memory_bytes_per_s: memory,
            gather_bytes_per_s: 0.6 * memory,
            cached_gather_bytes_per_s: memory,
            short_gather_bytes_per_s: memory,
            cache_bytes,
            to_device_bytes_per_s: 0.8 * link,
            to_host_bytes_per_s: 0.8 * link,
            between_devices_bytes_per_s: Some(0.8 * between),
            flops_per_s: flops,
            launch_s: 5e-6,
            capacity_bytes,
            access_width: WARP,
            gpu: GpuRates::named(name),
        })
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`], also for an unknown or missing field.
    pub fn from_json(json: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(json)?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the profile in the format that [`Profile::from_json`] reads.
    ///
    /// # Panics
    /// Never: the fields are plain numbers.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and a name are JSON")
    }

    /// Checks that every rate is finite and above 0.
    ///
    /// # Errors
    /// [`ProfileError::Rate`].
    pub fn check(&self) -> Result<(), ProfileError> {
        let rates = [
            ("memory_bytes_per_s", self.memory_bytes_per_s),
            ("gather_bytes_per_s", self.gather_bytes_per_s),
            ("cached_gather_bytes_per_s", self.cached_gather_bytes_per_s),
            ("short_gather_bytes_per_s", self.short_gather_bytes_per_s),
            ("to_device_bytes_per_s", self.to_device_bytes_per_s),
            ("to_host_bytes_per_s", self.to_host_bytes_per_s),
            ("between_devices_bytes_per_s", self.between_devices_bytes_per_s.unwrap_or(self.memory_bytes_per_s)),
            ("flops_per_s", self.flops_per_s),
            ("launch_s", self.launch_s),
        ];
        let of_gpu = self.gpu.iter().flat_map(GpuRates::rates);
        match rates.into_iter().chain(of_gpu).find(|(_, rate)| !(rate.is_finite() && *rate > 0.0)) {
            Some((field, found)) => Err(ProfileError::Rate { profile: self.name.clone(), field, found }),
            None => Ok(()),
        }
    }

    /// Returns the seconds of a gather of `n` rows with `d` numbers, which sum `e` source rows; no source row is in a
    /// cache.
    ///
    /// # Source
    /// Bytes as counted by `lapidary_kernels::cpu::gather_bytes`: source rows are read at random, the rest
    /// sequentially.
    pub fn gather_s(&self, n: u64, e: u64, d: u64) -> f64 {
        let (n, e, d) = (n as f64, e as f64, d as f64);
        let in_sequence = 8.0 * (n + 1.0) + 4.0 * e + 4.0 * n * d;
        self.launch_s + in_sequence / self.memory_bytes_per_s + 4.0 * e * d / self.gather_bytes_per_s
    }

    /// Returns the seconds of a kernel that issues so many instructions, and moves so many bytes from and to the L2 cache and
    /// the memory: those of whichever takes longest, and of the launch. `None` if the rates of the GPU are not known.
    pub fn kernel_s(&self, instructions: f64, l2_bytes: f64, memory_bytes: f64) -> Option<f64> {
        let gpu = self.gpu.as_ref()?;
        let issue_s = instructions / gpu.issued_per_s();
        let bytes_s = (l2_bytes / gpu.l2_bytes_per_s).max(memory_bytes / self.memory_bytes_per_s);
        Some(self.launch_s + issue_s.max(bytes_s))
    }

    /// Returns the seconds of a product of `[n, k]` and `[k, m]`, or of one of its gradients.
    ///
    /// A row takes the time of its flops or of its bytes, whichever is longer. The weight is read once in addition.
    pub fn linear_s(&self, n: u64, k: u64, m: u64) -> f64 {
        let (n, k, m) = (n as f64, k as f64, m as f64);
        let row_s = f64::max(2.0 * k * m / self.flops_per_s, 4.0 * (k + m) / self.memory_bytes_per_s);
        self.launch_s + 4.0 * k * m / self.memory_bytes_per_s + n * row_s
    }

    /// Returns the seconds of an elementwise call that reads and writes `bytes` bytes in total.
    pub fn elementwise_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.memory_bytes_per_s
    }

    /// Returns the seconds of a copy of `bytes` bytes from the host to the device.
    pub fn copy_in_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.to_device_bytes_per_s
    }

    /// Returns the seconds of a copy of `bytes` bytes from another device.
    pub fn fetch_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.between_devices_bytes_per_s.unwrap_or(self.memory_bytes_per_s / 2.0)
    }

    /// Returns the seconds of a copy of `bytes` bytes from the device to the host.
    pub fn copy_out_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.to_host_bytes_per_s
    }
}

const WARP: NonZeroU32 = NonZeroU32::new(32).expect("32 is not 0");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_that_are_built_in_are_good() {
        for name in Profile::NAMES {
            let profile = Profile::named(name).expect("it is built in");
            profile.check().expect("its rates are good");
            assert_eq!(Profile::from_json(&profile.to_json()).expect("it reads what it writes"), profile);
        }
        assert_eq!(Profile::named("abacus"), None);
    }

    #[test]
    fn bad_profiles_are_refused_by_name() {
        let good = Profile::named("a100").expect("it is built in");
        for bad in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            let profile = Profile { flops_per_s: bad, ..good.clone() };
            assert!(profile.check().expect_err("no device has that").to_string().contains("flops_per_s"));
        }
        let json = good.to_json();
        for broken in [&json[..json.len() / 2], &json.replace("launch_s", "lunch_s"), "[]", &json.replace("32", "0")] {
            assert!(matches!(Profile::from_json(broken), Err(ProfileError::Json(_))), "{broken}");
        }
        let stopped = json.replace("0.000005", "0").replace("5e-6", "0");
        let between = json.replace("240000000000.0", "-1.0");
        let found = Profile::from_json(&between);
        assert!(matches!(found, Err(ProfileError::Rate { field: "between_devices_bytes_per_s", .. })), "{between}");
        assert!(matches!(Profile::from_json(&stopped), Err(ProfileError::Rate { field: "launch_s", .. })), "{stopped}");
    }

    #[test]
    fn seconds_are_bytes_and_flops_over_their_rates() {
        let profile = Profile {
            memory_bytes_per_s: 10.0,
            gather_bytes_per_s: 4.0,
            to_device_bytes_per_s: 2.0,
            to_host_bytes_per_s: 1.0,
            flops_per_s: 8.0,
            launch_s: 1.0,
            ..Profile::named("h200").expect("it is built in")
        };
        assert_eq!(profile.gather_s(1, 3, 2), 1.0 + (16.0 + 12.0 + 8.0) / 10.0 + 24.0 / 4.0);
        assert_eq!(profile.linear_s(2, 10, 20), 1.0 + 80.0 + 2.0 * 400.0 / 8.0); // limited by flops
        assert_eq!(profile.linear_s(2, 10, 1), 1.0 + 4.0 + 2.0 * 44.0 / 10.0); // limited by bytes
        assert_eq!(Profile { between_devices_bytes_per_s: Some(4.0), ..profile.clone() }.fetch_s(8), 3.0);
        assert_eq!(Profile { between_devices_bytes_per_s: None, ..profile.clone() }.fetch_s(10), 3.0);
        assert_eq!((profile.elementwise_s(20), profile.copy_in_s(4), profile.copy_out_s(4)), (3.0, 3.0, 5.0));
    }
}
