//! What the search for a hypergraph of mini-batches returns.

use crate::partition::{Assignment, Estimate};

/// Parts for mini-batches, and the hypergraphs that were compared.
#[derive(Clone, Debug)]
pub struct Stochastic {
    /// The best parts on batches held out.
    pub assignment: Assignment,
    /// The hypergraphs, in the order in which they were partitioned. The first one is that of the graph alone.
    pub trials: Vec<Trial>,
    /// The number of the trial with the best parts; the first, if several are as good.
    pub best: usize,
    /// Whether more batches would have had more pins than allowed.
    pub is_limited: bool,
}

/// A hypergraph that was partitioned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The number of batches whose nets are in it.
    pub batches: usize,
    /// Its number of pins.
    pub pins: u64,
    /// The rows that parts fetch for one of these batches; `None` without any.
    pub own: Option<Estimate>,
    /// The rows that parts fetch for one of the batches held out.
    pub held_out: Estimate,
}
