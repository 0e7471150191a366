//! The block, which every gather runs over.

use std::ops::Range;

use lapidary_arrays::{BlockView, Shared};

use super::csr::{Graph, Turned, filled_rows, prefix_sum, transpose_csr};
use super::rows::GraphRows;

/// A bipartite CSR: each destination row lists the sources that it gathers from.
///
/// Sources are numbered locally. Those below `own_sources` are rows of the own matrix. The others are rows of the halo:
/// source `own_sources + i` is row `i` of the halo. A whole graph is a block with an empty halo; a part of it and a
/// tile of a part are blocks too.
///
/// The edges of a row stay in *global* source order, whatever the local ids. So a gather adds in the same order, and
/// gives the same bits, on any partition.
#[derive(Clone, Debug)]
pub struct Block {
    // Invariant: `indptr` rises from 0 to `indices.len()`; every source is below own_sources + halo.len().
    indptr: Shared<u64>,
    indices: Shared<u32>,
    own_sources: usize,
    halo: Vec<u32>,
}

impl Block {
    /// Returns the whole graph as a block, without a halo and without a copy.
    pub fn whole(graph: &Graph) -> Self {
        Self {
            indptr: graph.indptr().clone(),
            indices: graph.indices().clone(),
            own_sources: graph.vertex_count(),
            halo: Vec::new(),
        }
    }

    /// Returns a rectangular CSR as a block whose sources are all own, such as the non-zeros of a sparse matrix.
    ///
    /// # Panics
    /// If the last offset is not the number of entries. Columns are not checked: the caller has done so.
    #[doc(hidden)]
    pub fn rectangular(indptr: Shared<u64>, indices: Shared<u32>, columns: usize) -> Self {
        assert_eq!(indptr.last().copied(), Some(indices.len() as u64), "offsets end at the number of entries");
        Self { indptr, indices, own_sources: columns, halo: Vec::new() }
    }

    /// Cuts the rows `part` out of the graph. The own sources are the part's own vertices. The halo is the other
    /// vertices that its rows read, in ascending order, which is by owner if parts are consecutive.
    ///
    /// # Panics
    /// If `part` is not a range of vertices.
    /// # Cost
    /// O(n / 64 + edges of the part): halo ids are ranked with a bitmap, not sorted.
    pub fn of_part(graph: &Graph, part: Range<usize>) -> Self {
        Self::of_rows(&graph.rows(part))
    }

    /// Returns a block whose rows are these vertices, in any order, and whose sources are all vertices of the graph.
    ///
    /// # Panics
    /// If one of them is no vertex.
    /// # Cost
    /// O(vertices and their edges).
    pub fn of_vertices(graph: &Graph, vertices: &[u32]) -> Self {
        let (starts, sources): (&[u64], &[u32]) = (graph.indptr(), graph.indices());
        let edges = |v: u32| starts[v as usize]..starts[v as usize + 1];
        let mut indptr: Vec<u64> =
            std::iter::once(0).chain(vertices.iter().map(|&v| edges(v).end - edges(v).start)).collect();
        prefix_sum(&mut indptr);
        let indices = filled_rows(&indptr, |row, to: &mut [u32]| {
            let edges = edges(vertices[row]);
            to.copy_from_slice(&sources[edges.start as usize..edges.end as usize]);
        });
        Self { indptr: indptr.into(), indices: indices.into(), own_sources: graph.vertex_count(), halo: Vec::new() }
    }

    /// Makes a block of these rows; see [`Block::of_part`].
    ///
    /// # Cost
    /// That of [`Block::of_part`].
    pub fn of_rows(rows: &GraphRows) -> Self {
        let first = rows.offsets()[0];
        let indptr = rows.offsets().iter().map(|offset| offset - first).collect();
        Self::with_local_ids(rows, indptr, rows.indices().iter().copied())
    }

    /// Cuts rows out of the graph as [`Block::of_part`] does, with exactly one self-loop at every vertex: the rows of
    /// [`Graph::with_self_loops`], without making that graph.
    ///
    /// # Panics
    /// If `part` is not a range of vertices.
    /// # Cost
    /// That of [`Block::of_part`].
    pub fn of_part_with_self_loops(graph: &Graph, part: Range<usize>) -> Self {
        Self::of_rows_with_self_loops(&graph.rows(part))
    }

    /// Makes a block of these rows, with exactly one self-loop at every vertex; see
    /// [`Block::of_part_with_self_loops`].
    ///
    /// # Cost
    /// That of [`Block::of_part`].
    pub fn of_rows_with_self_loops(rows: &GraphRows) -> Self {
        let sources = rows.range().flat_map(|v| {
            let [below, above] = rows.sources_around(v);
            below.iter().copied().chain([v as u32]).chain(above.iter().copied())
        });
        Self::with_local_ids(rows, rows.offsets_with_self_loops(), sources)
    }

    fn with_local_ids(rows: &GraphRows, indptr: Vec<u64>, sources: impl Iterator<Item = u32>) -> Self {
        let (outside, part) = (rows.outside(), rows.range());
        let halo: Vec<u32> = outside.iter().collect();
        let local = |u: u32| {
            if part.contains(&(u as usize)) {
                return u - part.start as u32;
            }
            part.len() as u32 + outside.rank(u as usize) as u32
        };
        let mut indices = Vec::with_capacity(indptr.last().map_or(0, |&edges| edges as usize));
        indices.extend(sources.map(local));
        Self { indptr: indptr.into(), indices: indices.into(), own_sources: part.len(), halo }
    }

    /// Returns the transposed block, and for each of its edges the position of that edge in this block. Rows become own
    /// sources, and all sources (own, then halo) become rows.
    ///
    /// # Cost
    /// That of [`Block::transpose_without_permutation`], plus 8 e bytes and e random writes.
    pub fn transpose(&self) -> (Self, Vec<u64>) {
        let (indptr, indices, permutation) = transpose_csr(&self.indptr, &self.indices, self.source_count());
        (self.turned(indptr, indices), permutation)
    }

    /// Returns the transposed block; see [`Block::transpose`].
    ///
    /// # Cost
    /// O(rows + sources + e), with e sequential reads per thread; 8 bytes per source besides the new block.
    pub fn transpose_without_permutation(&self) -> Self {
        let turned = Turned::new(&self.indptr, &self.indices, self.source_count());
        let indices = turned.rows();
        self.turned(turned.offsets, indices)
    }

    fn turned(&self, indptr: Vec<u64>, indices: Vec<u32>) -> Self {
        Self { indptr: indptr.into(), indices: indices.into(), own_sources: self.row_count(), halo: Vec::new() }
    }

    /// Returns the number of rows.
    pub fn row_count(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Returns the number of own sources.
    pub fn own_sources(&self) -> usize {
        self.own_sources
    }

    /// Returns the global ids of the halo rows, ascending.
    pub fn halo(&self) -> &[u32] {
        &self.halo
    }

    /// Returns the number of own sources and halo rows together.
    pub fn source_count(&self) -> usize {
        self.own_sources + self.halo.len()
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> usize {
        self.indices.len()
    }

    /// Returns the offsets, `[rows + 1]`.
    pub fn indptr(&self) -> &Shared<u64> {
        &self.indptr
    }

    /// Returns the local source ids, `[e]`.
    pub fn indices(&self) -> &Shared<u32> {
        &self.indices
    }

    /// Returns the block as the kernels take it.
    pub fn view(&self) -> BlockView<'_> {
        BlockView {
            indptr: &self.indptr,
            indices: &self.indices,
            own_sources: self.own_sources,
            halo_sources: self.halo.len(),
        }
    }

    /// Returns the bytes of the two arrays.
    pub fn byte_count(&self) -> u64 {
        8 * self.indptr.len() as u64 + 4 * self.indices.len() as u64
    }
}
