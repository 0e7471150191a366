//! The programs of an epoch: one training step, and an evaluation of what it leaves.

use crate::model::{FeatureKind, Mode, Model, ModelError, Network, Parameter, Value};
use crate::program::passes::order::{Workload, order};
use crate::program::passes::prune::prune;
use crate::program::{
    DType, Op, Origin, Passes, Program, ProgramError, RowSpace, SplitName, TensorId, TensorType, append_backward,
};

use super::optimizer::append_updates;
use super::{DecayLayers, Optimizer};

/// What the programs of an epoch are written for.
pub(super) struct EpochSpec<'a> {
    pub model: &'a Model,
    pub features: FeatureKind,
    pub vertices: u64,
    pub edges: u64,
    pub optimizer: &'a Optimizer,
    pub decay: DecayLayers,
    pub passes: Passes,
}

/// How often an epoch's program is taken to run, when the number of epochs is not known: what decides whether work that
/// can be done once is worth it.
const EXPECTED_EPOCHS: u64 = 100;

/// The gradient of a parameter among the outputs of [`training_program`].
pub(super) fn gradient_name(parameter: &str) -> String {
    format!("gradient {parameter}")
}

/// One step on the training split. Outputs: `loss`, and each parameter's gradient.
pub(super) fn training_program(spec: &EpochSpec<'_>) -> Result<(Program, Vec<Parameter>), ModelError> {
    let (network, logits) = spec.model.network(spec.features, Mode::Train)?;
    let (mut program, parameters) = network.into_parts();
    let loss = push_on_split(&mut program, Op::SoftmaxCrossEntropy { split: SplitName::Train }, tensor(logits)?)?;
    program.set_output("loss", loss);
    if spec.passes.order {
        order(&mut program, &spec.workload(true))?;
    }
    let gradients = append_backward(&mut program, loss)?;
    append_updates(&mut program, &parameters, &gradients, spec.optimizer, spec.decay)?;
    for (name, gradient) in &gradients {
        program.set_output(gradient_name(name), *gradient);
    }
    if spec.passes.prune {
        prune(&mut program);
    }
    Ok((program, parameters))
}

/// The forward program without dropout. Outputs: `logits`, and for each split how many labels they get right.
pub(super) fn evaluation_program(spec: &EpochSpec<'_>) -> Result<Program, ModelError> {
    let (network, logits) = spec.model.network(spec.features, Mode::Evaluate)?;
    inference_program(network, logits, &spec.workload(false), spec.passes)
}

/// A network's forward program, made ready to run.
pub(crate) fn inference_program(
    network: Network,
    logits: Value,
    workload: &Workload,
    passes: Passes,
) -> Result<Program, ModelError> {
    let (mut program, _) = network.into_parts();
    let logits = tensor(logits)?;
    program.set_output("logits", logits);
    for (name, split) in SPLITS {
        let count = push_on_split(&mut program, Op::CountCorrect { split }, logits)?;
        program.set_output(name, count);
    }
    if passes.order {
        order(&mut program, workload)?;
    }
    if passes.prune {
        prune(&mut program);
    }
    Ok(program)
}

/// The outputs of [`inference_program`] that count correct predictions.
pub(crate) const SPLITS: [(&str, SplitName); 3] =
    [("train", SplitName::Train), ("val", SplitName::Val), ("test", SplitName::Test)];

impl EpochSpec<'_> {
    fn workload(&self, backward: bool) -> Workload {
        Workload { vertices: self.vertices, edges: self.edges, backward, runs: EXPECTED_EPOCHS }
    }
}

fn tensor(logits: Value) -> Result<TensorId, ModelError> {
    match logits {
        Value::Dense(tensor) => Ok(tensor),
        Value::Sparse { .. } => Err(ModelError::SparseInput { op: "the loss" }),
    }
}

fn push_on_split(program: &mut Program, op: Op, logits: TensorId) -> Result<TensorId, ProgramError> {
    let ids = TensorType { rows: RowSpace::Vertices, width: 1, dtype: DType::U32 };
    let labels = program.input(Origin::Labels, ids)?;
    let split = program.input(Origin::Split, ids)?;
    program.push1(op, &[logits, labels, split])
}
