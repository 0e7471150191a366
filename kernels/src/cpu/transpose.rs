//! The transpose of a matrix. It turns square tiles in registers.

use pulp::{NullaryFnOnce, Scalar};

use super::parallel::for_chunks;
use crate::error::{Result, check_shape};
use crate::view::{MatMut, MatView};

/// Rows and columns of a tile.
const TILE: usize = 8;
/// Columns that a task turns: several cache lines of each row.
const STRIP: usize = 64;

type Tile = [[f32; TILE]; TILE];

/// `out = x^T`.
///
/// # Shapes
/// `x`: `[n, d]`; `out`: `[d, n]`, overwritten.
/// # Errors
/// [`crate::Error::Shape`]; `out` is then untouched.
pub fn transpose(x: MatView<'_>, mut out: MatMut<'_>) -> Result<()> {
    let (n, d) = (x.rows(), x.cols());
    check_shape("transpose", "out", [d, n], [out.rows(), out.cols()])?;
    if n == 0 {
        return Ok(());
    }
    for_chunks(out.data(), STRIP * n, |first, out| {
        let strip = Strip { x: x.data(), sizes: [n, d], first: first / n, out };
        #[cfg(target_arch = "x86_64")]
        if let Some(v3) = pulp::x86::V3::try_new() {
            return v3.vectorize(With(strip, v3));
        }
        strip.turn(Scalar::new());
    });
    Ok(())
}

/// Consecutive columns of a matrix, and the rows that they become.
struct Strip<'a> {
    x: &'a [f32],
    /// Rows and columns of the matrix.
    sizes: [usize; 2],
    /// The first column.
    first: usize,
    out: &'a mut [f32],
}

impl Strip<'_> {
    #[inline(always)]
    fn turn<V: Vectors>(self, vectors: V) {
        let Self { x, sizes: [n, d], first, out } = self;
        for low in (0..n).step_by(TILE) {
            for (column, out) in (first..).step_by(TILE).zip(out.chunks_mut(TILE * n)) {
                if low + TILE <= n && out.len() == TILE * n {
                    let mut tile = [[0.0; TILE]; TILE];
                    for (row, cells) in (low..).zip(&mut tile) {
                        cells.copy_from_slice(&x[row * d + column..][..TILE]);
                    }
                    for (out, cells) in out.chunks_exact_mut(n).zip(vectors.turned(tile)) {
                        out[low..low + TILE].copy_from_slice(&cells);
                    }
                    continue;
                }
                for (column, out) in (column..).zip(out.chunks_exact_mut(n)) {
                    for (row, out) in (low..).zip(&mut out[low..n.min(low + TILE)]) {
                        *out = x[row * d + column];
                    }
                }
            }
        }
    }
}

/// A strip, and the vectors that turn its tiles.
struct With<'a, V>(Strip<'a>, V);

impl<V: Vectors> NullaryFnOnce for With<'_, V> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.turn(self.1);
    }
}

/// Vectors that turn a tile.
trait Vectors: Copy {
    fn turned(self, tile: Tile) -> Tile;
}

impl Vectors for Scalar {
    #[inline(always)]
    fn turned(self, tile: Tile) -> Tile {
        let mut turned = tile;
        for (i, cells) in turned.iter_mut().enumerate() {
            cells.iter_mut().zip(&tile).for_each(|(to, row)| *to = row[i]);
        }
        turned
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for pulp::x86::V3 {
    /// Joins rows that are one, then two, then four apart.
    #[inline(always)]
    fn turned(self, tile: Tile) -> Tile {
        use std::arch::x86_64::__m256;
        /// In each half of two vectors, take the lower two numbers of both, or the upper two.
        const LOWER: i32 = 0b01_00_01_00;
        const UPPER: i32 = 0b11_10_11_10;
        /// Join the first halves of two vectors, or the second halves.
        const FIRST: i32 = 0x20;
        const SECOND: i32 = 0x31;
        let avx = self.avx;
        let [a, b, c, d, e, f, g, h]: [__m256; TILE] = pulp::cast(tile);
        let (ab, cd) = (avx._mm256_unpacklo_ps(a, b), avx._mm256_unpacklo_ps(c, d));
        let (ef, gh) = (avx._mm256_unpacklo_ps(e, f), avx._mm256_unpacklo_ps(g, h));
        let (ab_high, cd_high) = (avx._mm256_unpackhi_ps(a, b), avx._mm256_unpackhi_ps(c, d));
        let (ef_high, gh_high) = (avx._mm256_unpackhi_ps(e, f), avx._mm256_unpackhi_ps(g, h));
        // Columns i and i + 4 of the first four rows, and of the last four.
        let first_rows = [
            avx._mm256_shuffle_ps::<LOWER>(ab, cd),
            avx._mm256_shuffle_ps::<UPPER>(ab, cd),
            avx._mm256_shuffle_ps::<LOWER>(ab_high, cd_high),
            avx._mm256_shuffle_ps::<UPPER>(ab_high, cd_high),
        ];
        let last_rows = [
            avx._mm256_shuffle_ps::<LOWER>(ef, gh),
            avx._mm256_shuffle_ps::<UPPER>(ef, gh),
            avx._mm256_shuffle_ps::<LOWER>(ef_high, gh_high),
            avx._mm256_shuffle_ps::<UPPER>(ef_high, gh_high),
        ];
        let mut turned = [a; TILE];
        for i in 0..TILE / 2 {
            turned[i] = avx._mm256_permute2f128_ps::<FIRST>(first_rows[i], last_rows[i]);
            turned[i + TILE / 2] = avx._mm256_permute2f128_ps::<SECOND>(first_rows[i], last_rows[i]);
        }
        pulp::cast(turned)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_turned_with_and_without_vectors() {
        for n in [0, 1, 7, 8, 9, 16, 29] {
            for d in [0, 1, 7, 8, 63, 64, 65, 130] {
                let x: Vec<f32> = (0..n * d).map(|i| i as f32).collect();
                let want: Vec<f32> = (0..d * n).map(|i| x[i % n * d + i / n]).collect();
                let mut out = vec![-1.0; d * n];
                transpose(MatView::new(&x, n, d).unwrap(), MatMut::new(&mut out, d, n).unwrap()).unwrap();
                assert_eq!(out, want, "{n} rows, {d} columns");
                out.fill(-1.0);
                if n > 0 {
                    Strip { x: &x, sizes: [n, d], first: 0, out: &mut out }.turn(Scalar::new());
                }
                assert_eq!(out, want, "{n} rows, {d} columns, without vectors");
            }
        }
    }
}
