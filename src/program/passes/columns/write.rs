//! Writes a program anew, in strips.
//!
//! Operations on strips are not written at once. They wait until a result of theirs is needed in one piece; then all of
//! them are written for the first strip, for the second, and so on. So a strip goes from one operation to the next.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Connection, Cuts, over_features};
use crate::program::dataflow::{OpId, Program, TensorId};
use crate::program::shape::ProgramError;
use crate::program::{Grid, Linear, Op, RowSpace, RowStep, Slice};

/// Writes `program` anew, with its matrices cut.
pub(super) fn write(program: &Program, cuts: &Cuts) -> Result<Program, ProgramError> {
    let mut writer = Writer {
        old: program,
        cuts,
        new: Program::new(),
        values: HashMap::new(),
        waiting: Vec::new(),
        together: 1,
        awaited: HashSet::new(),
        sums: HashMap::new(),
        slices: HashMap::new(),
    };
    for (origin, &tensor) in program.origins() {
        let new = writer.new.input(origin.clone(), program.tensor(tensor).ty)?;
        writer.values.insert(tensor, Value::Whole(new));
    }
    for op in program.ops() {
        writer.op(op)?;
    }
    writer.write_waiting()?;
    for (name, &tensor) in program.outputs() {
        let new = writer.whole(tensor)?;
        writer.new.set_output(name.clone(), new);
    }
    for (&output, &input) in program.next() {
        let [output, input] = [writer.whole(output)?, writer.whole(input)?];
        writer.new.set_next(output, input);
    }
    super::super::prune::prune(&mut writer.new);
    Ok(writer.new)
}

/// What stands for a tensor of the old program.
enum Value {
    Whole(TensorId),
    /// A strip of columns each, of a matrix that is cut; `None` until it is written. The whole once it is needed.
    Strips {
        strips: Vec<Option<TensorId>>,
        whole: Option<TensorId>,
    },
    /// Parts of a parameter's gradient, row by row of the grid, and the whole once it is needed.
    Parts {
        grid: Grid,
        parts: Vec<Option<TensorId>>,
        whole: Option<TensorId>,
    },
}

/// How an operation is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As it is.
    Whole,
    /// Strip by strip, together with others.
    ByStrips,
    /// All strips at once, so that each row is read once.
    ByRows,
}

struct Writer<'a> {
    old: &'a Program,
    cuts: &'a Cuts,
    new: Program,
    values: HashMap<TensorId, Value>,
    /// Operations that will be written strip by strip, in order, and their results.
    waiting: Vec<OpId>,
    /// Number of strips of these operations.
    together: usize,
    awaited: HashSet<TensorId>,
    /// For products that read strips, the sum over the strips so far.
    sums: HashMap<OpId, TensorId>,
    /// Slices of parameters that were written since the last strips.
    slices: HashMap<(TensorId, [usize; 4]), TensorId>,
}

impl Writer<'_> {
    fn op(&mut self, op: OpId) -> Result<(), ProgramError> {
        let way = self.way(op);
        let inputs = self.old.inputs(op);
        // What waits for its own strip alone can wait together.
        let goes_along = |tensor: &TensorId| way == Way::ByStrips && (self.cuts.has(*tensor) || self.is_transpose(op));
        let is_apart = way == Way::ByStrips && !self.waiting.is_empty() && self.strip_count(op) != self.together;
        if is_apart || inputs.iter().any(|tensor| self.awaited.contains(tensor) && !goes_along(tensor)) {
            self.write_waiting()?;
        }
        match way {
            Way::Whole => self.write_whole(op),
            Way::ByStrips => {
                self.together = self.strip_count(op);
                self.waiting.push(op);
                self.awaited.extend(self.old.op_outputs(op));
                Ok(())
            }
            Way::ByRows => {
                self.write_by_rows(op)?;
                self.slices.clear();
                Ok(())
            }
        }
    }

    /// Returns the number of strips in which an operation is written.
    fn strip_count(&self, op: OpId) -> usize {
        let inputs = self.old.inputs(op);
        let cut =
            self.old.op_outputs(op).into_iter().chain(inputs.iter().copied()).find(|&tensor| self.cuts.has(tensor));
        match cut {
            Some(tensor) => self.cuts.count(tensor),
            // A gradient that is transposed waits with what makes it, or came with it.
            None => match self.values.get(&inputs[0]) {
                Some(Value::Parts { parts, .. }) => parts.len(),
                _ => self.together,
            },
        }
    }

    fn is_transpose(&self, op: OpId) -> bool {
        *self.old.op(op) == Op::Linear(Linear::Transpose)
    }

    fn way(&self, id: OpId) -> Way {
        let (op, inputs, out) = (self.old.op(id), self.old.inputs(id), self.old.op_outputs(id)[0]);
        // A product with one side in strips reads the other side once for each strip, if it goes along with others;
        // otherwise the strips are stored and loaded.
        let one_sided = |cut: TensorId, whole: TensorId| {
            let width = |tensor| self.old.tensor(tensor).ty.width;
            let goes_along = width(whole) * (self.cuts.count(cut) - 1) < 2 * width(cut);
            if goes_along { Way::ByStrips } else { Way::ByRows }
        };
        let of = |a: TensorId, b: TensorId| match (self.cuts.has(a), self.cuts.has(b)) {
            (true, true) => Way::ByRows,
            (true, false) => one_sided(a, b),
            (false, true) => one_sided(b, a),
            (false, false) => Way::Whole,
        };
        match op.head() {
            Op::Linear(Linear::Product | Linear::InputGrad) => of(inputs[0], out),
            Op::Linear(Linear::WeightGrad) => of(inputs[0], inputs[1]),
            Op::Linear(Linear::Transpose) => {
                let is_in_parts =
                    matches!(self.values.get(&inputs[0]), Some(Value::Parts { grid, .. }) if grid.parts.contains(&1));
                if is_in_parts || self.transposes_what_waits(inputs[0]) { Way::ByStrips } else { Way::Whole }
            }
            _ if matches!(Connection::of(self.old, id), Connection::None) => Way::Whole,
            _ if self.cuts.has(out) || inputs.iter().any(|&input| self.cuts.has(input)) => Way::ByStrips,
            _ => Way::Whole,
        }
    }

    /// Whether a tensor is the gradient of a weight of sparse features that waits to be written in parts.
    fn transposes_what_waits(&self, tensor: TensorId) -> bool {
        self.awaited.contains(&tensor) && self.old.producer(tensor).is_some_and(|op| over_features(self.old.op(op)))
    }

    /// Writes all operations that wait, strip by strip.
    fn write_waiting(&mut self) -> Result<(), ProgramError> {
        let waiting = std::mem::take(&mut self.waiting);
        self.awaited.clear();
        for strip in 0..self.together {
            let mut is_first = true;
            for &op in &waiting {
                let made = self.write_strip(op, strip)?;
                if std::mem::take(&mut is_first) {
                    self.new.start_run(made);
                }
            }
            self.slices.clear();
        }
        Ok(())
    }

    fn write_whole(&mut self, id: OpId) -> Result<(), ProgramError> {
        let inputs = self.old.inputs(id).into_iter().map(|input| self.whole(input)).collect::<Result<Vec<_>, _>>()?;
        let made = self.new.push(self.old.op(id).clone(), &inputs)?;
        let values = made.into_iter().map(Value::Whole);
        self.values.extend(self.old.op_outputs(id).into_iter().zip(values));
        Ok(())
    }

    /// Writes an operation for one strip. Returns what it makes.
    fn write_strip(&mut self, id: OpId, strip: usize) -> Result<TensorId, ProgramError> {
        let (op, inputs, out) = (self.old.op(id), self.old.inputs(id), self.old.op_outputs(id)[0]);
        let some = |tensor: TensorId| self.cuts.has(tensor).then_some(strip);
        match op.head() {
            Op::Linear(Linear::Product | Linear::InputGrad) => self.write_product(id, some(out), some(inputs[0])),
            Op::Linear(Linear::WeightGrad) => {
                let [grad, x] = [some(inputs[0]), some(inputs[1])];
                self.write_weight_grad(id, grad, x)
            }
            Op::Linear(Linear::ColumnSum) => {
                let made = self.strip(inputs[0], strip)?;
                let made = self.new.push1(Linear::ColumnSum, &[made])?;
                self.set_part(out, [1, self.cuts.count(inputs[0])], strip, made);
                Ok(made)
            }
            Op::Linear(Linear::Transpose) => {
                let Some(Value::Parts { grid: Grid { parts: [down, across], .. }, parts, .. }) =
                    self.values.get(&inputs[0])
                else {
                    unreachable!("what is transposed in strips comes in parts")
                };
                let (part, turned) = (parts[strip].expect("its strip was written before"), [*across, *down]);
                let made = self.new.push1(Linear::Transpose, &[part])?;
                self.set_part(out, turned, strip, made);
                Ok(made)
            }
            _ if over_features(op) && !self.cuts.has(out) => {
                let mut operands = vec![self.strip(inputs[0], strip)?];
                for &other in &inputs[1..] {
                    operands.push(self.whole(other)?);
                }
                let made = self.new.push1(op.clone(), &operands)?;
                self.set_part(out, [1, self.cuts.count(inputs[0])], strip, made);
                Ok(made)
            }
            _ => {
                let columns = self.columns(out, strip);
                let head = op.head().input_count();
                let operands = inputs[..head].iter().map(|&input| self.columns_of(input, out, strip));
                let operands = operands.collect::<Result<Vec<_>, _>>()?;
                let op = at_column(op.head().clone(), columns.start);
                self.write_head(id, op, operands, Some(strip))
            }
        }
    }

    /// Writes a head with these operands, and the steps that follow it. Returns what it makes.
    fn write_head(
        &mut self,
        id: OpId,
        head: Op,
        mut operands: Vec<TensorId>,
        strip: Option<usize>,
    ) -> Result<TensorId, ProgramError> {
        let (op, inputs, out) = (self.old.op(id), self.old.inputs(id), self.old.op_outputs(id)[0]);
        let first = strip.map_or(0, |strip| self.columns(out, strip).start);
        for &input in &inputs[op.head().input_count()..] {
            operands.push(match strip {
                Some(strip) => self.columns_of(input, out, strip)?,
                None => self.whole(input)?,
            });
        }
        let steps = op.steps().iter().map(|&step| match at_column(step.into(), first) {
            Op::Row(step) => step,
            _ => step,
        });
        let made = self.new.push1(head.followed_by(steps), &operands)?;
        self.set(out, strip, made);
        Ok(made)
    }

    /// Writes a product of one strip or all of `x`, to one strip or all of the output. It goes on with the sum over the
    /// strips of `x` before.
    fn write_product(&mut self, id: OpId, made: Option<usize>, x: Option<usize>) -> Result<TensorId, ProgramError> {
        let (op, inputs, out) = (self.old.op(id), self.old.inputs(id), self.old.op_outputs(id)[0]);
        let [x_columns, out_columns] = [(inputs[0], x), (out, made)].map(|(tensor, strip)| match strip {
            Some(strip) => self.columns(tensor, strip),
            None => 0..self.old.tensor(tensor).ty.width,
        });
        let forward = *op.head() == Op::Linear(Linear::Product);
        let weight = if forward { [out_columns, x_columns] } else { [x_columns, out_columns] };
        let mut operands = vec![self.whole_or_strip(inputs[0], x)?, self.slice(inputs[1], weight)?];
        let before = self.sums.remove(&id);
        operands.extend(before);
        let head = match (forward, before.is_some()) {
            (true, false) => Linear::Product,
            (true, true) => Linear::ProductOnto,
            (false, false) => Linear::InputGrad,
            (false, true) => Linear::InputGradOnto,
        };
        if x.is_none_or(|strip| strip + 1 == self.cuts.count(inputs[0])) {
            return self.write_head(id, head.into(), operands, made);
        }
        let sum = self.new.push1(head, &operands)?;
        self.sums.insert(id, sum);
        Ok(sum)
    }

    /// Writes the part of a weight's gradient that one strip, or all, of both operands make.
    fn write_weight_grad(&mut self, id: OpId, grad: Option<usize>, x: Option<usize>) -> Result<TensorId, ProgramError> {
        let (inputs, out) = (self.old.inputs(id), self.old.op_outputs(id)[0]);
        let operands = [self.whole_or_strip(inputs[0], grad)?, self.whole_or_strip(inputs[1], x)?];
        let made = self.new.push1(Linear::WeightGrad, &operands)?;
        let parts =
            [(inputs[0], grad), (inputs[1], x)].map(|(tensor, strip)| strip.map_or(1, |_| self.cuts.count(tensor)));
        self.set_part(out, parts, grad.unwrap_or(0) * parts[1] + x.unwrap_or(0), made);
        Ok(made)
    }

    /// Writes all strips of a product, or of its weight's gradient.
    fn write_by_rows(&mut self, id: OpId) -> Result<(), ProgramError> {
        let (inputs, out) = (self.old.inputs(id), self.old.op_outputs(id)[0]);
        let strips = |tensor: TensorId| match self.cuts.has(tensor) {
            true => (0..self.cuts.count(tensor)).map(Some).collect::<Vec<_>>(),
            false => vec![None],
        };
        let is_weight_grad = *self.old.op(id).head() == Op::Linear(Linear::WeightGrad);
        let [outer, inner] = if is_weight_grad { [inputs[0], inputs[1]] } else { [out, inputs[0]] }.map(strips);
        for outer in outer {
            for &inner in &inner {
                match is_weight_grad {
                    true => self.write_weight_grad(id, outer, inner)?,
                    false => self.write_product(id, outer, inner)?,
                };
            }
        }
        Ok(())
    }

    fn columns(&self, tensor: TensorId, strip: usize) -> Range<usize> {
        self.cuts.columns(tensor, self.old.tensor(tensor).ty.width, strip)
    }

    /// Returns what an operation on the columns of `out` reads of an operand, for one strip.
    fn columns_of(&mut self, operand: TensorId, out: TensorId, strip: usize) -> Result<TensorId, ProgramError> {
        if self.cuts.has(operand) {
            return self.strip(operand, strip);
        }
        let ty = self.old.tensor(operand).ty;
        if ty.width != self.old.tensor(out).ty.width {
            return self.whole(operand);
        }
        let columns = self.columns(out, strip);
        let RowSpace::Param(rows) = ty.rows else {
            let whole = self.whole(operand)?;
            return self.copied(whole, columns);
        };
        // Columns of a transposed weight are transposed rows.
        match self.old.producer(operand).filter(|&maker| self.is_transpose(maker)) {
            Some(maker) => {
                let part = self.slice(self.old.inputs(maker)[0], [columns, 0..rows])?;
                self.new.push1(Linear::Transpose, &[part])
            }
            None => self.slice(operand, [0..rows, columns]),
        }
    }

    /// Returns some rows and columns of a parameter.
    fn slice(&mut self, parameter: TensorId, [rows, cols]: [Range<usize>; 2]) -> Result<TensorId, ProgramError> {
        let ty = self.old.tensor(parameter).ty;
        let whole = self.whole(parameter)?;
        if ty.rows == RowSpace::Param(rows.len()) && ty.width == cols.len() {
            return Ok(whole);
        }
        let key = (whole, [rows.start, rows.end, cols.start, cols.end]);
        if let Some(&known) = self.slices.get(&key) {
            return Ok(known);
        }
        let cut = Slice { first: [rows.start, cols.start], shape: [rows.len(), cols.len()] };
        let made = self.new.push1(Linear::Slice(cut), &[whole])?;
        self.slices.insert(key, made);
        Ok(made)
    }

    fn whole_or_strip(&mut self, tensor: TensorId, strip: Option<usize>) -> Result<TensorId, ProgramError> {
        match strip {
            Some(strip) => self.strip(tensor, strip),
            None => self.whole(tensor),
        }
    }

    /// Returns a strip of a matrix that is cut: what made it, or its columns, if it was made in one piece.
    fn strip(&mut self, tensor: TensorId, strip: usize) -> Result<TensorId, ProgramError> {
        let whole = match self.values.get(&tensor) {
            Some(Value::Strips { strips, .. }) => {
                return Ok(strips[strip].expect("what makes a strip was written before"));
            }
            Some(&Value::Whole(whole)) => whole,
            _ => unreachable!("a matrix that is cut has strips"),
        };
        self.copied(whole, self.columns(tensor, strip))
    }

    /// Returns some columns of a matrix that was made in one piece.
    fn copied(&mut self, whole: TensorId, columns: Range<usize>) -> Result<TensorId, ProgramError> {
        let key = (whole, [0, 0, columns.start, columns.end]);
        if let Some(&known) = self.slices.get(&key) {
            return Ok(known);
        }
        let copied = Linear::Columns { first: columns.start, count: columns.len() };
        let made = self.new.push1(copied, &[whole])?;
        self.slices.insert(key, made);
        Ok(made)
    }

    /// Returns a tensor in one piece.
    fn whole(&mut self, tensor: TensorId) -> Result<TensorId, ProgramError> {
        let (join, parts) = match self.values.get(&tensor) {
            Some(
                &Value::Whole(new) | &Value::Parts { whole: Some(new), .. } | &Value::Strips { whole: Some(new), .. },
            ) => return Ok(new),
            Some(Value::Parts { grid, parts, .. }) => (Linear::Join(*grid), parts.clone()),
            Some(Value::Strips { strips, .. }) => {
                let cols = self.old.tensor(tensor).ty.width;
                (Linear::Beside { strips: strips.len(), cols }, strips.clone())
            }
            None => unreachable!("an operand was written before"),
        };
        let written: Vec<TensorId> =
            parts.into_iter().map(|part| part.expect("all parts were written before")).collect();
        let joined = self.new.push1(join, &written)?;
        if let Some(Value::Parts { whole, .. } | Value::Strips { whole, .. }) = self.values.get_mut(&tensor) {
            *whole = Some(joined);
        }
        Ok(joined)
    }

    /// Notes what was written for a tensor, or for one strip of it.
    fn set(&mut self, tensor: TensorId, strip: Option<usize>, made: TensorId) {
        let Some(strip) = strip else {
            self.values.insert(tensor, Value::Whole(made));
            return;
        };
        let none = || Value::Strips { strips: vec![None; self.cuts.count(tensor)], whole: None };
        if let Value::Strips { strips, .. } = self.values.entry(tensor).or_insert_with(none) {
            strips[strip] = Some(made);
        }
    }

    /// Notes what was written for a part of a parameter's gradient.
    fn set_part(&mut self, tensor: TensorId, counts: [usize; 2], part: usize, made: TensorId) {
        let ty = self.old.tensor(tensor).ty;
        let rows = if let RowSpace::Param(rows) = ty.rows { rows } else { 1 };
        let grid = Grid { shape: [rows, ty.width], parts: counts };
        let none = || Value::Parts { grid, parts: vec![None; counts[0] * counts[1]], whole: None };
        if let Value::Parts { parts, .. } = self.values.entry(tensor).or_insert_with(none) {
            parts[part] = Some(made);
        }
    }
}

/// Returns an operation for a strip that begins at this column.
fn at_column(op: Op, first: usize) -> Op {
    match op {
        Op::Row(RowStep::Dropout { rate, salt, first_column }) => {
            RowStep::Dropout { rate, salt, first_column: first_column + first as u32 }.into()
        }
        op => op,
    }
}
