//! The programs of an epoch: one training step, and an evaluation of the updated parameters.

use lapidary_kernels::StorageType;

use crate::infer::{self, push_on_split};
use crate::model::{FeatureKind, LabelKind, LossKind, LossTerm, Mode, Model, ModelError, Parameter};
use crate::program::passes::columns::columns;
use crate::program::passes::fuse::fuse;
use crate::program::passes::order::{Workload, order};
use crate::program::passes::pieces::pieces;
use crate::program::passes::prune::prune;
use crate::program::passes::recompute::{Extent, recompute};
use crate::program::passes::reuse::reuse;
use crate::program::{
    EMBEDDING, LevelSizes, Loss, Origin, Passes, Program, Recompute, RowSpace, SplitName, Strips, TensorId, TensorType,
    append_backward, over_levels,
};

use super::optimizer::append_updates;
use super::{DecayLayers, Optimizer};

/// Inputs of [`training_program`] and [`evaluation_program`].
pub(crate) struct EpochSpec<'a> {
    pub model: &'a Model,
    pub features: FeatureKind,
    pub labels: LabelKind,
    pub vertices: u64,
    pub edges: u64,
    pub optimizer: &'a Optimizer,
    pub decay: DecayLayers,
    /// Whether classes count differently in the loss.
    pub weighted_classes: bool,
    pub passes: Passes,
    /// Whether the backward part makes tensors again. Mini-batches never do.
    pub recompute: Recompute,
    /// Into how many strips of columns wide matrices are cut. Mini-batches have one.
    pub strips: Strips,
    /// Number of parts. Gathers over the graph run again only if there is one, since several exchange rows.
    pub parts: usize,
    /// Storage type of matrices with one row per vertex.
    pub dtype: StorageType,
    /// Whether the gradients of parameters are outputs. Those of a learned embedding always are.
    pub keeps_gradients: bool,
    /// The number of layers and the expected sizes of mini-batches, if the training program is for them.
    pub batches: Option<(usize, LevelSizes)>,
}

/// Number of epochs to assume if it is not known. It decides whether work that can be done once is hoisted out of the
/// epoch.
pub(super) const EXPECTED_EPOCHS: u64 = 100;

/// Returns the name of the output of [`training_program`] that holds the gradient of a parameter.
pub(crate) fn gradient_name(parameter: &str) -> String {
    format!("gradient {parameter}")
}

/// The programs of training and evaluation in a variant with the same results.
#[derive(Clone, Debug)]
pub(crate) struct Instead {
    pub training: Program,
    pub evaluation: Program,
    /// Number of strips of columns that wide matrices are cut into.
    pub strips: usize,
}

/// The programs of an epoch. The outputs of training are the terms of the loss, and gradients that are kept.
pub(crate) struct TrainingProgram {
    pub program: Program,
    /// The evaluation over the whole graph. Both keep parameters in the same pieces.
    pub evaluation: Program,
    /// Number of strips of columns that its wide matrices are cut into.
    pub strips: usize,
    /// Programs with the same results that make tensors again, or that cut wide matrices into strips of columns, as far as
    /// the options leave the choice.
    pub instead: Vec<Instead>,
    pub parameters: Vec<Parameter>,
    /// For each term of the loss, the name of its output and its weight in the sum.
    pub losses: Vec<(String, f64)>,
}

/// Writes the program of one step on the training split: forward, loss, backward, updates, and the passes.
pub(crate) fn training_program(spec: &EpochSpec<'_>) -> Result<TrainingProgram, ModelError> {
    let (mut network, logits) = spec.model.network(spec.features, Mode::Train, spec.dtype)?;
    let terms = spec.model.loss_terms(&mut network, logits, spec.labels)?;
    if spec.weighted_classes && !terms.iter().any(|term| term.kind == LossKind::SoftmaxCrossEntropy) {
        return Err(ModelError::NoClassWeights);
    }
    let (mut program, parameters) = network.into_parts();
    let mut losses = Vec::new();
    for (number, term) in terms.into_iter().enumerate() {
        let name = if number == 0 { "loss".to_owned() } else { format!("loss {number}") };
        let (loss, weight) = push_term(&mut program, term, spec)?;
        program.set_output(name.clone(), loss);
        losses.push((name, weight));
    }
    if let Some((layers, sizes)) = spec.batches {
        program = over_levels(&program, layers, sizes.kept > 0)?;
    }
    let tensors: Vec<_> = losses.iter().map(|(name, weight)| (program.outputs()[name], *weight)).collect();
    let losses: Vec<_> = losses.into_iter().map(|(name, weight)| (name, f64::from(weight))).collect();
    if spec.passes.order {
        order(&mut program, &spec.workload(true))?;
    }
    let gradients = append_backward(&mut program, &tensors)?;
    let learned = matches!(spec.features, FeatureKind::Learned { .. }).then_some(EMBEDDING);
    let trained = parameters.iter().filter(|p| p.trained).map(|p| p.name.as_str()).chain(learned);
    if let Some(unused) = trained.into_iter().find(|&name| !gradients.contains_key(name)) {
        return Err(ModelError::UnusedParameter { name: unused.into() });
    }
    append_updates(&mut program, &parameters, &gradients, spec.optimizer, spec.decay)?;
    for (name, gradient) in gradients.iter().filter(|(name, _)| spec.keeps_gradients || *name == EMBEDDING) {
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
    let ends: Vec<TensorId> = losses.iter().map(|(name, _)| program.outputs()[name]).collect();
    let mut made_again = again(&program, &ends, spec);
    if spec.recompute == Recompute::Always {
        program = made_again.pop().unwrap_or(program);
        made_again.clear();
    }
    let mut evaluation = evaluation_program(spec)?;
    let (mut strips, mut instead) = (1, Vec::new());
    if spec.batches.is_none() {
        (strips, instead) = in_strips(&mut program, &evaluation, made_again, spec)?;
        pieces(&mut program, &mut evaluation)?;
    }
    for Instead { training, evaluation, .. } in &mut instead {
        pieces(training, evaluation)?;
    }
    Ok(TrainingProgram { program, evaluation, strips, instead, parameters, losses })
}

/// Returns what may run instead of a training program: it makes tensors again, more in each program than in the one
/// before. `losses` are the ends of the forward part.
fn again(program: &Program, losses: &[TensorId], spec: &EpochSpec<'_>) -> Vec<Program> {
    if spec.recompute == Recompute::Never || spec.batches.is_some() {
        return Vec::new();
    }
    let mut made: Vec<Program> = Vec::new();
    let mut most = 0;
    for extent in [Extent::Rows, Extent::Products, Extent::Gathers] {
        // With several parts, a gather that runs again would exchange rows again.
        if extent == Extent::Gathers && spec.parts > 1 {
            break;
        }
        let mut again = program.clone();
        let added = recompute(&mut again, losses, extent).len();
        if added > most {
            made.push(again);
            most = added;
        }
    }
    made
}

/// Cuts the wide matrices of a training program into the fewest strips that the option allows. Returns how many there are, 1
/// if no matrix is wide enough, and what may run instead: the programs that make tensors again in as many strips; and in
/// more strips, the program itself and the one that makes most again.
fn in_strips(
    program: &mut Program,
    evaluation: &Program,
    again: Vec<Program>,
    spec: &EpochSpec<'_>,
) -> Result<(usize, Vec<Instead>), ModelError> {
    let cut = |program: &Program, strips| Ok::<_, ModelError>(columns(program, strips)?.unwrap_or(program.clone()));
    let mut instead = Vec::new();
    let whole = program.clone();
    let least = match columns(&whole, spec.strips.least())? {
        Some(cut) => {
            *program = cut;
            spec.strips.least()
        }
        None => 1,
    };
    for again in &again {
        instead.push(Instead { training: cut(again, least)?, evaluation: evaluation.clone(), strips: least });
    }
    for &strips in spec.strips.more() {
        let Some(training) = columns(&whole, strips)? else { break };
        let evaluation = evaluation_program(&EpochSpec { strips: Strips::Exactly(strips), ..*spec })?;
        if let Some(again) = again.last() {
            instead.push(Instead { training: cut(again, strips)?, evaluation: evaluation.clone(), strips });
        }
        instead.push(Instead { training, evaluation, strips });
    }
    Ok((least, instead))
}

/// Appends one term of the loss. Returns its tensor and the weight of that tensor in the sum.
fn push_term(program: &mut Program, term: LossTerm, spec: &EpochSpec<'_>) -> Result<(TensorId, f32), ModelError> {
    let LossTerm { weight, x, kind } = term;
    let split = SplitName::Train;
    Ok(match kind {
        LossKind::SoftmaxCrossEntropy if spec.weighted_classes => {
            let classes = program.tensor(x).ty.width;
            let weights = program.input(Origin::ClassWeights(classes), TensorType::f32(RowSpace::Param(1), classes))?;
            let op = Loss::WeightedSoftmaxCrossEntropy(split);
            (push_on_split(program, op, x, spec.labels, &[weights])?, weight)
        }
        LossKind::SoftmaxCrossEntropy => {
            (push_on_split(program, Loss::SoftmaxCrossEntropy(split), x, spec.labels, &[])?, weight)
        }
        LossKind::SigmoidCrossEntropy => {
            (push_on_split(program, Loss::SigmoidCrossEntropy(split), x, spec.labels, &[])?, weight)
        }
        LossKind::MeanSquare if spec.batches.is_some() => return Err(ModelError::NotInBatches),
        LossKind::MeanSquare => {
            let cells = spec.vertices as f64 * program.tensor(x).ty.width as f64;
            let of_sum = if cells > 0.0 { 2.0 * f64::from(weight) / cells } else { 0.0 };
            (program.push1(Loss::HalfSquares, &[x])?, of_sum as f32)
        }
    })
}

/// Writes the forward program without dropout, over the whole graph; see [`infer::evaluation_program`].
pub(crate) fn evaluation_program(spec: &EpochSpec<'_>) -> Result<Program, ModelError> {
    evaluation_over(&EpochSpec { batches: None, ..*spec })
}

/// Writes the forward program without dropout, over mini-batches if there are any.
pub(super) fn evaluation_over(spec: &EpochSpec<'_>) -> Result<Program, ModelError> {
    let (network, logits) = spec.model.network(spec.features, Mode::Evaluate, spec.dtype)?;
    let (workload, layers) = (spec.workload(false), spec.batches.map(|(layers, _)| layers));
    let program = infer::evaluation_program(network, logits, &[], Some(spec.labels), &workload, spec.passes, layers)?;
    Ok(match spec.batches {
        Some(_) => program,
        None => columns(&program, spec.strips.least())?.unwrap_or(program),
    })
}

impl EpochSpec<'_> {
    fn workload(&self, backward: bool) -> Workload {
        let levels = self.batches.map(|(_, sizes)| sizes);
        Workload { vertices: self.vertices, edges: self.edges, levels, backward, runs: EXPECTED_EPOCHS }
    }
}
