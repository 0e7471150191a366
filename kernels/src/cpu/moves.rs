//! Operations that only move rows or numbers.

use super::pack::pack_cells;
use super::slots::Open;
use crate::error::{Error, Result, check_shape};
use crate::op::Move;
use crate::op::call::Call;
use crate::view::{MatMut, MatView};

pub(super) fn launch(slots: &Open<'_>, op: Move, call: &Call) -> Result<()> {
    match op {
        Move::Pack => {
            let (x, rows) = (slots.mat(call.inputs[0])?, slots.numbers(call.inputs[1])?);
            pack(x.view(), rows.view(), slots.mat_mut(call.out())?.view())
        }
        Move::Fetch => Err(Error::NoPeers),
        Move::AllReduce => Err(Error::NoGroup),
        Move::Concat => {
            let parts = call.inputs.iter().map(|&part| slots.numbers::<f32>(part)).collect::<Result<Vec<_>>>()?;
            let mut out = slots.numbers_mut::<f32>(call.out())?;
            let mut rest = out.view();
            for part in &parts {
                let (place, after) = rest.split_at_mut(part.view().len());
                place.copy_from_slice(part.view());
                rest = after;
            }
            Ok(())
        }
    }
}

/// Computes `out[i] = x[rows[i]]`: packs the rows that other parts read.
///
/// # Shapes
/// `x`: `[n, d]`; `rows`: `[m]`, each below `n`; `out`: `[m, d]`, overwritten.
/// # Errors
/// [`Error::Shape`], with `out` unchanged; [`Error::Index`] if an entry of `rows` is out of range, and `out` must then
/// not be read.
pub fn pack(x: MatView<'_>, rows: &[u32], mut out: MatMut<'_>) -> Result<()> {
    const CALL: &str = "pack";
    let (n, d) = (x.rows(), x.cols());
    check_shape(CALL, "rows", [out.rows(), 1], [rows.len(), 1])?;
    check_shape(CALL, "out", [rows.len(), d], [out.rows(), out.cols()])?;
    pack_cells(CALL, (x.data(), n), rows, d, out.data())
}
