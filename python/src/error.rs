//! Errors of the library as exceptions of the Python half, `lapidary/errors.py`.

use std::error::Error as StdError;
use std::io::ErrorKind;

use lapidary::model::WeightsError;
use lapidary::{Error, dataset};
use pyo3::prelude::*;

/// Converts an error to the exception of its kind, with its message and those of its causes.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = py.import("lapidary.errors").and_then(|errors| errors.getattr(class_of(error)));
    match class.and_then(|class| class.call1((message(error),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failure) => failure,
    }
}

/// Returns the name of the exception.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Dataset(error) => class_of_data(error),
        Error::Weights(WeightsError::Io { source, .. }) | Error::Io { source, .. } => class_of_io(source),
        Error::NoCheckpoint { .. } => "MissingFileError",
        Error::CheckpointInTheWay { .. } | Error::FolderInUse { .. } => "FileError",
        Error::DoesNotFit { .. } => "OutOfMemoryError",
        Error::Device { source, .. } if is_memory(source) => "OutOfMemoryError",
        Error::Device { .. } | Error::NoGpus { .. } | Error::Unreachable { .. } | Error::WorkersGone => "DeviceError",
        Error::Diverged { .. } | Error::NotFiniteAtStart { .. } => "DivergedError",
        _ => "DataError",
    }
}

fn class_of_data(error: &dataset::Error) -> &'static str {
    match error {
        dataset::Error::Io { source, .. } => class_of_io(source),
        dataset::Error::Missing { .. } => "MissingFileError",
        dataset::Error::Changed { .. } => "FileError",
        dataset::Error::HostMemory(_) => "OutOfMemoryError",
        _ => "DataError",
    }
}

fn class_of_io(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "MissingFileError",
        ErrorKind::OutOfMemory => "OutOfMemoryError",
        _ => "FileError",
    }
}

fn is_memory(source: &lapidary::kernels::Error) -> bool {
    matches!(source, lapidary::kernels::Error::OutOfMemory { .. } | lapidary::kernels::Error::HostMemory { .. })
}

/// Returns the message of an error and those of its causes, as in `cannot open x: there is no such file`.
pub(crate) fn message(error: &Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
}
