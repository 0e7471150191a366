//! Chooses among programs with the same results, such as those that make tensors again: the one of least predicted time.

use super::fit::{Fit, Moves, excess, fit};
use super::{DeviceBudget, Layout, Method};
use crate::error::{Error, Result};
use crate::lower::{Lowered, TileOrder};

/// Share of the predicted time that another variant must save to be chosen.
const WORTHWHILE: f64 = 0.03;

/// One of several programs with the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Its number.
    pub number: usize,
    /// Number of strips of columns that wide matrices are cut into.
    pub strips: usize,
}

impl Variant {
    /// Returns variants with these numbers of strips, in their order.
    pub(crate) fn all(first: usize, others: impl Iterator<Item = usize>) -> Vec<Self> {
        let strips = std::iter::once(first).chain(others);
        strips.enumerate().map(|(number, strips)| Self { number, strips }).collect()
    }
}

/// A variant that fits the devices.
pub(crate) struct Fitted<L, T> {
    /// The variant.
    pub variant: Variant,
    /// What was lowered.
    pub lowered: L,
    /// What was planned.
    pub planned: T,
    /// The layout that it was lowered with.
    pub layout: Layout,
}

/// The variants of a program, and what they are fitted to.
pub(crate) struct Choice<'a> {
    /// The variants; those with more strips come later.
    pub variants: &'a [Variant],
    /// What they are fitted to. What is known is that of the first variant.
    pub to: Fit<'a>,
}

impl Choice<'_> {
    /// Fits one of the variants, which `lower` lowers by number, to the devices: see [`fit`].
    ///
    /// The first variant is chosen, and nothing else is planned, if it fits and either copies nothing for want of memory or
    /// copies are not weighed. Otherwise all others are planned quickly, and the one of least `seconds` is chosen; the first
    /// one, unless another one saves [`WORTHWHILE`] and copies no more. Then, if copies are weighed, steps go through tiles in
    /// the order that copies less.
    ///
    /// # Errors
    /// If no variant fits, the error of the one that lacks least. Other errors of `lower`, `plan` and `seconds`.
    pub(crate) fn fit_best<L: AsRef<[Lowered]>, T>(
        &self,
        mut lower: impl FnMut(usize, Layout) -> Result<L>,
        mut plan: impl FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
        moves: Moves<T>,
        mut seconds: impl FnMut(&L, &T) -> Result<f64>,
    ) -> Result<Fitted<L, T>> {
        let mut first = self.fit_one(self.variants[0], self.to.method, &mut lower, &mut plan, moves, &mut seconds);
        match &first {
            Ok(first) if self.to.weighs && moves(&first.planned).swapped > 0 => {}
            Err(Error::DoesNotFit { .. }) => {}
            _ => return first,
        }
        let mut best: Option<(f64, Fitted<L, T>)> = None;
        let quick = self.to.method.quick();
        // More strips are tried as long as the last number of them was better than what was known before.
        let (mut strips, mut is_better) = (self.variants[0].strips, true);
        for &variant in &self.variants[1..] {
            if variant.strips != strips && !std::mem::replace(&mut is_better, false) {
                break;
            }
            strips = variant.strips;
            match (self.fit_one(variant, &quick, &mut lower, &mut plan, moves, &mut seconds), &first) {
                (Ok(fitted), Ok(first)) if moves(&fitted.planned).all > moves(&first.planned).all => {}
                (Ok(fitted), _) => {
                    let takes = seconds(&fitted.lowered, &fitted.planned)?;
                    if best.as_ref().is_none_or(|(least, _)| takes < *least) {
                        (best, is_better) = (Some((takes, fitted)), true);
                    }
                }
                (Err(error @ Error::DoesNotFit { .. }), Err(least)) if excess(&error) < excess(least) => {
                    (first, is_better) = (Err(error), true);
                }
                (Err(Error::DoesNotFit { .. }), _) => {}
                (Err(other), _) => return Err(other),
            }
        }
        let most = match &first {
            Ok(first) if best.is_some() => seconds(&first.lowered, &first.planned)? * (1.0 - WORTHWHILE),
            _ => f64::INFINITY,
        };
        let chosen = match best.filter(|(takes, _)| *takes < most) {
            Some((_, best)) if *self.to.method == quick => best,
            Some((_, best)) => {
                // With more effort, a plan copies less, but not always.
                let planned = plan(&best.lowered, self.to.budgets, self.to.method)?;
                let planned = match moves(&planned).all <= moves(&best.planned).all {
                    true => planned,
                    false => plan(&best.lowered, self.to.budgets, &self.to.method.quick_and_checked())?,
                };
                Fitted { planned, ..best }
            }
            None => first?,
        };
        self.in_better_order(chosen, lower, plan, moves)
    }

    fn fit_one<L: AsRef<[Lowered]>, T>(
        &self,
        variant: Variant,
        method: &Method,
        lower: &mut impl FnMut(usize, Layout) -> Result<L>,
        plan: &mut impl FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
        moves: Moves<T>,
        seconds: &mut impl FnMut(&L, &T) -> Result<f64>,
    ) -> Result<Fitted<L, T>> {
        let lower = |layout| lower(variant.number, layout);
        let known = self.to.known.filter(|_| variant.number == self.variants[0].number);
        let to = Fit { method, known, ..self.to };
        let (lowered, planned, layout) = fit(&to, lower, plan, moves, seconds)?;
        Ok(Fitted { variant, lowered, planned, layout })
    }

    /// Returns what was fitted, or the same with its tiles in serpentine order if that copies less.
    fn in_better_order<L, T>(
        &self,
        fitted: Fitted<L, T>,
        mut lower: impl FnMut(usize, Layout) -> Result<L>,
        mut plan: impl FnMut(&L, &[DeviceBudget], &Method) -> Result<T>,
        moves: Moves<T>,
    ) -> Result<Fitted<L, T>> {
        if !self.to.weighs || fitted.layout.tiles == 1 || moves(&fitted.planned).swapped == 0 {
            return Ok(fitted);
        }
        let layout = Layout { order: TileOrder::Serpentine, ..fitted.layout };
        let lowered = lower(fitted.variant.number, layout)?;
        match plan(&lowered, self.to.budgets, self.to.method) {
            Ok(planned) if moves(&planned).all < moves(&fitted.planned).all => {
                Ok(Fitted { lowered, planned, layout, ..fitted })
            }
            Ok(_) | Err(Error::DoesNotFit { .. }) => Ok(fitted),
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::Known;
    use super::super::does_not_fit;
    use super::super::fit::Moved;
    use super::*;
    use crate::lower::{ExchangePath, Phase};

    struct Tried(usize, Layout, Vec<Lowered>);

    impl AsRef<[Lowered]> for Tried {
        fn as_ref(&self) -> &[Lowered] {
            &self.2
        }
    }

    /// Returns the variant and the order that are chosen, and how many plans that took. `found` has, for each variant, the
    /// bytes that its plan copies, and its seconds; `None` if it does not fit.
    fn chosen(found: &[Option<(u64, f64)>], saved_by_order: u64) -> Result<(usize, TileOrder, usize)> {
        chosen_if(true, found, saved_by_order)
    }

    fn chosen_if(weighs: bool, found: &[Option<(u64, f64)>], saved_by_order: u64) -> Result<(usize, TileOrder, usize)> {
        let lowered = Lowered { phases: vec![Phase::default()], ..Lowered::default() };
        let budget = DeviceBudget { name: "a".into(), capacity_bytes: 100, in_place: false };
        let layouts = [Layout { path: ExchangePath::Host, ..Layout::from(1) }];
        let variants: Vec<Variant> = (0..found.len()).map(|number| Variant { number, strips: 1 }).collect();
        let to = Fit {
            budgets: std::slice::from_ref(&budget),
            whole_layouts: &layouts,
            method: &Method::default(),
            weighs,
            known: Some(&Known::default()),
            least_tiles: 1,
        };
        let choice = Choice { variants: &variants, to };
        let mut plans = 0;
        let fitted = choice.fit_best(
            |variant, layout| Ok(Tried(variant, layout, vec![lowered.clone()])),
            |&Tried(variant, layout, _), _, _| {
                plans += 1;
                // Only two tiles fit.
                let (bytes, _) = found[variant]
                    .filter(|(bytes, _)| *bytes == 0 || layout.tiles == 2)
                    .ok_or_else(|| does_not_fit(&budget, 200 + variant as u64 - layout.tiles as u64))?;
                let bytes = if layout.order == TileOrder::Serpentine { bytes - saved_by_order } else { bytes };
                Ok(Moved { swapped: bytes, all: bytes })
            },
            |moved| *moved,
            |tried, _| Ok(found[tried.0].expect("it fits").1),
        );
        fitted.map(|fitted| (fitted.variant.number, fitted.layout.order, plans))
    }

    #[test]
    fn the_variant_of_least_seconds_is_chosen_if_it_saves_something() {
        use TileOrder::{Ascending, Serpentine};
        let of = |found: &[Option<(u64, f64)>]| {
            chosen(found, 0).map(|(variant, order, _)| (variant, order)).expect("one fits")
        };
        assert_eq!(chosen(&[Some((0, 9.0)), Some((0, 1.0))], 0).expect("one fits"), (0, Ascending, 1));
        assert_eq!(of(&[Some((90, 9.0)), Some((80, 7.0)), Some((70, 8.0))]), (1, Ascending));
        assert_eq!(of(&[Some((90, 9.0)), Some((80, 8.9))]), (0, Ascending));
        assert_eq!(of(&[Some((90, 9.0)), Some((91, 5.0))]), (0, Ascending));
        assert_eq!(of(&[None, Some((80, 8.9)), Some((80, 8.8))]), (2, Ascending));
        assert_eq!(of(&[Some((90, 9.0)), None]), (0, Ascending));
        assert_eq!(chosen(&[Some((90, 9.0)), Some((80, 5.0))], 1).expect("one fits").1, Serpentine);
        let Err(Error::DoesNotFit { need_bytes, .. }) = chosen(&[None, None], 0) else { panic!("nothing fits") };
        assert!(need_bytes < 200);
    }

    #[test]
    fn if_copies_are_not_weighed_others_are_tried_only_if_the_first_does_not_fit() {
        let of = |found: &[Option<(u64, f64)>]| chosen_if(false, found, 1).expect("one fits");
        assert_eq!(of(&[Some((90, 9.0)), Some((80, 1.0))]).0, 0);
        let (variant, order, _) = of(&[None, Some((80, 8.9)), Some((80, 8.8))]);
        assert_eq!((variant, order), (2, TileOrder::Ascending));
    }
}
