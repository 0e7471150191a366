//! The program: a dataflow of operations on tensors, forward and backward, and the passes that rewrite it.
//!
//! Nothing here knows a graph, a device or a size: a tensor's rows are a *row space* (all vertices, all edges of a
//! block, so many rows of a parameter) that is bound to a number when the program is lowered.

mod backward;
mod dataflow;
mod ir;
pub mod passes;
mod shape;

pub use backward::append_backward;
pub use dataflow::{OpId, Program, TensorId};
pub use ir::{BlockSpec, DType, Degree, Op, Origin, RowSpace, SplitName, Tensor, TensorType};
pub use passes::{Pass, Passes, PassesError};
pub(crate) use shape::{CLOCK, SCALAR, VERTEX_IDS, operand_count};
pub use shape::{ProgramError, infer};
