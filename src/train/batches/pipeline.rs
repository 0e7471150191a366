//! The stages of an epoch of mini-batches: sampling, gathering features, computing.
//!
//! Batches are dealt in turn to *lanes*: one more than batches may be ahead. A lane has a thread for sampling and one for
//! gathering, and each of them holds one batch until the next stage takes it. So if a stage waits, for another rank or for
//! a disk, it waits for several batches at a time.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use lapidary_kernels::panic_message;
use lapidary_kernels::sync::{Receiver, Sender, bounded, unbounded};

use super::gathering::{Fetched, Sources};
use super::topology::DrawScratch;
use super::{Drawing, FeatureRows, failed};
use crate::error::Result;
use crate::program::LevelSizes;
use crate::ranks::{EdgePulls, Pulls};
use crate::runtime::{STAGES, SharedBatch, StageSpan};
use crate::sample::MiniBatch;

/// Seconds in which the stages of an epoch of mini-batches worked, each on any batch, and on how much. They work at the same
/// time, so the sum may be more than the epoch took. With several ranks, seconds are those of this rank, and the sizes of
/// batches those of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageSeconds {
    /// Number of batches.
    pub batches: u64,
    /// Number of vertices whose features were gathered, in all batches.
    pub vertices: u64,
    /// Number of edges that were drawn, in all batches.
    pub edges: u64,
    /// Of these vertices, those whose features stay on the device, with [`Batches::device_cache`](super::Batches).
    pub found: u64,
    /// Rows of features that were read from the dataset's file, with [`Batches::feature_cache`](super::Batches).
    pub rows_read: u64,
    /// Bytes of these reads, in whole pages of the file.
    pub bytes_read: u64,
    /// Rounds of messages in which this rank fetched features and edges from other ranks, in all batches.
    pub rounds: u64,
    /// Number of rows of features that this rank fetched from other ranks, in all batches.
    pub fetched_rows: u64,
    /// Bytes of these rows and of their ids.
    pub fetched_bytes: u64,
    /// Number of edges that other ranks drew for this one, with [`Topology::Parts`](super::Topology).
    pub fetched_edges: u64,
    /// Bytes of these edges and of the vertices that they were drawn of.
    pub fetched_edge_bytes: u64,
    /// Drawing the blocks, which includes waiting for edges that other ranks draw.
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
        let stages = STAGES.into_iter().zip([self.sample, self.gather, self.compute]);
        stages.max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
    }

    /// Adds the seconds of later batches.
    pub(super) fn add(&mut self, later: Self) {
        let counts = [
            (&mut self.batches, later.batches),
            (&mut self.vertices, later.vertices),
            (&mut self.edges, later.edges),
            (&mut self.found, later.found),
            (&mut self.rows_read, later.rows_read),
            (&mut self.bytes_read, later.bytes_read),
            (&mut self.rounds, later.rounds),
            (&mut self.fetched_rows, later.fetched_rows),
            (&mut self.fetched_bytes, later.fetched_bytes),
            (&mut self.fetched_edges, later.fetched_edges),
            (&mut self.fetched_edge_bytes, later.fetched_edge_bytes),
        ];
        counts.into_iter().for_each(|(sum, more)| *sum += more);
        let seconds = [
            (&mut self.sample, later.sample),
            (&mut self.gather, later.gather),
            (&mut self.compute, later.compute),
            (&mut self.waiting, later.waiting),
        ];
        seconds.into_iter().for_each(|(sum, more)| *sum += more);
    }
}

/// When a stage began a batch, and when it had done it.
type Worked = [Instant; 2];

/// What a stage passes on, and when the `N` stages so far worked on it.
type Passed<T, const N: usize> = Result<(T, [Worked; N])>;

impl Drawing {
    /// Prepares this rank's shares of some batches of an epoch, and calls `compute` with each in order. `compute` returns
    /// whether to go on. All ranks have to call it. They may be at different batches, each as far ahead as its queues
    /// allow: a rank waits in a batch for others only until they have prepared it as well.
    ///
    /// # Returns
    /// The seconds of the stages, and when each stage worked on each batch, in the order of the batches.
    /// # Errors
    /// The first error of any stage, [`crate::Error::Batch`] for those that prepare batches;
    /// [`crate::Error::OtherRank`].
    /// # Cost
    /// With several ranks, one pull of rows per batch: see [`Pulls::pull`]. If they draw edges for each other, one pull of
    /// edges for each layer but the first: see [`EdgePulls::pull`].
    pub(super) fn each(
        &self,
        epoch: u64,
        numbers: Range<usize>,
        from: &Sources<'_>,
        mut compute: impl FnMut(usize, SharedBatch) -> Result<bool>,
    ) -> Result<(StageSeconds, Vec<StageSpan>)> {
        let order = self.order(epoch);
        let lanes = match self.batches.look_ahead {
            0 => 0,
            ahead => ahead.saturating_add(1).min(numbers.len()),
        };
        let first = numbers.start;
        let sample = |number: usize, scratch: &mut DrawScratch| -> Passed<(Vec<MiniBatch>, Fetched), 1> {
            let start = Instant::now();
            let drawn = guarded("sampling", number, || self.sample(epoch, number, &order, scratch, from.edges))?;
            Ok((drawn, [[start, Instant::now()]]))
        };
        // Calls `used` with what was drawn.
        let gather = |number: usize,
                      sampled: Passed<(Vec<MiniBatch>, Fetched), 1>,
                      used: &mut dyn FnMut(Vec<MiniBatch>)|
         -> Passed<(SharedBatch, Fetched), 2> {
            let ((drawn, mut fetched), [sampled]) = sampled?;
            let start = Instant::now();
            let (batch, rows) = guarded("gathering", number, || self.give(from, number, &drawn))?;
            used(drawn);
            fetched.add(rows);
            Ok(((batch, fetched), [sampled, [start, Instant::now()]]))
        };
        let (mut spent, mut spans) = (StageSeconds::default(), Vec::new());
        let reads = || self.feature_rows().map_or([0; 2], FeatureRows::reads_since);
        reads();
        let mut consume =
            |number: usize, next: &mut dyn FnMut() -> Option<Passed<(SharedBatch, Fetched), 2>>| -> Result<bool> {
                let waited = Instant::now();
                let Some(gathered) = next() else { return Ok(false) };
                let ((batch, fetched), [sampled, gathered]) = gathered?;
                let start = Instant::now();
                spent.waiting += seconds([waited, start]);
                spent.batches += 1;
                spent.vertices += batch.sizes.iter().map(|sizes| sizes.rows(0)).sum::<u64>();
                spent.found += batch.sizes.iter().map(|sizes| sizes.found).sum::<u64>();
                spent.edges += batch.sizes.iter().map(LevelSizes::all_drawn).sum::<u64>();
                spent.rounds += fetched.rounds;
                spent.fetched_rows += fetched.rows;
                spent.fetched_bytes += fetched.bytes;
                spent.fetched_edges += fetched.edges;
                spent.fetched_edge_bytes += fetched.edge_bytes;
                let goes_on = compute(number, batch)?;
                let lane = (number - first) % lanes.max(1);
                let worked = [(sampled, lane), (gathered, lane), ([start, Instant::now()], 0)];
                let batch = number as u64 + 1;
                let span =
                    |(stage, ([start, end], lane)): (_, (Worked, usize))| StageSpan { stage, batch, lane, start, end };
                spans.extend(STAGES.into_iter().zip(worked).map(span));
                Ok(goes_on)
            };
        if lanes == 0 {
            let mut scratch = DrawScratch::default();
            for number in numbers {
                let mut prepare = || {
                    let sampled = sample(number, &mut scratch);
                    gather(number, sampled, &mut |drawn| scratch.take_back(drawn))
                };
                if !consume(number, &mut || Some(prepare()))? {
                    break;
                }
            }
        } else {
            std::thread::scope(|scope| -> Result<()> {
                // If computing ends early, the other ranks may not answer any more.
                let _ending = (from.pulls.map(Pulls::ending), from.edges.map(EdgePulls::ending));
                let (sample, gather) = (&sample, &gather);
                // A stage ends when the next one takes nothing any more.
                let lane = |lane: usize| {
                    let numbers = numbers.clone().skip(lane).step_by(lanes);
                    let ((to_gather, sampled), (to_compute, gathered)) = (bounded(0), bounded(0));
                    // What was drawn goes back, for its memory.
                    let (give_back, used) = unbounded();
                    let to_sample = numbers.clone();
                    scope.spawn(move || {
                        let mut scratch = DrawScratch::default();
                        let sampled = to_sample.map(|number| {
                            while let Ok(drawn) = used.try_recv() {
                                scratch.take_back(drawn);
                            }
                            sample(number, &mut scratch)
                        });
                        passes_on(sampled, &to_gather);
                    });
                    scope.spawn(move || {
                        let gathered = numbers
                            .zip(received(sampled))
                            .map(|(number, drawn)| gather(number, drawn, &mut |drawn| drop(give_back.send(drawn))));
                        passes_on(gathered, &to_compute);
                    });
                    gathered
                };
                let gathered: Vec<_> = (0..lanes).map(lane).collect();
                for number in numbers.clone() {
                    let from_lane = &gathered[(number - first) % lanes];
                    if !consume(number, &mut || from_lane.recv().ok())? {
                        break;
                    }
                }
                Ok(())
            })?;
        }
        [spent.rows_read, spent.bytes_read] = reads();
        [spent.sample, spent.gather, spent.compute] = STAGES.map(|stage| seconds_of(stage, &spans));
        Ok((spent, spans))
    }
}

/// Passes on what a stage makes, until it fails or nobody takes it.
fn passes_on<T>(made: impl Iterator<Item = Result<T>>, to: &Sender<Result<T>>) {
    for made in made {
        let fails = made.is_err();
        if to.send(made).is_err() || fails {
            return;
        }
    }
}

/// Returns the seconds in which a stage worked on any batch.
fn seconds_of(stage: &str, spans: &[StageSpan]) -> f64 {
    let mut of_stage: Vec<Worked> =
        spans.iter().filter(|span| span.stage == stage).map(|span| [span.start, span.end]).collect();
    of_stage.sort_unstable();
    let (mut sum, mut until) = (0.0, None);
    for [start, end] in of_stage {
        let start = until.map_or(start, |until| start.max(until));
        sum += seconds([start, end]);
        until = Some(until.map_or(end, |until: Instant| until.max(end)));
    }
    sum
}

fn seconds([start, end]: Worked) -> f64 {
    end.saturating_duration_since(start).as_secs_f64()
}

/// Returns what arrives in a queue, until its sender ends.
fn received<T>(queue: Receiver<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || queue.recv().ok())
}

/// Does the work of a stage on a batch. A panic becomes an error that names the stage.
fn guarded<T>(stage: &'static str, number: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(failed(stage, number, panic_message(&*panic))))
}
