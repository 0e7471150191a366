//! The result of a dry run.

use std::ops::Range;
use std::sync::Arc;

use lapidary_cost_model::Profile;
use lapidary_planner::memory::Policy;
use serde::Serialize;

use super::{Residency, Traffic};
use crate::lower::ExchangePath;

/// The result of a dry run.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// The device profile used.
    pub profile: Profile,
    /// The assumption about the edges of a [`Shape`](super::Shape); `None` for a dataset.
    pub assumption: Option<&'static str>,
    /// The part of each device.
    pub parts: Vec<PartForecast>,
    /// The result of each policy, in the order of the request.
    pub policies: Vec<PolicyForecast>,
    /// Plans from the smallest feasible device memory to the largest useful one, with the last policy. Empty if no
    /// curve was requested.
    pub curve: Vec<CurvePoint>,
    /// Memory of each device, in bytes.
    pub device_memory: u64,
    /// What the ranks send each other, if there are several.
    pub traffic: Option<Traffic>,
}

impl Forecast {
    /// Returns what the seconds of a built-in profile rest on. `None` for a profile that was measured, or read from a file.
    pub fn basis(&self) -> Option<&'static str> {
        basis(&self.profile)
    }
}

/// Returns what the seconds of a built-in profile rest on.
pub(super) fn basis(profile: &Profile) -> Option<&'static str> {
    Profile::NAMES.contains(&&*profile.name).then_some(match profile.gpu {
        Some(_) => "predicted from machine code and data sheets, not measured on a GPU",
        None => "predicted from data sheets, not measured on a GPU",
    })
}

/// One device's part of the graph.
#[derive(Clone, Debug)]
pub struct PartForecast {
    /// Range of its vertices.
    pub vertices: Range<u64>,
    /// Number of its in-edges.
    pub edges: u64,
    /// Number of rows of other parts that it reads.
    pub halo: u64,
    /// Predicted seconds of its kernels in an epoch.
    pub compute_seconds: f64,
}

/// The plan of one policy.
#[derive(Clone, Debug)]
pub struct PolicyForecast {
    /// The policy.
    pub policy: Policy,
    /// The plan, or, if the device memory is too small, the bytes per device that would be enough.
    pub outcome: Result<PlanForecast, u64>,
}

/// The plan of all devices.
#[derive(Clone, Debug)]
pub struct PlanForecast {
    /// Number of tiles of each part, so that its largest operation fits.
    pub tiles: usize,
    /// Number of strips of columns that wide matrices are cut into; 1 if none is.
    pub strips: usize,
    /// How rows move between devices.
    pub exchange: ExchangePath,
    /// Whether sums move backward in place of rows: see [`BackwardMode::Fold`](crate::BackwardMode::Fold).
    pub folds: bool,
    /// The forecast of each device.
    pub devices: Vec<DeviceForecast>,
    /// Bytes on the host: the data that the devices load, and what they store.
    pub host_bytes: u64,
    /// What is on the device with the highest peak of the epoch, and when. `None` unless it was requested: see
    /// [`DryRun::residency`](super::DryRun::residency).
    pub residency: Option<Residency>,
}

/// The epoch of one device.
#[derive(Clone, Debug)]
pub struct DeviceForecast {
    /// Whether the plan is proven optimal.
    pub exact: bool,
    /// Bytes copied to the device.
    pub bytes_to_device: u64,
    /// Bytes copied to the host.
    pub bytes_to_host: u64,
    /// Bytes copied to this device from other devices.
    pub bytes_between_devices: u64,
    /// Peak of the device memory in bytes, including the setup.
    pub peak_bytes: u64,
    /// Lower bound of the bytes that any plan moves.
    pub lower_bound_bytes: u64,
    /// Whether the bound is one on plans in this order of steps alone. With many steps, other orders are not searched.
    pub bound_to_order: bool,
    /// Predicted seconds of the epoch, without its evaluation.
    pub epoch_seconds: f64,
    /// Predicted seconds of the evaluation.
    pub eval_seconds: f64,
    /// Standard deviation of the logarithm of measured over predicted seconds.
    pub spread: f64,
    /// The steps, with names of operations and tensors.
    pub steps: Arc<[StepForecast]>,
}

/// One step, with names of operations and tensors.
#[derive(Clone, Debug, Serialize)]
pub struct StepForecast {
    /// The operation.
    pub op: String,
    /// Tensors copied to the host before the operation.
    pub store: Vec<String>,
    /// Tensors evicted before the operation.
    pub evict: Vec<String>,
    /// Tensors copied to the device before the operation.
    pub load: Vec<String>,
}

/// A point of the what-if curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Memory of each device, in bytes.
    pub device_memory: u64,
    /// Number of tiles of each part.
    pub tiles: usize,
    /// Number of strips of columns that wide matrices are cut into; 1 if none is.
    pub strips: usize,
    /// Bytes copied to all devices.
    pub bytes_to_device: u64,
    /// Bytes copied to the host.
    pub bytes_to_host: u64,
    /// Bytes copied from device to device.
    pub bytes_between_devices: u64,
    /// Predicted seconds of an epoch on the slowest device, without its evaluation.
    pub epoch_seconds: f64,
}

impl PlanForecast {
    /// Returns the bytes copied to devices and to the host, over all devices.
    pub fn bytes(&self) -> [u64; 2] {
        self.devices.iter().fold([0, 0], |sum, d| [sum[0] + d.bytes_to_device, sum[1] + d.bytes_to_host])
    }

    /// Returns the peak of the device memory in bytes, of the device that needs most.
    pub fn peak_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.peak_bytes).max().unwrap_or(0)
    }

    /// Returns the bytes copied from device to device.
    pub fn bytes_between_devices(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes_between_devices).sum()
    }

    /// Returns the same plan with each device repeated `copies` times.
    pub(super) fn times(self, copies: usize) -> Self {
        let devices = self.devices.iter().flat_map(|device| std::iter::repeat_n(device.clone(), copies)).collect();
        let host_bytes = self.host_bytes.saturating_mul(copies as u64);
        Self { devices, host_bytes, ..self }
    }

    /// Returns the predicted seconds of an epoch on the slowest device, without its evaluation.
    pub fn epoch_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.epoch_seconds).fold(0.0, f64::max)
    }

    /// Returns the predicted seconds of the evaluation on the slowest device.
    pub fn eval_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.eval_seconds).fold(0.0, f64::max)
    }

    /// Returns the seconds between which 9 of 10 epochs are expected to be, without their evaluation.
    pub fn epoch_seconds_range(&self) -> [f64; 2] {
        /// Standard deviations on each side that have 90 % of a normal distribution between them.
        const NINE_OF_TEN: f64 = 1.645;
        let spread = self.devices.iter().map(|device| device.spread).fold(0.0, f64::max);
        [-NINE_OF_TEN, NINE_OF_TEN].map(|by| self.epoch_seconds() * (by * spread).exp())
    }
}

impl CurvePoint {
    /// Returns the bytes copied to devices and to the host, in total.
    pub fn bytes(&self) -> u64 {
        self.bytes_to_device + self.bytes_to_host
    }

    /// Whether this copies no more bytes and takes no longer.
    pub(super) fn is_no_worse_than(&self, other: &Self) -> bool {
        self.bytes() <= other.bytes() && self.epoch_seconds <= other.epoch_seconds
    }
}

#[cfg(test)]
mod tests {
    use lapidary_cost_model::GpuRates;

    use super::*;
    use crate::forecast::{DryRun, Shape, Subject};
    use crate::model::Model;

    #[test]
    fn seconds_of_built_in_profiles_say_what_they_rest_on() {
        let named = |name| Profile::named(name).expect("it is built in");
        assert!(basis(&named("h100")).expect("it was not measured").contains("machine code"));
        assert!(!basis(&named("p100")).expect("it was not measured").contains("machine code"));
        assert_eq!(basis(&Profile { name: "NVIDIA H100".into(), ..named("h100") }), None);
    }

    #[test]
    fn gathers_on_a_gpu_that_issues_slowly_take_as_long_as_their_instructions() {
        let shape = Shape { vertices: 232_965, edges: 114_615_892, features: 602, classes: 41, directed: false };
        let model = Model::gcn(&[602, 16, 41]);
        let epoch_s = |clock_hz: Option<f64>| {
            let h200 = Profile::named("h200").expect("it is built in");
            let gpu = h200.gpu.clone().expect("its rates are known");
            let profile = Profile { gpu: clock_hz.map(|clock_hz| GpuRates { clock_hz, ..gpu }), ..h200 };
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), profile.to_json()).expect("it can be written");
            let path = file.path().to_str().expect("its path is text");
            let forecast = DryRun::new(&model, Subject::Shape(shape)).profile(path).run().expect("it can be planned");
            forecast.policies[0].outcome.as_ref().expect("it fits").epoch_seconds()
        };
        let [slow, twice, none] = [Some(1e6), Some(2e6), None].map(epoch_s);
        assert!((slow / twice / 2.0 - 1.0).abs() < 0.05 && none < twice, "{slow} s, {twice} s, {none} s");
    }
}
