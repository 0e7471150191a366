//! Batches of graphs: small ones that run together in one pass, side by side as one graph.

use std::collections::BTreeMap;
use std::time::Instant;

use lapidary_kernels::SpareArrays;
use ndarray::{ArcArray2, Array2, s};

use super::evaluation::Counts;
use super::pass::Pass;
use super::size::is_small;
use super::spare_devices::SpareDevices;
use super::spare_rows::SpareRows;
use super::{Accuracy, Predictor};
use crate::bind::watched;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::runtime::Plans;

/// A joined graph has offsets, sources, weights and features.
const MOST_ARRAYS: usize = 4;

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
    pub(super) counts: Counts,
}

/// The predictions for the graphs of a batch. If one failed, those for the graphs before it, and its error.
pub(super) struct BatchPredictions {
    pub(super) graphs: Vec<GraphPrediction>,
    pub(super) failed: Option<Error>,
}

/// What a batch leaves for the next one, if that is alike. It holds at most 1.5 times the memory of a batch on the device, and
/// beside it that of one batch.
#[derive(Default)]
pub(super) struct Lane {
    plans: Option<Plans>,
    devices: SpareDevices,
    arrays: Option<SpareArrays>,
    rows: SpareRows,
}

impl Predictor {
    /// Runs a batch, with what the batch before it has left, and leaves as much. If that fails, its graphs run one by one, so
    /// that the error is that of one graph, and those before it have their predictions.
    pub(super) fn run_batch(&self, batch: &[Dataset], lane: &mut Lane) -> BatchPredictions {
        let mut found = BatchPredictions { graphs: Vec::new(), failed: None };
        match self.run_joined(batch, lane) {
            Ok(graphs) => found.graphs = graphs,
            // Other ranks may not have failed, and would not run graphs again.
            Err(error) if batch.len() == 1 || self.options.ranks.count() > 1 => found.failed = Some(error),
            Err(_) => {
                let alone = batch.chunks(1).map_while(|data| {
                    let made = self.run_joined(data, lane);
                    made.map_err(|error| found.failed = Some(error)).ok()
                });
                found.graphs = alone.flatten().collect();
            }
        }
        found
    }

    /// Runs the graphs of a batch together.
    fn run_joined(&self, batch: &[Dataset], lane: &mut Lane) -> Result<Vec<GraphPrediction>> {
        batch.iter().try_for_each(|data| self.check_classes(data))?;
        let joined = match batch {
            [only] => only.clone(),
            _ => {
                let arrays = lane.arrays.get_or_insert_with(|| SpareArrays::new(MOST_ARRAYS));
                Dataset::joined_unlabelled(batch, arrays)?
            }
        };
        lane.rows.next_batch();
        let prediction = self.options.ranks.telling(watched(&joined, || {
            // The predictions of each graph are counted below.
            let pass = Pass::uncounted(self, &joined)?;
            let mut session = pass.open_on(self, lane.plans.as_ref(), lane.devices.take(self))?;
            let prediction = pass.run_into(self, &mut session, Instant::now(), &mut lane.rows)?;
            let (plans, idle) = session.into_plans_and_devices();
            lane.plans = Some(plans);
            lane.devices.keep(self, &joined, idle);
            Ok(prediction)
        }))?;
        let keeps = is_small(&joined);
        let mut share = |all: Array2<f32>| if keeps { lane.rows.lend(all) } else { all.into_shared() };
        let logits = share(prediction.logits);
        let outputs: BTreeMap<_, _> = prediction.outputs.into_iter().map(|(name, all)| (name, share(all))).collect();
        let mut first = 0;
        let own = batch.iter().map(|data| {
            let rows = first..first + data.graph().vertex_count();
            first = rows.end;
            let of_graph = |all: &ArcArray2<f32>| all.clone().slice_move(s![rows.clone(), ..]);
            let logits = of_graph(&logits);
            let outputs = outputs.iter().map(|(name, all)| (name.clone(), of_graph(all))).collect();
            let counts = Counts::of(logits.view(), data);
            GraphPrediction { accuracy: counts.accuracy(), data: data.clone(), logits, outputs, counts }
        });
        Ok(own.collect())
    }
}
