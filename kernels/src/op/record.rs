//! Operation records: one [`Record`] per operation, from which everything else is derived.

use super::oracle::{Array, Given};
use super::types::{BlockSpec, DType, LoopWeight};
use super::{Op, Sizes};

/// The facts about one operation.
#[derive(Debug)]
pub struct Record {
    /// Name in programs and plans.
    pub name: &'static str,
    /// Name of the kernel in traces and errors, if it differs from `name`.
    pub kernel: Option<&'static str>,
    /// Operands that it reads, in order.
    pub inputs: &'static [Operand],
    /// Operands that it writes, in order.
    pub outputs: &'static [Operand],
    /// Index of the leading operand, whose sizes the other operands are checked against. The index counts the inputs,
    /// then the outputs.
    pub leads: usize,
    /// Row spaces that the first operand may have.
    pub domain: Domain,
    /// Whether the operation can be fused with row steps, and how.
    pub row: Row,
    /// Whether the output is a sum over rows, so that partial results over other rows can be added to it.
    pub sums: bool,
    /// Whether the operation distributes over sums: applied to the terms of a sum, it returns the terms of the result.
    pub linear: bool,
    /// What the operation's time depends on.
    pub cost: Cost,
    /// Rule for the gradients of the operands.
    pub gradient: Gradient,
    /// Computes the outputs in `f64`, serially and in the most obvious way: the oracle of every backend.
    pub reference: fn(&Given<'_>) -> Vec<Array>,
}

/// A record without operands, with the values that most records share.
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

/// One operand of a record: a matrix. A vector is a matrix with one row or one column.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Name in errors.
    pub name: &'static str,
    /// Number of rows.
    pub rows: Dim,
    /// Number of columns.
    pub cols: Dim,
    /// Element type.
    pub stored: Stored,
}

/// A dimension of an operand. Within one record, the same letter always stands for the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Rows of any row space.
    N,
    /// A width, in elements.
    D,
    /// Another width or row count.
    K,
    /// A fixed number.
    Just(usize),
    /// One row for the whole graph.
    Scalar,
    /// The sources of the operation's block.
    Sources,
    /// The rows of the operation's block.
    BlockRows,
    /// The edges of the operation's block.
    Edges,
    /// The edges of the transposed block of the operation.
    EdgesBack,
    /// The rows of a parameter; in a call, the whole parameter is one row.
    UpdateRows,
    /// The columns of a parameter; in a call, the number of elements up to the end of the window.
    UpdateWhole,
    /// The columns of a parameter; in a call, the length of the window.
    UpdateWindow,
    /// All sources of the operation's block, with those of other windows and parts.
    AllSources,
    /// `d * D` and `heads` times the number of the operation's heads.
    Cols {
        /// Multiple of [`Dim::D`].
        d: usize,
        /// Multiple of the number of heads.
        heads: usize,
    },
    /// Any size, in a call.
    Any,
    /// The number of rows that the operation itself says; in a call, any.
    MadeRows,
    /// The same for columns.
    MadeCols,
}

/// The storage type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Stored like vertex rows: `f32` or `bf16`, the same for all such operands of a call.
    AsRows,
    /// Stored like vertex rows, or as `f32`. It is `f32` where the result has the rows of a parameter.
    Sum,
    /// Stored as this type.
    As(DType),
}

/// Returns an operand that is stored like vertex rows.
pub(super) const fn mat(name: &'static str, rows: Dim, cols: Dim) -> Operand {
    Operand { name, rows, cols, stored: Stored::AsRows }
}

/// Returns an operand of a fixed type.
pub(super) const fn of(dtype: DType, name: &'static str, rows: Dim, cols: Dim) -> Operand {
    Operand { name, rows, cols, stored: Stored::As(dtype) }
}

/// The clock: `[epoch, step]`, u64.
pub(super) const CLOCK: Operand = of(DType::U64, "clock", Dim::Scalar, Dim::Just(2));

/// Which row spaces an operation is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// All.
    Any,
    /// Vertices.
    Vertices,
    /// Vertices, or the edges of a block whose rows or sources are vertices.
    VerticesOrTheirEdges,
}

/// Whether an operation can be fused with row steps, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// No row step can follow it in its kernel.
    Whole,
    /// It produces rows, and row steps can follow it.
    Head,
    /// It works on single rows of its first operand. It can follow a head, or be a head itself.
    Step {
        /// Short name, used in the cost name of a fused operation.
        short: &'static str,
        /// Its number in `StepKind` of `common.cuh`.
        code: u32,
    },
}

/// What the time of an operation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The bytes of its operands. Per vertex, only the operands stored like vertex rows count.
    Rows,
    /// The bytes of its operands, which do not depend on the vertices.
    Fixed,
    /// The bytes of its output, which it reads from its operands and writes.
    Copy,
    /// The edges of its block.
    Gather,
    /// The multiplications of a product: the rows of the first operand times the columns of the two operands below.
    Product {
        /// Index of the operand whose columns are summed over or read.
        k: usize,
        /// Index of the operand whose columns are produced.
        m: usize,
    },
    /// Nothing: no kernel runs.
    Nothing,
}

/// The rule for the gradients of the operands of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    /// The operation has no gradient.
    None,
    /// Rule that uses the gradient of the output.
    Rule(fn(&Op, &mut Backward)),
    /// Rule for a loss, whose own gradient is 1.
    OfLoss(fn(&Op, &mut Backward)),
}

/// A tensor in a gradient rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The gradient of the output.
    Dy,
    /// The output.
    Y,
    /// The output at this index.
    Output(usize),
    /// The operand at this index.
    X(usize),
    /// The edge permutation: for each edge of the transposed block, its index in this block.
    EdgeOrder(BlockSpec),
    /// The weights of the edges of a block of the graph.
    EdgeWeights(BlockSpec, LoopWeight),
    /// The global ids of a block's sources.
    SourceIds(BlockSpec),
    /// The output of the operation with this index in the rule.
    Made(usize),
}

/// The result of a gradient rule: operations to append, and the gradient of each operand.
#[derive(Clone, Debug, Default)]
pub struct Backward {
    /// Operations with their inputs, in order.
    pub ops: Vec<(Op, Vec<Value>)>,
    /// Gradients, each with the index of its operand.
    pub gradients: Vec<(usize, Value)>,
    /// Indices of operands whose gradient is part of another operand's.
    pub covered: Vec<usize>,
}

impl Backward {
    /// Appends an operation and returns its output.
    pub fn emit(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Value {
        self.ops.push((op.into(), inputs.to_vec()));
        Value::Made(self.ops.len() - 1)
    }

    /// Sets the gradient of an operand.
    pub fn give(&mut self, place: usize, gradient: Value) {
        self.gradients.push((place, gradient));
    }

    /// Notes that the gradient of an operand is part of another operand's.
    pub fn cover(&mut self, place: usize) {
        self.covered.push(place);
    }
}

impl Record {
    /// Returns all operands, inputs first.
    pub fn operands(&self) -> impl Iterator<Item = &'static Operand> {
        self.inputs.iter().chain(self.outputs)
    }

    /// Returns the indices of all operands, the leading one first.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let (leads, count) = (self.leads, self.inputs.len() + self.outputs.len());
        std::iter::once(leads).chain((0..count).filter(move |&place| place != leads))
    }

    /// Returns the operand at an index.
    pub(super) fn operand(&self, place: usize) -> &'static Operand {
        self.inputs.get(place).unwrap_or_else(|| &self.outputs[place - self.inputs.len()])
    }

    /// Returns the short name and the number of a row step, if the operation is one.
    pub fn step(&self) -> Option<(&'static str, u32)> {
        match self.row {
            Row::Step { short, code } => Some((short, code)),
            Row::Whole | Row::Head => None,
        }
    }

    /// Returns the name of the kernel.
    pub fn kernel(&self) -> &'static str {
        self.kernel.unwrap_or(self.name)
    }
}

impl Operand {
    /// Returns the number of rows and of columns, as far as `sizes` has them.
    pub(super) fn shape(&self, sizes: &Sizes) -> [Option<super::Extent>; 2] {
        [self.rows, self.cols].map(|dim| sizes.known(dim))
    }
}
