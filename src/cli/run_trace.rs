//! `--trace`: the trace file of a run. If the file fails, the run continues.

use std::path::Path;

use crate::error::{Error, Result};
use crate::runtime::TraceFile;
use crate::train::Trainer;

/// The trace of a run, if one was requested.
#[derive(Debug)]
pub(super) struct RunTrace {
    /// `None` if no trace was requested, or after a failure.
    file: Option<TraceFile>,
    failed: Option<Error>,
}

impl RunTrace {
    /// Opens the file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub(super) fn open(path: Option<&Path>, limit_bytes: u64) -> Result<Self> {
        let file = path.map(|path| TraceFile::create(path, limit_bytes)).transpose()?;
        Ok(Self { file, failed: None })
    }

    /// Makes the trainer trace its following epochs.
    pub(super) fn start(&self, trainer: &mut Trainer) {
        if self.file.is_some() {
            trainer.start_trace();
        }
    }

    /// Writes the trainer's last epoch.
    ///
    /// # Returns
    /// A note for the user, once: that nothing more is written, and why.
    pub(super) fn add(&mut self, trainer: &mut Trainer) -> Option<String> {
        let (Some(file), Some(trace)) = (&mut self.file, trainer.trace()) else { return None };
        let path = file.path().display().to_string();
        match file.add(trace) {
            Ok(()) if !file.is_full() => None,
            Ok(()) => {
                let epoch = trace.epoch();
                trainer.stop_trace();
                Some(format!("{path} is as large as a trace may be: epoch {epoch} and all after it are left out"))
            }
            Err(error) => {
                // Deletes the file now, since a checkpoint may need the space.
                self.file = None;
                self.failed = Some(error);
                trainer.stop_trace();
                Some(format!("{path} cannot be written any more: training goes on without it"))
            }
        }
    }

    /// Finishes the file, which is then complete at its path.
    ///
    /// # Errors
    /// [`Error::Io`], from now or from writing an epoch. The file is then deleted.
    pub(super) fn finish(self) -> Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.file.map_or(Ok(()), TraceFile::finish),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::model::Model;

    #[test]
    fn a_full_trace_is_said_once_and_later_epochs_are_not_traced() {
        let data = Dataset::builtin("karate").expect("it is built in");
        let model = Model::gcn(&[data.feature_width(), 4, data.class_count()]);
        let mut trainer = Trainer::builder(&model, &data).build().expect("it fits");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        let mut trace = RunTrace::open(Some(&path), 10_000).expect("it can be written");
        trace.start(&mut trainer);
        let mut said = Vec::new();
        for _ in 0..40 {
            trainer.step().expect("it runs");
            said.extend(trace.add(&mut trainer));
        }
        assert!(said.len() == 1 && said[0].contains("trace.json") && said[0].contains("left out"), "{said:?}");
        assert!(trainer.trace().is_none());
        trace.finish().expect("there is room");
        let text = std::fs::read(&path).expect("it is there");
        assert!(text.len() <= 10_000);
        let json: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
        assert!(json["otherData"]["truncated"].is_string() && json["otherData"]["epochs"].is_string(), "{json}");
    }
}
