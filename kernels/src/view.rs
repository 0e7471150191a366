//! What kernels read and write: borrowed matrices, blocks and targets.

use crate::call::NO_LABEL;

/// A dense row-major matrix of `f32` that is read.
#[derive(Clone, Copy, Debug)]
pub struct MatView<'a> {
    // Invariant: data.len() == rows * cols.
    data: &'a [f32],
    rows: usize,
    cols: usize,
}

impl<'a> MatView<'a> {
    /// `data` as `rows` rows of `cols`; `None` unless it has exactly that many elements.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Option<Self> {
        (rows.checked_mul(cols) == Some(data.len())).then_some(Self { data, rows, cols })
    }

    /// All elements, row by row.
    pub fn data(&self) -> &'a [f32] {
        self.data
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, r: usize) -> &'a [f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }
}

/// A dense row-major matrix of `f32` that is written.
#[derive(Debug)]
pub struct MatMut<'a> {
    // Invariant: data.len() == rows * cols.
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
}

impl<'a> MatMut<'a> {
    /// `data` as `rows` rows of `cols`; `None` unless it has exactly that many elements.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Option<Self> {
        (rows.checked_mul(cols) == Some(data.len())).then_some(Self { data, rows, cols })
    }

    /// All elements, row by row.
    pub fn data(&mut self) -> &mut [f32] {
        self.data
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }
}

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
    pub fn rows(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// The edges of row `v`, as a range into `indices`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn edges(&self, v: usize) -> std::ops::Range<usize> {
        self.indptr[v] as usize..self.indptr[v + 1] as usize
    }

    /// The sources of row `v`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn sources(&self, v: usize) -> &'a [u32] {
        &self.indices[self.edges(v)]
    }
}

/// Which rows of a matrix of logits a loss or a metric looks at, and what they should say.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// The right column of each row; [`NO_LABEL`], or any label that is no column, marks a row without one.
    pub labels: &'a [u32],
    /// Which split each row belongs to.
    pub split: &'a [u32],
    /// Rows of this split are selected, if they have a label.
    pub select: u32,
}

impl Targets<'_> {
    /// The label of row `r` if it is selected and has one.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn label(&self, r: usize, classes: usize) -> Option<usize> {
        let label = self.labels[r];
        let selected = self.split[r] == self.select && label != NO_LABEL && (label as usize) < classes;
        selected.then_some(label as usize)
    }
}

/// [`Targets`] where a row may be in any number of classes.
#[derive(Clone, Copy, Debug)]
pub struct MultiTargets<'a> {
    /// Whether each row is in each class, row by row, `[n * classes]`: 0 if it is not, 1 (or anything else) if it is.
    pub targets: &'a [u8],
    /// Number of classes.
    pub classes: usize,
    /// Which split each row belongs to.
    pub split: &'a [u32],
    /// Rows of this split are selected.
    pub select: u32,
}

impl<'a> MultiTargets<'a> {
    /// The targets of row `r` if it is selected.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, r: usize) -> Option<&'a [u8]> {
        (self.split[r] == self.select).then(|| &self.targets[r * self.classes..(r + 1) * self.classes])
    }
}
