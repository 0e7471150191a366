//! The programs and parts of a dry run, lowered for each layout that is tried.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rayon::prelude::*;

use super::traffic::Job;
use super::{PartForecast, Traffic};
use crate::lower::{Layout, Sizes, SumMode, Supply, Tiling, lower_in_order};
use crate::plan::{LoweredParts, Rates, Variant};
use crate::program::Program;
use crate::train::Instead;

/// Inputs of planning: programs and parts.
pub(super) struct ForecastInput<'i> {
    /// The layouts of whole parts that are possible, the best one first.
    pub(super) layouts: Vec<Layout>,
    pub(super) programs: [(&'static str, Program); 2],
    /// Number of strips of columns that wide matrices of these programs are cut into.
    pub(super) strips: usize,
    /// Programs with the same results, one pair of which may take their place.
    pub(super) instead: Vec<Instead>,
    pub(super) phases: &'static [usize],
    /// How gradients are added.
    pub(super) sums: SumMode,
    /// Number of equal parts that each lowered part stands for.
    pub(super) copies: usize,
    pub(super) ranges: Vec<Range<u64>>,
    /// The parts, and the lowered programs that are kept. Lowering does not depend on the capacity.
    pub(super) recent: Mutex<(Parts<'i>, Recent)>,
}

/// Most steps of the programs that are kept, of all parts together. A step takes about a kilobyte with its work.
const MOST_KEPT_STEPS: usize = 600_000;

/// The programs that were lowered last, by variant and layout.
#[derive(Default)]
pub(super) struct Recent {
    kept: BTreeMap<(usize, Layout), Kept>,
    uses: u64,
}

struct Kept {
    laid_out: Arc<LaidOut>,
    last_use: u64,
}

impl Recent {
    /// Returns what is kept, or makes it.
    fn get(&mut self, key: (usize, Layout), make: impl FnOnce() -> LaidOut) -> Arc<LaidOut> {
        self.uses += 1;
        let last_use = self.uses;
        let kept = self.kept.entry(key).or_insert_with(|| Kept { laid_out: Arc::new(make()), last_use });
        kept.last_use = last_use;
        kept.laid_out.clone()
    }

    /// Forgets what was used least recently, as long as there are too many steps; first what no plan was made for.
    fn forget(&mut self) {
        let mut steps: usize = self.kept.values().map(|kept| kept.laid_out.steps()).sum();
        while steps > MOST_KEPT_STEPS && self.kept.len() > 1 {
            // The last one will be planned next.
            let others = self.kept.iter().filter(|(_, kept)| kept.last_use < self.uses);
            let rank = |kept: &Kept| (kept.laid_out.is_planned(), kept.last_use);
            let oldest = others.min_by_key(|(_, kept)| rank(kept)).map(|(key, _)| *key);
            let Some(kept) = oldest.and_then(|key| self.kept.remove(&key)) else { break };
            steps -= kept.laid_out.steps();
        }
    }
}

/// The parts that programs are lowered for.
pub(super) enum Parts<'i> {
    /// The parts of a dataset.
    Known(Box<Supply<'i>>),
    /// Equal parts of a graph of which only the size is known: the sizes of one part, and the number of parts.
    Even(Box<Sizes>, usize),
}

/// The programs for one layout, once they are lowered.
pub(super) struct LaidOut {
    /// The sizes of each distinct part.
    tilings: Vec<Tiling>,
    lowered: OnceLock<LoweredParts>,
}

impl LaidOut {
    /// Whether a plan was made.
    fn is_planned(&self) -> bool {
        self.lowered.get().is_some_and(LoweredParts::has_work)
    }

    /// Returns the number of steps of all parts; 0 before they are lowered.
    fn steps(&self) -> usize {
        let lowered = self.lowered.get().into_iter().flat_map(LoweredParts::parts);
        lowered.flat_map(|lowered| &lowered.phases).map(|phase| phase.steps.len()).sum()
    }
}

impl ForecastInput<'_> {
    /// Returns all variants of the programs.
    pub(super) fn variants(&self) -> Vec<Variant> {
        Variant::all(self.strips, self.instead.iter().map(|instead| instead.strips))
    }

    /// Lowers the programs in the variant of this number, unless that was done.
    pub(super) fn lowered(&self, variant: usize, layout: Layout) -> LoweredParts {
        let laid_out = {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let (parts, recent) = &mut *recent;
            let make = || {
                let tilings = match parts {
                    Parts::Known(supply) => supply.tile(layout),
                    Parts::Even(sizes, _) => Tiling::evenly(&[**sizes], layout),
                };
                LaidOut { tilings, lowered: OnceLock::new() }
            };
            recent.get((variant, layout), make)
        };
        // Other layouts may be lowered at the same time.
        let lowered = laid_out.lowered.get_or_init(|| {
            let mut programs = self.programs.each_ref().map(|(name, program)| (*name, program));
            if let Some(instead) = variant.checked_sub(1) {
                let Instead { training, evaluation, .. } = &self.instead[instead];
                (programs[0].1, programs[1].1) = (training, evaluation);
            }
            let lower = |tiling| lower_in_order(&programs, tiling, layout.order, 0).with_sums(self.sums);
            LoweredParts::new(laid_out.tilings.par_iter().map(lower).collect())
        });
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).1.forget();
        lowered.clone()
    }

    /// Returns what the ranks send each other, with this layout.
    pub(super) fn traffic(&self, (variant, layout): (usize, Layout), job: Job) -> Traffic {
        let lowered = self.lowered(variant, layout);
        let lowered = &lowered.parts()[0];
        match &mut self.recent.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => Traffic::of_data(supply, lowered, self.phases, job),
            Parts::Even(sizes, _) => Traffic::of_shape(sizes, lowered, self.phases, job),
        }
    }

    pub(super) fn forecasts(&self, rates: &Rates) -> Vec<PartForecast> {
        let lowered = self.lowered(0, self.layouts[0]);
        let sizes = match &mut self.recent.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => supply.sizes(),
            Parts::Even(sizes, _) => vec![**sizes],
        };
        let seconds = lowered.parts().iter().map(|lowered| {
            let steps = lowered.sequence(self.phases);
            steps.iter().map(|step| rates.call(lowered, &step.call).1.seconds).sum()
        });
        let parts: Vec<(Sizes, f64)> = sizes.into_iter().zip(seconds).collect();
        let parts = parts.iter().flat_map(|part| std::iter::repeat_n(part, self.copies)).zip(&self.ranges);
        let part = |((sizes, compute_seconds), range): (&(Sizes, f64), &Range<u64>)| PartForecast {
            vertices: range.clone(),
            edges: sizes.forward.edges,
            halo: sizes.forward.halo,
            compute_seconds: *compute_seconds,
        };
        parts.map(part).collect()
    }
}
