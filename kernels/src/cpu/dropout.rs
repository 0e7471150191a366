//! Dropout on dense matrices and on the values of sparse matrices, from the counter-based draws of [`crate::random`].

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::parallel::{CHUNK, balanced_rows, split_at_ends, task_count, try_for_each};
use super::sources::{bad_row, check_block};
use crate::error::{Error, Result, check_shape};
use crate::random::DropoutKey;
use crate::random::{CallKey, RowKey, call_key, draw, threshold};
use crate::view::BlockView;

/// Applies [`dropout`](super::rows::dropout) to the values of a sparse matrix in CSR, or of its transpose. It drops the same
/// cells as on the dense matrix.
///
/// # Shapes
/// `block`: the cells of row `v` are in the columns `indices`; if it is transposed, those of column `v` are in the rows
/// `indices`. `values`, `out`: `[e]`; `out` is overwritten.
/// # Errors
/// [`Error::Shape`] and [`Error::Argument`], with `out` unchanged; [`Error::Index`] if the edge range of a row is
/// invalid, and `out` must then not be read.
pub fn sparse_dropout(
    (block, is_transposed): (BlockView<'_>, bool),
    values: &[f32],
    key: DropoutKey,
    epoch: u64,
    out: &mut [f32],
) -> Result<()> {
    let e = block.indices.len();
    check_block(CALL, block)?;
    check_shape(CALL, "values", [e, 1], [values.len(), 1])?;
    check_shape(CALL, "out", [e, 1], [out.len(), 1])?;
    let mask = Mask::new(CALL, key, epoch)?;
    let task = |rows: Range<usize>, out: &mut [f32]| match is_transposed {
        false => Arch::new().dispatch(DropEdges::<false> { mask, block, values, rows, out }),
        true => Arch::new().dispatch(DropEdges::<true> { mask, block, values, rows, out }),
    };
    let ranges = balanced_rows(block.indptr, task_count(block.rows() + e, CHUNK));
    if let [all] = &ranges[..] {
        return task(all.clone(), out);
    }
    let parts = split_at_ends(out, ranges.iter().map(|range| block.indptr[range.end] as usize));
    try_for_each(ranges.into_iter().zip(parts), |(rows, out)| task(rows, out))
}

const CALL: &str = "sparse_dropout";

/// One task: the edges of some rows, and their part of the output.
struct DropEdges<'a, const TRANSPOSED: bool> {
    mask: Mask,
    block: BlockView<'a>,
    values: &'a [f32],
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl<const TRANSPOSED: bool> WithSimd for DropEdges<'_, TRANSPOSED> {
    type Output = Result<()>;

    // The compiler makes vectors of the loops over edges.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> Result<()> {
        let Self { mask, block, values, rows, out } = self;
        let base = block.indptr[rows.start] as usize;
        for v in rows {
            let edges = block.edges(v);
            let cells = edges.start.checked_sub(base).zip(edges.end.checked_sub(base));
            let cells = cells.and_then(|(low, high)| out.get_mut(low..high));
            let (Some(out), Some(sources)) = (cells, block.indices.get(edges.clone())) else {
                return Err(bad_row(CALL, block, v));
            };
            let cells = out.iter_mut().zip(sources).zip(&values[edges]);
            if TRANSPOSED {
                for ((out, &row), &x) in cells {
                    *out = mask.apply(mask.row(row as usize), v as u32, x);
                }
            } else {
                let key = mask.row(v);
                for ((out, &column), &x) in cells {
                    *out = mask.apply(key, column, x);
                }
            }
        }
        Ok(())
    }
}

/// Applies [`dropout`] to rows of `d` columns. The first of them is row `first` of the matrix.
#[inline(always)]
pub(super) fn drop_rows(mask: Mask, first: usize, d: usize, x: &[f32], out: &mut [f32]) {
    for ((r, out), x) in out.chunks_exact_mut(d).enumerate().zip(x.chunks_exact(d)) {
        let key = mask.row(first + r);
        for ((out, &x), column) in out.iter_mut().zip(x).zip(mask.key.first_column..) {
            *out = mask.apply(key, column, x);
        }
    }
}

/// Does the same as [`drop_rows`] in place.
#[inline(always)]
pub(super) fn drop_in_place(mask: Mask, first: usize, d: usize, rows: &mut [f32]) {
    for (r, row) in rows.chunks_exact_mut(d).enumerate() {
        let key = mask.row(first + r);
        for (x, column) in row.iter_mut().zip(mask.key.first_column..) {
            *x = mask.apply(key, column, *x);
        }
    }
}

/// The settings that decide every cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    key: DropoutKey,
    call: CallKey,
    threshold: u32,
    scale: f32,
}

impl Mask {
    pub(super) fn new(call: &'static str, key: DropoutKey, epoch: u64) -> Result<Self> {
        if !(0.0..1.0).contains(&key.rate) {
            let got = f64::from(key.rate);
            return Err(Error::Argument { call, operand: "rate", want: "at least 0 and below 1", got });
        }
        Ok(Self {
            key,
            call: call_key(key.seed, epoch, key.op),
            threshold: threshold(key.rate),
            scale: 1.0 / (1.0 - key.rate),
        })
    }

    #[inline(always)]
    fn row(&self, row: usize) -> RowKey {
        self.call.row(self.key.first_row.wrapping_add(row as u64))
    }

    #[inline(always)]
    fn apply(&self, key: RowKey, column: u32, x: f32) -> f32 {
        let kept = x * self.scale;
        if draw(key, column) >= self.threshold { kept } else { 0.0 }
    }
}
