//! The programs and parts of a dry run, lowered for each layout that is tried.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::traffic::Job;
use super::{PartForecast, Traffic};
use crate::lower::{Layout, Lowered, Sizes, Supply, Tiling, lower_in_order};
use crate::plan::{Rates, Sequence, Variant, WorkByDevice, work};
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
    /// Number of equal parts that each lowered part stands for.
    pub(super) copies: usize,
    pub(super) ranges: Vec<Range<u64>>,
    /// The parts, and a cache of the lowered programs by variant and layout. Lowering does not depend on the capacity.
    pub(super) cuts: Mutex<(Parts<'i>, Cuts)>,
}

/// The lowered programs by variant and layout.
pub(super) type Cuts = BTreeMap<(usize, Layout), Cut>;

/// The parts that programs are lowered for.
pub(super) enum Parts<'i> {
    /// The parts of a dataset.
    Known(Box<Supply<'i>>),
    /// Equal parts of a graph of which only the size is known: the sizes of one part, and the number of parts.
    Even(Box<Sizes>, usize),
}

/// The lowered programs for some number of tiles.
#[derive(Clone)]
pub(super) struct Cut(pub(super) Arc<CutWork>);

pub(super) struct CutWork {
    /// The lowered programs of each distinct part.
    pub(super) lowered: Vec<Lowered>,
    /// The work of the setup and of an epoch, once a plan asks for it: what does not fit needs none.
    work: OnceLock<[WorkByDevice; 2]>,
}

impl CutWork {
    /// Returns the work of the setup and of an epoch of these phases, which are always the same.
    pub(super) fn work(&self, phases: &[usize]) -> &[WorkByDevice; 2] {
        let sequences = [Sequence::Setup, Sequence::Phases(phases)];
        self.work.get_or_init(|| sequences.map(|sequence| work(&self.lowered, sequence, &BTreeSet::new())))
    }
}

impl AsRef<[Lowered]> for Cut {
    fn as_ref(&self) -> &[Lowered] {
        &self.0.lowered
    }
}

impl ForecastInput<'_> {
    /// Returns all variants of the programs.
    pub(super) fn variants(&self) -> Vec<Variant> {
        Variant::all(self.strips, self.instead.iter().map(|instead| instead.strips))
    }

    /// Lowers the programs in the variant of this number.
    pub(super) fn cut(&self, variant: usize, layout: Layout) -> Cut {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, cuts) = &mut *cuts;
        let make = || {
            let tilings = match parts {
                Parts::Known(supply) => supply.tile(layout),
                Parts::Even(sizes, _) => Tiling::evenly(&[**sizes], layout),
            };
            let mut programs = self.programs.each_ref().map(|(name, program)| (*name, program));
            if let Some(instead) = variant.checked_sub(1) {
                let Instead { training, evaluation, .. } = &self.instead[instead];
                (programs[0].1, programs[1].1) = (training, evaluation);
            }
            let lowered = tilings.iter().map(|tiling| lower_in_order(&programs, tiling, layout.order, 0)).collect();
            Cut(Arc::new(CutWork { lowered, work: OnceLock::new() }))
        };
        cuts.entry((variant, layout)).or_insert_with(make).clone()
    }

    /// Returns what the ranks send each other, with this layout.
    pub(super) fn traffic(&self, (variant, layout): (usize, Layout), job: Job) -> Traffic {
        let cut = self.cut(variant, layout);
        let lowered = &cut.0.lowered[0];
        match &mut self.cuts.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => Traffic::of_data(supply, lowered, self.phases, job),
            Parts::Even(sizes, _) => Traffic::of_shape(sizes, lowered, self.phases, job),
        }
    }

    pub(super) fn forecasts(&self, rates: &Rates) -> Vec<PartForecast> {
        let cut = self.cut(0, self.layouts[0]);
        let sizes = match &mut self.cuts.lock().unwrap_or_else(PoisonError::into_inner).0 {
            Parts::Known(supply) => supply.sizes(),
            Parts::Even(sizes, _) => vec![**sizes],
        };
        let seconds = cut.0.lowered.iter().map(|lowered| {
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
