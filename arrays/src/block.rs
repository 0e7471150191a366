//! The edges that a gather runs over.

/// A bipartite CSR: row `v` gathers from the sources `indices[indptr[v] .. indptr[v + 1]]`, in that order.
///
/// A source below `own_sources` is a row of the own matrix; source `own_sources + i` is row `i` of the halo.
///
/// The fields are public, and a kernel never relies on them for memory safety: it indexes with checks.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    /// Offsets into `indices`, `[rows + 1]`, from 0 to the number of edges, never falling.
    pub indptr: &'a [u64],
    /// Local source ids, `[edges]`.
    pub indices: &'a [u32],
    /// How many sources lie in the own matrix.
    pub own_sources: usize,
    /// How many sources lie in the halo.
    pub halo_sources: usize,
}

impl<'a> BlockView<'a> {
    /// Number of rows that gather.
    #[inline]
    pub fn rows(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// The edges of row `v`, as a range into `indices`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn edges(&self, v: usize) -> std::ops::Range<usize> {
        self.indptr[v] as usize..self.indptr[v + 1] as usize
    }

    /// The sources of row `v`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn sources(&self, v: usize) -> &'a [u32] {
        &self.indices[self.edges(v)]
    }
}
