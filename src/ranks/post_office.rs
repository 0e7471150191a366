//! Where the letters of other ranks arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lapidary_kernels::Shared;
use lapidary_kernels::sync::{Condvar, Mutex};

use super::{Letter, Receive, Subject};
use crate::error::{Error, Result};

/// How long a rank that fails waits to hear whether others fail for the same reason.
const PATIENCE: Duration = Duration::from_millis(500);

/// The letters that have arrived and that nobody has taken yet.
#[derive(Default)]
pub(super) struct PostOffice {
    letters: Mutex<Letters>,
    arrived: Condvar,
}

#[derive(Default)]
struct Letters {
    /// The contents of rounds, by round and rank.
    rounds: BTreeMap<(u64, usize), Shared<u8>>,
    /// The session that runs, and who takes its letters.
    session: u64,
    receive: Option<Receive>,
    /// Letters of sessions that this rank has not opened yet.
    early: Vec<(Letter, Shared<u8>)>,
    /// The newest series that this rank has begun, and those that go on.
    newest_series: u64,
    open_series: BTreeSet<u64>,
    /// The contents of letters of series, by series and then by exchange, subject and rank.
    of_series: BTreeMap<(u64, Exchanged), Shared<u8>>,
    /// The ranks that have failed: number, machine and error.
    failures: Vec<(usize, String, String)>,
}

/// A letter of a series: number of the exchange, subject, and the rank that sent it.
type Exchanged = (u64, u64, usize);

impl PostOffice {
    /// Takes a message of another rank.
    pub(super) fn deliver(&self, from: usize, message: &Shared<u8>) {
        let Some((letter, content)) = Letter::open(message) else { return };
        if letter.subject() == Some(Subject::Failure) {
            let (host, message) = serde_json::from_slice(&content).unwrap_or_default();
            return self.fail(from, host, message);
        }
        let mut letters = self.letters.lock();
        match letter.subject() {
            None => {}
            Some(Subject::Round) => {
                letters.rounds.insert((letter.number, from), content);
            }
            // These are waited for one by one, most of them by other threads than that of the session.
            Some(
                Subject::Ids
                | Subject::Pulled
                | Subject::Frontier
                | Subject::Drawn
                | Subject::LearnedIds
                | Subject::LearnedRows
                | Subject::LearnedTerms,
            ) => {
                letters.put(letter.number, (letter.exchange, letter.subject, from), content);
            }
            Some(_) if letter.number > letters.session => letters.early.push((letter, content)),
            // A letter of a session that has ended is of no use.
            Some(_) if letter.number < letters.session => {}
            Some(_) => {
                if let Some(receive) = &mut letters.receive {
                    receive(Ok((letter, content)));
                }
            }
        }
        drop(letters);
        // One thread may wait for a round, and one in each series.
        self.arrived.notify_all();
    }

    /// Notes that a rank has failed, which ends all waiting.
    pub(super) fn fail(&self, rank: usize, host: String, message: String) {
        let mut letters = self.letters.lock();
        letters.failures.push((rank, host, message));
        let error = letters.failure();
        if let (Some(receive), Some(error)) = (&mut letters.receive, error) {
            receive(Err(error));
        }
        drop(letters);
        self.arrived.notify_all();
    }

    /// Gives the letters of a session to `receive`.
    pub(super) fn open(&self, session: u64, mut receive: Receive) {
        let mut letters = self.letters.lock();
        if let Some(error) = letters.failure() {
            receive(Err(error));
        }
        let (now, later) =
            std::mem::take(&mut letters.early).into_iter().partition(|(letter, _)| letter.number == session);
        letters.early = later;
        let now: Vec<(Letter, Shared<u8>)> = now;
        now.into_iter().for_each(|letter| receive(Ok(letter)));
        (letters.session, letters.receive) = (session, Some(receive));
    }

    /// Ends a session, unless another one has begun.
    pub(super) fn close(&self, session: u64) {
        let mut letters = self.letters.lock();
        if letters.session == session {
            letters.receive = None;
        }
    }

    /// Waits for what a rank gives to a round.
    ///
    /// # Errors
    /// [`Error::OtherRank`] if a rank fails before.
    pub(super) fn wait_for_round(&self, round: u64, from: usize) -> Result<Shared<u8>> {
        let mut letters = self.letters.lock();
        self.arrived.wait_while(&mut letters, |letters| {
            letters.failures.is_empty() && !letters.rounds.contains_key(&(round, from))
        });
        match letters.rounds.remove(&(round, from)) {
            Some(content) => Ok(content),
            None => Err(letters.failure().expect("there is a failure, or else the content")),
        }
    }

    /// Begins a series. The letters of earlier ones that do not go on are dropped.
    pub(super) fn open_series(&self, series: u64) {
        let mut letters = self.letters.lock();
        letters.newest_series = series;
        letters.open_series.insert(series);
        letters.drop_useless();
    }

    /// Ends a series, and all waiting for its letters.
    pub(super) fn end_series(&self, series: u64) {
        let mut letters = self.letters.lock();
        if letters.open_series.remove(&series) {
            letters.drop_useless();
        }
        drop(letters);
        self.arrived.notify_all();
    }

    /// Waits for a letter of a series.
    ///
    /// # Errors
    /// [`Error::OtherRank`] if a rank fails before; [`Error::WorkersGone`] if the series ends before.
    pub(super) fn wait_for_series(&self, series: u64, letter: Exchanged) -> Result<Shared<u8>> {
        let mut letters = self.letters.lock();
        self.arrived.wait_while(&mut letters, |letters| {
            let goes_on = letters.open_series.contains(&series);
            letters.failures.is_empty() && goes_on && !letters.of_series.contains_key(&(series, letter))
        });
        match letters.of_series.remove(&(series, letter)) {
            Some(content) => Ok(content),
            None => Err(letters.failure().unwrap_or(Error::WorkersGone)),
        }
    }

    /// Returns whether a rank before `rank` fails with the same message, after waiting a moment for it.
    pub(super) fn is_known(&self, rank: usize, message: &str) -> bool {
        let deadline = Instant::now() + if rank == 0 { Duration::ZERO } else { PATIENCE };
        loop {
            let said = self.letters.lock().failures.iter().any(|(from, _, said)| *from < rank && said == message);
            if said || Instant::now() >= deadline {
                return said;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Letters {
    /// Returns whether a letter of a series may still be waited for.
    fn may_take(&self, series: u64) -> bool {
        series > self.newest_series || self.open_series.contains(&series)
    }

    /// Keeps a letter of a series, unless it is of no use any more.
    fn put(&mut self, series: u64, letter: Exchanged, content: Shared<u8>) {
        if self.may_take(series) {
            self.of_series.insert((series, letter), content);
        }
    }

    fn drop_useless(&mut self) {
        let mut of_series = std::mem::take(&mut self.of_series);
        of_series.retain(|(series, _), _| self.may_take(*series));
        self.of_series = of_series;
    }

    /// Returns the first failure of another rank.
    fn failure(&self) -> Option<Error> {
        let (rank, host, message) = self.failures.first()?.clone();
        Some(Error::OtherRank { rank, host, message })
    }
}
