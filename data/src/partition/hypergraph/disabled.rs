//! What there is without the feature `hypergraph`.

use std::num::NonZeroU32;

use super::{Nets, Stochastic};
use crate::dataset::{Error, Result};
use crate::graph::Graph;
use crate::partition::{Assignment, BatchDraws, VertexWeight};

/// Always [`Error::NotBuilt`]: this build has no `hypergraph` feature.
pub fn check_built() -> Result<()> {
    Err(not_built())
}

/// Always [`Error::NotBuilt`]: this build has no `hypergraph` feature.
pub fn assign(_: &Graph, _: NonZeroU32, _: Nets, _: VertexWeight<'_>, _: u64) -> Result<Assignment> {
    Err(not_built())
}

/// Always [`Error::NotBuilt`]: this build has no `hypergraph` feature.
pub fn stochastic(_: &BatchDraws<'_>, _: NonZeroU32, _: VertexWeight<'_>, _: u64, _: u64) -> Result<Stochastic> {
    Err(not_built())
}

fn not_built() -> Error {
    Error::NotBuilt { what: "hypergraph partitioner", feature: "hypergraph" }
}
