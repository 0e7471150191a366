//! The description of a GPU, and of the libraries that it is used through.

use crate::error::Result;
use crate::matmul::Matmul;
use crate::version::Version;

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's number of the GPU.
    pub ordinal: u32,
    /// The product name.
    pub name: String,
    /// The compute capability, such as 9.0.
    pub capability: Version,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Bytes of the L2 cache, which all multiprocessors share.
    pub cache_bytes: u64,
}

/// How a GPU is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How f32 matrices are multiplied: [`Matmul::F32`] or [`Matmul::Tf32`].
    pub matmul: Matmul,
}

/// NVIDIA's libraries on this machine: the version of each that can be used, or why it cannot.
#[derive(Debug)]
pub struct Libraries {
    /// The driver. Its version is that of the newest CUDA that it supports.
    pub driver: Result<Version>,
    /// The kernel compiler, NVRTC. It is needed the first time that kernels run on a kind of GPU.
    pub compiler: Result<Version>,
    /// cuBLAS, which multiplies matrices. Without it, Lapidary's own kernels do.
    pub blas: Result<Version>,
}
