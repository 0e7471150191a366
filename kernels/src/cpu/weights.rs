//! The edge weights of a gather.

use std::ops::Range;

use pulp::Simd;

use super::prefetch::prefetch;

/// One weight per edge, or none. The choice is made at compile time, so that the inner loop has no branch for it.
pub(super) trait Weights: Copy {
    /// Returns the weights of some edges.
    fn of(self, edges: Range<usize>) -> Self;

    /// Loads the cache line with the weight of `edge`.
    fn prefetch(self, edge: usize);

    /// Adds the weight of `edge` times `x` to `acc`.
    fn accumulate<S: Simd>(self, simd: S, edge: usize, acc: &mut [S::f32s], x: &[S::f32s]);

    /// Does the same for a few numbers.
    fn accumulate_few(self, edge: usize, acc: &mut [f32], x: &[f32]);
}

#[derive(Clone, Copy)]
pub(super) struct Unweighted;

impl Weights for Unweighted {
    #[inline(always)]
    fn of(self, _edges: Range<usize>) -> Self {
        self
    }

    #[inline(always)]
    fn prefetch(self, _edge: usize) {}

    #[inline(always)]
    fn accumulate<S: Simd>(self, simd: S, _edge: usize, acc: &mut [S::f32s], x: &[S::f32s]) {
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = simd.add_f32s(*acc, x);
        }
    }

    #[inline(always)]
    fn accumulate_few(self, _edge: usize, acc: &mut [f32], x: &[f32]) {
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += x);
    }
}

#[derive(Clone, Copy)]
pub(super) struct Weighted<'a>(pub(super) &'a [f32]);

impl Weights for Weighted<'_> {
    #[inline(always)]
    fn of(self, edges: Range<usize>) -> Self {
        Self(&self.0[edges])
    }

    #[inline(always)]
    fn prefetch(self, edge: usize) {
        prefetch(self.0, edge);
    }

    #[inline(always)]
    fn accumulate<S: Simd>(self, simd: S, edge: usize, acc: &mut [S::f32s], x: &[S::f32s]) {
        let factor = simd.splat_f32s(self.0[edge]);
        for (acc, &x) in acc.iter_mut().zip(x) {
            *acc = simd.add_f32s(*acc, simd.mul_f32s(factor, x));
        }
    }

    #[inline(always)]
    fn accumulate_few(self, edge: usize, acc: &mut [f32], x: &[f32]) {
        let factor = self.0[edge];
        acc.iter_mut().zip(x).for_each(|(acc, x)| *acc += factor * x);
    }
}
