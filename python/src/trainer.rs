//! Trainers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lapidary::{Best, Epoch, Result, Trainer, Weight, Weights};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batches::BatchSettings;
use crate::between_batches::BetweenBatches;
use crate::checkpoints::NativeCheckpoints;
use crate::dataset::NativeDataset;
use crate::error::raised;
use crate::order::in_order;
use crate::predictor::{NativePredictor, Scores, scores};
use crate::settings::{DeviceSettings, ModelSettings, TrainingSettings};

/// A trainer of the library. Only one thread uses it at a time; the others wait without the GIL.
#[pyclass(frozen, module = "lapidary._lapidary")]
pub(crate) struct NativeTrainer {
    trainer: Mutex<Trainer>,
    between: BetweenBatches,
}

/// The number, the loss, the scores (`None` without an evaluation), the seconds, and the seconds of the evaluation.
type Step = (u64, f64, Option<Scores>, f64, f64);

/// The number of the best epoch, and its scores.
type BestEpoch = (u64, Scores);

/// The weights of a dict: an f32 array under each name.
type Named<'py> = BTreeMap<String, PyReadonlyArrayDyn<'py, f32>>;

/// Returns weights as a dict of new arrays.
pub(crate) fn arrays_of<'py>(py: Python<'py>, weights: &Weights) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, weight) in weights.iter() {
        let flat = PyArray1::from_slice(py, &weight.data);
        dict.set_item(name, flat.reshape(weight.shape.clone())?)?;
    }
    Ok(dict)
}

fn weights_of(named: &Named<'_>) -> PyResult<Weights> {
    let mut weights = Weights::default();
    for (name, array) in named {
        weights.insert(name, Weight { shape: array.shape().to_vec(), data: array.as_slice()?.to_vec() });
    }
    Ok(weights)
}

impl NativeTrainer {
    fn locked(&self) -> MutexGuard<'_, Trainer> {
        self.trainer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the trainer without the GIL.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Trainer) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&mut self.locked())).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl NativeTrainer {
    #[new]
    fn new(
        py: Python<'_>,
        data: &NativeDataset,
        model: ModelSettings,
        training: TrainingSettings,
        devices: DeviceSettings,
        batches: BatchSettings,
        weights: Option<Named<'_>>,
    ) -> PyResult<Self> {
        let weights = weights.as_ref().map(weights_of).transpose()?;
        let built = py.detach(|| -> Result<Trainer> {
            let (dtype, options) = (model.dtype()?, devices.options()?);
            let model = model.model(batches.input_width(&data.0), data.0.class_count())?;
            let data = in_order(&data.0, &model, &training, &devices, &batches)?;
            let builder = training.builder((&model, &data), (options, dtype))?;
            let mut builder = batches.add_to(builder, &data)?;
            if let Some(weights) = weights {
                builder = builder.weights(weights);
            }
            builder.build()
        });
        let mut trainer = built.map_err(|error| raised(py, &error))?;
        let between = BetweenBatches::default();
        between.watch(&mut trainer);
        Ok(Self { trainer: Mutex::new(trainer), between })
    }

    /// Runs an epoch, or what is left of it, and writes the checkpoints that are due. Ctrl-C ends an epoch of mini-batches
    /// early.
    fn step(&self, py: Python<'_>, checkpoints: Option<&NativeCheckpoints>) -> PyResult<Step> {
        let stepped = self.with(py, |trainer| {
            loop {
                let batches = checkpoints.map_or(u64::MAX, |checkpoints| checkpoints.batches_to_run(trainer));
                let epoch = trainer.step_batches(batches)?;
                checkpoints.map_or(Ok(()), |checkpoints| checkpoints.keep_if_due(trainer))?;
                if epoch.is_some() || self.between.is_asked() {
                    return Ok(epoch);
                }
            }
        });
        let interrupted = self.between.take();
        checkpoints.map_or(Ok(()), |checkpoints| checkpoints.warn(py))?;
        let stepped = stepped?;
        interrupted.map_or(Ok(()), Err)?;
        let Epoch { epoch, loss, accuracy, seconds, eval_seconds, .. } =
            stepped.expect("only a signal ends an epoch before its last batch");
        Ok((epoch, loss, accuracy.map(scores), seconds, eval_seconds))
    }

    /// Sets what is called between mini-batches, with the number of the batch and the number of all of the epoch.
    fn show_batches(&self, show: Option<Py<PyAny>>) {
        self.between.show(show);
    }

    fn evaluate(&self, py: Python<'_>) -> PyResult<Scores> {
        self.with(py, Trainer::evaluate).map(scores)
    }

    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let weights = self.with(py, |trainer| trainer.weights())?;
        arrays_of(py, &weights)
    }

    fn set_weights(&self, py: Python<'_>, weights: Named<'_>) -> PyResult<()> {
        let weights = weights_of(&weights)?;
        self.with(py, |trainer| trainer.set_weights(&weights))
    }

    fn predictor(&self, py: Python<'_>) -> PyResult<NativePredictor> {
        self.with(py, |trainer| trainer.predictor()).map(NativePredictor)
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |trainer| trainer.save(path))
    }

    /// Continues from the newest checkpoint in a folder. Returns its epoch; `None` if there is no checkpoint.
    fn resume(&self, py: Python<'_>, path: PathBuf) -> PyResult<Option<u64>> {
        self.with(py, |trainer| trainer.resume(path))
    }

    /// Sets the learning rate of a resumed run, if it is another one than the run was last asked for.
    fn ask_learning_rate(&self, py: Python<'_>, lr: f64) -> PyResult<()> {
        self.with(py, |trainer| match trainer.asked_learning_rate() == lr {
            true => Ok(()),
            false => trainer.change_learning_rate(lr, "resume"),
        })
    }

    fn set_learning_rate(&self, py: Python<'_>, lr: f64) -> PyResult<()> {
        self.with(py, |trainer| trainer.set_learning_rate(lr))
    }

    fn learning_rate(&self, py: Python<'_>) -> PyResult<f64> {
        self.with(py, |trainer| Ok(trainer.learning_rate()))
    }

    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |trainer| Ok(trainer.epoch()))
    }

    /// The number of epochs, and that of the mini-batches of the next one.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |trainer| Ok((trainer.position().epoch, trainer.position().batch)))
    }

    /// The order of the vertices in memory.
    fn order(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |trainer| Ok(trainer.vertex_order().name()))
    }

    /// The best epoch; `None` before an evaluation.
    fn best(&self, py: Python<'_>) -> PyResult<Option<BestEpoch>> {
        let scores = |best: &Best| (best.train_accuracy, best.val_accuracy, best.test_accuracy);
        self.with(py, |trainer| Ok(trainer.best().map(|best| (best.epoch, scores(best)))))
    }

    /// The number of tiles and of strips, and the peak of each device in bytes: planned, and so far.
    fn sizes(&self, py: Python<'_>) -> PyResult<(usize, usize, Vec<u64>, Vec<u64>)> {
        self.with(py, |trainer| {
            let peaks = (trainer.planned_peak_device_bytes(), trainer.peak_device_bytes());
            Ok((trainer.tiles(), trainer.strips(), peaks.0, peaks.1))
        })
    }
}
