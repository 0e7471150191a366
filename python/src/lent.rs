//! Arrays of numpy that the library reads in place.

use std::sync::Arc;

use bytemuck::Pod;
use lapidary_arrays::{Owner, Shared};
use numpy::{Element, PyArray1, PyArrayMethods};
use pyo3::prelude::*;

/// The memory of a numpy array.
struct Lent {
    bytes: &'static [u8],
    /// A `Loan` of the Python half. It keeps the array, and lets it be written again when it goes.
    _loan: Py<PyAny>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

impl Owner for Lent {}

/// A one-dimensional array without gaps, and the loan that keeps its memory.
#[derive(FromPyObject)]
pub(crate) struct LentArray<'py, T: Element>(Bound<'py, PyArray1<T>>, Bound<'py, PyAny>);

impl<T: Element + Pod + Send + Sync> LentArray<'_, T> {
    /// Returns the elements, without a copy.
    ///
    /// # Errors
    /// If the array has gaps, or is not aligned.
    pub(crate) fn share(self) -> PyResult<Shared<T>> {
        let Self(array, loan) = self;
        let (bytes, len) = (bytes_of(&array)?, array.len()?);
        let lent = Lent { bytes, _loan: loan.unbind() };
        Ok(Shared::from_owner(Arc::new(lent), 0, len).expect("numpy says that the elements are aligned"))
    }
}

/// Returns the bytes of an array, which live as long as its loan.
#[allow(unsafe_code)]
fn bytes_of<T: Element + Pod>(array: &Bound<'_, PyArray1<T>>) -> PyResult<&'static [u8]> {
    let borrowed = array.try_readonly()?;
    let bytes: &[u8] = bytemuck::cast_slice(borrowed.as_slice()?);
    // SAFETY: `Lent` keeps the loan beside these bytes, and the loan keeps the array, so numpy neither frees nor moves
    // them. The loan has taken the flag `writeable` from the array, so Python cannot write to it; `docs/python.md`
    // forbids to write through other views of its memory.
    Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) })
}
