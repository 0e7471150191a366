//! Hypergraphs: k-way partitions that make small exactly what [`Volume`](super::Volume) counts.
//!
//! The hypergraph has a vertex for each vertex of the graph, and a net for each of them: the vertex and all vertices that
//! read its row. If a net has vertices in `k` parts, its row is sent `k - 1` times. METIS's volume counts neighbours in
//! both directions instead, so it is larger on directed graphs.
//!
//! The partitioner is Mt-KaHyPar.

#[cfg(any(feature = "hypergraph", test))]
mod balance;
#[cfg(any(feature = "hypergraph", test))]
mod batch_nets;
#[cfg(feature = "hypergraph")]
#[path = "enabled.rs"]
mod imp;
#[cfg(not(feature = "hypergraph"))]
#[path = "disabled.rs"]
mod imp;
#[cfg(any(feature = "hypergraph", test))]
mod pins;
#[cfg(any(feature = "hypergraph", test))]
mod search;
mod stochastic;

pub use imp::{assign, check_built, stochastic};
pub use stochastic::{Source, Stochastic, Trial};

/// The nets of a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nets {
    /// The vertex and its readers: the rows sent forward, and backward if parts fold.
    Forward,
    /// Also the vertex and its sources: the rows sent forward, and backward if parts pull. On an undirected graph, these are
    /// the same nets, so there is only one per vertex.
    Both,
}
