//! Why a program cannot be built, and types that several programs name.

use lapidary_kernels::op::{DType, Misfit, RowSpace, TensorType};

use super::ir::Origin;

/// Why a program cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Not as many operands as the operation has.
    #[error("{op} takes {want} operands, not {got}")]
    OperandCount {
        /// The operation.
        op: &'static str,
        /// How many it takes.
        want: usize,
        /// How many it was given.
        got: usize,
    },
    /// An operand of the wrong shape or element type.
    #[error("{op}: operand {place} is {got:?}, but {want} is needed")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Which operand, from 0.
        place: usize,
        /// What is needed.
        want: String,
        /// What it was given.
        got: TensorType,
    },
    /// One origin asked for with two types.
    #[error("{origin:?} is {had:?} and was asked for as {asked:?}")]
    OriginType {
        /// Which.
        origin: Origin,
        /// Its type.
        had: TensorType,
        /// The other type.
        asked: TensorType,
    },
    /// An operation that cannot be where it is in a fused one.
    #[error("{op} cannot be the head or a step of a fused operation")]
    NotFusable {
        /// The operation.
        op: &'static str,
    },
    /// A gradient that no rule gives.
    #[error("{op} has no gradient for operand {place}, which depends on a parameter")]
    NoGradient {
        /// The operation.
        op: &'static str,
        /// Which operand, from 0.
        place: usize,
    },
}

impl From<Misfit> for ProgramError {
    fn from(misfit: Misfit) -> Self {
        match misfit {
            Misfit::Count { op, want, got } => Self::OperandCount { op, want, got },
            Misfit::Operand { op, place, want, got } => Self::Operand { op, place, want, got },
            Misfit::NotFusable { op } => Self::NotFusable { op },
        }
    }
}

/// The type of [`Origin::Clock`].
pub(crate) const CLOCK: TensorType = TensorType { rows: RowSpace::Scalar, width: 2, dtype: DType::U64 };
/// The type of [`Origin::LearningRate`] and of a loss.
pub(crate) const SCALAR: TensorType = TensorType { rows: RowSpace::Scalar, width: 1, dtype: DType::F32 };
/// The type of [`Origin::Labels`] and [`Origin::Split`].
pub(crate) const VERTEX_IDS: TensorType = TensorType { rows: RowSpace::Vertices, width: 1, dtype: DType::U32 };
