//! The state of a run between two epochs, or between two mini-batches, on the host.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lapidary_cost_model::CostModel;

use super::batches::BatchedEpoch;
use super::{RunRecord, Trainer};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::infer::Position;
use crate::infer::checkpoint::{self, BEST_FILE, COST_MODEL_FILE, Files, MODEL_FILE, OPTIMIZER_FILE, RUN_FILE};
use crate::model::Weights;

/// A copy of everything that a checkpoint holds: parameters, moments, the best parameters and the record of the run.
///
/// It is in host memory and depends on no device, so another thread can write it to disk while training goes on.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) record: RunRecord,
    pub(super) weights: Weights,
    pub(super) moments: Weights,
    pub(super) best_weights: Arc<Weights>,
    pub(super) cost_model: Option<CostModel>,
    /// For its fingerprint.
    pub(super) data: Dataset,
}

impl Snapshot {
    /// Returns the number of whole epochs that were run.
    pub fn epoch(&self) -> u64 {
        self.record.epoch
    }

    /// Returns how far the run has come: its epochs, and the mini-batches of the next one.
    pub fn position(&self) -> Position {
        Position { epoch: self.record.epoch, batch: self.record.partial.map_or(0, |partial| partial.batches) }
    }

    /// Writes `dir/best/`, if it has changed, and `dir/epoch-<N>/`; within epoch N, `dir/batch-<N>-<batches>/`.
    ///
    /// # Cost
    /// The first call for a dataset also computes [`Dataset::fingerprint`], unless that was done before.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] if the weights are not finite, and then no file is touched.
    /// [`crate::Error::Io`]; the folder then still has a complete checkpoint if it had one before.
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<()> {
        let dir = dir.as_ref();
        self.weights.check_finite()?;
        let fingerprint = Some(self.data.fingerprint().clone());
        let record = RunRecord { fingerprint, ..self.record.clone() };
        let cost_model = self.cost_model.clone().map(|mut model| {
            model.refit();
            (COST_MODEL_FILE, model.to_json().into_bytes())
        });
        let mut files = vec![
            (MODEL_FILE, self.weights.to_safetensors()?),
            (OPTIMIZER_FILE, self.moments.to_safetensors()?),
            (RUN_FILE, checkpoint::record_bytes(&record)),
        ];
        let best = match &record.best {
            Some(best) => {
                let weights = self.best_weights.to_safetensors()?;
                files.push((BEST_FILE, weights.clone()));
                let record = RunRecord { epoch: best.epoch, partial: None, ..record.clone() };
                let best: Files = vec![(MODEL_FILE, weights), (RUN_FILE, checkpoint::record_bytes(&record))];
                Some(best)
            }
            None => None,
        };
        files.extend(cost_model.clone());
        // First: if only one of the two is written, a resumed run writes the other one.
        if let Some(mut files) = best {
            files.extend(cost_model);
            checkpoint::write_folder(dir, "best", &files)?;
        }
        checkpoint::write_folder(dir, &self.position().folder(), &files)
    }
}

impl Trainer {
    /// Copies the current state to the host, where it can be saved, or restored later. It becomes
    /// [`Trainer::last_good`]. With several ranks and a learned embedding, all ranks have to call it.
    ///
    /// # Errors
    /// [`crate::Error::Diverged`] or [`crate::Error::NotFiniteAtStart`] if a parameter or a moment is not finite; the
    /// trainer is then where [`Trainer::step`] leaves it. [`crate::Error::Device`].
    pub fn snapshot(&mut self) -> Result<Arc<Snapshot>> {
        let start = Instant::now();
        let snapshot = Arc::new(self.state()?);
        self.check_finite(&snapshot.weights)?;
        self.check_finite(&snapshot.moments)?;
        self.last_good = Some(snapshot.clone());
        self.new_rates.clear();
        (self.snapshot_s, self.since_snapshot_s) = (start.elapsed().as_secs_f64(), 0.0);
        Ok(snapshot)
    }

    /// Copies the current state to the host.
    fn state(&self) -> Result<Snapshot> {
        let partial = Some(self.progress.partial).filter(|partial| partial.batches > 0);
        let record = RunRecord { epoch: self.epoch, partial, best: self.best.clone(), ..self.record.clone() };
        Ok(Snapshot {
            record,
            weights: self.weights()?,
            moments: self.moments()?,
            best_weights: self.best_weights.clone(),
            cost_model: self.learning.as_ref().map(|learning| learning.learner.model().clone()),
            data: self.data.clone(),
        })
    }

    /// Returns a recent state whose numbers are all finite. It is taken by [`Trainer::step`] as often as that costs at
    /// most 1 % of the time: after each epoch unless epochs are short. `None` before the first step, and after the
    /// state was changed from outside.
    pub fn last_good(&self) -> Option<&Arc<Snapshot>> {
        self.last_good.as_ref()
    }

    /// Returns to an earlier state of this run: parameters, moments, learning rate, position and best epoch. The split
    /// over devices stays as it is.
    ///
    /// # Errors
    /// [`crate::Error::Weights`] if the snapshot is of another model; [`crate::Error::Device`].
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        snapshot.weights.check(&self.record.model.model.name, &self.parameters)?;
        self.check_moments(&snapshot.moments)?;
        self.last_good = None;
        self.put_back(snapshot)
    }

    /// Writes a state that was checked to the devices.
    pub(super) fn put_back(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.write_weights(&snapshot.weights)?;
        self.set_moments(&snapshot.moments)?;
        self.write_learning_rate(snapshot.record.learning_rate)?;
        self.has_gradients = false;
        self.epoch = snapshot.record.epoch;
        self.progress = BatchedEpoch::after(snapshot.record.partial);
        self.best = snapshot.record.best.clone();
        self.best_weights = snapshot.best_weights.clone();
        self.record_split(self.epoch + 1, self.record.parts.clone());
        Ok(())
    }

    /// Writes a checkpoint and `dir/best/`: a [`Snapshot::save`] of the current state. A
    /// [`CheckpointWriter`](crate::CheckpointWriter) does it beside training.
    ///
    /// Two runs that save into one folder overwrite each other. This method takes no lock; a program that may run twice
    /// takes a [`RunLock`](crate::RunLock) first, as the command does. With several ranks and a learned embedding, use
    /// [`Trainer::snapshot`] on all of them, and save that of one.
    ///
    /// # Errors
    /// As [`Snapshot::save`]; [`crate::Error::Device`].
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.state()?.save(dir)
    }
}
