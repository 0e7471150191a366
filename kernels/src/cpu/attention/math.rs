//! Arithmetic of attention, in operations that vectorise.

use std::ops::{Add, Mul};

use crate::cpu::exp::ln_1p;

/// Added to a small integer, it puts the integer into the lowest bits of the sum.
const INTEGER: f32 = 12_582_912.0;

/// The smallest exponent of a normal number.
const LOWEST: f32 = -126.0;

/// Numbers that are computed together. The columns of a group of heads alternate, so lane `i` belongs to head `i % G` of
/// the group.
pub(super) const LANES: usize = 8;

/// Numbers that are computed together. Each operation is a loop of its own: in a loop over a longer expression, the compiler
/// may compute number by number.
#[derive(Clone, Copy)]
pub(super) struct Lanes(pub(super) [f32; LANES]);

impl Lanes {
    /// Returns the numbers of a row that is too short, and zeros.
    #[inline(always)]
    pub(super) fn padded(row: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes.iter_mut().zip(row).for_each(|(lane, x)| *lane = *x);
        Self(lanes)
    }

    /// Returns `above` where the number is above 0, and `other` elsewhere.
    #[inline(always)]
    pub(super) fn choose(self, above: Self, mut other: Self) -> Self {
        for lane in 0..LANES {
            other.0[lane] = if self.0[lane] > 0.0 { above.0[lane] } else { other.0[lane] };
        }
        other
    }
}

impl Add for Lanes {
    type Output = Self;

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] += other.0[lane];
        }
        self
    }
}

impl Mul for Lanes {
    type Output = Self;

    #[inline(always)]
    fn mul(mut self, other: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] *= other.0[lane];
        }
        self
    }
}

pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// Returns `2^whole` for an integer up to 127; 0 below -126. NaN gives any number.
#[inline(always)]
pub(super) fn power(whole: f32) -> f32 {
    let bits = (whole + INTEGER).to_bits() << 23;
    if whole < LOWEST { 0.0 } else { f32::from_bits(bits.wrapping_add(1.0f32.to_bits())) }
}

/// Returns `2^(x - shift)` for an integer `shift`, with a relative error of about 2e-7; 0
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

/// Returns `shift` plus the base-2 logarithm of a normal positive number, with an absolute error of about 4e-7 and one
/// rounding. `shift` is an integer. NaN stays NaN.
#[inline(always)]
pub(super) fn log2(x: f32, shift: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let fraction = f32::from_bits((bits & 0x007f_ffff) | 1.0f32.to_bits()) - 1.0;
    let log = (shift + exponent as f32) + ln_1p(fraction) * LOG2_E;
    if x.is_nan() { x } else { log }
}

#[inline(always)]
pub(super) fn leaky(slope: f32, x: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

/// Returns, for each head of a group, the sum over its columns of `term` of the rows' numbers. All rows have the same
/// length. Columns are added in an order that depends on their number alone.
#[inline(always)]
pub(super) fn head_sums<const G: usize, const N: usize>(rows: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> [f32; G] {
    const WIDE: usize = 4 * LANES;
    let len = rows[0].len();
    let mut sums = [[0.0f32; LANES]; 4];
    let mut first = 0;
    while first + WIDE <= len {
        let blocks = rows.map(|row| &row[first..first + WIDE]);
        for (part, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += term(blocks.map(|block| block[part * LANES + i]));
            }
        }
        first += WIDE;
    }
    let mut lanes = [0.0f32; LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    }
    while first + LANES <= len {
        let blocks = rows.map(|row| &row[first..first + LANES]);
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += term(blocks.map(|block| block[i]));
        }
        first += LANES;
    }
    for i in first..len {
        lanes[i - first] += term(rows.map(|row| row[i]));
    }
    fold(lanes)
}

/// Adds the lanes of each head of a group.
#[inline(always)]
pub(super) fn fold<const G: usize>(lanes: [f32; LANES]) -> [f32; G] {
    let mut half = LANES / 2;
    let mut lanes = lanes;
    while half >= G {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    std::array::from_fn(|head| lanes[head])
}

/// Returns the numbers of a group's heads, for each lane.
#[inline(always)]
pub(super) fn spread<const G: usize>(heads: &[f32]) -> [f32; LANES] {
    let heads = &heads[..G];
    std::array::from_fn(|i| heads[i % G])
}

/// Writes the numbers of a group's heads again and again.
#[inline(always)]
pub(super) fn repeat<const G: usize>(heads: &[f32], cells: &mut [f32]) {
    let lanes = spread::<G>(heads);
    for cells in cells.chunks_mut(LANES) {
        match cells.first_chunk_mut::<LANES>() {
            Some(cells) => *cells = lanes,
            None => cells.copy_from_slice(&lanes[..cells.len()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{exp2, head_sums, log2};

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
            let got = log2(x, 0.0);
            assert!((f64::from(got) - want).abs() <= 1e-6 * (1.0 + want.abs()), "log2({x}) = {got}");
            assert_eq!(log2(x * 16.0, -4.0), got);
        }
        assert!(log2(f32::NAN, 0.0).is_nan());
    }

    #[test]
    fn sums_of_heads_take_every_column_once() {
        for len in (0..100).map(|columns| 4 * columns) {
            let x: Vec<f32> = (0..len).map(|i| (i * i % 17) as f32).collect();
            let want: Vec<f32> = (0..4).map(|head| x.iter().skip(head).step_by(4).sum()).collect();
            assert_eq!(head_sums::<4, 1>([&x], |[x]| x).to_vec(), want);
            let all: f32 = x.iter().sum();
            assert_eq!(head_sums::<1, 1>([&x], |[x]| x), [all]);
        }
    }
}
