//! Mini-batches of a session: the plan of the largest so far, run with the sizes of each.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytemuck::Pod;
use lapidary_kernels::{HostSlot, Shared, Slot};
use lapidary_planner::memory::Epoch;

use super::{Beside, Done, Session, SessionSpec};
use crate::error::{Error, Result};
use crate::lower::{Contents, Lowered, SumMode, TileOrder, Tiling, lower_in_order};
use crate::plan::{Sequence, plan_sequence};
use crate::program::{LevelSizes, Origin, Program};

/// A mini-batch, for [`Session::run_batch`].
pub(crate) struct SharedBatch {
    /// The shares of this rank's parts.
    pub own: Vec<BatchShare>,
    /// The sizes of the shares of all parts, which are the same on every rank.
    pub sizes: Vec<LevelSizes>,
}

/// The share that one part has of a mini-batch.
pub(crate) struct BatchShare {
    pub sizes: LevelSizes,
    /// The vertices of the share, by local number. Each level has the first ones, or all vertices of the graph if the batch
    /// says so.
    pub vertices: Vec<u32>,
    /// What the program reads of the batch: see [`Session::batch_contents`].
    pub values: Vec<(Slot, HostSlot)>,
}

/// The programs of a part with the sizes of a mini-batch, and what the batch gives.
pub(super) type SizedShare<L> = (L, Vec<(Slot, HostSlot)>);

/// The programs of a session with mini-batches, which are lowered again for each of them.
pub(super) struct BatchPrograms {
    programs: Vec<(String, Program)>,
    /// For each part, with the sizes that are planned for.
    tilings: Vec<Tiling>,
    order: TileOrder,
    sums: SumMode,
    bound: LevelSizes,
    seed: u64,
}

impl BatchPrograms {
    pub(super) fn new(
        job: &SessionSpec<'_>,
        tilings: Vec<Tiling>,
        (order, sums): (TileOrder, SumMode),
        bound: LevelSizes,
    ) -> Self {
        let programs = job.programs.iter().map(|(name, program)| ((*name).to_owned(), (*program).clone()));
        Self { programs: programs.collect(), tilings, order, sums, bound, seed: job.seed }
    }

    /// Lowers the programs of a part for these sizes.
    fn sized(&self, part: usize, levels: LevelSizes) -> Lowered {
        let programs: Vec<(&str, &Program)> =
            self.programs.iter().map(|(name, program)| (name.as_str(), program)).collect();
        let tiling = self.tilings[part].clone().with_levels(levels);
        lower_in_order(&programs, &tiling, self.order, self.seed).with_sums(self.sums)
    }
}

impl Session {
    /// Returns the slots that every mini-batch of these phases gives, and what it gives in them. Learned rows are not
    /// among them: see [`Session::learned_slot`].
    pub(crate) fn batch_contents(&self, phases: &[usize]) -> Vec<(Slot, Contents)> {
        let lowered = &self.runtime.lowered()[0];
        let steps = lowered.sequence(phases);
        let read: BTreeSet<Slot> = steps.iter().flat_map(|step| step.call.reads()).collect();
        lowered.given_by_batch().into_iter().filter(|(slot, _)| read.contains(slot)).collect()
    }

    /// Returns the slot of the learned rows of a mini-batch, and the level whose rows they are.
    pub(crate) fn learned_slot(&self) -> Option<(Slot, u8)> {
        self.runtime.lowered()[0].learned_slot()
    }

    /// Runs phases like [`Session::run`] over the whole graph with learned rows: `rows` are those of the vertices of this
    /// rank's parts, `width` numbers each.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub(crate) fn run_with_rows(
        &mut self,
        phases: &[usize],
        metrics: &[(usize, &str)],
        rows: &Shared<f32>,
        traced: bool,
    ) -> Result<Done> {
        let lowered = self.runtime.lowered();
        let mut first = 0;
        let mut given = Vec::new();
        for part in self.runtime.own_parts() {
            let slots = lowered[part].origins.get(&Origin::Embedding).into_iter().flatten();
            let values = slots.map(|&slot| {
                let numbers = lowered[part].tensor(slot).bytes as usize / size_of::<f32>();
                first += numbers;
                (slot, HostSlot::constant(&rows.slice(first - numbers..first)))
            });
            given.push(((*lowered[part]).clone(), values.collect()));
        }
        self.run_phases(phases, metrics, &[], [traced, false], given)
    }

    /// Returns a kept output of the first part of this rank, in one piece.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub(crate) fn show(&self, phase: usize, name: &str) -> Result<HostSlot> {
        let slot = self.runtime.lowered()[0].phases[phase].output(name);
        self.runtime.show(self.runtime.own_parts().start, slot)
    }

    /// Reads a kept output in one piece from each part of this rank.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub(crate) fn read_of_parts<T: Pod>(&self, phase: usize, name: &str) -> Result<Vec<Vec<T>>> {
        let slot = self.runtime.lowered()[0].phases[phase].output(name);
        self.runtime.own_parts().map(|part| self.runtime.read(part, slot)).collect()
    }

    /// Runs phases like [`Session::run`] on a mini-batch. The plan is the one for the largest batch so far; only the
    /// sizes differ. A batch that is larger than any before makes new plans: on every rank, since all know all sizes.
    ///
    /// # Errors
    /// As [`Session::run`]; [`Error::DoesNotFit`](crate::Error::DoesNotFit) for a batch that does not fit.
    /// # Cost
    /// O(operations) for each part of this rank, beside the run.
    pub(crate) fn run_batch(
        &mut self,
        phases: &[usize],
        metrics: &[(usize, &str)],
        controls: &[(Origin, HostSlot)],
        SharedBatch { own, sizes }: SharedBatch,
        traced_and_checked: [bool; 2],
    ) -> Result<Done> {
        let bound = self.batches.as_ref().expect("the session is for mini-batches").bound;
        let needed = sizes.iter().fold(bound, |bound, sizes| bound.or(sizes));
        if needed != bound {
            match self.grow(needed.with_room()) {
                Err(Error::DoesNotFit { .. }) => self.grow(needed)?,
                grown => grown?,
            }
        }
        let programs = self.batches.as_ref().expect("the session is for mini-batches");
        let shares = self.runtime.own_parts().zip(own);
        let sized = shares.map(|(part, share)| (programs.sized(part, share.sizes), share.values)).collect();
        self.run_phases(phases, metrics, controls, traced_and_checked, sized)
    }

    /// Plans again for larger mini-batches. If they do not fit, the plans stay what they were.
    fn grow(&mut self, levels: LevelSizes) -> Result<()> {
        let programs = self.batches.as_mut().expect("the session is for mini-batches");
        let parts = 0..programs.tilings.len();
        let lowered: Vec<_> = parts.map(|part| Arc::new(programs.sized(part, levels))).collect();
        let epoch = if self.repeats { Epoch::Steady } else { Epoch::Cold };
        let sequence = Sequence::Phases(&self.main);
        let main = plan_sequence(&lowered, &self.budgets, sequence, &epoch, &self.keep, &self.method)?;
        let again = self.repeats.then_some(&main);
        let beside = Beside { main: again, budgets: &self.budgets, keep: &self.keep, method: &self.method };
        let others = self.sequences.keys().filter(|phases| **phases != self.main);
        let others: Vec<_> =
            others.map(|phases| Ok((phases.clone(), beside.plan(&lowered, phases)?))).collect::<Result<_>>()?;
        programs.bound = levels;
        self.runtime.set_lowered(lowered);
        self.set_plans([(self.main.clone(), main)].into_iter().chain(others));
        Ok(())
    }
}
