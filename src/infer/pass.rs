//! One forward pass over one dataset.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use half::bf16;
use lapidary_kernels::StorageType;
use ndarray::Array2;

use super::evaluation::{LOGITS, evaluation_program, output_name};
use super::spare_rows::SpareRows;
use super::{Accuracy, Prediction, Predictor};
use crate::bind::{bind, bind_with, label_kind, model_for};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::lower::{FeatureData, Inputs, SumMode};
use crate::model::{LabelKind, Mode};
use crate::program::passes::fuse::fuse;
use crate::program::passes::order::Workload;
use crate::program::{Origin, Passes, Program, Stages, made_name};
use crate::runtime::{IdleDevice, Plans, RunOptions, Runs, Session, SessionSpec};

/// Number of runs to assume for a pass that repeats. It decides whether work that can be done once is hoisted out.
const EXPECTED_RUNS: u64 = 100;

/// The forward pass of a predictor over a dataset, ready to be lowered.
pub(super) struct Pass {
    program: Program,
    pub(super) inputs: Inputs,
    parts: Vec<Range<usize>>,
    labels: LabelKind,
    /// For each output beside the logits, its name in the program and its name in the prediction.
    outputs: Vec<(String, String)>,
    settings: Settings,
}

/// How a pass is written.
#[derive(Clone, Copy)]
struct Settings {
    runs: Runs,
    passes: Passes,
    /// Whether it counts the predictions that are right.
    counts: bool,
}

impl Pass {
    /// Writes the program, binds the data and splits the vertices.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub(super) fn new(predictor: &Predictor, data: &Dataset, runs: Runs) -> Result<Self> {
        let settings = Settings { runs, passes: predictor.options.passes, counts: true };
        Self::with(predictor, data, settings, |program| Ok((program, Vec::new())))
    }

    /// Does the same for a single pass whose predictions have no accuracy.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub(super) fn uncounted(predictor: &Predictor, data: &Dataset) -> Result<Self> {
        let settings = Settings { runs: Runs::Once, passes: predictor.options.passes, counts: false };
        Self::with(predictor, data, settings, |program| Ok((program, Vec::new())))
    }

    /// Does the same as [`Pass::uncounted`] for a pass after which the rows of any vertices can be computed again. Returns
    /// also the stages in which they are. What the stages read is among the outputs of the pass, by [`made_name`].
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub(super) fn in_stages(predictor: &Predictor, data: &Dataset) -> Result<(Self, Stages)> {
        let fuses = predictor.options.passes.fuse;
        let mut cut = None;
        let unfused = Passes { fuse: false, ..predictor.options.passes };
        let settings = Settings { runs: Runs::Once, passes: unfused, counts: false };
        let pass = Self::with(predictor, data, settings, |program| {
            let stages = cut.insert(Stages::of(&program)?);
            let all = stages.stages.iter_mut().chain([&mut stages.whole]);
            all.filter(|_| fuses).for_each(fuse);
            Ok((stages.whole.clone(), (0..stages.made.len()).map(made_name).collect()))
        })?;
        Ok((pass, cut.expect("the program was cut")))
    }

    /// Writes the program, which `change` changes, binds the data and splits the vertices. `change` also returns the names of
    /// outputs to be read.
    fn with(
        predictor: &Predictor,
        data: &Dataset,
        settings: Settings,
        change: impl FnOnce(Program) -> Result<(Program, Vec<String>)>,
    ) -> Result<Self> {
        let Predictor { model, feature_norm, dtype, options, cost_model, outputs, .. } = predictor;
        let labels = label_kind(data);
        predictor.check_classes(data)?;
        let features = predictor.features_for(data)?;
        let model = model_for(model, data, features)?;
        let (network, logits) = model.network(features, Mode::Evaluate, *dtype)?;
        let (vertices, edges) = (data.graph().vertex_count() as u64, data.graph().edge_count() as u64);
        let Settings { runs, passes, counts } = settings;
        let expected = if runs == Runs::Many { EXPECTED_RUNS } else { 1 };
        let workload = Workload { vertices, edges, levels: None, backward: false, runs: expected };
        let counted = counts.then_some(labels);
        let program = evaluation_program(network, logits, outputs, counted, &workload, passes, None)?;
        let (program, more) = change(program)?;
        let weighted = model.config().weighted();
        let inputs = match predictor.embedding() {
            Some(table) => {
                let (data_of, width) = (table.data.clone().into(), table.shape[1]);
                bind_with(data, FeatureData::Dense { data: data_of, width }, weighted)
            }
            None => bind(data, feature_norm.unwrap_or_else(|| data.default_feature_norm()), weighted, false)?,
        };
        let parts = options.parts(&inputs, &program, cost_model.as_deref(), runs)?;
        let named = outputs.iter().map(|name| (output_name(name), name.clone()));
        let outputs = named.chain(more.into_iter().map(|name| (name.clone(), name))).collect();
        Ok(Self { program, inputs, parts, labels, outputs, settings })
    }

    /// Opens the devices, puts the data and the weights in place, and runs the work that is done once per graph.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`], [`Error::Device`].
    pub(super) fn open(&self, predictor: &Predictor, plans: Option<&Plans>) -> Result<Session> {
        self.open_on(predictor, plans, Vec::new())
    }

    /// Opens a session like [`Pass::open`], on the devices of an earlier one if they fit.
    ///
    /// # Errors
    /// As [`Pass::open`].
    pub(super) fn open_on(
        &self,
        predictor: &Predictor,
        plans: Option<&Plans>,
        idle: Vec<IdleDevice>,
    ) -> Result<Session> {
        let named = self.outputs.iter().map(|(output, _)| output.clone());
        let keep: Vec<_> = [LOGITS.into()].into_iter().chain(named).map(|output| (0, output)).collect();
        let spec = SessionSpec {
            programs: &[("infer", &self.program)],
            strips: 1,
            instead: &[],
            inputs: &self.inputs,
            parts: self.parts.clone(),
            main: &[0],
            others: &[],
            repeats: self.settings.runs == Runs::Many,
            seed: 0,
            keep: &keep,
            plans,
            levels: None,
        };
        // There are no gradients to add.
        let devices = predictor.options.devices.clone().sums(SumMode::Parts);
        let session = Session::open_again(&RunOptions { devices, ..predictor.options.clone() }, &spec, idle)?;
        write_weights(&session, predictor)?;
        Ok(session)
    }

    /// Runs the pass on a session that [`Pass::open`] opened. The prediction's seconds count from `start`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(super) fn run(&self, predictor: &Predictor, session: &mut Session, start: Instant) -> Result<Prediction> {
        self.run_into(predictor, session, start, &mut SpareRows::default())
    }

    /// Runs the pass like [`Pass::run`]. The matrices of the prediction are in `spare` memory, if there is any.
    ///
    /// # Errors
    /// As [`Pass::run`].
    pub(super) fn run_into(
        &self,
        predictor: &Predictor,
        session: &mut Session,
        start: Instant,
        spare: &mut SpareRows,
    ) -> Result<Prediction> {
        let counts = self.settings.counts;
        let metrics = Accuracy::metrics(0);
        let done = session.run(&[0], if counts { &metrics } else { &[] }, &[], true)?;
        let vertices = self.inputs.graph.vertex_count();
        let mut read = |output: &str| -> Result<Array2<f32>> {
            let mut rows = spare.take(vertices * self.program.tensor(self.program.outputs()[output]).ty.width);
            match predictor.dtype {
                StorageType::F32 => session.read_rows(0, output, |some| rows.extend_from_slice(some))?,
                StorageType::Bf16 => {
                    session.read_rows(0, output, |some: &[bf16]| rows.extend(some.iter().map(|&x| f32::from(x))))?;
                }
            }
            let width = rows.len().checked_div(vertices).unwrap_or(0);
            Ok(Array2::from_shape_vec((vertices, width), rows).expect("one row per vertex"))
        };
        let logits = read(LOGITS)?;
        let named = self.outputs.iter().map(|(output, name)| Ok((name.clone(), read(output)?)));
        let outputs = named.collect::<Result<BTreeMap<_, _>>>()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Prediction {
            logits,
            outputs,
            accuracy: if counts { Accuracy::sum(&done, 0) } else { Accuracy::default() },
            labels: self.labels,
            seconds,
            parts: session.part_pairs(),
            part_seconds: done.kernel_seconds(),
        })
    }
}

impl Predictor {
    /// Checks that the model makes logits for the labels of a dataset.
    ///
    /// # Errors
    /// [`Error::ClassCount`].
    pub(super) fn check_classes(&self, data: &Dataset) -> Result<()> {
        let (classes, width) = (data.class_count(), self.model.config().widths.last().copied().unwrap_or_default());
        // Several labels per vertex are a matrix with as many columns as the logits have.
        if classes > width || (label_kind(data) == LabelKind::Multi && classes != width) {
            return Err(Error::ClassCount { dataset: data.name().into(), data: classes, model: width });
        }
        Ok(())
    }
}

/// Puts the weights of a predictor in place.
///
/// # Errors
/// [`Error::Device`].
pub(super) fn write_weights(session: &Session, predictor: &Predictor) -> Result<()> {
    for (name, weight) in predictor.weights.iter() {
        if let Some(slots) = session.origin(&Origin::Parameter(name.into())) {
            session.write(slots, &weight.data)?;
        }
    }
    Ok(())
}
