//! Plans of a dry run, and what they say.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use lapidary_kernels::Slot;
use lapidary_planner::memory::Plan;

use super::{CurvePoint, DeviceForecast, PlanForecast, Residency, StepForecast};
use crate::lower::{Crossing, Exchange, Layout, Lifetime, Lowered};
use crate::plan::{Action, LoweredParts, Planned, PlannedDevice, Rates, Script, Timeline, Variant};

/// The lowered programs with a number of tiles that fits, and the plans of the setup and the epoch.
pub(super) struct PlannedParts {
    pub(super) lowered: LoweredParts,
    pub(super) planned: (Planned, Planned),
    pub(super) variant: Variant,
    pub(super) layout: Layout,
}

impl PlannedParts {
    fn devices(&self) -> impl Iterator<Item = (&Lowered, &PlannedDevice, &PlannedDevice)> {
        let (setup, main) = &self.planned;
        let devices = self.lowered.parts().iter().zip(&setup.devices).zip(&main.devices);
        devices.map(|((lowered, setup), main)| (lowered, setup, main))
    }

    /// Returns the largest peak of a device in bytes, including the setup.
    pub(super) fn peak_bytes(&self) -> u64 {
        let plans = self.devices().flat_map(|(_, setup, main)| [&setup.plan, &main.plan]).flatten();
        plans.map(|(_, plan)| plan.peak_bytes).max().unwrap_or(0)
    }

    /// Whether sums move in place of rows.
    fn folds(&self) -> bool {
        let is_fold = |exchange: &Exchange| match exchange {
            Exchange::Halo { crossing, .. } | Exchange::Fetch { crossing, .. } => matches!(crossing, Crossing::Fold(_)),
            Exchange::Sum { .. } | Exchange::Reduce { .. } => false,
        };
        self.lowered.parts()[0].exchanges.iter().any(is_fold)
    }

    /// Returns the plan as a point of the curve, for `copies` equal devices per planned device.
    pub(super) fn point(&self, rates: &Rates, device_memory: u64, copies: usize) -> CurvePoint {
        let (tiles, strips, copies) = (self.layout.tiles, self.variant.strips, copies as u64);
        let none = CurvePoint {
            device_memory,
            tiles,
            strips,
            bytes_to_device: 0,
            bytes_to_host: 0,
            bytes_between_devices: 0,
            epoch_seconds: 0.0,
        };
        self.devices().fold(none, |sum, (lowered, _, main)| {
            let script = main.script();
            CurvePoint {
                bytes_to_device: sum.bytes_to_device + copies * script.bytes_to_device,
                bytes_to_host: sum.bytes_to_host + copies * script.bytes_to_host,
                bytes_between_devices: sum.bytes_between_devices + copies * script.bytes_between_devices,
                epoch_seconds: sum.epoch_seconds.max(Timeline::new(rates, lowered, &script).train_seconds()),
                ..sum
            }
        })
    }

    /// Returns what is when on the device with the highest peak of the epoch; of equal ones, the first.
    pub(super) fn residency(&self) -> Option<Residency> {
        let peak = |main: &PlannedDevice| main.plan.as_ref().map_or(0, |(_, plan)| plan.peak_bytes);
        let devices = self.devices().enumerate();
        let (device, (lowered, setup, main)) = devices.min_by_key(|(_, (_, _, main))| Reverse(peak(main)))?;
        Residency::new(device, lowered, [setup, main])
    }

    pub(super) fn forecast(&self, rates: &Rates) -> PlanForecast {
        let mut host_bytes = 0u64;
        let device = |(lowered, setup, main): (&Lowered, &PlannedDevice, &PlannedDevice)| {
            let script = main.script();
            host_bytes = host_bytes.saturating_add(bytes_on_host(lowered, &script));
            let timeline = Timeline::new(rates, lowered, &script);
            let setup_peak = setup.plan.as_ref().map_or(0, |(_, plan)| plan.peak_bytes);
            let plan = main.plan.as_ref().map(|(_, plan)| plan);
            let names = |slots: &[Slot]| slots.iter().map(|s| lowered.tensor(*s).name.to_string()).collect();
            let step = |action: &Action| StepForecast {
                op: action.name.to_string(),
                store: names(&action.store),
                evict: names(&action.evict),
                load: names(&[&action.load[..], &action.ahead].concat()),
            };
            DeviceForecast {
                exact: plan.is_none_or(|plan| plan.exact),
                bytes_to_device: script.bytes_to_device,
                bytes_to_host: script.bytes_to_host,
                bytes_between_devices: script.bytes_between_devices,
                peak_bytes: script.peak_bytes.max(setup_peak),
                lower_bound_bytes: plan.map_or(0, |plan| plan.lower_bound_bytes),
                bound_to_order: plan.is_some_and(Plan::is_bound_to_order),
                epoch_seconds: timeline.train_seconds(),
                eval_seconds: timeline.eval_seconds,
                spread: rates.spread(lowered, &script),
                steps: script.actions.iter().map(step).collect(),
            }
        };
        let devices = self.devices().map(device).collect();
        PlanForecast {
            tiles: self.layout.tiles,
            strips: self.variant.strips,
            exchange: self.layout.path,
            folds: self.folds(),
            devices,
            host_bytes,
            residency: None,
        }
    }
}

/// Returns the bytes that the host holds for one device: lasting tensors, received tensors, and tensors that are copied
/// to the host.
fn bytes_on_host(lowered: &Lowered, script: &Script) -> u64 {
    let copied = script.actions.iter().flat_map(|a| a.store.iter().chain(&a.publish)).chain(&script.finish[0]);
    let stored: BTreeSet<_> = copied.collect();
    let steps = lowered.phases.iter().flat_map(|phase| &phase.steps);
    let read: BTreeSet<Slot> = steps.flat_map(|step| step.call.reads()).collect();
    let on_host = lowered.tensors.iter().enumerate().filter(|(i, tensor)| match tensor.kind {
        // What the setup makes only for itself stays on the device.
        Lifetime::Constant => tensor.contents.is_some() || read.contains(&Slot(*i as u32)),
        Lifetime::State | Lifetime::Received | Lifetime::Batch => true,
        Lifetime::Local => stored.contains(&Slot(*i as u32)),
    });
    on_host.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.bytes))
}
