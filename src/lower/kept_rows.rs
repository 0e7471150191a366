//! The rows of a matrix that are kept where they are needed: on a device, or in memory.

use lapidary_kernels::Shared;

/// The place of a row that is not kept.
const NONE: u32 = u32::MAX;

/// Some rows of a matrix with a row for each vertex.
#[derive(Clone, Debug)]
pub struct KeptRows {
    rows: Shared<u32>,
    /// For each vertex, the place of its row, or [`NONE`].
    places: Shared<u32>,
    /// What is in the rows, if it is not taken from the matrix.
    contents: Option<Shared<f32>>,
}

impl KeptRows {
    /// Creates a list of rows, which ascend, of a matrix with a row for each of `vertices`.
    ///
    /// # Cost
    /// 4 bytes for each vertex, and for each row.
    pub fn new(vertices: usize, rows: Vec<u32>) -> Self {
        let mut places = vec![NONE; vertices];
        rows.iter().zip(0..).for_each(|(&row, place)| places[row as usize] = place);
        Self { rows: rows.into(), places: places.into(), contents: None }
    }

    /// Sets what is in the rows, one after the other. The matrix is then not read for them.
    pub fn with_contents(self, contents: Shared<f32>) -> Self {
        Self { contents: Some(contents), ..self }
    }

    /// Returns what is in the rows, if it was set.
    pub fn contents(&self) -> Option<&Shared<f32>> {
        self.contents.as_ref()
    }

    /// Returns the rows.
    pub fn rows(&self) -> &Shared<u32> {
        &self.rows
    }

    /// Returns the place of a row, if it is kept.
    pub fn place(&self, row: u32) -> Option<u32> {
        Some(self.places[row as usize]).filter(|&place| place != NONE)
    }
}
