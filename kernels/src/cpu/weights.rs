//! The edge weights of a gather.

use pulp::Simd;

use super::prefetch::prefetch;
use super::sources::LINE;

/// One weight per edge, or none. The choice is made at compile time, so that the inner loop has no branch for it.
pub(super) trait Weights: Copy {
    /// Adds the weight of `edge` times `x` to `acc`.
    fn accumulate<S: Simd>(self, simd: S, edge: usize, acc: &mut [S::f32s], x: &[S::f32s]);

    /// Does the same for a few numbers.
    fn accumulate_few(self, edge: usize, acc: &mut [f32], x: &[f32]);

    /// Prefetches the weights of `count` edges.
    fn prefetch(self, edge: usize, count: usize);
}

#[derive(Clone, Copy)]
pub(super) struct Unweighted;

impl Weights for Unweighted {
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

    #[inline(always)]
    fn prefetch(self, _edge: usize, _count: usize) {}
}

#[derive(Clone, Copy)]
pub(super) struct Weighted<'a>(pub(super) &'a [f32]);

impl Weights for Weighted<'_> {
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

    #[inline(always)]
    fn prefetch(self, edge: usize, count: usize) {
        // The weights may start inside a cache line.
        (edge..=edge + count).step_by(LINE).for_each(|edge| prefetch(self.0, edge));
    }
}
