//! In-place operations on the rows of a CSR: sort, drop repeats and loops, and close the gaps.

use rayon::prelude::*;

use crate::graph::rows_mut;

/// Which edges of a row are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Edges that repeat another.
    pub duplicates: bool,
    /// Edges `v -> v`.
    pub self_loops: bool,
}

/// Numbers of edges of each kind, whether kept or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Edges that repeated another.
    pub duplicates: u64,
    /// Edges `v -> v`, repeats included.
    pub self_loops: u64,
}

/// Sorts every row and drops the edges that are not kept. The first row is that of vertex `first`.
///
/// # Cost
/// O(n + e) and sorting each row; parallel except for closing the gaps; 24 bytes per vertex.
pub(crate) fn tidy(first: usize, indptr: &mut [u64], indices: &mut Vec<u32>, keep: Keep) -> Seen {
    let work = |(v, row): (usize, &mut [u32])| tidy_row((first + v) as u32, row, keep);
    let done: Vec<(u64, Seen)> = rows_mut(indptr, indices).into_par_iter().enumerate().map(work).collect();
    let mut seen = Seen::default();
    let mut kept = 0;
    for (len, row) in &done {
        kept += len;
        seen.duplicates += row.duplicates;
        seen.self_loops += row.self_loops;
    }
    if kept < indices.len() as u64 {
        compact(indptr, indices, done.iter().map(|&(len, _)| len));
    }
    seen
}

/// Sorts a row, moves the kept edges to its front, and returns their number.
fn tidy_row(v: u32, row: &mut [u32], keep: Keep) -> (u64, Seen) {
    if !row.is_sorted() {
        row.sort_unstable();
    }
    let mut seen = Seen::default();
    let mut kept = 0;
    let mut previous = None;
    for at in 0..row.len() {
        let u = row[at];
        let again = previous == Some(u);
        previous = Some(u);
        seen.duplicates += u64::from(again);
        seen.self_loops += u64::from(u == v);
        if (keep.duplicates || !again) && (keep.self_loops || u != v) {
            row[kept] = u;
            kept += 1;
        }
    }
    (kept as u64, seen)
}

/// Moves the kept front of each row up to the end of the row before.
pub(crate) fn compact(indptr: &mut [u64], indices: &mut Vec<u32>, kept: impl Iterator<Item = u64>) {
    let mut to = 0;
    let mut rows = 0;
    for (row, len) in kept.enumerate() {
        let from = indptr[row] as usize;
        indptr[row] = to as u64;
        indices.copy_within(from..from + len as usize, to);
        to += len as usize;
        rows = row + 1;
    }
    indptr[rows] = to as u64;
    indices.truncate(to);
    indices.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: ([u64; 4], [u32; 8]) = ([0, 4, 5, 8], [2, 0, 2, 0, 1, 2, 1, 2]);

    #[test]
    fn rows_are_sorted_and_counted_and_lose_only_what_is_not_kept() {
        let cases = [
            (true, true, vec![0, 0, 2, 2, 1, 1, 2, 2], [0, 4, 5, 8]),
            (false, true, vec![0, 2, 1, 1, 2], [0, 2, 3, 5]),
            (true, false, vec![2, 2, 1], [0, 2, 2, 3]),
            (false, false, vec![2, 1], [0, 1, 1, 2]),
        ];
        for (duplicates, self_loops, want, offsets) in cases {
            let (mut indptr, mut indices) = (ROWS.0, ROWS.1.to_vec());
            let seen = tidy(0, &mut indptr, &mut indices, Keep { duplicates, self_loops });
            assert_eq!((indices, indptr), (want, offsets));
            assert_eq!(seen, Seen { duplicates: 3, self_loops: 5 });
        }
    }
}
