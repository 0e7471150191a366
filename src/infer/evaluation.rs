//! Evaluation: the forward program of a network without dropout, and the accuracy of its logits.

use lapidary_kernels::cpu::{count_correct, count_micro};
use lapidary_kernels::{MatView, MultiTargets, Targets};
use ndarray::ArrayView2;

use crate::dataset::{Dataset, Labels, TEST, TRAIN, VAL};
use crate::model::{LabelKind, ModelError, Network, Value};
use crate::program::passes::fuse::fuse;
use crate::program::passes::order::{Workload, order};
use crate::program::passes::prune::prune;
use crate::program::{
    DType, Loss, Origin, Passes, Program, ProgramError, SplitName, TensorId, TensorType, VERTEX_IDS, over_levels,
};
use crate::runtime::Done;

/// Accuracy on each split, from 0 to 1; `None` for an empty split. With one class per vertex it is the share of the
/// labelled vertices that are predicted correctly; with several classes per vertex it is the micro-F1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// On the training split.
    pub train: Option<f64>,
    /// On the validation split.
    pub val: Option<f64>,
    /// On the test split.
    pub test: Option<f64>,
}

impl Accuracy {
    /// Returns the outputs of [`evaluation_program`], lowered as `phase`, that [`Accuracy::sum`] reads, in its order.
    pub(crate) fn metrics(phase: usize) -> [(usize, &'static str); 3] {
        SPLITS.map(|(name, _)| (phase, name))
    }

    /// Adds the counts of all parts, which are the metrics `first`, `first + 1` and `first + 2`.
    pub(crate) fn sum(done: &Done, first: usize) -> Self {
        let mut counts = Counts::default();
        counts.add(done, first);
        counts.accuracy()
    }
}

/// The counts of predictions on each split, over parts and batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts([Vec<u64>; 3]);

impl Counts {
    /// Adds the counts of all parts, which are the metrics `first`, `first + 1` and `first + 2`.
    pub(crate) fn add(&mut self, done: &Done, first: usize) {
        for (split, sum) in self.0.iter_mut().enumerate() {
            for part in done.metric::<u64>(first + split) {
                sum.resize(part.len(), 0);
                sum.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
            }
        }
    }

    /// Counts the predictions for a dataset. `logits` are `[n, classes]`.
    pub(crate) fn of(logits: ArrayView2<'_, f32>, data: &Dataset) -> Self {
        let cells = logits.to_slice().expect("predictions are row-major");
        let logits = MatView::new(cells, logits.nrows(), logits.ncols()).expect("one row per vertex");
        let split: &[u32] = data.split();
        let count = |select: u32| match data.labels() {
            None => Ok(Vec::new()),
            Some(Labels::Class(labels)) => {
                count_correct(logits, Targets { labels, split, select }).map(|counts| counts.to_vec())
            }
            Some(Labels::Multi { data: targets, classes }) => {
                count_micro(logits, MultiTargets { targets, classes: *classes, split, select })
                    .map(|counts| counts.to_vec())
            }
        };
        Self([TRAIN, VAL, TEST].map(|split| count(split).expect("the shapes are those of the dataset")))
    }

    /// Adds the counts of other predictions.
    pub(crate) fn plus(&mut self, others: &Self) {
        for (sum, counts) in self.0.iter_mut().zip(&others.0) {
            sum.resize(sum.len().max(counts.len()), 0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Returns the accuracy; `None` on all splits if nothing was added.
    pub(crate) fn accuracy(&self) -> Accuracy {
        let [train, val, test] = self.0.each_ref().map(|counts| score(counts));
        Accuracy { train, val, test }
    }
}

/// Returns the accuracy for `[correct, counted]`, or the F1 for `[true positives, false positives, false negatives]`.
fn score(counts: &[u64]) -> Option<f64> {
    let (good, all) = match *counts {
        [tp, fp, fn_] => (2 * tp, 2 * tp + fp + fn_),
        [correct, counted] => (correct, counted),
        [] => (0, 0),
        _ => unreachable!("there are two kinds of count"),
    };
    (all > 0).then(|| good as f64 / all as f64)
}

/// Outputs of [`evaluation_program`] that count predictions, with their splits.
const SPLITS: [(&str, SplitName); 3] =
    [("train", SplitName::Train), ("val", SplitName::Val), ("test", SplitName::Test)];

/// The output of [`evaluation_program`] that holds the logits.
pub(crate) const LOGITS: &str = "logits";

/// Returns the name of the output of [`evaluation_program`] that holds one of the network's named outputs.
pub(crate) fn output_name(name: &str) -> String {
    format!("output {name}")
}

/// Completes the forward program of a network and applies the passes. Its outputs are `logits`, the network's outputs
/// `named`, and for each split the counts of predictions, if there are `labels` to count them by. If `layers` is given, it
/// is for mini-batches with so many.
pub(crate) fn evaluation_program(
    network: Network,
    logits: Value,
    named: &[String],
    labels: Option<LabelKind>,
    workload: &Workload,
    passes: Passes,
    layers: Option<usize>,
) -> Result<Program, ModelError> {
    let named = named.iter().map(|name| Ok((output_name(name), dense_logits(network.named(name)?)?)));
    let named = named.collect::<Result<Vec<_>, ModelError>>()?;
    let (mut program, _) = network.into_parts();
    let logits = dense_logits(logits)?;
    program.set_output(LOGITS, logits);
    named.into_iter().for_each(|(name, tensor)| program.set_output(name, tensor));
    for (labels, (name, split)) in labels.into_iter().flat_map(|labels| SPLITS.map(|split| (labels, split))) {
        let op = match labels {
            LabelKind::Class => Loss::CountCorrect(split),
            LabelKind::Multi => Loss::CountMicro(split),
        };
        let count = push_on_split(&mut program, op, logits, labels, &[])?;
        program.set_output(name, count);
    }
    if let Some(layers) = layers {
        let keeps = workload.levels.is_some_and(|sizes| sizes.kept > 0);
        program = over_levels(&program, layers, keeps)?;
    }
    if passes.order {
        order(&mut program, workload)?;
    }
    if passes.prune {
        prune(&mut program);
    }
    if passes.fuse {
        fuse(&mut program);
    }
    Ok(program)
}

/// Returns the tensor of a network's result.
pub(crate) fn dense_logits(logits: Value) -> Result<TensorId, ModelError> {
    match logits {
        Value::Dense(tensor) => Ok(tensor),
        Value::Sparse { .. } => Err(ModelError::SparseInput { op: "the end of a network" }),
    }
}

/// Appends an operation on logits, labels and splits: a loss or a count.
pub(crate) fn push_on_split(
    program: &mut Program,
    op: Loss,
    logits: TensorId,
    labels: LabelKind,
    others: &[TensorId],
) -> Result<TensorId, ProgramError> {
    let labels = match labels {
        LabelKind::Class => program.input(Origin::Labels, VERTEX_IDS)?,
        LabelKind::Multi => {
            let cells = TensorType { dtype: DType::U8, ..program.tensor(logits).ty };
            program.input(Origin::Targets, cells)?
        }
    };
    let split = program.input(Origin::Split, VERTEX_IDS)?;
    program.push1(op, &[&[logits, labels, split], others].concat())
}
