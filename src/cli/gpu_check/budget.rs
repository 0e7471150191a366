//! Time budgets of sections, which share a total time.

use std::time::{Duration, Instant};

/// The time after which a section starts nothing new.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    end: Instant,
}

impl Budget {
    /// Returns a budget that ends `seconds` seconds from now.
    pub(super) fn of(seconds: f64) -> Self {
        Self { end: Instant::now() + Duration::from_secs_f64(seconds.max(0.0)) }
    }

    /// Returns one budget for each section. Time that one does not use goes to those after it.
    pub(super) fn shares(seconds: f64, shares: &[f64]) -> Vec<Self> {
        let (start, all) = (Instant::now(), shares.iter().sum::<f64>());
        let mut until = 0.0;
        let ends = shares.iter().map(|share| {
            until += share;
            start + Duration::from_secs_f64((seconds * until / all).max(0.0))
        });
        ends.map(|end| Self { end }).collect()
    }

    /// Returns a budget of the share `of_rest` of the remaining time, for one measurement within the section.
    pub(super) fn share(&self, of_rest: f64) -> Self {
        Self::of(self.left_s() * of_rest)
    }

    pub(super) fn is_spent(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Returns the seconds that are left.
    pub(super) fn left_s(&self) -> f64 {
        self.end.saturating_duration_since(Instant::now()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_end_one_after_the_other_and_the_last_when_all_is_used() {
        let budgets = Budget::shares(3600.0, &[1.0, 3.0, 2.0]);
        let apart: Vec<u64> = budgets.windows(2).map(|pair| (pair[1].end - pair[0].end).as_secs()).collect();
        assert_eq!(apart, [1800, 1200]);
        assert!(budgets.iter().all(|budget| !budget.is_spent()));
        assert!(Budget::shares(0.0, &[1.0])[0].is_spent());
    }
}
