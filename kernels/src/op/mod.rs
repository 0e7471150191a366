//! Operations: what programs are made of, and what devices compute.
//!
//! All that is known of an operation stands in its [`Record`], in the file of its family. From it are derived its name, the shapes
//! of its outputs, the check of a call's operands, its gradient, what it costs, and the oracle that backends are held against. An
//! operation over slots is a [`crate::Call`].
//!
//! Backends have a file for each family, of the same name.

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

pub use edges::EdgeOp;
pub use gather::{EdgeWeight, Gather};
pub use linear::Linear;
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
pub use types::{BlockSpec, DType, RowSpace, SplitName, TensorType};

/// One operation. Its operands are given by its [`Record`], in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A sum over the sources of a block.
    Gather(Gather),
    /// A product, or what belongs to one.
    Linear(Linear),
    /// What works on rows one by one, and can follow another operation in one kernel.
    Row(RowStep),
    /// A layer normalisation.
    Norm(Norm),
    /// What works on values of edges.
    Edge(EdgeOp),
    /// A loss over a split, or a count.
    Loss(Loss),
    /// An update of a parameter.
    Optimizer(Optimizer),
    /// Rows or numbers that only move.
    Move(Move),
    /// `(operands of head, then of each step all but its first) -> y`: the head, and what each step makes of the result
    /// before it, which is its first operand. Only the pass `fuse` makes these.
    Fused {
        /// Any operation that [`Op::takes_steps`].
        head: Box<Op>,
        /// In order.
        steps: Vec<RowStep>,
    },
}

impl Op {
    /// What is written down of it; of a fused one, of its head.
    pub fn record(&self) -> &'static Record {
        match self {
            Self::Gather(op) => op.record(),
            Self::Linear(op) => op.record(),
            Self::Row(op) => op.record(),
            Self::Norm(op) => op.record(),
            Self::Edge(op) => op.record(),
            Self::Loss(op) => op.record(),
            Self::Optimizer(op) => op.record(),
            Self::Move(op) => op.record(),
            Self::Fused { head, .. } => head.record(),
        }
    }

    /// The operation's name, as in traces and plans.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fused { .. } => "fused",
            op => op.record().name,
        }
    }

    /// The operation without the steps that follow it.
    pub fn head(&self) -> &Op {
        match self {
            Self::Fused { head, .. } => head,
            op => op,
        }
    }

    /// The steps that follow it.
    pub fn steps(&self) -> &[RowStep] {
        match self {
            Self::Fused { steps, .. } => steps,
            _ => &[],
        }
    }

    /// The operation with steps behind it.
    pub fn followed_by(self, steps: impl IntoIterator<Item = RowStep>) -> Self {
        let (head, mut all) = match self {
            Self::Fused { head, steps } => (head, steps),
            op => (Box::new(op), Vec::new()),
        };
        all.extend(steps);
        if all.is_empty() { *head } else { Self::Fused { head, steps: all } }
    }

    /// How many operands it reads.
    pub fn input_count(&self) -> usize {
        self.record().inputs.len() + self.steps().iter().map(|step| step.record().inputs.len() - 1).sum::<usize>()
    }

    /// The step that it is, if it works on the rows of its first operand one by one.
    pub fn as_row_step(&self) -> Option<RowStep> {
        match self {
            Self::Row(step) => Some(*step),
            _ => None,
        }
    }

    /// Whether row steps can follow it in one kernel.
    pub fn takes_steps(&self) -> bool {
        self.record().row != Row::Whole
    }

    /// Whether it sums over a block.
    pub fn gathers(&self) -> bool {
        matches!(self.head(), Self::Gather(_))
    }

    /// The block that it, or its head, is over.
    pub fn block(&self) -> Option<BlockSpec> {
        match *self.head() {
            Self::Gather(Gather { block, .. }) => Some(block),
            Self::Edge(ref op) => op.block(),
            _ => None,
        }
    }

    /// The split that it is over.
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
families!(Gather(Gather) Linear(Linear) Row(RowStep) Norm(Norm) Edge(EdgeOp) Loss(Loss) Optimizer(Optimizer) Move(Move));
