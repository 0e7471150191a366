//! Why a model cannot be built.

use super::Norm;
use super::builtin::names;
use crate::program::ProgramError;

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No model has this name.
    #[error("there is no model `{name}`; there are {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A normalisation that a model does not have.
    #[error("the model `{model}` is defined with one normalisation and does not take `{norm}`")]
    NormNotTaken {
        /// The model.
        model: &'static str,
        /// The normalisation.
        norm: Norm,
    },
    /// No normalisation has this name.
    #[error("there is no normalisation `{name}`; there are sym, mean and sum")]
    UnknownNorm {
        /// The name.
        name: String,
    },
    /// Widths that make no network.
    #[error("a model needs at least an input and an output width, each at least 1, but was given {widths:?}")]
    Widths {
        /// What was given.
        widths: Vec<usize>,
    },
    /// A dropout rate outside `[0, 1)`.
    #[error("a dropout rate of {rate} is not in [0, 1)")]
    DropoutRate {
        /// The rate.
        rate: f32,
    },
    /// Features of another width than the model reads.
    #[error("the model reads {model} features a vertex, but the data has {data}")]
    FeatureWidth {
        /// What the model reads.
        model: usize,
        /// What the data has.
        data: usize,
    },
    /// Logits of another width than the model says.
    #[error("the network ends with {got} columns, but the model says {want}")]
    OutputWidth {
        /// What the model says.
        want: usize,
        /// What the network makes.
        got: usize,
    },
    /// An operation that sparse features do not have.
    #[error("{op} needs dense rows, but was given sparse features; put a linear layer or a convolution first")]
    SparseInput {
        /// The operation.
        op: &'static str,
    },
    /// A parameter without a number.
    #[error("the parameter `{name}` is {shape:?}; every width must be at least 1")]
    EmptyParameter {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A parameter that training cannot reach.
    #[error("the parameter `{name}` does not reach the loss; take it out of the network, or use it")]
    UnusedParameter {
        /// Its name.
        name: String,
    },
    /// Two layers that use one name for different parameters.
    #[error("the parameter `{name}` is declared twice, as {first:?} and as {second:?}")]
    ParameterTwice {
        /// Its name.
        name: String,
        /// Its shape at first.
        first: Vec<usize>,
        /// Its other shape.
        second: Vec<usize>,
    },
    /// Operands that do not fit together.
    #[error(transparent)]
    Program(#[from] ProgramError),
}
