//! Programs lowered for one layout, and the work that is made of them once, for plans at any capacity.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use lapidary_kernels::Slot;
use lapidary_planner::memory::Epoch;

use super::{DeviceBudget, Method, Planned, Sequence, WorkByDevice, both, plan_work, work};
use crate::error::Result;
use crate::lower::Lowered;

/// The lowered programs of each part, for one layout. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct LoweredParts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lowered: Vec<Lowered>,
    /// The work of the setup and of an epoch, once a plan asks for it: what does not fit needs none.
    work: OnceLock<[WorkByDevice; 2]>,
}

/// What an epoch is planned for, always the same for the same programs.
#[derive(Clone, Copy)]
pub(crate) struct EpochWork<'a> {
    /// The phases of the epoch.
    pub phases: &'a [usize],
    /// What it inherits and leaves.
    pub epoch: &'a Epoch,
    /// Returns the tensors that must be on the host after it, and after the setup.
    pub keep: &'a dyn Fn(&[Lowered]) -> BTreeSet<Slot>,
}

impl LoweredParts {
    /// Takes the lowered programs of each part.
    pub(crate) fn new(lowered: Vec<Lowered>) -> Self {
        Self(Arc::new(Inner { lowered, work: OnceLock::new() }))
    }

    /// Returns the lowered programs of each part.
    pub(crate) fn parts(&self) -> &[Lowered] {
        &self.0.lowered
    }

    /// Returns the lowered programs, without a copy if nobody shares them.
    pub(crate) fn into_parts(self) -> Vec<Lowered> {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.lowered.clone(), |inner| inner.lowered)
    }

    /// Whether a plan was made of it.
    pub(crate) fn has_work(&self) -> bool {
        self.0.work.get().is_some()
    }

    /// Plans the setup and the epoch.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`](crate::error::Error::DoesNotFit), with the capacity that would be enough.
    pub(crate) fn plan(
        &self,
        of: &EpochWork<'_>,
        budgets: &[DeviceBudget],
        method: &Method,
    ) -> Result<(Planned, Planned)> {
        let Inner { lowered, work: made } = &*self.0;
        let [setup, main] = made.get_or_init(|| {
            let keep = (of.keep)(lowered);
            [Sequence::Setup, Sequence::Phases(of.phases)].map(|sequence| work(lowered, sequence, &keep))
        });
        let setup = plan_work(lowered, budgets, setup, &Epoch::Cold, method);
        both(setup, plan_work(lowered, budgets, main, of.epoch, method))
    }
}

impl AsRef<[Lowered]> for LoweredParts {
    fn as_ref(&self) -> &[Lowered] {
        self.parts()
    }
}
