//! The stages of an epoch of mini-batches: sampling, gathering features, computing. Each stage has a thread, and a bounded
//! queue to the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use lapidary_kernels::panic_message;
use lapidary_kernels::sync::{Receiver, bounded};

use super::{Drawing, Fetched, Sources, failed};
use crate::error::Result;
use crate::program::LevelSizes;
use crate::ranks::Pulls;
use crate::runtime::SharedBatch;
use crate::sample::{MiniBatch, Scratch};

/// Seconds that the stages of an epoch of mini-batches worked, and on how much. They work at the same time, so the sum
/// may be more than the epoch took. With several ranks, seconds are those of this rank, and the sizes of
/// batches those of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSeconds {
    /// Number of batches.
    pub batches: u64,
    /// Number of vertices whose features were gathered, in all batches.
    pub vertices: u64,
    /// Number of edges that were drawn, in all batches.
    pub edges: u64,
    /// Rounds of messages in which this rank fetched features from other ranks, in all batches.
    pub rounds: u64,
    /// Number of rows of features that this rank fetched from other ranks, in all batches.
    pub fetched_rows: u64,
    /// Bytes of these rows and of their ids.
    pub fetched_bytes: u64,
    /// Drawing the blocks.
    pub sample: f64,
    /// Gathering features and labels of the vertices, which includes waiting for other ranks, and preparing the blocks.
    pub gather: f64,
    /// Computing: copies to the device, forward, backward and update.
    pub compute: f64,
    /// Of the epoch, the time in which computing waited for a batch.
    pub waiting: f64,
}

impl StageSeconds {
    /// Returns the name of the stage that works longest.
    pub fn slowest(&self) -> &'static str {
        let stages = [("sampling", self.sample), ("gathering", self.gather), ("computing", self.compute)];
        stages.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
    }
}

/// What a stage passes on, and the seconds that stages have worked on it.
type Passed<T> = Result<(T, StageSeconds)>;

impl Drawing {
    /// Prepares this rank's shares of the batches of an epoch, and calls `compute` with each in order. `compute` returns
    /// whether to go on. All ranks have to call it. They may be at different batches, each as far ahead as its queues
    /// allow: a rank waits in a batch for others only until they have prepared it as well.
    ///
    /// # Errors
    /// The first error of any stage, [`crate::Error::Batch`] for those that prepare batches;
    /// [`crate::Error::OtherRank`].
    /// # Cost
    /// With several ranks, one pull per batch: see [`Pulls::pull`].
    pub(super) fn each(
        &self,
        epoch: u64,
        from: &Sources<'_>,
        mut compute: impl FnMut(usize, SharedBatch) -> Result<bool>,
    ) -> Result<StageSeconds> {
        let order = self.order(epoch);
        let mut scratch = Scratch::default();
        let mut sample = |number: usize| -> Passed<Vec<MiniBatch>> {
            let start = Instant::now();
            let drawn = guarded("sampling", number, || self.draw(epoch, number, &order, &mut scratch))?;
            Ok((drawn, StageSeconds { sample: start.elapsed().as_secs_f64(), ..StageSeconds::default() }))
        };
        let gather = |number: usize, sampled: Passed<Vec<MiniBatch>>| -> Passed<SharedBatch> {
            let (drawn, spent) = sampled?;
            let start = Instant::now();
            let (given, Fetched { rounds, rows, bytes }) =
                guarded("gathering", number, || self.give(from, number, &drawn))?;
            let gather = start.elapsed().as_secs_f64();
            Ok((given, StageSeconds { gather, rounds, fetched_rows: rows, fetched_bytes: bytes, ..spent }))
        };
        let mut spent = StageSeconds::default();
        let mut consume = |number: usize, next: &mut dyn FnMut() -> Option<Passed<SharedBatch>>| -> Result<bool> {
            let waited = Instant::now();
            let Some(gathered) = next() else { return Ok(false) };
            let (batch, prepared) = gathered?;
            spent.waiting += waited.elapsed().as_secs_f64();
            spent.batches += 1;
            spent.vertices += batch.sizes.iter().map(|sizes| sizes.rows(0)).sum::<u64>();
            spent.edges += batch.sizes.iter().map(LevelSizes::all_drawn).sum::<u64>();
            spent.rounds += prepared.rounds;
            spent.fetched_rows += prepared.fetched_rows;
            spent.fetched_bytes += prepared.fetched_bytes;
            spent.sample += prepared.sample;
            spent.gather += prepared.gather;
            let start = Instant::now();
            let goes_on = compute(number, batch)?;
            spent.compute += start.elapsed().as_secs_f64();
            Ok(goes_on)
        };
        let mut numbers = 0..self.count();
        if self.batches.look_ahead == 0 {
            for number in numbers {
                if !consume(number, &mut || Some(gather(number, sample(number))))? {
                    break;
                }
            }
            return Ok(spent);
        }
        let queue = self.batches.look_ahead;
        std::thread::scope(|scope| {
            // If computing ends early, the other ranks may not answer any more.
            let _ending = from.pulls.map(Pulls::ending);
            // A stage whose queue nobody reads any more ends.
            let (to_gather, sampled) = bounded(queue);
            scope.spawn(move || {
                for number in 0..self.count() {
                    let drawn = sample(number);
                    let fails = drawn.is_err();
                    if to_gather.send(drawn).is_err() || fails {
                        return;
                    }
                }
            });
            let (to_compute, gathered) = bounded(queue);
            scope.spawn(move || {
                for (number, drawn) in received(sampled).enumerate() {
                    let given = gather(number, drawn);
                    let fails = given.is_err();
                    if to_compute.send(given).is_err() || fails {
                        return;
                    }
                }
            });
            let mut gathered = received(gathered);
            numbers.try_for_each(|number| match consume(number, &mut || gathered.next()) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Ok(())),
                Err(error) => Err(Err(error)),
            })
        })
        .or_else(|ended| ended)?;
        Ok(spent)
    }
}

/// Returns what arrives in a queue, until its sender ends.
fn received<T>(queue: Receiver<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || queue.recv().ok())
}

/// Does the work of a stage on a batch. A panic becomes an error that names the stage.
fn guarded<T>(stage: &'static str, number: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(failed(stage, number, panic_message(&*panic))))
}
