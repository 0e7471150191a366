//! Reports of indices that are out of range.
//!
//! A kernel cannot return an error. So a call that looks up indices gets a few bytes of host memory, which its kernel
//! writes if an index is out of range. The host checks them when the call is known to be done.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::staging::Pinned;
use crate::error::{Error, Result};

/// Most calls with reports that may be in flight at once. One more has to wait for the first.
pub(super) const MOST: usize = 1024;

/// Bytes of a call's two reports, one on the ends of its block and one on its items. Each is a word, with a site in its
/// upper bits and an index in the others, so that reports of two threads cannot mix.
const REPORT: usize = 16;

/// The place of the site in a report: `SITE_SHIFT` of `common.cuh`.
const SITE_SHIFT: u32 = 61;

/// The indices that a call looks up, for the error message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    pub(super) call: &'static str,
    /// The operand that has the indices.
    pub(super) operand: &'static str,
    /// The first index that is out of range.
    pub(super) limit: u64,
    /// Number of edges, if the call has a block.
    pub(super) edges: u64,
}

pub(super) struct Faults {
    memory: Pinned,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Calls in flight: the number of their job, the place of their report, and their lookup.
    open: VecDeque<(u64, usize, Lookup)>,
    next: usize,
}

impl Faults {
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn new() -> Result<Self> {
        let mut memory = Pinned::new(MOST * REPORT)?;
        memory.bytes_mut().fill(0);
        Ok(Self { memory, state: Mutex::default() })
    }

    /// Returns the job that must be done before another call can report, if there is one.
    pub(super) fn in_the_way(&self) -> Option<u64> {
        let state = self.state.lock();
        state.open.front().filter(|_| state.open.len() == MOST).map(|&(job, ..)| job)
    }

    /// Returns the report address of the next call. The GPU can write there.
    pub(super) fn address(&self) -> u64 {
        let place = self.state.lock().next;
        // Pinned memory has the same address on the GPU (unified addressing, which every 64-bit system has).
        self.memory.address() + (place * REPORT) as u64
    }

    /// Returns the report address of call number `place` of a batch. `place` starts at 0 and is below [`MOST`].
    pub(super) fn address_of(&self, place: usize) -> u64 {
        self.memory.address() + (place * REPORT) as u64
    }

    /// Registers the calls of a batch, which is one job. Call number i reports at place i. The reports of the batch
    /// before were already checked.
    pub(super) fn watch_batch(&self, job: u64, lookups: Vec<Lookup>) {
        let mut state = self.state.lock();
        state.open.extend(lookups.into_iter().enumerate().map(|(place, lookup)| (job, place, lookup)));
    }

    /// Registers the job that reports at [`Faults::address`], and moves on to the next place.
    pub(super) fn watch(&self, job: u64, lookup: Lookup) {
        let mut state = self.state.lock();
        let place = state.next;
        state.next = (place + 1) % MOST;
        state.open.push_back((job, place, lookup));
    }

    /// Checks the reports of all jobs up to `done`.
    ///
    /// # Errors
    /// The first fault: [`Error::Index`] or [`Error::Shape`].
    pub(super) fn look(&self, done: u64) -> Result<()> {
        let mut state = self.state.lock();
        while let Some(&(job, place, lookup)) = state.open.front() {
            if job > done {
                break;
            }
            state.open.pop_front();
            let reports = self.memory.take_words(place * REPORT);
            if let Some(report) = reports.into_iter().find(|report| *report != 0) {
                return Err(lookup.error(report >> SITE_SHIFT, report & ((1 << SITE_SHIFT) - 1)));
            }
        }
        Ok(())
    }
}

impl Lookup {
    /// Returns the error for a report. The sites are those of `common.cuh`.
    fn error(&self, site: u64, index: u64) -> Error {
        let Self { call, operand, limit, edges } = *self;
        let offset = |limit| Error::Index { call, operand: "indptr", index, limit };
        match site {
            1 => offset(1),
            2 => {
                let want = [usize::try_from(index).unwrap_or(usize::MAX), 1];
                Error::Shape { call, operand: "indices", want, got: [edges as usize, 1] }
            }
            3 => offset(edges + 1),
            _ => Error::Index { call, operand, index, limit },
        }
    }
}
