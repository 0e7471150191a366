//! Where the letters of other ranks arrive.

use std::collections::BTreeMap;
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
    /// The newest series of pulls that this rank has begun, and whether it goes on.
    series: u64,
    is_pulling: bool,
    /// The contents of letters of pulls, by series and then by pull, subject and rank.
    pulls: BTreeMap<(u64, Pull), Shared<u8>>,
    /// The ranks that have failed: number, machine and error.
    failures: Vec<(usize, String, String)>,
}

/// A letter of a series of pulls: number of the pull, subject, and the rank that sent it.
type Pull = (u64, u64, usize);

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
            // These are waited for one by one, most of them by another thread than that of the session.
            Some(
                Subject::Ids | Subject::Pulled | Subject::LearnedIds | Subject::LearnedRows | Subject::LearnedTerms,
            ) => {
                let is_of_use = letter.number > letters.series || letter.number == letters.series && letters.is_pulling;
                if is_of_use {
                    letters.pulls.insert((letter.number, (letter.exchange, letter.subject, from)), content);
                }
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
        // One thread may wait for a round or for learned rows, and one for a pull.
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

    /// Begins a series of pulls.
    pub(super) fn open_series(&self, series: u64) {
        let mut letters = self.letters.lock();
        (letters.series, letters.is_pulling) = (series, true);
        letters.pulls.retain(|(of, _), _| *of >= series);
    }

    /// Ends a series of pulls, and all waiting for its letters.
    pub(super) fn end_series(&self, series: u64) {
        let mut letters = self.letters.lock();
        if letters.series == series {
            letters.is_pulling = false;
            letters.pulls.retain(|(of, _), _| *of > series);
        }
        drop(letters);
        self.arrived.notify_all();
    }

    /// Waits for a letter of a series of pulls.
    ///
    /// # Errors
    /// [`Error::OtherRank`] if a rank fails before; [`Error::WorkersGone`] if the series ends before.
    pub(super) fn wait_for_pull(&self, series: u64, pull: Pull) -> Result<Shared<u8>> {
        let mut letters = self.letters.lock();
        self.arrived.wait_while(&mut letters, |letters| {
            let goes_on = letters.is_pulling && letters.series == series;
            letters.failures.is_empty() && goes_on && !letters.pulls.contains_key(&(series, pull))
        });
        match letters.pulls.remove(&(series, pull)) {
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
    /// Returns the first failure of another rank.
    fn failure(&self) -> Option<Error> {
        let (rank, host, message) = self.failures.first()?.clone();
        Some(Error::OtherRank { rank, host, message })
    }
}
