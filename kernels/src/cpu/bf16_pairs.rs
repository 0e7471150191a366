//! Pairs of bf16 numbers, and what `bf16_product.rs` computes with them.

use half::bf16;

use super::product::Panel;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// What one call computes.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) enum Work<'a> {
    /// `out += x * small`, for rows `[rows, k]` of `x` and some panels of the small operand. `sizes` are `k` and the number
    /// of columns.
    Rows { x: &'a [bf16], small: &'a [u32], panels: &'a [Panel], sizes: [usize; 2], out: &'a mut [f32] },
    /// `out += left^T * x` for one block of rows and one panel of columns. Rows of pairs: `stride` apart in `left`,
    /// and the panel's stride in `x`. `sizes` are those of `out`.
    Block { left: &'a [u32], stride: usize, x: &'a [u32], panel: &'a Panel, sizes: [usize; 2], out: &'a mut [f32] },
}

/// Returns two numbers side by side in memory as one.
#[inline(always)]
pub(super) fn pair(first: bf16, second: bf16) -> u32 {
    u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16
}
