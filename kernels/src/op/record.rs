//! What is written down of an operation: one [`Record`], from which everything else is derived.

use super::oracle::{Array, Given};
use super::types::{BlockSpec, DType};
use super::{Op, Sizes};

/// One operation's facts.
#[derive(Debug)]
pub struct Record {
    /// Its name in programs and plans.
    pub name: &'static str,
    /// Its kernel's name in traces and errors, if that is another.
    pub kernel: Option<&'static str>,
    /// What it reads, in order.
    pub inputs: &'static [Operand],
    /// What it writes, in order.
    pub outputs: &'static [Operand],
    /// The operand whose sizes the others are held against: a place in the inputs, followed by the outputs.
    pub leads: usize,
    /// Row spaces that its first operand may have.
    pub domain: Domain,
    /// How it goes with row steps.
    pub row: Row,
    /// Its output is a sum over rows, to which that over other rows may be added.
    pub sums: bool,
    /// Applied to the terms of sums it gives the terms of its result.
    pub linear: bool,
    /// What its time depends on.
    pub cost: Cost,
    /// The gradients of its operands.
    pub gradient: Gradient,
    /// The outputs in `f64`, serial and obviously right: the oracle of every backend.
    pub reference: fn(&Given<'_>) -> Vec<Array>,
}

/// A record without operands: what most records have in common.
pub(super) const PLAIN: Record = Record {
    name: "",
    kernel: None,
    inputs: &[],
    outputs: &[],
    leads: 0,
    domain: Domain::Any,
    row: Row::Whole,
    sums: false,
    linear: false,
    cost: Cost::Rows,
    gradient: Gradient::None,
    reference: |_| Vec::new(),
};

/// One operand of a record: a matrix, of which a vector is a row or a column.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Its name in errors.
    pub name: &'static str,
    /// Number of rows.
    pub rows: Dim,
    /// Number of columns.
    pub cols: Dim,
    /// Element type.
    pub stored: Stored,
}

/// The size of an operand in one direction. Letters stand for the same size wherever a record has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Rows of any row space.
    N,
    /// A number.
    D,
    /// Another number.
    K,
    /// This number.
    Just(usize),
    /// One row that stands for the whole graph.
    Scalar,
    /// The sources of the operation's block.
    Sources,
    /// The rows of the operation's block.
    BlockRows,
    /// The edges of the operation's block.
    Edges,
    /// The edges of the operation's block, turned round.
    EdgesBack,
    /// The rows of a parameter; in a call all of it is one row.
    UpdateRows,
    /// The columns of a parameter; in a call its numbers up to the window's end.
    UpdateWhole,
    /// The columns of a parameter; in a call the window's numbers.
    UpdateWindow,
    /// Anything, in a call.
    Any,
}

/// How an operand is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As rows of vertices are: `f32` or `bf16`, the same for all operands that say so.
    AsRows,
    /// As rows of vertices are, or `f32`, which it is where it sums for rows of a parameter.
    Sum,
    /// So.
    As(DType),
}

/// An operand that is stored as rows of vertices are.
pub(super) const fn mat(name: &'static str, rows: Dim, cols: Dim) -> Operand {
    Operand { name, rows, cols, stored: Stored::AsRows }
}

/// An operand of this type.
pub(super) const fn of(dtype: DType, name: &'static str, rows: Dim, cols: Dim) -> Operand {
    Operand { name, rows, cols, stored: Stored::As(dtype) }
}

/// `[epoch, step]`, u64.
pub(super) const CLOCK: Operand = of(DType::U64, "clock", Dim::Scalar, Dim::Just(2));

/// Which row spaces an operation is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// All.
    Any,
    /// Vertices.
    Vertices,
    /// Vertices, or the edges of a block whose rows they are.
    VerticesOrTheirEdges,
}

/// How an operation goes with row steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Nothing can follow it in its kernel.
    Whole,
    /// It makes rows, which steps can follow.
    Head,
    /// It works on the rows of its first operand one by one: it can follow a head, or be one.
    Step {
        /// Its name in that of a fused operation's time.
        short: &'static str,
        /// Its number in `StepKind` of `common.cuh`.
        code: u32,
    },
}

/// What an operation's time depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The bytes of its operands; of a vertex, those of the operands that are stored as rows are.
    Rows,
    /// The bytes of its operands, which are the same whatever the vertices.
    Fixed,
    /// The edges of its block.
    Gather,
    /// The multiplications of a product: rows of the first operand, times the columns of these two operands.
    Product {
        /// What is summed over, or read.
        k: usize,
        /// What is made.
        m: usize,
    },
    /// It is no kernel.
    Nothing,
}

/// The rule for the gradients of an operation's operands.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    /// There is none.
    None,
    /// Given that of its output.
    Rule(fn(&Op, &mut Backward)),
    /// Of a loss, whose own gradient is 1.
    OfLoss(fn(&Op, &mut Backward)),
}

/// A tensor in the rule of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The gradient of the output.
    Dy,
    /// The output.
    Y,
    /// An operand.
    X(usize),
    /// For each edge of the transposed block, where it was in this one.
    EdgeOrder(BlockSpec),
    /// What the rule's operation of this number makes.
    Made(usize),
}

/// What a rule says: operations to append, and which tensor is the gradient of which operand.
#[derive(Clone, Debug, Default)]
pub struct Backward {
    /// In order.
    pub ops: Vec<(Op, Vec<Value>)>,
    /// By the operand's place.
    pub gradients: Vec<(usize, Value)>,
}

impl Backward {
    /// Appends an operation; returns its output.
    pub fn emit(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Value {
        self.ops.push((op.into(), inputs.to_vec()));
        Value::Made(self.ops.len() - 1)
    }

    /// Says what the gradient of an operand is.
    pub fn give(&mut self, place: usize, gradient: Value) {
        self.gradients.push((place, gradient));
    }
}

impl Record {
    /// All operands, inputs first.
    pub fn operands(&self) -> impl Iterator<Item = &'static Operand> {
        self.inputs.iter().chain(self.outputs)
    }

    /// The places of all operands, that which leads first.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let (leads, count) = (self.leads, self.inputs.len() + self.outputs.len());
        std::iter::once(leads).chain((0..count).filter(move |&place| place != leads))
    }

    /// The operand at a place.
    pub(super) fn operand(&self, place: usize) -> &'static Operand {
        self.inputs.get(place).unwrap_or_else(|| &self.outputs[place - self.inputs.len()])
    }

    /// Its number among row steps and its short name, if it is one.
    pub fn step(&self) -> Option<(&'static str, u32)> {
        match self.row {
            Row::Step { short, code } => Some((short, code)),
            Row::Whole | Row::Head => None,
        }
    }

    /// Its kernel's name.
    pub fn kernel(&self) -> &'static str {
        self.kernel.unwrap_or(self.name)
    }
}

impl Operand {
    /// Rows and columns, as far as `sizes` knows them.
    pub(super) fn shape(&self, sizes: &Sizes) -> [Option<super::Extent>; 2] {
        [self.rows, self.cols].map(|dim| sizes.known(dim))
    }
}
