//! Stages: a gather that fetches the rows of one part after the other, so that a device never holds its whole halo.

use std::sync::Arc;

use lapidary_kernels::op::Move;
use lapidary_kernels::{Arg, Call, Mat, Slot};

use super::table::block_name;
use super::tiles::SourceTile;
use super::{Crossing, Exchange, Lifetime, LoweredStep, Lowering};
use crate::program::BlockSpec;

impl Lowering<'_> {
    /// Returns the steps of a gather that fetches the rows of one part after the other, as MG-GCN does. The rows of the
    /// next part arrive while those of one are added, so a device holds those of two.
    ///
    /// # Source
    /// Balın et al., MG-GCN: scalable multi-GPU GCN training framework, 2021: the broadcast in stages.
    pub(super) fn gather_in_stages(
        &mut self,
        block: BlockSpec,
        own: Slot,
        name: &Arc<str>,
        call: &Call,
    ) -> Vec<LoweredStep> {
        let (tiling, own_mat) = (self.table.tiling(), call.inputs[0]);
        let mut sources = Vec::new();
        let mut fetches = Vec::new();
        let mut first = 0;
        for (owner, &rows) in tiling.owners(block).iter().enumerate() {
            let (piece, steps) = self.stage(block, own_mat, owner, rows);
            let (slot, rows) = if owner == tiling.number { (own, own_mat.rows) } else { (piece, rows as usize) };
            sources.push(SourceTile { slot, rows, first });
            first += rows;
            fetches.push((piece, steps));
        }
        let mut windows = self.windows(&sources, name, call);
        // The part's own rows are not fetched. But all parts run their steps in one order.
        windows[tiling.number].after.push(fetches[tiling.number].0);
        let mut steps = Vec::new();
        let mut fetches = fetches.into_iter().map(|(_, steps)| steps);
        steps.extend(fetches.next().into_iter().flatten());
        for window in windows {
            steps.extend(fetches.next().into_iter().flatten());
            steps.push(window);
        }
        steps
    }

    /// Returns the slot of the rows of `owner` that this part reads over `block`, and the steps that pack the owner's
    /// rows and fetch them.
    fn stage(&mut self, block: BlockSpec, own: Mat, owner: usize, rows: u64) -> (Slot, [LoweredStep; 2]) {
        let tiling = self.table.tiling();
        let count = if owner == tiling.number { tiling.part.cut(block).packed } else { 0 };
        let [packed_rows, fetched_rows] = self.table.stage_rows(block, owner, [count, rows]);
        let mut matrix = |what: &str, rows: u64| {
            let name = format!("{what} {owner} {}.{}", self.table.name(own.slot), block_name(block));
            let bytes = rows.saturating_mul(own.row_bytes() as u64);
            let slot = self.table.push(name, bytes, Lifetime::Local);
            Mat { slot, rows: rows as usize, ..own }
        };
        let (packed, halo) = (matrix("pack", count), matrix("halo", rows));
        let pack = Call::new(Move::Pack, [own.into(), Arg::Slot(packed_rows)], [packed]);
        let fetch = Call::new(Move::Fetch, [packed.into(), Arg::Slot(fetched_rows)], [halo]);
        let crossing = Crossing::Pull(block);
        self.exchanges.push(Exchange::Fetch { packed: packed.slot, halo: halo.slot, crossing, owner: Some(owner) });
        let step = |made: Mat, call| LoweredStep::new(self.table.name(made.slot).clone(), call);
        (halo.slot, [step(packed, pack), step(halo, fetch)])
    }
}
