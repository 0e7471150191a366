//! What a device can do, in a few numbers: the source of predictions before anything was measured.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// A device's rates. `f32` throughout; a rate is what a large call reaches, not what the datasheet sells, where known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// Bytes a second of its memory, read or written in sequence.
    pub memory_bytes_per_s: f64,
    /// Bytes a second of rows that a gather reads at random from a matrix larger than any cache.
    pub gather_bytes_per_s: f64,
    /// Bytes a second of rows that a gather reads at random from a matrix that the cache holds.
    pub cached_gather_bytes_per_s: f64,
    /// The same, of rows with few neighbours, of which it is not known ahead how many.
    pub short_gather_bytes_per_s: f64,
    /// Bytes of the last cache before the memory, which all of a device's threads share: as many as are theirs.
    pub cache_bytes: u64,
    /// Bytes a second from the host's memory to the device's.
    pub to_device_bytes_per_s: f64,
    /// Bytes a second from the device's memory to the host's.
    pub to_host_bytes_per_s: f64,
    /// Bytes a second from another device's memory to this one's. Absent, the other is a share of the same device: every byte is read
    /// and written there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_devices_bytes_per_s: Option<f64>,
    /// Floating-point operations a second of a large matrix product.
    pub flops_per_s: f64,
    /// Seconds that a call takes before it does anything.
    pub launch_s: f64,
    /// Bytes of its memory.
    pub capacity_bytes: u64,
    /// Numbers of one coalesced access: 32 of a GPU's warp, 16 on a cache line.
    pub access_width: NonZeroU32,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Not the JSON of a profile.
    #[error(
        "this is no device profile; expected JSON with name, memory_bytes_per_s, gather_bytes_per_s, \
         cached_gather_bytes_per_s, short_gather_bytes_per_s, cache_bytes, to_device_bytes_per_s, to_host_bytes_per_s, flops_per_s, launch_s, capacity_bytes and access_width, and perhaps between_devices_bytes_per_s"
    )]
    Json(#[from] serde_json::Error),
    /// A rate that no device has.
    #[error("the profile `{profile}` has {field} = {found}, expected a finite number above 0")]
    Rate {
        /// The profile's name.
        profile: String,
        /// Which of its numbers.
        field: &'static str,
        /// What stands there.
        found: f64,
    },
}

impl Profile {
    /// The names that [`Profile::named`] knows.
    pub const NAMES: [&'static str; 3] = ["h200", "a100", "p100"];

    /// A profile that is built in; `None` if the name is not one of [`Profile::NAMES`].
    ///
    /// Rates of gathers and of products are shares of the peaks that kernels commonly reach (gather: 60 % of the
    /// memory's, and all of it from the L2 cache; products: 80 % of the peak in `f32`, which on the newer two is that of the CUDA cores, not of TF32);
    /// links, between devices as well, are 80 % of the bus. They only have to be good until the first epoch was measured.
    ///
    /// # Source
    /// - `h200`: NVIDIA H200 SXM datasheet: 141 GB at 4.8 TB/s (copies were seen at 4.3), 67 TFLOP/s, 60 MB of L2,
    ///   PCIe 5.0 x16, NVLink at 900 GB/s both ways together.
    /// - `a100`: NVIDIA A100 80 GB SXM datasheet: 80 GB at 2,039 GB/s, 19.5 TFLOP/s, 40 MB of L2, PCIe 4.0 x16, NVLink at 600 GB/s
    ///   both ways together.
    /// - `p100`: NVIDIA Tesla P100 for PCIe, 16 GB, datasheet: 732 GB/s, 9.3 TFLOP/s, 4 MB of L2, PCIe 3.0 x16.
    pub fn named(name: &str) -> Option<Self> {
        let (memory, flops, [link, between], cache_bytes, capacity_bytes) = match name {
            "h200" => (4.3e12, 67e12, [64e9, 450e9], 60_000_000, 141_000_000_000),
            "a100" => (0.85 * 2.039e12, 19.5e12, [32e9, 300e9], 40_000_000, 80_000_000_000),
            "p100" => (0.75 * 732e9, 9.3e12, [16e9; 2], 4_000_000, 16_000_000_000),
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
            flops_per_s: 0.8 * flops,
            launch_s: 5e-6,
            capacity_bytes,
            access_width: WARP,
        })
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`]; an unknown or missing field is one.
    pub fn from_json(json: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(json)?;
        profile.check()?;
        Ok(profile)
    }

    /// The profile as [`Profile::from_json`] reads it.
    ///
    /// # Panics
    /// Never: the fields are plain numbers.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and a name are JSON")
    }

    /// Objects to a rate that is not above 0 and finite.
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
        match rates.into_iter().find(|(_, rate)| !(rate.is_finite() && *rate > 0.0)) {
            Some((field, found)) => Err(ProfileError::Rate { profile: self.name.clone(), field, found }),
            None => Ok(()),
        }
    }

    /// Seconds of a gather: `n` rows of `d` numbers, each the sum of some of the `e` source rows, none of which is in a
    /// cache.
    ///
    /// # Source
    /// Bytes as `lapidary_kernels::cpu::gather_bytes` counts them: source rows at random, the rest in sequence.
    pub fn gather_s(&self, n: u64, e: u64, d: u64) -> f64 {
        let (n, e, d) = (n as f64, e as f64, d as f64);
        let in_sequence = 8.0 * (n + 1.0) + 4.0 * e + 4.0 * n * d;
        self.launch_s + in_sequence / self.memory_bytes_per_s + 4.0 * e * d / self.gather_bytes_per_s
    }

    /// Seconds of a product of `[n, k]` and `[k, m]`, or of a gradient of it.
    ///
    /// A row takes what is greater, its flops or its bytes; the weight is read once besides.
    pub fn linear_s(&self, n: u64, k: u64, m: u64) -> f64 {
        let (n, k, m) = (n as f64, k as f64, m as f64);
        let row_s = f64::max(2.0 * k * m / self.flops_per_s, 4.0 * (k + m) / self.memory_bytes_per_s);
        self.launch_s + 4.0 * k * m / self.memory_bytes_per_s + n * row_s
    }

    /// Seconds of an elementwise call that reads and writes `bytes` together.
    pub fn elementwise_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.memory_bytes_per_s
    }

    /// Seconds of a copy of `bytes` from the host to the device.
    pub fn copy_in_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.to_device_bytes_per_s
    }

    /// Seconds of a copy of `bytes` from another device.
    pub fn fetch_s(&self, bytes: u64) -> f64 {
        self.launch_s + bytes as f64 / self.between_devices_bytes_per_s.unwrap_or(self.memory_bytes_per_s / 2.0)
    }

    /// Seconds of a copy of `bytes` from the device to the host.
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
        assert_eq!(profile.linear_s(2, 10, 20), 1.0 + 80.0 + 2.0 * 400.0 / 8.0); // by flops
        assert_eq!(profile.linear_s(2, 10, 1), 1.0 + 4.0 + 2.0 * 44.0 / 10.0); // by bytes
        assert_eq!(Profile { between_devices_bytes_per_s: Some(4.0), ..profile.clone() }.fetch_s(8), 3.0);
        assert_eq!(Profile { between_devices_bytes_per_s: None, ..profile.clone() }.fetch_s(10), 3.0);
        assert_eq!((profile.elementwise_s(20), profile.copy_in_s(4), profile.copy_out_s(4)), (3.0, 3.0, 5.0));
    }
}
