//! Consecutive vertex ranges of equal cost.

use std::num::NonZeroUsize;
use std::ops::Range;

use lapidary_cost_model::PrefixCost;

/// Splits the vertices into `parts` consecutive ranges of nearly equal cost: each boundary is the vertex whose prefix is
/// nearest to that share of the total.
///
/// # Returns
/// `parts` ranges that cover `0..n` in order; some are empty when there are more parts than vertices. No range costs more
/// than an equal share and one vertex.
/// # Cost
/// O(parts log n) time, O(parts) space.
/// # Source
/// ROC (Jia et al., MLSys 2020), section 4.2.
pub fn split(cost: &PrefixCost, parts: NonZeroUsize) -> Vec<Range<usize>> {
    let n = cost.vertex_count();
    let share = cost.total() / parts.get() as f64;
    let mut start = 0;
    (1..=parts.get())
        .map(|part| {
            let end = if part == parts.get() { n } else { cost.nearest(share * part as f64).max(start) };
            let range = start..end;
            start = end;
            range
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least bottleneck of any split, by trying every boundary of the last part.
    fn least_bottleneck(costs: &[f64], parts: usize) -> f64 {
        let n = costs.len();
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = 0.0;
        for _ in 0..parts {
            best = (0..=n)
                .map(|end| {
                    let last = |start: usize| costs[start..end].iter().sum::<f64>();
                    (0..=end).map(|start| best[start].max(last(start))).fold(f64::INFINITY, f64::min)
                })
                .collect();
        }
        best[n]
    }

    proptest! {
        #[test]
        fn parts_cover_the_vertices_and_none_is_far_above_the_best(
            costs in proptest::collection::vec(0u32..50, 0..24),
            parts in 1usize..9,
        ) {
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            let prefix = PrefixCost::new(costs.iter().copied()).expect("costs are good");
            let ranges = split(&prefix, NonZeroUsize::new(parts).expect("at least one"));
            prop_assert_eq!(ranges.len(), parts);
            prop_assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, costs.len()));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let bottleneck = ranges.iter().map(|r| prefix.of(r.clone())).fold(0.0, f64::max);
            let largest = costs.iter().copied().fold(0.0, f64::max);
            prop_assert!(bottleneck <= prefix.total() / parts as f64 + largest + 1e-9);
            prop_assert!(bottleneck <= least_bottleneck(&costs, parts) + largest + 1e-9);
        }
    }

    #[test]
    fn more_parts_than_vertices_leave_some_empty() {
        let prefix = PrefixCost::new([1.0, 1.0]).expect("costs are good");
        let ranges = split(&prefix, NonZeroUsize::new(5).expect("five"));
        assert_eq!(ranges.iter().map(ExactSizeIterator::len).sum::<usize>(), 2);
    }
}
