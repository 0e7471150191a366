//! From a [`Call`] over slots to tasks over addresses. Sizes and shapes are checked here, before anything is queued: what
//! passes is inside of its buffers, or is looked up by kernels that check.

use super::args;
use super::compile::{File, Text};
use super::engine::{CudaEngine, Task};
use super::faults::Lookup;
use super::modules::{KernelCall, THREADS};
use crate::call::{BlockSlots, Call, Mat, Summed, Window};
use crate::error::{Error, Result, check_shape};
use crate::float::Float;
use crate::memory::Slot;

/// What a call asks of the GPU, and what its kernels may report.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) tasks: Vec<Task>,
    pub(super) lookup: Option<Lookup>,
}

/// Tasks for `call`, whose kernels report at the address `reports` what points outside.
///
/// # Errors
/// [`Error::EmptySlot`], [`Error::SlotSize`], [`Error::Shape`], [`Error::Argument`], [`Error::Aliased`],
/// [`Error::NotFusable`]: the same as of the CPU device.
pub(super) fn prepare(engine: &CudaEngine, call: &Call, reports: u64) -> Result<Prepared> {
    let mut plan = Plan { engine, reports, prepared: Prepared::default() };
    plan.call(call)?;
    check_aliases(call)?;
    Ok(plan.prepared)
}

/// Objects to a slot that a call both reads and writes, or writes twice.
fn check_aliases(call: &Call) -> Result<()> {
    let (reads, writes) = (call.reads(), call.writes());
    for (i, &slot) in writes.iter().enumerate() {
        if reads.contains(&slot) || writes[..i].contains(&slot) {
            return Err(Error::Aliased { slot });
        }
    }
    Ok(())
}

/// A call on its way to tasks.
pub(super) struct Plan<'a> {
    engine: &'a CudaEngine,
    reports: u64,
    prepared: Prepared,
}

/// The arrays of a block.
pub(super) struct BlockAddresses {
    pub(super) indptr: u64,
    pub(super) indices: u64,
}

impl Plan<'_> {
    fn call(&mut self, call: &Call) -> Result<()> {
        call.stored()?;
        match call {
            Call::Gather { .. } | Call::GatherWindow { .. } => self.gather(call, &[]),
            Call::Fused { head, steps } => match &**head {
                Call::Gather { .. } | Call::GatherWindow { .. } => self.gather(head, steps),
                Call::Linear { .. } | Call::LinearInputGrad { .. } => self.product_then(head, steps),
                head => self.cells(head, steps),
            },
            Call::Accumulate { head, sum } => self.accumulate(head, *sum),
            Call::RowScale { .. }
            | Call::AddBias { .. }
            | Call::Add { .. }
            | Call::Relu { .. }
            | Call::ReluGrad { .. }
            | Call::Dropout { .. } => self.cells(call, &[]),
            Call::Pack { .. } => self.pack(call),
            Call::Fetch { .. } => Err(Error::NoPeers),
            Call::Round { x, out } => self.round(*x, *out),
            Call::Transpose { .. } => self.transpose(call),
            Call::PermuteEdges { .. } => self.permute_edges(call),
            Call::SparseDropout { .. } => self.sparse_dropout(call),
            Call::Linear { .. } | Call::LinearInputGrad { .. } => self.product_then(call, &[]),
            Call::LinearWeightGrad { .. } => self.weight_grad(call),
            Call::ColumnSum { x, out } => self.column_sum(*x, *out),
            Call::LayerNorm { .. } | Call::LayerNormInputGrad { .. } | Call::LayerNormGainGrad { .. } => {
                self.layer_norm(call)
            }
            Call::SoftmaxCrossEntropy { .. }
            | Call::SoftmaxCrossEntropyGrad { .. }
            | Call::CountCorrect { .. }
            | Call::SigmoidCrossEntropy { .. }
            | Call::SigmoidCrossEntropyGrad { .. }
            | Call::CountMicro { .. } => self.loss(call),
            Call::Concat { parts, out } => self.concat(parts, *out),
            Call::Sgd { .. } | Call::Adam { .. } => self.optimizer(call),
        }
    }

    /// The head's tasks, and then what it is added to.
    fn accumulate(&mut self, head: &Call, sum: Slot) -> Result<()> {
        let (name, [sum, out], len) = match head.summed() {
            None => return Err(Error::NoSum { call: head.name() }),
            Some(Summed::Floats(out, len)) => {
                ("plus_floats", [self.vec::<f32>(sum, len)?, self.vec::<f32>(out, len)?], len)
            }
            Some(Summed::Counts(out, len)) => {
                ("plus_counts", [self.vec::<u64>(sum, len)?, self.vec::<u64>(out, len)?], len)
            }
        };
        self.call(head)?;
        self.kernel(File::Sums.over(Float::F32), name, blocks_of_cells(len), &args::Plus { sum, out, len: len as u64 });
        Ok(())
    }

    /// The address of a window of an array.
    pub(super) fn window<T>(&self, slot: Slot, window: Window) -> Result<u64> {
        Ok(self.vec::<T>(slot, window.end())? + (window.first * size_of::<T>()) as u64)
    }

    /// The address of `len` elements.
    pub(super) fn vec<T>(&self, slot: Slot, len: usize) -> Result<u64> {
        self.elements::<T>(slot, Some(len))
    }

    pub(super) fn mat(&self, mat: Mat) -> Result<u64> {
        self.bytes(mat.slot, mat.rows.checked_mul(mat.cols), mat.float.byte_count())
    }

    pub(super) fn block(&self, block: BlockSlots) -> Result<BlockAddresses> {
        let indptr = self.elements::<u64>(block.indptr, block.rows.checked_add(1))?;
        Ok(BlockAddresses { indptr, indices: self.vec::<u32>(block.indices, block.edges)? })
    }

    /// The clock's epoch and step.
    pub(super) fn clock(&self, slot: Slot) -> Result<u64> {
        self.vec::<u64>(slot, 2)
    }

    fn elements<T>(&self, slot: Slot, len: Option<usize>) -> Result<u64> {
        self.bytes(slot, len, size_of::<T>())
    }

    /// The address of `len` elements of so many bytes.
    fn bytes(&self, slot: Slot, len: Option<usize>, each: usize) -> Result<u64> {
        let buffer = self.engine.slots.get(slot)?;
        let need_bytes = len.and_then(|len| len.checked_mul(each)).map_or(u64::MAX, |bytes| bytes as u64);
        if need_bytes <= buffer.bytes {
            Ok(buffer.address)
        } else {
            Err(Error::SlotSize { slot, need_bytes, have_bytes: buffer.bytes })
        }
    }

    /// Room for `count` partial sums.
    pub(super) fn partials(&self, count: usize) -> Result<u64> {
        self.engine.scratch((count * size_of::<f64>()) as u64)
    }

    pub(super) fn has_blas(&self) -> bool {
        self.engine.has_blas
    }

    /// Where this call's kernels report what points outside.
    pub(super) fn lookup(&mut self, lookup: Lookup) -> u64 {
        self.prepared.lookup = Some(lookup);
        self.reports
    }

    pub(super) fn add(&mut self, task: Task) {
        self.prepared.tasks.push(task);
    }

    /// A launch of so many blocks; none, if there is nothing to do.
    pub(super) fn kernel<A: bytemuck::Pod>(&mut self, file: Text, name: &'static str, blocks: [usize; 2], args: &A) {
        if let Some(call) = kernel_call(file, name, blocks, args) {
            self.add(Task::Kernel(call));
        }
    }

    pub(super) fn engine(&self) -> &CudaEngine {
        self.engine
    }
}

/// A launch of so many blocks; none, if there is nothing to do.
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

/// Blocks of one thread a cell.
pub(super) fn blocks_of_cells(cells: usize) -> [usize; 2] {
    [cells.div_ceil(THREADS as usize), 1]
}

/// Blocks of one warp a row.
pub(super) fn blocks_of_warps(rows: usize) -> [usize; 2] {
    [rows.div_ceil(THREADS as usize / 32), 1]
}

/// Objects unless `got` has the rows and columns of `want`.
pub(super) fn check_same(call: &'static str, operand: &'static str, want: Mat, got: Mat) -> Result<()> {
    check_shape(call, operand, [want.rows, want.cols], [got.rows, got.cols])
}
