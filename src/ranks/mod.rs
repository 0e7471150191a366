//! Ranks: the processes of one job, which train or apply one model together.
//!
//! Every rank runs the same program on the same dataset, and computes its own parts of the graph on its own devices.
//! What the ranks tell each other is listed in [`Letter`]: rows, terms of sums, and reports go to the runtime of the
//! rank that waits for them, and so every rank knows the loss and the accuracy of the whole graph. Whatever depends on
//! a clock or on a machine is decided by rank 0 ([`Ranks::first`]). So all ranks take the same steps.

mod edges;
mod learned;
mod letter;
mod links;
#[cfg(feature = "mpi")]
mod mpi;
mod owners;
mod post_office;
mod series;
mod slices;
mod store;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapidary_kernels::Shared;
use lapidary_kernels::sync::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[cfg(feature = "command")]
use crate::dataset::{Dataset, Fingerprint};
use crate::error::{Error, Result};
pub(crate) use edges::{Bounds, EdgePulls};
pub(crate) use learned::{Crossed, LearnedRows, RowTerms, taken};
pub(crate) use letter::{Letter, Subject};
pub use links::Link;
use post_office::PostOffice;
pub(crate) use slices::Slices;
pub(crate) use store::{PulledRows, Pulls, RowStore};

/// The ranks of a job, seen from one of them.
///
/// [`Ranks::alone`], the default, is a process by itself. [`Ranks::from_environment`] joins the job that `mpirun`
/// started this process for.
#[derive(Clone, Default)]
pub struct Ranks(Option<Arc<Job>>);

struct Job {
    rank: usize,
    count: usize,
    transport: Box<dyn Transport>,
    office: Arc<PostOffice>,
    /// Number of rounds so far. Every rank counts the same rounds.
    rounds: Mutex<u64>,
    /// Number of sessions and of series of exchanges so far.
    sessions: Mutex<u64>,
    /// What was sent to each rank.
    sent: Mutex<Vec<Sent>>,
}

/// What one rank has sent to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Number of messages with rows: one for each exchange, part and reading part, and for each tile of the part.
    pub row_messages: u64,
    /// Bytes of these rows, without the heads of the messages.
    pub row_bytes: u64,
    /// Number of all messages, also of those with terms of sums and reports.
    pub messages: u64,
    /// Bytes of all messages.
    pub bytes: u64,
}

/// Brings bytes from rank to rank. What arrives is given to [`PostOffice::deliver`].
trait Transport: Send + Sync {
    /// Sends a message, which arrives after the earlier ones for the same rank. Does not wait for it to arrive.
    fn send(&self, to: usize, message: Vec<u8>);

    /// Makes the end of the transport wait for other ranks only for a short time, since this one has failed.
    fn fail(&self) {}
}

impl Ranks {
    /// Returns the only rank of a job.
    pub fn alone() -> Self {
        Self::default()
    }

    /// Returns `count` ranks that are threads of this process, for tests of programs that run on several ranks. Each
    /// belongs to a thread of its own.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn threads(count: usize) -> Vec<Self> {
        Self::threads_with_latency(count, Duration::ZERO)
    }

    /// Returns ranks that are threads, as [`Ranks::threads`], which are far apart when they prepare mini-batches: each
    /// message by which they fetch features or edges arrives `latency` after it was sent. For measurements.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn threads_with_latency(count: usize, latency: Duration) -> Vec<Self> {
        assert!(count > 0, "a job has ranks");
        threads::join(count, latency)
    }

    /// Joins the job that this process was started for by `mpirun`, or by a scheduler that starts MPI programs. A
    /// process that was started by itself is alone.
    ///
    /// # Errors
    /// [`Error::NoMpi`] if the process is one of several, and this program was built without the feature `mpi`.
    /// [`Error::Mpi`] if MPI cannot be started.
    pub fn from_environment() -> Result<Self> {
        let Some((rank, count)) = environment() else { return Ok(Self::alone()) };
        #[cfg(feature = "mpi")]
        {
            let _ = count;
            mpi::join(rank)
        }
        #[cfg(not(feature = "mpi"))]
        if count > 1 { Err(Error::NoMpi { rank, count }) } else { Ok(Self::alone()) }
    }

    /// Returns the number of the rank that this process was started as, if it is one of several.
    #[cfg(feature = "command")]
    pub(crate) fn started_as() -> Option<usize> {
        environment().map(|(rank, _)| rank)
    }

    fn new(rank: usize, count: usize, transport: Box<dyn Transport>, office: Arc<PostOffice>) -> Self {
        let (rounds, sessions, sent) = (Mutex::new(0), Mutex::new(0), Mutex::new(vec![Sent::default(); count]));
        Self(Some(Arc::new(Job { rank, count, transport, office, rounds, sessions, sent })))
    }

    /// Returns the number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.as_ref().map_or(0, |job| job.rank)
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(1, |job| job.count)
    }

    /// Returns the name of this rank's machine.
    pub fn host(&self) -> String {
        host()
    }

    /// Returns whether this is rank 0, which writes files and prints results.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Returns what every rank gives, by rank. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::OtherRank`] if another rank fails before.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, mine: T) -> Result<Vec<T>> {
        if self.0.is_none() {
            return Ok(vec![mine]);
        }
        let bytes = serde_json::to_vec(&mine).expect("what ranks tell each other can be written");
        self.gather_bytes(bytes)?.iter().map(|bytes| read(bytes)).collect()
    }

    /// Returns the bytes that every rank gives, by rank. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::OtherRank`] if another rank fails before.
    pub(crate) fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Shared<u8>>> {
        let Some(job) = &self.0 else { return Ok(vec![mine.into()]) };
        let round = job.next_round();
        job.tell_others(&Letter::new(Subject::Round, round), &mine);
        let all = (0..job.count).map(|from| {
            if from == job.rank { Ok(mine.clone().into()) } else { job.office.wait_for_round(round, from) }
        });
        all.collect()
    }

    /// Returns what rank 0 computes. All ranks have to call it; the others wait.
    ///
    /// # Errors
    /// Those of `compute` on rank 0; [`Error::OtherRank`] on the others if rank 0 fails.
    pub(crate) fn first<T: Serialize + DeserializeOwned>(&self, compute: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(job) = &self.0 else { return compute() };
        let round = job.next_round();
        if job.rank > 0 {
            return read(&job.office.wait_for_round(round, 0)?);
        }
        let value = compute()?;
        let bytes = serde_json::to_vec(&value).expect("what ranks tell each other can be written");
        job.tell_others(&Letter::new(Subject::Round, round), &bytes);
        // Rank 0 reads it as well: a number that is written as text may change in its last digit.
        read(&bytes)
    }

    /// Checks that all ranks agree on `value`. All ranks have to call it.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`], on every rank, with the first rank that differs from rank 0; [`Error::OtherRank`].
    pub(crate) fn agree(&self, what: &'static str, value: &str) -> Result<()> {
        let all = self.gather((value.to_owned(), host()))?;
        let Some(rank) = all.iter().position(|(value, _)| *value != all[0].0) else { return Ok(()) };
        let [first, other] = [&all[0], &all[rank]].map(|(value, _)| value.clone());
        Err(Error::RanksDiffer { what, rank, host: all[rank].1.clone(), first, other })
    }

    /// Checks that all ranks have read the same data. All ranks have to call it.
    ///
    /// # Errors
    /// As [`Ranks::agree`].
    #[cfg(feature = "command")]
    pub(crate) fn agree_on(&self, data: &Dataset) -> Result<()> {
        if self.count() == 1 {
            return Ok(());
        }
        let Fingerprint { graph, edge_weights, features, labels, splits } = data.fingerprint();
        let of = |digest: &Option<String>| digest.clone().unwrap_or_default();
        let all = [graph.clone(), of(edge_weights), of(features), of(labels), splits.clone()].join(" ");
        self.agree("dataset", &format!("{} with digest {}", data.name(), &blake3::hash(all.as_bytes()).to_hex()[..16]))
    }

    /// Tells the other ranks if this one failed, so that they stop waiting for it. A failure that all ranks see, such as
    /// a loss that is not finite, is not told.
    pub(crate) fn telling<T>(&self, done: Result<T>) -> Result<T> {
        use Error::{Diverged, DoesNotFit, NotFiniteAtStart, OtherRank, RanksDiffer};
        match &done {
            Ok(_) => {}
            Err(
                Diverged { .. } | DoesNotFit { .. } | NotFiniteAtStart { .. } | OtherRank { .. } | RanksDiffer { .. },
            ) => {}
            Err(error) => {
                if let Some(job) = &self.0 {
                    job.tell_failure(&error.to_string());
                }
            }
        }
        done
    }

    /// Ends the job with an error of this rank, for programs that do more than train and predict: the other ranks stop
    /// waiting. Returns whether another rank reports it: the rank that failed first, or the first of several that fail
    /// for the same reason.
    pub fn fail(&self, error: &Error) -> bool {
        let Some(job) = &self.0 else { return false };
        job.transport.fail();
        if matches!(error, Error::OtherRank { .. }) {
            return true;
        }
        let message = error.to_string();
        job.tell_failure(&message);
        job.office.is_known(job.rank, &message)
    }

    /// Returns the number of the next session or series of exchanges, which is the same on every rank.
    pub(crate) fn next_session(&self) -> u64 {
        let Some(job) = &self.0 else { return 0 };
        let mut sessions = job.sessions.lock();
        *sessions += 1;
        *sessions
    }

    /// Gives what arrives for a session to `receive`, from now on and what arrived before, until the returned guard is
    /// dropped. `receive` must not wait.
    pub(crate) fn subscribe(&self, session: u64, receive: Receive) -> Subscription {
        if let Some(job) = &self.0 {
            job.office.open(session, receive);
        }
        Subscription(self.clone(), session)
    }

    /// Returns what this rank has sent so far, by rank. It is counted where it is given to the transport.
    pub fn sent(&self) -> Vec<Sent> {
        self.0.as_ref().map_or_else(|| vec![Sent::default()], |job| job.sent.lock().clone())
    }

    /// Sends a letter to a rank. Its content comes in pieces, together `bytes` long.
    pub(crate) fn send<'c>(&self, to: usize, letter: &Letter, bytes: usize, content: impl Iterator<Item = &'c [u8]>) {
        if let Some(job) = &self.0 {
            job.send(to, letter, bytes, content);
        }
    }

    /// Sends a letter to every other rank.
    pub(crate) fn tell_others(&self, letter: &Letter, content: &[u8]) {
        if let Some(job) = &self.0 {
            job.tell_others(letter, content);
        }
    }
}

/// Takes the letters of a session, and the failure of another rank.
pub(crate) type Receive = Box<dyn FnMut(Result<(Letter, Shared<u8>)>) + Send>;

/// Ends the delivery of a session's letters when it is dropped.
pub(crate) struct Subscription(Ranks, u64);

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(job) = &self.0.0 {
            job.office.close(self.1);
        }
    }
}

impl Drop for Job {
    /// If this rank panics, tells the others. Logs what was sent.
    fn drop(&mut self) {
        for (to, sent) in self.sent.lock().iter().enumerate().filter(|(to, _)| *to != self.rank) {
            let Sent { row_messages, row_bytes, messages, bytes } = sent;
            let rows = format!("of them {row_messages} messages with {row_bytes} bytes of rows");
            tracing::debug!("rank {} sent rank {to} {messages} messages of {bytes} bytes, {rows}", self.rank);
        }
        if std::thread::panicking() {
            self.transport.fail();
            self.tell_failure("it panicked");
        }
    }
}

impl Job {
    fn send<'c>(&self, to: usize, letter: &Letter, bytes: usize, content: impl Iterator<Item = &'c [u8]>) {
        let message = letter.sealed(bytes, content);
        {
            let sent = &mut self.sent.lock()[to];
            if letter.subject() == Some(Subject::Rows) {
                sent.row_messages += 1;
                sent.row_bytes += bytes as u64;
            }
            sent.messages += 1;
            sent.bytes += message.len() as u64;
        }
        self.transport.send(to, message);
    }

    fn tell_others(&self, letter: &Letter, content: &[u8]) {
        for to in (0..self.count).filter(|&to| to != self.rank) {
            self.send(to, letter, content.len(), std::iter::once(content));
        }
    }

    /// Tells the other ranks that this one fails.
    fn tell_failure(&self, message: &str) {
        let failure = serde_json::to_vec(&(host(), message)).expect("texts can be written");
        self.tell_others(&Letter::new(Subject::Failure, 0), &failure);
    }

    fn next_round(&self) -> u64 {
        let mut rounds = self.rounds.lock();
        *rounds += 1;
        *rounds
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.count())
    }
}

/// Reads what another rank of the same version has written.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|source| Error::OtherVersion { source })
}

/// Returns the name of this machine.
fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// Returns the number of this rank and of all ranks, if a starter of MPI programs has set them: Open MPI, MPICH and its
/// relatives, or Slurm with either.
fn environment() -> Option<(usize, usize)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let pairs =
        [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "SLURM_NTASKS")];
    pairs.into_iter().find_map(|(rank, count)| Some((number(rank)?, number(count)?)))
}
