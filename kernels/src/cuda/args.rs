//! Arguments of kernels. Each struct has the same fields, in the same order, as the struct of that name in a `.cu`
//! file. Device addresses are u64 here.

use bytemuck::{Pod, Zeroable};

/// Most row steps in one kernel: `MOST_STEPS` of `common.cuh`.
pub(super) const MOST_STEPS: usize = 6;

/// Most matrices of sources in a gather's launch: `MOST_MATRICES` of `gather.cuh`.
pub(super) const MOST_MATRICES: usize = 32;

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Mask {
    pub(super) run: u64,
    pub(super) first_row: u64,
    pub(super) op: u32,
    pub(super) threshold: u32,
    pub(super) scale: f32,
    pub(super) first_column: u32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RowStepArgs {
    pub(super) operand: u64,
    pub(super) kind: u32,
    pub(super) number: f32,
    pub(super) mask: Mask,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RowStepsArgs {
    pub(super) count: u32,
    pub(super) wide: u32,
    pub(super) step: [RowStepArgs; MOST_STEPS],
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Gather {
    pub(super) indptr: u64,
    pub(super) indices: u64,
    pub(super) weights: u64,
    pub(super) sum: u64,
    pub(super) out: u64,
    pub(super) fault: u64,
    pub(super) rows: u64,
    pub(super) edges: u64,
    pub(super) sources: [u64; MOST_MATRICES],
    pub(super) firsts: [u32; MOST_MATRICES + 1],
    pub(super) matrices: u32,
    pub(super) sources_before: u32,
    pub(super) sources_behind: u32,
    pub(super) d: u32,
    pub(super) lanes: u32,
    pub(super) most_edges: u32,
    pub(super) hub_groups: u32,
    pub(super) hub_slices: u32,
    pub(super) unused: u32,
    pub(super) steps: RowStepsArgs,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Attention {
    pub(super) indptr: u64,
    pub(super) indices: u64,
    pub(super) own: u64,
    pub(super) halo: u64,
    pub(super) at_rows: u64,
    pub(super) sum: u64,
    pub(super) out: u64,
    pub(super) log_sum: u64,
    pub(super) a: u64,
    pub(super) target_grad: u64,
    pub(super) edge_values: u64,
    pub(super) edge_vector: u64,
    pub(super) clock: u64,
    pub(super) ids: u64,
    pub(super) fault: u64,
    pub(super) rows: u64,
    pub(super) edges: u64,
    pub(super) first_source: u64,
    pub(super) own_sources: u64,
    pub(super) sources: u64,
    pub(super) windowed: u64,
    pub(super) row_blocks: u64,
    pub(super) mask: Mask,
    pub(super) own_cols: u32,
    pub(super) row_cols: u32,
    pub(super) d: u32,
    pub(super) heads: u32,
    pub(super) width: u32,
    pub(super) slice_heads: u32,
    pub(super) slice_columns: u32,
    pub(super) parts: u32,
    pub(super) head_bits: u32,
    pub(super) transposed: u32,
    pub(super) has_values: u32,
    pub(super) partial: u32,
    pub(super) slope: f32,
    pub(super) unused: u32,
    pub(super) steps: RowStepsArgs,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AttentionRows {
    pub(super) x: u64,
    pub(super) second: u64,
    pub(super) third: u64,
    pub(super) fourth: u64,
    pub(super) out: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) d: u64,
    pub(super) heads: u64,
    pub(super) skip: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Rows {
    pub(super) x: u64,
    pub(super) picked: u64,
    pub(super) out: u64,
    pub(super) fault: u64,
    pub(super) rows: u64,
    pub(super) sources: u64,
    pub(super) d: u32,
    pub(super) lanes: u32,
    pub(super) steps: RowStepsArgs,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Round {
    pub(super) x: u64,
    pub(super) out: u64,
    pub(super) cells: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Rectangle {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) from_stride: u64,
    pub(super) to_stride: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Transpose {
    pub(super) x: u64,
    pub(super) out: u64,
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) column_squares: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Permute {
    pub(super) values: u64,
    pub(super) permutation: u64,
    pub(super) out: u64,
    pub(super) fault: u64,
    pub(super) edges: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SparseDropout {
    pub(super) indptr: u64,
    pub(super) indices: u64,
    pub(super) values: u64,
    pub(super) out: u64,
    pub(super) clock: u64,
    pub(super) fault: u64,
    pub(super) rows: u64,
    pub(super) edges: u64,
    pub(super) transposed: u64,
    pub(super) mask: Mask,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Columns {
    pub(super) x: u64,
    pub(super) partial: u64,
    pub(super) out: u64,
    pub(super) rows: u64,
    pub(super) rows_of_part: u64,
    pub(super) parts: u64,
    pub(super) d: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Finish {
    pub(super) partial: u64,
    pub(super) out: u64,
    pub(super) parts: u64,
    pub(super) divisor: f64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Parts {
    pub(super) partial: u64,
    pub(super) out: u64,
    pub(super) cells: u64,
    pub(super) parts: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plus {
    pub(super) sum: u64,
    pub(super) out: u64,
    pub(super) len: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Product {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) out: u64,
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) a_row: u64,
    pub(super) a_column: u64,
    pub(super) b_row: u64,
    pub(super) b_column: u64,
    pub(super) k_of_part: u64,
    pub(super) wide: u64,
    pub(super) adds: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Loss {
    pub(super) logits: u64,
    pub(super) targets: u64,
    pub(super) split: u64,
    pub(super) weights: u64,
    pub(super) out: u64,
    pub(super) partial: u64,
    pub(super) rows: u64,
    pub(super) rows_of_part: u64,
    pub(super) count: u64,
    pub(super) classes: u32,
    pub(super) select: u32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct LayerNorm {
    pub(super) grad: u64,
    pub(super) x: u64,
    pub(super) gain: u64,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) partial: u64,
    pub(super) rows: u64,
    pub(super) rows_of_part: u64,
    pub(super) d: u64,
    pub(super) eps: f64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Sgd {
    pub(super) param: u64,
    pub(super) grad: u64,
    pub(super) moment: u64,
    pub(super) next_moment: u64,
    pub(super) out: u64,
    pub(super) clock: u64,
    pub(super) rate: u64,
    pub(super) len: u64,
    pub(super) momentum: f32,
    pub(super) decay: f32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Adam {
    pub(super) param: u64,
    pub(super) grad: u64,
    pub(super) m: u64,
    pub(super) v: u64,
    pub(super) out: u64,
    pub(super) next_m: u64,
    pub(super) next_v: u64,
    pub(super) clock: u64,
    pub(super) rate: u64,
    pub(super) len: u64,
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) eps: f64,
    pub(super) weight_decay: f64,
    pub(super) decoupled: u64,
}
