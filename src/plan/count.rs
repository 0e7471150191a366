//! Chooses the number of tiles, such that more memory never means more tiles or a higher cost.
//!
//! Numbers of tiles are compared at fixed capacities ([`grid_down`]), which do not depend on the memory at hand, by quick
//! plans. A number of tiles is *good* at a capacity if neither of the next two larger ones costs less there. The
//! choice for some memory is the least number that is good there or at a fixed capacity below. With more
//! memory, there are more fixed capacities at which a number can be good, so from one to the next the choice never grows;
//! and where it falls, the cost does not grow. For one number of tiles, the best plan of a capacity is at least as
//! good as that of the fixed capacity below, because that is kept ([`Counts::best`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fit::{Moves, needs, needs_fit};
use super::{DeviceBudget, Layout, Method, does_not_fit};
use crate::error::{Error, Result};
use crate::lower::Lowered;

/// Numbers of tiles to try. Numbers in between would make little difference. A gather has up to one step per pair of
/// tiles, so larger numbers cost more than they gain.
pub(super) const COUNTS: [usize; 13] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Times whose ratio is up to this much above 1 are alike.
const ALIKE: f64 = 0.02;

/// A number of tiles is compared with so many of the next larger ones.
const AHEAD: usize = 2;

/// Percentages of a device's memory for gathers over tiles. The first with which all steps fit is used; with none, a call
/// reads one tile of sources.
const GATHER_SHARES: [u64; 3] = [85, 60, 35];

/// Maximum number of steps per device that are planned. The number of steps grows with the square of the tiles.
const MOST_STEPS: usize = 50_000;

/// Number of consecutive numbers of tiles that need no less memory than one before, after which the search stops.
const PATIENCE: usize = 2;

/// What is known about layouts of the same programs, under the same policy. Fits for several capacities share it.
#[derive(Default)]
pub(crate) struct Known(Mutex<Facts>);

#[derive(Default)]
struct Facts {
    sizes: BTreeMap<Layout, LayoutSizes>,
    /// The quick plan of a layout at a capacity; `None` if there is none.
    rates: BTreeMap<(Layout, u64), Option<Rate>>,
    /// The best layout with a number of tiles at a capacity.
    best: BTreeMap<(usize, u64), Option<Choice>>,
}

impl Known {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What lowering tells about a layout.
#[derive(Clone)]
struct LayoutSizes {
    /// Bytes of the largest step of each device; 0 for a device in place.
    need_bytes: Arc<[u64]>,
    /// Steps of an epoch on a device.
    steps: usize,
}

/// What a quick plan costs. Of plans that take about as long, the one that copies fewer bytes is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rate {
    /// The logarithm of the predicted time of an epoch, in units of [`ALIKE`].
    time: i64,
    /// Bytes copied between devices and the host.
    pub bytes: u64,
}

/// A layout, and the capacity at which its quick plan was best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub layout: Layout,
    pub capacity_bytes: u64,
    pub rate: Rate,
}

/// Lowers and plans to compare layouts.
pub(super) struct Counts<'a, L, T, F, P, S> {
    pub budgets: &'a [DeviceBudget],
    /// Layouts without tiles that fit the devices.
    pub whole_layouts: Vec<Layout>,
    /// Fewest tiles.
    pub least_tiles: usize,
    pub known: &'a Known,
    pub lower: F,
    pub plan: P,
    pub moves: Moves<T>,
    /// Predicts the seconds of a plan.
    pub seconds: S,
    pub quick: Method,
    /// Whether quick plans for the memory at hand are kept, because one of them will be wanted.
    pub keeps: bool,
    /// The quick plans for the memory at hand that were made and kept.
    pub kept: Vec<(Layout, T)>,
    /// What was lowered last.
    pub last: Option<(Layout, L)>,
}

impl<L, T, F, P, S> Counts<'_, L, T, F, P, S>
where
    L: AsRef<[Lowered]>,
    F: FnMut(Layout) -> Result<L>,
    P: FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
    S: FnMut(&L, &T) -> Result<f64>,
{
    /// Returns the least memory of the devices that have their own.
    fn memory(&self) -> u64 {
        self.budgets.iter().filter(|budget| !budget.in_place).map(|b| b.capacity_bytes).min().unwrap_or(u64::MAX)
    }

    /// Returns the choice. The error is the nearest one of [`Error::DoesNotFit`] if no number of tiles fits.
    pub fn choose(&mut self) -> Result<Choice> {
        let memory = self.memory();
        let mut counts = vec![1];
        let mut refused = Refused::default();
        for at in 0.. {
            // Numbers are lowered only as far as they are compared.
            while counts.len() <= at + AHEAD && self.adds_one(&mut counts)? {}
            let Some(&tiles) = counts.get(at) else { break };
            if tiles < self.least_tiles {
                continue;
            }
            if tiles > 1
                && let Err(error) = self.fits(Layout { gather_bytes: 0, ..tiles.into() })
            {
                refused.note(error);
                if refused.is_hopeless() {
                    break;
                }
                continue;
            }
            let below = grid_down(memory).skip_while(|point| *point == memory);
            for capacity in std::iter::once(memory).chain(below) {
                if !self.has_room(tiles, capacity)? {
                    break;
                }
                let Some(best) = self.best(tiles, capacity)? else { break };
                if self.is_good(best, capacity, &counts[at + 1..])? {
                    return Ok(self.best(tiles, memory)?.expect("it fits less memory"));
                }
            }
        }
        // The largest number that fits is good, as it is compared with none. If it has no plan, its sizes overflow.
        Err(refused.nearest.unwrap_or_else(|| does_not_fit(&self.budgets[0], u64::MAX)))
    }

    /// Returns the number of tiles that costs least with the memory at hand. It takes far fewer plans than [`Counts::choose`]. The error is as there.
    pub fn choose_quickly(&mut self) -> Result<Choice> {
        let memory = self.memory();
        let mut counts = vec![1];
        let mut refused = Refused::default();
        let mut best: Option<Choice> = None;
        let (mut at, mut in_vain) = (0, 0);
        while in_vain < AHEAD && !refused.is_hopeless() {
            let Some(&tiles) = counts.get(at) else { break };
            (at, in_vain) = (at + 1, in_vain + usize::from(best.is_some()));
            self.adds_one(&mut counts)?;
            if tiles < self.least_tiles {
                continue;
            }
            if tiles > 1
                && let Err(error) = self.fits(Layout { gather_bytes: 0, ..tiles.into() })
            {
                refused.note(error);
                continue;
            }
            for layout in self.layouts(tiles, memory)? {
                let Some(rate) = self.rate(layout, memory)? else { continue };
                if best.is_none_or(|best| rate < best.rate) {
                    best = Some(Choice { layout, capacity_bytes: memory, rate });
                    in_vain = 0;
                }
            }
        }
        best.ok_or_else(|| refused.nearest.unwrap_or_else(|| does_not_fit(&self.budgets[0], u64::MAX)))
    }

    /// Adds the next number of tiles, unless there would be too many steps. Returns whether there is one.
    fn adds_one(&mut self, counts: &mut Vec<usize>) -> Result<bool> {
        let Some(&tiles) = COUNTS.get(counts.len() - 1) else { return Ok(false) };
        if counts.len() > 1 {
            let last = counts[counts.len() - 1];
            let steps = self.sizes(Layout { gather_bytes: 0, ..last.into() })?.steps;
            let ratio = tiles as f64 / last as f64;
            if steps as f64 * ratio * ratio > MOST_STEPS as f64 {
                return Ok(false);
            }
        }
        counts.push(tiles);
        Ok(true)
    }

    /// Whether none of the next larger numbers of tiles costs less at this capacity.
    fn is_good(&mut self, best: Choice, capacity: u64, larger: &[usize]) -> Result<bool> {
        for &more in larger.iter().take(AHEAD) {
            if self.has_room(more, capacity)?
                && let Some(other) = self.best(more, capacity)?
                && other.rate < best.rate
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the best layout with this number of tiles at this capacity, by quick plans at this capacity and at those
    /// of the grid below. `None` if none fits.
    fn best(&mut self, tiles: usize, capacity: u64) -> Result<Option<Choice>> {
        if let Some(known) = self.known.facts().best.get(&(tiles, capacity)) {
            return Ok(*known);
        }
        let before = match grid_down(capacity.saturating_sub(1)).next() {
            Some(smaller) if self.has_room(tiles, smaller)? => self.best(tiles, smaller)?,
            _ => None,
        };
        let mut layouts = self.layouts(tiles, capacity)?;
        layouts.extend(before.map(|before| before.layout));
        layouts.dedup();
        let mut best = before;
        for layout in layouts {
            let Some(rate) = self.rate(layout, capacity)? else { continue };
            if best.is_none_or(|best| rate <= best.rate) {
                best = Some(Choice { layout, capacity_bytes: capacity, rate });
            }
        }
        self.known.facts().best.insert((tiles, capacity), best);
        Ok(best)
    }

    /// Whether some layout with this number of tiles fits a capacity.
    fn has_room(&mut self, tiles: usize, capacity: u64) -> Result<bool> {
        if tiles > 1 {
            return self.fits_at(Layout { gather_bytes: 0, ..tiles.into() }, capacity);
        }
        let layouts = self.whole_layouts.clone();
        layouts.into_iter().try_fold(false, |any, layout| Ok(any || self.fits_at(layout, capacity)?))
    }

    /// Returns the layouts to try with a number of tiles: those of whole parts; or the one in which gathers get most
    /// memory.
    fn layouts(&mut self, tiles: usize, capacity: u64) -> Result<Vec<Layout>> {
        if tiles == 1 {
            return Ok(self.whole_layouts.clone());
        }
        for share in GATHER_SHARES {
            let gather_bytes = (u128::from(capacity) * u128::from(share) / 100) as u64;
            let layout = Layout { gather_bytes, ..tiles.into() };
            if self.fits_at(layout, capacity)? {
                return Ok(vec![layout]);
            }
        }
        Ok(vec![Layout { gather_bytes: 0, ..tiles.into() }])
    }

    /// Returns the rate of a layout if each device has at most this capacity; `None` if it does not fit.
    fn rate(&mut self, layout: Layout, capacity: u64) -> Result<Option<Rate>> {
        if let Some(known) = self.known.facts().rates.get(&(layout, capacity)) {
            return Ok(*known);
        }
        let rate = if !self.fits_at(layout, capacity)? {
            None
        } else {
            self.lowered(layout)?;
            let (_, lowered) = self.last.as_ref().expect("it was lowered");
            match (self.plan)(lowered, &at_most(self.budgets, capacity), &self.quick) {
                Ok(planned) => {
                    let seconds = (self.seconds)(lowered, &planned)?;
                    let time = (seconds.max(1e-9).ln() / ALIKE).round() as i64;
                    let bytes = (self.moves)(&planned).all;
                    if self.keeps && capacity == self.memory() {
                        self.kept.push((layout, planned));
                    }
                    Some(Rate { time, bytes })
                }
                Err(Error::DoesNotFit { .. }) => None,
                Err(other) => return Err(other),
            }
        };
        self.known.facts().rates.insert((layout, capacity), rate);
        Ok(rate)
    }

    fn sizes(&mut self, layout: Layout) -> Result<LayoutSizes> {
        if let Some(sizes) = self.known.facts().sizes.get(&layout) {
            return Ok(sizes.clone());
        }
        self.lowered(layout)?;
        let lowered = self.last.as_ref().expect("it was lowered").1.as_ref();
        let sizes = LayoutSizes {
            need_bytes: needs(lowered, self.budgets).into(),
            steps: lowered[0].phases.iter().map(|phase| phase.steps.len()).sum(),
        };
        self.known.facts().sizes.insert(layout, sizes.clone());
        Ok(sizes)
    }

    /// Checks that every step of a layout fits the devices.
    fn fits(&mut self, layout: Layout) -> Result<()> {
        needs_fit(&self.sizes(layout)?.need_bytes, self.budgets)
    }

    /// Whether every step of a layout fits if each device has at most this capacity.
    fn fits_at(&mut self, layout: Layout, capacity: u64) -> Result<bool> {
        Ok(needs_fit(&self.sizes(layout)?.need_bytes, &at_most(self.budgets, capacity)).is_ok())
    }

    fn lowered(&mut self, layout: Layout) -> Result<()> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != layout) {
            self.last = Some((layout, (self.lower)(layout)?));
        }
        Ok(())
    }
}

/// Returns the budgets with at most this capacity.
pub(super) fn at_most(budgets: &[DeviceBudget], capacity_bytes: u64) -> Vec<DeviceBudget> {
    let least = budgets.iter().filter(|budget| !budget.in_place).map(|budget| budget.capacity_bytes).min();
    let mut budgets = budgets.to_vec();
    if least.is_some_and(|least| capacity_bytes < least) {
        let apart = budgets.iter_mut().filter(|budget| !budget.in_place);
        apart.for_each(|budget| budget.capacity_bytes = capacity_bytes);
    }
    budgets
}

/// Returns the capacities at which numbers of tiles are compared, from the largest one of at most `memory` down: two
/// for each power of two.
pub(crate) fn grid_down(memory: u64) -> impl Iterator<Item = u64> {
    let powers = (0..u64::BITS).rev().map(|power| 1u64 << power);
    // 181/128 is the square root of 2, to three digits.
    let points = powers.flat_map(|power| [power.checked_add(((u128::from(power) * 53) >> 7) as u64), Some(power)]);
    points.flatten().skip_while(move |point| *point > memory)
}

/// The numbers of tiles that did not fit.
#[derive(Default)]
pub(super) struct Refused {
    /// The error with the smallest excess so far.
    pub nearest: Option<Error>,
    /// Number of errors since then.
    pub in_vain: usize,
}

impl Refused {
    pub fn note(&mut self, error: Error) {
        if self.nearest.as_ref().is_none_or(|nearest| super::excess(&error) < super::excess(nearest)) {
            (self.nearest, self.in_vain) = (Some(error), 0);
        } else {
            self.in_vain += 1;
        }
    }

    /// Whether the last numbers of tiles needed no less memory than one before.
    pub fn is_hopeless(&self) -> bool {
        self.in_vain >= PATIENCE
    }
}
