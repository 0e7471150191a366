//! In place of `bf16_vectors.rs` on other machines than x86-64.

use half::bf16;

use super::product::Panel;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// What one call computes.
#[allow(dead_code)]
pub(super) enum Work<'a> {
    Rows { x: &'a [bf16], small: &'a [u32], panels: &'a [Panel], sizes: [usize; 2], out: &'a mut [f32] },
    Block { left: &'a [u32], stride: usize, x: &'a [u32], panel: &'a Panel, sizes: [usize; 2], out: &'a mut [f32] },
}

pub(super) fn run(_work: Work<'_>) {
    unreachable!("this machine has no AVX512-BF16");
}

/// Returns two numbers side by side in memory as one.
pub(super) fn pair(first: bf16, second: bf16) -> u32 {
    u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16
}
