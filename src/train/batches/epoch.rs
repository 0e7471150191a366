//! An epoch of mini-batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::{Drawing, Sources, StageSeconds};
use crate::error::{NotFinite, Result};
use crate::lower::BatchSupply;
use crate::program::{EMBEDDING, Origin};
use crate::ranks::RowStore;
use crate::runtime::{Done, Session, StageSpan};
use crate::train::PartialEpoch;
use crate::train::embedding::Embedding;
use crate::train::epoch::gradient_name;
use crate::train::running::{PLAIN_EPOCH, TRAIN_PHASE, clock, sum_of_terms};

/// The mini-batches of a trainer.
pub(in crate::train) struct Feeder {
    pub drawing: Drawing,
    /// Shared by training and evaluation, as is the store.
    pub supply: Arc<BatchSupply>,
    /// The features of all ranks, if there are several.
    pub store: Option<Arc<RowStore>>,
}

/// What is called after each batch, with its number in the epoch, from 1, and the number of batches.
pub(in crate::train) type OnBatch = Box<dyn FnMut(u64, u64) + Send>;

/// What has been run of an epoch of mini-batches.
#[derive(Default)]
pub(in crate::train) struct BatchedEpoch {
    pub partial: PartialEpoch,
    /// The sums over the batches. Metrics are those of the last batch.
    pub done: Done,
    pub stages: StageSeconds,
    /// When each stage worked on each batch, if that is recorded.
    pub spans: Vec<StageSpan>,
    /// The first number that was not finite, if they were checked.
    pub not_finite: Option<NotFinite>,
}

impl BatchedEpoch {
    /// Returns an epoch that goes on from a checkpoint. What was measured before is not known.
    pub(in crate::train) fn after(partial: Option<PartialEpoch>) -> Self {
        Self { partial: partial.unwrap_or_default(), ..Self::default() }
    }

    /// Returns the mean loss over all seeds.
    pub(in crate::train) fn loss(&self) -> f64 {
        self.partial.loss_sum / self.partial.seeds as f64
    }
}

/// What [`Feeder::run`] runs.
#[derive(Clone, Copy)]
pub(in crate::train) struct BatchRun<'a> {
    pub epoch: u64,
    /// The most batches to run.
    pub batches: u64,
    /// Names and weights of the terms of the loss.
    pub losses: &'a [(String, f64)],
    /// The learning rate of learned rows.
    pub lr: f64,
    /// The run ends after a batch if this is no longer 0. Several ranks end after the same one, as soon as all know it.
    pub signal: Option<&'a AtomicUsize>,
    pub traced: bool,
    pub checked: bool,
}

impl Feeder {
    /// Returns whether a signal asks the run to end after what has been done; with several ranks, whether all know that.
    pub(in crate::train) fn is_over(&self, signal: &AtomicUsize, done: &Done) -> bool {
        match self.drawing.ranks.count() {
            1 => signal.load(Ordering::Relaxed) != 0,
            _ => done.signal() != 0,
        }
    }

    /// Runs the next batches of an epoch of which `so_far` has been run, and adds them to it. An epoch ends early if its
    /// loss is not finite, or if a number is not finite and all are checked. After an error, `so_far` has the batches
    /// before it. If the model reads learned rows, they are taken and updated batch by batch: see [`Embedding`].
    pub(in crate::train) fn run(
        &self,
        session: &mut Session,
        so_far: &mut BatchedEpoch,
        run: BatchRun<'_>,
        mut on_batch: Option<&mut OnBatch>,
        mut embedding: Option<&mut Embedding>,
    ) -> Result<()> {
        let (began, seconds) = (Instant::now(), so_far.done.seconds[0]);
        let contents = session.batch_contents(PLAIN_EPOCH);
        let metrics: Vec<_> = run.losses.iter().map(|(name, _)| (TRAIN_PHASE, name.as_str())).collect();
        let count = self.drawing.count() as u64;
        let before = (run.epoch - 1) * count;
        let next = so_far.partial.batches;
        let numbers = next as usize..next.saturating_add(run.batches).min(count) as usize;
        let pulls = self.store.as_ref().map(|store| store.begin());
        let edges = self.drawing.begin_drawing();
        let from = Sources { supply: &self.supply, contents: &contents, pulls: pulls.as_ref(), edges: edges.as_ref() };
        let learned = session.learned_slot();
        let fed = self.drawing.each(run.epoch, numbers, &from, |number, mut batch| {
            let seeds = batch.sizes.first().map_or(0, |sizes| sizes.labelled);
            if let Some(signal) = run.signal {
                session.say_signal(signal.load(Ordering::Relaxed));
            }
            let (step, pull) = (before + number as u64 + 1, number as u64);
            let controls = [(Origin::Clock, clock(step))];
            let table = embedding.as_deref_mut().zip(learned);
            let rows = table.map(|(table, slot)| table.give(&mut batch, slot, pull, pulls.as_ref())).transpose()?;
            let done = session.run_batch(PLAIN_EPOCH, &metrics, &controls, batch, [run.traced, run.checked])?;
            if let Some((table, rows)) = embedding.as_deref_mut().zip(rows) {
                let gradients = session.read_of_parts(TRAIN_PHASE, &gradient_name(EMBEDDING))?;
                table.update(rows, gradients, (step, run.lr), pull, pulls.as_ref())?;
            }
            so_far.partial.loss_sum += seeds as f64 * sum_of_terms(&done, run.losses);
            so_far.partial.seeds += seeds;
            so_far.partial.batches = number as u64 + 1;
            so_far.not_finite = done.not_finite.clone();
            so_far.done.add(done);
            if let Some(call) = &mut on_batch {
                call(number as u64 + 1, count);
            }
            let ends = run.signal.is_some_and(|signal| self.is_over(signal, &so_far.done));
            Ok(!ends && so_far.partial.loss_sum.is_finite() && so_far.not_finite.is_none())
        });
        so_far.done.seconds = [seconds + began.elapsed().as_secs_f64(), 0.0];
        let (stages, spans) = fed?;
        so_far.stages.add(stages);
        if let Some(table) = embedding {
            table.count_into(&mut so_far.stages);
        }
        so_far.spans.extend(spans.into_iter().filter(|_| run.traced));
        Ok(())
    }
}
