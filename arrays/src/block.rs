//! Blocks: the edges that a gather runs over.

/// A bipartite CSR. Row `v` gathers from the sources `indices[indptr[v] .. indptr[v + 1]]`, in that order.
///
/// A source below `own_sources` is a row of the own matrix; source `own_sources + i` is row `i` of the halo.
///
/// The fields are public and unchecked. Kernels do not rely on them for memory safety: every access is bounds-checked.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    /// Offsets into `indices`, `[rows + 1]`: they start at 0, end at the number of edges and never decrease.
    pub indptr: &'a [u64],
    /// Local source ids, `[edges]`.
    pub indices: &'a [u32],
    /// Number of sources in the own matrix.
    pub own_sources: usize,
    /// Number of sources in the halo.
    pub halo_sources: usize,
}

impl<'a> BlockView<'a> {
    /// Returns the number of rows (destinations).
    #[inline]
    pub fn rows(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// Returns the edges of row `v`, as a range into `indices`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn edges(&self, v: usize) -> std::ops::Range<usize> {
        self.indptr[v] as usize..self.indptr[v + 1] as usize
    }

    /// Returns the sources of row `v`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn sources(&self, v: usize) -> &'a [u32] {
        &self.indices[self.edges(v)]
    }
}
