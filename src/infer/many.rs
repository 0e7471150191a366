//! Predictions for many graphs: small ones run together.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use super::batch::{GraphPrediction, Lane};
use super::evaluation::Counts;
use super::lanes::Lanes;
use super::size::{BATCH_SIZE, is_small, size};
use super::{Accuracy, Predictor};
use crate::bind::label_kind;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::model::LabelKind;
use crate::runtime::RunOptions;

/// The predictions for many graphs, in their order. [`Predictor::predictions`] makes them.
pub struct Predictions<'a, I> {
    predictor: &'a Predictor,
    /// `None` after an error.
    data: Option<I>,
    /// Graphs for which the last batch had no room, in order.
    waiting: VecDeque<Dataset>,
    /// Predictions that were not taken yet.
    ready: VecDeque<GraphPrediction>,
    /// The error after them, if there is one.
    failed: Option<Error>,
    /// The batches that run side by side, once there are several.
    lanes: Option<Lanes>,
    /// A batch that runs on all cores, after those.
    alone: Option<Vec<Dataset>>,
    /// What the last such batch has left.
    lane: Lane,
    /// The counts of the predictions that were taken, by the kind of label.
    counts: BTreeMap<LabelKind, Counts>,
    batches: u64,
    /// The seconds in which a batch ran, and when the last one ended.
    seconds: f64,
    ended: Instant,
}

impl<I> fmt::Debug for Predictions<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { predictor, batches, seconds, .. } = self;
        let mut shown = f.debug_struct("Predictions");
        shown.field("predictor", predictor).field("batches", batches).field("seconds", seconds).finish_non_exhaustive()
    }
}

impl Predictor {
    /// Predicts for many graphs, in their order. Small graphs run together: side by side in one pass, with no edge between
    /// them. On the CPU, each core has a batch of its own. Graphs are taken from `data` as they are needed, so two batches more
    /// than there are cores are in memory. Logits agree with those of [`Predictor::predict`] up to rounding.
    ///
    /// ```
    /// use lapidary::{Dataset, Model, Trainer};
    ///
    /// let data = Dataset::builtin("karate")?;
    /// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
    /// let predictor = Trainer::builder(&model, &data).build()?.predictor()?;
    /// let graphs = vec![data; 1000];
    /// for prediction in predictor.predictions(graphs.into_iter().map(Ok)) {
    ///     assert_eq!(prediction?.logits.dim(), (34, 2));
    /// }
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    ///
    /// # Errors
    /// An item is an error of `data`, or one of [`Predictor::run`] for the graph of this item. No item follows an error.
    /// # Cost
    /// A copy of each graph that shares its batch, and its pass; the graphs of a batch that fails run again, one by one.
    /// Between batches, a core keeps the memory of one, so that it is used again; that of the predictions of two, if they
    /// were dropped.
    pub fn predictions<I: IntoIterator<Item = Result<Dataset>>>(&self, data: I) -> Predictions<'_, I::IntoIter> {
        Predictions {
            predictor: self,
            data: Some(data.into_iter()),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            failed: None,
            lanes: None,
            alone: None,
            lane: Lane::default(),
            counts: BTreeMap::new(),
            batches: 0,
            seconds: 0.0,
            ended: Instant::now(),
        }
    }
}

impl<I: Iterator<Item = Result<Dataset>>> Predictions<'_, I> {
    /// Returns the accuracy over the labelled graphs so far, and the kind of their labels. With one label per vertex it is
    /// another score than with several, so there is one for each kind.
    pub fn accuracies(&self) -> impl Iterator<Item = (LabelKind, Accuracy)> {
        self.counts.iter().map(|(kind, counts)| (*kind, counts.accuracy()))
    }

    /// Returns the number of passes so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the seconds so far in which a pass ran, with planning and setup. Graphs are taken meanwhile.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns the graphs of the next batch; none at the end of the data. An error of the data comes after the batch.
    fn take_batch(&mut self) -> Vec<Dataset> {
        // A learned embedding has rows for the vertices of one graph.
        let most = if self.predictor.embedding().is_some() { 0 } else { BATCH_SIZE };
        let (mut batch, mut total, mut norm) = (Vec::<Dataset>::new(), 0, None);
        while let Some(data) = self.waiting.pop_front().map(Ok).or_else(|| self.data.as_mut()?.next()) {
            match data {
                Err(error) => {
                    (self.failed, self.data) = (Some(error), None);
                    break;
                }
                Ok(data) => {
                    total += size(&data);
                    // The normalisation must be that of each graph alone.
                    let own = self.predictor.feature_norm.unwrap_or_else(|| data.default_feature_norm());
                    let beside = |first: &Dataset| data.check_beside(first).is_ok() && norm == Some(own);
                    let fits = batch.first().is_none_or(|first| total <= most && beside(first));
                    norm = Some(own);
                    if !fits {
                        self.waiting.push_front(data);
                        break;
                    }
                    batch.push(data);
                }
            }
        }
        batch
    }

    /// Returns how many batches can run side by side.
    fn cores(&self) -> usize {
        let RunOptions { devices, device_memory, ranks, .. } = &self.predictor.options;
        // A limit of memory is for all of them together.
        let is_single = ranks.count() > 1 || device_memory.is_some();
        if is_single { 1 } else { devices.lanes() }
    }

    /// Takes batches for all lanes, or one that runs alone: if it is large, or if there is no other.
    ///
    /// # Errors
    /// [`Error::Device`] if the lanes do not start.
    fn take_batches(&mut self) -> Result<()> {
        let (cores, mut first) = (self.cores(), None);
        while self.alone.is_none() && self.lanes.as_ref().is_none_or(Lanes::has_place) {
            let batch = self.take_batch();
            let is_large = matches!(&batch[..], [large] if !is_small(large));
            if cores == 1 || (is_large && first.is_none()) {
                self.alone = Some(batch).filter(|batch| !batch.is_empty());
                break;
            }
            if batch.is_empty() || is_large {
                batch.into_iter().for_each(|large| self.waiting.push_front(large));
                self.alone = first;
                break;
            }
            // The first one may be the only one.
            let runs_beside = self.lanes.as_ref().is_some_and(|lanes| lanes.count() > 0);
            if first.is_none() && !runs_beside {
                first = Some(batch);
                continue;
            }
            let lanes = match &mut self.lanes {
                Some(lanes) => lanes,
                none => none.insert(Lanes::start(self.predictor, cores)?),
            };
            first.take().into_iter().chain([batch]).for_each(|batch| lanes.give(batch));
        }
        Ok(())
    }

    /// Makes the predictions of the next batch ready, if there is one.
    fn next_batch(&mut self) -> Result<()> {
        self.take_batches()?;
        let start = Instant::now();
        let ([began, ended], done) = match &mut self.lanes {
            Some(lanes) if lanes.count() > 0 => lanes.take(),
            _ => match self.alone.take() {
                Some(batch) => {
                    let done = self.predictor.run_batch(&batch, &mut self.lane);
                    ([start, Instant::now()], done)
                }
                None => return Ok(()),
            },
        };
        self.batches += u64::from(!done.graphs.is_empty());
        // Several may have run at a time, which counts once.
        self.seconds += ended.saturating_duration_since(began.max(self.ended)).as_secs_f64();
        self.ended = ended.max(self.ended);
        self.ready.extend(done.graphs);
        done.failed.map_or(Ok(()), Err)
    }
}

impl<I: Iterator<Item = Result<Dataset>>> Iterator for Predictions<'_, I> {
    type Item = Result<GraphPrediction>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty()
            && let Err(error) = self.next_batch()
        {
            (self.failed, self.data, self.lanes, self.alone) = (Some(error), None, None, None);
            self.waiting.clear();
        }
        match self.ready.pop_front() {
            Some(prediction) => {
                if prediction.data.labels().is_some() {
                    self.counts.entry(label_kind(&prediction.data)).or_default().plus(&prediction.counts);
                }
                Some(Ok(prediction))
            }
            None => self.failed.take().map(Err),
        }
    }
}
