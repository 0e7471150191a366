//! The lock of a checkpoint folder.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use lapidary::RunLock;
use pyo3::prelude::*;

use crate::error::raised;

/// Exclusive use of a checkpoint folder, until it is released.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativeRunLock(Mutex<Option<RunLock>>);

#[pymethods]
impl NativeRunLock {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let taken = py.detach(|| RunLock::take(&path));
        taken.map(|lock| Self(Mutex::new(Some(lock)))).map_err(|error| raised(py, &error))
    }

    /// Gives the folder back. An exception may keep this object for long.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
