//! The program: a dataflow of operations on tensors, forward and backward, and the passes that rewrite it.
//!
//! A program does not know a graph, a device or sizes. The rows of a tensor are a *row space* (all vertices, all edges
//! of a block, a fixed number of rows of a parameter), which becomes a number when the program is lowered. The records
//! in [`lapidary_kernels::op`] define the operations and the types of their outputs.

mod backward;
mod dataflow;
mod ir;
mod levels;
pub mod passes;
mod shape;
mod stages;

pub use backward::{EMBEDDING, append_backward};
pub use dataflow::{OpId, Program, TensorId};
pub use ir::{Degree, Origin, Tensor};
pub use lapidary_kernels::op::{
    Attention, AttentionPass, AttentionRows, BatchEdges, BlockSpec, DType, EdgeOp, Gather, Grid, Linear, LoopWeight,
    Loss, Norm, Op, RowSpace, RowStep, Score, Slice, SplitName, TensorType, WeightDropout, infer,
};
pub use levels::{LevelSizes, MOST_LAYERS, over_levels};
pub use passes::columns::Strips;
pub use passes::recompute::Recompute;
pub use passes::{Pass, Passes, PassesError};
pub use shape::ProgramError;
pub(crate) use shape::{CLOCK, SCALAR, VERTEX_IDS};
pub use stages::{Stages, made_name};
