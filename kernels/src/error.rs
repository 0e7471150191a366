//! Errors of kernel calls.

use crate::slot::Slot;
use crate::storage_type::DType;
use crate::version::Version;

/// The result of a device call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a device call failed: which operand, what was needed, what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand does not have the shape that the call needs.
    #[error("{call}: {operand} is {got:?}, but the call needs {want:?}")]
    Shape {
        /// The kernel.
        call: &'static str,
        /// The operand.
        operand: &'static str,
        /// Rows and columns that the call needs.
        want: [usize; 2],
        /// Rows and columns of the operand.
        got: [usize; 2],
    },
    /// A matrix has a storage type that does not match the call's others.
    #[error("{call}: {operand} is stored as {got}, but must be as {want}")]
    Stored {
        /// The kernel.
        call: &'static str,
        /// The operand.
        operand: &'static str,
        /// The storage type that it must have.
        want: DType,
        /// The storage type that it has.
        got: DType,
    },
    /// The machine's CPU has no instruction that multiplies bf16 numbers.
    #[error("this machine's CPU cannot multiply bf16 numbers: it has no AVX512-BF16")]
    NoBf16,
    /// The device cannot multiply in TF32.
    #[error("this device cannot multiply in TF32: {why}")]
    NoTf32 {
        /// The reason.
        why: String,
    },
    /// A slot that was never allocated, or was freed.
    #[error("slot {} holds nothing", slot.0)]
    EmptySlot {
        /// The slot.
        slot: Slot,
    },
    /// A kernel whose result is not rows of a matrix cannot be the head of a fused call.
    #[error("row steps cannot follow {call}")]
    NotFusable {
        /// The kernel.
        call: &'static str,
    },
    /// A kernel that does not sum over rows cannot add to a running sum.
    #[error("{call} does not compute a sum that can be added to")]
    NoSum {
        /// The kernel.
        call: &'static str,
    },
    /// A slot that is already allocated.
    #[error("slot {} is in use", slot.0)]
    SlotInUse {
        /// The slot.
        slot: Slot,
    },
    /// A slot that one call both reads and writes, or that it writes while another call uses it.
    #[error("slot {} is read and written by one call", slot.0)]
    Aliased {
        /// The slot.
        slot: Slot,
    },
    /// A slot that holds fewer bytes than the call needs.
    #[error("slot {} has {have_bytes} bytes, but the call needs {need_bytes}", slot.0)]
    SlotSize {
        /// The slot.
        slot: Slot,
        /// Bytes that the call needs.
        need_bytes: u64,
        /// Bytes of the slot.
        have_bytes: u64,
    },
    /// An index of a block or a permutation is out of range.
    #[error("{call}: {operand} holds {index}, but the limit is {limit}")]
    Index {
        /// The kernel.
        call: &'static str,
        /// The operand.
        operand: &'static str,
        /// The index that was found.
        index: u64,
        /// The first value that is too large.
        limit: u64,
    },
    /// An argument has a value that the kernel is not defined for.
    #[error("{call}: {operand} is {got}, but must be {want}")]
    Argument {
        /// The kernel.
        call: &'static str,
        /// The argument.
        operand: &'static str,
        /// The values that the kernel is defined for.
        want: &'static str,
        /// The value that was found.
        got: f64,
    },
    /// The system did not start a thread for a lane.
    #[error("a thread for copies could not be started")]
    LaneThread {
        /// The cause.
        source: std::io::Error,
    },
    /// A kernel panicked. This is a bug of Lapidary.
    #[error("a kernel panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// The device failed earlier; the cause was reported then.
    #[error("the device failed earlier")]
    Failed,
    /// A write to a constant of the host.
    #[error("a constant in host memory cannot be written")]
    ConstantWritten,
    /// The device's capacity is exhausted.
    #[error("the device has {have_bytes} bytes, but the call needs {need_bytes}")]
    OutOfMemory {
        /// Bytes that would be in use after the allocation.
        need_bytes: u64,
        /// The device's capacity.
        have_bytes: u64,
    },
    /// A feature that this program was built without.
    #[error("this program was built without the feature {feature}")]
    NotBuilt {
        /// Name of the feature in Cargo.toml.
        feature: &'static str,
    },
    /// A library that is loaded at run time was not found.
    #[error("{library} was not found: {advice}")]
    NoLibrary {
        /// The library.
        library: &'static str,
        /// Advice for the user.
        advice: &'static str,
    },
    /// NVIDIA's driver lacks functions that are used.
    #[error("NVIDIA's driver supports CUDA {driver}, but CUDA {oldest} is needed: update the driver")]
    OldDriver {
        /// The newest CUDA that the driver supports.
        driver: Version,
        /// The oldest that would do.
        oldest: Version,
    },
    /// NVIDIA's driver does not load what a newer kernel compiler makes.
    #[error(
        "the kernel compiler (NVRTC {compiler}) is newer than the driver (CUDA {driver}): update the driver, or run \
         `pip install nvidia-cuda-nvrtc-cu{}` and name its folder in LD_LIBRARY_PATH in place of the newer one's", driver.major
    )]
    NewCompiler {
        /// The version of the kernel compiler.
        compiler: Version,
        /// The newest CUDA that the driver supports.
        driver: Version,
    },
    /// The kernel compiler does not know this kind of GPU.
    #[error(
        "the kernel compiler (NVRTC {compiler}) makes no code for this GPU, whose compute capability is {gpu}: {advice}"
    )]
    NoTarget {
        /// The version of the kernel compiler.
        compiler: Version,
        /// The compute capability of the GPU.
        gpu: Version,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The GPU does not exist.
    #[error("there is no GPU {ordinal}: this machine has {count}")]
    NoGpu {
        /// The driver's number of the GPU.
        ordinal: u32,
        /// Number of GPUs on this machine.
        count: u32,
    },
    /// A call to the GPU driver or one of its libraries failed.
    #[error("{call} failed with {name}: {advice}")]
    Cuda {
        /// The function that was called.
        call: &'static str,
        /// The error name that it returned.
        name: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// The kernels do not compile for this GPU.
    #[error("{file} does not compile:\n{log}")]
    Compile {
        /// The source file.
        file: &'static str,
        /// The compiler's log.
        log: String,
    },
    /// The host has no memory left.
    #[error("the host cannot allocate {need_bytes} bytes of memory")]
    HostMemory {
        /// Bytes that were requested.
        need_bytes: u64,
    },
    /// A device that cannot read another device's memory, or cannot lend its own.
    #[error("the devices cannot read each other's memory; let rows go through the host")]
    NoPeers,
    /// A device that does not add with others, or whose group has ended because one of them failed.
    #[error("this device adds with no others, or another one of its group has failed")]
    NoGroup,
    /// Threads could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// Number of threads.
        threads: usize,
        /// The cause.
        source: std::io::Error,
    },
}

/// Returns an error unless an operand has the shape that the call needs.
pub(crate) fn check_shape(call: &'static str, operand: &'static str, want: [usize; 2], got: [usize; 2]) -> Result<()> {
    if want == got { Ok(()) } else { Err(Error::Shape { call, operand, want, got }) }
}
