//! The description of a GPU, of the libraries that it is used through, and of what is counted.

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
    /// How f32 matrices are multiplied: [`Matmul::F32`], [`Matmul::Tf32`] or [`Matmul::Tf32x3`].
    pub matmul: Matmul,
    /// Bytes of the L2 cache by which kernels are chosen, in place of the GPU's own: small matrices then take the ways
    /// of large ones.
    pub cache_bytes: Option<u64>,
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
    /// NCCL, which adds gradients over GPUs if that is asked for.
    pub nccl: Result<Version>,
}

/// What the driver counts of a GPU, and the graphs that this process launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Free memory in bytes, as all programs on the GPU leave it.
    pub free_bytes: u64,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// The most bytes that this process's memory pool has reserved; `None` if the GPU has no pool.
    pub most_reserved_bytes: Option<u64>,
    /// The most bytes of the pool that were in use.
    pub most_used_bytes: Option<u64>,
    /// Launches of CUDA graphs by this process, on any GPU.
    pub graphs_launched: u64,
    /// Captures that the driver refused; such batches are queued call by call.
    pub captures_refused: u64,
}
