//! Chooses the layout of the parts so that a program fits the devices: how rows move, and the number of tiles.

use lapidary_kernels::Slot;
use lapidary_planner::tasks::TensorKind;

use super::{DeviceBudget, Layout, Planned, does_not_fit};
use crate::error::{Error, Result};
use crate::lower::{Lowered, LoweredStep};

/// Numbers of tiles to try. Numbers in between would make little difference. A gather has one step per pair of tiles,
/// so larger numbers cost more than they gain.
const COUNTS: [usize; 13] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Maximum number of tiles if fewer would fit too. Beyond it, the steps cost more than the copies that they save.
const SPARE_TILES: usize = 16;

/// Percentages of a device's memory for gathers over tiles. The first with which all steps fit is used; with the last, a
/// call reads one tile of sources.
const GATHER_SHARES: [u64; 4] = [85, 60, 35, 0];

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

/// Lowers with this layout. In tiles, gathers get as much memory as fits. Returns the layout used, what was lowered, and
/// whether each operation fits.
fn lower_with_gathers<L: AsRef<[Lowered]>>(
    layout: Layout,
    budgets: &[DeviceBudget],
    lower: &mut impl FnMut(Layout) -> Result<L>,
) -> Result<(Layout, L, Result<()>)> {
    // In the memory of the host, all sources are at hand.
    let apart = budgets.iter().filter(|budget| !budget.in_place).map(|budget| budget.capacity_bytes);
    let memory = apart.min().unwrap_or(u64::MAX);
    for share in GATHER_SHARES {
        let gather_bytes = (u128::from(memory) * u128::from(share) / 100) as u64;
        let layout = if layout.tiles > 1 { Layout { gather_bytes, ..layout } } else { layout };
        let lowered = lower(layout)?;
        let fits = operations_fit(&largest_steps(lowered.as_ref(), true), budgets, 1);
        if fits.is_ok() || layout.tiles == 1 || share == 0 {
            return Ok((layout, lowered, fits));
        }
    }
    unreachable!("the last share is always used")
}

/// Returns the bytes that a plan copies.
pub(crate) type Moves<T> = fn(&T) -> Moved;

/// Lowers with the simplest useful layout that fits the devices, and plans the result. Returns what was lowered, what
/// `plan` returned for it, and the layout.
///
/// The layouts in `whole_layouts`, without tiles, are tried first. A program that does not fit whole is split into tiles
/// until an operation takes at most half of a device's memory, if at most twice as many tiles as necessary achieve this;
/// of the tiles that a gather reads, only the first counts. The other half then keeps tensors for the next operations,
/// which saves more copies than larger tiles do. A program that fits whole is split in the same way only if `moves` says
/// that this copies less.
///
/// # Errors
/// [`Error::DoesNotFit`], with the smallest sufficient capacity among the layouts that were tried; errors of `lower` and
/// `plan`. `plan` is only called if every single operation fits.
pub(crate) fn fit<L: AsRef<[Lowered]>, T>(
    budgets: &[DeviceBudget],
    whole_layouts: &[Layout],
    mut lower: impl FnMut(Layout) -> Result<L>,
    mut plan: impl FnMut(&L) -> Result<T>,
    moves: Option<Moves<T>>,
) -> Result<(L, T, Layout)> {
    // The plan without tiles that copies least, if one fits.
    let mut whole: Option<(L, T, Layout)> = None;
    let mut refused = Refused::default();
    // The layout with the fewest tiles that fits, if more tiles could leave memory to spare.
    let mut tightest: Option<Layout> = None;
    let mut last = (1, 0);
    let layouts = whole_layouts.iter().copied().chain(COUNTS.map(Layout::from));
    for layout in layouts {
        let tiles = layout.tiles;
        let ratio = tiles as f64 / last.0 as f64;
        let steps = last.1 as f64 * ratio * ratio;
        let least = if whole.is_some() { Some(SPARE_TILES / 2) } else { tightest.map(|layout| layout.tiles) };
        let enough = least.is_some_and(|least| tiles > (2 * least).min(SPARE_TILES));
        if enough || steps > MOST_STEPS as f64 || refused.in_vain == PATIENCE {
            break;
        }
        let (layout, lowered, fits) = lower_with_gathers(layout, budgets, &mut lower)?;
        let devices = lowered.as_ref();
        last = (tiles, devices[0].phases.iter().map(|phase| phase.steps.len()).sum::<usize>());
        if let Err(error) = fits {
            refused.note(error);
            continue;
        }
        // In-place devices copy nothing, so spare memory gains nothing.
        let copies = budgets.iter().any(|budget| !budget.in_place);
        if copies && tiles > 1 && operations_fit(&largest_steps(devices, false), budgets, 2).is_err() {
            tightest = tightest.or(Some(layout));
            continue;
        }
        match (plan(&lowered), moves) {
            (Ok(planned), moves) => {
                let new = (lowered, planned, layout);
                let best = match (whole, moves) {
                    (Some(whole), Some(moves)) if moves(&whole.1).all <= moves(&new.1).all => whole,
                    _ => new,
                };
                if tiles > 1 || moves.is_none_or(|moves| moves(&best.1).swapped == 0) {
                    return Ok(best);
                }
                whole = Some(best);
            }
            (Err(error @ Error::DoesNotFit { .. }), _) => refused.note(error),
            (Err(other), _) => return Err(other),
        }
    }
    if let Some(whole) = whole {
        return Ok(whole);
    }
    match (tightest, refused.nearest) {
        (Some(layout), _) => {
            let lowered = lower(layout)?;
            let planned = plan(&lowered)?;
            Ok((lowered, planned, layout))
        }
        (None, nearest) => Err(nearest.expect("some number of tiles was tried")),
    }
}

/// Number of consecutive tile counts without a smaller requirement after which the search stops.
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

/// Checks that the operands of every step fit into `1 / share` of a device's memory; `largest_step_bytes` is given by
/// device. The error is that of the device that lacks most.
fn operations_fit(largest_step_bytes: &[u64], budgets: &[DeviceBudget], share: u64) -> Result<()> {
    // For in-place devices, the plan's peak is compared with the capacity after planning.
    let devices = largest_step_bytes.iter().zip(budgets).filter(|(_, budget)| !budget.in_place);
    let lacking = devices.filter(|(need_bytes, budget)| **need_bytes > budget.capacity_bytes / share);
    let lacking = lacking.map(|(&need_bytes, budget)| does_not_fit(budget, need_bytes));
    lacking.max_by(|a, b| excess(a).total_cmp(&excess(b))).map_or(Ok(()), Err)
}

/// Returns the bytes of each device's largest step. Without `all_sources`, only the first of the tiles that a gather reads
/// counts.
fn largest_steps(devices: &[Lowered], all_sources: bool) -> Vec<u64> {
    devices.iter().map(|lowered| largest_step_bytes(lowered, all_sources)).collect()
}

fn largest_step_bytes(lowered: &Lowered, all_sources: bool) -> u64 {
    let bytes = |step: &LoweredStep| {
        let left_out = if all_sources { &[][..] } else { &step.call.more_sources };
        let counts = |slot: &Slot| left_out.iter().all(|tile| tile.slot != *slot);
        let mut slots: Vec<Slot> = step.call.reads().filter(counts).collect();
        slots.extend(step.call.writes());
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
        let plan = |tried: &Tried| match moves(tried.0) {
            Some(bytes) => Ok(Moved { swapped: bytes, all: bytes }),
            // More tiles need less, so that more are tried.
            None => Err(does_not_fit(&budget, 200 - tried.0.tiles as u64)),
        };
        let lower = |layout: Layout| Ok(Tried(layout, vec![lowered.clone()]));
        fit(std::slice::from_ref(&budget), &whole, lower, plan, Some(|moved| *moved)).expect("something fits").2
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
