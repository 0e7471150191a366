//! Errors of building a model.

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
    /// The model does not have this normalisation.
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
    /// An attention layer without heads.
    #[error("an attention layer needs at least one head")]
    NoHeads,
    /// The heads do not divide the width of a hidden layer.
    #[error("{heads} heads do not divide a hidden layer of width {width} into equal parts")]
    Heads {
        /// The width of the layer.
        width: usize,
        /// Number of heads.
        heads: usize,
    },
    /// A slope that is not a number from 0 to 1.
    #[error("a negative slope of {slope} is not in [0, 1]")]
    Slope {
        /// The slope.
        slope: f32,
    },
    /// A factor below 0 of an activation, whose gradient is found from the sign of its output.
    #[error("{activation} needs a finite factor of at least 0, but has {factor}")]
    Activation {
        /// The activation.
        activation: &'static str,
        /// The factor.
        factor: f32,
    },
    /// The widths do not define a network.
    #[error("a model needs at least an input and an output width, each at least 1, but was given {widths:?}")]
    Widths {
        /// The widths given.
        widths: Vec<usize>,
    },
    /// A dropout rate outside `[0, 1)`.
    #[error("a dropout rate of {rate} is not in [0, 1)")]
    DropoutRate {
        /// The rate.
        rate: f32,
    },
    /// A loss that is not defined for mini-batches.
    #[error("mini-batches cannot have a mean square as a term of the loss, which is over all vertices")]
    NotInBatches,
    /// Weights of the classes for a loss that has no classes.
    #[error(
        "option `class_weights` weighs the classes of a softmax cross-entropy, and the loss of this model has no such term"
    )]
    NoClassWeights,
    /// The model and the data have different feature widths.
    #[error("the model reads {model} features per vertex, but the data has {data}")]
    FeatureWidth {
        /// The width that the model reads.
        model: usize,
        /// The width of the data.
        data: usize,
    },
    /// The logits have a different width than the model declares.
    #[error("the network ends with {got} columns, but the model declares {want}")]
    OutputWidth {
        /// The width declared.
        want: usize,
        /// The width of the network's output.
        got: usize,
    },
    /// The operation does not take sparse features.
    #[error("{op} needs dense rows, but was given sparse features; put a linear layer or a convolution first")]
    SparseInput {
        /// The operation.
        op: &'static str,
    },
    /// A parameter has no elements.
    #[error("the parameter `{name}` is {shape:?}; every width must be at least 1")]
    EmptyParameter {
        /// Its name.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A parameter does not influence the loss.
    #[error("the parameter `{name}` does not reach the loss; take it out of the network, or use it")]
    UnusedParameter {
        /// Its name.
        name: String,
    },
    /// Two layers use one name for different parameters.
    #[error("the parameter `{name}` is declared twice, as {first:?} and as {second:?}")]
    ParameterTwice {
        /// Its name.
        name: String,
        /// Its first shape.
        first: Vec<usize>,
        /// Its second shape.
        second: Vec<usize>,
    },
    /// Two outputs have the same name.
    #[error("two outputs are named `{name}`; give each its own name")]
    OutputTwice {
        /// The name.
        name: String,
    },
    /// No output has this name.
    #[error("the network has no output `{name}`; {}", known_outputs(known))]
    UnknownOutput {
        /// The name.
        name: String,
        /// The names of the existing outputs.
        known: Vec<String>,
    },
    /// A custom loss does not fit the data's labels.
    #[error("the loss is the {loss} cross-entropy, but the data has {labels}")]
    LossLabels {
        /// The kind of cross-entropy: softmax or sigmoid.
        loss: &'static str,
        /// The labels of the data.
        labels: &'static str,
    },
    /// A custom loss declares a parameter, which inference would not find.
    #[error("the loss declares the parameter `{name}`; declare it in the network, which inference builds as well")]
    LossParameter {
        /// Its name.
        name: String,
    },
    /// A custom loss has no term, or a weight that is not finite.
    #[error("a loss is a sum of at least one term, each with a finite weight")]
    LossTerms,
    /// Operands that do not fit together.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

fn known_outputs(known: &[String]) -> String {
    if known.is_empty() { "it names none".into() } else { format!("it names {}", known.join(", ")) }
}
