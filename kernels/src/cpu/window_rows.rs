//! The rows that passes over windows read: some columns of the sources of a window, copied side by side
//! (`windows.rs`). Numbers in f32 stay as they are. Those in bf16 lie in pairs: a word holds the number of one column, and in its
//! upper half that of the column 16 further. So a vector of words becomes two vectors of f32 by a shift and a mask.

use std::ops::Range;

use bytemuck::Pod;
use half::bf16;
use pulp::Simd;

use super::element::Element;
use super::parallel::for_rows;
use super::passes::copy_columns;
use super::sources::LINE;

/// Columns of a pair of vectors, and how far apart the columns of a word are.
const PAIR: usize = 32;
const APART: usize = PAIR / 2;

/// The bits of the upper half of a word.
const UPPER: u32 = 0xffff_0000;

/// A number whose rows can be copied for passes.
pub(super) trait WindowNumber: Element {
    /// What a copied row consists of.
    type Cell: Pod + Send + Sync;

    /// Returns how many cells a row of `columns` columns has: whole cache lines.
    fn cells(columns: usize) -> usize;

    /// Copies some columns of some rows of a matrix of `d` columns into rows of `width` cells.
    fn copy(from: &[Self], d: usize, rows: Range<usize>, columns: Range<usize>, to: &mut [Self::Cell], width: usize);

    /// Whether `columns` columns, a number of vectors, fill rows of `width` cells.
    fn fill(columns: usize, width: usize) -> bool;

    /// Reads row `u` of rows that `N` vectors fill; `None` if there is no such row.
    fn whole<S: Simd, const N: usize>(simd: S, cells: &[Self::Cell], u: usize) -> Option<[S::f32s; N]>;

    /// Reads `N` vectors of the row that begins at `cell`, from column `from` on, which is a multiple of 8 vectors; `None` if
    /// there are fewer cells.
    fn part<S: Simd, const N: usize>(simd: S, cells: &[Self::Cell], cell: usize, from: usize) -> Option<[S::f32s; N]>;
}

impl WindowNumber for f32 {
    type Cell = f32;

    fn cells(columns: usize) -> usize {
        columns.next_multiple_of(LINE)
    }

    fn copy(from: &[f32], d: usize, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], width: usize) {
        copy_columns(&[from], d, rows, columns, to, width);
    }

    fn fill(columns: usize, width: usize) -> bool {
        columns == width
    }

    #[inline(always)]
    fn whole<S: Simd, const N: usize>(_simd: S, cells: &[f32], u: usize) -> Option<[S::f32s; N]> {
        S::as_simd_f32s(cells).0.as_chunks::<N>().0.get(u).copied()
    }

    #[inline(always)]
    fn part<S: Simd, const N: usize>(_simd: S, cells: &[f32], cell: usize, from: usize) -> Option<[S::f32s; N]> {
        S::as_simd_f32s(cells.get(cell + from..cell + from + N * S::F32_LANES)?).0.first_chunk().copied()
    }
}

impl WindowNumber for bf16 {
    type Cell = u32;

    fn cells(columns: usize) -> usize {
        columns.div_ceil(PAIR) * APART
    }

    fn copy(from: &[bf16], d: usize, rows: Range<usize>, columns: Range<usize>, to: &mut [u32], width: usize) {
        let from = &from[rows.start * d..rows.end * d];
        for_rows(&mut to[..rows.len() * width], width, |first, to| {
            for (to, from) in to.chunks_exact_mut(width).zip(from[first * d..].chunks_exact(d)) {
                let from = &from[columns.clone()];
                let (pairs, rest) = from.as_chunks::<PAIR>();
                let mut last = [bf16::ZERO; PAIR];
                last[..rest.len()].copy_from_slice(rest);
                let pairs = pairs.iter().chain((!rest.is_empty()).then_some(&last));
                for (to, numbers) in to.as_chunks_mut::<APART>().0.iter_mut().zip(pairs) {
                    let (low, high) = numbers.split_at(APART);
                    let words = low
                        .iter()
                        .zip(high)
                        .map(|(low, high)| u32::from(high.to_bits()) << 16 | u32::from(low.to_bits()));
                    to.iter_mut().zip(words).for_each(|(to, word)| *to = word);
                }
            }
        });
    }

    fn fill(columns: usize, width: usize) -> bool {
        Self::cells(columns) == width
    }

    #[inline(always)]
    fn whole<S: Simd, const N: usize>(simd: S, cells: &[u32], u: usize) -> Option<[S::f32s; N]> {
        if N * S::F32_LANES <= PAIR {
            Self::part(simd, cells.as_chunks::<APART>().0.get(u)?, 0, 0)
        } else {
            Self::part(simd, cells.as_chunks::<PAIR>().0.get(u)?, 0, 0)
        }
    }

    #[inline(always)]
    fn part<S: Simd, const N: usize>(simd: S, cells: &[u32], cell: usize, from: usize) -> Option<[S::f32s; N]> {
        if S::F32_LANES < 4 {
            return numbers::<S, N>(simd, cells.get(cell..)?, from);
        }
        let half = APART / S::F32_LANES;
        let words = S::as_simd_u32s(cells.get(cell + from / 2..)?).0.get(..N.div_ceil(2 * half) * half)?;
        let (mut vectors, mut i) = ([simd.splat_f32s(0.0); N], 0);
        while i < N {
            let (pair, at) = (i / (2 * half), i % (2 * half));
            let word = words[pair * half + at % half];
            let bits = match at < half {
                true => simd.wrapping_dyn_shl_u32s(word, simd.splat_u32s(16)),
                false => simd.and_u32s(word, simd.splat_u32s(UPPER)),
            };
            vectors[i] = simd.transmute_f32s_u32s(bits);
            i += 1;
        }
        Some(vectors)
    }
}

/// Widens `N` numbers, for a machine without vectors.
#[inline(always)]
fn numbers<S: Simd, const N: usize>(simd: S, row: &[u32], from: usize) -> Option<[S::f32s; N]> {
    let mut vectors = [simd.splat_f32s(0.0); N];
    for (column, to) in (from..).zip(&mut vectors) {
        let (pair, at) = (column / PAIR, column % PAIR);
        let word = row.get(pair * APART + at % APART)?;
        *to = simd.splat_f32s(f32::from_bits(if at < APART { word << 16 } else { word & UPPER }));
    }
    Some(vectors)
}
