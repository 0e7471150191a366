//! The tasks that calls are turned into.

use super::autotune::Shape;
use super::blas::DenseProduct;
use super::modules::KernelCall;

/// One unit of work for the GPU.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    Kernel(KernelCall),
    Product(DenseProduct),
    /// Two launches with the same result, by whole rows and by groups of columns. Both are timed, and the faster one is
    /// used from then on.
    Trial {
        shape: Shape,
        columns: usize,
        calls: Box<[KernelCall; 2]>,
    },
    /// Sets bytes to 0.
    Zero {
        address: u64,
        bytes: u64,
    },
}
