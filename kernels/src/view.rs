//! What kernels read and write: borrowed matrices, blocks and targets.

use lapidary_arrays::NO_LABEL;

pub use lapidary_arrays::BlockView;

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
