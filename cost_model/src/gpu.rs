//! The rates of a GPU that, with the machine code of a kernel, bound its time.

use serde::{Deserialize, Serialize};

/// Instructions that a multiprocessor issues per cycle: one from each of its four schedulers.
///
/// # Source
/// NVIDIA A100 and H100 Tensor Core GPU architecture white papers (2020, 2022): four warp schedulers per multiprocessor.
const ISSUED_PER_CYCLE: f64 = 4.0;

/// The rates of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRates {
    /// Architecture of its machine code, such as `sm_90`.
    pub architecture: String,
    /// Number of multiprocessors.
    pub multiprocessors: f64,
    /// Clock under load, in cycles per second.
    pub clock_hz: f64,
    /// Bandwidth of the L2 cache for reads, in bytes per second.
    pub l2_bytes_per_s: f64,
}

impl GpuRates {
    /// Returns the rates of a GPU with a built-in profile; `None` for GPUs whose L2 cache or machine code is not known.
    ///
    /// # Source
    /// - `h200`, `h100`: 132 multiprocessors (NVIDIA H100 white paper, 2022; the H200 has the same chip). 1.98 GHz and
    ///   8.1 TB/s were measured on an H200: its clock, and the rate of the L2 cache that gathers of 128-byte pieces reach
    ///   (`bench/results/gpu_gathers.md`). NVIDIA publishes neither; 5,120 bytes per cycle, as on the A100, would be
    ///   10.1 TB/s.
    /// - `a100`: 108 multiprocessors at 1.41 GHz, L2 reads of 5,120 bytes per cycle (NVIDIA A100 white paper, 2020), of which
    ///   the same share, 0.8, is assumed.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (architecture, multiprocessors, clock_hz, l2_bytes_per_s) = match name {
            "h200" | "h100" => ("sm_90", 132.0, 1.98e9, 8.1e12),
            "a100" => ("sm_80", 108.0, 1.41e9, 0.8 * 5120.0 * 1.41e9),
            _ => return None,
        };
        Some(Self { architecture: architecture.into(), multiprocessors, clock_hz, l2_bytes_per_s })
    }

    /// Returns the instructions that all warps issue per second, at most.
    pub fn issued_per_s(&self) -> f64 {
        ISSUED_PER_CYCLE * self.multiprocessors * self.clock_hz
    }

    /// Returns the rates with the names of their fields.
    pub(crate) fn rates(&self) -> [(&'static str, f64); 3] {
        [
            ("multiprocessors", self.multiprocessors),
            ("clock_hz", self.clock_hz),
            ("l2_bytes_per_s", self.l2_bytes_per_s),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_kernel_takes_as_long_as_what_bounds_it() {
        let gpu = GpuRates { architecture: "sm_90".into(), multiprocessors: 2.0, clock_hz: 10.0, l2_bytes_per_s: 50.0 };
        assert_eq!(gpu.issued_per_s(), 80.0);
        let named = Profile::named("h200").expect("it is built in");
        let profile = Profile { memory_bytes_per_s: 20.0, launch_s: 1.0, gpu: Some(gpu), ..named };
        let seconds = |instructions, l2_bytes, memory_bytes| profile.kernel_s(instructions, l2_bytes, memory_bytes);
        assert_eq!(seconds(800.0, 50.0, 20.0), Some(11.0));
        assert_eq!(seconds(80.0, 500.0, 20.0), Some(11.0));
        assert_eq!(seconds(80.0, 50.0, 200.0), Some(11.0));
        assert_eq!(Profile { gpu: None, ..profile.clone() }.kernel_s(1.0, 1.0, 1.0), None);
    }

    #[test]
    fn rates_of_a_gpu_are_checked_by_name() {
        let good = Profile::named("a100").expect("it is built in");
        let gpu = good.gpu.clone().expect("its rates are known");
        for bad in [0.0, -1.0, f64::NAN] {
            let profile = Profile { gpu: Some(GpuRates { clock_hz: bad, ..gpu.clone() }), ..good.clone() };
            assert!(profile.check().expect_err("no GPU has that").to_string().contains("clock_hz"));
        }
        assert_eq!(Profile::from_json(&good.to_json()).expect("it reads what it writes").gpu, Some(gpu));
    }
}
