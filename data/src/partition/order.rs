//! The permutation of each order of vertices, and datasets in it.

use std::num::NonZeroU32;

use super::VertexWeight;
use super::metis::{self, Objective};
use crate::dataset::{Dataset, Error, Result};
use crate::graph::{Graph, Permutation, VertexOrder};

/// The vertices of a part of [`VertexOrder::Metis`], about. Their rows of 64 numbers take 1 MiB, the size of a core's own
/// cache. It is the same on all machines, so that an order is.
pub const PART_VERTICES: usize = 4096;

/// The seed of METIS.
const SEED: u64 = 1;

/// Returns the permutation of an order; `None` for the graph's own.
///
/// With [`VertexOrder::Metis`], parts of about [`PART_VERTICES`] vertices are consecutive. Inside of a part, vertices are in
/// the order of [`VertexOrder::Rcm`].
///
/// # Errors
/// With [`VertexOrder::Metis`], those of [`metis::assign`].
/// # Cost
/// See [`Permutation::by_degree`], [`Permutation::reverse_cuthill_mckee`] and [`metis::assign`].
pub fn permutation(graph: &Graph, order: VertexOrder) -> Result<Option<Permutation>> {
    Ok(match order {
        VertexOrder::Own => None,
        VertexOrder::Degree => Some(Permutation::by_degree(graph)),
        VertexOrder::Rcm => Some(Permutation::reverse_cuthill_mckee(graph)),
        VertexOrder::Metis => Some(by_parts(graph)?),
    })
}

fn by_parts(graph: &Graph) -> Result<Permutation> {
    let count = graph.vertex_count().div_ceil(PART_VERTICES).max(1);
    let count = u32::try_from(count).ok().and_then(NonZeroU32::new).expect("there are at most 2^32 vertices");
    let assignment = metis::assign(graph, count, Objective::Cut, &[VertexWeight::Rows], SEED).map_err(for_order)?;
    let near = Permutation::reverse_cuthill_mckee(graph);
    let moved = super::Assignment { part_of: near.rows(assignment.part_of(), 1), ..assignment };
    Ok(near.then(&moved.relabelling().0))
}

/// Makes an error of METIS name the option of orders.
fn for_order(error: Error) -> Error {
    match error {
        Error::NotForThisData { found, expected, .. } => Error::NotForThisData { option: "reorder", found, expected },
        error => error,
    }
}

impl Dataset {
    /// Returns the dataset with its vertices in an order, and drops this one. [`Dataset::permutation`] of the result leads
    /// back to the order of this dataset, or to the one that it was written from.
    ///
    /// ```
    /// use lapidary_data::dataset::Dataset;
    /// use lapidary_data::graph::VertexOrder;
    ///
    /// let data = Dataset::builtin("karate")?.reordered(VertexOrder::Degree)?;
    /// let degrees: Vec<u64> = (0..34).map(|v| data.graph().in_degree(v)).collect();
    /// assert!(degrees.is_sorted_by(|a, b| a >= b));
    /// assert_eq!(data.order(), VertexOrder::Degree);
    /// # Ok::<(), lapidary_data::dataset::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`permutation`] and [`Dataset::in_order`].
    /// # Cost
    /// Those of [`permutation`] and [`Dataset::in_order`]: while it runs, memory holds the arrays twice.
    pub fn reordered(self, order: VertexOrder) -> Result<Self> {
        match permutation(self.graph(), order)? {
            None => Ok(self),
            Some(permutation) => self.in_order(order, &permutation),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_recorded_and_lead_back() {
        let data = Dataset::builtin("karate").unwrap();
        let want = data.fingerprint().clone();
        for order in [VertexOrder::Own, VertexOrder::Degree, VertexOrder::Rcm] {
            let moved = data.clone().reordered(order).unwrap();
            assert_eq!(moved.order(), order);
            assert_eq!(moved.permutation().is_some(), order != VertexOrder::Own);
            let Some(permutation) = moved.permutation() else { continue };
            let back = Permutation::new(permutation.new_of_old().to_vec()).unwrap();
            let back = moved.relabelled(&back);
            assert_eq!((back.fingerprint(), back.order()), (&want, VertexOrder::Own));
        }
    }

    #[cfg(feature = "metis")]
    #[test]
    fn parts_are_consecutive_and_cut_few_edges() {
        // A shuffled ring of 3 parts: each vertex is joined to the next 8.
        let n = 3 * PART_VERTICES as u32;
        let edges = (0..n).flat_map(|v| (1..=8).map(move |step| (v, (v + step) % n)));
        let edges: Vec<(u32, u32)> = edges.flat_map(|(u, v)| [(u, v), (v, u)]).collect();
        let ring = Graph::from_edges(n as usize, &edges).unwrap();
        let shuffled = Permutation::random(n as usize, 5).apply(&ring);
        let order = permutation(&shuffled, VertexOrder::Metis).unwrap().unwrap();
        assert_eq!(Some(&order), permutation(&shuffled, VertexOrder::Metis).unwrap().as_ref());
        let moved = order.apply(&shuffled);
        let near = |v: usize| moved.sources(v).iter().filter(|u| u.abs_diff(v as u32) < 32).count();
        let share = (0..n as usize).map(near).sum::<usize>() as f64 / moved.edge_count() as f64;
        assert!(share > 0.95, "{share}");
        // One part is no error.
        let small = Dataset::builtin("karate").unwrap().reordered(VertexOrder::Metis).unwrap();
        assert_eq!(small.order(), VertexOrder::Metis);
    }

    #[cfg(not(feature = "metis"))]
    #[test]
    fn without_metis_its_order_is_an_error() {
        let error = Dataset::builtin("karate").unwrap().reordered(VertexOrder::Metis).unwrap_err();
        assert!(matches!(error, Error::NotBuilt { feature: "metis", .. }), "{error}");
    }
}
