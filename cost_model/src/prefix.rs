//! Prefix sums of the vertices' costs.

use std::ops::Range;

/// The cost of every vertex, summed up so that the cost of any consecutive range is one subtraction.
///
/// # Units
/// Whatever the vertices' costs are in: edges, seconds.
/// # Source
/// ROC (Jia et al., MLSys 2020), section 4.2.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixCost {
    // Invariant: starts at 0, never falls, all finite; one more entry than vertices.
    sums: Vec<f64>,
}

/// A cost that no prefix sum can hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the cost of vertex {vertex} is {cost}; costs are finite and not negative, or binary search would go wrong")]
pub struct PrefixError {
    /// Which vertex.
    pub vertex: usize,
    /// Its cost.
    pub cost: f64,
}

impl PrefixCost {
    /// Sums up the vertices' costs, in order.
    ///
    /// # Errors
    /// The first cost that is negative or not finite.
    /// # Cost
    /// O(n).
    pub fn new(costs: impl IntoIterator<Item = f64>) -> Result<Self, PrefixError> {
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        for (vertex, cost) in costs.into_iter().enumerate() {
            if !(cost >= 0.0 && f64::is_finite(sum + cost)) {
                return Err(PrefixError { vertex, cost });
            }
            sum += cost;
            sums.push(sum);
        }
        Ok(Self { sums })
    }

    /// Number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.sums.len() - 1
    }

    /// Cost of all vertices.
    pub fn total(&self) -> f64 {
        self.sums[self.vertex_count()]
    }

    /// Cost of the vertices before `vertex`.
    ///
    /// # Panics
    /// If `vertex` is greater than the number of vertices.
    pub fn before(&self, vertex: usize) -> f64 {
        self.sums[vertex]
    }

    /// Cost of a range of vertices.
    ///
    /// # Panics
    /// If the range is not one of vertices.
    pub fn of(&self, range: Range<usize>) -> f64 {
        self.sums[range.end] - self.sums[range.start]
    }

    /// The number of leading vertices whose cost together is nearest to `cost`; of two equally near, the fewer.
    ///
    /// # Cost
    /// O(log n).
    pub fn nearest(&self, cost: f64) -> usize {
        let above = self.sums.partition_point(|&sum| sum < cost).min(self.vertex_count());
        match above.checked_sub(1) {
            Some(below) if cost - self.sums[below] <= self.sums[above] - cost => below,
            _ => above,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn costs_that_cannot_be_summed_are_named() {
        for (costs, vertex) in [(vec![1.0, -0.5], 1), (vec![f64::NAN], 0), (vec![0.0, 1.0, f64::INFINITY], 2)] {
            assert_eq!(PrefixCost::new(costs).expect_err("a bad cost").vertex, vertex);
        }
        let overflow = PrefixCost::new([f64::MAX, f64::MAX]);
        assert_eq!(overflow.expect_err("the sum is infinite").vertex, 1);
    }

    proptest! {
        #[test]
        fn a_range_costs_what_its_vertices_do(costs in proptest::collection::vec(0u32..100, 0..50), a in 0usize..50, b in 0usize..50) {
            let (a, b) = (a.min(costs.len()), b.min(costs.len()));
            let (start, end) = (a.min(b), a.max(b));
            let prefix = PrefixCost::new(costs.iter().map(|&c| f64::from(c))).expect("costs are good");
            let want: u32 = costs[start..end].iter().sum();
            prop_assert_eq!(prefix.of(start..end), f64::from(want));
        }

        #[test]
        fn nearest_is_nearest(costs in proptest::collection::vec(0u32..100, 0..50), target in 0f64..3000.0) {
            let prefix = PrefixCost::new(costs.iter().map(|&c| f64::from(c))).expect("costs are good");
            let distance = |v: usize| (prefix.before(v) - target).abs();
            let best = (0..=costs.len()).map(distance).fold(f64::INFINITY, f64::min);
            prop_assert_eq!(distance(prefix.nearest(target)), best);
        }
    }
}
