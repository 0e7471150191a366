//! Costs of consecutive ranges of vertices.

use std::ops::Range;

/// A cost that is a sum over vertices, and can be read in O(1) for any consecutive range.
///
/// A larger range never costs less, down to the last bit: integers are subtracted exactly, and a floating-point product
/// or sum never decreases when an operand increases. Binary search relies on this.
///
/// # Units
/// Those of the weights: vertices, edges or seconds.
/// # Source
/// ROC (Jia et al., MLSys 2020), section 4.2, but with one prefix sum per feature instead of one per cost, so that new
/// weights need no new sums.
#[derive(Clone, Debug)]
pub struct RangeCost<'a> {
    // Invariant: weights are finite and not negative; a column has `vertices + 1` entries, which never decrease.
    vertices: usize,
    per_vertex: f64,
    columns: Vec<(f64, &'a [u64])>,
    /// Correction factors in ascending order, each with the end of its vertices; behind the last, the factor is 1.
    factors: Vec<(usize, f64)>,
}

impl<'a> RangeCost<'a> {
    /// Creates the cost 1 per vertex.
    pub fn vertices(count: usize) -> Self {
        Self { per_vertex: 1.0, ..Self::nothing(count) }
    }

    /// Creates the number of in-edges as cost, or any other whole numbers with the prefix sums `indptr`.
    ///
    /// # Shapes
    /// `indptr`: `[n + 1]`, never decreasing.
    /// # Panics
    /// If it is empty.
    pub fn edges(indptr: &'a [u64]) -> Self {
        assert!(!indptr.is_empty(), "a graph of n vertices has n + 1 offsets");
        Self { columns: vec![(1.0, indptr)], ..Self::nothing(indptr.len() - 1) }
    }

    /// Creates a cost of 0.
    pub(crate) fn nothing(vertices: usize) -> Self {
        Self { vertices, per_vertex: 0.0, columns: Vec::new(), factors: Vec::new() }
    }

    /// Adds `weight` per vertex.
    pub(crate) fn add_per_vertex(&mut self, weight: f64) {
        self.per_vertex += weight;
    }

    /// Adds `weight` times a column. If the column is already there, its weight increases.
    pub(crate) fn add_column(&mut self, weight: f64, sums: &'a [u64]) {
        debug_assert!(weight >= 0.0 && weight.is_finite() && sums.len() == self.vertices + 1);
        if weight == 0.0 {
            return;
        }
        match self.columns.iter_mut().find(|(_, column)| std::ptr::eq(*column, sums)) {
            Some((sum, _)) => *sum += weight,
            None => self.columns.push((weight, sums)),
        }
    }

    /// Sets a factor for the cost of each part's vertices, in place of earlier factors: measured over predicted time.
    ///
    /// # Shapes
    /// `parts`: consecutive ranges from vertex 0 on.
    /// # Panics
    /// If the parts are not consecutive, or a factor is not finite or negative.
    pub fn correct(&mut self, parts: impl IntoIterator<Item = (Range<usize>, f64)>) {
        self.factors.clear();
        for (part, factor) in parts {
            assert_eq!(part.start, self.factors.last().map_or(0, |&(end, _)| end), "parts are consecutive");
            assert!(part.end >= part.start && factor >= 0.0 && factor.is_finite(), "{factor} is no factor");
            self.factors.push((part.end, factor));
        }
    }

    /// Number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.vertices
    }

    /// Returns the cost of a range of vertices.
    ///
    /// # Cost
    /// O(1): two reads per feature whose weight is not 0, for each part with its own factor that overlaps the range.
    /// # Panics
    /// If the range is out of bounds.
    pub fn of(&self, range: Range<usize>) -> f64 {
        // The terms only grow with the range, and are added in a fixed order, so the sum never decreases either.
        let mut start = range.start;
        let mut sum = 0.0;
        for &(end, factor) in &self.factors {
            let end = end.min(range.end);
            if start < end {
                sum += factor * self.uncorrected(start..end);
                start = end;
            }
        }
        if self.factors.is_empty() || start < range.end { sum + self.uncorrected(start..range.end) } else { sum }
    }

    fn uncorrected(&self, range: Range<usize>) -> f64 {
        let columns = self.columns.iter().map(|&(weight, sums)| weight * (sums[range.end] - sums[range.start]) as f64);
        columns.fold(self.per_vertex * range.len() as f64, |sum, cost| sum + cost)
    }

    /// Returns the cost of all vertices.
    pub fn total(&self) -> f64 {
        self.of(0..self.vertices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_add_up() {
        let (a, b) = ([0, 2, 2, 7], [0, 1, 3, 3]);
        let mut cost = RangeCost::nothing(3);
        cost.add_per_vertex(0.5);
        cost.add_column(2.0, &a);
        cost.add_column(0.0, &b);
        cost.add_column(1.0, &a);
        assert_eq!((cost.of(0..2), cost.of(2..3), cost.of(1..1), cost.total()), (7.0, 15.5, 0.0, 22.5));
        assert_eq!(cost.columns.len(), 1);
        cost.correct([(0..1, 2.0), (1..2, 10.0)]);
        assert_eq!((cost.of(0..2), cost.of(0..1), cost.of(1..3), cost.total()), (18.0, 13.0, 5.0 + 15.5, 33.5));
        assert_eq!((cost.of(0..0), cost.of(2..2), cost.of(3..3)), (0.0, 0.0, 0.0));
        assert_eq!((RangeCost::vertices(3).total(), RangeCost::edges(&a).of(1..3)), (3.0, 5.0));
    }
}
