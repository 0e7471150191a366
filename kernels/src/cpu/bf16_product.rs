//! The products of `product.rs` for bf16 matrices, by the instruction that multiplies and adds pairs of bf16 numbers:
//! AVX512-BF16, of x86-64 processors from AMD Zen 4 and Intel Cooper Lake on. Those of AMD do twice as many
//! operations per second by it as in f32, those of Intel half as many.
//!
//! The product of two bf16 numbers is exact in f32, and sums are f32. What differs from `product.rs` is the order of a
//! sum, in which the second term of each pair comes first, and that numbers below 2^-126 count as 0. So a cell of
//! `n` terms is within `n * 2^-24 * (the sum of the terms' absolute values)` of the exact sum, to first order, as it is in
//! `product.rs`.

use std::ops::Range;

use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use super::bf16_pairs::{LANES, Work, pair};
#[cfg(target_arch = "x86_64")]
use super::bf16_vectors::run;
use super::prefetch::prefetch;
use super::product::{PANEL, Panel, group_rows, pack, panels};
use crate::error::Result;
use crate::memory::AlignedBytes;
use crate::storage_type::round_here;

/// Pairs of rows that [`add_transposed_times`] sums in registers before it writes to memory. Its copy of a panel of `x`
/// then fits the first-level cache.
const BLOCK: usize = 128;

/// The small operand `[k, width]` of [`rows_times`]: in panels, with the cells of two rows beside each other.
pub(super) struct PackedPairs {
    k: usize,
    width: usize,
    panels: Vec<Panel>,
    /// Pairs as in [`pair`].
    data: AlignedBytes,
}

impl PackedPairs {
    /// Packs the matrix whose cell in `row` and `column` is `data[row * strides[0] + column * strides[1]]`.
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`].
    pub(super) fn new(data: &[bf16], [k, width]: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        let cell = |row: usize, column: usize| {
            if row < k { data[row * strides[0] + column * strides[1]] } else { bf16::ZERO }
        };
        let pairs = |i: usize, column: usize| pair(cell(2 * i, column), cell(2 * i + 1, column));
        let (panels, data) = pack([k.div_ceil(2), width], pairs)?;
        Ok(Self { k, width, panels, data })
    }
}

/// Computes `out = x * packed` on this thread, or `sum + x * packed`, and rounds it. Calls `done(first row, rows)` for
/// groups of rows before they are rounded.
///
/// # Shapes
/// `x`: `[rows, k]`; `sum`, `out`: `[rows, width]`; `out` is overwritten.
/// # Panics
/// If the machine does not have the instruction.
pub(super) fn rows_times(
    x: &[bf16],
    packed: &PackedPairs,
    sum: Option<&[f32]>,
    out: &mut [bf16],
    mut done: impl FnMut(usize, &mut [f32]),
) {
    let (k, width) = (packed.k, packed.width);
    let group = group_rows(k.div_ceil(2), width);
    let mut wide = vec![0.0; group * width];
    for (i, out) in out.chunks_mut(group * width).enumerate() {
        let wide = &mut wide[..out.len()];
        match sum {
            Some(sum) => wide.copy_from_slice(&sum[i * group * width..][..out.len()]),
            None => wide.fill(0.0),
        }
        let x = &x[i * group * k..][..out.len() / width * k];
        let (small, sizes) = (packed.data.as_slice(), [k, width]);
        run(Work::Rows { x, small, panels: &packed.panels, sizes, out: wide });
        done(i * group, wide);
        round_here(wide, out);
    }
}

/// Computes `out += left^T * x` on this thread.
///
/// # Shapes
/// `left`: `[rows, m]`; `x`: `[rows, width]`; `out`: `[m, width]`.
/// # Panics
/// If the machine does not have the instruction.
pub(super) fn add_transposed_times(left: &[bf16], x: &[bf16], [m, width]: [usize; 2], out: &mut [f32]) {
    let panels = panels(width, 0);
    // Rows whose distance is a power of two would compete for the same few sets of the first-level cache.
    let stride = if m.is_multiple_of(4 * LANES) { m + LANES } else { m };
    let arch = Arch::new();
    let mut left_pairs = vec![0; BLOCK * stride];
    let mut x_pairs = vec![0; BLOCK * PANEL * LANES];
    for (left, x) in left.chunks(2 * BLOCK * m).zip(x.chunks(2 * BLOCK * width)) {
        let pairs = (left.len() / m).div_ceil(2);
        arch.dispatch(PairRows { from: left, width: m, columns: 0..m, next: 0, to: &mut left_pairs, stride });
        for (i, panel) in panels.iter().enumerate() {
            // Rows are far apart for the processor to see what is read next.
            let next = panels.get(i + 1).map_or(2 * BLOCK * width, |next| next.columns.start) - panel.columns.start;
            let columns = panel.columns.clone();
            arch.dispatch(PairRows { from: x, width, columns, next, to: &mut x_pairs, stride: panel.stride });
            let (left, x) = (&left_pairs[..pairs * stride], &x_pairs[..pairs * panel.stride]);
            let sizes = [m, width];
            run(Work::Block { left, stride, x, panel, sizes, out: &mut *out });
        }
    }
}

/// Puts the cells of every two rows side by side, for some columns. Fills the rest of an incomplete panel with zeros, and the
/// second row of the last pair if there is none.
struct PairRows<'a> {
    /// Rows of `width` cells.
    from: &'a [bf16],
    width: usize,
    columns: Range<usize>,
    /// How many cells further on those are that are read next. They are prefetched.
    next: usize,
    to: &'a mut [u32],
    /// The distance of the pairs of two rows.
    stride: usize,
}

impl WithSimd for PairRows<'_> {
    type Output = ();

    // The compiler makes vectors of the loop over columns.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { from, width, columns, next, to, stride } = self;
        for (rows, to) in from.chunks(2 * width).zip(to.chunks_exact_mut(stride)) {
            for start in [columns.start + next, columns.start + next + width] {
                (0..columns.len()).step_by(2 * LANES).for_each(|column| prefetch(rows, start + column));
            }
            let (first, second) = rows.split_at(width);
            let (to, fill) = to.split_at_mut(columns.len());
            let first = first[columns.clone()].iter();
            match second.get(columns.clone()) {
                Some(second) => to.iter_mut().zip(first.zip(second)).for_each(|(to, (&a, &b))| *to = pair(a, b)),
                None => to.iter_mut().zip(first).for_each(|(to, &a)| *to = pair(a, bf16::ZERO)),
            }
            fill.fill(0);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run(_work: Work<'_>) {
    unreachable!("this machine has no AVX512-BF16");
}
