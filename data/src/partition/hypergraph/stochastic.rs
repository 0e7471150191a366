//! What the search for a hypergraph of mini-batches returns.

use crate::partition::{Assignment, Estimate};

/// Parts for mini-batches, and what they were compared with.
#[derive(Clone, Debug)]
pub struct Stochastic {
    /// The best parts on batches held out.
    pub assignment: Assignment,
    /// All parts that were compared, in the order in which they were made. The first ones are those of the graph alone.
    pub trials: Vec<Trial>,
    /// The number of the trial with the best parts; the first, if several are as good.
    pub best: usize,
    /// Whether more batches would have had more pins than allowed.
    pub is_limited: bool,
}

/// What parts were made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The hypergraph of the graph alone.
    Graph,
    /// The undirected graph, by METIS with the objective [`Cut`](crate::partition::metis::Objective::Cut).
    Metis,
    /// The hypergraph of the graph and of so many batches.
    Batches(usize),
}

/// Parts that were compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// What the parts were made from.
    pub source: Source,
    /// The number of pins of the hypergraph; 0 without one.
    pub pins: u64,
    /// The rows that parts fetch for one of the batches whose nets are in the hypergraph; `None` without any.
    pub own: Option<Estimate>,
    /// The rows that parts fetch for one of the batches held out.
    pub held_out: Estimate,
}
