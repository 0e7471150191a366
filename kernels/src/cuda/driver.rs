//! Checks for libraries that may be missing, and turns errors of the driver into advice.

use std::time::Duration;

use cudarc::cublas::result::CublasError;
use cudarc::cublas::sys::{cublasStatus_t as Status, libraryPropertyType_t as Property};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUevent, CUresult};
use cudarc::driver::{CudaEvent, DriverError};
use cudarc::nvrtc::result::NvrtcError;

use crate::error::{Error, Result};
use crate::version::Version;

/// The oldest driver with all functions that are used.
const OLDEST: Version = Version { major: 12, minor: 0 };

/// Returns the newest CUDA that NVIDIA's driver supports. Without this check, the first call to a missing driver would
/// panic.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::OldDriver`].
pub(super) fn find() -> Result<Version> {
    // SAFETY: it only asks the system's loader for the library, whose initialisers are NVIDIA's own.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        let advice = "install it, or use the CPU";
        return Err(Error::NoLibrary { library: "NVIDIA's driver (libcuda)", advice });
    }
    let mut version = 0;
    // SAFETY: the number is written before the call returns.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }
        .result()
        .during("asking for the driver's version")?;
    let version = version.unsigned_abs();
    let driver = Version { major: version / 1000, minor: version % 1000 / 10 };
    if driver < OLDEST { Err(Error::OldDriver { driver, oldest: OLDEST }) } else { Ok(driver) }
}

/// Returns the version of the kernel compiler (NVRTC), if the driver loads what it makes: that of the same major version
/// or an older one.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::NewCompiler`], and those of [`find`].
pub(super) fn find_compiler() -> Result<Version> {
    let driver = find()?;
    // SAFETY: as above.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        let advice = match driver.major {
            12 => "run `pip install nvidia-cuda-nvrtc-cu12`, and name the folder of libnvrtc.so.12 in LD_LIBRARY_PATH",
            _ => {
                "install CUDA 13 or 12, or run `pip install nvidia-cuda-nvrtc`, and name the folder of libnvrtc.so in \
                 LD_LIBRARY_PATH"
            }
        };
        return Err(Error::NoLibrary { library: "NVIDIA's kernel compiler (libnvrtc)", advice });
    }
    let [mut major, mut minor] = [0; 2];
    // SAFETY: the numbers are written before the call returns.
    unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .during("asking for the kernel compiler's version")?;
    let compiler = Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
    if compiler.major > driver.major { Err(Error::NewCompiler { compiler, driver }) } else { Ok(compiler) }
}

/// Returns the version of cuBLAS.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::Cuda`].
pub(super) fn find_blas() -> Result<Version> {
    // SAFETY: as above.
    if !unsafe { cudarc::cublas::sys::is_culib_present() } {
        let advice = "install CUDA's libraries, or run `pip install nvidia-cublas`, and name their folder in \
                      LD_LIBRARY_PATH; until then, Lapidary's own kernels multiply matrices, which is slower";
        return Err(Error::NoLibrary { library: "NVIDIA's cuBLAS (libcublas)", advice });
    }
    let ask = |property| {
        let mut value = 0;
        // SAFETY: the number is written before the call returns.
        let asked = unsafe { cudarc::cublas::sys::cublasGetProperty(property, &mut value) };
        asked.result().during("asking for the version of cuBLAS").map(|()| value.unsigned_abs())
    };
    Ok(Version { major: ask(Property::MAJOR_VERSION)?, minor: ask(Property::MINOR_VERSION)? })
}

/// Returns a property of a GPU.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn attribute(gpu: CUdevice, attribute: CUdevice_attribute) -> Result<u32> {
    // SAFETY: the GPU exists, as its handle shows.
    let value = unsafe { cudarc::driver::result::device::get_attribute(gpu, attribute) };
    Ok(value.during("asking for a property of a GPU")?.unsigned_abs())
}

/// Returns the bytes of the L2 cache, which all multiprocessors of a GPU share.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn cache_bytes(gpu: CUdevice) -> Result<u64> {
    attribute(gpu, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).map(u64::from)
}

/// Returns the compute capability of a GPU, such as 9.0.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn capability(gpu: CUdevice) -> Result<Version> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok(Version { major: attribute(gpu, MAJOR)?, minor: attribute(gpu, MINOR)? })
}

/// Waits for two events, and returns the time between them.
///
/// # Errors
/// [`Error::Cuda`].
pub(super) fn elapsed(start: &CudaEvent, end: &CudaEvent) -> Result<Duration> {
    const CALL: &str = "asking for the time";
    // cudarc's own method calls a function that drivers before 12.8 do not have.
    type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
    [start, end].into_iter().try_for_each(CudaEvent::synchronize).during(CALL)?;
    let mut ms = 0.0f32;
    // SAFETY: the function has had this type in every driver; both events exist, and the time is written before the call
    // returns.
    unsafe {
        let function = cudarc::driver::sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime\0");
        let function = function.map_err(|_| DriverError(CUresult::CUDA_ERROR_NOT_FOUND)).during(CALL)?;
        function(&mut ms, start.cu_event(), end.cu_event()).result().during(CALL)?;
    }
    Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
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
        self.map_err(|error| {
            let advice = match error.0 {
                Status::CUBLAS_STATUS_NOT_INITIALIZED => {
                    "it needs libcublasLt beside it, memory beside that of the device, and a driver of its CUDA version"
                }
                _ => "give the device less memory, so that cuBLAS finds room beside it",
            };
            Error::Cuda { call, name: format!("{:?}", error.0), advice }
        })
    }
}

fn advice(error: CUresult) -> &'static str {
    match error {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "other programs use the GPU's memory: stop them, or give the device less",
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => "nvidia-smi lists the GPUs there are",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_INVALID_IMAGE => {
            "the driver does not know what this kernel compiler makes: update the driver, or take an NVRTC of the \
             driver's CUDA version or older (`pip install nvidia-cuda-nvrtc-cu12` for CUDA 12)"
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
