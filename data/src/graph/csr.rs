//! CSR over in-edges: row `v` lists the sources `u` of the edges `u -> v`, ascending.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use lapidary_arrays::Shared;
use rayon::prelude::*;

/// The most vertices that a graph may have: ids are 32-bit, and the last two values are reserved.
pub const MAX_VERTICES: usize = u32::MAX as usize - 1;

/// Why arrays are not a valid CSR. Positions count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The offsets are empty; even an empty graph has the first 0.
    #[error("the offsets are empty; a graph of V vertices has V + 1 of them")]
    NoOffsets,
    /// There are more vertices than 32-bit ids can name.
    #[error("{vertices} vertices are more than the {MAX_VERTICES} that 32-bit ids can name")]
    TooManyVertices {
        /// Number of vertices.
        vertices: usize,
    },
    /// The first offset is not 0.
    #[error("the first offset is {found}, expected 0")]
    FirstOffset {
        /// The first offset.
        found: u64,
    },
    /// An offset is smaller than the one before it.
    #[error("the offset at position {position} is {found}, less than the {previous} before it; offsets never fall")]
    Falling {
        /// The position of the offset.
        position: usize,
        /// The offset before it.
        previous: u64,
        /// The offset found.
        found: u64,
    },
    /// The last offset is not the number of edges.
    #[error("the last offset is {found}, but there are {edges} edges")]
    LastOffset {
        /// The last offset.
        found: u64,
        /// Number of edges.
        edges: usize,
    },
    /// A source is not a vertex.
    #[error("the source at position {position} is {found}, but there are {vertices} vertices (0 to {})", vertices.wrapping_sub(1))]
    SourceOutOfRange {
        /// The position of the source.
        position: usize,
        /// The source found.
        found: u32,
        /// Number of vertices.
        vertices: usize,
    },
    /// The sources of a row do not ascend.
    #[error(
        "the source at position {position} (row {row}) is {found}, less than the {previous} before it; sources ascend within a row"
    )]
    Unsorted {
        /// The position of the source.
        position: usize,
        /// The row.
        row: usize,
        /// The source before it.
        previous: u32,
        /// The source found.
        found: u32,
    },
}

/// A directed graph on the vertices `0 .. n`, as CSR over in-edges. Self-loops and multi-edges are allowed.
///
/// Cloning shares the arrays.
#[derive(Clone, Debug)]
pub struct Graph {
    // Invariant: `indptr` rises from 0 to `indices.len()`; every source is below `n`; each row ascends.
    indptr: Shared<u64>,
    indices: Shared<u32>,
}

/// A transposed graph, and where each of its edges came from.
#[derive(Clone, Debug)]
pub struct Transposed {
    /// Row `u` lists the destinations `v` of the edges `u -> v`, ascending.
    pub graph: Graph,
    /// `[e]`: edge `i` of the transposed graph was edge `permutation[i]`.
    pub permutation: Vec<u64>,
}

impl Graph {
    /// Checks the arrays and takes them.
    ///
    /// # Shapes
    /// `indptr`: `[n + 1]`; `indices`: `[e]`.
    /// # Errors
    /// The first violation, by position. An empty graph (`indptr = [0]`) is valid.
    /// # Cost
    /// O(n + e), in parallel.
    pub fn new(indptr: Shared<u64>, indices: Shared<u32>) -> Result<Self, GraphError> {
        check_offsets(&indptr, indices.len())?;
        check_sources(&indptr, &indices)?;
        Ok(Self { indptr, indices })
    }

    /// Builds a CSR from a list of edges `u -> v` with a counting sort, then sorts each row.
    ///
    /// # Errors
    /// [`GraphError::SourceOutOfRange`] if either end is not a vertex (`position` counts edges);
    /// [`GraphError::TooManyVertices`].
    /// # Cost
    /// O(n + e) and sorting each row; memory 8 (n + 1) + 4 e bytes besides the list.
    pub fn from_edges(vertices: usize, edges: &[(u32, u32)]) -> Result<Self, GraphError> {
        let indptr = offsets_of(vertices, edges)?;
        let mut next = indptr[..vertices].to_vec();
        let mut indices = vec![0u32; edges.len()];
        for &(u, v) in edges {
            let slot = &mut next[v as usize];
            indices[*slot as usize] = u;
            *slot += 1;
        }
        drop(next);
        rows_mut(&indptr, &mut indices).into_par_iter().for_each(|row| row.sort_unstable());
        Ok(Self { indptr: indptr.into(), indices: indices.into() })
    }

    /// Returns the number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> usize {
        self.indices.len()
    }

    /// Returns the offsets, `[n + 1]`.
    pub fn indptr(&self) -> &Shared<u64> {
        &self.indptr
    }

    /// Returns the sources, `[e]`.
    pub fn indices(&self) -> &Shared<u32> {
        &self.indices
    }

    /// Returns the range of positions of the edges of row `v`.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn edges(&self, v: usize) -> Range<usize> {
        self.indptr[v] as usize..self.indptr[v + 1] as usize
    }

    /// Returns the in-neighbours of `v`, ascending.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn sources(&self, v: usize) -> &[u32] {
        &self.indices[self.edges(v)]
    }

    /// Returns the number of in-edges of `v`.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn in_degree(&self, v: usize) -> u64 {
        self.indptr[v + 1] - self.indptr[v]
    }

    /// Returns the transposed graph, and where each of its edges came from.
    ///
    /// # Cost
    /// That of [`Graph::transpose_without_permutation`], plus 8 e bytes and e random writes.
    pub fn transpose(&self) -> Transposed {
        let (indptr, indices, permutation) = transpose_csr(&self.indptr, &self.indices, self.vertex_count());
        Transposed { graph: Self { indptr: indptr.into(), indices: indices.into() }, permutation }
    }

    /// Returns the transposed graph.
    ///
    /// # Cost
    /// O(n + e), with e sequential reads per thread. It is a counting sort, which keeps rows ascending. Takes 8 n bytes
    /// besides the new graph.
    pub fn transpose_without_permutation(&self) -> Self {
        let turned = Turned::new(&self.indptr, &self.indices, self.vertex_count());
        let indices = turned.rows();
        Self { indptr: turned.offsets.into(), indices: indices.into() }
    }

    /// Returns whether `u -> v` occurs as often as `v -> u`, for all u and v.
    ///
    /// Each edge gets a pseudo-random number from its two ends, the same in both directions. If the edges with u < v
    /// mirror those with u > v, the two sums of these numbers are equal. If not, they are equal with a probability of 1
    /// in 2^64. The seed is new in each call, so no file can be made to collide.
    ///
    /// # Cost
    /// O(n + e) time, in parallel, without memory: every source is read once, in order.
    /// # Source
    /// Clarke et al. 2003, Incremental multiset hash functions.
    pub fn is_symmetric(&self) -> bool {
        let seed = RandomState::new().hash_one(self.edge_count());
        let of_row = |v: usize| {
            let sources = self.sources(v);
            let below = sources.partition_point(|&u| (u as usize) < v);
            let (below, rest) = sources.split_at(below);
            let loops = rest.iter().take_while(|&&u| u as usize == v).count();
            let up = sum_of_numbers(below, |u| seed ^ (u << 32 | v as u64));
            let down = sum_of_numbers(&rest[loops..], |u| seed ^ ((v as u64) << 32 | u));
            up.wrapping_sub(down)
        };
        (0..self.vertex_count()).into_par_iter().map(of_row).reduce(|| 0, u64::wrapping_add) == 0
    }

    /// Returns the number of edges `v -> v` for one v.
    ///
    /// # Panics
    /// If `v` is not a vertex.
    /// # Cost
    /// O(log d) and the number of these edges.
    pub fn loops_at(&self, v: usize) -> usize {
        let [below, above] = self.sources_around(v);
        self.sources(v).len() - below.len() - above.len()
    }

    /// Returns the sources of a vertex below it and those above it.
    pub(super) fn sources_around(&self, v: usize) -> [&[u32]; 2] {
        around(self.sources(v), v)
    }

    /// Returns the graph with exactly one self-loop at every vertex, `A + I`. Existing loops are kept once.
    ///
    /// # Cost
    /// O(n + e), in parallel except for O(n).
    pub fn with_self_loops(&self) -> Graph {
        let n = self.vertex_count();
        let mut indptr = vec![0u64; n + 1];
        indptr[1..].par_iter_mut().enumerate().for_each(|(v, degree)| {
            *degree = self.in_degree(v) - self.loops_at(v) as u64 + 1;
        });
        prefix_sum(&mut indptr);
        let fill_row = |(v, row): (usize, &mut [u32])| {
            let [below, above] = self.sources_around(v);
            row[..below.len()].copy_from_slice(below);
            row[below.len()] = v as u32;
            row[below.len() + 1..].copy_from_slice(above);
        };
        let indices = Shared::filled(indptr[n] as usize, |indices| {
            rows_mut(&indptr, indices).into_par_iter().enumerate().for_each(fill_row);
        });
        let indices = indices.expect("the host has memory for another graph");
        Self { indptr: indptr.into(), indices }
    }

    /// Returns the number of edges `v -> v`.
    pub fn self_loop_count(&self) -> usize {
        self.self_loops_in(0..self.vertex_count())
    }

    /// Returns the number of self-loops at a range of vertices.
    ///
    /// # Panics
    /// If `range` is not a range of vertices.
    pub fn self_loops_in(&self, range: Range<usize>) -> usize {
        range.into_par_iter().map(|v| self.loops_at(v)).sum()
    }

    /// Returns the number of edges that repeat the one before them.
    pub fn duplicate_edge_count(&self) -> usize {
        (0..self.vertex_count())
            .into_par_iter()
            .map(|v| self.sources(v).windows(2).filter(|pair| pair[0] == pair[1]).count())
            .sum()
    }
}

/// Returns the sources of a vertex below it and those above it.
pub(super) fn around(sources: &[u32], v: usize) -> [&[u32]; 2] {
    let (below, rest) = sources.split_at(sources.partition_point(|&u| (u as usize) < v));
    let loops = rest.iter().take_while(|&&u| u as usize == v).count();
    [below, &rest[loops..]]
}

/// Returns the offsets of the rows of a list of edges `u -> v`.
///
/// # Errors
/// Those of [`Graph::from_edges`].
pub(super) fn offsets_of(vertices: usize, edges: &[(u32, u32)]) -> Result<Vec<u64>, GraphError> {
    if vertices > MAX_VERTICES {
        return Err(GraphError::TooManyVertices { vertices });
    }
    let mut indptr = vec![0u64; vertices + 1];
    for (position, &(u, v)) in edges.iter().enumerate() {
        for end in [u, v] {
            if end as usize >= vertices {
                return Err(GraphError::SourceOutOfRange { position, found: end, vertices });
            }
        }
        indptr[v as usize + 1] += 1;
    }
    prefix_sum(&mut indptr);
    Ok(indptr)
}

/// Returns the sum of the hashes of the keys of `sources`.
fn sum_of_numbers(sources: &[u32], key: impl Fn(u64) -> u64) -> u64 {
    sources.iter().map(|&u| mixed(key(u64::from(u)))).fold(0, u64::wrapping_add)
}

/// Returns a pseudo-random number for a number.
///
/// # Source
/// The finalizer of MurmurHash3.
pub(super) fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Converts a CSR with `columns` columns to a CSC: offsets, rows, and the former position of each entry.
pub(crate) fn transpose_csr(indptr: &[u64], indices: &[u32], columns: usize) -> (Vec<u64>, Vec<u32>, Vec<u64>) {
    let turned = Turned::new(indptr, indices, columns);
    let (rows, permutation) = (turned.rows(), turned.permutation());
    (turned.offsets, rows, permutation)
}

/// The first half of a conversion from CSR to CSC: the number of entries of each column is known. Columns that are not
/// wanted are left out.
///
/// Each thread takes a range of columns, reads all entries and keeps those of its range. No two threads write to the
/// same place, and each column gets its entries in row order, so the result does not depend on the ranges. Entries need
/// not ascend within a row.
pub(crate) struct Turned<'a> {
    indptr: &'a [u64],
    indices: &'a [u32],
    /// The first column that is wanted.
    first: usize,
    /// `[columns + 1]`.
    pub(crate) offsets: Vec<u64>,
}

impl<'a> Turned<'a> {
    pub(crate) fn new(indptr: &'a [u64], indices: &'a [u32], columns: usize) -> Self {
        Self::of_columns(indptr, indices, 0..columns)
    }

    pub(super) fn of_columns(indptr: &'a [u64], indices: &'a [u32], columns: Range<usize>) -> Self {
        let mut offsets = vec![0u64; columns.len() + 1];
        let len = columns.len().div_ceil(scan_count()).max(1);
        offsets[1..].par_chunks_mut(len).enumerate().for_each(|(range, counts)| {
            let start = columns.start + range * len;
            for &u in indices {
                if let Some(count) = counts.get_mut((u as usize).wrapping_sub(start)) {
                    *count += 1;
                }
            }
        });
        prefix_sum(&mut offsets);
        Self { indptr, indices, first: columns.start, offsets }
    }

    /// Returns the row of each entry.
    pub(crate) fn rows(&self) -> Vec<u32> {
        self.scatter(|row, _| row as u32)
    }

    /// Returns the former position of each entry.
    fn permutation(&self) -> Vec<u64> {
        self.scatter(|_, position| position)
    }

    /// Applies `entry` to the row and position of each entry, and returns the results column by column.
    pub(super) fn scatter<T: Copy + Default + Send>(&self, entry: impl Fn(usize, u64) -> T + Sync) -> Vec<T> {
        let mut entries = vec![T::default(); self.offsets.last().map_or(0, |&end| end as usize)];
        let mut rest = &mut entries[..];
        let mut parts = Vec::new();
        for columns in ranges_of_edges(&self.offsets, scan_count()) {
            let len = self.offsets[columns.end] - self.offsets[columns.start];
            let (part, others) = std::mem::take(&mut rest).split_at_mut(len as usize);
            rest = others;
            parts.push((columns, part));
        }
        parts.into_par_iter().for_each(|(columns, part)| {
            let (first, start) = (self.offsets[columns.start], self.first + columns.start);
            let mut next: Vec<u64> = self.offsets[columns.clone()].iter().map(|offset| offset - first).collect();
            for (row, range) in self.indptr.windows(2).enumerate() {
                let sources = &self.indices[range[0] as usize..range[1] as usize];
                for (position, &u) in (range[0]..).zip(sources) {
                    if let Some(slot) = next.get_mut((u as usize).wrapping_sub(start)) {
                        part[*slot as usize] = entry(row, position);
                        *slot += 1;
                    }
                }
            }
        });
        entries
    }
}

/// Returns the number of threads for work in which each thread reads all edges and keeps its part. It is at most 8, so
/// that the total reading stays a small multiple of the edges on any machine.
pub(crate) fn scan_count() -> usize {
    rayon::current_num_threads().min(8)
}

/// Cuts rows into at most `count` ranges with about the same sum of rows and edges.
pub(crate) fn ranges_of_edges(indptr: &[u64], count: usize) -> Vec<Range<usize>> {
    let n = indptr.len() - 1;
    let work = |row: usize| indptr[row] + row as u64;
    let mut ranges = Vec::with_capacity(count);
    let mut start = 0;
    for part in 1..=count as u64 {
        let until = (u128::from(work(n)) * u128::from(part)).div_ceil(count as u128) as u64;
        let len = indptr[start..].iter().zip(start..).take_while(|&(_, row)| work(row) < until).count();
        let end = (start + len).min(n);
        if start < end {
            ranges.push(start..end);
        }
        start = end;
    }
    ranges
}

/// Replaces counts by their running sums. With counts at `1..`, these are offsets.
#[doc(hidden)]
pub fn prefix_sum(counts: &mut [u64]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

/// Returns the rows of a CSR as disjoint slices.
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

/// Returns the entries of a CSR with these offsets. `fill` writes those of a row, which are defaults before.
///
/// # Cost
/// O(rows + entries), and 16 bytes for each row meanwhile.
#[doc(hidden)]
pub fn filled_rows<T: Copy + Default + Send>(indptr: &[u64], fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
    const ROWS_A_TASK: usize = 64;
    let mut entries = vec![T::default(); indptr.last().map_or(0, |&end| end as usize)];
    let rows = rows_mut(indptr, &mut entries).into_par_iter().with_min_len(ROWS_A_TASK).enumerate();
    rows.for_each(|(row, entries)| fill(row, entries));
    entries
}

fn check_offsets(indptr: &[u64], edges: usize) -> Result<(), GraphError> {
    let (Some(&first), Some(&last)) = (indptr.first(), indptr.last()) else {
        return Err(GraphError::NoOffsets);
    };
    let vertices = indptr.len() - 1;
    if vertices > MAX_VERTICES {
        return Err(GraphError::TooManyVertices { vertices });
    }
    if first != 0 {
        return Err(GraphError::FirstOffset { found: first });
    }
    let fall = indptr.par_windows(2).position_first(|pair| pair[1] < pair[0]);
    if let Some(position) = fall {
        return Err(GraphError::Falling {
            position: position + 1,
            previous: indptr[position],
            found: indptr[position + 1],
        });
    }
    if last != edges as u64 {
        return Err(GraphError::LastOffset { found: last, edges });
    }
    Ok(())
}

fn check_sources(indptr: &[u64], indices: &[u32]) -> Result<(), GraphError> {
    let vertices = indptr.len() - 1;
    // The last source of an ascending row is the largest.
    let is_good = |row: &[u32]| ascends(row) && row.last().is_none_or(|&u| (u as usize) < vertices);
    if indptr.par_windows(2).all(|range| is_good(&indices[range[0] as usize..range[1] as usize])) {
        return Ok(());
    }
    let stray = indices.par_iter().position_first(|&u| u as usize >= vertices);
    if let Some(position) = stray {
        return Err(GraphError::SourceOutOfRange { position, found: indices[position], vertices });
    }
    let row = indptr.par_windows(2).position_first(|range| !indices[range[0] as usize..range[1] as usize].is_sorted());
    if let Some(row) = row {
        let start = indptr[row] as usize;
        let sources = &indices[start..indptr[row + 1] as usize];
        let at = sources.windows(2).position(|pair| pair[1] < pair[0]).map_or(0, |i| i + 1);
        return Err(GraphError::Unsorted {
            position: start + at,
            row,
            previous: sources[at.saturating_sub(1)],
            found: sources[at],
        });
    }
    Ok(())
}

/// Does the same as [`slice::is_sorted`], but without early exit, so that the compiler can vectorise it.
fn ascends(row: &[u32]) -> bool {
    let next = row.get(1..).unwrap_or_default();
    row.iter().zip(next).fold(true, |so_far, (a, b)| so_far & (a <= b))
}
