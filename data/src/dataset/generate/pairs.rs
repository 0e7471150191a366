//! Builds a CSR from a long list of random pairs without sorting the list.

use lapidary_arrays::Shared;
use rayon::prelude::*;

use crate::graph::{Graph, GraphError};
use crate::graph::{prefix_sum, rows_mut};

/// Builds a simple graph: drops self-pairs, and keeps repeated edges once. With `symmetric`, adds the reverse of each
/// pair.
///
/// # Cost
/// That of [`csr`], and sorting each row; e counts edges before duplicates are dropped.
pub(super) fn simple_graph(vertices: usize, pairs: &[(u32, u32)], symmetric: bool) -> Result<Graph, GraphError> {
    let (mut indptr, mut indices) = csr(vertices, || {
        let reverse = move |&(u, v): &(u32, u32)| [Some((u, v)), symmetric.then_some((v, u))];
        pairs.iter().filter(|(u, v)| u != v).flat_map(reverse).flatten()
    });
    let kept: Vec<u64> = rows_mut(&indptr, &mut indices).into_par_iter().map(sort_and_dedup).collect();
    compact(&mut indptr, &mut indices, &kept);
    Graph::new(Shared::from(indptr), Shared::from(indices))
}

/// Builds a symmetric graph with exactly two edges per pair. Repeated edges and loops stay.
///
/// # Errors
/// Those of [`Graph::new`].
/// # Panics
/// If a vertex of a pair is not below `vertices`.
/// # Cost
/// Two passes over all edges per thread, and sorting each row; 8 (n + 1) + 4 e bytes.
pub fn both_ways(vertices: usize, pairs: &[(u32, u32)]) -> Result<Graph, GraphError> {
    let (indptr, mut indices) = csr(vertices, || pairs.iter().flat_map(|&(u, v)| [(u, v), (v, u)]));
    rows_mut(&indptr, &mut indices).into_par_iter().for_each(|row| row.sort_unstable());
    Graph::new(Shared::from(indptr), Shared::from(indices))
}

/// Returns the number of rows per range, so that there are about as many ranges as threads.
fn range_len(vertices: usize) -> usize {
    vertices.div_ceil(rayon::current_num_threads()).max(1)
}

/// Returns the offsets and the sources of each row, in the order in which the edges come. Edges are (source,
/// destination).
///
/// Each thread takes a range of rows, reads all edges and keeps those of its range. Once rows are sorted, the result
/// depends neither on the order of the edges nor on the ranges.
///
/// # Cost
/// Two passes over all edges per thread, and one random write per edge; 8 (n + 1) + 4 e bytes.
fn csr<I: Iterator<Item = (u32, u32)>>(vertices: usize, edges: impl Fn() -> I + Sync) -> (Vec<u64>, Vec<u32>) {
    let mut indptr = count(vertices, &edges);
    prefix_sum(&mut indptr);
    let mut indices = vec![0u32; indptr[vertices] as usize];
    scatter(&indptr, &mut indices, &edges);
    (indptr, indices)
}

fn count<I: Iterator<Item = (u32, u32)>>(vertices: usize, edges: &(impl Fn() -> I + Sync)) -> Vec<u64> {
    let mut counts = vec![0u64; vertices + 1];
    let len = range_len(vertices);
    counts[1..].par_chunks_mut(len).enumerate().for_each(|(range, counts)| {
        let start = range * len;
        for (_, v) in edges() {
            if let Some(count) = (v as usize).checked_sub(start).and_then(|at| counts.get_mut(at)) {
                *count += 1;
            }
        }
    });
    counts
}

fn scatter<I: Iterator<Item = (u32, u32)>>(indptr: &[u64], mut indices: &mut [u32], edges: &(impl Fn() -> I + Sync)) {
    let vertices = indptr.len() - 1;
    let len = range_len(vertices);
    let mut ranges = Vec::new();
    for start in (0..vertices).step_by(len) {
        let end = (start + len).min(vertices);
        let (part, rest) = std::mem::take(&mut indices).split_at_mut((indptr[end] - indptr[start]) as usize);
        indices = rest;
        ranges.push((start, end, part));
    }
    ranges.into_par_iter().for_each(|(start, end, part)| {
        let first = indptr[start];
        let mut next: Vec<u64> = indptr[start..end].iter().map(|offset| offset - first).collect();
        for (u, v) in edges() {
            if let Some(slot) = (v as usize).checked_sub(start).and_then(|at| next.get_mut(at)) {
                part[*slot as usize] = u;
                *slot += 1;
            }
        }
    });
}

/// Sorts the distinct values of a row to its front, and returns their number.
fn sort_and_dedup(row: &mut [u32]) -> u64 {
    row.sort_unstable();
    let mut kept = 0;
    for at in 0..row.len() {
        if kept == 0 || row[kept - 1] != row[at] {
            row[kept] = row[at];
            kept += 1;
        }
    }
    kept as u64
}

/// Moves the kept front of each row up to the end of the row before.
fn compact(indptr: &mut [u64], indices: &mut Vec<u32>, kept: &[u64]) {
    let mut to = 0;
    for (row, &len) in kept.iter().enumerate() {
        let from = indptr[row] as usize;
        indptr[row] = to as u64;
        indices.copy_within(from..from + len as usize, to);
        to += len as usize;
    }
    indptr[kept.len()] = to as u64;
    indices.truncate(to);
    indices.shrink_to_fit();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_simple_graph_has_each_edge_once_and_no_loop() {
        let pairs = [(0, 1), (1, 0), (2, 2), (3, 1), (3, 1), (4, 0)];
        let graph = simple_graph(6, &pairs, true).unwrap();
        let rows: Vec<&[u32]> = (0..6).map(|v| graph.sources(v)).collect();
        assert_eq!(rows, [&[1, 4][..], &[0, 3], &[], &[1], &[0], &[]]);
        let directed = simple_graph(6, &pairs, false).unwrap();
        let rows: Vec<&[u32]> = (0..6).map(|v| directed.sources(v)).collect();
        assert_eq!(rows, [&[1, 4][..], &[0, 3], &[], &[], &[], &[]]);
    }

    #[test]
    fn both_ways_keeps_every_edge() {
        let pairs: Vec<(u32, u32)> = (0..500).map(|i| (i * 7 % 23, i * i % 23)).collect();
        let edges: Vec<(u32, u32)> = pairs.iter().flat_map(|&(u, v)| [(u, v), (v, u)]).collect();
        let (got, want) = (both_ways(23, &pairs).unwrap(), Graph::from_edges(23, &edges).unwrap());
        assert_eq!((&got.indptr()[..], &got.indices()[..]), (&want.indptr()[..], &want.indices()[..]));
    }
}
