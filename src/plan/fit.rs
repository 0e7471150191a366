//! Into how many tiles a program is cut so that it fits.

use lapidary_kernels::Slot;
use lapidary_planner::tasks::TensorKind;

use super::{DeviceBudget, Planned, does_not_fit};
use crate::error::{Error, Result};
use crate::lower::{Lowered, LoweredStep};

/// Numbers of tiles that are tried: there is little between two of them. A gather is a step for each pair of tiles, so more
/// would cost more than they are worth.
const COUNTS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// More tiles than fit are taken only up to this many: beyond, the steps cost more than the copies that they save.
const SPARE_TILES: usize = 16;

/// More steps a device than this are not planned. They grow with the square of the tiles.
const MOST_STEPS: usize = 50_000;

/// How many bytes a plan copies.
pub(crate) type Moves<T> = fn(&T) -> u64;

/// Lowers in as few tiles as the devices' memory allows, and plans that: what was lowered, what `plan` made of it, and the
/// tiles. What does not fit as it is is cut so far that an operation takes at most half of a device's memory, if up to twice
/// as many tiles do that: the other half then keeps what comes next, which saves more copies than larger tiles do. What fits as
/// it is, is cut so only if `moves` says that this copies less.
///
/// # Errors
/// [`Error::DoesNotFit`], with the least that any number of tiles needs, which is enough; those of `plan`.
/// # Cost
/// `plan` is asked only where no operation is by itself too large.
pub(crate) fn fit<L: AsRef<[Lowered]>, T>(
    budgets: &[DeviceBudget],
    mut lower: impl FnMut(usize) -> L,
    mut plan: impl FnMut(&L) -> Result<T>,
    moves: Option<Moves<T>>,
) -> Result<(L, T, usize)> {
    // The plan in one piece, if there is one that copies something.
    let mut whole: Option<(L, T, usize)> = None;
    let mut refused = Refused::default();
    // The least number of tiles that fits, where memory to spare would be of use.
    let mut least: Option<usize> = None;
    let mut last = (1, 0);
    for tiles in COUNTS {
        let ratio = tiles as f64 / last.0 as f64;
        let steps = last.1 as f64 * ratio * ratio;
        let enough = least.is_some_and(|least| tiles > (2 * least).min(SPARE_TILES));
        if enough || steps > MOST_STEPS as f64 || refused.in_vain == PATIENCE {
            break;
        }
        let lowered = lower(tiles);
        let devices = lowered.as_ref();
        last = (tiles, devices[0].phases.iter().map(|phase| phase.steps.len()).sum::<usize>());
        let largest: Vec<u64> = devices.iter().map(largest_step_bytes).collect();
        if let Err(error) = operations_fit(&largest, budgets, 1) {
            refused.note(error);
            continue;
        }
        // In place nothing is copied, so nothing is gained by memory to spare.
        let copies = budgets.iter().any(|budget| !budget.in_place);
        if copies && tiles > 1 && operations_fit(&largest, budgets, 2).is_err() {
            least = least.or(Some(tiles));
            continue;
        }
        match (plan(&lowered), moves) {
            (Ok(planned), Some(moves)) if tiles == 1 && moves(&planned) > 0 => {
                (whole, least) = (Some((lowered, planned, 1)), Some(SPARE_TILES / 2));
            }
            (Ok(planned), moves) => {
                let cut = (lowered, planned, tiles);
                return Ok(match (whole, moves) {
                    (Some(whole), Some(moves)) if moves(&whole.1) <= moves(&cut.1) => whole,
                    _ => cut,
                });
            }
            (Err(error @ Error::DoesNotFit { .. }), _) => refused.note(error),
            (Err(other), _) => return Err(other),
        }
    }
    if let Some(whole) = whole {
        return Ok(whole);
    }
    match (least, refused.nearest) {
        (Some(tiles), _) => {
            let lowered = lower(tiles);
            let planned = plan(&lowered)?;
            Ok((lowered, planned, tiles))
        }
        (None, nearest) => Err(nearest.expect("some number of tiles was tried")),
    }
}

/// Numbers of tiles, one after the other, that may ask for no less than fewer tiles do.
const PATIENCE: usize = 2;

/// What did not fit.
#[derive(Default)]
struct Refused {
    /// The refusal that asks for the least.
    nearest: Option<Error>,
    /// How many since then asked for no less.
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

/// Bytes that the second of two plans, that of the epoch, copies beside what parts tell each other: what [`fit`] weighs where
/// the policy looks for the fewest.
pub(crate) fn epoch_bytes((_, main): &(Planned, Planned)) -> u64 {
    let plans = main.devices.iter().filter_map(|device| device.plan.as_ref());
    let bytes = plans.map(|(tasks, plan)| {
        let told = tasks.graph.tensors().iter().filter(|tensor| tensor.publish || tensor.kind == TensorKind::Fresh);
        let told = told.fold(0u64, |sum, tensor| sum.saturating_add(tensor.bytes));
        plan.bytes_to_device.saturating_add(plan.bytes_to_host).saturating_sub(told)
    });
    bytes.sum()
}

/// Both plans; if both do not fit, what is enough for both.
pub(crate) fn both(a: Result<Planned>, b: Result<Planned>) -> Result<(Planned, Planned)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => Err(if excess(&b) <= excess(&a) { a } else { b }),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// How many times too much it is.
pub(super) fn excess(error: &Error) -> f64 {
    match error {
        Error::DoesNotFit { need_bytes, have_bytes, .. } => *need_bytes as f64 / (*have_bytes).max(1) as f64,
        _ => f64::INFINITY, // nothing would be enough
    }
}

/// Whether every step's operands, the largest of them given by device, fit by themselves into a device's memory over `share`. If not, the error is that of the
/// device that lacks most.
fn operations_fit(largest_step_bytes: &[u64], budgets: &[DeviceBudget], share: u64) -> Result<()> {
    // In place it is the plan's peak that counts, and the plan says what that is.
    let devices = largest_step_bytes.iter().zip(budgets).filter(|(_, budget)| !budget.in_place);
    let lacking = devices.filter(|(need_bytes, budget)| **need_bytes > budget.capacity_bytes / share);
    let lacking = lacking.map(|(&need_bytes, budget)| does_not_fit(budget, need_bytes));
    lacking.max_by(|a, b| excess(a).total_cmp(&excess(b))).map_or(Ok(()), Err)
}

fn largest_step_bytes(lowered: &Lowered) -> u64 {
    let bytes = |step: &LoweredStep| {
        let mut slots: Vec<Slot> = step.call.reads().collect();
        slots.extend(step.call.writes());
        slots.sort_unstable();
        slots.dedup();
        slots.iter().fold(0u64, |sum, &slot| sum.saturating_add(lowered.tensor(slot).bytes))
    };
    let steps = lowered.setup.iter().chain(lowered.phases.iter().flat_map(|phase| &phase.steps));
    steps.map(bytes).max().unwrap_or(0)
}
