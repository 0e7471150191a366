//! Rows of a CSR: offsets from counts, and disjoint slices.

/// Counts at `1..` become offsets.
pub(crate) fn prefix_sum(counts: &mut [u64]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

/// The rows of a CSR as disjoint slices.
pub(crate) fn rows_mut<'a, T>(indptr: &[u64], mut entries: &'a mut [T]) -> Vec<&'a mut [T]> {
    indptr
        .windows(2)
        .map(|range| {
            let (row, rest) = std::mem::take(&mut entries).split_at_mut((range[1] - range[0]) as usize);
            entries = rest;
            row
        })
        .collect()
}
