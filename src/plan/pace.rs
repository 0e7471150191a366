//! The pace of a machine: how fast its cores are now, beside when they were measured.
//!
//! A virtual machine's cores may be near each other in one hour and far apart in the next, and share their caches and their
//! memory with others. A laptop gets hot. Short calls, which wait for other cores, then slow down by another factor than
//! long ones.

use serde::Serialize;

/// Calls of fewer seconds are short.
const SHORT_S: f64 = 1e-4;

/// A machine is taken to be as fast as ever if it seems faster or slower by at most this factor: so much is noise.
const NOISE: f64 = 1.15;

/// Most that a pace tells, as a factor.
const MOST: f64 = 4.0;

/// How many times as long calls take now as when they were measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pace {
    /// Calls below a tenth of a millisecond.
    pub short: f64,
    /// Longer ones.
    pub long: f64,
}

impl Default for Pace {
    /// As fast as when the calls were measured.
    fn default() -> Self {
        Self { short: 1.0, long: 1.0 }
    }
}

impl Pace {
    /// Compares the seconds of calls: then and now.
    pub(crate) fn of(calls: impl Iterator<Item = [f64; 2]> + Clone) -> Self {
        let ratio = |is_short: bool| {
            let alike = calls.clone().filter(|[then, _]| (*then < SHORT_S) == is_short);
            let [then, now] = alike.fold([0.0, 0.0], |[a, b], [then, now]| [a + then, b + now]);
            let ratio: f64 = if then > 0.0 && now > 0.0 { now / then } else { 1.0 };
            if (1.0 / NOISE..NOISE).contains(&ratio) { 1.0 } else { ratio.clamp(1.0 / MOST, MOST) }
        };
        Self { short: ratio(true), long: ratio(false) }
    }

    /// Whether the cores are faster or slower than they were.
    pub(crate) fn is_other(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the seconds that a call takes now.
    pub(crate) fn now(&self, then_s: f64) -> f64 {
        then_s * if then_s < SHORT_S { self.short } else { self.long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_calls_have_a_pace_each() {
        let calls = [[1e-5, 3e-5], [3e-5, 5e-5], [1e-3, 1.3e-3], [3e-3, 3.9e-3]];
        let pace = Pace::of(calls.into_iter());
        assert!((pace.short - 2.0).abs() < 1e-9 && (pace.long - 1.3).abs() < 1e-9, "{pace:?}");
        assert!((pace.now(1e-5) - 2e-5).abs() < 1e-12 && (pace.now(1.0) - 1.3).abs() < 1e-9);
    }

    #[test]
    fn noise_is_no_pace_and_nonsense_is_limited() {
        assert_eq!(Pace::of([[1e-5, 1.05e-5], [1e-3, 0.95e-3]].into_iter()), Pace::default());
        assert_eq!(Pace::of([[1e-5, 1.0], [1e-3, 1e-9]].into_iter()), Pace { short: MOST, long: 1.0 / MOST });
        assert_eq!(Pace::of(std::iter::empty()), Pace::default());
    }
}
