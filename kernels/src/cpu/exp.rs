//! The exponential and the logarithm of the losses, in operations that vectorise.

/// Returns `e^x` for `x <= 0` with a relative error of about 2e-7, as `2^k * e^r` with `|r| <= ln 2 / 2` and a Taylor
/// polynomial for `e^r`. Below -87 it returns `e^-87`, which is negligible beside 1. NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    /// Adding this constant puts the nearest integer into the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the product of the first part with a small integer is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < LOWEST { LOWEST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = x - k * LN_2[0] - k * LN_2[1];
    let series =
        1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    series * power
}

/// Returns `ln(1 + x)` for `x` in `[0, 1]` with a relative error of about 3e-7, as `2 artanh(x / (2 + x))`. Each term
/// of the series is at least 9 times smaller than the one before. NaN stays NaN.
#[inline(always)]
pub(super) fn ln_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let q = s * s;
    let series = q * (1.0 / 9.0 + q * (1.0 / 11.0 + q * (1.0 / 13.0 + q * (1.0 / 15.0))));
    2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + series))))
}

#[cfg(test)]
mod tests {
    use super::{exp, ln_1p};

    #[test]
    fn exp_is_exp() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 3e-7 * want, "exp({x}) = {}, not {want}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn ln_1p_is_ln_1p() {
        let tiny = (0..=87_000).map(|i| exp(-(i as f32) * 1e-3));
        for x in (0..=1_000_000).map(|i| i as f32 * 1e-6).chain(tiny) {
            let want = f64::from(x).ln_1p();
            assert!((f64::from(ln_1p(x)) - want).abs() <= 3e-7 * want, "ln_1p({x}) = {}, not {want}", ln_1p(x));
        }
        assert!(ln_1p(f32::NAN).is_nan());
    }
}
