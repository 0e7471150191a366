//! An epoch of mini-batches.

use std::time::Instant;

use super::{Drawing, Sources, StageSeconds};
use crate::error::{NotFinite, Result};
use crate::lower::BatchSupply;
use crate::program::Origin;
use crate::ranks::RowStore;
use crate::runtime::{Done, Session};
use crate::train::trainer::{PLAIN_EPOCH, TRAIN_PHASE, clock, sum_of_terms};

/// The mini-batches of a trainer.
pub(in crate::train) struct Feeder {
    pub drawing: Drawing,
    pub supply: BatchSupply,
    /// The features of all ranks, if there are several.
    pub store: Option<RowStore>,
}

/// What is called after each batch, with its number in the epoch, from 1, and the number of batches.
pub(in crate::train) type OnBatch = Box<dyn FnMut(u64, u64) + Send>;

/// What an epoch of mini-batches returns.
#[derive(Default)]
pub(in crate::train) struct BatchedEpoch {
    /// The mean loss over all seeds.
    pub loss: f64,
    /// The sums over all batches. Metrics are those of the last batch.
    pub done: Done,
    pub stages: StageSeconds,
    /// The first number that was not finite, if they were checked.
    pub not_finite: Option<NotFinite>,
}

impl Feeder {
    /// Runs an epoch. `losses` are the names and weights of the terms of the loss. An epoch ends early if its loss is not
    /// finite, or if a number is not finite and all are checked.
    pub(in crate::train) fn run(
        &self,
        session: &mut Session,
        epoch: u64,
        losses: &[(String, f64)],
        [traced, checked]: [bool; 2],
        mut on_batch: Option<&mut OnBatch>,
    ) -> Result<BatchedEpoch> {
        let began = Instant::now();
        let contents = session.batch_contents();
        let metrics: Vec<_> = losses.iter().map(|(name, _)| (TRAIN_PHASE, name.as_str())).collect();
        let (mut all, mut sum, mut seeds) = (BatchedEpoch::default(), 0.0f64, 0);
        let count = self.drawing.count() as u64;
        let before = (epoch - 1) * count;
        let pulls = self.store.as_ref().map(RowStore::begin);
        let from = Sources { supply: &self.supply, contents: &contents, pulls: pulls.as_ref() };
        all.stages = self.drawing.each(epoch, &from, |number, batch| {
            let of_batch = batch.sizes.first().map_or(0, |sizes| sizes.labelled);
            let controls = [(Origin::Clock, clock(before + number as u64 + 1))];
            let done = session.run_batch(PLAIN_EPOCH, &metrics, &controls, batch, [traced, checked])?;
            sum += of_batch as f64 * sum_of_terms(&done, losses);
            seeds += of_batch;
            all.not_finite = done.not_finite.clone();
            all.done.add(done);
            if let Some(call) = &mut on_batch {
                call(number as u64 + 1, count);
            }
            Ok(sum.is_finite() && all.not_finite.is_none())
        })?;
        all.loss = sum / seeds as f64;
        all.done.seconds = [began.elapsed().as_secs_f64(), 0.0];
        Ok(all)
    }
}
