//! Stages: a forward program cut at its gathers over the graph. With what the stages before it made, a stage computes the
//! rows of any vertices alone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lapidary_kernels::op::TensorType;

use super::BlockSpec;
use super::dataflow::{OpId, Program, TensorId};
use super::ir::Origin;
use super::levels::over_levels;
use super::passes::prune::prune;
use super::shape::ProgramError;

/// A forward program, and its stages. What a stage makes depends on as many gathers over the graph as its number says.
#[derive(Debug)]
pub struct Stages {
    /// The whole program. What one stage makes and a later one reads are outputs of it, named by [`made_name`].
    pub whole: Program,
    /// The stages, for mini-batches: stage 0 without layers, the others with one layer. Their outputs are those of the whole
    /// program; a stage that makes none has no operation.
    pub stages: Vec<Program>,
    /// The type of each tensor that one stage makes and a later one reads.
    pub made: Vec<TensorType>,
}

/// Returns the name of the output that has the tensor [`Origin::Made`] with this number.
pub fn made_name(number: usize) -> String {
    format!("made {number}")
}

impl Stages {
    /// Cuts a program.
    ///
    /// # Errors
    /// Those of [`over_levels`].
    /// # Cost
    /// O(operations log operations) for each stage.
    pub fn of(program: &Program) -> Result<Self, ProgramError> {
        let stage_of = stages(program);
        let stage = |tensor: TensorId| stage_of.get(&tensor).copied().unwrap_or(0);
        let stage_of_op = |op: OpId| program.op_outputs(op).into_iter().map(stage).max().unwrap_or(0);
        let mut numbers = BTreeMap::new();
        for op in program.ops() {
            for input in program.inputs(op) {
                let number = numbers.len();
                if is_of_vertices(program, input) && stage(input) < stage_of_op(op) {
                    numbers.entry(input).or_insert(number);
                }
            }
        }
        let mut whole = program.clone();
        let mut made = vec![None; numbers.len()];
        for (&tensor, &number) in &numbers {
            whole.set_output(made_name(number), tensor);
            made[number] = Some(program.tensor(tensor).ty);
        }
        let last = program.outputs().values().map(|&output| stage(output)).max().unwrap_or(0);
        let cut = (0..=last).map(|number| {
            // What is computed from parameters alone is computed again by each stage that reads it.
            let has_rows = |op: OpId| program.op_outputs(op).into_iter().any(|output| is_of_vertices(program, output));
            let is_part = |op: &OpId| stage_of_op(*op) == number || (stage_of_op(*op) == 0 && !has_rows(*op));
            let some = part(program, program.ops().into_iter().filter(is_part), &numbers)?;
            over_levels(&some, usize::from(number > 0), false)
        });
        Ok(Self { stages: cut.collect::<Result<_, _>>()?, whole, made: made.into_iter().flatten().collect() })
    }
}

/// Whether an operation makes the rows of a tensor, and each belongs to a vertex.
fn is_of_vertices(program: &Program, tensor: TensorId) -> bool {
    let tensor = program.tensor(tensor);
    tensor.origin.is_none() && tensor.ty.rows.is_of_vertices()
}

/// Returns the number of gathers over the graph before each tensor that an operation makes.
fn stages(program: &Program) -> BTreeMap<TensorId, usize> {
    let mut of: BTreeMap<TensorId, usize> = BTreeMap::new();
    for op in program.ops() {
        let gathers = program.op(op).gathers() && matches!(program.op(op).block(), Some(BlockSpec::Graph { .. }));
        let before = program.inputs(op).into_iter().filter_map(|input| of.get(&input).copied()).max().unwrap_or(0);
        of.extend(program.op_outputs(op).into_iter().map(|output| (output, before + usize::from(gathers))));
    }
    of
}

/// Returns a program of some operations. It reads [`Origin::Made`] where others made the operand.
fn part(
    program: &Program,
    ops: impl Iterator<Item = OpId>,
    numbers: &BTreeMap<TensorId, usize>,
) -> Result<Program, ProgramError> {
    let mut some = Program::new();
    let mut new: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for op in ops {
        let mut inputs = Vec::new();
        for old in program.inputs(op) {
            let input = match new.entry(old) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => {
                    let tensor = program.tensor(old);
                    let origin = tensor.origin.clone().unwrap_or_else(|| Origin::Made(numbers[&old]));
                    *place.insert(some.input(origin, tensor.ty)?)
                }
            };
            inputs.push(input);
        }
        let outputs = some.push(program.op(op).clone(), &inputs)?;
        new.extend(program.op_outputs(op).into_iter().zip(outputs));
    }
    let is_here = |tensor: &TensorId| some.producer(*tensor).is_some();
    let named = program.outputs().iter().map(|(name, output)| (name.clone(), *output));
    let named = named.chain(numbers.iter().map(|(&tensor, &number)| (made_name(number), tensor)));
    let outputs = named.filter_map(|(name, old)| Some((name, *new.get(&old).filter(|new| is_here(new))?)));
    for (name, output) in outputs.collect::<Vec<_>>() {
        some.set_output(name, output);
    }
    prune(&mut some);
    Ok(some)
}
