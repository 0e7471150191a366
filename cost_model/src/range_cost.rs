//! The cost of any consecutive range of vertices.

use std::ops::Range;

/// A cost that is a sum over vertices, and O(1) to read for any consecutive range.
///
/// A greater range never costs less, to the last bit: integers are subtracted exactly, and a float product or sum
/// never falls when an operand rises. Binary search relies on that.
///
/// # Units
/// Whatever the weights make of the columns: vertices, edges, seconds.
/// # Source
/// ROC (Jia et al., MLSys 2020), section 4.2, with one prefix sum a feature instead of one a cost, so that new weights
/// cost nothing.
#[derive(Clone, Debug)]
pub struct RangeCost<'a> {
    // Invariant: weights are finite and not negative; a column has `vertices + 1` entries, which never fall.
    vertices: usize,
    per_vertex: f64,
    columns: Vec<(f64, &'a [u64])>,
    /// Where each factor ends, and the factor, in ascending order; behind the last, the factor is 1.
    factors: Vec<(usize, f64)>,
}

impl<'a> RangeCost<'a> {
    /// Every vertex costs 1.
    pub fn vertices(count: usize) -> Self {
        Self { per_vertex: 1.0, ..Self::nothing(count) }
    }

    /// A vertex costs its number of in-edges; more generally, what whole numbers with the prefix sums `indptr` say.
    ///
    /// # Shapes
    /// `indptr`: `[n + 1]`, never falling.
    /// # Panics
    /// If it is empty.
    pub fn edges(indptr: &'a [u64]) -> Self {
        assert!(!indptr.is_empty(), "a graph of n vertices has n + 1 offsets");
        Self { columns: vec![(1.0, indptr)], ..Self::nothing(indptr.len() - 1) }
    }

    /// Nothing costs anything, until something is added.
    pub(crate) fn nothing(vertices: usize) -> Self {
        Self { vertices, per_vertex: 0.0, columns: Vec::new(), factors: Vec::new() }
    }

    /// Adds `weight` a vertex.
    pub(crate) fn add_per_vertex(&mut self, weight: f64) {
        self.per_vertex += weight;
    }

    /// Adds `weight` times a column; to the weight that it has, if it is there already.
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

    /// Multiplies the cost of the vertices of each part by a factor, in place of earlier factors: what was measured of the
    /// part over what was predicted of it.
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

    /// Cost of a range of vertices.
    ///
    /// # Cost
    /// O(1): two reads a feature whose weight is not 0, for each part that has a factor of its own and meets the range.
    /// # Panics
    /// If it is not a range of vertices.
    pub fn of(&self, range: Range<usize>) -> f64 {
        // A sum of parts that only grow with the range, in one order: so it never falls either.
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

    /// Cost of all vertices.
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
