//! The program: a dataflow of operations on tensors, forward and backward, and the passes that rewrite it.
//!
//! Nothing here knows a graph, a device or a size: a tensor's rows are a *row space* (all vertices, all edges of a
//! block, so many rows of a parameter) that is bound to a number when the program is lowered. What an operation is, and what it makes of
//! operands of given types, stands in its record: see [`lapidary_kernels::op`].

mod backward;
mod dataflow;
mod ir;
pub mod passes;
mod shape;

pub use backward::append_backward;
pub use dataflow::{OpId, Program, TensorId};
pub use ir::{Degree, Origin, Tensor};
pub use lapidary_kernels::op::{
    BlockSpec, DType, EdgeOp, Gather, Linear, Loss, Norm, Op, RowSpace, RowStep, SplitName, TensorType, infer,
};
pub use passes::{Pass, Passes, PassesError};
pub use shape::ProgramError;
pub(crate) use shape::{CLOCK, SCALAR, VERTEX_IDS};
