//! Tensors on a device, and the kernels that work on them.
//!
//! A [`Device`] owns numbered [`Slot`]s of bytes. Work reaches it as [`Call`]s, each one kernel over slots, queued on a
//! [`Lane`]. Data reaches it as copies from and to [`HostSlot`]s. This crate does not know graph files, programs or
//! plans; it receives block arrays, matrices and numbers. The facts about an operation are in its record, in
//! [`mod@op`].
//!
//! Every kernel exists at least twice: a serial one in [`mod@reference`], written to be obviously right, and a fast one
//! in [`mod@cpu`]. The conformance tests compare the second with the first.

pub mod cpu;
pub mod cuda;
pub mod device;
pub mod error;
mod lanes;
pub mod lent;
pub mod matmul;
pub mod memory;
pub mod op;
mod processor;
pub mod random;
pub mod reference;
pub mod semaphore;
pub mod sim;
mod slot;
pub mod step;
pub mod storage_type;
#[doc(hidden)] // shared with the runtime
pub mod sync;
mod team;
pub mod version;
pub mod view;

pub use cpu::{CpuDevice, linear_weight_grad_workspace_bytes};
pub use device::{Device, Event, Lane, Span};
pub use error::{Error, Result};
pub use lanes::panic_message;
pub use lent::Lent;
pub use matmul::Matmul;
pub use memory::{AlignedBytes, HostSlot, NoHostMemory, Owner, Shared, Slot, SpareArrays};
pub use op::call::{self, Arg, BlockSlots, Call, Mat, Part, Price, Window};
pub use op::{DType, Op, RowStep};
pub use random::DropoutKey;
pub use semaphore::Semaphore;
pub use sim::{SimDevice, SimSpeed};
pub use step::{AdamStep, SgdStep};
pub use storage_type::StorageType;
pub use version::Version;
pub use view::{BlockView, MatMut, MatView, MultiTargets, Targets};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
