//! Writes checkpoints on a thread of its own, and removes old ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::Snapshot;
use crate::error::{Error, Result};
use crate::infer::{Position, checkpoint};

/// Writes snapshots to a checkpoint folder while training goes on.
///
/// One snapshot is written at a time, and one more may wait. Each is complete on disk, or absent. After a snapshot was
/// written, older epochs are removed if there are more than the writer keeps, and so are older states within an epoch;
/// `best/` stays.
///
/// ```
/// use lapidary::{CheckpointWriter, Dataset, Model, Trainer};
///
/// let folder = tempfile::tempdir().unwrap();
/// let data = Dataset::builtin("karate")?;
/// let model = Model::gcn(&[data.feature_width(), 8, data.class_count()]);
/// let mut trainer = Trainer::builder(&model, &data).build()?;
/// let mut writer = CheckpointWriter::open(folder.path(), 2)?;
/// for _ in 0..10 {
///     trainer.step()?;
///     writer.write(trainer.snapshot()?)?;
/// }
/// writer.finish()?;
/// assert_eq!(trainer.resume(folder.path())?, Some(10));
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckpointWriter {
    dir: PathBuf,
    /// `None` once the thread was told to end.
    snapshots: Option<SyncSender<Arc<Snapshot>>>,
    written: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
    /// Position of the newest snapshot that was queued.
    newest: Option<Position>,
    /// The error of the last snapshot, if it could not be written.
    failed: Option<Error>,
}

impl CheckpointWriter {
    /// Starts the thread for a folder, which need not exist. `keep` is the number of epochs to keep, and of states within
    /// an epoch; 0 keeps all.
    ///
    /// Like [`Trainer::save`](crate::Trainer::save), this takes no lock: see [`RunLock`](crate::RunLock).
    ///
    /// # Errors
    /// [`Error::Io`] if there is no thread to be had.
    pub fn open(dir: impl AsRef<Path>, keep: usize) -> Result<Self> {
        let dir = dir.as_ref().to_path_buf();
        let (snapshots, jobs) = sync_channel::<Arc<Snapshot>>(1);
        let (done, written) = channel();
        let folder = dir.clone();
        let thread = std::thread::Builder::new().name("checkpoints".into());
        let thread = thread.spawn(move || write_all(&folder, keep, &jobs, &done)).map_err(|source| Error::Io {
            action: "start the thread that writes checkpoints to",
            path: dir.clone(),
            source,
        })?;
        Ok(Self { dir, snapshots: Some(snapshots), written, thread: Some(thread), newest: None, failed: None })
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the position of the newest snapshot that was passed to [`CheckpointWriter::write`].
    pub fn newest(&self) -> Option<Position> {
        self.newest
    }

    /// Queues a snapshot. Waits if another one is waiting.
    ///
    /// # Errors
    /// The error of an earlier snapshot that could not be written, since the last call; this one is queued all the
    /// same. A run may go on and try again later.
    pub fn write(&mut self, snapshot: Arc<Snapshot>) -> Result<()> {
        self.newest = Some(snapshot.position());
        // Before this one is queued: its own result is for the next call, or for the end.
        let failed = self.written.try_iter().filter_map(Result::err).last();
        if let Some(queue) = &self.snapshots {
            // The thread ends only when this sender is gone.
            drop(queue.send(snapshot));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// The error of the last snapshot, if it could not be written.
    pub fn finish(mut self) -> Result<()> {
        self.stop();
        self.failed.take().map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        self.snapshots = None;
        if let Some(thread) = self.thread.take() {
            // Writing does not panic; if it did, the panic was printed.
            drop(thread.join());
        }
        self.failed = self.written.try_iter().last().and_then(Result::err);
    }
}

impl Drop for CheckpointWriter {
    /// Waits until everything is written.
    fn drop(&mut self) {
        self.stop();
    }
}

fn write_all(dir: &Path, keep: usize, snapshots: &Receiver<Arc<Snapshot>>, done: &Sender<Result<()>>) {
    for snapshot in snapshots {
        let written = snapshot.save(dir).and_then(|()| checkpoint::prune(dir, keep));
        // The writer keeps the receiver until this thread has ended.
        drop(done.send(written));
    }
}
