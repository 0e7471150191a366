//! What parts and ranks have told the driver, and what it has not used yet. Another rank may be one script ahead.

use std::collections::{BTreeMap, VecDeque};

use lapidary_kernels::HostSlot;

use super::message::{Report, ToDriver};

/// For each exchange, a queue of each part or rank.
type Queues = BTreeMap<usize, Vec<VecDeque<HostSlot>>>;

/// What the driver was told.
pub(super) struct Told {
    /// The terms of each sum, or the slices that this rank adds, by part.
    terms: Queues,
    /// The slices of each sum, by the rank that added them.
    sums: Queues,
    /// The reports of scripts, by part.
    reports: Vec<VecDeque<Report>>,
    ranks: usize,
}

impl Told {
    pub(super) fn new(parts: usize, ranks: usize) -> Self {
        Self { terms: Queues::new(), sums: Queues::new(), reports: vec![VecDeque::new(); parts], ranks }
    }

    /// Keeps a message until it is used.
    ///
    /// # Panics
    /// If it is the answer to a question, or a failure, which nobody keeps.
    pub(super) fn note(&mut self, heard: ToDriver) {
        match heard {
            ToDriver::Done(part, report) => self.reports[part].push_back(report),
            ToDriver::Term(exchange, part, term) => {
                queues(&mut self.terms, exchange, self.reports.len())[part].push_back(term);
            }
            ToDriver::Sum(exchange, rank, slice) => {
                queues(&mut self.sums, exchange, self.ranks)[rank].push_back(slice);
            }
            ToDriver::Contents(_) | ToDriver::Written | ToDriver::Aborted | ToDriver::Failed(_) => {
                unreachable!("a worker answers when it is asked, and a failure is an error")
            }
        }
    }

    /// Returns a report of every part, once all are there.
    pub(super) fn take_reports(&mut self) -> Option<Vec<Report>> {
        first_of_each(&mut self.reports)
    }

    /// Returns an exchange and its terms by part, once all are there.
    pub(super) fn take_terms(&mut self) -> Option<(usize, Vec<HostSlot>)> {
        take(&mut self.terms)
    }

    /// Returns an exchange and the slices of its sum by rank, once all are there.
    pub(super) fn take_sums(&mut self) -> Option<(usize, Vec<HostSlot>)> {
        take(&mut self.sums)
    }
}

/// Returns the queues of an exchange.
fn queues(queues: &mut Queues, exchange: usize, count: usize) -> &mut Vec<VecDeque<HostSlot>> {
    queues.entry(exchange).or_insert_with(|| vec![VecDeque::new(); count])
}

/// Takes from the first exchange whose queues all have something.
fn take(queues: &mut Queues) -> Option<(usize, Vec<HostSlot>)> {
    queues.iter_mut().find_map(|(&exchange, queues)| Some((exchange, first_of_each(queues)?)))
}

/// Takes the first of each queue, if all have one.
fn first_of_each<T>(queues: &mut [VecDeque<T>]) -> Option<Vec<T>> {
    let all = queues.iter().all(|queue| !queue.is_empty());
    all.then(|| queues.iter_mut().filter_map(VecDeque::pop_front).collect())
}
