//! What a dry run found.

use std::ops::Range;
use std::sync::Arc;

use lapidary_cost_model::Profile;
use lapidary_planner::memory::Policy;
use serde::Serialize;

/// What a dry run found.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Of which device.
    pub profile: Profile,
    /// What was assumed of data that is not at hand.
    pub assumption: Option<&'static str>,
    /// One part a device.
    pub parts: Vec<PartForecast>,
    /// In the order in which they were asked for.
    pub policies: Vec<PolicyForecast>,
    /// From the least device memory that works to all that helps, with the last policy; empty if that was not asked for.
    pub curve: Vec<CurvePoint>,
    /// What each device may hold.
    pub device_memory: u64,
}

/// One device's part of the graph.
#[derive(Clone, Debug)]
pub struct PartForecast {
    /// Its vertices.
    pub vertices: Range<u64>,
    /// Its in-edges.
    pub edges: u64,
    /// Rows of other parts that it reads.
    pub halo: u64,
    /// Seconds of its kernels in an epoch.
    pub compute_seconds: f64,
}

/// One policy's plan.
#[derive(Clone, Debug)]
pub struct PolicyForecast {
    /// Which.
    pub policy: Policy,
    /// The plan, or, if no device memory of this size does, the bytes that would.
    pub outcome: Result<PlanForecast, u64>,
}

/// A plan of all devices.
#[derive(Clone, Debug)]
pub struct PlanForecast {
    /// Into how many tiles each part is cut, so that its largest operation fits.
    pub tiles: usize,
    /// By device.
    pub devices: Vec<DeviceForecast>,
    /// What the host holds: the data as the devices load it, and what is stored.
    pub host_bytes: u64,
}

/// One device's epoch.
#[derive(Clone, Debug)]
pub struct DeviceForecast {
    /// Whether nothing better exists.
    pub exact: bool,
    /// Copied to the device.
    pub bytes_to_device: u64,
    /// Copied to the host.
    pub bytes_to_host: u64,
    /// Copied to this device from others.
    pub bytes_between_devices: u64,
    /// The most that it holds at once, setup included.
    pub peak_bytes: u64,
    /// No plan moves less.
    pub lower_bound_bytes: u64,
    /// Predicted.
    pub epoch_seconds: f64,
    /// What happens, by name.
    pub steps: Arc<[StepForecast]>,
}

/// One step, by name.
#[derive(Clone, Debug, Serialize)]
pub struct StepForecast {
    /// The operation.
    pub op: String,
    /// Copied to the host before it.
    pub store: Vec<String>,
    /// Given up before it.
    pub evict: Vec<String>,
    /// Copied to the device before it.
    pub load: Vec<String>,
}

/// A point of the what-if curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// What each device may hold.
    pub device_memory: u64,
    /// Into how many tiles each part is cut.
    pub tiles: usize,
    /// Copied to all devices.
    pub bytes_to_device: u64,
    /// Copied to the host.
    pub bytes_to_host: u64,
    /// Copied from device to device.
    pub bytes_between_devices: u64,
    /// Of the slowest device.
    pub epoch_seconds: f64,
}

impl PlanForecast {
    /// To the devices and to the host, all devices together.
    pub fn bytes(&self) -> [u64; 2] {
        self.devices.iter().fold([0, 0], |sum, d| [sum[0] + d.bytes_to_device, sum[1] + d.bytes_to_host])
    }

    /// From device to device.
    pub fn bytes_between_devices(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes_between_devices).sum()
    }

    /// The same for `copies` devices like each of these.
    pub(super) fn times(self, copies: usize) -> Self {
        let devices = self.devices.into_iter().flat_map(|device| std::iter::repeat_n(device, copies)).collect();
        Self { tiles: self.tiles, devices, host_bytes: self.host_bytes.saturating_mul(copies as u64) }
    }

    /// Of the slowest device.
    pub fn epoch_seconds(&self) -> f64 {
        self.devices.iter().map(|device| device.epoch_seconds).fold(0.0, f64::max)
    }
}

impl CurvePoint {
    /// Both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_to_device + self.bytes_to_host
    }
}
