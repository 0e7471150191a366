//! The state of a run between two epochs, on the host.

use std::path::Path;
use std::sync::Arc;

use lapidary_cost_model::CostModel;

use super::RunRecord;
use crate::dataset::Dataset;
use crate::error::Result;
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
    /// Returns the number of epochs that were run.
    pub fn epoch(&self) -> u64 {
        self.record.epoch
    }

    /// Writes `dir/best/`, if it has changed, and `dir/epoch-<N>/`.
    ///
    /// # Cost
    /// The first call for a dataset also computes [`Dataset::fingerprint`], unless that was done before.
    ///
    /// # Errors
    /// [`Error::Weights`](crate::Error::Weights) if the weights are not finite, and then no file is touched.
    /// [`Error::Io`](crate::Error::Io); the folder then still has a complete checkpoint if it had one before.
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
                let record = RunRecord { epoch: best.epoch, ..record.clone() };
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
        checkpoint::write_folder(dir, &checkpoint::epoch_folder(record.epoch), &files)
    }
}
