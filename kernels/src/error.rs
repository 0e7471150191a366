//! Why a kernel call failed.

use crate::slot::Slot;
use crate::storage_type::DType;

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
        /// Which of its operands.
        operand: &'static str,
        /// Rows and columns that it needs.
        want: [usize; 2],
        /// Rows and columns that it was given.
        got: [usize; 2],
    },
    /// A matrix that is not stored as the call's others are.
    #[error("{call}: {operand} is stored as {got}, but must be as {want}")]
    Stored {
        /// The kernel.
        call: &'static str,
        /// Which of its operands.
        operand: &'static str,
        /// How it must be stored.
        want: DType,
        /// How it is.
        got: DType,
    },
    /// A slot that was never allocated, or was freed.
    #[error("slot {} holds nothing", slot.0)]
    EmptySlot {
        /// The slot.
        slot: Slot,
    },
    /// A call that does not end in rows of a matrix, and so cannot be the head of a fused one.
    #[error("row steps cannot follow {call}")]
    NotFusable {
        /// The kernel.
        call: &'static str,
    },
    /// A call that makes no sum over rows, and so cannot be the head of an accumulating one.
    #[error("{call} makes no sum that could be added to")]
    NoSum {
        /// The kernel.
        call: &'static str,
    },
    /// A slot that is allocated already.
    #[error("slot {} is in use", slot.0)]
    SlotInUse {
        /// The slot.
        slot: Slot,
    },
    /// A slot that a call both reads and writes, or writes while another call uses it.
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
        /// What the call needs.
        need_bytes: u64,
        /// What the slot has.
        have_bytes: u64,
    },
    /// An index of a block or a permutation points outside of what it indexes.
    #[error("{call}: {operand} holds {index}, but the limit is {limit}")]
    Index {
        /// The kernel.
        call: &'static str,
        /// Which of its operands.
        operand: &'static str,
        /// What was found.
        index: u64,
        /// The first value that is too large.
        limit: u64,
    },
    /// A number that the kernel is not defined for.
    #[error("{call}: {operand} is {got}, but must be {want}")]
    Argument {
        /// The kernel.
        call: &'static str,
        /// Which of its arguments.
        operand: &'static str,
        /// What the kernel is defined for.
        want: &'static str,
        /// What was found.
        got: f64,
    },
    /// The system refused a thread for a lane.
    #[error("a thread for copies could not be started")]
    LaneThread {
        /// Why.
        source: std::io::Error,
    },
    /// A kernel panicked: our own mistake.
    #[error("a kernel panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The device failed before, and said so then.
    #[error("the device failed before")]
    Failed,
    /// A constant of the host, which nothing may write.
    #[error("a constant in host memory cannot be written")]
    ConstantWritten,
    /// The device's capacity is used up.
    #[error("the device has {have_bytes} bytes, but the call needs {need_bytes}")]
    OutOfMemory {
        /// Bytes in use if the allocation succeeded.
        need_bytes: u64,
        /// The device's capacity.
        have_bytes: u64,
    },
    /// A feature that this program was built without.
    #[error("this program was built without the feature {feature}")]
    NotBuilt {
        /// Its name in Cargo.toml.
        feature: &'static str,
    },
    /// A library that is looked for when the program runs, and is not there.
    #[error("{library} was not found: {advice}")]
    NoLibrary {
        /// What it is.
        library: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A GPU that is not there.
    #[error("there is no GPU {ordinal}: this machine has {count}")]
    NoGpu {
        /// The driver's number for it.
        ordinal: u32,
        /// How many GPUs there are.
        count: u32,
    },
    /// A library of the GPU failed.
    #[error("{call} failed with {name}: {advice}")]
    Cuda {
        /// What it was asked for.
        call: &'static str,
        /// What it said.
        name: String,
        /// What to do.
        advice: &'static str,
    },
    /// Kernels that do not compile for the GPU at hand.
    #[error("{file} does not compile:\n{log}")]
    Compile {
        /// The file.
        file: &'static str,
        /// What the compiler said.
        log: String,
    },
    /// The host's allocator refused.
    #[error("the host has no {need_bytes} bytes of memory left")]
    HostMemory {
        /// What was asked for.
        need_bytes: u64,
    },
    /// A device that cannot read another's memory, or let others read its own.
    #[error("the devices cannot read each other's memory; let rows go through the host")]
    NoPeers,
    /// Threads could not be started.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many.
        threads: usize,
        /// Why.
        source: rayon::ThreadPoolBuildError,
    },
}

/// Objects unless an operand has the shape that the call needs.
pub(crate) fn check_shape(call: &'static str, operand: &'static str, want: [usize; 2], got: [usize; 2]) -> Result<()> {
    if want == got { Ok(()) } else { Err(Error::Shape { call, operand, want, got }) }
}
