//! `--trace`: a file beside a run, which may fail without the run failing.

use std::path::Path;

use crate::error::{Error, Result};
use crate::runtime::TraceFile;
use crate::train::Trainer;

/// The trace of a run, if one was asked for.
#[derive(Debug)]
pub(super) struct RunTrace {
    /// Until it fails.
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

    /// Has the epochs to come traced.
    pub(super) fn start(&self, trainer: &mut Trainer) {
        if self.file.is_some() {
            trainer.start_trace();
        }
    }

    /// Writes the trainer's last epoch.
    ///
    /// # Returns
    /// What a person should know, once: that nothing is written any more, and why.
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
                // Its bytes go now: a checkpoint may need the room.
                self.file = None;
                self.failed = Some(error);
                trainer.stop_trace();
                Some(format!("{path} cannot be written any more: training goes on without it"))
            }
        }
    }

    /// Ends the file, which is then in its place.
    ///
    /// # Errors
    /// [`Error::Io`], now or when an epoch was written; nothing is then left of it.
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
