//! Turns a [`Call`] over slots into tasks over addresses. Each family of operations has its own file. Sizes and shapes
//! are checked here, before anything is queued. After that, every access is inside its buffer, or goes through an index
//! that the kernel checks.

use super::args;
use super::compile::{File, Text};
use super::engine::{CudaEngine, Task};
use super::faults::Lookup;
use super::modules::{KernelCall, THREADS};
use crate::error::{Error, Result};
use crate::memory::Slot;
use crate::op::call::{BlockSlots, Call, Mat, Window};
use crate::op::{DType, Op};
use crate::storage_type::StorageType;

/// The tasks of a call, and the indices that its kernels may report.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) tasks: Vec<Task>,
    pub(super) lookup: Option<Lookup>,
}

/// Returns the tasks of `call`. Its kernels report invalid indices at the address `reports`.
///
/// # Errors
/// [`Error::EmptySlot`], [`Error::SlotSize`], [`Error::Shape`], [`Error::Argument`], [`Error::Aliased`],
/// [`Error::NotFusable`]: the same as on the CPU device.
pub(super) fn prepare(engine: &CudaEngine, call: &Call, reports: u64) -> Result<Prepared> {
    let mut plan = Plan { engine, reports, prepared: Prepared::default() };
    plan.call(call)?;
    check_aliases(call)?;
    Ok(plan.prepared)
}

/// Returns an error if the call both reads and writes a slot, or writes one twice.
fn check_aliases(call: &Call) -> Result<()> {
    for (i, slot) in call.writes().enumerate() {
        if call.reads().chain(call.writes().take(i)).any(|other| other == slot) {
            return Err(Error::Aliased { slot });
        }
    }
    Ok(())
}

/// A call that is being turned into tasks.
pub(super) struct Plan<'a> {
    engine: &'a CudaEngine,
    reports: u64,
    prepared: Prepared,
}

/// The addresses of a block's arrays.
pub(super) struct BlockAddresses {
    pub(super) indptr: u64,
    pub(super) indices: u64,
}

impl Plan<'_> {
    fn call(&mut self, call: &Call) -> Result<()> {
        call.check()?;
        match call.op.head() {
            Op::Attention(op) => self.attention(op, call),
            Op::AttentionRows(op) => self.attention_rows(*op, call),
            Op::Gather(_) => self.gather(call),
            Op::Linear(op) => self.linear(*op, call),
            Op::Row(op) => self.row_steps(*op, call),
            Op::Norm(op) => self.norm(*op, call),
            Op::Edge(op) => self.edges(*op, call),
            Op::Loss(op) => self.loss(*op, call),
            Op::Optimizer(op) => self.optimizer(*op, call),
            Op::Move(op) => self.moves(*op, call),
            Op::Fused { .. } => unreachable!("a head has no steps"),
        }?;
        call.sum.filter(|_| !call.op.gathers()).map_or(Ok(()), |sum| self.add_to(sum, call.out()))
    }

    /// Adds the result over other rows.
    fn add_to(&mut self, sum: Mat, out: Mat) -> Result<()> {
        let name = if out.dtype == DType::U64 { "plus_counts" } else { "plus_floats" };
        let (len, args) =
            (out.numbers(), args::Plus { sum: self.mat(sum)?, out: self.mat(out)?, len: out.numbers() as u64 });
        self.kernel(File::Sums.over(StorageType::F32), name, blocks_of_cells(len), &args);
        Ok(())
    }

    /// Returns the address of the call's window of a parameter.
    pub(super) fn updated(&self, mat: Mat, window: Window) -> Result<u64> {
        Ok(self.mat(mat)? + (window.first * size_of::<f32>()) as u64)
    }

    /// Returns the block of a call.
    pub(super) fn block_of(&self, call: &Call) -> Result<(BlockSlots, BlockAddresses)> {
        let block = call.block.expect("an operation over a block is bound to one");
        Ok((block, self.block(block)?))
    }

    /// Returns the address of `len` elements.
    pub(super) fn vec<T>(&self, slot: Slot, len: usize) -> Result<u64> {
        self.elements::<T>(slot, Some(len))
    }

    pub(super) fn mat(&self, mat: Mat) -> Result<u64> {
        self.bytes(mat.slot, mat.rows.checked_mul(mat.cols), mat.dtype.byte_count() as usize)
    }

    pub(super) fn block(&self, block: BlockSlots) -> Result<BlockAddresses> {
        let indptr = self.elements::<u64>(block.indptr, block.rows.checked_add(1))?;
        Ok(BlockAddresses { indptr, indices: self.vec::<u32>(block.indices, block.edges)? })
    }

    fn elements<T>(&self, slot: Slot, len: Option<usize>) -> Result<u64> {
        self.bytes(slot, len, size_of::<T>())
    }

    /// Returns the address of `len` elements of `each` bytes.
    fn bytes(&self, slot: Slot, len: Option<usize>, each: usize) -> Result<u64> {
        let buffer = self.engine.slots.get(slot)?;
        let need_bytes = len.and_then(|len| len.checked_mul(each)).map_or(u64::MAX, |bytes| bytes as u64);
        if need_bytes <= buffer.bytes {
            Ok(buffer.address)
        } else {
            Err(Error::SlotSize { slot, need_bytes, have_bytes: buffer.bytes })
        }
    }

    /// Returns the address of scratch memory for `count` partial sums.
    pub(super) fn partials(&self, count: usize) -> Result<u64> {
        self.engine.scratch((count * size_of::<f64>()) as u64)
    }

    pub(super) fn has_blas(&self) -> bool {
        self.engine.blas.is_ok()
    }

    /// Registers the indices that this call looks up. Returns the address for its reports.
    pub(super) fn lookup(&mut self, lookup: Lookup) -> u64 {
        self.prepared.lookup = Some(lookup);
        self.reports
    }

    pub(super) fn add(&mut self, task: Task) {
        self.prepared.tasks.push(task);
    }

    /// Adds a launch of so many blocks, unless there is nothing to do.
    pub(super) fn kernel<A: bytemuck::Pod>(&mut self, file: Text, name: &'static str, blocks: [usize; 2], args: &A) {
        if let Some(call) = kernel_call(file, name, blocks, args) {
            self.add(Task::Kernel(call));
        }
    }

    pub(super) fn engine(&self) -> &CudaEngine {
        self.engine
    }
}

/// Returns a launch of so many blocks; `None` if there is nothing to do.
pub(super) fn kernel_call<A: bytemuck::Pod>(
    file: Text,
    name: &'static str,
    blocks: [usize; 2],
    args: &A,
) -> Option<KernelCall> {
    let [x, y] = blocks.map(|blocks| u32::try_from(blocks).expect("a matrix in a GPU's memory has fewer blocks"));
    let args = bytemuck::pod_collect_to_vec(std::slice::from_ref(args)).into();
    (x > 0 && y > 0).then_some(KernelCall { file, name, grid: (x, y), args })
}

/// Returns the grid for one thread per cell.
pub(super) fn blocks_of_cells(cells: usize) -> [usize; 2] {
    [cells.div_ceil(THREADS as usize), 1]
}

/// Returns the grid for one warp per row.
pub(super) fn blocks_of_warps(rows: usize) -> [usize; 2] {
    [rows.div_ceil(THREADS as usize / 32), 1]
}
