//! Checks for libraries that may be missing, and turns errors of the driver into advice.

use cudarc::cublas::result::CublasError;
use cudarc::driver::sys::{CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError};
use cudarc::nvrtc::result::NvrtcError;

use crate::error::{Error, Result};

/// The oldest driver version with all functions that are used (`cuEventElapsedTime_v2`): that of CUDA 12.8.
const OLDEST: i32 = 12_080;

/// Checks that NVIDIA's driver is installed. Without this check, the first call to it would panic.
pub(super) fn find() -> Result<()> {
    let missing = |library, advice| Err(Error::NoLibrary { library, advice });
    // SAFETY: it only asks the system's loader for the library, whose initialisers are NVIDIA's own.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return missing("NVIDIA's driver (libcuda)", "install it");
    }
    let mut version = 0;
    // SAFETY: the number is written before the call returns.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }
        .result()
        .during("asking for the driver's version")?;
    if version < OLDEST {
        return missing("NVIDIA's driver for CUDA 12.8 or newer", "update it");
    }
    Ok(())
}

/// Checks that the kernel compiler (NVRTC) is installed.
pub(super) fn find_compiler() -> Result<()> {
    // SAFETY: as above.
    if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Ok(());
    }
    let advice = "install CUDA 13 or 12 (or `pip install nvidia-cuda-nvrtc`) and name its folder in LD_LIBRARY_PATH";
    Err(Error::NoLibrary { library: "NVIDIA's kernel compiler (libnvrtc)", advice })
}

/// Returns whether cuBLAS is installed.
pub(super) fn has_blas() -> bool {
    // SAFETY: as above.
    unsafe { cudarc::cublas::sys::is_culib_present() }
}

/// Returns the bytes of the L2 cache, which all multiprocessors of a GPU share.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn cache_bytes(context: &CudaContext) -> Result<u64> {
    let cache = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
    let bytes = context.attribute(cache).during("asking for a GPU's cache")?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Adds to an error what the failed call was for, and advice.
pub(super) trait Named<T> {
    fn during(self, call: &'static str) -> Result<T>;
}

impl<T> Named<T> for std::result::Result<T, DriverError> {
    fn during(self, call: &'static str) -> Result<T> {
        self.map_err(|error| Error::Cuda {
            call,
            name: error.error_name().map_or_else(|_| format!("{:?}", error.0), |name| name.to_string_lossy().into()),
            advice: advice(error.0),
        })
    }
}

impl<T> Named<T> for std::result::Result<T, NvrtcError> {
    fn during(self, call: &'static str) -> Result<T> {
        self.map_err(|error| Error::Cuda { call, name: format!("{:?}", error.0), advice: "this is a bug: report it" })
    }
}

impl<T> Named<T> for std::result::Result<T, CublasError> {
    fn during(self, call: &'static str) -> Result<T> {
        let advice = "give the device less memory, so that cuBLAS finds room beside it";
        self.map_err(|error| Error::Cuda { call, name: format!("{:?}", error.0), advice })
    }
}

fn advice(error: CUresult) -> &'static str {
    match error {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "other programs use the GPU's memory: stop them, or give the device less",
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => "nvidia-smi lists the GPUs there are",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver is older than the kernel compiler: update it"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the driver was updated while it ran: restart the machine"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => "this is a bug of a kernel: report it",
        _ => "run nvidia-smi to see the state of the GPU",
    }
}
