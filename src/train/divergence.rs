//! Finds where a number first was not finite.

use super::Trainer;
use super::running::clock;
use crate::error::{Error, NotFinite, Result};
use crate::model::{Weights, WeightsError};
use crate::program::Origin;

impl Trainer {
    pub(super) fn check_finite(&mut self, weights: &Weights) -> Result<()> {
        match weights.check_finite() {
            Err(WeightsError::NotFinite { name, .. }) => {
                // Within an epoch, the number appeared in the epoch that runs.
                let epoch = self.epoch + u64::from(self.position().batch > 0);
                Err(self.diverged(epoch, format!("`{name}` is not finite"), epoch == 0))
            }
            other => Ok(other?),
        }
    }

    /// Returns to the last good state, finds where a number first was not finite, and returns the error. `at_start` says
    /// that no update has happened before.
    pub(super) fn diverged(&mut self, epoch: u64, what: String, at_start: bool) -> Error {
        // The reason of the failure is more useful than an error of this search.
        let first = self.find_not_finite(epoch).ok().flatten().map(Box::new);
        if at_start { Error::NotFiniteAtStart { what, first } } else { Error::Diverged { epoch, what, first } }
    }

    fn find_not_finite(&mut self, last: u64) -> Result<Option<NotFinite>> {
        let Some(good) = self.last_good.clone() else { return Ok(None) };
        self.put_back(&good)?;
        let (mut found, rates) = (None, std::mem::take(&mut self.new_rates));
        for epoch in good.epoch() + 1..=last {
            for (_, lr) in rates.iter().filter(|(first, _)| *first == epoch) {
                self.write_learning_rate(*lr)?;
            }
            found = match &self.setup.batches {
                Some(_) => {
                    self.feed(epoch, u64::MAX, None, [false, true])?;
                    std::mem::take(&mut self.progress).not_finite
                }
                None => self.session.run_checked(self.phases(epoch).1, &[(Origin::Clock, clock(epoch))])?,
            };
            if found.is_some() {
                break;
            }
        }
        self.put_back(&good)?;
        Ok(found)
    }
}
