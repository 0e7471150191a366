//! The graph: a checked CSR over in-edges, its transpose, values of its edges, permutations and orders, graphs side by side,
//! and [`Block`]s cut from it.

mod block;
mod csr;
mod order;
mod permute;
mod reuse;
mod rows;
mod self_loops;
mod side_by_side;
mod values;
mod vertex_set;

pub use block::Block;
pub use csr::{Graph, GraphError, MAX_VERTICES, Transposed};
#[doc(hidden)]
pub use csr::{filled_rows, prefix_sum};
pub(crate) use csr::{ranges_of_edges, rows_mut, scan_count};
pub use order::{ParseVertexOrderError, VertexOrder};
pub use permute::Permutation;
pub use reuse::Reuse;
pub use rows::GraphRows;
pub use self_loops::SelfLoops;
pub use vertex_set::VertexSet;
