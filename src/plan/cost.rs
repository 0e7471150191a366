//! What lowered steps cost, in the cost model's words.

use lapidary_cost_model::{Operation, Work};
use lapidary_kernels::{Call, DType, Price};

use crate::lower::LoweredStep;

/// The work of each step: what the cost model learns and predicts. Rows of sparse features count as their average.
pub fn works(steps: &[LoweredStep]) -> Vec<Operation> {
    steps.iter().map(|step| Operation::new(name(&step.call), work(&step.call))).collect()
}

/// What a call's time is learned under: that of one with row steps, or over rows in bf16, is its own.
fn name(call: &Call) -> String {
    let stored = if call.stored() == DType::Bf16 { " bf16" } else { "" };
    call.cost_name() + stored
}

fn work(call: &Call) -> Work {
    let width = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let bytes = match call.price() {
        // As many f32 as a row's bytes are.
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
    // What the steps read comes on top; only rows that go cell by cell are as long as that takes.
    Work::Elementwise { bytes: width(bytes).saturating_add(width(call.step_row_bytes())) }
}
