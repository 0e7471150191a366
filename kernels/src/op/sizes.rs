//! Sizes of operands: learned from some operands of a record, then checked against the others.
//!
//! The same rules apply twice: to row spaces, when a program is written ([`infer`]), and to numbers, when a call is
//! created ([`Call::new`]) and when a device receives it ([`Call::check`]).

use super::call::{BlockSlots, Call, Mat, Window};
use super::record::{Dim, Domain, Operand, Row, Stored};
use super::types::{BlockSpec, DType, RowSpace, TensorType};
use super::{AttentionRows, Grid, Move, Op, RowStep, Slice};
use crate::error::{Error, Result};

/// A size: a number, or a row space whose row count is not known before lowering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A known number.
    Count(usize),
    /// The number of rows of a row space.
    Rows(RowSpace),
}

/// The context of the sizes: a program or a call.
#[derive(Clone, Copy, Debug)]
enum Over {
    Program(Option<BlockSpec>),
    Call { block: Option<BlockSlots>, windowed: bool, window: Window },
}

/// The values of the letters of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    over: Over,
    n: Option<Extent>,
    d: Option<usize>,
    k: Option<usize>,
    heads: usize,
    made: [Option<usize>; 2],
    edges: Option<usize>,
    stored: Option<DType>,
}

/// Why operands do not fit an operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The number of operands is wrong.
    #[error("{op} takes {want} operands, not {got}")]
    OperandCount {
        /// The operation.
        op: &'static str,
        /// Number of operands that the operation takes.
        want: usize,
        /// Number of operands given.
        got: usize,
    },
    /// An operand has the wrong shape or element type.
    #[error("{op}: operand {place} is {got:?}, but {want} is needed")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Index of the operand, from 0.
        place: usize,
        /// The type that is needed.
        want: String,
        /// The type that was given.
        got: TensorType,
    },
    /// An operation that cannot have its position in a fused operation.
    #[error("{op} cannot be the head or a step of a fused operation")]
    NotFusable {
        /// The operation.
        op: &'static str,
    },
}

impl From<RowSpace> for Extent {
    fn from(rows: RowSpace) -> Self {
        match rows {
            RowSpace::Param(rows) => Self::Count(rows),
            rows => Self::Rows(rows),
        }
    }
}

impl Extent {
    fn rows(self) -> RowSpace {
        match self {
            Self::Count(rows) => RowSpace::Param(rows),
            Self::Rows(rows) => rows,
        }
    }

    fn count(self) -> Option<usize> {
        match self {
            Self::Count(count) => Some(count),
            Self::Rows(_) => None,
        }
    }
}

impl Sizes {
    fn new(over: Over, op: &Op) -> Self {
        Self { heads: op.heads().unwrap_or(0), made: op.made(), ..Self::of_step(over) }
    }

    fn of_step(over: Over) -> Self {
        Self { over, n: None, d: None, k: None, heads: 0, made: [None, None], edges: None, stored: None }
    }

    /// Returns the value of a dimension, if it is known.
    pub(crate) fn known(&self, dim: Dim) -> Option<Extent> {
        let count = |count: Option<usize>| count.map(Extent::Count);
        match (dim, self.over) {
            (Dim::N, _) | (Dim::UpdateRows, Over::Program(_)) => self.n,
            (Dim::D, _) | (Dim::UpdateWhole | Dim::UpdateWindow, Over::Program(_)) => count(self.d),
            (Dim::K, _) => count(self.k),
            (Dim::Just(number), _) => Some(Extent::Count(number)),
            (Dim::Cols { d: 0, heads }, _) => Some(Extent::Count(heads.saturating_mul(self.heads))),
            (Dim::Cols { d, heads }, _) => {
                let heads = heads.saturating_mul(self.heads);
                count(self.d.map(|known| known.saturating_mul(d).saturating_add(heads)))
            }
            (Dim::MadeRows, Over::Program(_)) => count(self.made[0]),
            (Dim::MadeCols, Over::Program(_)) => count(self.made[1]),
            (Dim::MadeRows | Dim::MadeCols, Over::Call { .. }) => None,
            (Dim::Scalar, Over::Program(_)) => Some(Extent::Rows(RowSpace::Scalar)),
            (Dim::Scalar | Dim::UpdateRows, Over::Call { .. }) => Some(Extent::Count(1)),
            (Dim::UpdateWhole, Over::Call { window, .. }) => Some(Extent::Count(window.end())),
            (Dim::UpdateWindow, Over::Call { window, .. }) => Some(Extent::Count(window.len)),
            (Dim::Sources, Over::Program(block)) => block.map(|block| block.sources().into()),
            (Dim::BlockRows, Over::Program(block)) => block.map(|block| block.rows().into()),
            (Dim::Edges, Over::Program(block)) => block.map(|block| Extent::Rows(RowSpace::Edges(block))),
            (Dim::EdgesBack, Over::Program(block)) => {
                block.map(|block| Extent::Rows(RowSpace::Edges(block.transpose())))
            }
            (Dim::AllSources, Over::Program(block)) => block.map(|block| Extent::Rows(RowSpace::Sources(block))),
            (Dim::AllSources, Over::Call { block, .. }) => {
                count(block.map(|block| block.own_sources.saturating_add(block.halo_sources)))
            }
            // The number of sources in a window is not known here.
            (Dim::Sources, Over::Call { windowed: true, .. }) | (Dim::Any, _) => None,
            (Dim::Sources, Over::Call { block, .. }) => count(block.map(|block| block.own_sources)),
            (Dim::BlockRows, Over::Call { block, .. }) => count(block.map(|block| block.rows)),
            (Dim::Edges | Dim::EdgesBack, Over::Call { block, .. }) => {
                count(block.map(|block| block.edges).or(self.edges))
            }
        }
    }

    /// Checks a size against the known value, or learns it. Returns whether they agree.
    fn learn(&mut self, dim: Dim, got: Extent) -> bool {
        if let Some(known) = self.known(dim) {
            return known == got;
        }
        let number = match dim {
            Dim::N | Dim::UpdateRows => {
                self.n = Some(got);
                return true;
            }
            Dim::Cols { d, heads } => {
                let heads = heads.saturating_mul(self.heads);
                let cols = got.count().and_then(|got| got.checked_sub(heads));
                self.d = cols.filter(|cols| cols.is_multiple_of(d)).map(|cols| cols / d);
                return self.d.is_some();
            }
            Dim::D | Dim::UpdateWhole | Dim::UpdateWindow => &mut self.d,
            Dim::K => &mut self.k,
            Dim::Edges | Dim::EdgesBack => &mut self.edges,
            _ => return true,
        };
        *number = got.count();
        number.is_some()
    }

    /// Does the same for the storage type of an operand.
    fn learn_stored(&mut self, stored: Stored, got: DType) -> std::result::Result<(), DType> {
        let want = match stored {
            Stored::As(dtype) => dtype,
            Stored::Sum if got == DType::F32 => return Ok(()),
            Stored::AsRows | Stored::Sum => {
                let float = if got.float().is_some() { got } else { DType::F32 };
                *self.stored.get_or_insert(float)
            }
        };
        if want == got { Ok(()) } else { Err(want) }
    }

    /// Returns the storage type of an operand with these rows.
    fn stored(&self, stored: Stored, rows: Option<Extent>) -> DType {
        match (stored, rows, self.over) {
            (Stored::As(dtype), ..) => dtype,
            (Stored::Sum, Some(Extent::Count(_)), Over::Program(_)) => DType::F32,
            _ => self.stored.unwrap_or(DType::F32),
        }
    }

    /// Checks an operand of a program against the record.
    fn check(&mut self, operand: &Operand, ty: TensorType) -> std::result::Result<(), String> {
        if self.learn_stored(operand.stored, ty.dtype).is_err() {
            return Err(match (operand.stored, self.stored) {
                (Stored::As(dtype), _) => format!("{dtype:?}"),
                (_, Some(dtype)) if ty.dtype.float().is_some() => format!("{dtype:?}"),
                _ => "f32 or bf16".into(),
            });
        }
        if !self.learn(operand.rows, ty.rows.into()) {
            return Err(self
                .known(operand.rows)
                .map_or("a parameter".into(), |rows| format!("rows of {:?}", rows.rows())));
        }
        if !self.learn(operand.cols, Extent::Count(ty.width)) {
            let width = self.known(operand.cols).and_then(Extent::count);
            return Err(width.map_or("another width".into(), |width| format!("a width of {width}")));
        }
        Ok(())
    }
}

impl Domain {
    fn holds(self, rows: RowSpace) -> bool {
        match (self, rows) {
            (Self::Any, _) => true,
            (Self::VerticesOrTheirEdges, RowSpace::Edges(block)) => {
                block.rows().is_of_vertices() || block.transpose().rows().is_of_vertices()
            }
            (_, rows) => rows.is_of_vertices(),
        }
    }
}

/// Returns the types of the outputs of an operation.
///
/// # Errors
/// Returns the first operand that does not fit, and the type that is needed.
pub fn infer(op: &Op, types: &[TensorType]) -> std::result::Result<Vec<TensorType>, Misfit> {
    let (want, got) = (op.input_count(), types.len());
    if want != got {
        return Err(Misfit::OperandCount { op: op.name(), want, got });
    }
    let head = op.head();
    if !op.steps().is_empty() && head.record().row == Row::Whole {
        return Err(Misfit::NotFusable { op: head.name() });
    }
    let (operands, mut rest) = types.split_at(head.record().inputs.len());
    let mut made = infer_one(head, operands)?;
    for step in op.steps() {
        let operands;
        (operands, rest) = rest.split_at(step.record().inputs.len() - 1);
        let next = infer_one(&Op::Row(*step), &[&made[..1], operands].concat())?;
        made.splice(..1, next);
    }
    Ok(made)
}

fn infer_one(op: &Op, types: &[TensorType]) -> std::result::Result<Vec<TensorType>, Misfit> {
    let record = op.record();
    let mut sizes = Sizes::new(Over::Program(op.block()), op);
    let misfit = |place: usize, want| Misfit::Operand { op: record.name, place, want, got: types[place] };
    for place in record.places().filter(|&place| place < record.inputs.len()) {
        sizes.check(record.operand(place), types[place]).map_err(|want| misfit(place, want))?;
        if place == 0 && !record.domain.holds(types[0].rows) {
            return Err(misfit(0, format!("rows of {:?}", record.domain)));
        }
    }
    let output = |operand: &Operand| {
        let [rows, cols] = operand.shape(&sizes);
        let dtype = sizes.stored(operand.stored, rows);
        let width = cols.and_then(Extent::count).expect("a record's outputs have the sizes of its inputs");
        TensorType { rows: rows.map_or(RowSpace::Scalar, Extent::rows), width, dtype }
    };
    Ok(record.outputs.iter().map(output).collect())
}

impl Call {
    fn sizes(&self) -> Sizes {
        let over = Over::Call { block: self.block, windowed: self.first_source.is_some(), window: self.part.window };
        Sizes::new(over, self.op.head())
    }

    /// Returns the operand at an index of the head's record.
    fn operand(&self, place: usize) -> Option<&Mat> {
        let inputs = self.op.head().record().inputs.len();
        if place < inputs { self.inputs.get(place) } else { self.outputs.get(place - inputs) }
    }

    /// Returns each operand of the head with its entry in the record, the leading one first.
    fn head_operands(&self) -> impl Iterator<Item = (usize, &'static Operand, &Mat)> {
        let record = self.op.head().record();
        record.places().filter_map(move |place| Some((place, record.operand(place), self.operand(place)?)))
    }

    /// Fills in the sizes of operands that were given as a slot only.
    pub(crate) fn fill(&mut self, bare: &[bool]) {
        let mut sizes = self.sizes();
        for (_, operand, mat) in self.head_operands().filter(|&(place, ..)| !bare[place]) {
            let _ = sizes.learn_stored(operand.stored, mat.dtype);
            let _ = sizes.learn(operand.rows, Extent::Count(mat.rows));
            let _ = sizes.learn(operand.cols, Extent::Count(mat.cols));
        }
        let (record, inputs) = (self.op.head().record(), self.head_inputs().len());
        for (place, _) in bare.iter().enumerate().filter(|(_, bare)| **bare) {
            let operand = record.operand(place);
            let [rows, cols] = operand.shape(&sizes);
            let count = |size: Option<Extent>| size.and_then(Extent::count).unwrap_or(0);
            let dtype = sizes.stored(operand.stored, rows);
            let mat = if place < inputs { &mut self.inputs[place] } else { &mut self.outputs[place - inputs] };
            *mat = Mat { rows: count(rows), cols: count(cols), dtype, ..*mat };
        }
    }

    /// Returns the operands of the steps: the step, the record's entry, and the matrix that is read beside the row.
    pub fn step_operands(&self) -> impl Iterator<Item = (RowStep, &'static Operand, Mat)> {
        self.steps().filter_map(|(step, mat)| Some((step, step.record().inputs.get(1)?, mat?)))
    }

    /// Returns the storage type of the rows that the call reads; f32 if it reads none.
    pub fn stored(&self) -> DType {
        let mut head = self.op.head().record().inputs.iter().zip(&self.inputs);
        head.find(|(operand, _)| operand.stored == Stored::AsRows).map_or(DType::F32, |(_, mat)| mat.dtype)
    }

    /// Rejects operands that do not fit together.
    ///
    /// # Errors
    /// [`Error::Stored`], [`Error::Shape`], [`Error::NotFusable`], [`Error::NoSum`].
    pub(crate) fn check(&self) -> Result<()> {
        let (head, call) = (self.op.head(), self.name_of_head());
        if !self.op.steps().is_empty() && head.record().row == Row::Whole {
            return Err(Error::NotFusable { call });
        }
        if self.sum.is_some() && !head.gathers() && !head.record().sums {
            return Err(Error::NoSum { call });
        }
        self.check_count(call)?;
        self.check_stored(call)?;
        let mut sizes = self.sizes();
        for (_, operand, mat) in self.head_operands() {
            check_shape(call, &mut sizes, operand, mat)?;
        }
        for (step, operand, mat) in self.step_operands() {
            let mut sizes = sizes_of_step(self.out());
            check_shape(step.record().kernel(), &mut sizes, operand, &mat)?;
        }
        self.check_parts(call)?;
        self.check_sources(call)
    }

    /// Checks how many operands there are.
    fn check_count(&self, call: &'static str) -> Result<()> {
        let same = |operand, want, got| crate::error::check_shape(call, operand, [want, 1], [got, 1]);
        let inputs = if self.op == Op::Move(Move::Concat) { self.inputs.len().max(1) } else { self.op.input_count() };
        same("inputs", inputs, self.inputs.len())?;
        // An operation can leave out its last outputs.
        let outputs = self.outputs.len();
        same("outputs", outputs.clamp(1, self.op.head().record().outputs.len()), outputs)
    }

    /// Checks the shapes of what only moves: a rectangle, columns, the parts of a grid, and those of an array.
    fn check_parts(&self, call: &'static str) -> Result<()> {
        let same = |operand, want: [usize; 2], got: [usize; 2]| crate::error::check_shape(call, operand, want, got);
        let shape = |mat: &Mat| [mat.rows, mat.cols];
        match self.op {
            Op::Move(Move::Concat) => {
                let all = self.inputs.iter().fold(0, |all: usize, part| all.saturating_add(part.numbers()));
                return same("out", [1, all], shape(&self.out()));
            }
            Op::AttentionRows(AttentionRows::Columns { part, .. }) => {
                let [rows, cols] = shape(&self.inputs[0]);
                let end = part.saturating_add(1).saturating_mul(self.out().cols);
                return same("x", [rows, cols.max(end)], [rows, cols]);
            }
            _ => {}
        }
        let Op::Linear(op) = self.op else { return Ok(()) };
        if let Some(Slice { first, shape: [rows, cols] }) = op.rectangle(self.inputs[0].rows) {
            same("out", [rows, cols], shape(&self.out()))?;
            let [have_rows, have_cols] = shape(&self.inputs[0]);
            let end = [first[0].saturating_add(rows), first[1].saturating_add(cols)];
            same("x", [have_rows.max(end[0]), have_cols.max(end[1])], [have_rows, have_cols])?;
        }
        let Some(Grid { shape: made, parts: [down, across] }) = op.grid(self.out().rows) else { return Ok(()) };
        same("out", made, shape(&self.out()))?;
        same("parts", [down, across], [self.inputs.len() / across.max(1), across])?;
        let mut whole = [0usize; 2];
        for parts in self.inputs.chunks(across.max(1)) {
            let cols = parts.iter().fold(0, |cols: usize, part| cols.saturating_add(part.cols));
            whole = [whole[0].saturating_add(parts[0].rows), cols];
            parts.iter().try_for_each(|part| same("part", [parts[0].rows, part.cols], shape(part)))?;
            same("parts", [whole[0], made[1]], whole)?;
        }
        same("parts", made, whole)
    }

    fn check_stored(&self, call: &'static str) -> Result<()> {
        let differs = |operand, want, got| Error::Stored { call, operand, want, got };
        let mut sizes = self.sizes();
        let record = self.op.head().record();
        let inputs = self.head_inputs().iter().enumerate();
        // Operations with any number of operands have one entry for all of them.
        let inputs = inputs.filter_map(|(place, mat)| Some((record.inputs.get(place).or(record.inputs.last())?, mat)));
        for (operand, mat) in inputs.chain(record.outputs.iter().zip(&self.outputs)) {
            sizes.learn_stored(operand.stored, mat.dtype).map_err(|want| differs(operand.name, want, mat.dtype))?;
        }
        for (_, operand, mat) in self.step_operands() {
            let mut sizes = sizes_of_step(self.out());
            sizes.learn_stored(operand.stored, mat.dtype).map_err(|want| differs(operand.name, want, mat.dtype))?;
        }
        if let (false, Some(sum)) = (self.op.head().gathers(), self.sum)
            && sum.dtype != self.out().dtype
        {
            return Err(differs("sum", self.out().dtype, sum.dtype));
        }
        if self.op.head().gathers() {
            let own = self.inputs[0].dtype;
            let others = [("halo", self.halo, own), ("sum", self.sum, DType::F32)];
            for (name, mat, want) in others {
                mat.filter(|mat| mat.dtype != want).map_or(Ok(()), |mat| Err(differs(name, want, mat.dtype)))?;
            }
            if let Some(other) = self.more_sources.iter().find(|tile| tile.dtype != own) {
                return Err(differs("sources", own, other.dtype));
            }
            if !self.more_sources.is_empty() && self.out().dtype != DType::F32 {
                return Err(differs("out", DType::F32, self.out().dtype));
            }
        }
        Ok(())
    }

    /// Checks the shapes of a gather's halo and of the sum that a call starts from.
    fn check_sources(&self, call: &'static str) -> Result<()> {
        let out = self.out();
        let same = |operand, want: [usize; 2], got: [usize; 2]| crate::error::check_shape(call, operand, want, got);
        if let Some(sum) = self.sum {
            same("sum", [out.rows, self.sum_cols()], [sum.rows, sum.cols])?;
        }
        // Only windows of plain sums have further sources.
        let may_have_more = self.first_source.is_some() && matches!(self.op.head(), Op::Gather(_));
        for tile in &self.more_sources {
            let rows = if may_have_more { tile.rows } else { 0 };
            same("sources", [rows, self.inputs[0].cols], [tile.rows, tile.cols])?;
        }
        let Some(block) = self.block.filter(|_| self.op.head().gathers()) else { return Ok(()) };
        let halo_sources = if self.first_source.is_some() { 0 } else { block.halo_sources };
        if self.halo.is_some() || block.halo_sources > 0 {
            let got = self.halo.map_or([0, 0], |halo| [halo.rows, halo.cols]);
            same("halo", [halo_sources, self.inputs[0].cols], got)?;
        }
        Ok(())
    }
}

/// Returns the sizes that a step's record takes from the rows that it works on.
fn sizes_of_step(out: Mat) -> Sizes {
    let over = Over::Call { block: None, windowed: false, window: Window::default() };
    let (n, d) = (Some(Extent::Count(out.rows)), Some(out.cols));
    Sizes { n, d, stored: Some(out.dtype), ..Sizes::of_step(over) }
}

/// Returns the shape and type of a step's operand, given the rows `out` that the step works on.
pub(crate) fn step_operand(out: Mat, operand: &Operand, mat: Mat) -> Mat {
    let sizes = sizes_of_step(out);
    let [rows, cols] = operand.shape(&sizes).map(|size| size.and_then(Extent::count).unwrap_or(0));
    Mat { rows, cols, dtype: sizes.stored(operand.stored, None), ..mat }
}

fn check_shape(call: &'static str, sizes: &mut Sizes, operand: &Operand, mat: &Mat) -> Result<()> {
    let got = [mat.rows, mat.cols];
    let fits = [operand.rows, operand.cols]
        .into_iter()
        .zip(got)
        .fold(true, |fits, (dim, size)| sizes.learn(dim, Extent::Count(size)) && fits);
    if fits {
        return Ok(());
    }
    let [rows, cols] = operand.shape(sizes).map(|size| size.and_then(Extent::count));
    let want = [rows.unwrap_or(got[0]), cols.unwrap_or(got[1])];
    Err(Error::Shape { call, operand: operand.name, want, got })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::memory::Slot;
    use crate::op::Linear;

    /// Returns matrices of these shapes, each in a slot of its own.
    fn mats(shapes: &[[usize; 2]]) -> Vec<Mat> {
        shapes.iter().enumerate().map(|(slot, &[rows, cols])| Mat::f32(Slot(slot as u32), rows, cols)).collect()
    }

    #[track_caller]
    fn refused(call: &Call, word: &str) {
        let error = call.check().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }

    #[test]
    fn what_does_not_fit_any_number_of_operands_is_refused() {
        let concat = |parts: &[[usize; 2]], out: usize| {
            let (inputs, out) = (mats(parts), Mat::f32(Slot(99), 1, out));
            Call { inputs, outputs: vec![out], ..Call::concat(&[(Slot(0), 1)], Slot(99)) }
        };
        concat(&[[1, 3], [1, 4]], 7).check().unwrap();
        refused(&concat(&[[1, 3], [1, 4]], 6), "out is [1, 6], but the call needs [1, 7]");
        refused(&concat(&[], 0), "inputs is [0, 1]");
        let mut of_ids = concat(&[[1, 3], [1, 4]], 7);
        of_ids.inputs[1].dtype = DType::U32;
        refused(&of_ids, "part is stored as");
        let beside = |strips: &[[usize; 2]], count: usize| {
            let mut call = Call::concat(&[(Slot(0), 1)], Slot(99));
            call.op = Op::Linear(Linear::Beside { strips: count, cols: 5 });
            Call { inputs: mats(strips), outputs: vec![Mat::f32(Slot(99), 4, 5)], ..call }
        };
        beside(&[[4, 2], [4, 3]], 2).check().unwrap();
        refused(&beside(&[[4, 2], [4, 3]], 3), "inputs is [2, 1], but the call needs [3, 1]");
        refused(&beside(&[[4, 2], [3, 3]], 2), "part is [3, 3]");
        let mut of_ids = beside(&[[4, 2], [4, 3]], 2);
        of_ids.inputs[1].dtype = DType::U32;
        refused(&of_ids, "strip is stored as");
    }

    #[test]
    fn columns_that_do_not_exist_are_refused() {
        let columns = |part| {
            let op = AttentionRows::Columns { parts: 2, part };
            Call::new(op, [Mat::f32(Slot(0), 4, 6)], [Mat::f32(Slot(1), 4, 3)])
        };
        columns(1).check().unwrap();
        refused(&columns(2), "x is [4, 6], but the call needs [4, 9]");
        let sums = Call::new(Linear::ColumnSum, [Mat::f32(Slot(0), 4, 6)], [Mat::f32(Slot(1), 1, 6)]).added_to(Slot(2));
        sums.check().unwrap();
        let sum = sums.sum.map(|sum| Mat { dtype: DType::U32, ..sum });
        refused(&Call { sum, ..sums }, "sum is stored as");
    }
}
