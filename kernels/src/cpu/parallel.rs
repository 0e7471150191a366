//! How work is cut into tasks. Cuts that decide the order of a sum depend on sizes alone, never on the threads.

use std::ops::Range;

use rayon::prelude::*;

/// Elements of one task of an elementwise kernel: three such arrays fit the second-level cache.
pub(super) const CHUNK: usize = 1 << 14;

/// Tasks a thread, so that a slow one does not keep the others waiting.
const TASKS_PER_THREAD: usize = 8;

/// Calls `f(first, part)` for consecutive parts of `out` of at most `chunk` elements, `first` being the index of the
/// part's first element.
pub(super) fn for_chunks<T: Send>(out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let chunk = chunk.max(1);
    if out.len() <= chunk {
        if !out.is_empty() {
            f(0, out);
        }
        return;
    }
    out.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| f(i * chunk, part));
}

/// Calls `f(first_row, rows)` for consecutive rows of a row-major matrix with `cols` columns.
pub(super) fn for_rows<T: Send>(out: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let cols = cols.max(1);
    let rows = (CHUNK / cols).max(1);
    for_chunks(out, rows * cols, |first, part| f(first / cols, part));
}

/// Computes one value for each of the ranges that cut `0..n` into pieces of `chunk`; the values are in order.
pub(super) fn map_chunks<R: Send>(n: usize, chunk: usize, f: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    let chunk = chunk.max(1);
    let range = |i: usize| i * chunk..((i + 1) * chunk).min(n);
    let count = n.div_ceil(chunk);
    if count <= 1 {
        return (0..count).map(|i| f(range(i))).collect();
    }
    (0..count).into_par_iter().map(|i| f(range(i))).collect()
}

/// How many tasks suit `work` units of which one task should have at least `least`.
pub(super) fn task_count(work: usize, least: usize) -> usize {
    (work / least.max(1)).clamp(1, TASKS_PER_THREAD * rayon::current_num_threads())
}

/// Cuts the rows of a block into consecutive ranges of nearly equal edges + rows.
///
/// # Returns
/// At most `parts` ranges that cover `0..n` in order, none of them empty. A row with very many edges is a range of
/// its own at worst; rows are not cut.
pub(super) fn balanced_rows(indptr: &[u64], parts: usize) -> Vec<Range<usize>> {
    let n = indptr.len().saturating_sub(1);
    let Some(&edges) = indptr.last() else { return Vec::new() };
    let total = u128::from(edges) + n as u128;
    let mut ranges = Vec::with_capacity(parts);
    let mut low = 0;
    for part in 1..=parts {
        let target = total * part as u128 / parts as u128;
        let high = if part == parts { n } else { first_at_least(indptr, target).clamp(low, n) };
        if low < high {
            ranges.push(low..high);
            low = high;
        }
    }
    ranges
}

/// The first `v` with `indptr[v] + v >= target`.
fn first_at_least(indptr: &[u64], target: u128) -> usize {
    let (mut low, mut high) = (0, indptr.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if u128::from(indptr[middle]) + (middle as u128) < target { low = middle + 1 } else { high = middle }
    }
    low
}

/// Cuts `out` at the given ends. The ends must not fall; what lies past the slice is left out.
pub(super) fn split_at_ends<T>(mut out: &mut [T], ends: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ends {
        let len = end.saturating_sub(start).min(out.len());
        let (part, rest) = out.split_at_mut(len);
        parts.push(part);
        out = rest;
        start = end.max(start);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_rows_visit_every_row_once() {
        let blocks: [&[u64]; 6] = [&[], &[0], &[0, 0], &[0, 9, 9, 9], &[0, 0, 0, 9], &[0, 1, 2, 3, 4, 5, 6, 7]];
        for indptr in blocks {
            for parts in 1..6 {
                let ranges = balanced_rows(indptr, parts);
                let rows: Vec<usize> = ranges.iter().cloned().flatten().collect();
                assert_eq!(rows, (0..indptr.len().saturating_sub(1)).collect::<Vec<_>>());
                assert!(ranges.len() <= parts && ranges.iter().all(|r| !r.is_empty()));
            }
        }
    }

    #[test]
    fn balanced_rows_are_balanced() {
        let indptr: Vec<u64> = (0..=1000).map(|v| v * 3).collect();
        for range in balanced_rows(&indptr, 8) {
            assert!((124..=126).contains(&range.len()), "{range:?}");
        }
    }

    #[test]
    fn split_at_ends_never_panics_on_falling_ends() {
        let mut values = [1, 2, 3, 4];
        let parts = split_at_ends(&mut values, [3, 1, 9].into_iter());
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [3, 0, 1]);
    }
}
