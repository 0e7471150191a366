//! What lowered steps cost, in the cost model's words.

use lapidary_cost_model::{Op, Work};
use lapidary_kernels::{Call, Float, Mat, RowStep};

use crate::lower::Step;

/// The work of each step: what the cost model learns and predicts. Rows of sparse features count as their average.
pub fn works(steps: &[Step]) -> Vec<Op> {
    steps.iter().map(|step| Op::new(name(&step.call), work(&step.call))).collect()
}

/// What a call's time is learned under: that of one with row steps, or over rows in bf16, is its own.
fn name(call: &Call) -> String {
    let stored = match call.stored() {
        Ok(Float::Bf16) => " bf16",
        _ => "",
    };
    let Call::Fused { head, steps } = call else { return format!("{}{stored}", call.name()) };
    let steps = steps.iter().map(|step| match step {
        RowStep::Scale(_) => "+scale",
        RowStep::AddBias(_) => "+bias",
        RowStep::Add(_) => "+add",
        RowStep::Relu => "+relu",
        RowStep::ReluGrad(_) => "+relu_grad",
        RowStep::Dropout { .. } => "+dropout",
    });
    steps.fold(head.name().into(), |name: String, step| name + step) + stored
}

fn work(call: &Call) -> Work {
    let width = |cols: usize| u32::try_from(cols).unwrap_or(u32::MAX);
    let bytes_a_row =
        |operands: &[&Mat]| Work::Elementwise { bytes: width(operands.iter().map(|mat| mat.row_bytes()).sum()) };
    match call {
        Call::Accumulate { head, .. } => work(head),
        Call::Gather { own, weights: None, .. } | Call::GatherWindow { own, weights: None, .. } => {
            // As many f32 as a row's bytes are.
            Work::Gather { width: width(own.row_bytes().div_ceil(4)) }
        }
        Call::Gather { own, out, block, .. } | Call::GatherWindow { own, out, block, .. } => {
            let cells = block.edges / block.rows.max(1) + 1;
            Work::Elementwise { bytes: width(cells.saturating_mul(own.row_bytes()).saturating_add(out.row_bytes())) }
        }
        Call::Linear { x, weight, .. } => Work::Product { k: width(x.cols), m: width(weight.rows) },
        Call::LinearInputGrad { grad, weight, .. } => Work::Product { k: width(grad.cols), m: width(weight.cols) },
        Call::LinearWeightGrad { grad, x, .. } => Work::Product { k: width(x.cols), m: width(grad.cols) },
        Call::Pack { x, out, .. } => bytes_a_row(&[x, out]),
        Call::RowScale { x, out, .. } | Call::Relu { x, out } | Call::Dropout { x, out, .. } => bytes_a_row(&[x, out]),
        Call::AddBias { x, out, .. } | Call::LayerNorm { x, out, .. } => bytes_a_row(&[x, out]),
        Call::Add { a, b, out } => bytes_a_row(&[a, b, out]),
        Call::ReluGrad { grad, y, out } => bytes_a_row(&[grad, y, out]),
        Call::LayerNormInputGrad { grad, x, out, .. } => bytes_a_row(&[grad, x, out]),
        Call::LayerNormGainGrad { grad, x, .. } => bytes_a_row(&[grad, x]),
        Call::ColumnSum { x, .. } => bytes_a_row(&[x]),
        Call::SoftmaxCrossEntropy { logits, .. }
        | Call::CountCorrect { logits, .. }
        | Call::SigmoidCrossEntropy { logits, .. }
        | Call::CountMicro { logits, .. } => bytes_a_row(&[logits]),
        Call::SoftmaxCrossEntropyGrad { logits, out, .. } | Call::SigmoidCrossEntropyGrad { logits, out, .. } => {
            bytes_a_row(&[logits, out])
        }
        // What the steps read comes on top; only rows that go cell by cell are as long as that takes.
        Call::Fused { head, steps } => match work(head) {
            Work::Elementwise { bytes } => {
                let matrices =
                    steps.iter().filter(|step| matches!(step, RowStep::Add(_) | RowStep::ReluGrad(_))).count();
                Work::Elementwise {
                    bytes: bytes.saturating_add(width(
                        matrices.saturating_mul(head.rows_out().map_or(0, |out| out.row_bytes())),
                    )),
                }
            }
            other => other,
        },
        // What is the same on every part, whatever its vertices; and what is no kernel's time.
        Call::Fetch { .. }
        | Call::Round { .. }
        | Call::Transpose { .. }
        | Call::SparseDropout { .. }
        | Call::PermuteEdges { .. }
        | Call::Concat { .. }
        | Call::Sgd { .. }
        | Call::Adam { .. } => Work::Elementwise { bytes: 0 },
    }
}
