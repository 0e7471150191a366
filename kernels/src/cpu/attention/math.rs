//! Arithmetic of attention, in operations that vectorise.

use crate::cpu::exp::ln_1p;

/// Added to a small integer, it puts the integer into the lowest bits of the sum.
const INTEGER: f32 = 12_582_912.0;

/// The smallest exponent of a normal number.
const LOWEST: f32 = -126.0;

/// Number of heads and columns of a head. 0 stands for a number that is not known at compile time.
#[derive(Clone, Copy)]
pub(super) struct Shape<const K: usize, const C: usize> {
    pub(super) heads: usize,
    pub(super) width: usize,
}

impl<const K: usize, const C: usize> Shape<K, C> {
    #[inline(always)]
    pub(super) fn heads(self) -> usize {
        if K > 0 { K } else { self.heads }
    }

    #[inline(always)]
    pub(super) fn width(self) -> usize {
        if C > 0 { C } else { self.width }
    }

    /// Returns the columns of a head.
    #[inline(always)]
    pub(super) fn columns(self, head: usize) -> std::ops::Range<usize> {
        head * self.width()..(head + 1) * self.width()
    }
}

/// Returns `2^whole` for an integer up to 127; 0 below -126. NaN gives any number.
#[inline(always)]
pub(super) fn power(whole: f32) -> f32 {
    let bits = (whole + INTEGER).to_bits() << 23;
    if whole < LOWEST { 0.0 } else { f32::from_bits(bits.wrapping_add(1.0f32.to_bits())) }
}

/// Returns `2^(x - shift)` for an integer `shift` that is at least `x` rounded, with a relative error of about 2e-7; 0
/// below `2^-126`. NaN stays NaN.
///
/// The fraction of `x` alone decides the digits. So a result for one shift, multiplied by a power of two, has the same
/// bits as the result for another shift, as long as both are normal numbers.
#[inline(always)]
pub(super) fn exp2(x: f32, shift: f32) -> f32 {
    let whole = x.round_ties_even();
    let r = (x - whole) * std::f32::consts::LN_2;
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    let whole = whole - shift;
    if whole < LOWEST { 0.0 } else { series * power(whole) }
}

/// Returns the base-2 logarithm of a normal positive number, with an absolute error of about 4e-7. NaN stays NaN.
#[inline(always)]
pub(super) fn log2(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let fraction = f32::from_bits((bits & 0x007f_ffff) | 1.0f32.to_bits()) - 1.0;
    let log = exponent as f32 + ln_1p(fraction) * std::f32::consts::LOG2_E;
    if x.is_nan() { x } else { log }
}

/// Returns the sum of `term(i)` for `i < len`. Eight sums run side by side and are added pairwise, so the order depends
/// on `len` alone.
#[inline(always)]
pub(super) fn sum_of(len: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    let whole = len / 8 * 8;
    let mut first = 0;
    while first < whole {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += term(first + i);
        }
        first += 8;
    }
    for i in whole..len {
        lanes[i - whole] += term(i);
    }
    let pairs = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

/// Returns the dot product of two slices of the same length.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    sum_of(a.len(), |i| a[i] * b[i])
}

#[inline(always)]
pub(super) fn leaky(slope: f32, x: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

#[cfg(test)]
mod tests {
    use super::{exp2, log2};

    #[test]
    fn exp2_is_exp2_and_a_shift_changes_no_digit() {
        for i in -1_000_000..=1_000_000 {
            let x = i as f32 * 1e-4;
            let shift = x.round_ties_even().max(0.0);
            let want = (f64::from(x) - f64::from(shift)).exp2();
            let got = exp2(x, shift);
            assert!((f64::from(got) - want).abs() <= 3e-7 * want, "2^({x} - {shift}) = {got}, not {want}");
            assert_eq!(exp2(x, shift + 7.0) * 128.0, got);
        }
        assert_eq!(exp2(-200.0, 0.0), 0.0);
        assert_eq!(exp2(f32::NEG_INFINITY, 3.0), 0.0);
        assert!(exp2(f32::NAN, 0.0).is_nan() && exp2(f32::INFINITY, f32::INFINITY).is_nan());
    }

    #[test]
    fn log2_is_log2() {
        for i in 1..1_000_000 {
            let x = i as f32 * 1.7e-3;
            let want = f64::from(x).log2();
            assert!((f64::from(log2(x)) - want).abs() <= 1e-6 * (1.0 + want.abs()), "log2({x}) = {}", log2(x));
        }
        assert!(log2(f32::NAN).is_nan());
    }
}
