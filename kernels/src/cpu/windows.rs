//! Gathers over edges that are stored window by window (`edge_windows.rs`). They run in passes, as in `passes.rs`: each copies
//! some columns of one window (`window_rows.rs`) and adds their share to every row. The sources of a row ascend, so the windows
//! in turn give the order of the block.
//!
//! Weights stay in the order of the block. Those of a row and a window are consecutive there, so each row counts how many edges
//! it has added.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::edge_windows::{EdgeWindows, columns_of_pass};
use super::element::Element;
use super::parallel::{for_rows, split_at_ends};
use super::prefetch::prefetch;
use super::rows::{RowWork, Steps};
use super::sources::{CALL, LINE};
use super::weights::{Unweighted, Weighted, Weights};
use super::window_rows::WindowNumber;
use crate::error::{Result, check_shape};
use crate::memory::zeroed;
use crate::team::for_each;
use crate::view::{MatMut, MatView};

/// Most vector registers for sums.
const TILE: usize = 8;

/// Rows ahead for which sums and weights are prefetched.
const ROWS_AHEAD: usize = 4;

/// Most bytes of sums that are kept in f32 before they are rounded.
const SUM_BYTES: usize = 16 << 20;

/// Edge weights per cache line.
const WEIGHTS_OF_LINE: usize = 16;

impl EdgeWindows {
    /// Sums over in-neighbours as [`super::gather_then`] does over the block.
    ///
    /// # Shapes
    /// Those of [`super::gather_then`] for the block that was stored.
    /// # Cost
    /// `e * d` additions; the edges are read once per 64 columns, and the sums once per window. It allocates 1 MiB, and with
    /// weights 4 bytes per row.
    /// # Errors
    /// As in [`super::gather_then`].
    /// # Order
    /// The same bits as [`super::gather_then`].
    pub fn gather_then(
        &self,
        weights: Option<&[f32]>,
        own: MatView<'_>,
        steps: &[RowWork<'_>],
        out: MatMut<'_>,
    ) -> Result<()> {
        self.gather_then_as(weights, own, steps, out)
    }

    /// Does [`EdgeWindows::gather_then`] for sources and a result of any types. A result that is rounded takes 16 MiB of sums in
    /// f32 besides.
    pub(super) fn gather_then_as<E: WindowNumber, O: Element>(
        &self,
        weights: Option<&[f32]>,
        own: MatView<'_, E>,
        steps: &[RowWork<'_>],
        mut out: MatMut<'_, O>,
    ) -> Result<()> {
        let (n, d) = (self.rows, out.cols());
        check_shape(CALL, "own", [self.sources, d], [own.rows(), own.cols()])?;
        check_shape(CALL, "out", [n, d], [out.rows(), d])?;
        if let Some(weights) = weights {
            check_shape(CALL, "weights", [self.ids().len(), 1], [weights.len(), 1])?;
        }
        let steps = Steps::new(CALL, steps, n, d)?;
        if n == 0 || d == 0 {
            return Ok(());
        }
        let columns = columns_of_pass(self.step, d);
        let width = E::cells(columns);
        let mut copy = zeroed(size_of::<E::Cell>() * self.step * width)?;
        let mut edges = weights.map(|_| vec![0; n]);
        let rows_of_group = if O::ROUNDS { (SUM_BYTES / 4 / d).max(1) } else { n };
        let mut sums = zeroed(if O::ROUNDS { 4 * d * self.most_rows(rows_of_group) } else { 0 })?;
        let mut out = out.data();
        for tasks in self.groups(rows_of_group) {
            let rows = tasks[0].start..tasks[tasks.len() - 1].end;
            let (here, rest) = std::mem::take(&mut out).split_at_mut(rows.len() * d);
            out = rest;
            let to = match O::as_f32_mut(here) {
                Some(here) => here,
                None => &mut sums.as_mut_slice::<f32>()[..rows.len() * d],
            };
            for column in (0..d).step_by(columns) {
                let columns = column..(column + columns).min(d);
                if let Some(edges) = &mut edges {
                    edges[rows.clone()].copy_from_slice(&self.starts()[rows.clone()]);
                }
                for window in 0..self.sources.div_ceil(self.step) {
                    let sources = window * self.step..((window + 1) * self.step).min(self.sources);
                    let last = columns.end == d && sources.end == self.sources;
                    E::copy(own.data(), d, sources, columns.clone(), copy.as_mut_slice(), width);
                    let pass =
                        Pass::<E> { windows: self, window, cells: copy.as_slice(), width, columns: columns.clone(), d };
                    let edges = edges.as_mut().map(|edges| &mut edges[rows.clone()]);
                    pass.run(tasks, weights.zip(edges), Some(&steps).filter(|_| last), to);
                }
            }
            if O::ROUNDS {
                let sums = &sums.as_slice::<f32>()[..rows.len() * d];
                for_rows(here, d, |first, here| O::round(&sums[first * d..][..here.len()], here));
            }
        }
        Ok(())
    }
}

/// One pass: some columns of the sources of a window.
struct Pass<'a, E: WindowNumber> {
    windows: &'a EdgeWindows,
    window: usize,
    /// The columns of the window's sources, in rows of `width`.
    cells: &'a [E::Cell],
    width: usize,
    columns: Range<usize>,
    /// Number of columns of the output.
    d: usize,
}

impl<E: WindowNumber> Pass<'_, E> {
    /// Adds the pass to the rows of some tasks, `out`. `weights` are those of all edges, with the next edge of each of the rows.
    /// The steps follow the last pass.
    fn run(
        &self,
        tasks: &[Range<usize>],
        weights: Option<(&[f32], &mut [u32])>,
        steps: Option<&Steps<'_>>,
        out: &mut [f32],
    ) {
        let (d, begin) = (self.d, tasks[0].start);
        let parts = split_at_ends(out, tasks.iter().map(|rows| (rows.end - begin) * d));
        let (weights, edges) = weights.unzip();
        let edges = split_at_ends(edges.unwrap_or_default(), tasks.iter().map(|rows| rows.end - begin));
        for_each(tasks.iter().zip(parts).zip(edges), |((rows, out), mut edges)| {
            let group = steps.map_or(rows.len(), Steps::group::<f32>).max(1);
            for (first, out) in rows.clone().step_by(group).zip(out.chunks_mut(group * d)) {
                match weights {
                    None => Arch::new().dispatch(Rows {
                        pass: self,
                        first,
                        weights: Unweighted,
                        edges: &mut [],
                        out: &mut *out,
                    }),
                    Some(weights) => {
                        let (here, rest) = std::mem::take(&mut edges).split_at_mut(out.len() / d);
                        edges = rest;
                        Arch::new().dispatch(Rows {
                            pass: self,
                            first,
                            weights: Weighted(weights),
                            edges: here,
                            out: &mut *out,
                        });
                    }
                }
                steps.iter().for_each(|steps| steps.apply(first, out));
            }
        });
    }
}

/// Consecutive rows of a pass, from row `first` on, and their part of the output.
struct Rows<'a, E: WindowNumber, W: Weights> {
    pass: &'a Pass<'a, E>,
    first: usize,
    weights: W,
    /// The next edge of each row, if edges have weights.
    edges: &'a mut [u32],
    out: &'a mut [f32],
}

impl<E: WindowNumber, W: Weights> WithSimd for Rows<'_, E, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Pass { width, ref columns, .. } = *self.pass;
        let vectors = columns.len().div_ceil(S::F32_LANES);
        for tile in (0..vectors).step_by(TILE) {
            let from = tile * S::F32_LANES;
            let whole = tile == 0 && E::fill(vectors * S::F32_LANES, width);
            match vectors - tile {
                1 if whole => self.each::<S, 1, true>(simd, from),
                2 if whole => self.each::<S, 2, true>(simd, from),
                3 if whole => self.each::<S, 3, true>(simd, from),
                4 if whole => self.each::<S, 4, true>(simd, from),
                1 => self.each::<S, 1, false>(simd, from),
                2 => self.each::<S, 2, false>(simd, from),
                3 => self.each::<S, 3, false>(simd, from),
                4 => self.each::<S, 4, false>(simd, from),
                5 => self.each::<S, 5, false>(simd, from),
                6 => self.each::<S, 6, false>(simd, from),
                7 => self.each::<S, 7, false>(simd, from),
                _ => self.each::<S, TILE, false>(simd, from),
            }
        }
        let firsts = self.pass.windows.places(self.pass.window, self.first, self.out.len() / self.pass.d);
        self.edges.iter_mut().zip(firsts.windows(2)).for_each(|(edge, ends)| *edge += ends[1] - ends[0]);
    }
}

impl<E: WindowNumber, W: Weights> Rows<'_, E, W> {
    /// Adds to at most `N` vectors of each row, of which the first begins at column `from` of the pass. `WHOLE` says that copied
    /// rows have no other vectors.
    #[inline(always)]
    fn each<S: Simd, const N: usize, const WHOLE: bool>(&mut self, simd: S, from: usize) {
        let Pass { windows, window, cells, width, ref columns, d } = *self.pass;
        let (count, fresh) = (self.out.len() / d, window == 0);
        let firsts = windows.places(window, self.first, count);
        let ids = windows.ids();
        let tile = columns.start + from..columns.end.min(columns.start + from + N * S::F32_LANES);
        for i in 0..count {
            for cell in tile.clone().step_by(LINE) {
                prefetch(self.out, (i + ROWS_AHEAD) * d + cell);
            }
            if let (Some(&edge), Some(ends)) = (self.edges.get(i + ROWS_AHEAD), firsts.get(i + ROWS_AHEAD..)) {
                let weights = edge as usize..edge as usize + (ends[1] - ends[0]) as usize;
                weights.step_by(WEIGHTS_OF_LINE).for_each(|edge| self.weights.prefetch(edge));
            }
            let Some(ids) = ids.get(firsts[i] as usize..firsts[i + 1] as usize) else { continue };
            if ids.is_empty() && !fresh {
                continue;
            }
            let edge = self.edges.get(i).map_or(0, |&edge| edge as usize);
            let weights = self.weights.of(edge..edge + ids.len());
            let out = &mut self.out[i * d..][tile.clone()];
            let mut sums = if fresh { [simd.splat_f32s(0.0); N] } else { load(simd, out) };
            for (edge, &u) in ids.iter().enumerate() {
                let u = usize::from(u);
                let x = if WHOLE {
                    E::whole::<S, N>(simd, cells, u)
                } else {
                    E::part::<S, N>(simd, cells, u * width, from)
                };
                let Some(x) = x else { break };
                weights.accumulate(simd, edge, &mut sums, &x);
            }
            store(simd, out, &sums);
        }
    }
}

/// Reads at most `N` vectors, of which the last may be a part.
#[inline(always)]
fn load<S: Simd, const N: usize>(simd: S, from: &[f32]) -> [S::f32s; N] {
    if let Some(vectors) = S::as_simd_f32s(from).0.first_chunk::<N>() {
        return *vectors;
    }
    let mut vectors = [simd.splat_f32s(0.0); N];
    vectors.iter_mut().zip(from.chunks(S::F32_LANES)).for_each(|(to, from)| *to = simd.partial_load_f32s(from));
    vectors
}

/// Writes what [`load`] reads.
#[inline(always)]
fn store<S: Simd, const N: usize>(simd: S, to: &mut [f32], vectors: &[S::f32s; N]) {
    if let Some(all) = S::as_mut_simd_f32s(to).0.first_chunk_mut::<N>() {
        *all = *vectors;
        return;
    }
    to.chunks_mut(S::F32_LANES).zip(vectors).for_each(|(to, &from)| simd.partial_store_f32s(to, from));
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::view::BlockView;

    const ROWS: usize = 300;
    const SOURCES: usize = 9000;

    /// Returns rows of every length below 7,200.
    fn block() -> (Vec<u64>, Vec<u32>) {
        let rows = (0..ROWS).map(|v| (0..v * 24).map(move |i| ((i * 5 + v) % SOURCES) as u32).collect());
        let mut rows: Vec<Vec<u32>> = rows.collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        let mut indptr = vec![0];
        rows.iter().for_each(|row| indptr.push(indptr[indptr.len() - 1] + row.len() as u64));
        (indptr, rows.concat())
    }

    fn value(i: usize) -> f32 {
        ((i * 37 + 11) % 101) as f32 / 64.0 - 0.75
    }

    /// Gathers `d` columns with one kind of vectors, whatever the machine's best is.
    fn gather<S: Simd, E: WindowNumber>(
        simd: S,
        windows: &EdgeWindows,
        weights: Option<&[f32]>,
        x: &[E],
        d: usize,
    ) -> Vec<f32> {
        let columns = columns_of_pass(windows.step, d);
        let width = E::cells(columns);
        let mut copy = zeroed(size_of::<E::Cell>() * windows.step * width).expect("there is memory");
        let mut out = vec![f32::NAN; ROWS * d];
        for column in (0..d).step_by(columns) {
            let columns = column..(column + columns).min(d);
            let mut edges = windows.starts().to_vec();
            for window in 0..SOURCES.div_ceil(windows.step) {
                let sources = window * windows.step..((window + 1) * windows.step).min(SOURCES);
                E::copy(x, d, sources, columns.clone(), copy.as_mut_slice(), width);
                let columns = columns.clone();
                let pass = &Pass::<E> { windows, window, cells: copy.as_slice(), width, columns, d };
                match weights.map(Weighted) {
                    Some(weights) => {
                        simd.vectorize(Rows { pass, first: 0, weights, edges: &mut edges, out: &mut out });
                    }
                    None => {
                        simd.vectorize(Rows { pass, first: 0, weights: Unweighted, edges: &mut [], out: &mut out });
                    }
                }
            }
        }
        out
    }

    fn every_kind_of_vector<E: WindowNumber>(number: impl Fn(usize) -> E) {
        let (indptr, indices) = block();
        let view = BlockView { indptr: &indptr, indices: &indices, own_sources: SOURCES, halo_sources: 0 };
        let windows = EdgeWindows::new(view).expect("the block is valid").expect("its rows are long");
        let weights: Vec<f32> = (0..indices.len()).map(|edge| value(edge * 3)).collect();
        for d in [1, 8, 16, 24, 31, 32, 41, 48, 64, 70] {
            let x: Vec<E> = (0..SOURCES * d).map(&number).collect();
            for weights in [None, Some(&weights[..])] {
                let term = |edge: usize, column: usize| {
                    let x = x[indices[edge] as usize * d + column].wide();
                    weights.map_or(x, |weights| weights[edge] * x)
                };
                let cell = |i: usize| view.edges(i / d).fold(0.0, |sum, edge| sum + term(edge, i % d));
                let want: Vec<u32> = (0..ROWS * d).map(|i| cell(i).to_bits()).collect();
                let mut all = vec![gather(pulp::Scalar, &windows, weights, &x, d)];
                #[cfg(target_arch = "x86_64")]
                {
                    all.extend(pulp::x86::V3::try_new().map(|v3| gather(v3, &windows, weights, &x, d)));
                    all.extend(pulp::x86::V4::try_new().map(|v4| gather(v4, &windows, weights, &x, d)));
                }
                for got in all {
                    assert!(got.iter().map(|cell| cell.to_bits()).eq(want.iter().copied()), "{d} columns");
                }
            }
        }
    }

    #[test]
    fn every_kind_of_vector_gives_the_same_bits() {
        every_kind_of_vector(value);
    }

    #[test]
    fn every_kind_of_vector_gives_the_same_bits_of_bf16() {
        every_kind_of_vector(|i| bf16::from_f32(value(i)));
    }
}
