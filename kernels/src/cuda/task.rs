//! What calls come to.

use super::autotune::Shape;
use super::blas::DenseProduct;
use super::modules::KernelCall;

/// One thing that a call asks of the GPU.
#[derive(Debug, PartialEq)]
pub(super) enum Task {
    Kernel(KernelCall),
    Product(DenseProduct),
    /// Two launches that write the same, whole rows and some columns at a time: whichever is faster will be it.
    Trial {
        shape: Shape,
        columns: usize,
        calls: Box<[KernelCall; 2]>,
    },
    /// Bytes that become 0.
    Zero {
        address: u64,
        bytes: u64,
    },
}
