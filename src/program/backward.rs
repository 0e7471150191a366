//! Reverse-mode differentiation: applies the gradient rule of each operation's record, from the loss backwards.

use std::collections::BTreeMap;

use lapidary_kernels::op::{Backward, DType, EdgeOp, Gradient, Op, RowSpace, RowStep, TensorType, Value};

use super::dataflow::{OpId, Program, TensorId};
use super::ir::Origin;
use super::shape::ProgramError;

/// The name of the learned rows of vertices, as `torch.nn.Embedding` has it in a module that calls it `embedding`.
pub const EMBEDDING: &str = "embedding.weight";

/// Appends the operations that compute the gradient of a weighted sum of scalar losses, and returns the gradient of
/// each parameter by name; that of learned rows is under [`EMBEDDING`]. `losses` has each loss once, with its weight.
///
/// Every floating-point operand of every operation between a parameter and the loss gets a gradient, even if it is not
/// needed; the pass `prune` removes those. If a tensor has several readers, their gradients are added, newest reader
/// first.
///
/// # Errors
/// [`ProgramError::NoGradient`] if a parameter reaches the loss through an operand without a gradient rule.
/// # Cost
/// O(operations), with at most two new ones per operand.
/// # Source
/// Baydin et al., Automatic differentiation in machine learning, JMLR 2018, section 3.2.
pub fn append_backward(
    program: &mut Program,
    losses: &[(TensorId, f32)],
) -> Result<BTreeMap<String, TensorId>, ProgramError> {
    let mut gradients: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for op in program.ops().into_iter().rev() {
        let outputs = program.op_outputs(op);
        let weight = losses.iter().find(|(loss, _)| outputs.contains(loss)).map(|&(_, weight)| weight);
        let flows = program.tensor(outputs[0]).wants_gradient;
        let upstream = gradients.get(&outputs[0]).copied();
        if !flows || (upstream.is_none() && weight.is_none()) {
            continue;
        }
        for (operand, gradient) in operand_gradients(program, op, upstream)? {
            let gradient = match weight {
                Some(by) if by != 1.0 => program.push1(RowStep::Multiply { by }, &[gradient])?,
                _ => gradient,
            };
            let sum = match gradients.get(&operand) {
                Some(&other) => program.push1(RowStep::Add, &[other, gradient])?,
                None => gradient,
            };
            gradients.insert(operand, sum);
        }
    }
    let parameters = program.origins().iter().filter_map(|(origin, id)| match origin {
        Origin::Parameter(name) => gradients.get(id).map(|&gradient| (name.clone(), gradient)),
        origin if origin.is_embedding() => gradients.get(id).map(|&gradient| (EMBEDDING.into(), gradient)),
        _ => None,
    });
    Ok(parameters.collect())
}

/// Returns the gradients of `op`'s operands by the rule of its record. `upstream` is the gradient of its output; `None`
/// for the loss itself, whose gradient is 1.
fn operand_gradients(
    program: &mut Program,
    op: OpId,
    upstream: Option<TensorId>,
) -> Result<Vec<(TensorId, TensorId)>, ProgramError> {
    let (inputs, outputs, kind) = (program.inputs(op), program.op_outputs(op), program.op(op).clone());
    let no_rule = |place| ProgramError::NoGradient { op: kind.name(), place };
    let mut said = Backward::default();
    match (kind.record().gradient, upstream) {
        _ if !kind.steps().is_empty() => return Err(no_rule(0)),
        (Gradient::Rule(rule), Some(_)) | (Gradient::OfLoss(rule), None) => rule(&kind, &mut said),
        _ => return Err(no_rule(0)),
    }
    let wanted = |&place: &usize| program.tensor(inputs[place]).wants_gradient;
    let given = |place: &usize| {
        said.covered.contains(place) || said.gradients.iter().any(|&(given, _)| inputs[given] == inputs[*place])
    };
    if let Some(place) = (0..inputs.len()).filter(wanted).find(|place| !given(place)) {
        return Err(no_rule(place));
    }
    let mut made = Vec::new();
    for (op, operands) in said.ops {
        let operands = operands.into_iter().map(|value| {
            let one = |rows, dtype| TensorType { rows, width: 1, dtype };
            match value {
                Value::EdgeOrder(block) => {
                    program.input(Origin::EdgePermutation(block), one(RowSpace::Edges(block), DType::U64))
                }
                Value::EdgeWeights(block, loops) => {
                    program.input(Origin::EdgeWeights(block, loops), one(RowSpace::Edges(block), DType::F32))
                }
                Value::SourceIds(block) => {
                    program.input(Origin::SourceIds(block), one(RowSpace::Sources(block), DType::U32))
                }
                value => Ok(named(value, &inputs, &outputs, upstream, &made)),
            }
        });
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        made.push(push_rule(program, op, &operands)?);
    }
    let gradients = said.gradients.into_iter();
    Ok(gradients.map(|(place, value)| (inputs[place], named(value, &inputs, &outputs, upstream, &made))).collect())
}

/// Appends an operation of a gradient rule. If it permutes what a dropout has made, the two change places: first the values
/// are permuted, then they are dropped. The values before a dropout are mostly constant, so they are permuted once.
fn push_rule(program: &mut Program, op: Op, operands: &[TensorId]) -> Result<TensorId, ProgramError> {
    let (Op::Edge(EdgeOp::Permute { .. }), &[values, order]) = (&op, operands) else {
        return program.push1(op, operands);
    };
    match program.producer(values).map(|maker| (program.op(maker).clone(), program.inputs(maker))) {
        Some((dropout @ Op::Row(RowStep::Dropout { .. }), inputs)) => {
            let moved = push_once(program, op, &[inputs[0], order])?;
            push_once(program, dropout, &[moved, inputs[1]])
        }
        _ => push_once(program, op, operands),
    }
}

/// Returns what an equal operation has made already, or appends the operation.
fn push_once(program: &mut Program, op: Op, inputs: &[TensorId]) -> Result<TensorId, ProgramError> {
    let is_equal = |&other: &OpId| *program.op(other) == op && program.inputs(other) == inputs;
    match program.consumers(inputs[0]).into_iter().find(is_equal) {
        Some(other) => Ok(program.op_outputs(other)[0]),
        None => program.push1(op, inputs),
    }
}

/// Returns the tensor that a value of a gradient rule stands for.
fn named(value: Value, inputs: &[TensorId], outputs: &[TensorId], dy: Option<TensorId>, made: &[TensorId]) -> TensorId {
    match value {
        Value::Dy => dy.expect("the rule of a loss names no gradient of its output"),
        Value::Y => outputs[0],
        Value::Output(place) => outputs[place],
        Value::X(place) => inputs[place],
        Value::Made(number) => made[number],
        Value::EdgeOrder(_) | Value::EdgeWeights(..) | Value::SourceIds(_) => {
            unreachable!("what edges have is no gradient")
        }
    }
}
