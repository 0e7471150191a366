//! Errors of building programs, and tensor types that several programs use.

use lapidary_kernels::op::{DType, Misfit, RowSpace, TensorType};

use super::ir::Origin;

/// Why a program cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Operands do not fit an operation.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// An origin was requested with two different types.
    #[error("{origin:?} is {had:?} and was asked for as {asked:?}")]
    OriginType {
        /// The origin.
        origin: Box<Origin>,
        /// Its type.
        had: Box<TensorType>,
        /// The other type.
        asked: Box<TensorType>,
    },
    /// An operand needs a gradient, but its operation has no rule for it.
    #[error("{op} has no gradient for operand {place}, which depends on a parameter")]
    NoGradient {
        /// The operation.
        op: &'static str,
        /// Index of the operand, from 0.
        place: usize,
    },
    /// A mini-batch has another number of levels than the program has gathers one behind the other.
    #[error(
        "the model has {gathers} layers that gather, one behind the other, and the number of fan-outs is {levels}; give \
         option `fanout` one for each layer"
    )]
    Levels {
        /// The number of gathers.
        gathers: usize,
        /// The number of levels with drawn edges.
        levels: usize,
    },
    /// An operation has no meaning over the levels of a mini-batch.
    #[error("mini-batches cannot have {op}: what it reads of edges is computed")]
    NotInBatches {
        /// The operation.
        op: &'static str,
    },
}

/// The type of [`Origin::Clock`].
pub(crate) const CLOCK: TensorType = TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 };
/// The type of [`Origin::LearningRate`] and of a loss.
pub(crate) const SCALAR: TensorType = TensorType { rows: RowSpace::Scalar, width: 1, dtype: DType::F32 };
/// The type of [`Origin::Labels`] and [`Origin::Split`].
pub(crate) const VERTEX_IDS: TensorType = TensorType { rows: RowSpace::Vertices, width: 1, dtype: DType::U32 };
