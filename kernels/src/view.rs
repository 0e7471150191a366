//! Borrowed operands of kernels: matrices, blocks and targets.

use lapidary_arrays::NO_LABEL;

pub use lapidary_arrays::BlockView;

/// A read-only dense row-major matrix, of `f32` unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct MatView<'a, T = f32> {
    // Invariant: data.len() == rows * cols.
    data: &'a [T],
    rows: usize,
    cols: usize,
}

impl<'a, T> MatView<'a, T> {
    /// Creates a view of `data` as `rows` rows of `cols` columns; `None` unless the number of elements matches.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Option<Self> {
        (rows.checked_mul(cols) == Some(data.len())).then_some(Self { data, rows, cols })
    }

    /// Returns all elements, row by row.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, r: usize) -> &'a [T] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }
}

/// A writable dense row-major matrix, of `f32` unless said otherwise.
#[derive(Debug)]
pub struct MatMut<'a, T = f32> {
    // Invariant: data.len() == rows * cols.
    data: &'a mut [T],
    rows: usize,
    cols: usize,
}

impl<'a, T> MatMut<'a, T> {
    /// Creates a view of `data` as `rows` rows of `cols` columns; `None` unless the number of elements matches.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Option<Self> {
        (rows.checked_mul(cols) == Some(data.len())).then_some(Self { data, rows, cols })
    }

    /// Returns all elements, row by row.
    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, r: usize) -> &mut [T] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }
}

/// The rows of a logits matrix that a loss or a metric covers, and their labels.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Class of each row. [`NO_LABEL`], or any value that is not a column, marks a row without a label.
    pub labels: &'a [u32],
    /// Split code of each row.
    pub split: &'a [u32],
    /// Split code of the selected rows. Rows without a label are never selected.
    pub select: u32,
}

impl Targets<'_> {
    /// Returns the label of row `r`, if the row is selected and has one.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn label(&self, r: usize, classes: usize) -> Option<usize> {
        let label = self.labels[r];
        let selected = self.split[r] == self.select && label != NO_LABEL && (label as usize) < classes;
        selected.then_some(label as usize)
    }
}

/// The same as [`Targets`], for rows that can be in any number of classes.
#[derive(Clone, Copy, Debug)]
pub struct MultiTargets<'a> {
    /// Whether each row is in each class, row by row, `[n * classes]`: 0 if not, 1 (or any other value) if so.
    pub targets: &'a [u8],
    /// Number of classes.
    pub classes: usize,
    /// Split code of each row.
    pub split: &'a [u32],
    /// Split code of the selected rows.
    pub select: u32,
}

impl<'a> MultiTargets<'a> {
    /// Returns the targets of row `r`, if the row is selected.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, r: usize) -> Option<&'a [u8]> {
        (self.split[r] == self.select).then(|| &self.targets[r * self.classes..(r + 1) * self.classes])
    }
}
