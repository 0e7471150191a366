//! CSR over in-edges: row `v` lists the sources `u` of the edges `u -> v`, ascending.

use std::ops::Range;

use lapidary_kernels::Shared;
use rayon::prelude::*;

/// The most vertices that a graph may have: ids are 32-bit, and the last two values are kept free.
pub const MAX_VERTICES: usize = u32::MAX as usize - 1;

/// Why arrays are no CSR. Positions count from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// No offsets at all, not even the first 0.
    #[error("the offsets are empty; a graph of V vertices has V + 1 of them")]
    NoOffsets,
    /// More vertices than 32-bit ids can name.
    #[error("{vertices} vertices are more than the {MAX_VERTICES} that 32-bit ids can name")]
    TooManyVertices {
        /// How many.
        vertices: usize,
    },
    /// The first offset is not 0.
    #[error("the first offset is {found}, expected 0")]
    FirstOffset {
        /// What stands there.
        found: u64,
    },
    /// An offset is smaller than the one before it.
    #[error("the offset at position {position} is {found}, less than the {previous} before it; offsets never fall")]
    Falling {
        /// Where.
        position: usize,
        /// The offset before.
        previous: u64,
        /// The offset.
        found: u64,
    },
    /// The last offset is not the number of edges.
    #[error("the last offset is {found}, but there are {edges} edges")]
    LastOffset {
        /// What stands there.
        found: u64,
        /// Length of the sources.
        edges: usize,
    },
    /// A source that is no vertex.
    #[error("the source at position {position} is {found}, but there are {vertices} vertices (0 to {})", vertices.wrapping_sub(1))]
    SourceOutOfRange {
        /// Where.
        position: usize,
        /// The source.
        found: u32,
        /// Number of vertices.
        vertices: usize,
    },
    /// Sources of one row that are not ascending.
    #[error(
        "the source at position {position} (row {row}) is {found}, less than the {previous} before it; sources ascend within a row"
    )]
    Unsorted {
        /// Where.
        position: usize,
        /// In which row.
        row: usize,
        /// The source before.
        previous: u32,
        /// The source.
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

/// A graph with every edge turned round, and where each of its edges came from.
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
    /// The first violation, by position. An empty graph (`indptr = [0]`) is a graph.
    /// # Cost
    /// O(n + e), in parallel.
    pub fn new(indptr: Shared<u64>, indices: Shared<u32>) -> Result<Self, GraphError> {
        check_offsets(&indptr, indices.len())?;
        check_sources(&indptr, &indices)?;
        Ok(Self { indptr, indices })
    }

    /// Builds the CSR of a list of edges `u -> v`, by counting; rows are then sorted.
    ///
    /// # Errors
    /// [`GraphError::SourceOutOfRange`] (`position` counts edges; either end) and [`GraphError::TooManyVertices`].
    /// # Cost
    /// O(n + e) and the sorting of each row; memory 8 (n + 1) + 4 e bytes beside the list.
    pub fn from_edges(vertices: usize, edges: &[(u32, u32)]) -> Result<Self, GraphError> {
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

    /// Number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Number of edges.
    pub fn edge_count(&self) -> usize {
        self.indices.len()
    }

    /// Offsets, `[n + 1]`.
    pub fn indptr(&self) -> &Shared<u64> {
        &self.indptr
    }

    /// Sources, `[e]`.
    pub fn indices(&self) -> &Shared<u32> {
        &self.indices
    }

    /// The edges of row `v`, as positions.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn edges(&self, v: usize) -> Range<usize> {
        self.indptr[v] as usize..self.indptr[v + 1] as usize
    }

    /// The in-neighbours of `v`, ascending.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn sources(&self, v: usize) -> &[u32] {
        &self.indices[self.edges(v)]
    }

    /// The number of in-edges of `v`.
    ///
    /// # Panics
    /// If there is no such vertex.
    pub fn in_degree(&self, v: usize) -> u64 {
        self.indptr[v + 1] - self.indptr[v]
    }

    /// The graph with every edge turned round.
    ///
    /// # Cost
    /// O(n + e): a counting sort, which keeps rows ascending.
    pub fn transpose(&self) -> Transposed {
        let n = self.vertex_count();
        let (indptr, indices, permutation) = transpose_csr(&self.indptr, &self.indices, n);
        Transposed { graph: Self { indptr: indptr.into(), indices: indices.into() }, permutation }
    }

    /// Whether `u -> v` is there as often as `v -> u`, for all u and v.
    ///
    /// # Cost
    /// O(n + e) time, 8 n bytes.
    pub fn is_symmetric(&self) -> bool {
        // Walking the rows in order visits each vertex's out-neighbours in ascending order, which is what its row
        // must list if the graph is symmetric: one cursor a row replaces the transpose.
        let n = self.vertex_count();
        let mut cursor: Vec<u64> = self.indptr[..n].to_vec();
        for v in 0..n {
            for &u in self.sources(v) {
                let at = &mut cursor[u as usize];
                if *at >= self.indptr[u as usize + 1] || self.indices[*at as usize] as usize != v {
                    return false;
                }
                *at += 1;
            }
        }
        true
    }

    /// The graph with exactly one self-loop at every vertex: `A + I`, where a loop that is there is kept once.
    ///
    /// # Cost
    /// O(n + e).
    pub fn with_self_loops(&self) -> Graph {
        let n = self.vertex_count();
        let mut indptr = vec![0u64; n + 1];
        for v in 0..n {
            let loops = self.sources(v).iter().filter(|&&u| u as usize == v).count() as u64;
            indptr[v + 1] = self.in_degree(v) - loops + 1;
        }
        prefix_sum(&mut indptr);
        let mut indices = vec![0u32; indptr[n] as usize];
        rows_mut(&indptr, &mut indices).into_par_iter().enumerate().for_each(|(v, row)| {
            let sources = self.sources(v);
            let below = sources.partition_point(|&u| (u as usize) < v);
            let above = sources.partition_point(|&u| (u as usize) <= v);
            row[..below].copy_from_slice(&sources[..below]);
            row[below] = v as u32;
            row[below + 1..].copy_from_slice(&sources[above..]);
        });
        Self { indptr: indptr.into(), indices: indices.into() }
    }

    /// Number of edges `v -> v`.
    pub fn self_loop_count(&self) -> usize {
        (0..self.vertex_count())
            .into_par_iter()
            .map(|v| self.sources(v).iter().filter(|&&u| u as usize == v).count())
            .sum()
    }

    /// Number of edges that repeat the one before them.
    pub fn duplicate_edge_count(&self) -> usize {
        (0..self.vertex_count())
            .into_par_iter()
            .map(|v| self.sources(v).windows(2).filter(|pair| pair[0] == pair[1]).count())
            .sum()
    }
}

/// Turns CSR with `columns` columns into CSC: offsets, rows, and the position that each entry came from.
pub(crate) fn transpose_csr(indptr: &[u64], indices: &[u32], columns: usize) -> (Vec<u64>, Vec<u32>, Vec<u64>) {
    let mut offsets = vec![0u64; columns + 1];
    for &u in indices {
        offsets[u as usize + 1] += 1;
    }
    prefix_sum(&mut offsets);
    let mut next = offsets[..columns].to_vec();
    let mut rows = vec![0u32; indices.len()];
    let mut permutation = vec![0u64; indices.len()];
    for (v, range) in indptr.windows(2).enumerate() {
        for edge in range[0]..range[1] {
            let slot = &mut next[indices[edge as usize] as usize];
            rows[*slot as usize] = v as u32;
            permutation[*slot as usize] = edge;
            *slot += 1;
        }
    }
    (offsets, rows, permutation)
}

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
