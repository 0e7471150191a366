//! Orders of the vertices that make gathers read from caches: [`VertexOrder`] names them, and each file has one of them.
//! Descending degrees are [`Permutation::by_degree`](super::Permutation::by_degree); the order by METIS's parts is in
//! [`partition`](crate::partition), which calls METIS.

mod rcm;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An order of the vertices. A gather finds more rows of its sources in a cache if vertices with common neighbours have
/// close numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VertexOrder {
    /// The dataset's own order.
    #[default]
    #[serde(rename = "none")]
    Own,
    /// By descending in-degree, so that the rows that are read most often are adjacent.
    #[serde(rename = "degree")]
    Degree,
    /// Reverse Cuthill–McKee, so that neighbours have close numbers.
    #[serde(rename = "rcm")]
    Rcm,
    /// By parts that METIS makes, each of which fits into a core's cache.
    #[serde(rename = "metis")]
    Metis,
}

/// The error of a text that is not the name of a [`VertexOrder`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write none, degree, rcm or metis")]
pub struct ParseVertexOrderError;

impl VertexOrder {
    /// All orders.
    pub const ALL: [Self; 4] = [Self::Own, Self::Degree, Self::Rcm, Self::Metis];

    /// Returns the name of the order: `none`, `degree`, `rcm` or `metis`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "none",
            Self::Degree => "degree",
            Self::Rcm => "rcm",
            Self::Metis => "metis",
        }
    }
}

impl fmt::Display for VertexOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for VertexOrder {
    type Err = ParseVertexOrderError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|order| order.name() == text).ok_or(ParseVertexOrderError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for order in VertexOrder::ALL {
            assert_eq!(order.to_string().parse(), Ok(order));
            assert_eq!(serde_json::to_value(order).expect("a name"), order.name());
        }
        assert_eq!("RCM".parse::<VertexOrder>(), Err(ParseVertexOrderError));
    }
}
