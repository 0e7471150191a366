//! The balance of parts: what a vertex weighs, and which partitions are refused.

use std::num::NonZeroU32;

use rayon::prelude::*;

use super::pins::small;
use crate::dataset::{Error, Result};
use crate::graph::Graph;
use crate::partition::{Assignment, VertexWeight};

/// A partition is refused if a part weighs so many times the mean.
///
/// No vertex weighs more than the mean part, so it is easy to stay below 2: each vertex goes to the part that is the
/// lightest so far. What is far above 2 was not balanced at all.
const IMBALANCED: f64 = 3.0;

/// Returns the weights of the vertices, whose sum is a number that Mt-KaHyPar counts to.
///
/// A vertex weighs at least 1, so that isolated ones are distributed too. One that is heavier than the mean part fills a
/// part by itself; it gets the weight of the other parts' mean, so that these are balanced among each other.
pub(super) fn weights(graph: &Graph, count: NonZeroU32, weight: VertexWeight<'_>) -> Result<Vec<u64>> {
    let of = weight.positive(graph);
    let vertices = 0..graph.vertex_count();
    let total = |most: u64| vertices.clone().into_par_iter().map(|v| of(v).min(most)).sum::<u64>();
    small("of weight", total(u64::MAX))?;
    let mut most = u64::MAX;
    loop {
        let mean = (total(most) / u64::from(count.get())).max(1);
        if mean >= most {
            break;
        }
        most = mean;
    }
    Ok(vertices.into_par_iter().map(|v| of(v).min(most)).collect())
}

/// Refuses a partition without balance. Mt-KaHyPar may return one if a few vertices are heavier than the mean part.
///
/// # Errors
/// [`Error::Partitioner`] if a part weighs at least [`IMBALANCED`] times the mean.
pub(super) fn check(graph: &Graph, assignment: &Assignment, weights: &[u64]) -> Result<()> {
    let imbalance = assignment.imbalance(graph, VertexWeight::Given(weights));
    if imbalance < IMBALANCED {
        return Ok(());
    }
    let parts = assignment.count();
    let why = format!(
        "its heaviest of {parts} parts weighs {imbalance:.1} times the mean; ask for fewer parts, or set option `by` to \
         another way"
    );
    Err(Error::Partitioner { name: "Mt-KaHyPar", why })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_vertex_as_heavy_as_several_parts_fills_one() {
        let given = |count, weights: &[u64]| {
            let graph = Graph::from_edges(weights.len(), &[]).unwrap();
            super::weights(&graph, NonZeroU32::new(count).unwrap(), VertexWeight::Given(weights)).unwrap()
        };
        // The other parts weigh 3 each.
        assert_eq!(given(4, &[100, 3, 2, 0, 1, 2]), [3, 3, 2, 1, 1, 2]);
        assert_eq!(given(2, &[1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(given(3, &[9, 9, 9, 9]), [9, 9, 9, 9]);
    }

    #[test]
    fn parts_without_balance_are_refused() {
        let graph = Graph::from_edges(40, &[]).unwrap();
        let of = |heavy: u32| {
            // Part 0 has the first vertices, and the other nine parts share the rest.
            let part_of = (0..40).map(|v| if v < heavy { 0 } else { 1 + v % 9 }).collect();
            let assignment = Assignment::new(part_of, NonZeroU32::new(10).unwrap()).unwrap();
            check(&graph, &assignment, &[1; 40])
        };
        of(4).unwrap();
        of(11).unwrap();
        let message = of(20).unwrap_err().to_string();
        for words in ["Mt-KaHyPar failed", "10 parts weighs 5.0 times the mean", "fewer parts", "option `by`"] {
            assert!(message.contains(words), "`{words}` is not in: {message}");
        }
    }
}
