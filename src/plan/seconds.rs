//! Predicts the time of kernel calls, copies and sequences.

use std::collections::BTreeMap;

use lapidary_cost_model::{Estimate, KernelTimes, Profile, Quantity};
use lapidary_kernels::{Call, Price, Slot};

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

/// Names under which the time between two calls is learned: if nothing is copied, and if something is.
pub(crate) const BETWEEN: [&str; 2] = ["between calls", "between calls and copies"];

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
    /// Returns the rates of a profile alone. Copies run beside kernels.
    pub fn of_profile(profile: Profile) -> Self {
        Self { profile, measured: None, sharing: 1.0, shares_cores: false }
    }

    /// Returns the rates of measured kernels. `sharing` devices share the cores.
    pub(crate) fn measured(profile: Profile, times: KernelTimes, locality: Locality, sharing: u64) -> Self {
        Self { profile, measured: Some((times, locality)), sharing: sharing.max(1) as f64, shares_cores: false }
    }

    /// Sets whether copies use the cores that compute.
    pub(crate) fn sharing_cores(self, shares_cores: bool) -> Self {
        Self { shares_cores, ..self }
    }

    /// Returns the predicted time of a kernel call, and the name of its kernel.
    pub(crate) fn call(&self, lowered: &Lowered, call: &Call) -> (String, Estimate) {
        let known = self.measured.as_ref().map(|(times, locality)| {
            let (name, work) = kernel_work(lowered, call, locality);
            let cached_bytes = work.get(Quantity::GatheredBytes) - work.get(Quantity::PastLastCache);
            (times.predict(&name, &work), name, cached_bytes)
        });
        match known {
            Some((Some(estimate), name, _)) => (name, self.shared(estimate)),
            Some((None, name, cached_bytes)) => {
                (name, self.unmeasured(call_seconds(&self.profile, lowered, call, cached_bytes)))
            }
            None => (String::new(), self.unmeasured(call_seconds(&self.profile, lowered, call, 0.0))),
        }
    }

    /// Returns the predicted seconds of a kernel call.
    pub(crate) fn call_s(&self, lowered: &Lowered, call: &Call) -> f64 {
        match self.measured {
            Some(_) => self.call(lowered, call).1.seconds,
            None => call_seconds(&self.profile, lowered, call, 0.0),
        }
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
        let Some((times, _)) = &self.measured else { return 0.0 };
        let name = BETWEEN[usize::from(!script.copies_nothing())];
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
        for action in script.actions.iter().filter(|action| !action.call.fetches()) {
            let (name, Estimate { seconds, spread }) = self.call(lowered, &action.call);
            *by_kernel.entry(name).or_default() += seconds * spread;
            sum += seconds;
        }
        let squares: f64 = by_kernel.values().map(|deviation| deviation * deviation).sum();
        if sum > 0.0 { (squares / (sum * sum) + MACHINE * MACHINE).sqrt() } else { UNMEASURED }
    }

    fn shared(&self, Estimate { seconds, spread }: Estimate) -> Estimate {
        let constant = self.profile.launch_s.min(seconds);
        Estimate { seconds: constant + self.sharing * (seconds - constant), spread }
    }

    fn unmeasured(&self, seconds: f64) -> Estimate {
        self.shared(Estimate { seconds, spread: UNMEASURED })
    }
}

/// Returns the seconds of one kernel call that a profile predicts, if a gather finds so many bytes in the last cache.
fn call_seconds(profile: &Profile, lowered: &Lowered, call: &Call, cached_bytes: f64) -> f64 {
    let size = |size: usize| size as u64;
    let bytes = |slots: &mut dyn Iterator<Item = Slot>| slots.map(|slot| lowered.tensor(slot).bytes).sum::<u64>();
    let steps = &call.inputs[call.head_inputs().len()..];
    let head_s = match call.price() {
        // The profile counts columns of f32, so the width is the number of f32 values with the bytes of a row.
        Price::Gather { block, edges, row_bytes, .. } => {
            // A window of the sources reads the sum of those before.
            let sum = profile.elementwise_s(bytes(&mut call.sum.iter().map(|mat| mat.slot))) - profile.elementwise_s(0);
            let gather_s = profile.gather_s(size(block.rows), edges, size(row_bytes.div_ceil(4)));
            let saved_s = 1.0 / profile.gather_bytes_per_s - 1.0 / profile.cached_gather_bytes_per_s;
            gather_s + sum - cached_bytes * saved_s.max(0.0)
        }
        Price::Product { rows, k, m } => profile.linear_s(size(rows), size(k), size(m)),
        Price::Rows { .. } => {
            // The sum that the call continues is not counted. Operands of row steps are counted below.
            let mut beside = call.sum.iter().chain(steps).map(|mat| mat.slot);
            profile.elementwise_s(bytes(&mut call.reads().chain(call.writes())) - bytes(&mut beside))
        }
        Price::Nothing => 0.0,
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
    let of_device = |(lowered, device): (&Lowered, &PlannedDevice)| {
        let timeline = Timeline::new(&rates, lowered, &device.script());
        if nominal.shares_cores { timeline.sum_s() } else { timeline.seconds }
    };
    lowered.iter().zip(&planned.devices).map(of_device).fold(0.0, f64::max)
}
