//! Who uses a folder.

use std::fmt;

/// The process that holds or held a [`RunLock`](crate::RunLock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its number.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// When it took the lock, in UTC: `2026-11-22T16:58:03Z`.
    pub since: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} since {}", self.pid, self.host, self.since)
    }
}
