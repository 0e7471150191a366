//! Chooses the layout of the parts so that a program fits the devices: how rows move, and the number of tiles.

use lapidary_kernels::Slot;
use lapidary_planner::tasks::TensorKind;

use super::count::{COUNTS, Counts, Known, Refused, at_most};
use super::{DeviceBudget, Layout, Method, Planned, does_not_fit};
use crate::error::{Error, Result};
use crate::lower::{Lowered, LoweredStep};

/// The bytes that a plan copies between devices and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// For want of memory.
    pub swapped: u64,
    /// In all, with the rows and sums that parts exchange through the host.
    pub all: u64,
}

/// Returns the bytes that a plan copies.
pub(crate) type Moves<T> = fn(&T) -> Moved;

/// What a program is fitted to.
#[derive(Clone, Copy)]
pub(crate) struct Fit<'a> {
    /// The devices.
    pub budgets: &'a [DeviceBudget],
    /// The layouts of whole parts that are possible, the best one first.
    pub whole_layouts: &'a [Layout],
    /// Settings of the planner.
    pub method: &'a Method,
    /// Whether layouts are compared by what they copy: see [`Method::weighs`].
    pub weighs: bool,
    /// What earlier fits found out, for the same programs, policy and devices but for their memory. Without it, fewer
    /// plans are made, and more memory may mean more tiles.
    pub known: Option<&'a Known>,
    /// Fewest tiles.
    pub least_tiles: usize,
}

/// Lowers with the simplest useful layout that fits the devices, and plans the result. Returns what was lowered, what
/// `plan` returned for it, and the layout.
///
/// Layouts without tiles are tried first. If the fit weighs, the one that copies least is used, else the first that fits. A
/// program that does not fit whole is split into tiles; one that fits whole, but not without copies, only if the fit weighs
/// and that copies less. The number of tiles is chosen by the predicted `seconds` of quick plans ([`Counts`]), which `plan`
/// also makes for less memory than there is. What is returned is planned with the whole effort of the method.
///
/// # Errors
/// [`Error::DoesNotFit`], with the smallest sufficient capacity among the layouts that were tried; errors of `lower` and
/// `plan`. `plan` is only called if every single operation fits.
pub(super) fn fit<L: AsRef<[Lowered]>, T>(
    to: &Fit<'_>,
    mut lower: impl FnMut(Layout) -> Result<L>,
    mut plan: impl FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
    moves: Moves<T>,
    mut seconds: impl FnMut(&L, &T) -> Result<f64>,
) -> Result<(L, T, Layout)> {
    let Fit { budgets, method, weighs, least_tiles, .. } = *to;
    let whole_layouts = if least_tiles > 1 { &[] } else { to.whole_layouts };
    // The plan without tiles that copies least, if one fits.
    let mut whole: Option<(L, T, Layout)> = None;
    let mut refused = Refused::default();
    let mut fitting = Vec::new();
    for &layout in whole_layouts {
        let lowered = lower(layout)?;
        let fits = does_fit(lowered.as_ref(), budgets);
        let planned = match fits.and_then(|()| plan(&lowered, budgets, method)) {
            Ok(planned) => planned,
            Err(error @ Error::DoesNotFit { .. }) => {
                refused.note(error);
                continue;
            }
            Err(other) => return Err(other),
        };
        fitting.push(layout);
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
    if budgets.iter().all(|budget| budget.in_place) {
        return match whole {
            Some(whole) => Ok(whole),
            None => fewest_tiles(to, lower, plan, refused),
        };
    }
    let quick = method.quick();
    let nothing = Known::default();
    let (is_quick, known) = (to.known.is_none(), to.known.unwrap_or(&nothing));
    let mut counts = Counts {
        budgets,
        whole_layouts: fitting,
        least_tiles,
        known,
        lower: &mut lower,
        plan: &mut plan,
        moves,
        seconds: &mut seconds,
        quick,
        keeps: *method == quick,
        kept: Vec::new(),
        last: None,
    };
    let choice = match if is_quick { counts.choose_quickly() } else { counts.choose() } {
        Ok(choice) => choice,
        Err(error @ Error::DoesNotFit { .. }) => {
            refused.note(error);
            return whole.ok_or_else(|| refused.nearest.expect("it was noted"));
        }
        Err(other) => return Err(other),
    };
    if let Some(whole) = whole.take_if(|_| choice.layout.tiles == 1) {
        return Ok(whole);
    }
    let Counts { kept, last, .. } = counts;
    let lowered = match last {
        Some((layout, lowered)) if layout == choice.layout => lowered,
        _ => lower(choice.layout)?,
    };
    let mut planned = match kept.into_iter().find(|(layout, _)| *layout == choice.layout) {
        Some((_, planned)) => planned,
        None => plan(&lowered, budgets, method)?,
    };
    if moves(&planned).all > choice.rate.bytes {
        // A plan for less memory is also one for more.
        let method = if method.checks { method.quick_and_checked() } else { quick };
        planned = plan(&lowered, &at_most(budgets, choice.capacity_bytes), &method)?;
    }
    Ok(match whole {
        Some(whole) if moves(&whole.1).all <= moves(&planned).all => whole,
        _ => (lowered, planned, choice.layout),
    })
}

/// Lowers with the least number of tiles whose plan fits devices in place. In the memory of the host, all sources are at
/// hand.
fn fewest_tiles<L: AsRef<[Lowered]>, T>(
    to: &Fit<'_>,
    mut lower: impl FnMut(Layout) -> Result<L>,
    mut plan: impl FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
    mut refused: Refused,
) -> Result<(L, T, Layout)> {
    for tiles in COUNTS.into_iter().filter(|tiles| *tiles >= to.least_tiles) {
        let layout = Layout::from(tiles);
        let lowered = lower(layout)?;
        match plan(&lowered, to.budgets, to.method) {
            Ok(planned) => return Ok((lowered, planned, layout)),
            Err(error @ Error::DoesNotFit { .. }) => refused.note(error),
            Err(other) => return Err(other),
        }
        if refused.is_hopeless() {
            break;
        }
    }
    Err(refused.nearest.expect("some number of tiles was tried"))
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
pub(super) fn both(a: Result<Planned>, b: Result<Planned>) -> Result<(Planned, Planned)> {
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
pub(super) fn does_fit(devices: &[Lowered], budgets: &[DeviceBudget]) -> Result<()> {
    needs_fit(&needs(devices, budgets), budgets)
}

/// Returns the bytes of the largest step of each device; 0 for a device in place, whose plan's peak is compared with the
/// capacity after planning.
pub(super) fn needs(devices: &[Lowered], budgets: &[DeviceBudget]) -> Vec<u64> {
    let need = |(lowered, budget): (&Lowered, &DeviceBudget)| {
        if budget.in_place { 0 } else { largest_step_bytes(lowered) }
    };
    devices.iter().zip(budgets).map(need).collect()
}

/// Checks that each device has the bytes that it needs. The error is that of the device that lacks most.
pub(super) fn needs_fit(needs: &[u64], budgets: &[DeviceBudget]) -> Result<()> {
    let lacking = needs.iter().zip(budgets).filter(|(need, budget)| **need > budget.capacity_bytes);
    let lacking = lacking.map(|(&need, budget)| does_not_fit(budget, need));
    lacking.max_by(|a, b| excess(a).total_cmp(&excess(b))).map_or(Ok(()), Err)
}

/// Returns the bytes of the operands of the largest step.
fn largest_step_bytes(lowered: &Lowered) -> u64 {
    let mut slots: Vec<Slot> = Vec::new();
    let bytes = |step: &LoweredStep| {
        slots.clear();
        slots.extend(step.call.reads().chain(step.call.writes()));
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
        let lowered = Lowered { phases: vec![Phase::default()], ..Lowered::default() };
        let budget = DeviceBudget { name: "a".into(), capacity_bytes: 100, in_place: false };
        let whole = [ExchangePath::Peer, ExchangePath::Staged].map(|path| Layout { path, ..Layout::from(1) });
        let plan = |tried: &Tried, _: &[DeviceBudget], _: &Method| match moves(tried.0) {
            Some(bytes) => Ok(Moved { swapped: bytes, all: bytes }),
            // More tiles need less, so that more are tried.
            None => Err(does_not_fit(&budget, 200 - tried.0.tiles as u64)),
        };
        let lower = |layout: Layout| Ok(Tried(layout, vec![lowered.clone()]));
        let (budgets, known) = (std::slice::from_ref(&budget), Known::default());
        let to = Fit {
            budgets,
            whole_layouts: &whole,
            method: &Method::default(),
            weighs: true,
            known: Some(&known),
            least_tiles: 1,
        };
        fit(&to, lower, plan, |moved| *moved, |_, moved| Ok(moved.all as f64)).expect("something fits").2
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
