//! Products of tall matrices with small ones, in tiles of the result that stay in vector registers.
//!
//! A graph network multiplies `n` rows by a weight of a few hundred rows and columns, and its weight gradients are sums
//! over those `n` rows. In both cases one operand is small enough to be copied into the order in which it is read; the
//! tall operand is read in place. A cell of [`rows_times`] adds its products one after the other, a cell of
//! [`add_transposed_times`] in blocks of [`BLOCK`] rows. Neither order depends on the vector width or on the split into
//! tasks.

use std::array::from_fn;
use std::ops::Range;

use bytemuck::Pod;
use pulp::{Arch, Simd, WithSimd};

use super::element::{Element, read, write};
use super::prefetch::{prefetch, prefetch_early};
use crate::error::Result;
use crate::memory::{AlignedBytes, zeroed};

/// Unit of panel widths, in columns: the widest vector.
const LINE: usize = 16;

/// Most lines per panel: four vectors of the widest kind.
pub(super) const PANEL: usize = 4;

/// Rows that [`add_transposed_times`] sums in registers before it writes to memory. Its copy of a panel of `x` then
/// fits the first-level cache.
const BLOCK: usize = 128;

/// Rows between two prefetches of [`add_transposed_times`].
const ROWS: usize = 8;

/// Most rows of a result for which [`add_transposed_times`] reads `x` in place.
const FEW: usize = 48;

/// Terms of a sum that are processed together: one cache line of a row.
const STEP: usize = LINE;

/// The columns `columns` of the small operand, copied row by row and padded with zeros to whole lines.
pub(super) struct Panel {
    pub(super) columns: Range<usize>,
    /// Start of the panel, and elements per row.
    pub(super) start: usize,
    pub(super) stride: usize,
}

/// Splits `width` columns into panels of nearly equal numbers of lines, at most [`PANEL`] each.
pub(super) fn panels(width: usize, rows: usize) -> Vec<Panel> {
    let lines = width.div_ceil(LINE);
    let count = lines.div_ceil(PANEL);
    let end = |i: usize| lines * i / count.max(1);
    let panel = |i: usize| Panel {
        columns: end(i) * LINE..(end(i + 1) * LINE).min(width),
        start: end(i) * LINE * rows,
        stride: (end(i + 1) - end(i)) * LINE,
    };
    (0..count).map(panel).collect()
}

/// The small operand `[k, width]` of [`rows_times`], copied into panels.
pub(super) struct Packed {
    k: usize,
    width: usize,
    panels: Vec<Panel>,
    data: AlignedBytes,
}

impl Packed {
    /// Packs the matrix whose cell in `row` and `column` is `data[row * strides[0] + column * strides[1]]`.
    ///
    /// # Errors
    /// [`crate::Error::HostMemory`].
    pub(super) fn new(data: &[f32], [k, width]: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        let (panels, data) = pack([k, width], |row, column| data[row * strides[0] + column * strides[1]])?;
        Ok(Self { k, width, panels, data })
    }
}

/// Copies a matrix of `rows` rows into panels. `cell(row, column)` has four bytes.
///
/// # Errors
/// [`crate::Error::HostMemory`].
pub(super) fn pack<T: Pod>(
    [rows, width]: [usize; 2],
    cell: impl Fn(usize, usize) -> T,
) -> Result<(Vec<Panel>, AlignedBytes)> {
    const { assert!(size_of::<T>() == size_of::<f32>()) };
    let panels = panels(width, rows);
    let mut packed = zeroed(size_of::<T>() * rows * width.next_multiple_of(LINE))?;
    for panel in &panels {
        let copies = packed.as_mut_slice::<T>()[panel.start..].chunks_exact_mut(panel.stride).take(rows);
        for (row, copies) in copies.enumerate() {
            for (column, copy) in panel.columns.clone().zip(copies) {
                *copy = cell(row, column);
            }
        }
    }
    Ok((panels, packed))
}

/// Computes `out = x * packed` on this thread, or `sum + x * packed`. Calls `done(first row, rows)` for groups of rows
/// while they are in a cache.
///
/// # Shapes
/// `x`: `[rows, k]`; `sum`, `out`: `[rows, width]`; `out` is overwritten.
/// # Order
/// A cell begins with its cell of `sum` and adds its products one after the other.
pub(super) fn rows_times<E: Element>(
    x: &[E],
    packed: &Packed,
    sum: Option<&[f32]>,
    out: &mut [E],
    mut done: impl FnMut(usize, &mut [f32]),
) {
    let (k, width) = (packed.k, packed.width);
    let group = group_rows(k, width);
    let (mut wide, mut room) = (Vec::new(), Vec::new());
    for (i, out) in out.chunks_mut(group * width).enumerate() {
        let rows = out.len() / width;
        let x = &x[i * group * k..][..rows * k];
        let sum = sum.map(|sum| &sum[i * group * width..][..out.len()]);
        let x = read(x, &mut wide);
        write(out, &mut room, |out| {
            Arch::new().dispatch(Group { x, packed, sum, out: &mut *out });
            done(i * group, out);
        });
    }
}

/// Returns how many rows of `k` and of `width` words fit half of a second-level cache, as a multiple of most tile heights.
pub(super) fn group_rows(k: usize, width: usize) -> usize {
    ((1 << 16) / (k + width)).clamp(24, 240) / 24 * 24
}

/// A group of rows of [`rows_times`].
struct Group<'a> {
    x: &'a [f32],
    packed: &'a Packed,
    sum: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl WithSimd for Group<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for panel in &self.packed.panels {
            for first in (0..panel.stride).step_by(widest::<S>() * S::F32_LANES) {
                match (panel.stride - first) / S::F32_LANES {
                    0 => {}
                    1 => self.columns::<S, 12, 1>(simd, panel, first),
                    2 => self.columns::<S, 9, 2>(simd, panel, first),
                    _ if widest::<S>() == 2 => self.columns::<S, 6, 2>(simd, panel, first),
                    3 => self.columns::<S, 7, 3>(simd, panel, first),
                    _ => self.columns::<S, 6, 4>(simd, panel, first),
                }
            }
        }
    }
}

/// Returns the width of a register tile in vectors: four if there are 32 registers, else two.
const fn widest<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { PANEL } else { 2 }
}

impl Group<'_> {
    /// Computes all rows of `V` vectors of columns, from column `first` of the panel on, `M` rows at a time.
    #[inline(always)]
    fn columns<S: Simd, const M: usize, const V: usize>(&mut self, simd: S, panel: &Panel, first: usize) {
        let (k, width) = (self.packed.k, self.packed.width);
        let rows = self.out.len() / width;
        let small = &self.packed.data.as_slice::<f32>()[panel.start..][..k * panel.stride];
        let columns =
            panel.columns.start + first..panel.columns.end.min(panel.columns.start + first + V * S::F32_LANES);
        if columns.is_empty() {
            return;
        }
        let x = |row: usize| &self.x[row * k..];
        if rows < M {
            for row in 0..rows {
                let sums = self.begin::<S, 1, V>(simd, row, &columns);
                let [sums] = dot::<S, 1, V>(simd, sums, x(row), k, small, panel.stride, first);
                store(simd, &mut self.out[row * width..][columns.clone()], sums);
            }
            return;
        }
        // The last tile may recompute rows of the tile before it.
        for row in (0..rows).step_by(M).map(|row| row.min(rows - M)) {
            for row in row..row + M {
                (columns.clone()).step_by(LINE).for_each(|column| prefetch(self.out, row * width + column));
            }
            let sums = self.begin::<S, M, V>(simd, row, &columns);
            let sums = dot::<S, M, V>(simd, sums, x(row), k, small, panel.stride, first);
            for (i, sums) in sums.into_iter().enumerate() {
                store(simd, &mut self.out[(row + i) * width..][columns.clone()], sums);
            }
        }
    }

    /// Returns what the cells of a tile begin with.
    // A loop, as a closure in `from_fn` became a function of its own, without the vectors of this one.
    #[inline(always)]
    fn begin<S: Simd, const M: usize, const V: usize>(
        &self,
        simd: S,
        row: usize,
        columns: &Range<usize>,
    ) -> [[S::f32s; V]; M] {
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        if let Some(sum) = self.sum {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = load(simd, &sum[(row + i) * self.packed.width..][columns.clone()]);
            }
        }
        sums
    }
}

/// Writes as many lanes as `out` has elements.
#[inline(always)]
fn store<S: Simd, const V: usize>(simd: S, out: &mut [f32], sums: [S::f32s; V]) {
    let (vectors, rest) = S::as_mut_simd_f32s(out);
    if let Some(vectors) = vectors.first_chunk_mut::<V>() {
        *vectors = sums;
        return;
    }
    for (out, sum) in vectors.iter_mut().zip(sums) {
        *out = sum;
    }
    if let Some(&sum) = sums.get(vectors.len()) {
        simd.partial_store_f32s(rest, sum);
    }
}

/// Reads as many lanes as `from` has elements; the others are 0.
#[inline(always)]
fn load<S: Simd, const V: usize>(simd: S, from: &[f32]) -> [S::f32s; V] {
    let (vectors, rest) = S::as_simd_f32s(from);
    if let Some(vectors) = vectors.first_chunk::<V>() {
        return *vectors;
    }
    let mut loaded = [simd.splat_f32s(0.0); V];
    loaded.iter_mut().zip(vectors).for_each(|(to, &from)| *to = from);
    if let Some(to) = loaded.get_mut(vectors.len()) {
        *to = simd.partial_load_f32s(rest);
    }
    loaded
}

/// Multiplies `M` rows by `V` vectors of columns of the small operand, and adds to `sums`.
#[inline(always)]
fn dot<S: Simd, const M: usize, const V: usize>(
    simd: S,
    mut sums: [[S::f32s; V]; M],
    rows: &[f32],
    k: usize,
    small: &[f32],
    stride: usize,
    first: usize,
) -> [[S::f32s; V]; M] {
    let chunks: [_; M] = from_fn(|row| rows[row * k..][..k].as_chunks::<STEP>());
    let (steps, rest) = small.split_at(chunks[0].0.len() * STEP * stride);
    for (i, small) in steps.chunks_exact(STEP * stride).enumerate() {
        let x: [&[f32; STEP]; M] = from_fn(|row| &chunks[row].0[i]);
        (M..2 * M).for_each(|row| prefetch(rows, row * k + i * STEP));
        for j in 0..STEP {
            let Some(small) = vectors::<S, V>(&small[j * stride + first..]) else { return sums };
            multiply_add(simd, &mut sums, from_fn(|row| x[row][j]), small);
        }
    }
    for (i, small) in rest.chunks_exact(stride).enumerate() {
        let Some(small) = vectors::<S, V>(&small[first..]) else { return sums };
        multiply_add(simd, &mut sums, from_fn(|row| chunks[row].1[i]), small);
    }
    sums
}

/// Returns the first `V` vectors of a slice.
#[inline(always)]
fn vectors<S: Simd, const V: usize>(values: &[f32]) -> Option<&[S::f32s; V]> {
    S::as_simd_f32s(values).0.first_chunk()
}

#[inline(always)]
fn multiply_add<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; M],
    factors: [f32; M],
    vectors: &[S::f32s; V],
) {
    for (sums, factor) in sums.iter_mut().zip(factors) {
        let factor = simd.splat_f32s(factor);
        for (sum, &vector) in sums.iter_mut().zip(vectors) {
            *sum = simd.mul_add_f32s(factor, vector, *sum);
        }
    }
}

/// Computes `out += left^T * x` on this thread.
///
/// # Shapes
/// `left`: `[rows, m]`; `x`: `[rows, width]`; `out`: `[m, width]`.
pub(super) fn add_transposed_times<E: Element>(left: &[E], x: &[E], [m, width]: [usize; 2], out: &mut [f32]) {
    let panels = panels(width, 0);
    let mut copy = vec![0.0; BLOCK * PANEL * LINE];
    // Rows whose distance is a power of two would compete for the same few sets of the first-level cache.
    let stride = if m.is_multiple_of(4 * LINE) { m + LINE } else { m };
    let in_place = stride == m && !E::ROUNDS;
    let mut apart = vec![0.0; if in_place { 0 } else { BLOCK * stride }];
    for (i, left) in left.chunks(BLOCK * m).enumerate() {
        let rows = left.len() / m;
        let left = match E::as_f32(left).filter(|_| in_place) {
            Some(left) => left,
            None => {
                let rows = apart.chunks_exact_mut(stride).zip(left.chunks_exact(m));
                rows.for_each(|(to, from)| E::widen(from, &mut to[..m]));
                &apart[..]
            }
        };
        let left = &left[..rows * stride];
        for panel in &panels {
            let start = i * BLOCK * width + panel.columns.start;
            let next = (x, start + BLOCK * width);
            let x = &x[start..];
            // A copy pays if it is read often. It also pads an incomplete line.
            let whole = m <= FEW && panel.columns.len() == panel.stride;
            let x = match E::as_f32(x).filter(|_| whole) {
                Some(x) => (x, width),
                None => {
                    for (copy, x) in copy.chunks_exact_mut(panel.stride).zip(x.chunks(width)).take(rows) {
                        let (copy, fill) = copy.split_at_mut(panel.columns.len());
                        E::widen(&x[..panel.columns.len()], copy);
                        fill.fill(0.0);
                    }
                    (&copy[..], panel.stride)
                }
            };
            Arch::new().dispatch(Block { left, stride, x, next, panel, m, width, out: &mut *out });
        }
    }
}

/// One block of rows and one panel of columns of [`add_transposed_times`].
struct Block<'a, E> {
    /// Rows of `m` elements, `stride` apart.
    left: &'a [f32],
    stride: usize,
    /// The panel's columns, and the stride of their rows.
    x: (&'a [f32], usize),
    /// The columns of the next block, to be prefetched: a slice and an offset.
    next: (&'a [E], usize),
    panel: &'a Panel,
    m: usize,
    width: usize,
    out: &'a mut [f32],
}

impl<E: Element> WithSimd for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for first in (0..self.panel.stride).step_by(widest::<S>() * S::F32_LANES) {
            match (self.panel.stride - first) / S::F32_LANES {
                0 => {}
                1 => self.columns::<S, 12, 1>(simd, first),
                2 => self.columns::<S, 9, 2>(simd, first),
                _ if widest::<S>() == 2 => self.columns::<S, 6, 2>(simd, first),
                3 => self.columns::<S, 7, 3>(simd, first),
                _ => self.columns::<S, 6, 4>(simd, first),
            }
        }
    }
}

impl<E: Element> Block<'_, E> {
    #[inline(always)]
    fn columns<S: Simd, const M: usize, const V: usize>(&mut self, simd: S, first: usize) {
        let start = self.panel.columns.start + first;
        let columns = start..self.panel.columns.end.min(start + V * S::F32_LANES);
        if columns.is_empty() {
            return;
        }
        if self.m < M {
            for row in 0..self.m {
                self.tile::<S, 1, V>(simd, first, columns.clone(), row, 0);
            }
            return;
        }
        for row in (0..self.m).step_by(M) {
            // The last tile may cover rows that the tile before it has already added.
            let skip = (row + M).saturating_sub(self.m);
            self.tile::<S, M, V>(simd, first, columns.clone(), row - skip, skip);
        }
    }

    /// Adds to `M` rows of the result, from `row` on, but leaves out the first `skip`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: Range<usize>,
        row: usize,
        skip: usize,
    ) {
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        for row in row..row + M {
            columns.clone().step_by(LINE).for_each(|column| prefetch(self.out, row * self.width + column));
        }
        // Each tile prefetches its share of the next block, a few lines for each group of rows.
        let (tile, tiles) = ((row + skip) / M, self.m.div_ceil(M));
        let lines = BLOCK * (self.panel.stride / LINE);
        let mut lines = lines * tile / tiles..lines * (tile + 1) / tiles;
        let lines_of_group = lines.len().div_ceil(BLOCK / ROWS);
        let rows = self.left.len() / self.stride;
        for begin in (0..rows).step_by(ROWS) {
            for line in lines.by_ref().take(lines_of_group) {
                let (row, line) = (line % BLOCK, line / BLOCK);
                prefetch_early(self.next.0, self.next.1 + row * self.width + line * LINE);
            }
            let (left, x) = (&self.left[begin * self.stride + row..], &self.x.0[begin * self.x.1 + first..]);
            // The next block of the other operand is prefetched once, too.
            if self.panel.columns.start == 0 {
                (0..ROWS).for_each(|i| prefetch_early(left, (BLOCK + i) * self.stride));
            }
            for i in 0..ROWS.min(rows - begin) {
                let (left, x) = (left[i * self.stride..].first_chunk::<M>(), vectors::<S, V>(&x[i * self.x.1..]));
                let (Some(left), Some(x)) = (left, x) else { return };
                multiply_add(simd, &mut sums, *left, x);
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            if i >= skip {
                add(simd, &mut self.out[(row + i) * self.width..][columns.clone()], sums);
            }
        }
    }
}

/// Adds as many lanes as `out` has elements.
#[inline(always)]
fn add<S: Simd, const V: usize>(simd: S, out: &mut [f32], mut sums: [S::f32s; V]) {
    let (vectors, rest) = S::as_mut_simd_f32s(out);
    if let Some(vectors) = vectors.first_chunk_mut::<V>() {
        vectors.iter_mut().zip(sums).for_each(|(out, sum)| *out = simd.add_f32s(*out, sum));
        return;
    }
    for (&mut out, sum) in vectors.iter_mut().zip(&mut sums) {
        *sum = simd.add_f32s(out, *sum);
    }
    if let Some(sum) = sums.get_mut(vectors.len()) {
        *sum = simd.add_f32s(simd.partial_load_f32s(rest), *sum);
    }
    store(simd, out, sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `rows_times` and `add_transposed_times` with one kind of vectors, whatever the machine's best is.
    fn products(x: &[f32], small: &[f32], left: &[f32], [n, k, width]: [usize; 3], run: impl Run) -> [Vec<f32>; 2] {
        let packed = Packed::new(small, [k, width], [width, 1]).expect("there is memory");
        let mut out = vec![f32::NAN; n * width];
        // The product goes on where another one, of the first columns of `x`, ended.
        run.group(Group { x, packed: &packed, sum: Some(&vec![0.5; n * width]), out: &mut out });
        let mut sums = vec![1.0; k * width];
        for panel in &panels(width, 0) {
            let mut copy = vec![0.0; n * panel.stride];
            for (copy, row) in copy.chunks_exact_mut(panel.stride).zip(left.chunks_exact(width)) {
                copy[..panel.columns.len()].copy_from_slice(&row[panel.columns.clone()]);
            }
            let (x_rows, next) = ((&copy[..], panel.stride), (left, 0));
            run.block(Block { left: x, stride: k, x: x_rows, next, panel, m: k, width, out: &mut sums });
        }
        [out, sums]
    }

    trait Run: Copy {
        fn group(self, group: Group<'_>);
        fn block(self, block: Block<'_, f32>);
    }

    impl<S: Simd> Run for S {
        fn group(self, group: Group<'_>) {
            self.vectorize(group);
        }

        fn block(self, block: Block<'_, f32>) {
            self.vectorize(block);
        }
    }

    #[test]
    fn every_kind_of_vector_gives_the_sums_of_f64() {
        for width in [1, 3, 16, 17, 41, 48, 63, 64, 65, 100, 130] {
            for (n, k) in [(1, 1), (2, 3), (5, 16), (13, 17), (24, 40), (100, 7)] {
                let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0;
                let x: Vec<f32> = (0..n * k).map(value).collect();
                let small: Vec<f32> = (0..k * width).map(|i| value(i + 5)).collect();
                let left: Vec<f32> = (0..n * width).map(|i| value(i + 9)).collect();
                let sizes = [n, k, width];
                let mut all = vec![products(&x, &small, &left, sizes, pulp::Scalar)];
                #[cfg(target_arch = "x86_64")]
                {
                    all.extend(pulp::x86::V3::try_new().map(|v3| products(&x, &small, &left, sizes, v3)));
                    all.extend(pulp::x86::V4::try_new().map(|v4| products(&x, &small, &left, sizes, v4)));
                }
                for [out, sums] in all {
                    for (i, &got) in out.iter().enumerate() {
                        let (row, column) = (i / width, i % width);
                        let term = |j: usize| f64::from(x[row * k + j]) * f64::from(small[j * width + column]);
                        assert!((f64::from(got) - 0.5 - (0..k).map(term).sum::<f64>()).abs() < 1e-5, "{sizes:?} {i}");
                    }
                    for (i, &got) in sums.iter().enumerate() {
                        let (row, column) = (i / width, i % width);
                        let term = |v: usize| f64::from(x[v * k + row]) * f64::from(left[v * width + column]);
                        assert!((f64::from(got) - 1.0 - (0..n).map(term).sum::<f64>()).abs() < 2e-5, "{sizes:?} {i}");
                    }
                }
            }
        }
    }
}
