//! Series of exchanges, which other threads make than that of the session.

use lapidary_kernels::Shared;

use super::{Letter, Ranks, Subject};
use crate::error::Result;

/// A series of exchanges, which all ranks make together: the same number of them, with the same numbers.
///
/// Letters of another series are never taken for those of this one, also if it ended early. Several series may go on at
/// the same time. A series ends when it is dropped.
pub(super) struct Series {
    ranks: Ranks,
    number: u64,
}

impl Series {
    /// Begins a series. All ranks have to begin the same series, in the same order.
    pub(super) fn begin(ranks: &Ranks) -> Self {
        let number = ranks.next_session();
        if let Some(job) = &ranks.0 {
            job.office.open_series(number);
        }
        Self { ranks: ranks.clone(), number }
    }

    /// Sends a letter of an exchange. Its content comes in pieces, together `bytes` long.
    pub(super) fn send<'c>(
        &self,
        to: usize,
        (subject, exchange): (Subject, u64),
        bytes: usize,
        content: impl Iterator<Item = &'c [u8]>,
    ) {
        let letter = Letter { exchange, ..Letter::new(subject, self.number) };
        self.ranks.send(to, &letter, bytes, content);
    }

    /// Waits for a letter of an exchange.
    ///
    /// # Errors
    /// [`Error::OtherRank`](crate::Error::OtherRank); [`Error::WorkersGone`](crate::Error::WorkersGone) if another thread
    /// ends the series meanwhile.
    pub(super) fn wait(&self, from: usize, (subject, exchange): (Subject, u64)) -> Result<Shared<u8>> {
        let job = self.ranks.0.as_ref().expect("a rank that is alone waits for nobody");
        job.office.wait_for_series(self.number, (exchange, subject as u64, from))
    }

    /// Returns a guard that ends the series when it is dropped: another thread that waits in an exchange then gets an
    /// error.
    pub(super) fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    fn end(&self) {
        if let Some(job) = &self.ranks.0 {
            job.office.end_series(self.number);
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends a series.
pub(crate) struct Ending<'s>(&'s Series);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}
