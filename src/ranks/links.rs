//! Measures the network between the ranks of a job.

use std::time::Instant;

use lapidary_kernels::sync::{Receiver, unbounded};
use serde::{Deserialize, Serialize};

use super::{Letter, Ranks, Subject};
use crate::error::{Error, Result};

/// Up to this number of ranks, each pair is measured. Of more ranks, only neighbours are: a ring.
const MOST_FOR_PAIRS: usize = 8;

/// The content of a large letter, in bytes. A small one has none.
const LARGE: usize = 4 << 20;

/// Number of small and of large letters that are timed, and of those before them that are not.
const SMALL_TIMES: usize = 101;
const LARGE_TIMES: usize = 11;
const WARM_UP: usize = 3;

/// The measured speed between two ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The two ranks, the lower one first.
    pub ranks: [usize; 2],
    /// The names of their machines.
    pub hosts: [String; 2],
    /// Seconds until a letter without content is received: half of the median time for it and its answer.
    pub latency_s: f64,
    /// Bytes per second in each direction while both ranks send: the median over large letters.
    pub bytes_per_s: f64,
}

impl Ranks {
    /// Measures the network between the ranks. All ranks have to call it, and all get the same answer. Up to 8 ranks,
    /// each pair is measured, one after the other. Of more ranks, each is measured with the next one, and the last one
    /// with the first; links without a common rank are then measured at the same time.
    ///
    /// What is measured is the time of the letters that training sends, with their copies and their way from thread to
    /// thread. It is more than MPI takes.
    ///
    /// # Errors
    /// [`Error::Alone`] if there is one rank; [`Error::OtherRank`].
    pub fn measure_links(&self) -> Result<Vec<Link>> {
        if self.count() == 1 {
            return Err(Error::Alone);
        }
        let session = self.next_session();
        let (sender, arrived) = unbounded();
        let receive = move |received: Result<(Letter, _)>| drop(sender.send(received.map(drop)));
        let _subscription = self.subscribe(session, Box::new(receive));
        let hosts: Vec<String> = self.gather(self.host())?;
        let mut mine: Vec<Link> = Vec::new();
        for step in schedule(self.count()) {
            // All ranks wait for the slowest, so that the others leave the network alone.
            self.gather(())?;
            let Some(ranks) = step.into_iter().find(|link| link.contains(&self.rank())) else { continue };
            let asks = ranks[0] == self.rank();
            let line = Line { ranks: self, session, other: ranks[usize::from(asks)], arrived: &arrived };
            let (latency_s, bytes_per_s) = line.measure(asks)?;
            if asks {
                mine.push(Link { ranks, hosts: ranks.map(|rank| hosts[rank].clone()), latency_s, bytes_per_s });
            }
        }
        let mut links = self.gather(mine)?.concat();
        links.sort_by_key(|link| link.ranks);
        Ok(links)
    }
}

/// Returns the links in the order in which they are measured. Those of one step have no common rank.
fn schedule(count: usize) -> Vec<Vec<[usize; 2]>> {
    if count <= MOST_FOR_PAIRS {
        let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| vec![[a, b]]));
        return pairs.collect();
    }
    let next = |first: usize| (first..count - 1).step_by(2).map(|rank| [rank, rank + 1]).collect::<Vec<_>>();
    vec![next(0), next(1), vec![[0, count - 1]]]
}

/// The line between this rank and another one.
struct Line<'a> {
    ranks: &'a Ranks,
    session: u64,
    other: usize,
    arrived: &'a Receiver<Result<()>>,
}

impl Line<'_> {
    /// Returns the latency in seconds, and the bytes per second in each direction. One of the two ranks `asks`.
    fn measure(&self, asks: bool) -> Result<(f64, f64)> {
        let there_and_back = self.median(SMALL_TIMES, || {
            if asks {
                self.send(&[]);
                self.wait()
            } else {
                self.wait()?;
                self.send(&[]);
                Ok(())
            }
        })?;
        let latency_s = there_and_back / 2.0;
        let content = vec![0u8; LARGE];
        let took_s = self.median(LARGE_TIMES, || {
            self.send(&content);
            self.wait()
        })?;
        // On a busy machine, a small letter may take as long as a large one.
        let moving_s = (took_s - latency_s).max(took_s / 2.0).max(1e-9);
        Ok((latency_s.max(1e-9), LARGE as f64 / moving_s))
    }

    /// Repeats `work`, and returns the median of its seconds.
    fn median(&self, times: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut seconds = Vec::with_capacity(times);
        for time in 0..WARM_UP + times {
            let start = Instant::now();
            work()?;
            if time >= WARM_UP {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[times / 2])
    }

    fn send(&self, content: &[u8]) {
        let letter = Letter::new(Subject::Probe, self.session);
        self.ranks.send(self.other, &letter, content.len(), std::iter::once(content));
    }

    /// Waits for the next letter.
    fn wait(&self) -> Result<()> {
        self.arrived.recv().expect("the sender is held by the subscription")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_pair_of_few_ranks_is_measured_and_a_ring_of_many() {
        for count in 2..30 {
            let schedule = schedule(count);
            let links: Vec<[usize; 2]> = schedule.concat();
            let different: BTreeSet<_> = links.iter().copied().collect();
            assert_eq!(links.len(), different.len(), "{count}: {schedule:?}");
            assert!(links.iter().all(|[a, b]| a < b && *b < count));
            if count <= MOST_FOR_PAIRS {
                assert_eq!(links.len(), count * (count - 1) / 2);
                continue;
            }
            assert_eq!(links.len(), count);
            for rank in 0..count {
                assert_eq!(links.iter().filter(|link| link.contains(&rank)).count(), 2, "{count}: {rank}");
            }
            for step in schedule {
                let ranks: BTreeSet<usize> = step.iter().flatten().copied().collect();
                assert_eq!(ranks.len(), 2 * step.len(), "{step:?}");
            }
        }
    }
}
