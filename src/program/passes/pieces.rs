//! Pieces: a parameter that is only read some rows at a time is kept and updated in pieces of these rows.
//!
//! Operations on strips of columns read a weight slice by slice, and make its gradient part by part. The weight of sparse
//! features can have more rows than the graph has, so in little memory there may be no room for all of it beside its
//! gradient. In pieces, a device needs room for one of them. An update works on each number by itself, so the bits are the
//! same.

use std::ops::Range;

use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::shape::ProgramError;
use crate::program::{Linear, Op, Origin, RowSpace, TensorType};

use super::prune::prune;

/// Cuts parameters into pieces where both programs allow it: every reader but the update takes a slice of whole rows, and
/// the gradient is joined from the parts that belong to these slices. Each piece is updated before the operations on the next
/// strip begin.
///
/// # Errors
/// None for well-formed programs.
/// # Cost
/// O(operations x pieces).
pub fn pieces(training: &mut Program, evaluation: &mut Program) -> Result<(), ProgramError> {
    let mut is_cut = false;
    let origins: Vec<Origin> = training.origins().keys().cloned().collect();
    for origin in origins.into_iter().filter(|origin| matches!(origin, Origin::Parameter(_))) {
        let Some(joined) = Joined::of(training, &origin) else { continue };
        if [&*training, &*evaluation].into_iter().all(|program| reads_only(program, &origin, &joined.rows)) {
            read_pieces(training, &origin, &joined.rows)?;
            read_pieces(evaluation, &origin, &joined.rows)?;
            update_pieces(training, &joined)?;
            is_cut = true;
        }
    }
    if is_cut {
        prune(training);
        prune(evaluation);
    }
    Ok(())
}

/// A parameter whose gradient is joined from parts, for its update alone.
struct Joined {
    update: OpId,
    /// The parts of the gradient, and the rows of each.
    parts: Vec<TensorId>,
    rows: Vec<Range<usize>>,
}

impl Joined {
    fn of(program: &Program, origin: &Origin) -> Option<Self> {
        let readers = program.consumers(program.origins()[origin]);
        let update = readers.into_iter().find(|&op| matches!(program.op(op), Op::Optimizer(_)))?;
        let gradient = program.inputs(update)[1];
        let maker = program.producer(gradient)?;
        let is_joined =
            matches!(program.op(maker), Op::Linear(Linear::Join(grid)) if grid.parts[0] > 1 && grid.parts[1] == 1);
        let is_read_once = program.consumers(gradient) == [update];
        if !is_joined || !is_read_once || program.outputs().values().any(|&output| output == gradient) {
            return None;
        }
        let parts = program.inputs(maker);
        let mut first = 0;
        let rows = parts.iter().map(|&part| {
            let end = first + parameter_rows(program.tensor(part).ty);
            std::mem::replace(&mut first, end)..end
        });
        Some(Self { update, rows: rows.collect(), parts })
    }
}

fn parameter_rows(ty: TensorType) -> usize {
    if let RowSpace::Param(rows) = ty.rows { rows } else { 0 }
}

/// Returns the rows of a parameter that an operation takes, if it takes whole rows and nothing else.
fn slice_of(program: &Program, op: OpId, parameter: TensorId) -> Option<Range<usize>> {
    match program.op(op) {
        Op::Linear(Linear::Slice(cut)) if cut.shape[1] == program.tensor(parameter).ty.width => {
            Some(cut.first[0]..cut.first[0] + cut.shape[0])
        }
        _ => None,
    }
}

/// Whether a program reads a parameter by these rows alone, apart from its update.
fn reads_only(program: &Program, origin: &Origin, rows: &[Range<usize>]) -> bool {
    let Some(&parameter) = program.origins().get(origin) else { return true };
    program.consumers(parameter).into_iter().all(|op| {
        let is_update = matches!(program.op(op), Op::Optimizer(_));
        is_update || slice_of(program, op, parameter).is_some_and(|slice| rows.contains(&slice))
    })
}

/// Replaces slices of a parameter by its pieces.
fn read_pieces(program: &mut Program, origin: &Origin, rows: &[Range<usize>]) -> Result<(), ProgramError> {
    let Some(&parameter) = program.origins().get(origin) else { return Ok(()) };
    for op in program.consumers(parameter) {
        let Some(slice) = slice_of(program, op, parameter).filter(|slice| rows.contains(slice)) else { continue };
        let piece = piece(program, parameter, &slice)?;
        let cut = program.op_outputs(op)[0];
        program.redirect(cut, piece);
        program.remove_op(op);
    }
    Ok(())
}

/// Returns these rows of a tensor that no operation makes.
fn piece(program: &mut Program, whole: TensorId, rows: &Range<usize>) -> Result<TensorId, ProgramError> {
    let described = program.tensor(whole);
    let origin = described.origin.clone().expect("a parameter and its moments have origins");
    let ty = TensorType { rows: RowSpace::Param(rows.len()), ..described.ty };
    let piece = program.input(Origin::Rows { of: Box::new(origin), first: rows.start }, ty)?;
    program.make_as_old(piece, whole);
    Ok(piece)
}

/// Replaces an update by those of the pieces.
fn update_pieces(program: &mut Program, joined: &Joined) -> Result<(), ProgramError> {
    let Joined { update, parts, rows } = joined;
    let (op, inputs, outputs) = (program.op(*update).clone(), program.inputs(*update), program.op_outputs(*update));
    let whole = program.tensor(inputs[0]).ty;
    for (&part, rows) in parts.iter().zip(rows) {
        let mut of_piece = Vec::new();
        for (place, &input) in inputs.iter().enumerate() {
            of_piece.push(match place {
                1 => part,
                _ if program.tensor(input).ty == whole => piece(program, input, rows)?,
                _ => input,
            });
        }
        let made = program.push(op.clone(), &of_piece)?;
        for (&old, &new) in outputs.iter().zip(&made) {
            let carried = program.next()[&old];
            let place = inputs.iter().position(|&input| input == carried).expect("an update replaces an operand");
            program.set_next(new, of_piece[place]);
        }
        let maker = program.producer(part).expect("a gradient is computed");
        let updated = program.producer(made[0]).expect("it was added");
        // In between, operations go through their tiles together.
        let order = program.ops();
        let next = order.into_iter().skip_while(|&op| op != maker).find(|&op| op != maker && program.starts_run(op));
        if let Some(next) = next {
            program.move_before(updated, next);
        }
    }
    program.remove_op(*update);
    Ok(())
}
