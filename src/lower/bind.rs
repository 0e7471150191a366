//! Turns one operation of a program into a kernel call over slots.

use std::collections::BTreeMap;

use lapidary_kernels::op::EdgeOp;
use lapidary_kernels::{Arg, Call, Mat, Part, Slot, Window};

use super::table::Table;
use crate::program::{Op, OpId, Program, RowSpace, RowStep, TensorId};

/// The operation that is being bound.
pub(super) struct Binder<'a, 'i> {
    pub(super) program: &'a Program,
    pub(super) op: OpId,
    pub(super) slots: &'a BTreeMap<TensorId, Vec<Slot>>,
    pub(super) table: &'a mut Table<'i>,
    /// Number of the tile of tiled tensors, or of the window that is updated.
    pub(super) tile: usize,
    pub(super) seed: u64,
}

impl Binder<'_, '_> {
    /// Returns the call for one tile. The caller adds the halo and the workspace.
    pub(super) fn call(&mut self) -> Call {
        let (inputs, outputs) = (self.program.inputs(self.op), self.program.op_outputs(self.op));
        let mut op = self.program.op(self.op).clone();
        if let (&Op::Row(RowStep::Dropout { rate, salt, .. }), RowSpace::Edges(block)) =
            (&op, self.program.tensor(inputs[0]).ty.rows)
        {
            op = EdgeOp::Dropout { block, rate, salt }.into();
        }
        let block = op.block().filter(|_| !matches!(op, Op::Edge(EdgeOp::Permute { .. })));
        let block = block.map(|block| self.table.block(block, self.tile));
        let rows = inputs.first().map_or(RowSpace::Scalar, |&first| self.program.tensor(first).ty.rows);
        let (select, count) = op.split().map_or((0, 0), |split| self.table.tiling().part.split(split, rows));
        let of_batch = matches!(rows, RowSpace::Level(_));
        let first_row = if of_batch { 0 } else { self.table.tile(self.tile).first_vertex };
        // The rows of a mini-batch are numbered within a device, whose share draws masks of its own.
        let seed = if of_batch { self.seed.wrapping_add(self.table.tile(0).first_vertex) } else { self.seed };
        let part = Part { seed, first_row, select, count, window: Window::default() };
        let mats = |tensors: Vec<TensorId>| tensors.into_iter().map(|tensor| self.mat(tensor)).collect::<Vec<_>>();
        Call::over(op, part, block, mats(inputs), mats(outputs))
    }

    /// Returns the update of one window; `tile` is the number of the window.
    pub(super) fn update(&self, window: Window) -> Call {
        let slots = |tensors: Vec<TensorId>| tensors.into_iter().map(|tensor| Arg::Slot(self.slot(tensor)));
        let (inputs, outputs) = (slots(self.program.inputs(self.op)), slots(self.program.op_outputs(self.op)));
        let part = Part { window, ..Part::default() };
        Call::over(self.program.op(self.op).clone(), part, None, inputs, outputs)
    }

    /// Returns the slot of the current tile or window of a tensor, or the only slot of a tensor in one piece.
    fn slot(&self, tensor: TensorId) -> Slot {
        match self.slots[&tensor][..] {
            [slot] => slot,
            ref tiles => tiles[self.tile],
        }
    }

    fn mat(&self, tensor: TensorId) -> Mat {
        let ty = self.program.tensor(tensor).ty;
        let rows = self.table.sizes(ty.rows, self.tile).rows(ty.rows) as usize;
        Mat { slot: self.slot(tensor), rows, cols: ty.width, dtype: ty.dtype }
    }
}
