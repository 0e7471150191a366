//! Dense products through cuBLAS.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublas::result;
use cudarc::cublas::sys::{self, cublasOperation_t as Op, cudaDataType as Type};
use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::driver::{self, Named};
use super::slots::Pool;
use crate::error::{Error, Result};
use crate::matmul::Matmul;
use crate::storage_type::StorageType;
use crate::version::Version;

/// `out [m, n] = op(a) * op(b)`, or `+=`, over row-major matrices of the same storage type. A transposed operand is stored as its
/// transpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DenseProduct {
    pub(super) a: u64,
    pub(super) a_transposed: bool,
    pub(super) b: u64,
    pub(super) b_transposed: bool,
    pub(super) out: u64,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Whether the product is added to what `out` holds.
    pub(super) adds: bool,
    pub(super) stored: StorageType,
    /// Storage type of the output.
    pub(super) made: StorageType,
}

impl DenseProduct {
    /// Whether the sizes fit into the 32 bits of cuBLAS, and none is 0.
    pub(super) fn suits_blas(&self) -> bool {
        [self.m, self.n, self.k].iter().all(|&count| (1..=i32::MAX as usize).contains(&count))
    }
}

/// Bytes of cuBLAS's workspace: what it asks for on a Hopper GPU. It is outside of the plan. Without it, cuBLAS would
/// allocate memory at any time, even while a graph is captured.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// cuBLAS on one stream.
pub(super) struct Blas {
    version: Version,
    handle: Mutex<Handle>,
    workspace: u64,
    pool: Pool,
}

struct Handle(sys::cublasHandle_t);

// SAFETY: the handle may be used from any thread, one at a time, on which the context is current.
unsafe impl Send for Handle {}

/// Starts cuBLAS. Returns why it cannot be used if the device works without it.
///
/// # Errors
/// [`Error::NoTf32`] if this GPU cannot multiply as `matmul` says.
pub(super) fn start(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, matmul: Matmul) -> Result<Result<Blas>> {
    const LEAST: Version = Version { major: 8, minor: 0 };
    if matches!(matmul, Matmul::Tf32 | Matmul::Tf32x3) {
        let capability = driver::capability(context.cu_device())?;
        if capability < LEAST {
            return Err(Error::NoTf32 { why: format!("it takes compute capability {LEAST}, and it has {capability}") });
        }
    }
    match Blas::start(context, stream) {
        Err(error) if matmul == Matmul::Tf32 => Err(Error::NoTf32 { why: format!("it takes cuBLAS. {error}") }),
        blas => Ok(blas),
    }
}

impl Blas {
    /// Starts cuBLAS. It does so when the device is opened, so that one that does not work is known before the first
    /// product, and nothing is allocated while a graph is captured.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::Cuda`].
    fn start(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Self> {
        const CALL: &str = "starting cuBLAS";
        let version = driver::find_blas()?;
        let pool = Pool::new(context)?;
        context.bind_to_thread().during(CALL)?;
        let handle = result::create_handle().during(CALL)?;
        // From here on, a failure destroys the handle.
        let mut blas = Self { version, handle: Mutex::new(Handle(handle)), workspace: 0, pool };
        blas.workspace = blas.pool.take(WORKSPACE_BYTES)?;
        // SAFETY: the handle was just made; stream and memory live until `blas` is dropped, and nothing else uses the
        // memory.
        // The order matters: setting the stream resets the workspace.
        unsafe {
            result::set_stream(handle, stream.cu_stream().cast()).during(CALL)?;
            let room = blas.workspace as *mut c_void;
            sys::cublasSetWorkspace_v2(handle, room, WORKSPACE_BYTES as usize).result().during(CALL)?;
        }
        Ok(blas)
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Queues a product of [suitable](DenseProduct::suits_blas) size. `matmul` says how f32 matrices are multiplied.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn product(&self, product: &DenseProduct, matmul: Matmul) -> Result<()> {
        let handle = self.handle.lock();
        let DenseProduct { a, a_transposed, b, b_transposed, out, m, n, k, adds, stored, made } = *product;
        let op = |transposed| if transposed { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
        let width = |transposed, rows: usize, cols: usize| if transposed { rows as i32 } else { cols as i32 };
        let (one, beta) = (1.0f32, if adds { 1.0f32 } else { 0.0 });
        // cuBLAS is column-major, so it sees each matrix as its transpose: out^T = op(b)^T * op(a)^T.
        if stored == StorageType::Bf16 {
            // Keeps partial sums in f32, too. Otherwise they may have the type of the output.
            const IN_F32: sys::cublasMath_t = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            let made = if made == StorageType::F32 { Type::CUDA_R_32F } else { Type::CUDA_R_16BF };
            // SAFETY: as below; the types are those of the buffers.
            return unsafe {
                sys::cublasSetMathMode(handle.0, IN_F32).result().during("asking cuBLAS for f32 sums")?;
                result::gemm_ex(
                    handle.0,
                    op(b_transposed),
                    op(a_transposed),
                    n as i32,
                    m as i32,
                    k as i32,
                    (&raw const one).cast(),
                    b as *const c_void,
                    Type::CUDA_R_16BF,
                    width(b_transposed, k, n),
                    a as *const c_void,
                    Type::CUDA_R_16BF,
                    width(a_transposed, m, k),
                    (&raw const beta).cast(),
                    out as *mut c_void,
                    made,
                    n as i32,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                )
            }
            .during("multiplying matrices");
        }
        let mode = match matmul {
            Matmul::Tf32 => sys::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH,
            Matmul::F32 | Matmul::Bf16 | Matmul::Tf32x3 => sys::cublasMath_t::CUBLAS_DEFAULT_MATH,
        };
        // SAFETY: `prepare` found the three buffers large enough for these sizes; the scalars are read before the call
        // returns (the handle has the default pointer mode, which is the host's).
        unsafe {
            sys::cublasSetMathMode(handle.0, mode).result().during("choosing how cuBLAS multiplies")?;
            result::sgemm(
                handle.0,
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
                &beta,
                out as *mut f32,
                n as i32,
            )
        }
        .during("multiplying matrices")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `start` and is not used any more. A failure only leaks it.
        let _ = unsafe { result::destroy_handle(self.handle.get_mut().0) };
        let _ = self.pool.give_back(self.workspace);
    }
}
