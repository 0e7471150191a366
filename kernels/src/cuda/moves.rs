//! Launches of operations that only move rows or numbers.

use super::args;
use super::faults::Lookup;
use super::prepare::Plan;
use super::rows::{Width, columns};
use crate::error::{Error, Result};
use crate::op::Move;
use crate::op::call::{Call, Mat};

impl Plan<'_> {
    pub(super) fn moves(&mut self, op: Move, call: &Call) -> Result<()> {
        match op {
            Move::Pack => self.pack(call),
            Move::Fetch => Err(Error::NoPeers),
            Move::AllReduce => Err(Error::NoGroup),
            Move::Concat => self.concat(call),
        }
    }

    fn pack(&mut self, call: &Call) -> Result<()> {
        let (name, x, out) = (call.name(), call.inputs[0], call.out());
        let picked = self.mat(call.inputs[1])?;
        let (x_at, out_at) = (self.mat(x)?, self.mat(out)?);
        let limit = x.rows as u64;
        let fault = self.lookup(Lookup { call: name, operand: "rows", limit, edges: 0 });
        let (rows, d, lanes) = (out.rows as u64, columns(name, x.cols)?, Width::of(x.cols, x.float()).lanes as u32);
        let steps = args::RowStepsArgs::default();
        let args = args::Rows { x: x_at, picked, out: out_at, fault, rows, sources: limit, d, lanes, steps };
        self.rows_kernel(out, &args);
        Ok(())
    }

    /// Prepares one copy per part. A part is treated as rows of one column.
    fn concat(&mut self, call: &Call) -> Result<()> {
        let parts = call.inputs.iter().map(|&part| self.mat(part)).collect::<Result<Vec<_>>>()?;
        let mut out_at = self.mat(call.out())?;
        for (part, mat) in parts.into_iter().zip(&call.inputs) {
            self.rows(call.name(), Mat::f32(call.out().slot, mat.cols, 1), [part, out_at], &[])?;
            out_at += (mat.cols * size_of::<f32>()) as u64;
        }
        Ok(())
    }
}
