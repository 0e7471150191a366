//! The feature matrix: dense, or sparse for bags of words.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use lapidary_arrays::Shared;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::row_file::RowFile;
use crate::graph::{Permutation, rows_mut};

/// Whether each row of the features is divided by its sum before training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureNorm {
    /// Each row is divided by its sum; see [`Features::row_normalised`].
    Row,
    /// Features stay as they are.
    None,
}

impl FromStr for FeatureNorm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "row" => Ok(Self::Row),
            "none" => Ok(Self::None),
            other => {
                Err(Error::Option { option: "feature_norm", found: other.into(), expected: "`row` or `none`".into() })
            }
        }
    }
}

impl fmt::Display for FeatureNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Row => "row",
            Self::None => "none",
        })
    }
}

/// A feature matrix with one row per vertex. Cloning shares the arrays.
#[derive(Clone, Debug)]
pub enum Features {
    /// A matrix that stores every cell.
    Dense(Dense),
    /// A matrix that stores only the cells that are not 0.
    Sparse(Sparse),
}

/// A row-major matrix of finite numbers.
#[derive(Clone, Debug)]
pub struct Dense {
    // Invariant: `data.len() == rows * width`; every value is finite.
    data: Shared<f32>,
    rows: usize,
    width: usize,
    /// The file that `data` is mapped from, and where the cells begin in it.
    file: Option<(Arc<Path>, u64)>,
}

/// A CSR matrix of finite numbers.
#[derive(Clone, Debug)]
pub struct Sparse {
    // Invariant: `indptr` rises from 0 to `indices.len() == values.len()`; columns are below `width` and ascend
    // strictly within a row; every value is finite.
    indptr: Shared<u64>,
    indices: Shared<u32>,
    values: Shared<f32>,
    width: usize,
}

/// The names of the three arrays of sparse features, for messages.
#[derive(Clone, Debug)]
pub(crate) struct SparseFiles {
    pub indptr: String,
    pub indices: String,
    pub values: String,
}

impl Dense {
    /// Checks a matrix and takes it; `file` names it in errors.
    ///
    /// # Cost
    /// O(rows * width), in parallel.
    pub(crate) fn new(data: Shared<f32>, rows: usize, width: usize, file: &str) -> Result<Self> {
        if Some(data.len()) != rows.checked_mul(width) {
            let expected = format!("[{rows}, {width}]");
            return Err(Error::Shape { file: file.into(), found: vec![data.len()], expected });
        }
        if let Some(at) = first_not_finite(&data) {
            return Err(Error::NotFinite { file: file.into(), row: at / width, column: at % width, found: data[at] });
        }
        Ok(Self { data, rows, width, file: None })
    }

    /// Takes rows of matrices that were checked.
    pub(crate) fn of_checked(data: Shared<f32>, width: usize) -> Self {
        Self { rows: data.len().checked_div(width).unwrap_or(0), data, width, file: None }
    }

    /// Sets the file that the cells are mapped from, and where they begin in it.
    pub(crate) fn mapped_from(self, path: &Path, first_byte: u64) -> Self {
        Self { file: Some((path.into(), first_byte)), ..self }
    }

    /// Opens the file that the cells are mapped from, to read single rows without the map. `None` if they are in memory
    /// alone, or were converted.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn row_file(&self) -> Result<Option<RowFile>> {
        let open = |(path, first): &(Arc<Path>, u64)| {
            RowFile::open(path, *first, self.rows as u64, (self.width * size_of::<f32>()) as u64)
        };
        self.file.as_ref().map(open).transpose()
    }

    /// Returns the cells, `[rows, width]`, in row-major order.
    pub fn data(&self) -> &Shared<f32> {
        &self.data
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }
}

impl Sparse {
    /// Checks a CSR matrix and takes it; `files` names its arrays in errors.
    ///
    /// # Cost
    /// O(rows + cells), in parallel.
    pub(crate) fn new(
        indptr: Shared<u64>,
        indices: Shared<u32>,
        values: Shared<f32>,
        width: usize,
        files: &SparseFiles,
    ) -> Result<Self> {
        check_offsets(&indptr, indices.len(), &files.indptr)?;
        if values.len() != indices.len() {
            let expected = format!("[{}] (one value for each element of {})", indices.len(), files.indices);
            return Err(Error::Shape { file: files.values.clone(), found: vec![values.len()], expected });
        }
        check_columns(&indptr, &indices, width, &files.indices)?;
        if let Some(at) = first_not_finite(&values) {
            let row = indptr.partition_point(|&offset| offset <= at as u64) - 1;
            let column = indices[at] as usize;
            return Err(Error::NotFinite { file: files.values.clone(), row, column, found: values[at] });
        }
        Ok(Self { indptr, indices, values, width })
    }

    /// Takes a matrix that was checked.
    pub(crate) fn of_checked(indptr: Shared<u64>, indices: Shared<u32>, values: Shared<f32>, width: usize) -> Self {
        Self { indptr, indices, values, width }
    }

    /// Returns the rows of all matrices, those of each after those of the one before. They have the width of the first.
    pub(crate) fn one_after_the_other(all: &[&Self]) -> Self {
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for matrix in all {
            let cells = indices.len() as u64;
            indptr.extend(matrix.indptr[1..].iter().map(|end| cells + end));
            indices.extend_from_slice(&matrix.indices);
            values.extend_from_slice(&matrix.values);
        }
        let width = all.first().map_or(0, |matrix| matrix.width);
        Self { indptr: indptr.into(), indices: indices.into(), values: values.into(), width }
    }

    /// Returns the offsets, `[rows + 1]`.
    pub fn indptr(&self) -> &Shared<u64> {
        &self.indptr
    }

    /// Returns the columns, `[cells]`. They ascend strictly within a row.
    pub fn indices(&self) -> &Shared<u32> {
        &self.indices
    }

    /// Returns the values, `[cells]`.
    pub fn values(&self) -> &Shared<f32> {
        &self.values
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }
}

fn check_offsets(indptr: &[u64], cells: usize, file: &str) -> Result<()> {
    let bad = |position: usize, expected: String| {
        let found = indptr[position].to_string();
        Err(Error::Value { file: file.into(), position, found, expected })
    };
    let (Some(&first), Some(&last)) = (indptr.first(), indptr.last()) else {
        return Err(Error::Shape { file: file.into(), found: vec![0], expected: "[vertices + 1]".into() });
    };
    if first != 0 {
        return bad(0, "0 (the first offset)".into());
    }
    if let Some(at) = indptr.par_windows(2).position_first(|pair| pair[1] < pair[0]) {
        return bad(at + 1, format!("at least the {} before it; offsets never fall", indptr[at]));
    }
    if last != cells as u64 {
        return bad(indptr.len() - 1, format!("{cells}, the number of stored cells"));
    }
    Ok(())
}

fn check_columns(indptr: &[u64], indices: &[u32], width: usize, file: &str) -> Result<()> {
    let row_is_bad = |range: &[u64]| {
        let row = &indices[range[0] as usize..range[1] as usize];
        row.windows(2).any(|pair| pair[1] <= pair[0]) || row.last().is_some_and(|&c| c as usize >= width)
    };
    let Some(row) = indptr.par_windows(2).position_first(row_is_bad) else {
        return Ok(());
    };
    let start = indptr[row] as usize;
    let columns = &indices[start..indptr[row + 1] as usize];
    let falls = columns.windows(2).position(|pair| pair[1] <= pair[0]);
    let strays = columns.iter().position(|&c| c as usize >= width);
    let (at, expected) = match (falls, strays) {
        (_, Some(at)) => (at, format!("a column below the feature width {width}")),
        (Some(at), None) => (at + 1, format!("more than the {} before it; columns ascend strictly", columns[at])),
        (None, None) => (0, "ascending columns".into()),
    };
    Err(Error::SparseColumn { file: file.into(), row, position: start + at, found: columns[at], expected })
}

impl Sparse {
    /// Returns the same matrix with every cell stored.
    ///
    /// # Cost
    /// O(rows * width), in parallel; allocates the cells.
    pub fn to_dense(&self) -> Dense {
        let (rows, width) = (self.rows(), self.width);
        let mut data = vec![0.0; rows * width];
        data.par_chunks_mut(width.max(1)).enumerate().for_each(|(row, cells)| {
            let stored = self.indptr[row] as usize..self.indptr[row + 1] as usize;
            for (&column, &value) in self.indices[stored.clone()].iter().zip(&self.values[stored]) {
                cells[column as usize] = value;
            }
        });
        Dense { data: data.into(), rows, width, file: None }
    }
}

impl Features {
    /// Returns them if they are sparse.
    pub(crate) fn sparse(&self) -> Option<&Sparse> {
        match self {
            Self::Dense(_) => None,
            Self::Sparse(sparse) => Some(sparse),
        }
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.width,
            Self::Sparse(sparse) => sparse.width,
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.rows,
            Self::Sparse(sparse) => sparse.rows(),
        }
    }

    /// Returns the number of stored values.
    pub fn stored(&self) -> usize {
        self.values().len()
    }

    /// Returns the stored values, in the order of storage.
    pub fn values(&self) -> &Shared<f32> {
        match self {
            Self::Dense(dense) => &dense.data,
            Self::Sparse(sparse) => &sparse.values,
        }
    }

    /// Returns the features with their rows in another order.
    pub(crate) fn relabelled(&self, order: &Permutation) -> Self {
        match self {
            Self::Dense(dense) => {
                Self::Dense(Dense { data: order.rows(&dense.data, dense.width).into(), file: None, ..dense.clone() })
            }
            Self::Sparse(sparse) => Self::Sparse(Sparse {
                indptr: order.offsets(&sparse.indptr).into(),
                indices: order.entries(&sparse.indptr, &sparse.indices).into(),
                values: order.entries(&sparse.indptr, &sparse.values).into(),
                width: sparse.width,
            }),
        }
    }

    /// Divides each row by its sum, which is computed in f64. A row stays as it is if its sum is 0, or so close to 0
    /// that the quotients would not be finite.
    ///
    /// # Cost
    /// O(stored values), in parallel; allocates a new array of values.
    pub fn row_normalised(&self) -> Self {
        match self {
            Self::Dense(dense) => {
                let mut data = dense.data.to_vec();
                data.par_chunks_mut(dense.width.max(1)).for_each(normalise);
                Self::Dense(Dense { data: data.into(), file: None, ..dense.clone() })
            }
            Self::Sparse(sparse) => {
                let mut values = sparse.values.to_vec();
                rows_mut(&sparse.indptr, &mut values).into_par_iter().for_each(normalise);
                Self::Sparse(Sparse { values: values.into(), ..sparse.clone() })
            }
        }
    }
}

fn normalise(row: &mut [f32]) {
    let sum: f64 = row.iter().map(|&x| f64::from(x)).sum();
    let largest = row.iter().fold(0.0, |most: f64, &x| most.max(f64::from(x).abs()));
    if sum != 0.0 && largest / sum.abs() <= f64::from(f32::MAX) {
        for x in row {
            *x = (f64::from(*x) / sum) as f32;
        }
    }
}

/// Returns the position of the first value that is not finite. Tests whole runs of values before single values.
fn first_not_finite(values: &[f32]) -> Option<usize> {
    const RUN: usize = 1 << 14;
    let bad = |run: &[f32]| !run.iter().fold(true, |all, x| all & x.is_finite());
    let start = RUN * values.par_chunks(RUN).position_first(bad)?;
    values[start..].iter().position(|x| !x.is_finite()).map(|at| start + at)
}
