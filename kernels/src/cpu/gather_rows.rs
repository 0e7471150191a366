//! The row loop of a gather, on one thread.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::element::Element;
use super::near::edges_of;
use super::row_sum::{Columns, Few, Tiles, Vectors, Whole, WholeVectors};
use super::sources::{CALL, Pass, Start, bad_row, bad_source};
use super::weights::Weights;
use crate::error::Result;

/// One task: consecutive rows and their part of the output. `TILED` says whether the sources are in several matrices.
pub(super) struct Rows<'a, E, W, const TILED: bool> {
    pub(super) pass: &'a Pass<'a, E>,
    pub(super) weights: W,
    pub(super) rows: Range<usize>,
    /// Whether no rows before have prefetched the first sources.
    pub(super) begins: bool,
    /// All columns of the rows.
    pub(super) out: &'a mut [f32],
}

impl<E: Element, W: Weights, const TILED: bool> Rows<'_, E, W, TILED> {
    pub(super) fn run(self) -> Result<()> {
        Arch::new().dispatch(self)
    }
}

impl<E: Element, W: Weights, const TILED: bool> WithSimd for Rows<'_, E, W, TILED> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let (sources, columns) = (self.pass.sources, self.pass.columns.len());
        // Rows can have few edges, so everything that is the same for all rows is decided before the loop.
        let cells = sources.own;
        let parts = (columns / S::F32_LANES, columns % S::F32_LANES);
        // Processors without vectors are rare, so little is compiled for them.
        if const { S::F32_LANES == 1 } {
            return match columns {
                1 => self.each_row(simd, Vectors::<1, false>),
                2 => self.each_row(simd, Vectors::<2, false>),
                _ => self.each_row(simd, Tiles),
            };
        }
        if const { !TILED } && columns == sources.d {
            if const { !E::ROUNDS }
                && let Some(cells) = E::as_f32(cells)
            {
                let vectors = S::as_simd_f32s(cells).0;
                match parts {
                    (1, 0) => return self.each_row(simd, WholeVectors(Whole::<_, 1>::new(sources, vectors))),
                    (2, 0) => return self.each_row(simd, WholeVectors(Whole::<_, 2>::new(sources, vectors))),
                    (3, 0) => return self.each_row(simd, WholeVectors(Whole::<_, 3>::new(sources, vectors))),
                    (4, 0) => return self.each_row(simd, WholeVectors(Whole::<_, 4>::new(sources, vectors))),
                    (8, 0) => return self.each_row(simd, WholeVectors(Whole::<_, 8>::new(sources, vectors))),
                    _ => {}
                }
            }
            match parts {
                (0, 1) => return self.each_row(simd, Whole::<E, 1>::new(sources, cells)),
                (0, 2) => return self.each_row(simd, Whole::<E, 2>::new(sources, cells)),
                (0, 3) => return self.each_row(simd, Whole::<E, 3>::new(sources, cells)),
                (0, 4) => return self.each_row(simd, Whole::<E, 4>::new(sources, cells)),
                _ => {}
            }
        }
        match parts {
            (0, 1) => self.each_row(simd, Few::<1>),
            (0, 2) => self.each_row(simd, Few::<2>),
            (0, 3) => self.each_row(simd, Few::<3>),
            (0, 4) => self.each_row(simd, Few::<4>),
            (0, _) => self.each_row(simd, Vectors::<0, true>),
            (1, 0) => self.each_row(simd, Vectors::<1, false>),
            (1, _) => self.each_row(simd, Vectors::<1, true>),
            (2, 0) => self.each_row(simd, Vectors::<2, false>),
            (2, _) => self.each_row(simd, Vectors::<2, true>),
            (4, 0) => self.each_row(simd, Vectors::<4, false>),
            _ => self.each_row(simd, Tiles),
        }
    }
}

impl<E: Element, W: Weights, const TILED: bool> Rows<'_, E, W, TILED> {
    /// Sums each row with the method of `columns_of`.
    #[inline(always)]
    fn each_row<S: Simd>(self, simd: S, columns_of: impl Columns<S, E>) -> Result<()> {
        let Self { pass: &Pass { sources, ref columns, start, d, .. }, weights, rows, begins, out } = self;
        let fresh = matches!(start, Start::Zero);
        if begins && let Some(edges) = edges_of(sources.block, rows.start) {
            sources.begin::<TILED>(edges.start, columns.len());
        }
        for (v, out) in rows.zip(out.chunks_exact_mut(d)) {
            let edges = edges_of(sources.block, v).ok_or_else(|| bad_row(CALL, sources.block, v))?;
            let out = &mut out[columns.clone()];
            if let Start::Sum(sum) = start {
                out.copy_from_slice(&sum.row(v)[columns.clone()]);
            }
            if columns_of.sum::<W, TILED>(simd, sources, weights, edges.clone(), (0, fresh), out).is_none() {
                return Err(bad_source(sources.block, edges));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::{Cuts, Sources};
    use super::super::weights::{Unweighted, Weighted};
    use super::*;
    use crate::BlockView;

    /// Gathers rows of `d` columns, with the vectors of this processor or with none.
    fn gathered(d: usize, weights: Option<&[f32]>, vectors: bool) -> Vec<f32> {
        let (indptr, indices) = ([0u64, 3, 3, 7], [0u32, 2, 4, 1, 2, 3, 4]);
        let block = BlockView { indptr: &indptr, indices: &indices, own_sources: 5, halo_sources: 0 };
        let own: Vec<f32> = (0..5 * d).map(|i| (i as f32 * 0.37).sin()).collect();
        let sources = Sources { block, own: &own, tiles: None, d };
        let pass = Pass { sources, cuts: Cuts::All, weights, columns: 0..d, start: Start::Zero, d };
        let mut out = vec![f32::NAN; 3 * d];
        fn of<W: Weights>(pass: &Pass<'_, f32>, weights: W, vectors: bool, out: &mut [f32]) -> Result<()> {
            let rows = Rows::<_, _, false> { pass, weights, rows: 0..3, begins: true, out };
            if vectors { rows.run() } else { rows.with_simd(pulp::Scalar::new()) }
        }
        match weights {
            Some(weights) => of(&pass, Weighted(weights), vectors, &mut out),
            None => of(&pass, Unweighted, vectors, &mut out),
        }
        .expect("the block is valid");
        out
    }

    #[test]
    fn a_processor_without_vectors_has_the_same_bits() {
        let weights: Vec<f32> = (0..7).map(|edge| 0.5 + edge as f32).collect();
        for d in 1..70 {
            for weights in [None, Some(&weights[..])] {
                assert_eq!(gathered(d, weights, false), gathered(d, weights, true), "{d} columns, {weights:?}");
            }
        }
    }
}
