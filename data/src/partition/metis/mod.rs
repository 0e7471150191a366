//! METIS: k-way partitions of the undirected graph.
//!
//! The graph that METIS gets has an edge between two vertices if there is one in any direction. Self-loops are left out,
//! and repeated edges count once.

#[cfg(feature = "metis")]
#[path = "enabled.rs"]
mod imp;
#[cfg(not(feature = "metis"))]
#[path = "disabled.rs"]
mod imp;

pub use imp::assign;

/// What METIS makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The number of edges between parts.
    Cut,
    /// The number of pairs of a vertex and another part that has a neighbour of it.
    Volume,
}
