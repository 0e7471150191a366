//! What there is without the feature `metis`.

use std::num::NonZeroU32;

use super::Objective;
use crate::dataset::{Error, Result};
use crate::graph::Graph;
use crate::partition::{Assignment, VertexWeight};

/// Always [`Error::NotBuilt`]: this build has no `metis` feature.
pub fn assign(_: &Graph, _: NonZeroU32, _: Objective, _: &[VertexWeight<'_>], _: u64) -> Result<Assignment> {
    Err(Error::NotBuilt { what: "METIS", feature: "metis" })
}
