//! The lock of a checkpoint folder.

use std::path::PathBuf;

use lapidary::RunLock;
use pyo3::prelude::*;

use crate::error::raised;

/// Exclusive use of a checkpoint folder, until it is dropped.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativeRunLock {
    _held: RunLock,
}

#[pymethods]
impl NativeRunLock {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let taken = py.detach(|| RunLock::take(&path));
        taken.map(|held| Self { _held: held }).map_err(|error| raised(py, &error))
    }
}
