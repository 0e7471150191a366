//! The words of a program: where tensors come from, and tensors.

use lapidary_kernels::op::{BlockSpec, TensorType};

/// A power of the in-degree that scales a vertex's row. A vertex without in-edges gets 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Degree {
    /// `degree^-1/2`.
    InverseRoot {
        /// Counted with exactly one self-loop at every vertex.
        self_loops: bool,
    },
    /// `1 / degree`.
    Inverse {
        /// Counted with exactly one self-loop at every vertex.
        self_loops: bool,
    },
}

/// Where a tensor comes from that no operation produces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// Dense features.
    Features,
    /// The values of sparse features, in the order of [`BlockSpec::Features`].
    FeatureValues,
    /// For each edge of the transposed block, where it was in this one.
    EdgePermutation(BlockSpec),
    /// One factor a vertex.
    Scale(Degree),
    /// The identity matrix of this width.
    Identity(usize),
    /// Class ids.
    Labels,
    /// For each vertex and class, whether it has it.
    Targets,
    /// Which split each vertex belongs to.
    Split,
    /// A trained parameter.
    Parameter(String),
    /// What an optimizer remembers of a parameter: its `which`-th moment.
    Moment {
        /// The parameter's name.
        parameter: String,
        /// From 1.
        which: u8,
    },
    /// `[epoch, step]`.
    Clock,
    /// The learning rate.
    LearningRate,
}

/// One value of the dataflow.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// A name for people: traces, plans, errors.
    pub name: String,
    /// Shape and element type.
    pub ty: TensorType,
    /// The same in every epoch.
    pub constant: bool,
    /// It depends on a parameter, so that the loss has a gradient for it that someone needs.
    pub wants_gradient: bool,
    /// Where it comes from; `None` for an operation's output.
    pub origin: Option<Origin>,
}
