//! Turns lowered steps into operations of the cost model.

use lapidary_cost_model::{Operation, Work};
use lapidary_kernels::{Call, DType, Price};

use crate::lower::LoweredStep;

/// Returns the operation of each step, which the cost model learns and predicts. Rows of sparse features count with
/// their average length.
pub fn works(steps: &[LoweredStep]) -> Vec<Operation> {
    steps.iter().map(|step| Operation::new(name(&step.call), work(&step.call))).collect()
}

/// Returns the name under which a call's time is learned. Calls with row steps, or over bf16 rows, have names of their
/// own.
fn name(call: &Call) -> String {
    let stored = if call.stored() == DType::Bf16 { " bf16" } else { "" };
    call.cost_name() + stored
}

fn work(call: &Call) -> Work {
    let width = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let bytes = match call.price() {
        // The number of f32 that have as many bytes as a row.
        Price::Gather { weighted: false, row_bytes, .. } => {
            return Work::Gather { width: width(row_bytes.div_ceil(4)) };
        }
        Price::Product { k, m, .. } => return Work::Product { k: width(k), m: width(m) },
        Price::Gather { block, row_bytes, out_row_bytes, .. } => {
            let cells = block.edges / block.rows.max(1) + 1;
            cells.saturating_mul(row_bytes).saturating_add(out_row_bytes)
        }
        Price::Rows { bytes } => bytes,
        Price::Nothing => 0,
    };
    // The bytes that row steps read are added. Only elementwise calls take longer by that.
    Work::Elementwise { bytes: width(bytes).saturating_add(width(call.step_row_bytes())) }
}
