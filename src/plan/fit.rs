//! Chooses the layout of the parts so that a program fits the devices: how rows move, and the number of tiles.

use lapidary_kernels::Slot;
use lapidary_planner::tasks::TensorKind;

use super::{DeviceBudget, Layout, Method, Planned, does_not_fit};
use crate::error::{Error, Result};
use crate::lower::{Lowered, LoweredStep};

/// Numbers of tiles to try. Numbers in between would make little difference. A gather has up to one step per pair of
/// tiles, so larger numbers cost more than they gain.
const COUNTS: [usize; 13] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Percentage of the cost that another number of tiles must save to be chosen.
const WORTHWHILE: u64 = 5;

/// How much faster a device's memory is than its link, at least.
const FASTER: u64 = 16;

/// Percentages of a device's memory for gathers over tiles. The first with which all steps fit is used; with none, a call
/// reads one tile of sources.
const GATHER_SHARES: [u64; 3] = [85, 60, 35];

/// Maximum number of steps per device that are planned. The number of steps grows with the square of the tiles.
const MOST_STEPS: usize = 50_000;

/// The bytes that a plan copies between devices and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// For want of memory.
    pub swapped: u64,
    /// In all, with the rows and sums that parts exchange through the host.
    pub all: u64,
}

/// A layout, what was lowered with it, and whether each operation fits.
type Tried<L> = (Layout, L, Result<()>);

/// Lowers with this layout. In tiles, gathers get as much memory as fits.
fn lower_with_gathers<L: AsRef<[Lowered]>>(
    layout: Layout,
    budgets: &[DeviceBudget],
    lower: &mut impl FnMut(Layout) -> Result<L>,
) -> Result<Tried<L>> {
    // In the memory of the host, all sources are at hand.
    let apart = budgets.iter().filter(|budget| !budget.in_place).map(|budget| budget.capacity_bytes);
    let memory = apart.min().unwrap_or(u64::MAX);
    let mut with = |share: u64| -> Result<Tried<L>> {
        let gather_bytes = (u128::from(memory) * u128::from(share) / 100) as u64;
        let layout = if layout.tiles > 1 { Layout { gather_bytes, ..layout } } else { layout };
        let lowered = lower(layout)?;
        let fits = operations_fit(lowered.as_ref(), budgets);
        Ok((layout, lowered, fits))
    };
    // If not even one tile at a time fits, nothing does.
    let least = with(0)?;
    if least.2.is_err() || layout.tiles == 1 {
        return Ok(least);
    }
    for share in GATHER_SHARES {
        let lowered = with(share)?;
        if lowered.2.is_ok() {
            return Ok(lowered);
        }
    }
    Ok(least)
}

/// Returns the bytes that a plan copies.
pub(crate) type Moves<T> = fn(&T) -> Moved;

/// Lowers with the simplest useful layout that fits the devices, and plans the result. Returns what was lowered, what
/// `plan` returned for it, and the layout.
///
/// The layouts in `whole_layouts`, without tiles, are tried first. If `weighs`, the one that copies least is used, else the
/// first that fits. A program that does not fit whole is split into tiles; one that fits whole, but not without copies,
/// only if `weighs` and that copies less. The number of tiles is the one of least cost, by quick plans: the bytes copied,
/// and a share of the bytes that the steps read and write on the device. The search stops when more tiles no longer pay.
/// What is returned is planned with the whole effort of `method`.
///
/// # Errors
/// [`Error::DoesNotFit`], with the smallest sufficient capacity among the layouts that were tried; errors of `lower` and
/// `plan`. `plan` is only called if every single operation fits.
pub(crate) fn fit<L: AsRef<[Lowered]>, T>(
    budgets: &[DeviceBudget],
    whole_layouts: &[Layout],
    mut lower: impl FnMut(Layout) -> Result<L>,
    mut plan: impl FnMut(&L, &Method) -> Result<T>,
    moves: Moves<T>,
    method: &Method,
    weighs: bool,
) -> Result<(L, T, Layout)> {
    // The plan without tiles that copies least, if one fits.
    let mut whole: Option<(L, T, Layout)> = None;
    let mut refused = Refused::default();
    let mut steps = 0;
    for &layout in whole_layouts {
        let (layout, lowered, fits) = lower_with_gathers(layout, budgets, &mut lower)?;
        steps = count_steps(lowered.as_ref());
        let planned = match fits.and_then(|()| plan(&lowered, method)) {
            Ok(planned) => planned,
            Err(error @ Error::DoesNotFit { .. }) => {
                refused.note(error);
                continue;
            }
            Err(other) => return Err(other),
        };
        let new = (lowered, planned, layout);
        let best = match whole {
            Some(whole) if moves(&whole.1).all <= moves(&new.1).all => whole,
            _ => new,
        };
        if !weighs || moves(&best.1).swapped == 0 {
            return Ok(best);
        }
        whole = Some(best);
    }
    // In-place devices copy nothing, so more tiles than necessary gain nothing.
    let most_in_vain = if budgets.iter().any(|budget| !budget.in_place) { PATIENCE } else { 0 };
    let quick = method.quick();
    let mut best: Option<(u64, L, T, Layout)> = None;
    let (mut in_vain, mut last) = (0, 1);
    for tiles in COUNTS {
        let ratio = tiles as f64 / last as f64;
        let too_many = steps as f64 * ratio * ratio > MOST_STEPS as f64;
        if too_many || refused.in_vain == PATIENCE || (best.is_some() && in_vain >= most_in_vain) {
            break;
        }
        let (layout, lowered, fits) = lower_with_gathers(tiles.into(), budgets, &mut lower)?;
        (last, steps) = (tiles, count_steps(lowered.as_ref()));
        let planned = match fits.and_then(|()| plan(&lowered, &quick)) {
            Ok(planned) => planned,
            Err(error @ Error::DoesNotFit { .. }) => {
                refused.note(error);
                continue;
            }
            Err(other) => return Err(other),
        };
        let cost = moves(&planned).all.saturating_add(device_bytes(lowered.as_ref()) / FASTER);
        let pays = |&(least, ..): &(u64, L, T, Layout)| cost < least - least / 100 * WORTHWHILE;
        if best.as_ref().is_none_or(pays) {
            best = Some((cost, lowered, planned, layout));
            in_vain = 0;
        } else {
            in_vain += 1;
        }
    }
    let Some((_, lowered, planned, layout)) = best else {
        return whole.ok_or_else(|| refused.nearest.expect("some number of tiles was tried"));
    };
    let planned = if quick == *method { planned } else { plan(&lowered, method)? };
    Ok(match whole {
        Some(whole) if moves(&whole.1).all <= moves(&planned).all => whole,
        _ => (lowered, planned, layout),
    })
}

/// Returns the number of steps of an epoch on a device.
fn count_steps(devices: &[Lowered]) -> usize {
    devices[0].phases.iter().map(|phase| phase.steps.len()).sum()
}

/// Returns the bytes that the steps of all phases read and write on the devices, without regard for caches.
fn device_bytes(devices: &[Lowered]) -> u64 {
    let of_device = |lowered: &Lowered| {
        let calls = lowered.phases.iter().flat_map(|phase| &phase.steps).map(|step| &step.call);
        let slots = calls.flat_map(|call| call.reads().chain(call.writes()));
        slots.fold(0u64, |sum, slot| sum.saturating_add(lowered.tensor(slot).bytes))
    };
    devices.iter().map(of_device).fold(0, u64::saturating_add)
}

/// Number of consecutive numbers of tiles that save nothing, or need no less, after which the search stops.
const PATIENCE: usize = 2;

/// The numbers of tiles that did not fit.
#[derive(Default)]
struct Refused {
    /// The error with the smallest excess so far.
    nearest: Option<Error>,
    /// Number of errors since then.
    in_vain: usize,
}

impl Refused {
    fn note(&mut self, error: Error) {
        if self.nearest.as_ref().is_none_or(|nearest| excess(&error) < excess(nearest)) {
            (self.nearest, self.in_vain) = (Some(error), 0);
        } else {
            self.in_vain += 1;
        }
    }
}

/// Returns the bytes that the plan of the epoch, the second of the two, copies. [`fit`] compares them if the policy
/// minimises them.
pub(crate) fn epoch_bytes((_, main): &(Planned, Planned)) -> Moved {
    let plans = main.devices.iter().filter_map(|device| device.plan.as_ref());
    let bytes = plans.map(|(tasks, plan)| {
        let told = tasks.graph.tensors().iter().filter(|tensor| tensor.publish || tensor.kind == TensorKind::Fresh);
        let told = told.fold(0u64, |sum, tensor| sum.saturating_add(tensor.bytes));
        let all = plan.bytes_to_device.saturating_add(plan.bytes_to_host);
        Moved { swapped: all.saturating_sub(told), all }
    });
    bytes.fold(Moved { swapped: 0, all: 0 }, |sum, device| Moved {
        swapped: sum.swapped.saturating_add(device.swapped),
        all: sum.all.saturating_add(device.all),
    })
}

/// Returns both plans. If neither fits, returns the error with the larger excess: with equal capacities, its need is
/// enough for both.
pub(crate) fn both(a: Result<Planned>, b: Result<Planned>) -> Result<(Planned, Planned)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => Err(if excess(&b) <= excess(&a) { a } else { b }),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Returns the ratio of the bytes needed to the bytes available.
pub(super) fn excess(error: &Error) -> f64 {
    match error {
        Error::DoesNotFit { need_bytes, have_bytes, .. } => *need_bytes as f64 / (*have_bytes).max(1) as f64,
        _ => f64::INFINITY, // nothing would be enough
    }
}

/// Checks that the operands of every step fit a device. The error is that of the device that lacks most.
fn operations_fit(devices: &[Lowered], budgets: &[DeviceBudget]) -> Result<()> {
    // For in-place devices, the plan's peak is compared with the capacity after planning.
    let devices = devices.iter().zip(budgets).filter(|(_, budget)| !budget.in_place);
    let needs = devices.map(|(lowered, budget)| (largest_step_bytes(lowered), budget));
    let lacking = needs.filter(|(need_bytes, budget)| *need_bytes > budget.capacity_bytes);
    let lacking = lacking.map(|(need_bytes, budget)| does_not_fit(budget, need_bytes));
    lacking.max_by(|a, b| excess(a).total_cmp(&excess(b))).map_or(Ok(()), Err)
}

fn largest_step_bytes(lowered: &Lowered) -> u64 {
    let bytes = |step: &LoweredStep| {
        let mut slots: Vec<Slot> = step.call.reads().chain(step.call.writes()).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.iter().fold(0u64, |sum, &slot| sum.saturating_add(lowered.tensor(slot).bytes))
    };
    let steps = lowered.setup.iter().chain(lowered.phases.iter().flat_map(|phase| &phase.steps));
    steps.map(bytes).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{ExchangePath, Phase};

    struct Tried(Layout, Vec<Lowered>);

    impl AsRef<[Lowered]> for Tried {
        fn as_ref(&self) -> &[Lowered] {
            &self.1
        }
    }

    /// Returns the layout that is chosen if plans copy so many bytes, or do not fit.
    fn chosen(moves: impl Fn(Layout) -> Option<u64>) -> Layout {
        let lowered = Lowered {
            tensors: Vec::new(),
            origins: Default::default(),
            setup: Vec::new(),
            phases: vec![Phase::default()],
            exchanges: Vec::new(),
        };
        let budget = DeviceBudget { name: "a".into(), capacity_bytes: 100, in_place: false };
        let whole = [ExchangePath::Peer, ExchangePath::Staged].map(|path| Layout { path, ..Layout::from(1) });
        let plan = |tried: &Tried, _: &Method| match moves(tried.0) {
            Some(bytes) => Ok(Moved { swapped: bytes, all: bytes }),
            // More tiles need less, so that more are tried.
            None => Err(does_not_fit(&budget, 200 - tried.0.tiles as u64)),
        };
        let lower = |layout: Layout| Ok(Tried(layout, vec![lowered.clone()]));
        fit(std::slice::from_ref(&budget), &whole, lower, plan, |moved| *moved, &Method::default(), true)
            .expect("something fits")
            .2
    }

    #[test]
    fn the_first_layout_that_copies_nothing_is_chosen() {
        let peer = |layout: Layout| layout.path == ExchangePath::Peer;
        let staged = |layout: Layout| layout.path == ExchangePath::Staged;
        assert!(peer(chosen(|_| Some(0))));
        assert!(staged(chosen(|layout| (!peer(layout)).then_some(0))));
        assert!(staged(chosen(|layout| Some(if peer(layout) { 9 } else { 0 }))));
        // If all copy something, the fewest bytes count, and then the first.
        assert!(staged(chosen(|layout| Some(if staged(layout) { 5 } else { 9 }))));
        assert!(peer(chosen(|_| Some(9))));
        assert_eq!(chosen(|layout| Some(if layout.tiles == 2 { 4 } else { 9 })).tiles, 2);
        assert_eq!(chosen(|layout| (layout.tiles > 3).then_some(4)).tiles, 4);
    }
}
