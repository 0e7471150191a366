//! Evaluation: a network's forward program without dropout, and what its logits get right.

use crate::model::{LabelKind, ModelError, Network, Value};
use crate::program::passes::fuse::fuse;
use crate::program::passes::order::{Workload, order};
use crate::program::passes::prune::prune;
use crate::program::{DType, Loss, Origin, Passes, Program, ProgramError, SplitName, TensorId, TensorType, VERTEX_IDS};
use crate::runtime::Done;

/// Share of the labelled vertices of each split that is predicted right, or of a multi-label set its micro-F1; `None` for
/// an empty split.
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
    /// The outputs of [`evaluation_program`], lowered as `phase`, that [`Accuracy::sum`] takes, in its order.
    pub(crate) fn metrics(phase: usize) -> [(usize, &'static str); 3] {
        SPLITS.map(|(name, _)| (phase, name))
    }

    /// What the parts together counted: metrics `first` and the two after it.
    pub(crate) fn sum(done: &Done, first: usize) -> Self {
        let [train, val, test] = [first, first + 1, first + 2].map(|metric| {
            let counts = done.metric::<u64>(metric).into_iter();
            let sum = counts.reduce(|sum, part| sum.iter().zip(part).map(|(a, b)| a + b).collect());
            score(&sum.unwrap_or_default())
        });
        Self { train, val, test }
    }
}

/// Of `[correct, counted]` the share, of `[true positives, false positives, false negatives]` the F1.
fn score(counts: &[u64]) -> Option<f64> {
    let (good, all) = match *counts {
        [tp, fp, fn_] => (2 * tp, 2 * tp + fp + fn_),
        [correct, counted] => (correct, counted),
        _ => unreachable!("there are two kinds of count"),
    };
    (all > 0).then(|| good as f64 / all as f64)
}

/// The outputs of [`evaluation_program`] that count correct predictions.
const SPLITS: [(&str, SplitName); 3] =
    [("train", SplitName::Train), ("val", SplitName::Val), ("test", SplitName::Test)];

/// The output of [`evaluation_program`] that holds one of the network's named outputs.
pub(crate) fn output_name(name: &str) -> String {
    format!("output {name}")
}

/// A network's forward program, made ready to run. Outputs: `logits`, the network's outputs `named`, and for each split what the
/// logits get right.
pub(crate) fn evaluation_program(
    network: Network,
    logits: Value,
    named: &[String],
    labels: LabelKind,
    workload: &Workload,
    passes: Passes,
) -> Result<Program, ModelError> {
    let named = named.iter().map(|name| Ok((output_name(name), dense_logits(network.named(name)?)?)));
    let named = named.collect::<Result<Vec<_>, ModelError>>()?;
    let (mut program, _) = network.into_parts();
    let logits = dense_logits(logits)?;
    program.set_output("logits", logits);
    named.into_iter().for_each(|(name, tensor)| program.set_output(name, tensor));
    for (name, split) in SPLITS {
        let op = match labels {
            LabelKind::Class => Loss::CountCorrect(split),
            LabelKind::Multi => Loss::CountMicro(split),
        };
        let count = push_on_split(&mut program, op, logits, labels)?;
        program.set_output(name, count);
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

/// The tensor behind a network's result.
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
) -> Result<TensorId, ProgramError> {
    let labels = match labels {
        LabelKind::Class => program.input(Origin::Labels, VERTEX_IDS)?,
        LabelKind::Multi => {
            let cells = TensorType { dtype: DType::U8, ..program.tensor(logits).ty };
            program.input(Origin::Targets, cells)?
        }
    };
    let split = program.input(Origin::Split, VERTEX_IDS)?;
    program.push1(op, &[logits, labels, split])
}
