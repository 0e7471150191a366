//! The process that uses a folder.

use std::fmt;

/// The process that holds or held a [`RunLock`](crate::RunLock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process id.
    pub pid: u32,
    /// The host name.
    pub host: String,
    /// The time at which it took the lock, in UTC: `2026-11-22T16:58:03Z`.
    pub since: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} since {}", self.pid, self.host, self.since)
    }
}
