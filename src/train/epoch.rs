//! The programs of an epoch: one training step, and an evaluation of what it leaves.

use lapidary_kernels::StorageType;

use crate::infer::{self, dense_logits, push_on_split};
use crate::model::{FeatureKind, LabelKind, Mode, Model, ModelError, Parameter};
use crate::program::passes::fuse::fuse;
use crate::program::passes::order::{Workload, order};
use crate::program::passes::prune::prune;
use crate::program::passes::reuse::reuse;
use crate::program::{Loss, Passes, Program, SplitName, append_backward};

use super::optimizer::append_updates;
use super::{DecayLayers, Optimizer};

/// What the programs of an epoch are written for.
pub(crate) struct EpochSpec<'a> {
    pub model: &'a Model,
    pub features: FeatureKind,
    pub labels: LabelKind,
    pub vertices: u64,
    pub edges: u64,
    pub optimizer: &'a Optimizer,
    pub decay: DecayLayers,
    pub passes: Passes,
    /// How rows of vertices are stored.
    pub dtype: StorageType,
}

/// How often an epoch's program is taken to run, when the number of epochs is not known: what decides whether work that
/// can be done once is worth it.
pub(super) const EXPECTED_EPOCHS: u64 = 100;

/// The gradient of a parameter among the outputs of [`training_program`].
pub(super) fn gradient_name(parameter: &str) -> String {
    format!("gradient {parameter}")
}

/// One step on the training split. Outputs: `loss`, and each parameter's gradient.
pub(crate) fn training_program(spec: &EpochSpec<'_>) -> Result<(Program, Vec<Parameter>), ModelError> {
    let (network, logits) = spec.model.network(spec.features, Mode::Train, spec.dtype)?;
    let (mut program, parameters) = network.into_parts();
    let split = SplitName::Train;
    let loss = match spec.labels {
        LabelKind::Class => Loss::SoftmaxCrossEntropy(split),
        LabelKind::Multi => Loss::SigmoidCrossEntropy(split),
    };
    let loss = push_on_split(&mut program, loss, dense_logits(logits)?, spec.labels)?;
    program.set_output("loss", loss);
    if spec.passes.order {
        order(&mut program, &spec.workload(true))?;
    }
    let gradients = append_backward(&mut program, loss)?;
    if let Some(unused) = parameters.iter().find(|p| p.trained && !gradients.contains_key(&p.name)) {
        return Err(ModelError::UnusedParameter { name: unused.name.clone() });
    }
    append_updates(&mut program, &parameters, &gradients, spec.optimizer, spec.decay)?;
    for (name, gradient) in &gradients {
        program.set_output(gradient_name(name), *gradient);
    }
    if spec.passes.prune {
        prune(&mut program);
    }
    if spec.passes.reuse {
        reuse(&mut program);
    }
    if spec.passes.fuse {
        fuse(&mut program);
    }
    Ok((program, parameters))
}

/// The forward program without dropout; see [`infer::evaluation_program`].
pub(crate) fn evaluation_program(spec: &EpochSpec<'_>) -> Result<Program, ModelError> {
    let (network, logits) = spec.model.network(spec.features, Mode::Evaluate, spec.dtype)?;
    infer::evaluation_program(network, logits, spec.labels, &spec.workload(false), spec.passes)
}

impl EpochSpec<'_> {
    fn workload(&self, backward: bool) -> Workload {
        Workload { vertices: self.vertices, edges: self.edges, backward, runs: EXPECTED_EPOCHS }
    }
}
