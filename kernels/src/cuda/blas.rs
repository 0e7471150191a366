//! Dense products through cuBLAS.

use std::sync::Arc;

use cudarc::cublas::sys::cublasOperation_t as Op;
use cudarc::cublas::{CudaBlas, result};
use cudarc::driver::CudaStream;
use parking_lot::Mutex;

use super::driver::Named;
use crate::error::Result;

/// `out [m, n] = op(a) * op(b)` over row-major matrices. A transposed operand lies in memory as its transpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct DenseProduct {
    pub(super) a: u64,
    pub(super) a_transposed: bool,
    pub(super) b: u64,
    pub(super) b_transposed: bool,
    pub(super) out: u64,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl DenseProduct {
    /// cuBLAS counts in 32 bits.
    pub(super) fn suits_blas(&self) -> bool {
        [self.m, self.n, self.k].iter().all(|&count| (1..=i32::MAX as usize).contains(&count))
    }
}

/// cuBLAS on one stream, made at its first use.
#[derive(Default)]
pub(super) struct Blas(Mutex<Option<CudaBlas>>);

impl Blas {
    /// Queues a product of [suitable](DenseProduct::suits_blas) size.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn product(&self, stream: &Arc<CudaStream>, product: &DenseProduct) -> Result<()> {
        let mut blas = self.0.lock();
        let blas = match &mut *blas {
            Some(blas) => blas,
            none => none.insert(CudaBlas::new(stream.clone()).during("starting cuBLAS")?),
        };
        let DenseProduct { a, a_transposed, b, b_transposed, out, m, n, k } = *product;
        let op = |transposed| if transposed { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
        let width = |transposed, rows: usize, cols: usize| if transposed { rows as i32 } else { cols as i32 };
        let (one, zero) = (1.0f32, 0.0f32);
        // What is row-major here is the transpose, column-major, there: out^T = op(b)^T * op(a)^T.
        // SAFETY: `prepare` found the three buffers large enough for these sizes; the scalars are read before the call returns
        // (the handle's pointer mode is the host's, its default).
        unsafe {
            result::sgemm(
                *blas.handle(),
                op(b_transposed),
                op(a_transposed),
                n as i32,
                m as i32,
                k as i32,
                &one,
                b as *const f32,
                width(b_transposed, k, n),
                a as *const f32,
                width(a_transposed, m, k),
                &zero,
                out as *mut f32,
                n as i32,
            )
        }
        .during("multiplying matrices")
    }
}
