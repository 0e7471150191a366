//! Reverse-mode differentiation: one rule an operation.

use std::collections::BTreeMap;

use super::dataflow::{OpId, Program, TensorId};
use super::ir::{DType, Op, Origin, RowSpace, TensorType};
use super::shape::ProgramError;

/// Appends the operations that compute the gradient of the scalar `loss`, and returns the gradient of each parameter
/// by name.
///
/// Every floating-point operand of every operation between a parameter and the loss gets its gradient, whether
/// someone needs it or not: leaving out what nobody needs is the pass `prune`. Gradients that meet are added in the
/// order in which their readers stand, newest first.
///
/// # Errors
/// [`ProgramError::NoGradient`] where a parameter reaches the loss through an operand that has no rule.
/// # Cost
/// O(operations), at most two new ones for each operand.
/// # Source
/// Baydin et al., Automatic differentiation in machine learning, JMLR 2018, section 3.2.
pub fn append_backward(program: &mut Program, loss: TensorId) -> Result<BTreeMap<String, TensorId>, ProgramError> {
    let mut gradients: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for op in program.ops().into_iter().rev() {
        let outputs = program.op_outputs(op);
        let is_loss = outputs.contains(&loss);
        let flows = program.tensor(outputs[0]).wants_gradient;
        let upstream = gradients.get(&outputs[0]).copied();
        if !flows || (upstream.is_none() && !is_loss) {
            continue;
        }
        for (operand, gradient) in operand_gradients(program, op, upstream)? {
            let sum = match gradients.get(&operand) {
                Some(&other) => program.push1(Op::Add, &[other, gradient])?,
                None => gradient,
            };
            gradients.insert(operand, sum);
        }
    }
    let parameters = program.origins().iter().filter_map(|(origin, id)| match origin {
        Origin::Parameter(name) => gradients.get(id).map(|&gradient| (name.clone(), gradient)),
        _ => None,
    });
    Ok(parameters.collect())
}

/// The gradients of `op`'s operands, given that of its output (`None` for the loss itself, whose gradient is 1).
fn operand_gradients(
    program: &mut Program,
    op: OpId,
    upstream: Option<TensorId>,
) -> Result<Vec<(TensorId, TensorId)>, ProgramError> {
    let inputs = program.inputs(op);
    let output = program.op_outputs(op)[0];
    let kind = program.op(op).clone();
    let no_rule = |place| Err(ProgramError::NoGradient { op: kind.name(), place });
    let Some(dy) = upstream else {
        return match kind {
            Op::SoftmaxCrossEntropy { split } => {
                let dlogits = program.push1(Op::SoftmaxCrossEntropyGrad { split }, &inputs)?;
                Ok(vec![(inputs[0], dlogits)])
            }
            Op::SigmoidCrossEntropy { split } => {
                let dlogits = program.push1(Op::SigmoidCrossEntropyGrad { split }, &inputs)?;
                Ok(vec![(inputs[0], dlogits)])
            }
            _ => no_rule(0),
        };
    };
    let found = match kind {
        Op::Gather { block } => vec![(inputs[0], program.push1(Op::Gather { block: block.transpose() }, &[dy])?)],
        Op::WeightedGather { block } => {
            if program.tensor(inputs[0]).wants_gradient {
                return no_rule(0);
            }
            let order = TensorType { rows: RowSpace::Edges(block), width: 1, dtype: DType::U64 };
            let order = program.input(Origin::EdgePermutation(block), order)?;
            let weights = program.push1(Op::PermuteEdges { block }, &[inputs[0], order])?;
            let back = Op::WeightedGather { block: block.transpose() };
            vec![(inputs[1], program.push1(back, &[weights, dy])?)]
        }
        Op::RowScale => {
            if program.tensor(inputs[1]).wants_gradient {
                return no_rule(1);
            }
            vec![(inputs[0], program.push1(Op::RowScale, &[dy, inputs[1]])?)]
        }
        Op::Linear => {
            let dw = program.push1(Op::LinearWeightGrad, &[dy, inputs[0]])?;
            let dx = program.push1(Op::LinearInputGrad, &[dy, inputs[1]])?;
            vec![(inputs[0], dx), (inputs[1], dw)]
        }
        Op::Round => vec![(inputs[0], dy)],
        Op::Transpose => vec![(inputs[0], program.push1(Op::Transpose, &[dy])?)],
        Op::AddBias => {
            let db = program.push1(Op::ColumnSum, &[dy])?;
            vec![(inputs[0], dy), (inputs[1], db)]
        }
        Op::LayerNorm { eps } => {
            let dx = program.push1(Op::LayerNormInputGrad { eps }, &[dy, inputs[0], inputs[1]])?;
            let dgain = program.push1(Op::LayerNormGainGrad { eps }, &[dy, inputs[0]])?;
            let dbias = program.push1(Op::ColumnSum, &[dy])?;
            vec![(inputs[0], dx), (inputs[1], dgain), (inputs[2], dbias)]
        }
        Op::Add => vec![(inputs[0], dy), (inputs[1], dy)],
        Op::Relu => vec![(inputs[0], program.push1(Op::ReluGrad, &[dy, output])?)],
        Op::Dropout { .. } => vec![(inputs[0], program.push1(kind, &[dy, inputs[1]])?)],
        Op::LinearInputGrad
        | Op::LinearWeightGrad
        | Op::ColumnSum
        | Op::ReluGrad
        | Op::PermuteEdges { .. }
        | Op::SoftmaxCrossEntropy { .. }
        | Op::SoftmaxCrossEntropyGrad { .. }
        | Op::CountCorrect { .. }
        | Op::SigmoidCrossEntropy { .. }
        | Op::SigmoidCrossEntropyGrad { .. }
        | Op::CountMicro { .. }
        | Op::LayerNormInputGrad { .. }
        | Op::LayerNormGainGrad { .. }
        | Op::Fused { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. } => return no_rule(0),
    };
    Ok(found)
}
