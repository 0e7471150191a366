//! What a trainer runs in an epoch: its phases over the whole graph, or its mini-batches, and an evaluation.

use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary_kernels::{HostSlot, Shared};

use super::batches::{BatchRun, BatchedEpoch};
use super::{Epoch, StageSeconds, Trainer};
use crate::error::Result;
use crate::infer::Accuracy;
use crate::program::Origin;
use crate::runtime::{Done, Note, StageSpan};

/// Indices of the phases of the lowered programs.
pub(super) const TRAIN_PHASE: usize = 0;
pub(super) const EVALUATE_PHASE: usize = 1;

/// The phases of an epoch with an evaluation, of an epoch without one, and of an evaluation alone.
pub(super) const EVALUATED_EPOCH: &[usize] = &[TRAIN_PHASE, EVALUATE_PHASE];
pub(super) const PLAIN_EPOCH: &[usize] = &[TRAIN_PHASE];
pub(super) const EVALUATION: &[usize] = &[EVALUATE_PHASE];

/// What ran in an epoch.
struct Ran {
    loss: f64,
    /// Whether the last loss is that of the first forward pass: no update was made before it.
    is_first: bool,
    done: Done,
    accuracy: Option<Accuracy>,
    stages: Option<StageSeconds>,
    eval_stages: Option<StageSeconds>,
    stage_spans: Vec<StageSpan>,
}

/// Returns the loss: the sum of its terms, which are the first metrics, over all parts.
pub(super) fn sum_of_terms(done: &Done, losses: &[(String, f64)]) -> f64 {
    let term = |(number, (_, weight)): (usize, &(String, f64))| {
        let parts = done.metric::<f32>(number);
        weight * parts.iter().map(|part| f64::from(part[0])).sum::<f64>()
    };
    losses.iter().enumerate().map(term).sum()
}

/// Returns the value of [`Origin::Clock`] in an epoch.
pub(super) fn clock(epoch: u64) -> HostSlot {
    HostSlot::constant(&Shared::from(vec![epoch, epoch]))
}

impl Trainer {
    /// Runs an epoch on the whole graph, or the next mini-batches of one. Returns `None` before its last batch.
    pub(super) fn run_epoch(&mut self, batches: u64, ends_on_signal: bool) -> Result<Option<Epoch>> {
        let epoch = self.epoch + 1;
        self.session.say(Note { signal: self.signal.load(Ordering::Relaxed), snapshot: self.is_snapshot_due() });
        self.move_if_due(epoch)?;
        let is_timed = self.trace.is_some() || self.record.parts.len() > 1;
        let ran = match &self.setup.batches {
            Some(_) => self.run_batches(epoch, batches, is_timed, ends_on_signal)?,
            None => Some(self.run_whole(epoch, is_timed)?),
        };
        let done_now = ran.as_ref().map_or(&self.progress.done, |ran| &ran.done);
        self.said = Note {
            signal: done_now.signal(),
            // Rank 0 decides.
            snapshot: done_now.notes.first().is_some_and(|note| note.snapshot),
        };
        let Some(Ran { loss, is_first, mut done, accuracy, stages, eval_stages, stage_spans }) = ran else {
            return Ok(None);
        };
        if is_timed {
            self.part_seconds = done.kernel_seconds();
        }
        if let Some(learning) = self.learning.as_mut().filter(|l| is_timed && l.learner.wants(epoch)) {
            learning.learner.observe(&done.spans);
        }
        if let Some(trace) = &mut self.trace {
            trace.set(epoch, std::mem::take(&mut done.spans), stage_spans);
        }
        if !loss.is_finite() {
            return Err(self.diverged(epoch, format!("the loss is {loss}"), is_first));
        }
        self.epoch = epoch;
        if let Some(accuracy) = accuracy {
            self.keep_if_best(accuracy)?;
        }
        let [seconds, eval_seconds] = done.seconds;
        let [bytes_to_device, bytes_to_host] = done.bytes;
        let [bytes_between_devices, planned_bytes_between_devices] = done.bytes_between;
        Ok(Some(Epoch {
            epoch,
            loss,
            accuracy,
            seconds,
            eval_seconds,
            stages,
            eval_stages,
            bytes_to_device,
            bytes_to_host,
            planned_bytes: done.planned_bytes,
            bytes_between_devices,
            planned_bytes_between_devices,
        }))
    }

    /// Runs an epoch on the whole graph.
    fn run_whole(&mut self, epoch: u64, is_timed: bool) -> Result<Ran> {
        let (is_due, phases) = self.phases(epoch);
        let mut metrics: Vec<_> = self.losses.iter().map(|(name, _)| (TRAIN_PHASE, name.as_str())).collect();
        metrics.extend(is_due.then(|| Accuracy::metrics(EVALUATE_PHASE)).into_iter().flatten());
        let done = self.session.run(phases, &metrics, &[(Origin::Clock, clock(epoch))], is_timed)?;
        self.has_gradients = true;
        let loss = sum_of_terms(&done, &self.losses);
        let accuracy = is_due.then(|| Accuracy::sum(&done, self.losses.len()));
        let (stages, eval_stages, stage_spans) = (None, None, Vec::new());
        Ok(Ran { loss, is_first: epoch == 1, done, accuracy, stages, eval_stages, stage_spans })
    }

    /// Runs the next mini-batches of an epoch. After the last one, evaluates the parameters if that is due; before, returns
    /// `None`. A signal ends the run before an evaluation, too.
    fn run_batches(&mut self, epoch: u64, batches: u64, is_timed: bool, ends_on_signal: bool) -> Result<Option<Ran>> {
        let (is_due, _) = self.phases(epoch);
        let signal = self.signal.clone();
        let signal = ends_on_signal.then_some(&*signal);
        let before = self.progress.partial.batches;
        self.feed(epoch, batches, signal, [is_timed, false])?;
        self.has_gradients |= self.progress.partial.batches > before;
        let loss = self.progress.loss();
        let has_more = Some(self.progress.partial.batches) < self.batches_per_epoch();
        let feeder = self.setup.batches.as_ref().map(|(feeder, _)| feeder);
        let is_over = |signal: &AtomicUsize| feeder.is_some_and(|feeder| feeder.is_over(signal, &self.progress.done));
        let ends = is_due && signal.is_some_and(is_over);
        if loss.is_finite() && (has_more || ends) {
            return Ok(None);
        }
        // If it fails, the epoch still lacks it, and the next call tries it again.
        let evaluated = (is_due && loss.is_finite()).then(|| self.run_evaluation(is_timed)).transpose()?;
        let BatchedEpoch { partial, mut done, stages, spans: stage_spans, .. } = std::mem::take(&mut self.progress);
        let eval_stages = evaluated.as_ref().and_then(|(.., stages)| *stages);
        let accuracy = evaluated.map(|(accuracy, mut evaluated, _)| {
            evaluated.seconds = [0.0, evaluated.seconds[0]];
            done.add(evaluated);
            accuracy
        });
        Ok(Some(Ran {
            loss,
            is_first: epoch == 1 && partial.batches == 1,
            done,
            accuracy,
            stages: Some(stages),
            eval_stages,
            stage_spans,
        }))
    }

    /// Evaluates the current parameters, on the whole graph or on mini-batches. Returns the seconds of their stages, too.
    pub(super) fn run_evaluation(&mut self, is_timed: bool) -> Result<(Accuracy, Done, Option<StageSeconds>)> {
        let Self { setup, session, embedding, .. } = self;
        if let Some(evaluator) = &setup.evaluator {
            let (accuracy, done, stages) = evaluator.evaluate(session, embedding.as_mut(), is_timed)?;
            return Ok((accuracy, done, Some(stages)));
        }
        let metrics = Accuracy::metrics(EVALUATE_PHASE);
        let done = match embedding {
            Some(table) => session.run_with_rows(EVALUATION, &metrics, &table.own_rows(), is_timed)?,
            None => session.run(EVALUATION, &metrics, &[], is_timed)?,
        };
        Ok((Accuracy::sum(&done, 0), done, None))
    }

    /// Runs the next mini-batches of an epoch, and adds them to its progress.
    pub(super) fn feed(
        &mut self,
        epoch: u64,
        batches: u64,
        signal: Option<&AtomicUsize>,
        [traced, checked]: [bool; 2],
    ) -> Result<()> {
        let Self { setup, session, losses, on_batch, progress, embedding, record, .. } = self;
        match &setup.batches {
            Some((feeder, _)) => {
                let lr = record.learning_rate;
                let run = BatchRun { epoch, batches, losses, lr, signal, traced, checked };
                feeder.run(session, progress, run, on_batch.as_mut(), embedding.as_mut())
            }
            None => Ok(()),
        }
    }

    /// Returns whether an epoch ends with an evaluation, and its phases.
    pub(super) fn phases(&self, epoch: u64) -> (bool, &'static [usize]) {
        let is_due = self.eval_every > 0 && epoch.is_multiple_of(self.eval_every);
        (is_due, if is_due { EVALUATED_EPOCH } else { PLAIN_EPOCH })
    }
}
