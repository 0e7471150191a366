//! The tasks that calls are turned into.

use super::autotune::Shape;
use super::blas::DenseProduct;
use super::modules::KernelCall;

/// One unit of work for the GPU.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    Kernel(KernelCall),
    Product(DenseProduct),
    /// Launches with the same result, by whole rows and by groups of so many columns. All are timed, and the fastest
    /// is used from then on.
    Trial {
        shape: Shape,
        ways: Vec<(usize, KernelCall)>,
    },
    /// Sets bytes to 0.
    Zero {
        address: u64,
        bytes: u64,
    },
}
