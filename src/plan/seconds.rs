//! Predicts the time of kernel calls, copies and sequences.

use std::collections::BTreeMap;

use lapidary_cost_model::{Estimate, KernelTimes, Profile, Quantity};
use lapidary_kernels::{Call, Price, Slot};

use super::on_gpu;
use super::timeline::Timeline;
use super::work::{Locality, between_work, copy_work, kernel_work};
use super::{Planned, PlannedDevice, Script};
use crate::lower::Lowered;
use crate::profile::Nominal;

/// Spread of what only a profile predicts, as a standard deviation of logarithms.
const UNMEASURED: f64 = 0.5;

/// Spread of the whole machine from one hour to the next.
const MACHINE: f64 = 0.08;

/// Names under which the times of copies are learned.
pub(crate) const COPY_IN: &str = "copy to the device";
pub(crate) const COPY_OUT: &str = "copy to the host";

/// Name under which the time between two calls is learned, if one thread makes them one after the other, without copies.
const BETWEEN_CALLS: &str = "between calls";
/// The same for other calls.
pub(crate) const BETWEEN_CALLS_AND_COPIES: &str = "between calls and copies";

/// Returns the name under which the time between two calls of a script is learned.
pub(crate) fn between_name(script: &Script, locality: &Locality) -> &'static str {
    let is_one_thread = locality.is_in_place() && script.copies_nothing();
    if is_one_thread { BETWEEN_CALLS } else { BETWEEN_CALLS_AND_COPIES }
}

/// What predicts times on a device: the measured times of its kernels, and its profile for those that were not measured.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The device's profile.
    pub profile: Profile,
    measured: Option<(KernelTimes, Locality)>,
    /// The number of devices that share this device's cores. Each gets its share of the time.
    sharing: f64,
    /// Whether copies use the cores that compute. They then hide nothing.
    pub(crate) shares_cores: bool,
}

impl Rates {
    /// Returns the rates of a profile alone, of a device that shares its cores with nothing.
    pub fn of_profile(profile: Profile) -> Self {
        Self { profile, measured: None, sharing: 1.0, shares_cores: false }
    }

    /// Returns the rates of measured kernels, as far as they are known.
    pub(crate) fn measured(profile: Profile, times: KernelTimes, locality: Locality) -> Self {
        Self { measured: Some((times, locality)), ..Self::of_profile(profile) }
    }

    /// Makes the device one of so many that share the cores of a host, which also copy.
    pub(crate) fn on_shared_cores(self, devices: usize) -> Self {
        Self { sharing: devices.max(1) as f64, shares_cores: true, ..self }
    }

    /// Returns the predicted time of a kernel call, and the name of its kernel; an empty name if no kernel was measured.
    pub(crate) fn call(&self, lowered: &Lowered, call: &Call) -> (String, Estimate) {
        let by_profile = |cached_share, gather_s| Estimate {
            seconds: call_seconds(&self.profile, lowered, call, cached_share, gather_s),
            spread: UNMEASURED,
        };
        let Some((times, locality)) = &self.measured else {
            return (String::new(), self.shared(by_profile(0.0, None)));
        };
        let (name, work) = kernel_work(lowered, call, locality);
        let cached_share = || match work.get(Quantity::GatheredBytes) {
            0.0 => 0.0,
            gathered => 1.0 - work.get(Quantity::PastLastCache) / gathered,
        };
        let gather_s = || on_gpu::gather_s(&self.profile, lowered, call, locality);
        let estimate = times.predict(&name, &work).unwrap_or_else(|| by_profile(cached_share(), gather_s()));
        (name, self.shared(estimate))
    }

    /// Returns the predicted seconds of a copy from the host to the device.
    pub(crate) fn copy_in_s(&self, bytes: u64) -> f64 {
        self.copy(COPY_IN, bytes).unwrap_or_else(|| self.profile.copy_in_s(bytes))
    }

    /// Returns the predicted seconds of a copy from the device to the host.
    pub(crate) fn copy_out_s(&self, bytes: u64) -> f64 {
        self.copy(COPY_OUT, bytes).unwrap_or_else(|| self.profile.copy_out_s(bytes))
    }

    /// Returns the predicted seconds between two calls of a script; 0 if they are not known.
    pub(crate) fn between_s(&self, lowered: &Lowered, script: &Script) -> f64 {
        let Some((times, locality)) = &self.measured else { return 0.0 };
        let name = between_name(script, locality);
        times.predict(name, &between_work(lowered, script)).map_or(0.0, |estimate| estimate.seconds)
    }

    fn copy(&self, name: &str, bytes: u64) -> Option<f64> {
        let (times, locality) = self.measured.as_ref()?;
        Some(times.predict(name, &copy_work(bytes, locality))?.seconds)
    }

    /// Returns the spread of the predicted time of a script, as a standard deviation of logarithms. The calls of a kernel are
    /// wrong alike, different kernels independently of each other.
    pub(crate) fn spread(&self, lowered: &Lowered, script: &Script) -> f64 {
        let (mut by_kernel, mut sum) = (BTreeMap::<String, f64>::new(), 0.0);
        for action in script.actions.iter().filter(|action| !action.call.is_exchange()) {
            let (name, Estimate { seconds, spread }) = self.call(lowered, &action.call);
            *by_kernel.entry(name).or_default() += seconds * spread;
            sum += seconds;
        }
        let squares: f64 = by_kernel.values().map(|deviation| deviation * deviation).sum();
        if sum > 0.0 { (squares / (sum * sum) + MACHINE * MACHINE).sqrt() } else { UNMEASURED }
    }

    fn shared(&self, Estimate { seconds, spread }: Estimate) -> Estimate {
        let constant_s = self.profile.launch_s.min(seconds);
        Estimate { seconds: seconds + (self.sharing - 1.0) * (seconds - constant_s), spread }
    }
}

/// Returns the seconds of one kernel call that a profile predicts, if a gather finds this share of its rows in the last cache.
/// `gather_s` are the seconds of the gather itself, if they are known better.
fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call, cached_share: f64, gather_s: Option<f64>) -> f64 {
    let size = |size: usize| size as u64;
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let steps = &call.inputs[call.head_inputs().len()..];
    let head_s = match (call.price(), gather_s) {
        (Price::Gather { .. }, Some(gather_s)) => gather_s,
        // The profile counts columns of f32, so the width is the number of f32 values with the bytes of a row.
        (Price::Gather { block, edges, row_bytes, .. }, None) => {
            // A window of the sources reads the sum of those before.
            let sum = profile.elementwise_s(bytes(&mut call.sum.iter().map(|mat| mat.slot))) - profile.elementwise_s(0);
            let gather_s = profile.gather_s(size(block.rows), edges, size(row_bytes.div_ceil(4)));
            let saved_s = 1.0 / profile.gather_bytes_per_s - 1.0 / profile.cached_gather_bytes_per_s;
            gather_s + sum - cached_share * edges as f64 * row_bytes as f64 * saved_s.max(0.0)
        }
        (Price::Product { rows, k, m }, _) => profile.linear_s(size(rows), size(k), size(m)),
        (Price::Rows { .. }, _) => {
            // The sum that the call continues is not counted. Operands of row steps are counted below.
            let mut beside = call.sum.iter().chain(steps).map(|mat| mat.slot);
            profile.elementwise_s(bytes(&mut call.reads().chain(call.writes())) - bytes(&mut beside))
        }
        (Price::Nothing, _) => 0.0,
    };
    // The launch is already counted in `head_s`, so it is subtracted here.
    let step_bytes = bytes(&mut steps.iter().map(|mat| mat.slot));
    if call.op.steps().is_empty() {
        head_s
    } else {
        head_s + profile.elementwise_s(step_bytes) - profile.elementwise_s(0)
    }
}

/// Returns the predicted seconds of a sequence, to compare plans: those of the slowest device. `lowered` are its programs
/// by device.
pub(crate) fn planned_seconds(nominal: &Nominal, lowered: &[Lowered], planned: &Planned) -> f64 {
    let rates = Rates::of_profile(nominal.profile.clone());
    let rates = if nominal.shares_cores { rates.on_shared_cores(1) } else { rates };
    let of_device =
        |(lowered, device): (&Lowered, &PlannedDevice)| Timeline::new(&rates, lowered, &device.script()).seconds;
    lowered.iter().zip(&planned.devices).map(of_device).fold(0.0, f64::max)
}
