//! Predictions for many graphs: small ones run together.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::resume_unwind;
use std::time::Instant;

use lapidary_kernels::SpareArrays;
use ndarray::{ArcArray2, Array2, s};

use super::evaluation::Counts;
use super::pass::Pass;
use super::spare_rows::SpareRows;
use super::{Accuracy, Predictor};
use crate::bind::{label_kind, watched};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::model::LabelKind;
use crate::runtime::{Devices, IdleDevice, Plans, RunOptions};

/// A batch takes graphs until it has so many vertices and edges. A larger one leaves the caches; a smaller one spends more of
/// its time on its preparation.
const BATCH_SIZE: usize = 1 << 18;

/// The predictions of a model for one of many graphs.
#[derive(Clone, Debug)]
pub struct GraphPrediction {
    /// The graph.
    pub data: Dataset,
    /// `[n, classes]`: unnormalised log-probabilities, in the order of `data`; see [`Dataset::permutation`]. They are rows of
    /// a matrix that all graphs of a batch share; `to_owned` copies them.
    pub logits: ArcArray2<f32>,
    /// The outputs that [`Predictor::outputs`] requested, by name: `[n, width]`.
    pub outputs: BTreeMap<String, ArcArray2<f32>>,
    /// Accuracy of the logits on the labels of the graph.
    pub accuracy: Accuracy,
    counts: Counts,
}

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
    /// For each of the batches that run side by side, what the one before has left.
    lanes: Vec<Lane>,
    /// The counts of the predictions that were taken, by the kind of label.
    counts: BTreeMap<LabelKind, Counts>,
    batches: u64,
    seconds: f64,
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
    /// them. On the CPU, each core has a batch of its own. Graphs are taken from `data` as they are needed, so only one batch
    /// for each core is in memory. Logits agree with those of [`Predictor::predict`] up to rounding.
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
    /// An item is an error of `data`, or one of [`Predictor::run`]. No item follows an error.
    /// # Cost
    /// A copy of each graph that shares its batch, and its pass. Between batches, a core keeps the memory of one, so that it is
    /// used again; that of predictions if they were dropped.
    pub fn predictions<I: IntoIterator<Item = Result<Dataset>>>(&self, data: I) -> Predictions<'_, I::IntoIter> {
        Predictions {
            predictor: self,
            data: Some(data.into_iter()),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            failed: None,
            lanes: Vec::new(),
            counts: BTreeMap::new(),
            batches: 0,
            seconds: 0.0,
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

    /// Returns the seconds of all passes so far, with planning and setup, and without the time to get the graphs.
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

    /// Returns the next batches: those that run side by side, or one.
    fn take_batches(&mut self) -> Vec<Vec<Dataset>> {
        let RunOptions { devices, device_memory, ranks, .. } = &self.predictor.options;
        // A limit of memory is for all of them together.
        let is_single = ranks.count() > 1 || device_memory.is_some();
        let lanes = if is_single { 1 } else { devices.lanes() };
        let mut batches = Vec::new();
        while batches.len() < lanes {
            let batch = self.take_batch();
            match &batch[..] {
                [] => break,
                // A large graph has all cores.
                [large] if size(large) > BATCH_SIZE => {
                    if batches.is_empty() {
                        return vec![batch];
                    }
                    self.waiting.push_front(large.clone());
                    break;
                }
                _ => batches.push(batch),
            }
        }
        batches
    }

    /// Runs batches side by side.
    fn run(&mut self, batches: Vec<Vec<Dataset>>) -> Result<()> {
        let (start, count) = (Instant::now(), batches.len());
        self.lanes.resize_with(count.max(self.lanes.len()), Lane::default);
        let done: Vec<Result<Vec<GraphPrediction>>> = match count {
            1 => batches.into_iter().map(|batch| self.predictor.run_batch(batch, &mut self.lanes[0])).collect(),
            _ => {
                let options = &self.predictor.options;
                let options = RunOptions { devices: options.devices.one_thread(), ..options.clone() };
                let alone = self.predictor.clone().options(options);
                std::thread::scope(|scope| {
                    let run = |(batch, lane)| scope.spawn(|| alone.run_batch(batch, lane));
                    let running: Vec<_> = batches.into_iter().zip(&mut self.lanes).map(run).collect();
                    running.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
                })
            }
        };
        self.batches += count as u64;
        self.seconds += start.elapsed().as_secs_f64();
        for predictions in done {
            self.ready.extend(predictions?);
        }
        Ok(())
    }
}

/// Returns the number of vertices and edges.
fn size(data: &Dataset) -> usize {
    data.graph().vertex_count() + data.graph().edge_count()
}

/// Returns whether the devices that ran this graph or batch are kept for the next one, with their memory. Memory of a large
/// graph would be kept beside later ones.
pub(super) fn leaves_devices(predictor: &Predictor, data: &Dataset) -> bool {
    predictor.options.devices.in_place() && size(data) <= BATCH_SIZE
}

/// What a batch leaves for the next one, if that is alike. It holds at most 1.5 times the memory of a batch on the device, and
/// beside it that of one batch.
#[derive(Default)]
struct Lane {
    plans: Option<Plans>,
    /// The devices, and how they were opened.
    devices: Option<(Devices, Vec<IdleDevice>)>,
    arrays: Option<SpareArrays>,
    rows: SpareRows,
}

/// A joined graph has offsets, sources, weights and features.
const MOST_ARRAYS: usize = 4;

impl Predictor {
    /// Runs a batch, with what the batch before it has left, and leaves as much.
    fn run_batch(&self, batch: Vec<Dataset>, lane: &mut Lane) -> Result<Vec<GraphPrediction>> {
        batch.iter().try_for_each(|data| self.check_classes(data))?;
        let joined = match &batch[..] {
            [only] => only.clone(),
            _ => {
                let arrays = lane.arrays.get_or_insert_with(|| SpareArrays::new(MOST_ARRAYS));
                Dataset::joined_unlabelled(&batch, arrays)?
            }
        };
        lane.rows.next_batch();
        let prediction = self.options.ranks.telling(watched(&joined, || {
            // The predictions of each graph are counted below.
            let pass = Pass::uncounted(self, &joined)?;
            let idle = lane.devices.take().filter(|(devices, _)| *devices == self.options.devices);
            let idle = idle.map_or_else(Vec::new, |(_, idle)| idle);
            let mut session = pass.open_on(self, lane.plans.as_ref(), idle)?;
            let prediction = pass.run_into(self, &mut session, Instant::now(), &mut lane.rows)?;
            let (plans, idle) = session.into_plans_and_devices();
            lane.plans = Some(plans);
            lane.devices = leaves_devices(self, &joined).then(|| (self.options.devices.clone(), idle));
            Ok(prediction)
        }))?;
        let keeps = size(&joined) <= BATCH_SIZE;
        let mut share = |all: Array2<f32>| if keeps { lane.rows.lend(all) } else { all.into_shared() };
        let logits = share(prediction.logits);
        let outputs: BTreeMap<_, _> = prediction.outputs.into_iter().map(|(name, all)| (name, share(all))).collect();
        let mut first = 0;
        let own = batch.into_iter().map(|data| {
            let rows = first..first + data.graph().vertex_count();
            first = rows.end;
            let of_graph = |all: &ArcArray2<f32>| all.clone().slice_move(s![rows.clone(), ..]);
            let logits = of_graph(&logits);
            let outputs = outputs.iter().map(|(name, all)| (name.clone(), of_graph(all))).collect();
            let counts = Counts::of(logits.view(), &data);
            GraphPrediction { accuracy: counts.accuracy(), data, logits, outputs, counts }
        });
        Ok(own.collect())
    }
}

impl<I: Iterator<Item = Result<Dataset>>> Iterator for Predictions<'_, I> {
    type Item = Result<GraphPrediction>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() && (self.failed.is_none() || !self.waiting.is_empty()) {
            let batches = self.take_batches();
            if !batches.is_empty()
                && let Err(error) = self.run(batches)
            {
                (self.failed, self.data) = (Some(error), None);
                self.waiting.clear();
            }
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
