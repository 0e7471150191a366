//! Operations: the nodes of a program and the kernels of a device.
//!
//! All facts about an operation are in its [`Record`], in the file of its family. The operation's name, its output
//! shapes, the operand checks of a call, its gradient, its cost and the oracle that every backend is tested against are
//! derived from that record. An operation over slots is a [`crate::Call`].
//!
//! Each backend has one file per family, with the same name.

mod attention;
pub mod call;
mod edges;
mod gather;
mod linear;
mod loss;
mod moves;
mod norm;
mod optimizer;
pub mod oracle;
mod record;
mod rows;
mod sizes;
mod types;

pub use attention::{Attention, AttentionPass, AttentionRows, Score, WeightDropout, alternating_columns, head_groups};
pub use edges::EdgeOp;
pub use gather::{EdgeWeight, Gather};
pub use linear::{Grid, Linear, Slice};
pub use loss::Loss;
pub use moves::Move;
pub use norm::Norm;
pub use optimizer::Optimizer;
pub(crate) use optimizer::{adam_step, sgd_step};
pub use record::{Backward, Cost, Dim, Domain, Gradient, Operand, Record, Row, Stored, Value};
pub use rows::RowStep;
pub(crate) use sizes::Sizes;
pub(crate) use sizes::step_operand;
pub use sizes::{Extent, Misfit, infer};
pub use types::{BatchEdges, BlockSpec, DType, LoopWeight, RowSpace, SplitName, TensorType};

/// One operation. Its [`Record`] lists its operands, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A sum over the sources of a block.
    Gather(Gather),
    /// A matrix product, or an operation that belongs to one.
    Linear(Linear),
    /// An operation on single rows. It can follow another operation in the same kernel.
    Row(RowStep),
    /// A layer normalisation.
    Norm(Norm),
    /// An operation on edge values.
    Edge(EdgeOp),
    /// A gather whose weights are computed from the rows of both ends, or a pass of its gradient.
    Attention(Attention),
    /// An operation on single rows or parameters that belongs to attention.
    AttentionRows(AttentionRows),
    /// A loss over a split, or a count over one.
    Loss(Loss),
    /// An update of a parameter.
    Optimizer(Optimizer),
    /// A copy of rows or numbers.
    Move(Move),
    /// `(operands of head, then of each step all but its first) -> y`: the head, followed by row steps. The first
    /// operand of a step is the result before it. Only the pass `fuse` creates these.
    Fused {
        /// Any operation for which [`Op::takes_steps`] is true.
        head: Box<Op>,
        /// Row steps, in order.
        steps: Vec<RowStep>,
    },
}

impl Op {
    /// Returns the operation's record; for a fused operation, the record of its head.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Gather(op) => op.record(),
            Self::Linear(op) => op.record(),
            Self::Row(op) => op.record(),
            Self::Norm(op) => op.record(),
            Self::Edge(op) => op.record(),
            Self::Attention(op) => op.record(),
            Self::AttentionRows(op) => op.record(),
            Self::Loss(op) => op.record(),
            Self::Optimizer(op) => op.record(),
            Self::Move(op) => op.record(),
            Self::Fused { head, .. } => head.record(),
        }
    }

    /// Returns the operation's name, as used in traces and plans.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fused { .. } => "fused",
            op => op.record().name,
        }
    }

    /// Returns the operation without the steps that follow it.
    pub fn head(&self) -> &Op {
        match self {
            Self::Fused { head, .. } => head,
            op => op,
        }
    }

    /// Returns the steps that follow the operation.
    pub fn steps(&self) -> &[RowStep] {
        match self {
            Self::Fused { steps, .. } => steps,
            _ => &[],
        }
    }

    /// Appends row steps to the operation.
    pub fn followed_by(self, steps: impl IntoIterator<Item = RowStep>) -> Self {
        let (head, mut all) = match self {
            Self::Fused { head, steps } => (head, steps),
            op => (Box::new(op), Vec::new()),
        };
        all.extend(steps);
        if all.is_empty() { *head } else { Self::Fused { head, steps: all } }
    }

    /// Returns how many operands the operation reads.
    pub fn input_count(&self) -> usize {
        if let Self::Linear(op) = self
            && let Some(count) = op.operand_count()
        {
            return count;
        }
        self.record().inputs.len() + self.steps().iter().map(|step| step.record().inputs.len() - 1).sum::<usize>()
    }

    /// Returns the row step that this operation is, if it is one.
    pub fn as_row_step(&self) -> Option<RowStep> {
        match self {
            Self::Row(step) => Some(*step),
            _ => None,
        }
    }

    /// Whether row steps can follow the operation in one kernel.
    pub fn takes_steps(&self) -> bool {
        self.record().row != Row::Whole
    }

    /// Whether the operation, or its head, sums over a block.
    pub fn gathers(&self) -> bool {
        matches!(self.head(), Self::Gather(_) | Self::Attention(_))
    }

    /// Returns the number of heads of attention.
    pub fn heads(&self) -> Option<usize> {
        match self.head() {
            Self::Attention(op) => Some(op.heads),
            Self::AttentionRows(op) => op.heads(),
            _ => None,
        }
    }

    /// Returns the number of rows and columns of the output, where the operation says it.
    pub fn made(&self) -> [Option<usize>; 2] {
        match self {
            Self::Linear(op) => op.made(),
            _ => [None, None],
        }
    }

    /// Returns the block of the operation or of its head.
    pub fn block(&self) -> Option<BlockSpec> {
        match *self.head() {
            Self::Gather(Gather { block, .. }) | Self::Attention(Attention { block, .. }) => Some(block),
            Self::Edge(ref op) => op.block(),
            _ => None,
        }
    }

    /// Returns the split of a loss.
    pub fn split(&self) -> Option<SplitName> {
        match self {
            Self::Loss(loss) => loss.split(),
            _ => None,
        }
    }
}

macro_rules! families {
    ($($family:ident($op:ty))*) => {
        $(impl From<$op> for Op {
            fn from(op: $op) -> Self {
                Self::$family(op)
            }
        })*
    };
}
families!(Attention(Attention) AttentionRows(AttentionRows) Gather(Gather) Linear(Linear) Row(RowStep) Norm(Norm) Edge(EdgeOp) Loss(Loss) Optimizer(Optimizer) Move(Move));
